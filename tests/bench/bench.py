"""
How fast the service is on this machine: `make bench`, some ten minutes.

One worker, one oscillator, four partitions and a real Kafka, all here, exactly once. Figures are medians of three runs.
Beside them is the time of the plain broker for the same records in the same run, from ready batches and without
transactions, since machines differ and are seldom quiet.

    publish      requests with the client, a thousand at a time         plain: aiokafka's producer, the same
    ingest       200,000 requests that wait in the log                  plain: read with the same consumer
    with ids     the same with a timer id each, and 200,000 cancels of them
    cancel       one at a time, 50 a second: from the call to its answer
    door         200,000 schedules of etf1 that wait in their topic; as many of one second; RSS with 1,000,000 pending
    fire         200,000 due in one second, in all partitions           plain: written and read
    hot second   the same, all in one partition                         plain: written and read
    light        200 a second: from a timer's second to its callback in a reader of committed records; and the mean time
                 of each stage on the way: until the tick is read, until the log is read to its end, until callbacks are
                 with the producer, until all replicas in sync have them, until they are committed
    memory       RSS and disk of the worker with up to 1,000,000 pending
    restart      from start to first callback with those pending, the store kept and wiped

    bench.py [FILE]     FILE gets all figures as JSON, and the folder around it the plots
"""

import asyncio
import itertools
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import plots
from brokers import make_topic, publish
from load import disk_mb, numbered, payload, producer, received, request, rss_mb, schedule, until
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from service import Process, Service

from kafka_timers import TimerClient
from kafka_timers.core.routing import partition_of
from kafka_timers.core.wire import Future
from kafka_timers.dev.broker import EmbeddedKafka

RUNS = 3
MANY = 200_000
CLIENT_REQUESTS, CLIENT_AT_ONCE = 20_000, 1_000
LIGHT_S, LIGHT_RATE = 15, 200
STAGES = ("read", "build", "acknowledge", "commit")
CANCELS, CANCEL_EVERY_S = 500, 0.02
PENDING = (0, 100_000, 300_000, 1_000_000)
FAR_S = 86_400

Figures = dict[str, list[float]]


class Bench:
    """The measurements, on one running Kafka."""

    def __init__(self, service: Service, folder: Path) -> None:
        self.service = service
        self.folder = folder
        self.figures: Figures = {}
        self.curves: dict[str, list[tuple[float, float]]] = {}
        self._numbers = itertools.count()
        self._names = itertools.count()
        # The one that serves now.
        self._worker: Process | None = None

    def note(self, name: str, value: float) -> None:
        """Keep one measurement."""
        self.figures.setdefault(name, []).append(value)

    def requests(self, count: int, second: int, *, spread_s: int = 1, partition: int | None = None) -> list[Any]:
        """Return requests due over *spread_s* seconds from *second* on."""
        topic, partitions = self.service.callbacks, self.service.partitions
        numbers = [next(self._numbers) for _ in range(count)]
        return [
            request(n, second + at % spread_s, topic, at % partitions if partition is None else partition)
            for at, n in enumerate(numbers)
        ]

    async def publish(self, requests: Sequence[Any]) -> None:
        """Publish requests."""
        async with producer(self.service.bootstrap) as sender:
            await publish(sender, self.service.topics.requests, requests)

    async def client(self) -> None:
        """Requests per second of the service's own client and of a plain producer."""
        far = int(time.time()) + FAR_S
        [(_, key, value, _)] = self.requests(1, far)

        async def rate(ask: Callable[[], Awaitable[Any]]) -> float:
            start_s = time.monotonic()
            for _ in range(CLIENT_REQUESTS // CLIENT_AT_ONCE):
                await asyncio.gather(*[ask() for _ in range(CLIENT_AT_ONCE)])
            return CLIENT_REQUESTS / (time.monotonic() - start_s)

        async with self.aside() as service:
            async with TimerClient(service.bootstrap, topic_prefix=service.prefix) as timers:
                ask = partial(timers.at, far, topic=service.callbacks, key="k", value=payload(0, far))
                self.note("publish, 1/s", await rate(ask))
            async with producer(service.bootstrap) as plain:
                send = partial(plain.send_and_wait, service.topics.requests, value, key)
                self.note("publish, plain, 1/s", await rate(send))

    @asynccontextmanager
    async def aside(self) -> AsyncIterator[Service]:
        """Topics and processes of their own, so that timers left pending disturb nothing else."""
        name = f"aside{next(self._names)}-"
        async with Service(self.service.bootstrap, name, self.folder / name) as service:
            yield service

    async def plain(self) -> None:
        """Seconds until a reader has as many ready callbacks, and until it has read them when all are there."""
        service, topic = self.service, f"{self.service.prefix}plain{next(self._names)}"
        await make_topic(service.bootstrap, topic, service.partitions)
        records = [(n % service.partitions, b"%d" % n, payload(n, 0), []) for n in range(MANY)]
        count = 0

        def take(_: float, came: Sequence[Any]) -> None:
            nonlocal count
            count += len(came)

        async with received(service.bootstrap, topic, service.partitions, take):
            start_s = time.monotonic()
            async with producer(service.bootstrap) as sender:
                await publish(sender, topic, records)
            await until(lambda: count == MANY, "plain records")
            self.note("plain write + read, s", time.monotonic() - start_s)

    async def lateness(self, name: str, rate: int, length_s: int, ahead_s: int) -> list[float]:
        """
        Note how late callbacks are received, median and 99 of 100, and return the lateness of all, ascending.

        Args:
            name: of the figures.
            rate: timers a second.
            length_s: seconds in which some are due.
            ahead_s: seconds until the first of them.
        """
        count, late_ms = rate * length_s, list[float]()

        def take(now_s: float, came: Sequence[Any]) -> None:
            late_ms.extend([(now_s - numbered(record.value)[1]) * 1000 for record in came])

        async with received(self.service.bootstrap, self.service.callbacks, self.service.partitions, take):
            await self.publish(self.requests(count, int(time.time()) + ahead_s, spread_s=length_s))
            await until(lambda: len(late_ms) == count, f"{name} callbacks")
        late_ms.sort()
        self.note(f"{name} p50, ms", late_ms[count // 2])
        self.note(f"{name} p99, ms", late_ms[count * 99 // 100])
        return late_ms

    async def light(self) -> None:
        """Lateness at a light load, and the mean time of each stage."""
        before = await asyncio.to_thread(self._stages)
        late_ms = await self.lateness("light", LIGHT_RATE, LIGHT_S, 3)
        self.curves["light"] = [
            (round(late_ms[share * (len(late_ms) - 1) // 200], 1), share / 200) for share in range(201)
        ]

        after = await asyncio.to_thread(self._stages)
        for stage, (sum_s, count) in after.items():
            self.note(f"light, {stage}, ms", 1000 * (sum_s - before[stage][0]) / (count - before[stage][1]))

    def _stages(self) -> dict[str, tuple[float, float]]:
        """Return seconds and count of each stage so far."""
        assert self._worker is not None
        metric = self._worker.metric

        def told(name: str, label: str = "") -> tuple[float, float]:
            return metric(f"kafka_timers_{name}_seconds_sum", label), metric(
                f"kafka_timers_{name}_seconds_count", label
            )

        return {"tick": told("tick_delay")} | {stage: told("stage", f'stage="{stage}"') for stage in STAGES}

    async def fire(self) -> None:
        """Callbacks per second of a second that lies in all partitions."""
        self.note("fire, 1/s", MANY / (await self._one_second(None))[-1][0])

    async def hot_second(self) -> None:
        """How late the last callback of a second is that lies in one partition."""
        curve = await self._one_second(0)
        self.note("hot second, last, s", curve[-1][0])
        self.curves["hot second"] = [(round(at_s, 4), count / MANY) for at_s, count in curve]

    async def _one_second(self, partition: int | None) -> list[tuple[float, float]]:
        """Return how many callbacks have come by when, in seconds from the one that they are due in."""
        curve: list[tuple[float, float]] = []
        second = int(time.time()) + 15

        def take(now_s: float, came: Sequence[Any]) -> None:
            curve.append((now_s - second, (curve[-1][1] if curve else 0) + len(came)))

        async with received(self.service.bootstrap, self.service.callbacks, self.service.partitions, take):
            await self.publish(self.requests(MANY, second, partition=partition))
            await until(lambda: bool(curve) and curve[-1][1] >= MANY, "callbacks of the hot second")
        return curve

    async def ingest(self) -> None:
        """Requests per second that a worker reads from a log that holds them already."""
        async with self.aside() as service:
            far = self.requests(MANY, int(time.time()) + FAR_S, spread_s=3_600)
            await self._read_all(service, far, "ingest, 1/s", "kafka_timers_requests_total")

    async def ingest_with_ids(self) -> None:
        """The same for requests that have a timer id each, and for cancels of them."""
        async with self.aside() as service:
            far, partitions = int(time.time()) + FAR_S, service.partitions
            ids = [str(uuid.UUID(int=next(self._numbers) * 2**64)) for _ in range(MANY)]
            homes = [partition_of(timer_id, partitions) for timer_id in ids]
            numbered_ids = list(enumerate(zip(ids, homes, strict=True)))
            asked = [request(n, far + n % 3_600, service.callbacks, home, name) for n, (name, home) in numbered_ids]
            await self._read_all(service, asked, "ingest with ids, 1/s", "kafka_timers_requests_total")
            cancels = [
                (home, b"", Future(timerId=name, cancel=True).SerializeToString(), [])
                for name, home in zip(ids, homes, strict=True)
            ]
            await self._read_all(service, cancels, "cancels, 1/s", "kafka_timers_taken_back_total")

    async def _read_all(self, service: Service, records: list[Any], figure: str, metric: str) -> None:
        """Note how fast a worker that starts behind *records* has counted them."""
        async with producer(service.bootstrap) as sender:
            await publish(sender, service.topics.requests, records)
        worker = await service.start("worker", data_dir=self.folder / service.prefix / "stores")
        self.note(figure, await counted(worker, metric, MANY))
        await worker.child.stop()

    async def door(self, last: bool = False) -> None:
        """Schedules of etf1: how fast they are taken in, how late the last of a second is; at *last* memory as well."""
        async with self.aside() as service:
            topic = f"{service.prefix}schedules"
            await service.create_topic(topic)
            await service.start("oscillator")

            async def write(count: int, second: int, spread_s: int = 1) -> None:
                numbers = enumerate([next(self._numbers) for _ in range(count)])
                records = [
                    schedule(n, second + at % spread_s, service.callbacks, at % service.partitions) for at, n in numbers
                ]
                async with producer(service.bootstrap) as sender:
                    await publish(sender, topic, records)

            await write(MANY, int(time.time()) + FAR_S, 3_600)
            worker = await service.start("worker", "--door", f"etf1={topic}")
            metric = "kafka_timers_door_records_total"
            self.note("door: schedules, 1/s", await counted(worker, metric, MANY))
            late_s: list[float] = []
            due = int(time.time()) + 25

            def take(now_s: float, came: Sequence[Any]) -> None:
                late_s.extend([now_s - due] * len(came))

            async with received(service.bootstrap, service.callbacks, service.partitions, take):
                await write(MANY, due)
                await until(lambda: len(late_s) >= MANY, "callbacks of schedules")
            self.note("door: hot second, last, s", max(late_s))
            if last:
                # Beside the first ones. The tombstones of those that have fired are records too.
                for _ in range(4):
                    await write(MANY, int(time.time()) + FAR_S, 3_600)
                await counted(worker, metric, 7 * MANY)
                await asyncio.sleep(2)
                self.note(f"door: RSS at {5 * MANY:,}, MB", rss_mb(worker))

    async def cancel(self) -> None:
        """From a cancel to its answer, as the client has it."""
        service, far, took_ms = self.service, int(time.time()) + FAR_S, []
        async with TimerClient(service.bootstrap, topic_prefix=service.prefix) as timers:
            ids = [f"cancel-{next(self._numbers)}" for _ in range(CANCELS + 20)]
            await asyncio.gather(*[timers.at(far, topic=service.callbacks, timer_id=timer_id) for timer_id in ids])
            for timer_id in ids:
                start_s = time.monotonic()
                answer = await timers.cancel(timer_id)
                took_ms.append((time.monotonic() - start_s) * 1000)
                assert answer.outcome == "CANCELLED", answer
                await asyncio.sleep(CANCEL_EVERY_S)
        # The first ones connect.
        took_ms = sorted(took_ms[20:])
        self.note("cancel p50, ms", took_ms[len(took_ms) // 2])
        self.note("cancel p99, ms", took_ms[len(took_ms) * 99 // 100])

    async def memory_and_restart(self) -> None:
        """RSS and disk against the pending timers, and how soon a restarted worker fires."""
        service, folder = self.service, self.folder / "stores"
        worker = await service.worker(data_dir=folder)
        before, published = worker.metric("kafka_timers_requests_total"), 0
        for pending in PENDING:
            far = int(time.time()) + FAR_S
            await self.publish(self.requests(pending - published, far, spread_s=3_600))
            published = pending

            async def all_read(wanted: float = before + pending) -> bool:
                return await asyncio.to_thread(worker.metric, "kafka_timers_requests_total") >= wanted

            await until(all_read, "requests read")
            await asyncio.sleep(2)  # flushes in the background are part of the figure
            self.note(f"RSS at {pending:,}, MB", rss_mb(worker))
            self.note(f"disk at {pending:,}, MB", disk_mb(worker))
        for _ in range(RUNS):
            for mode in ("kept", "wiped"):
                await worker.child.stop()
                if mode == "wiped":
                    shutil.rmtree(folder)
                worker, first_s = await self._restart(folder)
                self.note(f"restart, store {mode}, s", first_s)
        await worker.child.stop()

    async def _restart(self, folder: Path) -> tuple[Process, float]:
        first: list[float] = []
        start_s = time.time()

        def take(now_s: float, came: Sequence[Any]) -> None:
            first.append(now_s)

        async with received(self.service.bootstrap, self.service.callbacks, self.service.partitions, take):
            worker = await self.service.start("worker", data_dir=folder)
            async with producer(self.service.bootstrap) as sender:
                while not first:
                    due = self.requests(self.service.partitions, int(time.time()) + 1)
                    await publish(sender, self.service.topics.requests, due)
                    await asyncio.sleep(0.25)
            await self.service.until_serving(worker)
        return worker, first[0] - start_s

    async def serve(self) -> None:
        """Start the worker for the next measurement."""
        self._worker = worker = await self.service.worker(data_dir=self.folder / "stores")
        await worker.until("/readyz", lambda status, _: status == 200)

    async def run(self) -> None:
        """Measure everything."""
        steps = [self.client, self.plain, self.ingest, self.ingest_with_ids] * RUNS + [
            self.memory_and_restart,
            self.serve,
        ]
        steps += [self.light, self.cancel, self.fire, self.hot_second] * RUNS
        steps += [self.door] * (RUNS - 1) + [partial(self.door, last=True)]
        with Progress(transient=True) as progress:
            bar = progress.add_task("measuring", total=len(steps))
            await self.service.start("oscillator")
            for step in steps:
                await step()
                progress.advance(bar)


async def counted(worker: Process, metric: str, wanted: int) -> float:
    """Return how many a second *worker* has counted, once it has counted *wanted*."""
    reads: list[tuple[float, float]] = []

    async def all_read() -> bool:
        reads.append((time.monotonic(), await asyncio.to_thread(worker.metric, metric)))
        return reads[-1][1] >= wanted

    await until(all_read, "records read")
    # From the last look that found nothing new.
    first = reads[0][1]
    start_s = max(at_s for at_s, count in reads if count == first)
    return (wanted - first) / (reads[-1][0] - start_s)


def ratios(median: dict[str, float]) -> dict[str, float]:
    """Return how the service stands to the plain broker; 1 is as fast, 2 takes twice as long."""
    plain_s = median["plain write + read, s"]
    return {
        "publish, 1/s": median["publish, plain, 1/s"] / median["publish, 1/s"],
        "ingest, 1/s": MANY / median["ingest, 1/s"] / plain_s,
        "fire, 1/s": MANY / median["fire, 1/s"] / plain_s,
        "hot second, last, s": median["hot second, last, s"] / plain_s,
    }


def show(figures: Figures) -> None:
    """Print one table."""
    table = Table("figure", "median", "all runs", "x plain broker")
    median = {name: statistics.median(values) for name, values in figures.items()}
    against = ratios(median)
    for name, values in figures.items():
        told = "  ".join(f"{value:,.3g}" if value < 1_000 else f"{value:,.0f}" for value in values)
        ratio = f"{against[name]:.2f}" if name in against else ""
        table.add_row(name, f"{median[name]:,.3g}" if median[name] < 1_000 else f"{median[name]:,.0f}", told, ratio)
    Console().print(table)


async def main() -> dict[str, Any]:
    """Measure everything and return it."""
    with tempfile.TemporaryDirectory() as folder:
        async with (
            EmbeddedKafka(Path(folder) / "kafka") as kafka,
            Service(kafka.bootstrap, "bench-", Path(folder)) as service,
        ):
            bench = Bench(service, Path(folder))
            await bench.run()
    machine = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}"
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine,
        "figures": bench.figures,
        "curves": bench.curves,
        "pending": PENDING,
    }


if __name__ == "__main__":
    measured = asyncio.run(main())
    show(measured["figures"])
    if sys.argv[1:]:
        file = Path(sys.argv[1])
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(measured, indent=1) + "\n")
        plots.draw(measured, file.parent)
