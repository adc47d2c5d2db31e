"""
Three real Kafka brokers on this machine that replicate to each other, for `kafka-timers dev --brokers 3` and for tests.

Topics have three replicas, and a record counts as written once two of them have it. So one broker may be lost. Each
broker is also a controller, as in many small clusters. Session timeouts are Kafka's defaults: a broker that is killed
or silent loses its partitions after 9 s.
"""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from kafka_timers.dev.broker import HOST, EmbeddedKafka, free_port, new_cluster_id
from kafka_timers.runtime.tasks import cancel

# The ids of the brokers.
NODES = (1, 2, 3)

_REPLICATED = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
}

# Three brokers share a machine, so each has less memory and fewer idle threads.
_SMALL = {
    "log.cleaner.dedupe.buffer.size": str(32 << 20),
    "num.network.threads": "2",
    "num.io.threads": "4",
}
_SMALL_JAVA = ("-Xmx320m",)


class EmbeddedCluster:
    """
    Three brokers of your own.

    The rules of `EmbeddedKafka` for event loop and thread hold here too. The next cluster in the folder finds the data
    again, on any ports.

    Args:
        folder: folder with one folder for each broker; created if it does not exist.
        ports: ports of the brokers for clients; if empty, free ones are chosen, once.

    Attributes:
        nodes: the brokers by id, 1 to 3. You can start, stop, kill and pause each one separately.
    """

    def __init__(self, folder: Path, ports: Iterable[int] = ()) -> None:
        self.folder = folder.absolute()
        clients = list(ports) or [free_port() for _ in NODES]
        internal = [free_port(inner=True) for _ in NODES]
        controllers = [free_port(inner=True) for _ in NODES]
        voters = ",".join(f"{node}@{HOST}:{port}" for node, port in zip(NODES, controllers, strict=True))
        cluster_id = _remembered_id(self.folder / "cluster.id")
        self.nodes = {}
        for node, *listening in zip(NODES, clients, internal, controllers, strict=True):
            listeners = dict(zip(("CLIENT", "INTERNAL", "CONTROLLER"), listening, strict=True))
            listed = ",".join(f"{name}://{HOST}:{port}" for name, port in listeners.items())
            properties = {
                "node.id": str(node),
                "controller.quorum.voters": voters,
                "listeners": listed,
                "advertised.listeners": listed,
                "inter.broker.listener.name": "INTERNAL",
                "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in listeners),
                **_REPLICATED,
                **_SMALL,
            }
            self.nodes[node] = EmbeddedKafka(
                self.folder / f"broker-{node}", listening[0], properties, cluster_id=cluster_id, java=_SMALL_JAVA
            )

    @property
    def bootstrap(self) -> str:
        """The addresses of all three for clients, host:port, comma separated."""
        return ",".join(node.bootstrap for node in self.nodes.values())

    async def start(self) -> None:
        """
        Start the brokers that do not run, and return once each of them answers.

        Raises:
            KafkaSetupError: as for `EmbeddedKafka.start`, from the first broker that fails; then none is left running.
        """
        starts = [asyncio.create_task(node.start()) for node in self.nodes.values()]
        try:
            await asyncio.gather(*starts)
        except BaseException:
            await cancel(starts)
            await self.kill()
            raise

    async def stop(self) -> None:
        """End all brokers gently, by force after 20 s. Returns once they are gone."""
        await asyncio.gather(*(node.stop() for node in self.nodes.values()))

    async def kill(self) -> None:
        """End all brokers as a crash would (SIGKILL). Returns once they are gone."""
        await asyncio.gather(*(node.kill() for node in self.nodes.values()))

    async def obituary(self) -> str:
        """Wait until two brokers have ended, so that nothing can be written, and return how they ended."""
        ends = [asyncio.create_task(node.obituary()) for node in self.nodes.values()]
        try:
            ended = asyncio.as_completed(ends)
            return "\n".join([await next(ended), await next(ended)])
        finally:
            await cancel(ends)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


def _remembered_id(file: Path) -> str:
    """Return the id in *file*. If there is none, make one and keep it there for brokers that are set up later."""
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(new_cluster_id())
    return file.read_text()
