"""
Three real Kafka brokers on this machine that replicate to each other, for `kafka-timers dev --brokers 3` and for tests.

Topics have three replicas, and a record counts as written once two of them have it. So one broker may be lost. Each
broker is also a controller, as in many small clusters. Session timeouts are Kafka's defaults: a broker that is killed
or silent loses its partitions after 9 s.

**Breaking the network** (Linux only). With `relay=True`, brokers reach each other through relays of this process, one
for each listener and direction. So a broker can be separated from the others, both ways, while clients reach it:

    broker 1 ──▶ kafka-2 = 127.0.1.2 ──▶ relay ──▶ 127.0.0.1 broker 2
    broker 3 ──▶ kafka-2 = 127.0.3.2 ──▶ relay ──▶ 127.0.0.1 broker 2

Brokers advertise themselves to each other by name, and each broker's Java has a hosts file of its own. So the address
that a relay listens on tells which broker calls which. Kafka's settings alone cannot tell that, because a broker or
controller advertises one address to all others.
"""

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from kafka_timers.dev.broker import HOST, EmbeddedKafka, Member, free_port, new_cluster_id
from kafka_timers.dev.relay import Relay

__all__ = ["EmbeddedCluster"]

_NODES = (1, 2, 3)

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
_SMALL_JAVA = ("-Xmx320m", "-XX:+UseSerialGC")


class EmbeddedCluster:
    """
    Three brokers of your own.

    The rules of `EmbeddedKafka` for event loop and thread hold here too. Code that blocks the loop also holds up the
    relays. The next cluster in the folder finds the data again, on any ports.

    Args:
        folder: folder with one folder for each broker; created if it does not exist.
        ports: ports of the brokers for clients; if empty, free ones are chosen, once.
        relay: let brokers reach each other through relays; `hold` and `cut` need it.
        client_relay: let clients reach brokers through relays; `hold_clients` and `cut_clients` need it.
        properties: settings of all brokers in Kafka's own names; they win over those made here.

    Attributes:
        nodes: the brokers by id, 1 to 3. You can start, stop, kill and pause each one separately.
    """

    def __init__(
        self,
        folder: Path,
        ports: Iterable[int] = (),
        *,
        relay: bool = False,
        client_relay: bool = False,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder.absolute()
        taken = list(ports) or [free_port() for _ in _NODES]
        self._ports = dict(zip(_NODES, taken, strict=True))
        more = iter([free_port(inner=True) for _ in range(9)])
        internal, controller = dict(zip(_NODES, more, strict=False)), dict(zip(_NODES, more, strict=False))
        # The ports that the brokers themselves listen on for clients.
        behind = dict(zip(_NODES, more, strict=True)) if client_relay else self._ports
        self._relayed = relay
        self._between = {
            (origin, to): [
                Relay((f"127.0.{origin}.{to}", port[to]), (HOST, port[to])) for port in (internal, controller)
            ]
            for origin in _NODES
            for to in _NODES
            if relay and origin != to
        }
        self._to_clients = {
            node: Relay((HOST, self._ports[node]), (HOST, behind[node])) for node in _NODES if client_relay
        }
        voters = ",".join(f"{node}@{self._name(node)}:{controller[node]}" for node in _NODES)
        cluster_id = _remembered_id(self.folder / "cluster.id")
        self.nodes = {}
        for node in _NODES:
            listeners = {"CLIENT": behind[node], "INTERNAL": internal[node], "CONTROLLER": controller[node]}
            advertised = [f"CLIENT://{HOST}:{self._ports[node]}"]
            advertised += [f"{name}://{self._name(node)}:{listeners[name]}" for name in ("INTERNAL", "CONTROLLER")]
            own = {
                "node.id": str(node),
                "controller.quorum.voters": voters,
                "listeners": ",".join(f"{name}://{HOST}:{port}" for name, port in listeners.items()),
                "advertised.listeners": ",".join(advertised),
                "inter.broker.listener.name": "INTERNAL",
                "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in listeners),
                **_REPLICATED,
                **_SMALL,
                **(properties or {}),
            }
            java = [*_SMALL_JAVA, f"-Djdk.net.hosts.file={self._hosts(node)}"] if relay else _SMALL_JAVA
            member = Member(cluster_id, own, java)
            self.nodes[node] = EmbeddedKafka(self.folder / f"broker-{node}", behind[node], member=member)

    @property
    def bootstrap(self) -> str:
        """The addresses of all three for clients, host:port, comma separated."""
        return ",".join(f"{HOST}:{port}" for port in self._ports.values())

    async def start(self) -> None:
        """
        Start the brokers that do not run, and return once each of them answers.

        Raises:
            KafkaSetupError: as for `EmbeddedKafka.start`, from the first broker that fails; then none is left running.
            OSError: a relay's address is taken, or does not belong to this machine.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        await self.mend()
        starts = [asyncio.create_task(node.start()) for node in self.nodes.values()]
        try:
            await asyncio.gather(*starts)
        except BaseException:
            for start in starts:
                start.cancel()
            await asyncio.gather(*starts, return_exceptions=True)
            await self.kill()
            raise

    async def stop(self) -> None:
        """End all brokers gently, by force after 20 s. Returns once they are gone."""
        for relay in self._relays():
            await relay.flow()
        await asyncio.gather(*(node.stop() for node in self.nodes.values()))
        await self._close()

    async def kill(self) -> None:
        """End all brokers as a crash would (SIGKILL). Returns once they are gone."""
        await asyncio.gather(*(node.kill() for node in self.nodes.values()))
        await self._close()

    async def hold(self, node: int) -> None:
        """Separate *node* from the other brokers: nothing passes, but no connection ends. Clients still reach it."""
        for relay in self._around(node):
            await relay.hold()

    async def cut(self, node: int) -> None:
        """Separate *node* from the other brokers: connections are reset, new ones refused. Clients still reach it."""
        for relay in self._around(node):
            await relay.cut()

    async def hold_clients(self, node: int) -> None:
        """Separate *node* from clients: nothing passes, but no connection ends. The other brokers still reach it."""
        await self._to_clients[node].hold()

    async def cut_clients(self, node: int) -> None:
        """Separate *node* from clients: connections are reset, new ones refused. The other brokers still reach it."""
        await self._to_clients[node].cut()

    async def mend(self) -> None:
        """Let everything pass again; held bytes arrive."""
        for relay in self._relays():
            await relay.flow()

    async def obituary(self) -> str:
        """Wait until two brokers have ended, so that nothing can be written, and return how they ended."""
        ends = [asyncio.create_task(node.obituary()) for node in self.nodes.values()]
        try:
            ended = asyncio.as_completed(ends)
            return "\n".join([await next(ended), await next(ended)])
        finally:
            for end in ends:
                end.cancel()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def _around(self, node: int) -> list[Relay]:
        if not self._between:
            raise ValueError("this cluster was made without relay=True, so its brokers cannot be parted")
        return [relay for ends, relays in self._between.items() if node in ends for relay in relays]

    def _relays(self) -> list[Relay]:
        return [*(relay for relays in self._between.values() for relay in relays), *self._to_clients.values()]

    async def _close(self) -> None:
        for relay in self._relays():
            await relay.cut()

    def _name(self, node: int) -> str:
        return f"kafka-{node}" if self._relayed else HOST

    def _hosts(self, origin: int) -> Path:
        addresses = {node: HOST if node == origin else f"127.0.{origin}.{node}" for node in _NODES}
        hosts = self.folder / f"hosts-{origin}"
        hosts.write_text(
            f"{HOST} localhost\n" + "".join(f"{to} {self._name(node)}\n" for node, to in addresses.items())
        )
        return hosts


def _remembered_id(file: Path) -> str:
    """Return the id in *file*. If there is none, make one and keep it there for brokers that are set up later."""
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(new_cluster_id())
    return file.read_text()
