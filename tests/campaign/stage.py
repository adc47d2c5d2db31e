"""The system under test: brokers, two oscillators and some workers, as processes that an operator would start."""

import asyncio
import contextlib
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from aiokafka.client import CoordinationType
from partable import PartableCluster
from prometheus import Prometheus

from campaign import topics
from campaign.clocks import Clocks
from campaign.oracle import Answer, Request
from kafka_timers.broker.bounds import LogBounds
from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka
from kafka_timers.dev.broker import EmbeddedKafka, free_port
from kafka_timers.runtime.child import Child
from kafka_timers.worker.sender import transactional_ids

__all__ = ["Former", "Process", "Stage"]

_READY_LIMIT_S = 600.0


class Process:
    """An oscillator or a worker, which may be started again with its disk."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        port: int,
        folder: Path,
        environment: Mapping[str, str],
        module: str = "kafka_timers",
    ) -> None:
        self.name = name
        self.port = port
        self.data_dir = folder / name
        self._command = [sys.executable, "-m", module, *command, "--port", str(port)]
        self.log = folder / f"{name}.log"
        self._environment = os.environ | environment
        self._child: Child | None = None

    @property
    def child(self) -> Child:
        """The process as it runs now."""
        assert self._child is not None, f"{self.name} was never started"
        return self._child

    async def start(self) -> None:
        """Start it and return at once."""
        self._child = await Child.start(self.name, self._command, self.log, self._environment)

    async def stop(self) -> None:
        """End it as a rolling restart does (SIGTERM), by force after 30 s."""
        if self._child:
            await self._child.stop(30)

    async def kill(self) -> None:
        """End it as a crash does (SIGKILL)."""
        if self._child:
            self._child.kill()
            await self._child.wait()

    async def until_ready(self, limit_s: float = _READY_LIMIT_S) -> None:
        """Wait until /readyz is content."""
        end_s = time.monotonic() + limit_s
        while (told := await asyncio.to_thread(self.get, "/readyz"))[0] != 200:
            assert self.child.returncode is None, await self.child.obituary()
            assert time.monotonic() < end_s, f"{self.name}: {told[1]}; {self.child.last_words()}"
            await asyncio.sleep(0.2)

    def get(self, path: str) -> tuple[int, str]:
        """Return status and body of an HTTP request to it; status 0 where it does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)


@dataclass(frozen=True)
class Former:
    """
    A log of requests that is there no more, or not as it was.

    Attributes:
        requests: all of it.
        callbacks: the topic on which they were to fire.
        replies: the topic of their answers.
        since_ms: what it has lost may have had no effect from then on, in UNIX milliseconds.
    """

    requests: Sequence[Request]
    callbacks: str
    replies: str
    since_ms: int


class Stage:
    """
    Brokers that run, and the service on topics of its own.

    Args:
        kafka: runs already, and is left running.
        prefix: before the names of topics and group.
        folder: of logs and stores.
        partitions: of `timer-request` and of the callback topic.
        options: of the workers, one sequence for each.
        clocks: of all processes; right ones by default.
        cuttable: an own topic, named without the prefix, that has two replicas only, on the brokers 1 and 2, of which
            one that is behind may become leader.
        module: what is run as `kafka-timers`.
        prometheus: scrapes all processes, once they are ready; without it no alarm is looked at.
        reached: the options by which processes and commands reach the brokers; their own address by default.

    Attributes:
        awaited: the alarms that have told of the fault, as they had to.
        former: the log of requests before it was destroyed, to be judged apart.
        left: requests that have left the log, and must fire all the same.
        answers: answers that were there before their topic was made anew.
        unanswered_ms: the milliseconds in which a question was appended whose answer may be lost.
    """

    def __init__(
        self,
        kafka: EmbeddedKafka | PartableCluster,
        prefix: str,
        folder: Path,
        partitions: int = 4,
        options: Sequence[Sequence[str]] = ((), ()),
        clocks: Clocks | None = None,
        cuttable: str = "",
        module: str = "kafka_timers",
        prometheus: Prometheus | None = None,
        reached: Sequence[str] = (),
    ) -> None:
        self._module = module
        self.prometheus = prometheus
        self.awaited: set[str] = set()
        self.former: Former | None = None
        self.left: list[Request] = []
        self.answers: list[Answer] = []
        self.unanswered_ms = range(0)
        self.cuttable = cuttable
        self.kafka = kafka
        self.prefix = prefix
        self.folder = folder
        self.partitions = partitions
        self.callbacks = prefix + "callbacks"
        where = [*(reached or ("--bootstrap", kafka.bootstrap)), "--topic-prefix", prefix]
        self._where = where
        self.group = prefix + "workers"
        self.clocks = clocks
        self.oscillators = [
            self._process(f"oscillator-{n}", ["oscillator", *where, "--replica", str(n)]) for n in (0, 1)
        ]
        self.workers: list[Process] = []
        self.others: list[Process] = []
        for more in options:
            self.add_worker(*more)

    def add_worker(self, *options: str) -> Process:
        """Return one more worker, with a disk of its own, which was not started yet."""
        name = f"worker-{len(self.workers)}"
        command = ["worker", *self._where, "--group", self.group, "--data-dir", str(self.folder / name), *options]
        self.workers.append(self._process(name, command))
        return self.workers[-1]

    def add_other(self, command: str, *options: str) -> Process:
        """Return a planner or a console, which was not started yet."""
        self.others.append(self._process(command, [command, *self._where, "--group", self.group, *options]))
        return self.others[-1]

    def _process(self, name: str, command: Sequence[str]) -> Process:
        environment = self.clocks.of_process(name) if self.clocks else {}
        return Process(name, command, free_port(), self.folder, environment, self._module)

    @property
    def processes(self) -> list[Process]:
        """Oscillators, workers and others."""
        return [*self.oscillators, *self.workers, *self.others]

    @property
    def cluster(self) -> PartableCluster:
        """The three brokers."""
        assert isinstance(self.kafka, PartableCluster), "this fault is for three brokers"
        return self.kafka

    @property
    def broker(self) -> EmbeddedKafka:
        """The only broker."""
        assert isinstance(self.kafka, EmbeddedKafka), "this fault is for a single broker"
        return self.kafka

    async def __aenter__(self) -> Self:
        """Make the topics, start all processes and wait until they are ready."""
        try:
            await self._start()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Kill all processes."""
        await asyncio.gather(*(process.kill() for process in self.processes))

    async def _start(self) -> None:
        if self.cuttable:
            name = self.prefix + self.cuttable
            await asyncio.to_thread(topics.make_cuttable_topic, self.kafka.bootstrap, name, self.partitions)
        status, said = await self.command("topics", "create", "--partitions", str(self.partitions))
        assert status == 0, said
        await asyncio.to_thread(topics.make_topic, self.kafka.bootstrap, self.callbacks, self.partitions)
        for process in self.processes:
            await process.start()
        for process in self.workers:
            await process.until_ready()
        self.watch()

    def watch(self) -> None:
        """Have Prometheus scrape all processes that there are now."""
        if self.prometheus:
            self.prometheus.scrape(*self.processes)

    async def command(self, *words: str, limit_s: float = 60) -> tuple[int, str]:
        """Run a command of `kafka-timers` on this instance; return its exit code and its output."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "kafka_timers", *words, *self._where),
            env=os.environ | {"KAFKA_TIMERS_GROUP": self.group},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(limit_s):
                said, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return process.returncode or 0, said.decode()

    async def until_told(self, words: Mapping[str, str], limit_s: float = 30) -> str:
        """
        Wait until each place has said its *words*: /readyz or the log of some process, or `status`.

        The words of the place "alarm" are its name. Without a Prometheus they are not waited for.

        Returns:
            After how many seconds each of them did, for the table; nothing if there was nothing to wait for.

        Raises:
            AssertionError: one of them did not within *limit_s*.
        """
        words = {where: wanted for where, wanted in words.items() if where != "alarm" or self.prometheus}
        alarm = words.get("alarm", "")
        begin_s, told_s = time.monotonic(), dict[str, float]()
        while len(told_s) < len(words) and time.monotonic() < begin_s + limit_s:
            answers = await asyncio.gather(*(asyncio.to_thread(one.get, "/readyz") for one in self.processes))
            code, said = await self.command("status") if "status" in words else (0, "")
            texts = {
                "/readyz": [body for status, body in answers if status == 503],
                "status": [said] if code == 1 else [],
                "log": [one.log.read_text() for one in self.processes],
                "alarm": [alarm] if self.prometheus and alarm and await self.prometheus.tells(alarm) else [],
            }
            for where, wanted in words.items():
                if any(wanted in text for text in texts[where]):
                    told_s.setdefault(where, time.monotonic() - begin_s)
            await asyncio.sleep(0.5)
        told = ", ".join(f"{where} after {after_s:.0f} s" for where, after_s in told_s.items())
        assert len(told_s) == len(words), f"it was told by {told or 'nothing'} only"
        self.awaited.add(alarm)
        return f"told by {told}" if told else ""

    async def fired(self, topic: str, wanted: int, limit_s: float = 90) -> list[str]:
        """Return the requests of the callbacks on *topic*, as soon as there are so many as *wanted*, or time is up."""

        def names() -> list[str]:
            with topics.reading(self.kafka.bootstrap, topic) as reader:
                return [callback.request for callback in reader.more(topics.callback_of)]

        found: list[str] = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while len(found) < wanted:
                    await asyncio.sleep(1)
                    found = await asyncio.to_thread(names)
        return found

    async def requests(self) -> list[Request]:
        """Return the log of requests as it is now."""

        def read() -> list[Request]:
            with topics.reading(self.kafka.bootstrap, self.prefix + "timer-request") as reader:
                return reader.more(topics.request_of)

        return await asyncio.to_thread(read)

    async def has_open_transaction(self, topic: str) -> bool:
        """Tell whether a transaction has something in partition 0 of *topic*, which is named without the prefix."""
        name = self.prefix + topic
        async with Cluster.open(Kafka(self.kafka.bootstrap)) as cluster:
            await cluster.look_up([name])
            stable = await LogBounds(cluster, name).end(0)
            return stable < await LogBounds(cluster, name, is_committed=False).end(0)

    async def coordinator_of(self, number: int) -> int:
        """Return the broker that coordinates the transactions of the owner of partition *number*."""
        name, _ = transactional_ids(self.prefix, number)
        async with Cluster.open(Kafka(self.kafka.bootstrap)) as cluster:
            return await cluster.coordinator(CoordinationType.TRANSACTION, name)

    async def leader_of(self, topic: str, partition: int = 0) -> int:
        """Return the broker that leads a partition of *topic*, which is named without the prefix."""
        return await asyncio.to_thread(topics.leader_of, self.kafka.bootstrap, self.prefix + topic, partition)
