"""
Timers from a second to two years ahead, through landing, parking, promotion and the live worker, with kill -9.

Time is compressed: requests carry append times that lie years back, and seconds are ticked as fast as they can fire.
Workers, landing and promotion cannot tell.
"""

import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from brokers import make_topic
from patience import LIMIT_S
from pyspark.sql import DataFrame, SparkSession
from service import Process, Service, take

from kafka_timers.clock import HostClock
from kafka_timers.core.routing import partition_of
from kafka_timers.core.wire import EXPIRY_HEADER, REQUEST_HEADER, Callback, Condition, Future
from kafka_timers.lake import promote as lake_promote
from kafka_timers.lake.audit import Audit, audit
from kafka_timers.lake.copies import copies_of
from kafka_timers.lake.land import land_once
from kafka_timers.lake.promote import Promoter
from kafka_timers.runtime.child import Child
from kafka_timers.settings import LakeSettings

HORIZON_S, BUCKET_S = 3_600, 600
PARTITIONS = 4
HOUR_S, DAY_S = 3_600, 86_400
NEAR_S = (1, *range(60, 3_600, 900))
# Seconds from a request to the first of ten minutes in which such timers are due, in 10 of the seconds.
NEXT_WEEK_S, HALF_A_YEAR_S, TWO_YEARS_S = 8 * DAY_S, 180 * DAY_S, 731 * DAY_S
WINDOW_S = range(0, 600, 60)


@dataclass
class Asked:
    """A request as the test knows it: its name, when it is due, and whether it was taken back in time."""

    name: str
    second: int
    fires: bool = True


@dataclass
class Ledger:
    """The requests, and so the callbacks that must fire."""

    asked: dict[str, Asked] = field(default_factory=dict)
    last: dict[str, Asked] = field(default_factory=dict)

    def request(self, name: str, second: int, timer_id: str, at_s: float) -> None:
        self._take_back(timer_id, at_s)
        self.asked[name] = asked = Asked(name, second)
        if timer_id:
            self.last[timer_id] = asked

    def cancel(self, timer_id: str, at_s: float) -> None:
        self._take_back(timer_id, at_s)

    def _take_back(self, timer_id: str, at_s: float) -> None:
        before = self.last.get(timer_id)
        if before and at_s < before.second:
            before.fires = False


def dated(ready: DataFrame, known: Mapping[int, int], _: int) -> DataFrame:
    """Return copies that were decided on by the date of this host, whatever the ticks say."""
    return copies_of(ready, known, int(time.time()))


class Years:
    """
    Two years of one instance.

    Args:
        service: its topics and processes; requests and ticks carry the times that their producers give them.
        spark: the session for the code that runs in this process.
        lake: folder of the tables.
        timers: how many are asked for at the beginning.
        waits_s: how long those wait that are left to the lake, see `NEXT_WEEK_S`; ascending.
        seed: decides which process is killed when.
        changes: how many timers are cancelled, and how many moved, each time that some are.
        kills_jobs: whether landing and promotion run as processes too, which are killed.
    """

    def __init__(
        self,
        service: Service,
        spark: SparkSession,
        lake: Path,
        timers: int,
        waits_s: tuple[int, ...],
        seed: int,
        changes: int = 20,
        kills_jobs: bool = True,
    ) -> None:
        self.service, self.spark, self.timers, self.waits_s = service, spark, timers, waits_s
        self.changes, self.kills_jobs = changes, kills_jobs
        self.rng = random.Random(seed)
        self.ledger = Ledger()
        self.start_s = int(time.time()) - waits_s[-1] - 30 * DAY_S
        self.settings = LakeSettings(
            bootstrap=service.bootstrap, topic_prefix=service.prefix, lake=str(lake), horizon_s=HORIZON_S
        )
        self.folder = lake
        # Every third of them is asked for in another partition, and not changed: it is sent on at a time of its own.
        self.ids = [f"id-{number}" for number in range(timers // 10) if number % 3]
        self.foreign = range(0, timers // 10, 3)
        self.tombstones, self.replies = service.prefix + "tombstones", service.prefix + "replies"

    # --- asking ------------------------------------------------------------------------------------------------------

    async def ask_for_all(self) -> None:
        """Ask for all timers, every tenth with an id."""
        near = [self.start_s + delay_s for delay_s in NEAR_S]
        far = [self.start_s + wait_s + more_s for wait_s in self.waits_s for more_s in WINDOW_S]
        known = set(self.ids)
        records: dict[int, list[tuple[bytes, bytes]]] = {number: [] for number in range(PARTITIONS)}
        for number in range(self.timers):
            second = near[number % len(near)] if number % 10 < 3 else far[number % len(far)]
            timer_id = f"id-{number // 10}" if number % 10 == 9 else ""
            name = f"timer-{number}"
            to = partition_of(timer_id, PARTITIONS) if timer_id in known else number % PARTITIONS
            self.ledger.request(name, second, timer_id, self.start_s)
            records[to].append((b"%d" % second, self.shaped(number, name, timer_id).SerializeToString()))
        for number, of_partition in records.items():
            await self.send(number, of_partition)

    async def send(self, partition: int, records: list[tuple[bytes, bytes]]) -> None:
        producer, topic, acks = self.service.producer, self.service.topics.requests, []
        await producer.partitions_for(topic)
        batch = producer.create_batch()
        for key, value in [*records, (b"", b"")]:
            if key and batch.append(key=key, value=value, timestamp=self.start_s * 1000) is not None:
                continue
            batch.close()
            acks.append(await producer.send_batch(batch, topic, partition=partition))
            batch = producer.create_batch()
            if key:
                batch.append(key=key, value=value, timestamp=self.start_s * 1000)
        await asyncio.gather(*acks)

    def future(self, name: str, timer_id: str) -> Future:
        return Future(callBackTopic=self.service.callbacks, callBackKey=name, callBack=name.encode(), timerId=timer_id)

    def shaped(self, number: int, name: str, timer_id: str) -> Future:
        """Return a request for a callback of one of all shapes."""
        future, key = self.future(name, timer_id), b"\xff" + name.encode()
        if timer_id:
            future.condition, future.replyTopic = Condition.IF_ABSENT, self.replies
        elif number % 10 == 1:
            future.tombstoneTopic, future.tombstoneKey = self.tombstones, name
        elif number % 10 < 5:
            asked = Callback(topic=self.service.callbacks, value=name.encode())
            if number % 10 < 4:
                asked.key = key
            if number % 10 > 2:
                asked.partition = number % PARTITIONS
            else:
                asked.partitionKey = b"all"
            future = Future(callBackRecord=asked)
        return future

    async def append(self, future: Future, second: int, at_s: float) -> None:
        """Append one record of an id, as of *at_s*."""
        await self.service.producer.send_and_wait(
            self.service.topics.requests,
            future.SerializeToString(),
            key=b"%d" % second,
            partition=partition_of(future.timerId, PARTITIONS),
            timestamp_ms=int(at_s * 1000),
        )

    async def cancel(self, timer_id: str, at_s: float) -> None:
        self.ledger.cancel(timer_id, at_s)
        await self.append(Future(timerId=timer_id, cancel=True, replyTopic=self.replies), 0, at_s)

    async def move(self, timer_id: str, second: int, at_s: float) -> None:
        name = f"moved-{len(self.ledger.asked)}"
        self.ledger.request(name, second, timer_id, at_s)
        await self.append(self.future(name, timer_id), second, at_s)

    async def change_some(self, at_s: float, due: range) -> None:
        """Cancel some timers due in *due*, and move some others to it."""
        count = self.changes
        here = [name for name in self.ids if self.ledger.last[name].fires and self.ledger.last[name].second in due]
        ahead = [
            name for name in self.ids if self.ledger.last[name].fires and self.ledger.last[name].second >= due.stop
        ]
        for timer_id in self.rng.sample(here, min(count, len(here))):
            await self.cancel(timer_id, at_s)
        for timer_id in self.rng.sample(ahead, min(count, len(ahead))):
            await self.move(timer_id, self.rng.choice(due), at_s)

    # --- the jobs ----------------------------------------------------------------------------------------------------

    async def job(self, *arguments: str) -> Child:
        where = [
            "--bootstrap",
            self.service.bootstrap,
            "--topic-prefix",
            self.service.prefix,
            "--lake",
            str(self.folder),
        ]
        command = [sys.executable, "-m", "kafka_timers", "lake", *arguments, *where, "--horizon-s", str(HORIZON_S)]
        return await Child.start(arguments[0], command, self.folder.with_suffix(f".{time.monotonic_ns()}.log"))

    async def killed(self, job: Child, begun: "asyncio.Task[None]") -> None:
        """Kill *job* some moments after it has *begun* with its work, or let it end."""
        ended = asyncio.create_task(job.wait())
        await asyncio.wait({begun, ended}, return_when=asyncio.FIRST_COMPLETED, timeout=LIMIT_S)
        await asyncio.wait({ended}, timeout=self.rng.uniform(0, 3))
        job.kill()
        await ended
        begun.cancel()
        await asyncio.wait({begun})

    async def until_landed(self) -> None:
        """Wait until the first file of requests has been written, committed or not."""
        while not any((self.folder / "requests").rglob("*.parquet")):  # noqa: ASYNC110  # a folder has to be asked
            await asyncio.sleep(0.1)

    async def until_published(self, end: int) -> None:
        """Wait until there is more on the request log than *end*."""
        # One consumer for all questions: aiokafka leaves a connection open where the start of a client is cancelled.
        async with self.service.reading(self.service.callbacks) as consumer:
            while await self.end_told_to(consumer) <= end:  # noqa: ASYNC110  # a broker has to be asked
                await asyncio.sleep(0.05)

    async def end(self) -> int:
        async with self.service.reading(self.service.callbacks) as consumer:
            return await self.end_told_to(consumer)

    async def end_told_to(self, consumer: AIOKafkaConsumer) -> int:
        where = [TopicPartition(self.service.topics.requests, number) for number in range(PARTITIONS)]
        return sum((await consumer.end_offsets(where)).values())

    async def promote(self) -> int:
        def catch_up() -> int:
            land = lambda: land_once(self.spark, self.settings)  # noqa: E731
            promoter = Promoter(self.spark, self.settings, HostClock(), bucket_s=BUCKET_S, wait_s=60, land=land)
            # Spark's records have the date of this host, and a copy must be no older than half an hour by its decision.
            with mock.patch.object(lake_promote, "copies_of", dated):
                return promoter.catch_up()

        return await asyncio.to_thread(catch_up)

    async def worker(self) -> Process:
        return await self.service.worker("--horizon-s", str(HORIZON_S))

    async def tick_each(self, seconds: Iterator[int]) -> None:
        for second in seconds:
            await self.service.until_sealed(second)

    # --- the expected callbacks --------------------------------------------------------------------------------------

    async def check(self) -> None:
        wanted = {asked.name: asked.second for asked in self.ledger.asked.values() if asked.fires}
        async with self.service.reading(self.service.callbacks) as consumer:
            records = await take(consumer, len(wanted), 300)
            records += await take(consumer, 1, 1)
        fired = Counter(record.value.decode() for record in records)
        missing, doubled = wanted.keys() - fired.keys(), [name for name, count in fired.items() if count > 1]
        stale = fired.keys() - wanted.keys()
        assert not missing, f"{len(missing)} missing: {sorted(missing)[:3]}"
        assert not doubled, f"{len(doubled)} doubled: {doubled[:3]}"
        assert not stale, f"{len(stale)} fired that were taken back: {sorted(stale)[:3]}"
        for record in records:
            assert dict(record.headers)[EXPIRY_HEADER] == b"%d" % wanted[record.value.decode()]
        assert len({dict(record.headers)[REQUEST_HEADER] for record in records}) == len(records)
        told = await asyncio.to_thread(self.audit)
        assert told.kinds == {}, told.findings
        sent_on = sum(partition_of(f"id-{at}", PARTITIONS) != (10 * at + 9) % PARTITIONS for at in self.foreign)
        assert (told.fired, told.rejected, told.forwarded) == (len(wanted), sent_on, sent_on)

    def audit(self) -> Audit:
        land_once(self.spark, self.settings)
        # The time of this service goes its own way, so up to wherever it has come.
        end_s = self.start_s + self.waits_s[-1] + 86_400
        return audit(self.spark, self.settings, end_s, first=self.start_s, last=end_s, batches=True)


async def live(years: Years) -> None:
    """Live through all of it, and kill the processes at work."""
    service, start_s, rng = years.service, years.start_s, years.rng
    for topic in (years.tombstones, years.replies):
        await service.create_topic(topic, retention_ms="-1")
    await years.ask_for_all()
    first, last = years.waits_s[0], years.waits_s[-1]
    await years.change_some(start_s + 10, range(start_s + first, start_s + first + 600))
    if years.kills_jobs:
        await years.killed(await years.job("land", "--once"), asyncio.create_task(years.until_landed()))
    worker = await years.worker()
    await years.tick_each(start_s + delay_s for delay_s in NEAR_S)
    await asyncio.to_thread(land_once, years.spark, years.settings)
    for wait_s in years.waits_s:
        window = range(start_s + wait_s, start_s + wait_s + 600)
        await years.change_some(window.start - HOUR_S, window)  # landed, and not promoted
        # Its last second is in a bucket that has come within the horizon as a whole.
        await service.until_sealed(window.stop - HORIZON_S + BUCKET_S + 60)
        if wait_s == first and years.kills_jobs:
            begun = asyncio.create_task(years.until_published(await years.end()))
            job = await years.job("promote", "--once", "--land", "--bucket-s", str(BUCKET_S))
            await years.killed(job, begun)
        promoting = asyncio.create_task(years.promote())
        await asyncio.sleep(rng.uniform(0, 2))
        await years.change_some(window.start - 120, window)  # while they are promoted
        if wait_s == last:
            worker.child.kill()
            await worker.child.wait()
            worker = await years.worker()
        assert await promoting == 0
        await years.change_some(window.start - 60, window)  # the workers have them
        await years.tick_each(iter(window[:: WINDOW_S.step]))
        fired = [name for name in years.ids if years.ledger.last[name].second in window]
        for timer_id in rng.sample(fired, min(5, len(fired))):
            await years.cancel(timer_id, window.stop + 1)  # too late
    await service.until_sealed(start_s + last + 700)
    await years.check()


@pytest.fixture
async def service(bootstrap: str, prefix: str, tmp_path: Path) -> AsyncIterator[Service]:
    service = Service(bootstrap, prefix, tmp_path, PARTITIONS)
    for topic in (service.topics.requests, service.topics.oscillator):
        configs = {"message.timestamp.type": "CreateTime", "retention.ms": "-1"}
        await make_topic(bootstrap, topic, PARTITIONS, configs)
    async with service:
        yield service


async def test_timers_up_to_two_years_ahead_fire_once_each_in_their_second(
    service: Service, tmp_path: Path, spark: SparkSession
) -> None:
    await live(Years(service, spark, tmp_path / "lake", 3_000, (TWO_YEARS_S,), 1, kills_jobs=False))


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(20))
async def test_they_do_so_although_processes_are_killed_at_any_time(
    service: Service, tmp_path: Path, spark: SparkSession, seed: int
) -> None:
    waits_s = (NEXT_WEEK_S, TWO_YEARS_S if seed % 2 else HALF_A_YEAR_S)
    await live(Years(service, spark, tmp_path / "lake", 30_000, waits_s, 100 + seed))


@pytest.mark.chaos
async def test_an_audit_of_a_million_timers_finds_nothing(
    service: Service, tmp_path: Path, spark: SparkSession
) -> None:
    waits_s = (NEXT_WEEK_S, TWO_YEARS_S)
    await live(Years(service, spark, tmp_path / "lake", 1_000_000, waits_s, 7, changes=500))
