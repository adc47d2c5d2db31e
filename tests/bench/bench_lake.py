"""
How fast the lake is on this machine, and how small: `make bench-lake`.

Spark on two cores (local[2]), a Kafka of its own with eight partitions, a lake in a temporary folder. The requests
lie ready before a figure is taken. Figures are medians of three runs unless there is one only. Two more runs come
before each warm figure, since a JVM gets faster over some minutes.

    session     from nothing to a Spark session, and its first batch of 1,000 requests; later ones cost no start
    land        2,000,000 requests into a new lake, records a second of its batches; the same with a timer id each
    disk        bytes of the table per request of 150 bytes, as landed and after optimize
    promote     a bucket of 1,000,000, every fifth with a timer id, out of 1, 5 and 20 million that are parked
                in a lake that was optimized: timers a second, from the first question to the last copy on the log
    audit       10,000 s with 16 million requests, every fifth with a timer id, and 80,000 seals: requests and
                seals a second of a whole audit
    query       seconds of a query of a lake with 20 million requests, made as for the audit: about one timer id, one
                key, and one topic, of which there are four

    bench_lake.py [--json FILE] [STEP ...]      without a STEP all of them, in their order
"""

import argparse
import asyncio
import json
import logging
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import audit_load
import parked
from brokers import Outgoing, publish
from load import producer
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from kafka_timers.broker import topics
from kafka_timers.broker.connection import Kafka
from kafka_timers.clock import HostClock
from kafka_timers.core.routing import partition_of
from kafka_timers.core.wire import Future, Topics
from kafka_timers.dev.broker import EmbeddedKafka
from kafka_timers.lake.buckets import Bucket
from kafka_timers.lake.land import land_once
from kafka_timers.lake.lookup import Only
from kafka_timers.lake.maintain import optimize
from kafka_timers.lake.promote import Promoter
from kafka_timers.lake.query import named_in, open_views, rows_of, select
from kafka_timers.lake.schema import REQUESTS
from kafka_timers.lake.session import open_session
from kafka_timers.lake.tables import read, root_of
from kafka_timers.settings import LakeSettings

RUNS = 3
WARM_UPS = 2
PARTITIONS = 8
MANY = 2_000_000
FEW = 1_000
# Key and value of a request on the log; the payload in it is random.
TIMER_BYTES = 150
# Due over two years, as requests in a lake are.
SPREAD_S = 2 * 365 * 86_400
TOPIC = "reminders"
IN_BUCKET = 1_000_000
PARKED = (1_000_000, 5_000_000, 20_000_000)
HORIZON_S, BUCKET_S = 7 * 86_400, 3_600
AUDITED = 16_000_000
QUERIED = 20_000_000


@dataclass
class Bench:
    """The measurements, on one running Kafka."""

    bootstrap: str
    folder: Path
    figures: dict[str, list[float]] = field(default_factory=dict)
    _spark: SparkSession | None = None
    _lakes: int = 0

    def note(self, name: str, value: float) -> None:
        """Keep one measurement."""
        self.figures.setdefault(name, []).append(value)

    @property
    def spark(self) -> SparkSession:
        """The session of all steps."""
        if self._spark is None:
            start_s = time.monotonic()
            self._spark = open_session(LakeSettings(master="local[2]"), {"spark.driver.memory": "4g"})
            self.note("session start, s", time.monotonic() - start_s)
        return self._spark

    def settings(self, prefix: str) -> LakeSettings:
        """Return a lake of its own for the topics with *prefix*."""
        self._lakes += 1
        lake = self.folder / f"lake-{self._lakes}"
        return LakeSettings(bootstrap=self.bootstrap, topic_prefix=prefix, lake=str(lake), horizon_s=HORIZON_S)

    async def land(self, settings: LakeSettings) -> tuple[float, float]:
        """Land all that is there; returns the seconds that it took, and requests a second while batches ran."""
        batches: list[tuple[int, float]] = []
        handler = logging.Handler()

        def note(line: logging.LogRecord) -> None:
            # Name, records, seconds, records a second.
            if isinstance(line.args, tuple) and "timer-request" in str(line.args[0]):
                batches.append((line.args[1], line.args[2]))  # type: ignore[arg-type]

        handler.emit = note  # type: ignore[method-assign]
        log = logging.getLogger("kafka_timers.lake.land")
        log.setLevel(logging.INFO)
        log.addHandler(handler)
        start_s = time.monotonic()
        await asyncio.to_thread(land_once, self.spark, settings)
        log.removeHandler(handler)
        # The last batch of some may have a few records only, which its start outweighs.
        records, took_s = max(batches)
        return time.monotonic() - start_s, records / took_s

    async def publish(self, prefix: str, requests: Iterator[Outgoing]) -> None:
        """Make topics and publish to them, unless they are there from another step."""
        if await topics.create(Kafka(self.bootstrap), prefix, PARTITIONS):
            async with producer(self.bootstrap) as sender:
                await publish(sender, Topics.of(prefix).requests, requests)


def plain(count: int, first: int, spread_s: int) -> Iterator[Outgoing]:
    """Return requests of random bytes, due in the *spread_s* seconds behind *first*."""
    rand = random.Random(1)
    for number in range(count):
        yield (number // 500) % PARTITIONS, *_request(rand, number, first + rand.randrange(spread_s))


def named(count: int, first: int, spread_s: int) -> Iterator[Outgoing]:
    """Return the same with a timer id each."""
    rand = random.Random(1)
    for number in range(count):
        name = f"order-{rand.randrange(10**9):09d}-{number}"
        yield partition_of(name, PARTITIONS), *_request(rand, number, first + rand.randrange(spread_s), name)


def _request(rand: random.Random, number: int, second: int, name: str = "") -> tuple[bytes, bytes, list[Any]]:
    key = b"%d" % second
    future = Future(callBackTopic=TOPIC, callBackKey=str(number), timerId=name)
    # The payload and two bytes before it.
    future.callBack = rand.randbytes(TIMER_BYTES - len(key) - future.ByteSize() - 2)
    return key, future.SerializeToString(), []


async def session(bench: Bench) -> None:
    """Seconds until a session is there, and until a first small landing is done; then those of a further one."""
    await bench.publish("few-", plain(FEW, int(time.time()) + 86_400, 3_600))
    _ = bench.spark
    bench.note("first landing of 1,000, s", (await bench.land(bench.settings("few-")))[0])
    for _ in range(RUNS):
        bench.note("landing of 1,000, s", (await bench.land(bench.settings("few-")))[0])


async def land(bench: Bench) -> None:
    """Records per second."""
    first = int(time.time()) + 2 * 86_400
    kinds = {"land, 1/s": ("plain-", plain, 3_600), "land over two years, 1/s": ("spread-", plain, SPREAD_S)}
    kinds["land with ids, 1/s"] = ("named-", named, 3_600)
    for prefix, make, spread_s in kinds.values():
        await bench.publish(prefix, make(MANY, first, spread_s))
    for number in range(WARM_UPS + RUNS):
        for figure, (prefix, _make, _spread_s) in kinds.items():
            rate = (await bench.land(bench.settings(prefix)))[1]
            if number >= WARM_UPS:
                bench.note(figure, rate)


async def disk(bench: Bench) -> None:
    """Bytes per request: of a lake that got them all at once, and of one that got them bit by bit."""
    await bench.publish("spread-", plain(MANY, int(time.time()) + 2 * 86_400, SPREAD_S))
    settings = bench.settings("spread-")
    await bench.land(settings)
    bench.note("disk as landed, B", _bytes_each(bench.spark, settings))
    start_s = time.monotonic()
    await asyncio.to_thread(optimize, bench.spark, settings, int(time.time()))
    bench.note("optimize, s", time.monotonic() - start_s)
    bench.note("disk optimized, B", _bytes_each(bench.spark, settings))


def _bytes_each(spark: SparkSession, settings: LakeSettings) -> float:
    requests = read(spark, root_of(settings), REQUESTS)
    sizes = [Path(file.removeprefix("file:")).stat().st_size for file in requests.inputFiles()]
    return sum(sizes) / requests.count()


async def promote(bench: Bench) -> None:
    """Timers per second of one bucket, which is the same however many are parked beside it."""
    now = int(time.time())
    bucket = Bucket(now + HORIZON_S // 2, now + HORIZON_S // 2 + BUCKET_S - 1, HORIZON_S)
    for count in PARKED:
        settings = bench.settings("")
        due = range(bucket.first, bucket.last + 1)
        parked.make(bench.spark, root_of(settings), count, PARTITIONS, due, IN_BUCKET)
        await asyncio.to_thread(optimize, bench.spark, settings, now)
        for number in range(WARM_UPS + RUNS):
            # A new topic each time, so nothing of the bucket is there.
            prefix = f"promote-{count}-{number}-"
            await topics.create(Kafka(bench.bootstrap), prefix, PARTITIONS)
            async with producer(bench.bootstrap) as sender:
                ticks = [(partition, b"%d" % now, b"1", []) for partition in range(PARTITIONS)]
                await publish(sender, Topics.of(prefix).oscillator, ticks)
            parked.landed(bench.spark, root_of(settings), Topics.of(prefix).requests, count, PARTITIONS)
            rate = await asyncio.to_thread(_promoted, bench.spark, replace(settings, topic_prefix=prefix), bucket)
            if number >= WARM_UPS:
                bench.note(f"promote, {count:,} parked, 1/s", rate)


def _promoted(spark: SparkSession, settings: LakeSettings, bucket: Bucket) -> float:
    promoter = Promoter(spark, settings, HostClock(), bucket_s=BUCKET_S, wait_s=0)
    start_s = time.monotonic()
    seen = promoter.publish_missing(bucket)
    if seen.published != IN_BUCKET:
        sys.exit(f"{seen.published} of {IN_BUCKET} were published")
    return seen.published / (time.monotonic() - start_s)


async def audit(bench: Bench) -> None:
    """Requests and seals per second."""
    measured = await asyncio.to_thread(audit_load.measure, bench.spark, bench.folder / "audit", AUDITED, RUNS)
    bench.note("first audit, s", measured.first_s)
    for rate in measured.rates:
        bench.note("audit, 1/s", rate)


async def query(bench: Bench) -> None:
    """Seconds from the question to its rows, each time about another timer."""
    await asyncio.to_thread(_query, bench)


def _query(bench: Bench) -> None:
    spark, settings, span_s = bench.spark, bench.settings(""), 10_000
    audit_load.make(spark, settings, QUERIED, span_s)
    landed = read(spark, root_of(settings), REQUESTS)
    # Some are named by a cancel, so their timers were withdrawn.
    ids = [row[0] for row in landed.where("timer_id IS NOT NULL").select("timer_id").limit(WARM_UPS + RUNS).collect()]
    for number, timer_id in enumerate(ids):
        asked = {f"{view} by id": (view, Only(timer_id=timer_id)) for view in ("pending", "fired", "cancelled")}
        asked["pending by key"] = ("pending", Only(key=f"key-{number}-1000"))
        for figure, (view, only) in asked.items():
            took_s = _asked(bench, settings, f"SELECT * FROM {view}", only)
            if number >= WARM_UPS:
                bench.note(f"{figure}, {QUERIED:,} requests, s", took_s)
    of_topic = "SELECT count(*) FROM pending WHERE topic = 'topic-1'"
    for _ in range(RUNS):
        bench.note(f"pending of a topic, {QUERIED:,} requests, s", _asked(bench, settings, of_topic, None))


def _asked(bench: Bench, settings: LakeSettings, question: str, only: Only | None) -> float:
    start_s = time.monotonic()
    open_views(bench.spark, settings, named_in(question), only)
    rows_of(select(bench.spark, question))
    return time.monotonic() - start_s


STEPS: dict[str, Callable[[Bench], Awaitable[None]]] = {
    "session": session,
    "land": land,
    "disk": disk,
    "promote": promote,
    "audit": audit,
    "query": query,
}


def show(figures: dict[str, list[float]]) -> None:
    """Print one table."""
    table = Table("figure", "median", "all runs")
    for name, values in figures.items():
        told = [f"{value:,.3g}" if value < 1_000 else f"{value:,.0f}" for value in (statistics.median(values), *values)]
        table.add_row(name, told[0], "  ".join(told[1:]))
    Console().print(table)


async def main(steps: list[str]) -> dict[str, Any]:
    """Measure and return it."""
    with tempfile.TemporaryDirectory() as folder:
        async with EmbeddedKafka(Path(folder) / "kafka") as kafka:
            bench = Bench(kafka.bootstrap, Path(folder))
            for step in steps:
                await STEPS[step](bench)
    machine = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}"
    return {"date": time.strftime("%Y-%m-%d"), "machine": machine, "spark": "local[2]", "figures": bench.figures}


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("steps", nargs="*", metavar="STEP", help=", ".join(STEPS))
    arguments.add_argument("--json", type=Path, metavar="FILE", help="where all figures go")
    given = arguments.parse_args()
    if unknown := [step for step in given.steps if step not in STEPS]:
        sys.exit(f"no such step: {', '.join(unknown)}; there are {', '.join(STEPS)}")
    measured = asyncio.run(main(given.steps or list(STEPS)))
    show(measured["figures"])
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(measured, indent=1) + "\n")
