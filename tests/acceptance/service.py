"""
The whole service for one test: its processes on a real broker, requests in, ticks in, callbacks out.

Ticks come from the test itself unless it starts oscillators: a second that lies in the past can be ticked at once, so
nothing waits for the clock. A worker cannot tell the difference, since time reaches it as data only.
"""

import asyncio
import itertools
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from brokers import consuming, make_topic, publish
from commands import ended
from forks import Forks
from patience import LIMIT_S

from kafka_timers.broker import topics
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.seals import last_seals
from kafka_timers.core.routing import partition_of
from kafka_timers.core.wire import Future, Sealed, Topics, last_second_of
from kafka_timers.dev.broker import free_port
from kafka_timers.runtime.child import Child


@dataclass
class Process:
    """A process of the service, and where it answers."""

    child: Child
    port: int
    data_dir: Path

    def get(self, path: str) -> tuple[int, str]:
        """Return status and body of an HTTP request to the process."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def metric(self, name: str, label: str = "") -> float:
        """Return the sum of a metric over its labels, or over those series that have *label*, such as `a="b"`."""
        lines = [
            line
            for line in self.get("/metrics")[1].splitlines()
            if line.split("{")[0].split(" ")[0] == name and label in line
        ]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    async def until(self, path: str, wanted: Callable[[int, str], bool], limit_s: float = LIMIT_S) -> str:
        """Poll *path* until *wanted* is true of its status and body, and return the body."""
        start_s = time.monotonic()
        while True:
            status, body = await asyncio.to_thread(self.get, path)
            if wanted(status, body):
                return body
            if self.child.returncode is not None:
                raise AssertionError(await self.child.obituary())
            waited_s = time.monotonic() - start_s
            if waited_s > limit_s:
                raise AssertionError(
                    f"{path} still says {status} {body!r} after {limit_s:g} s; {self.child.last_words()}"
                )
            # Each question costs both processes some milliseconds, which what takes long does not have to spare.
            await asyncio.sleep(0.05 if waited_s < 1 else 0.2)

    async def freeze_when(self, has_come: Callable[[], Awaitable[bool]]) -> None:
        """Freeze the process once *has_come* is true. It gets on for moments, and is frozen while that looks."""
        while True:
            await asyncio.sleep(0.01)
            self.child.pause()
            if await has_come():
                return
            self.child.resume()


def serves(status: int, body: str) -> bool:
    """Tell from /readyz whether a worker serves its partitions, though no tick may come, or one of a past second."""
    past = "a request has been due for "
    return status == 200 or (
        # A lake is not needed to serve them.
        status == 503
        and all(line.startswith(("no tick", "the lake has")) or past in line for line in body.splitlines())
    )


class Service:
    """
    Topics with a prefix of their own, and the processes that a test starts on them.

    Attributes:
        forks: starts the processes; None starts a Python for each.
    """

    forks: Forks | None = None

    def __init__(self, bootstrap: str, prefix: str, folder: Path, partitions: int = 4) -> None:
        self.bootstrap = bootstrap
        self.prefix = prefix
        self.topics = Topics.of(prefix)
        self.callbacks = prefix + "callbacks"
        self.partitions = partitions
        self._folder = folder
        self._names = itertools.count()
        self._running: list[Process] = []
        self._producer: AIOKafkaProducer | None = None

    # --- set-up ------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Make the topics and connect."""
        await topics.create(Kafka(self.bootstrap), self.prefix, self.partitions)
        await self.create_topic(self.callbacks)
        self._producer = AIOKafkaProducer(bootstrap_servers=self.bootstrap, acks="all", max_request_size=8 << 20)
        await self._producer.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """End all processes."""
        for process in self._running:
            process.child.kill()
        for process in self._running:
            await process.child.wait()
        if self._producer:
            await self._producer.stop()

    async def create_topic(self, name: str, **configs: str) -> None:
        """Make a topic for callbacks whose records carry the broker's time; it has as many partitions as requests."""
        configs = {"message.timestamp.type": "LogAppendTime"} | {k.replace("_", "."): v for k, v in configs.items()}
        await make_topic(self.bootstrap, name, self.partitions, configs)

    @property
    def producer(self) -> AIOKafkaProducer:
        """A plain producer."""
        assert self._producer is not None
        return self._producer

    # --- processes ---------------------------------------------------------------------------------------------------

    async def start(
        self, command: str, *options: str, data_dir: Path | None = None, env: Mapping[str, str] | None = None
    ) -> Process:
        """Start a process of the service, with more environment, and return at once."""
        port, name = free_port(), f"{command}-{next(self._names)}"
        arguments = [command, "--bootstrap", self.bootstrap, "--topic-prefix", self.prefix, "--port", str(port)]
        folder = data_dir or self._folder / name
        if command == "worker":
            arguments += ["--group", self.prefix + "workers", "--data-dir", str(folder), "--session-timeout-s", "2"]
        arguments, log, environment = [*arguments, *options], self._folder / f"{name}.log", os.environ | dict(env or {})
        if self.forks:
            child = await self.forks.start(name, arguments, log, environment)
        else:
            child = await Child.start(name, [sys.executable, "-m", "kafka_timers", *arguments], log, environment)
        process = Process(child, port, folder)
        self._running.append(process)
        return process

    async def worker(self, *options: str, data_dir: Path | None = None) -> Process:
        """Start a worker and wait until it has taken its partitions over."""
        process = await self.start("worker", *options, data_dir=data_dir)
        await self.until_serving(process)
        return process

    async def firing(self, *options: str) -> Process:
        """Start a worker that seals each second, and wait until it fires; ticks have to come."""
        worker = await self.start("worker", "--seal-every-s", "1", *options)
        await worker.until("/readyz", lambda status, _: status == 200)
        return worker

    async def until_serving(self, process: Process) -> None:
        """Wait until a worker serves its partitions."""
        await process.until("/readyz", serves)

    async def status(self) -> tuple[int, str]:
        """Return exit code and output of `kafka-timers status`."""
        where = ["--bootstrap", self.bootstrap, "--topic-prefix", self.prefix, "--group", self.prefix + "workers"]
        code, said, errors = await ended("status", *where)
        return code, said + errors

    # --- in ----------------------------------------------------------------------------------------------------------

    async def request(
        self, second: int | str | bytes, value: Future | bytes | None, partition: int | None = None
    ) -> str:
        """Publish one request, one with a timer id in the partition of that; returns `partition:offset`."""
        if partition is None and isinstance(value, Future) and value.timerId:
            partition = partition_of(value.timerId, self.partitions)
        key = second if isinstance(second, bytes) else str(second).encode()
        data = value.SerializeToString() if isinstance(value, Future) else value
        at = await self.producer.send_and_wait(self.topics.requests, data, key=key, partition=partition)
        return f"{at.partition}:{at.offset}"

    async def requests(self, second: int, names: Iterable[str], partition: int | None = None) -> None:
        """Publish a request per name, whose callback has the name as key and value, spread over the partitions."""
        acks = []
        for number, name in enumerate(names):
            future = Future(callBackTopic=self.callbacks, callBackKey=name, callBack=name.encode())
            to = number % self.partitions if partition is None else partition
            key = str(second).encode()
            acks.append(
                await self.producer.send(self.topics.requests, future.SerializeToString(), key=key, partition=to)
            )
        await asyncio.gather(*acks)

    async def request_many(self, requests: Iterable[tuple[int, Future]]) -> None:
        """Publish requests with timer ids, each with its second, in batches as large as a topic takes."""
        records = (
            (partition_of(future.timerId, self.partitions), b"%d" % second, future.SerializeToString(), [])
            for second, future in requests
        )
        await publish(self.producer, self.topics.requests, records)

    async def tick(self, second: int, partitions: Iterable[int] | None = None) -> list[int]:
        """Write one tick into every partition, or into the ones named; return when each was appended, in ms."""
        where = range(self.partitions) if partitions is None else partitions
        sends = [
            self.producer.send_and_wait(self.topics.oscillator, b"1", key=str(second).encode(), partition=partition)
            for partition in where
        ]
        return [at.timestamp for at in await asyncio.gather(*sends)]

    # --- out ---------------------------------------------------------------------------------------------------------

    async def read(
        self, topic: str, count: int, limit_s: float = LIMIT_S, committed: bool = True
    ) -> list[ConsumerRecord]:
        """Return the first *count* records of a topic, or those that are there after *limit_s*."""
        async with self.reading(topic, committed=committed) as consumer:
            return await take(consumer, count, limit_s)

    @asynccontextmanager
    async def reading(self, topic: str, *, committed: bool = True):
        """Yield a consumer of all of a topic, from its beginning."""
        level = "read_committed" if committed else "read_uncommitted"
        options = {"isolation_level": level, "auto_offset_reset": "earliest", "fetch_max_wait_ms": 50}
        async with consuming(Kafka(self.bootstrap), **options) as consumer:
            where = [TopicPartition(topic, number) for number in range(self.partitions)]
            consumer.assign(where)
            await consumer.seek_to_beginning(*where)
            yield consumer

    async def read_all(
        self, topic: str, count: int, limit_s: float = LIMIT_S, quiet_s: float = 0.5, committed: bool = True
    ) -> list[ConsumerRecord]:
        """Return the records of a topic, once *count* are there and nothing more comes for *quiet_s*."""
        async with self.reading(topic, committed=committed) as consumer:
            records = await take(consumer, count, limit_s)
            return records + await take(consumer, 1, quiet_s)

    async def callback_names(self, wanted: Sequence[str], limit_s: float = LIMIT_S) -> list[str]:
        """Return the callbacks' values, once as many as *wanted* are there and nothing more comes for half a second."""
        records = await self.read_all(self.callbacks, len(wanted), limit_s)
        return [record.value.decode() for record in records]

    async def seals(self) -> dict[int, list[Sealed]]:
        """Return the last seals of each partition."""
        return await last_seals(Kafka(self.bootstrap), self.prefix)

    async def until_sealed(self, second: int, limit_s: float = LIMIT_S) -> dict[int, list[Sealed]]:
        """Wait until every partition is sealed completely up to *second*; its tick is written until then."""
        end_s = time.monotonic() + limit_s
        while True:
            # A worker that has just started reads from the newest tick on, and so may miss one. Others follow in life.
            await self.tick(second)
            seals = await self.seals()
            if all(
                any(last_second_of(s) >= second and not s.HasField("through") for s in tail) for tail in seals.values()
            ):
                return seals
            if time.monotonic() > end_s:
                told = {partition: [last_second_of(seal) for seal in tail][-1:] for partition, tail in seals.items()}
                words = [process.child.last_words() for process in self._running]
                raise AssertionError(f"sealed up to {told} instead of {second} after {limit_s:g} s; {words}")
            await asyncio.sleep(0.2)


@pytest.fixture
async def service(bootstrap: str, prefix: str, tmp_path: Path) -> AsyncIterator[Service]:
    """The service without any process yet, on topics of its own; its processes end with the test."""
    async with Service(bootstrap, prefix, tmp_path) as opened:
        yield opened


async def take(consumer: AIOKafkaConsumer, count: int, limit_s: float) -> list[ConsumerRecord]:
    """Return the next *count* records, or fewer after *limit_s*."""
    records: list[ConsumerRecord] = []
    end_s = time.monotonic() + limit_s
    while len(records) < count and (left_s := end_s - time.monotonic()) > 0:
        for fetched in (await consumer.getmany(timeout_ms=min(int(left_s * 1000) + 1, 200))).values():
            records += fetched
    return records
