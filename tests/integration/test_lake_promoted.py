"""
Far requests on their way back to the workers, on a real broker and real tables.

The topic of requests has the time that its producers give, so that a request may have been made long ago.
"""

import asyncio
import contextlib
import itertools
import logging
import os
import signal
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, ConsumerRecord, TopicPartition
from brokers import consuming
from lakes import AGO_S, BUCKET_S, HORIZON_S, MESSAGE_BYTES_MAX, PARTITIONS, SOON_S, Lake, future
from patience import LIMIT_S
from pyspark.sql import SparkSession

from kafka_timers.broker import topics
from kafka_timers.broker.connection import Kafka
from kafka_timers.client.request import partition_of
from kafka_timers.clock import HostClock
from kafka_timers.core.wire import Condition, Copy, Future
from kafka_timers.dev.broker import free_port
from kafka_timers.errors import BrokerError, LakeError
from kafka_timers.lake import promote
from kafka_timers.lake.job_metrics import LakeMetrics
from kafka_timers.lake.land import land_once
from kafka_timers.lake.live import publish
from kafka_timers.lake.promote import Promoter
from kafka_timers.runtime.child import Child
from kafka_timers.settings import LakeSettings


@asynccontextmanager
async def logged_by(name: str) -> AsyncIterator[list[str]]:
    """Yield the messages logged by *name* while the block runs."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = logging.getLogger(name)
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


# --- one history, looked at from all sides ----------------------------------------------------------------------------


@dataclass
class History:
    """The requests, by a name for each, and their copies."""

    lake: Lake
    at: dict[str, tuple[int, int]] = field(default_factory=dict)
    second: dict[str, int] = field(default_factory=dict)
    cancelled_at: dict[str, int] = field(default_factory=dict)
    wrong: int = 0
    wrong_again: int = 0
    logged: list[str] = field(default_factory=list)
    copies: list[ConsumerRecord] = field(default_factory=list)
    copies_again: int = 0
    metrics: LakeMetrics = field(default_factory=LakeMetrics)

    def metric(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"kafka_timers_lake_{name}", labels)

    def copies_of(self, name: str) -> list[ConsumerRecord]:
        partition, offset = self.at[name]
        return [
            record
            for record in self.copies
            if record.partition == partition and Future.FromString(record.value).copy.offset == offset
        ]


@pytest.fixture(scope="module")
async def history(
    spark: SparkSession, bootstrap: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[History]:
    """
    Requests, cancels and moves; a promotion which two cancels overtake; and another promotion.

    Two of the cancels are appended after the decision about the copies to publish: that of "overtaken" is in time, that
    of "overtaken too late" is not.
    """
    async with Lake.open(spark, bootstrap, f"promote{os.getpid()}-", tmp_path_factory.mktemp("promote")) as lake:
        history = History(lake)
        soon = lake.now + SOON_S
        loop = asyncio.get_running_loop()

        async def ask(name: str, second: int, what: Future, at_s: float | None = None) -> None:
            history.at[name] = await lake.request(second, what, at_s=at_s)
            history.second[name] = second

        await ask("plain", soon, future())
        await ask("named", soon + 1, future("named"))
        await ask("due already", lake.now - 50, future())
        await ask("near", soon, future(), at_s=soon - HORIZON_S)
        await ask("later", lake.now + HORIZON_S + 1, future())
        await ask("cancelled", soon, future("cancelled"))
        await lake.cancel("cancelled", lake.now)
        await ask("cancelled too late", soon, future("cancelled too late"))
        await lake.cancel("cancelled too late", soon)
        await ask("moved", soon, future("moved"))
        await ask("moved to", soon + 100, future("moved"), at_s=lake.now - 1_000)
        await ask("cancelled behind the landing", soon, future("cancelled behind the landing"))
        for name in ("overtaken", "overtaken too late"):
            await ask(name, soon, future(name))
        await ask("large", soon, future(value=b"v" * (MESSAGE_BYTES_MAX - 150)))

        async def overtake() -> None:
            for name, at_s in (("overtaken", lake.now), ("overtaken too late", soon)):
                _, history.cancelled_at[name] = await lake.cancel(name, at_s)

        class Overtaken(Promoter):
            """Makes one decision that is not true any more when it is published."""

            def _landed(self, ends: Mapping[int, int]) -> dict[int, int]:
                decided = super()._landed(ends)
                if not history.cancelled_at:
                    asyncio.run_coroutine_threadsafe(overtake(), loop).result()
                return decided

        await asyncio.to_thread(land_once, spark, lake.settings)
        await lake.cancel("cancelled behind the landing", lake.now)
        async with logged_by("kafka_timers.lake.promote") as history.logged:
            history.wrong = await asyncio.to_thread(lake.promoter(Overtaken, metrics=history.metrics).catch_up)
        history.copies = await lake.copies()
        history.wrong_again = await asyncio.to_thread(lake.promoter(metrics=history.metrics).catch_up)
        history.copies_again = len(await lake.copies())
        yield history


@pytest.mark.parametrize(
    "name", ["plain", "named", "due already", "cancelled too late", "moved to", "overtaken too late"]
)
async def test_a_pending_request_comes_back_with_its_bytes(history: History, name: str) -> None:
    *_, copy = history.copies_of(name)
    [original] = [
        record for record in await history.lake.records() if (record.partition, record.offset) == history.at[name]
    ]
    assert copy.key == original.key == b"%d" % history.second[name]
    assert copy.value.startswith(original.value)
    wanted, made = Future.FromString(original.value), Future.FromString(copy.value)
    decided = made.copy
    assert original.offset < decided.decidedOffset <= copy.offset
    # By the last tick, and not by the clock of the host.
    assert decided.decided == history.lake.now
    wanted.copy.CopyFrom(
        Copy(
            offset=original.offset,
            appended=original.timestamp // 1000,
            decidedOffset=decided.decidedOffset,
            decided=decided.decided,
        )
    )
    assert made == wanted


@pytest.mark.parametrize("name", ["near", "later", "cancelled", "moved", "cancelled behind the landing", "large"])
def test_cancelled_later_and_near_requests_are_not_promoted(history: History, name: str) -> None:
    assert history.copies_of(name) == []


@pytest.mark.parametrize("name", ["plain", "named", "due already", "moved to", "overtaken"])
def test_one_copy_is_enough(history: History, name: str) -> None:
    assert len(history.copies_of(name)) == 1


def test_a_copy_that_a_cancel_overtook_is_made_anew_unless_it_counts(history: History) -> None:
    """Workers drop the first one of each, since it could not know the cancel."""
    in_time, (dropped, anew) = history.copies_of("overtaken"), history.copies_of("overtaken too late")
    for copy in (*in_time, dropped):
        assert Future.FromString(copy.value).copy.decidedOffset <= min(history.cancelled_at.values())
    assert Future.FromString(anew.value).copy.decidedOffset > history.cancelled_at["overtaken too late"]


def test_the_bucket_is_closed_with_the_number_of_copies_that_workers_have(history: History) -> None:
    [closed] = history.lake.closed()
    assert (closed.first, closed.horizon_s) == (1, HORIZON_S)
    assert history.lake.now + HORIZON_S - BUCKET_S - 10 < closed.last < history.lake.now + HORIZON_S
    assert closed.promoted == 6


def test_a_closed_bucket_is_not_looked_at_again(history: History) -> None:
    assert history.wrong_again == 0
    assert history.copies_again == len(history.copies) == 8


def test_failures_are_counted_and_logged(history: History) -> None:
    assert history.wrong == 2
    [late] = [line for line in history.logged if line.startswith("promoted late: 1 requests")]
    assert f"were due by second {history.lake.now}" in late
    assert any(line.startswith("1 requests") and "max.message.bytes" in line for line in history.logged)


def test_a_promoted_request_is_counted_once(history: History) -> None:
    [closed] = history.lake.closed()
    assert history.metric("closed_second") == closed.last
    assert [history.metric(f"{name}_total") for name in ("promoted", "promoted_late", "too_large")] == [6, 1, 1]
    assert (history.metric("look_seconds") or 0) > 0
    # Records landed before are not counted: these are the copies, and three cancels.
    landed = history.metric("landed_total", topic=history.lake.topics.requests)
    assert landed == len(history.copies) + 1 + len(history.cancelled_at)


async def test_a_worker_knows_how_far_is_promoted(history: History, tmp_path: Path) -> None:
    port, settings = free_port(), history.lake.settings
    options = {
        "bootstrap": settings.bootstrap,
        "topic-prefix": settings.topic_prefix,
        "group": f"{settings.topic_prefix}workers",
        "data-dir": tmp_path / "store",
        "horizon-s": HORIZON_S,
        "port": port,
    }
    given = itertools.chain.from_iterable((f"--{name}", str(value)) for name, value in options.items())
    child = await Child.start("worker", [sys.executable, "-m", "kafka_timers", "worker", *given], tmp_path / "log")
    [closed] = history.lake.closed()

    def shown() -> list[float]:
        with (
            contextlib.suppress(urllib.error.URLError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer,
        ):
            lines = answer.read().decode().splitlines()
            return [float(line.split()[1]) for line in lines if line.startswith("kafka_timers_lake_closed_second ")]
        return []

    try:
        async with asyncio.timeout(LIMIT_S):
            while await asyncio.to_thread(shown) != [closed.last]:
                assert child.returncode is None, child.last_words()
                await asyncio.sleep(0.1)
    finally:
        await child.stop(LIMIT_S)


# --- failures and delays ----------------------------------------------------------------------------------------------


@pytest.fixture
async def lake(spark: SparkSession, bootstrap: str, prefix: str, tmp_path: Path) -> AsyncIterator[Lake]:
    async with Lake.open(spark, bootstrap, prefix, tmp_path) as lake:
        yield lake


async def test_a_worker_with_a_smaller_horizon_stops_it(lake: Lake) -> None:
    await lake.seal(horizon_s=HORIZON_S - 1)
    with pytest.raises(LakeError, match=f"worker of partition 0 has a horizon of {HORIZON_S - 1} s, less"):
        await asyncio.to_thread(lake.promoter(lands=False).catch_up)


async def test_workers_without_a_horizon_are_warned_of(lake: Lake) -> None:
    await lake.seal()
    async with logged_by("kafka_timers.lake.promote") as logged:
        await asyncio.to_thread(lake.promoter(lands=False).catch_up)
    assert any("workers have no horizon" in line for line in logged)
    [closed] = lake.closed()
    assert closed.promoted == 0


async def test_a_landing_that_stays_behind_is_told(lake: Lake) -> None:
    await lake.request(lake.now + SOON_S, future())
    with pytest.raises(LakeError, match=r"come to offset 0 of .* partition 0 and not to 1 within 0 s: is kafka-timers"):
        await asyncio.to_thread(lake.promoter(lands=False, wait_s=0).catch_up)
    assert lake.closed() == []


async def test_a_bucket_stays_open_while_a_transaction_may_have_requests_of_it(lake: Lake) -> None:
    """
    1. far requests lie in an open transaction     2. their bucket comes within the horizon     3. it is committed

    They are many, for a topic that takes small messages only.
    """
    value = b"v" * 100
    count = 4 * MESSAGE_BYTES_MAX // len(value)
    producer = AIOKafkaProducer(bootstrap_servers=lake.settings.bootstrap, transactional_id=lake.topics.requests)
    await producer.start()
    try:
        await producer.begin_transaction()
        asked = (lake.request(lake.now + SOON_S, future(value=value), producer=producer) for _ in range(count))
        await asyncio.gather(*asked)
        with pytest.raises(LakeError, match="keep a transaction open"):
            await asyncio.to_thread(lake.promoter(wait_s=0).catch_up)
        assert lake.closed() == []
        await producer.commit_transaction()
    finally:
        await producer.stop()
    assert await asyncio.to_thread(lake.promoter().catch_up) == 0
    assert [record.key for record in await lake.copies()] == [b"%d" % (lake.now + SOON_S)] * count
    assert [closed.promoted for closed in lake.closed()] == [count]


class InAPause(HostClock):
    """Does something instead of each pause, and this clock says that the pause took a minute."""

    def __init__(self, does: Callable[[], None]) -> None:
        self._does, self._paused_s = does, 0

    def elapsed_s(self) -> float:
        return super().elapsed_s() + self._paused_s

    async def sleep_until(self, wall_s: float) -> None:
        self._paused_s += 60
        self._does()


async def test_an_ignored_request_is_not_promoted_and_an_unjudged_one_waits(lake: Lake) -> None:
    soon = lake.now + SOON_S
    named = next(each for each in (f"id-{n}" for n in range(99)) if partition_of(each, PARTITIONS) == 0)

    async def ask(second: int, condition: Future.Condition, at_s: float | None = None) -> None:
        what = future(named)
        what.condition = condition
        await lake.request(second, what, at_s=at_s)

    await ask(soon, Condition.IF_ABSENT)
    await ask(soon + 1, Condition.IF_ABSENT)
    await lake.request(soon + 2, future())
    with pytest.raises(LakeError, match="1 have a condition, and no seal tells within 30 s that a worker has judged"):
        await asyncio.to_thread(lake.promoter(clock=InAPause(lambda: None)).catch_up)
    assert [record.key for record in await lake.copies()] == [b"%d" % (soon + 2)]
    assert lake.closed() == []

    end_ms, loop = (lake.now + 1) * 1000, asyncio.get_running_loop()

    def judge() -> None:
        seal = lake.seal(fence=3, horizon_s=HORIZON_S, end_ms=end_ms)
        asyncio.run_coroutine_threadsafe(seal, loop).result()

    assert await asyncio.to_thread(lake.promoter(clock=InAPause(judge), wait_s=90).catch_up) == 0
    copies = {record.key: Future.FromString(record.value) for record in await lake.copies()}
    assert set(copies) == {b"%d" % second for second in (soon, soon + 2)}
    assert copies[b"%d" % soon].condition == Condition.CONDITION_UNSPECIFIED
    assert [closed.promoted for closed in lake.closed()] == [2]


async def test_a_request_that_comes_due_while_it_is_published_is_late_too(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    due, loop = lake.now + 1, asyncio.get_running_loop()
    await lake.request(due, future())
    await lake.request(due + SOON_S, future())

    async def tick() -> None:
        for number in range(PARTITIONS):
            await lake.producer.send_and_wait(lake.topics.oscillator, b"1", key=b"%d" % due, partition=number)

    def slowly(*arguments: Any) -> None:
        publish(*arguments)
        asyncio.run_coroutine_threadsafe(tick(), loop).result()

    monkeypatch.setattr(promote, "publish", slowly)
    async with logged_by("kafka_timers.lake.promote") as logged:
        assert await asyncio.to_thread(lake.promoter().catch_up) == 1
    assert any(line.startswith("promoted late: 1 requests") and f"by second {due};" in line for line in logged)


async def test_without_a_tick_the_time_is_unknown(
    spark: SparkSession, bootstrap: str, prefix: str, tmp_path: Path
) -> None:
    await topics.create(Kafka(bootstrap), prefix, PARTITIONS)
    lake = Lake(spark, bootstrap, prefix, tmp_path)
    with pytest.raises(BrokerError, match="is an oscillator running"):
        await asyncio.to_thread(lake.promoter(lands=False).catch_up)
    await lake.producer.stop()


def test_buckets_that_leave_no_time_to_promote_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    lake = LakeSettings(lake=str(tmp_path), horizon_s=600)
    with pytest.raises(LakeError, match="give --bucket-s 1 to 300"):
        Promoter(spark, lake, HostClock(), bucket_s=301, wait_s=1)


@pytest.mark.chaos
async def test_killed_while_it_publishes_it_goes_on(lake: Lake, tmp_path: Path) -> None:
    count = 40_000
    value, key = future().SerializeToString(), b"%d" % (lake.now + SOON_S)
    at_ms = (lake.now - AGO_S) * 1000
    for number in range(PARTITIONS):
        for at in range(0, count // PARTITIONS, 100):
            batch = lake.producer.create_batch()
            for _ in range(at, at + 100):
                batch.append(key=key, value=value, timestamp=at_ms)
            await lake.producer.send_batch(batch, lake.topics.requests, partition=number)
    await lake.producer.flush()
    where = [TopicPartition(lake.topics.requests, number) for number in range(PARTITIONS)]
    options = {
        "bootstrap": lake.settings.bootstrap,
        "topic-prefix": lake.settings.topic_prefix,
        "lake": lake.settings.lake,
        "horizon-s": HORIZON_S,
        "master": "local[2]",
    }
    given = itertools.chain.from_iterable((f"--{name}", str(value)) for name, value in options.items())
    command = [sys.executable, "-m", "kafka_timers", "lake", "promote", "--once", "--land", *given]
    child = await Child.start("promote", command, tmp_path / "promote.log")
    try:
        async with asyncio.timeout(LIMIT_S), consuming(lake.settings.kafka) as consumer:
            while sum((await consumer.end_offsets(where)).values()) == count:
                await asyncio.sleep(0.01)
                assert child.returncode is None, child.last_words()
    finally:
        # Spark runs in a process beside it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        await child.wait()
    published = len(await lake.copies())
    assert 0 < published < count, "it was not killed while it published"
    assert lake.closed() == []

    assert await asyncio.to_thread(lake.promoter().catch_up) == 0
    copies = Counter((record.partition, Future.FromString(record.value).copy.offset) for record in await lake.copies())
    assert set(copies) == {(number, offset) for number in range(PARTITIONS) for offset in range(count // PARTITIONS)}
    # All records had been landed before anything was decided anew.
    assert set(copies.values()) == {1}
    assert [closed.promoted for closed in lake.closed()] == [count]
