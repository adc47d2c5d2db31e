"""
A real Kafka on this machine: one process, broker and controller in one (KRaft), reachable on 127.0.0.1 only.

It is small and set up to start and rebalance quickly, for development and tests. Do not use it in production. It keeps
its data in a folder, and the next start finds it there.
"""

import asyncio
import base64
import os
import random
import shutil
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from kafka_timers.dev import jars, java
from kafka_timers.errors import KafkaSetupError
from kafka_timers.runtime.child import Child
from kafka_timers.runtime.http_server import is_free

HOST = "127.0.0.1"

# Both lie below the ports that systems use for outgoing connections. Among those, a client that retries a stopped
# broker would sooner or later take the broker's own port as its source, and the broker could not start again.
# Ports of the second range are known to brokers only. A port of the first range is free for some moments while its
# program starts, so nothing may take one unasked.
PORTS, INNER_PORTS = range(20_000, 30_000), range(30_000, 32_000)
# The programs that these are meant for may not listen yet.
_returned: deque[int] = deque(maxlen=100)

# Without the optimizing compiler, Kafka starts in half the time, and a broker this small does not need it; nor threads
# that collect garbage beside it.
JAVA_OPTIONS = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m"]

_START_LIMIT_S = 300.0
STOP_LIMIT_S = 20.0

_LOGGING = """\
appender.out.type = Console
appender.out.name = OUT
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %c{1} %m%n
rootLogger.level = warn
rootLogger.appenderRef.out.ref = OUT
"""

# Without these, one broker cannot hold the internal topics, which by default have three replicas each.
_ONE_BROKER = {
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "broker.heartbeat.interval.ms": "500",
    # For followers, of which there are none: twice a second by default, which is a third of what an idle broker does.
    "metadata.max.idle.interval.ms": "0",
}

# A broker that is alone is its own controller, so nobody gains by the end of its session: on a machine that stalls, it
# would only lose the members of its groups. But a killed one may return only after its old session has ended, which the
# new one counts by its own setting.
_SESSION, _SESSION_OF_KILLED = ({"broker.session.timeout.ms": ms} for ms in ("60000", "3000"))
# Kafka's file in a data folder that was left in order.
_IN_ORDER = ".kafka_cleanshutdown"

_QUICK = {
    # The default is 50 partitions each, all created when the first group or transaction starts.
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "1",
    # The first member of a group waits 3 s for others by default.
    "group.initial.rebalance.delay.ms": "0",
    # A test then sees a takeover without 6 s of silence before it.
    "group.min.session.timeout.ms": "1000",
}


class EmbeddedKafka:
    """
    A Kafka broker of your own.

    Start and stop it in the same event loop, on a thread that lives as long as the program. On Linux the broker is
    killed when that thread ends, so a killed program leaves no broker behind. You can start it again after `stop` or
    `kill`; it then has the same address and the same data.

    Args:
        folder: folder of the data, `server.properties` and `broker.log`; created if it does not exist.
        port: port for clients; 0 chooses a free one, once.
        features: levels of Kafka's features in new data; the default is that of the Kafka version.
        cluster_id: `new_cluster_id` of the cluster that it is one of several brokers of. Its *properties* then have its
            id, listeners, peers and replication. Empty for a broker that is alone.
        java: Java options, behind those that every broker here has.
        classpath: of another version of Kafka, from 3.3 on; empty is the one of `jars.lock`.

    Attributes:
        properties: broker settings in Kafka's own names, from the next start on; they win over those made here.
        environment: variables that the broker gets at its next start, besides those of this process.
    """

    def __init__(
        self,
        folder: Path,
        port: int = 0,
        properties: Mapping[str, str] | None = None,
        features: Mapping[str, int] | None = None,
        *,
        cluster_id: str = "",
        java: Sequence[str] = (),
        classpath: str = "",
    ) -> None:
        self.folder = folder.absolute()
        self.port = port or free_port()
        self.properties = dict(properties or {})
        self._features = features or {}
        self._cluster_id = cluster_id
        self._java = java
        self._classpath = classpath
        self._child: Child | None = None
        self.environment: dict[str, str] = {}

    @property
    def bootstrap(self) -> str:
        """The broker's address for clients, host:port."""
        return f"{HOST}:{self.port}"

    @property
    def log(self) -> Path:
        """The file with the broker's warnings and errors."""
        return self.folder / "broker.log"

    async def start(self) -> None:
        """
        Start the broker and return once it answers. Does nothing if the broker is running.

        Raises:
            KafkaSetupError: no Java, no jars, the port is taken, or the broker ended; then with the end of its log.
        """
        if self._child and self._child.returncode is None:
            return
        refuse_taken_port(self.port, "Kafka")
        # In threads, because both take a while: one runs programs, the other may wait for the network.
        program = await asyncio.to_thread(java.find)
        classpath = self._classpath or await asyncio.to_thread(jars.classpath)
        self.folder.mkdir(parents=True, exist_ok=True)
        logging = self.folder / "log4j2.properties"
        logging.write_text(_LOGGING)
        command = [str(program), *JAVA_OPTIONS, *self._java, f"-Dlog4j2.configurationFile={logging}", "-cp", classpath]
        environment = os.environ | self.environment
        was_killed = self._data.exists() and not (self._data / _IN_ORDER).exists()
        if not self._data.exists():
            await self._format(command, environment)
        config = self._configure(self._data, _SESSION_OF_KILLED if was_killed else _SESSION)
        self._child = await Child.start("Kafka", [*command, "kafka.Kafka", str(config)], self.log, environment)
        try:
            await self._until_it_answers(self._child)
        except BaseException:
            self._child.kill()
            await self._child.wait()
            raise

    async def stop(self) -> None:
        """End the broker gently, by force after 20 s. Returns once it is gone, and at once if it is not running."""
        if self._child:
            await self._child.stop(STOP_LIMIT_S)

    async def kill(self) -> None:
        """End the broker as a crash would (SIGKILL). Returns once it is gone."""
        if self._child:
            self._child.kill()
            await self._child.wait()

    def pause(self) -> None:
        """Freeze the broker (SIGSTOP). Its connections stay, and it answers nothing until `resume`."""
        if self._child:
            self._child.pause()

    def resume(self) -> None:
        """Let the broker go on (SIGCONT)."""
        if self._child:
            self._child.resume()

    async def obituary(self) -> str:
        """Wait until the broker has ended, and return its exit code and the last lines of its log as text."""
        return await self._child.obituary() if self._child else "Kafka was never started"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _configure(self, data: Path, session: Mapping[str, str]) -> Path:
        properties = {
            "process.roles": "broker,controller",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(data),
            "auto.create.topics.enable": "false",
            **_QUICK,
            **({} if self._cluster_id else {**self._alone(), **session}),
            **self.properties,
        }
        config = self.folder / "server.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        return config

    def _alone(self) -> dict[str, str]:
        # The controller's port may differ from start to start: this process is the only voter of the quorum, and it
        # tells the quorum its address.
        controller = f"{HOST}:{free_port(inner=True)}"
        quorum = {"controller.quorum.bootstrap.servers": controller}
        if self._classpath:
            # Before 3.9, voters are known from settings alone.
            quorum = {"controller.quorum.voters": f"1@{controller}"}
        return {
            "node.id": "1",
            **quorum,
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            **_ONE_BROKER,
        }

    async def _format(self, command: list[str], environment: Mapping[str, str]) -> None:
        # Under another name and then renamed, so that an interruption leaves no half-formatted data.
        unfinished = self.folder / "data.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        config = self._configure(unfinished, _SESSION)
        # With "=", because one cluster id in 64 begins with "-" and would be read as an option.
        cluster_id = self._cluster_id or new_cluster_id()
        tool = ["kafka.tools.StorageTool", "format", f"--cluster-id={cluster_id}", "-c", str(config)]
        if not self._cluster_id and not self._classpath:
            tool.append("--standalone")
        for name, level in self._features.items():
            tool += ["--feature", f"{name}={level}"]
        child = await Child.start("Kafka's format", [*command, *tool], self.log, environment)
        try:
            if await child.wait():
                raise KafkaSetupError(f"Kafka cannot prepare {self._data}: {await child.obituary()}")
        finally:
            child.kill()
        unfinished.rename(self._data)

    async def _until_it_answers(self, child: Child) -> None:
        answer, end = asyncio.ensure_future(self._answer()), asyncio.ensure_future(child.obituary())
        try:
            await asyncio.wait((answer, end), timeout=_START_LIMIT_S, return_when=asyncio.FIRST_COMPLETED)
            if end.done():
                raise KafkaSetupError(f"Kafka did not start: {end.result()}")
            if not answer.done():
                raise KafkaSetupError(f"Kafka does not answer after {_START_LIMIT_S:g} s; {child.last_words()}")
            answer.result()
        finally:
            answer.cancel()
            end.cancel()

    async def _answer(self) -> None:
        # A bare connection comes first: Kafka's client would log an error for every attempt before the port is open.
        while True:
            try:
                _, writer = await asyncio.open_connection(HOST, self.port)
            except OSError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                break
        while not await self._lists_a_broker():  # noqa: ASYNC110  # Kafka has to be asked
            await asyncio.sleep(0.05)

    async def _lists_a_broker(self) -> bool:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap, request_timeout_ms=5_000)
        try:
            await admin.start()
            return bool((await admin.describe_cluster())["brokers"])
        except KafkaError:
            return False
        finally:
            await admin.close()


def new_cluster_id() -> str:
    """Return a random id for a new cluster, in Kafka's format."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def free_port(*, inner: bool = False) -> int:
    """
    Return a TCP port on 127.0.0.1 that is free and none of the last hundred that were returned. With *inner*, it is one
    of `INNER_PORTS`, for brokers only, instead of one of `PORTS`.
    """
    while True:
        port = random.choice(INNER_PORTS if inner else PORTS)  # noqa: S311  # not a secret
        if port not in _returned and is_free(HOST, port):
            _returned.append(port)
            return port


def refuse_taken_port(port: int, who: str) -> None:
    """
    Do nothing if *port* on 127.0.0.1 is free. The error says that *who* needs the port.

    Raises:
        KafkaSetupError: another program listens there.
    """
    if not is_free(HOST, port):
        raise KafkaSetupError(
            f"port {port} on {HOST}, meant for {who}, is taken by another program: end that one, or give another port"
        )
