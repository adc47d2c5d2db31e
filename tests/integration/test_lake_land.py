"""Landing, on a real Kafka and real tables: each record is there once, although processes are killed or away."""

import asyncio
import itertools
import random
import shutil
import signal
import sys
import threading
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from brokers import administering, consuming, delete_records
from patience import LIMIT_S
from pyspark.sql import SparkSession

from kafka_timers.broker import topics
from kafka_timers.broker.bounds import LogBounds
from kafka_timers.broker.connection import Kafka
from kafka_timers.core.routing import partition_of
from kafka_timers.core.wire import FORMAT, KEPT_KEY, Copy, Future, Kept, Sealed, Topics
from kafka_timers.dev.broker import free_port
from kafka_timers.errors import BrokerError, LakeError
from kafka_timers.lake import tables
from kafka_timers.lake.job_metrics import LakeMetrics
from kafka_timers.lake.land import land, land_once
from kafka_timers.lake.schema import PLANNED, REJECTED, REQUESTS, SCHEDULES, SEALS
from kafka_timers.lake.tables import name_of, read, read_positions, root_of
from kafka_timers.runtime.child import Child
from kafka_timers.settings import LakeSettings

PARTITIONS = 2
LANDED = attrgetter("requests", "sealed", "rejected", "schedules", "planned")


@dataclass
class Lake:
    """A lake for one test, and the topics that land in it."""

    spark: SparkSession
    settings: LakeSettings
    producer: AIOKafkaProducer
    names: Topics

    @property
    def root(self) -> str:
        return root_of(self.settings)

    async def publish(self, count: int, waits_s: int = 60) -> None:
        """Publish plain requests, spread over both partitions and three days."""
        second = int(time.time()) + waits_s
        value = Future(callBackTopic="t", callBack=b"v").SerializeToString()
        acks = [
            await self.producer.send(
                self.names.requests, value, b"%d" % (second + 86_400 * (n % 3)), partition=n % PARTITIONS
            )
            for n in range(count)
        ]
        await asyncio.gather(*acks)

    async def land(self, **more: Any) -> None:
        """Land all that is there."""
        await asyncio.to_thread(land, self.spark, self.settings, every_s=None, **more)

    async def assert_landed(self, count: int) -> None:
        """Check that *count* requests are in the table, none twice, and that positions are at the topics' ends."""
        rows = read(self.spark, self.root, REQUESTS)
        assert (rows.count(), rows.select("partition", "offset").distinct().count()) == (count, count)
        async with consuming(self.settings.kafka) as consumer:
            for topic in LANDED(self.names):
                where = [TopicPartition(topic, number) for number in range(PARTITIONS)]
                ends = {tp.partition: end for tp, end in (await consumer.end_offsets(where)).items() if end}
                positions = {number: at for number, at in read_positions(self.spark, self.root, topic).items() if at}
                assert positions == ends, topic


@pytest.fixture
async def lake(spark: SparkSession, bootstrap: str, prefix: str, tmp_path: Path) -> AsyncIterator[Lake]:
    await topics.create(Kafka(bootstrap), prefix, PARTITIONS)
    settings = LakeSettings(bootstrap=bootstrap, topic_prefix=prefix, lake=str(tmp_path / "lake"), master="local[2]")
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all")
    await producer.start()
    yield Lake(spark, settings, producer, Topics.of(prefix))
    await producer.stop()


async def start(lake: Lake, *command: str, log: Path, port: int = 0) -> Child:
    where = ["--bootstrap", lake.settings.bootstrap, "--topic-prefix", lake.settings.topic_prefix]
    options = [*where, "--lake", lake.settings.lake, "--master", "local[2]"]
    options += ["--port", str(port)]
    return await Child.start("land", [sys.executable, *command, "lake", "land", *options], log)


def told(log: Path) -> str:
    return log.read_text()


async def until(log: Path, child: Child, words: str, count: int = 1) -> None:
    """Wait until *child* has written *words* to its log that often."""
    end_s = time.monotonic() + LIMIT_S
    while told(log).count(words) < count:
        assert child.returncode is None, child.last_words()
        assert time.monotonic() < end_s, child.last_words()
        await asyncio.sleep(0.05)


# --- landed records --------------------------------------------------------------------------------------------------


async def test_each_record_becomes_a_row_and_aborted_ones_do_not(lake: Lake) -> None:
    """Of a transaction, its markers too are passed by the positions; a copy is no request, nor is a refused record."""
    now, timer = int(time.time()), Future(callBackTopic="t", callBack=b"v")
    home = partition_of("a", PARTITIONS)
    named = Future(callBackTopic="t", callBack=b"v", timerId="a").SerializeToString()
    cancel = Future(timerId="a", cancel=True).SerializeToString()
    copy = Future(callBackTopic="t", copy=Copy(offset=1, appended=now - 9, decidedOffset=3, decided=now))
    async with AIOKafkaProducer(
        bootstrap_servers=lake.settings.bootstrap, transactional_id=lake.names.requests
    ) as sender:

        async def send(value: bytes, key: bytes) -> None:
            await sender.send(lake.names.requests, value, key, partition=home)

        async with sender.transaction():
            await send(timer.SerializeToString(), b"%d" % (now + 60))
            await send(named, b"%d" % (now + 600_000_000))
            await send(cancel, b"a")
        await sender.begin_transaction()
        await send(timer.SerializeToString(), b"%d" % (now + 1))
        await sender.abort_transaction()
        async with sender.transaction():
            await send(copy.SerializeToString(), b"%d" % (now + 60))
            await send(b"{}", b"%d" % (now + 60))
            await send(named, b"soon")
            await send(Future(kept=Kept(begun=1)).SerializeToString(), KEPT_KEY)
    seal = Sealed(partition=1, first_ms=(now - 1) * 1000, end_ms=(now + 1) * 1000, fence=7, worker="w", format=FORMAT)
    await lake.producer.send_and_wait(lake.names.sealed, seal.SerializeToString(), b"1", partition=1)
    newer = Sealed(partition=1, first_ms=(now + 1) * 1000, end_ms=(now + 2) * 1000, fence=8)
    newer.format = FORMAT
    await lake.producer.send_and_wait(lake.names.sealed, newer.SerializeToString(), b"1", partition=1)
    headers = [(f"timer-rejected-{name}", value) for name, value in (("reason", b"topic-unknown"), ("offset", b"5"))]
    await lake.producer.send_and_wait(lake.names.rejected, b"v", b"k", partition=0, headers=headers)
    for topic, value in ((lake.names.schedules, b"v"), (lake.names.schedules, None), (lake.names.planned, b"p")):
        await lake.producer.send_and_wait(topic, value, b"s", partition=1)

    await lake.land()
    rows = read(lake.spark, lake.root, REQUESTS).orderBy("offset").select("offset", "kind", "reason", "original")
    assert [tuple(row) for row in rows.collect()] == [
        (0, "request", None, None),
        (1, "request", None, None),
        (2, "cancel", None, None),
        # 3 is a marker, 4 aborted, 5 its marker.
        (6, "copy", None, 1),
        (7, "refused", "value-not-a-future", None),
        (8, "refused", "key-not-a-second", None),
        (9, "kept", None, None),
    ]
    columns = ("partition", "last", "fence", "worker", "format")
    sealed = read(lake.spark, lake.root, SEALS).select(*columns).orderBy("last").collect()
    assert [tuple(row) for row in sealed] == [(1, now, 7, "w", FORMAT), (1, now + 1, 8, "", FORMAT)]
    [rejected] = read(lake.spark, lake.root, REJECTED).select("reason", "source_offset").collect()
    assert tuple(rejected) == ("topic-unknown", 5)
    kept = [read(lake.spark, lake.root, table).orderBy("offset") for table in (SCHEDULES, PLANNED)]
    columns = ("partition", "offset", "key", "value")
    assert [[tuple(row) for row in rows.select(*columns).collect()] for rows in kept] == [
        [(1, 0, b"s", b"v"), (1, 1, b"s", None)],
        [(1, 0, b"s", b"p")],
    ]
    await lake.assert_landed(7)
    assert read_positions(lake.spark, lake.root, lake.names.requests)[home] == 11

    # Only new records; and a checkpoint that is lost costs nothing, though its successor counts batches from 0 again.
    await lake.publish(20)
    await lake.land()
    await lake.assert_landed(27)
    shutil.rmtree(Path(lake.settings.lake) / "_land")
    await lake.publish(10)
    await lake.land()
    await lake.assert_landed(37)


async def test_a_large_batch_is_not_moved_a_small_one_makes_few_files_and_none_has_more_records_than_it_is_told(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three days, both partitions with requests."""

    def files() -> int:
        return len(read(lake.spark, lake.root, REQUESTS).inputFiles())

    await lake.publish(30)
    await lake.land()
    assert files() == 3
    monkeypatch.setattr("kafka_timers.lake.land._GATHERED_RECORDS", 10)
    await lake.publish(30)
    await lake.land()
    assert files() == 3 + PARTITIONS * 3
    await lake.publish(6)
    await lake.land(batch_records=2)
    await lake.assert_landed(66)
    history = lake.spark.sql(f"DESCRIBE HISTORY {name_of(lake.root, REQUESTS)}").where("operation = 'WRITE'")
    assert sorted(int(row.operationMetrics["numOutputRows"]) for row in history.collect()) == [2, 2, 2, 30, 30]


async def test_a_topic_that_was_made_anew_is_refused_though_it_has_more_records(lake: Lake) -> None:
    await lake.publish(4)
    await lake.land()
    topic = lake.names.requests
    async with administering(lake.settings.bootstrap) as admin:
        await admin.delete_topics([topic])
    await topics.create(lake.settings.kafka, lake.settings.topic_prefix, PARTITIONS)
    await lake.publish(8)
    with pytest.raises(
        LakeError, match=f"{topic} was deleted and made anew: the lake has records of the topic with id"
    ):
        await lake.land()
    assert read(lake.spark, lake.root, REQUESTS).count() == 4
    await lake.land(same_records=True)
    assert read(lake.spark, lake.root, REQUESTS).count() == 8
    # It is the known one from now on.
    await lake.land()


async def test_a_topic_that_an_unclean_election_has_cut_is_refused(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """One broker cannot lose the end of a log to another one, so its answer is played."""
    await lake.publish(4)
    await lake.land()
    kept, read_epochs = LogBounds.kept, tables.read_epochs

    def earlier(spark: SparkSession, root: str) -> dict[str, dict[int, tuple[int, int]]]:
        epochs = read_epochs(spark, root)
        return {
            topic: {number: (position, epoch - 1) for number, (position, epoch) in each.items()}
            for topic, each in epochs.items()
        }

    async def cut(bounds: LogBounds, number: int, epoch: int) -> int:
        return 1 if number == 0 and await kept(bounds, number, epoch) > 1 else await kept(bounds, number, epoch)

    await lake.publish(4)
    with monkeypatch.context() as patch:
        patch.setattr(LogBounds, "kept", cut)
        patch.setattr(tables, "read_epochs", earlier)
        with pytest.raises(LakeError, match="partition 0 has lost its records from offset 1 on, as in an unclean"):
            await lake.land()
    assert read(lake.spark, lake.root, REQUESTS).count() == 4
    await lake.land()
    assert read(lake.spark, lake.root, REQUESTS).count() == 8


@pytest.mark.chaos
async def test_a_topic_that_is_made_anew_while_it_is_landed_ends_the_landing(lake: Lake) -> None:
    await lake.publish(4)
    running = asyncio.create_task(asyncio.to_thread(land, lake.spark, lake.settings, every_s=0.5))
    async with asyncio.timeout(LIMIT_S), administering(lake.settings.bootstrap) as admin:
        while not read_positions(lake.spark, lake.root, lake.names.requests):  # noqa: ASYNC110  # a table tells nobody
            await asyncio.sleep(0.2)
        await admin.delete_topics([lake.names.requests])
        await topics.create(lake.settings.kafka, lake.settings.topic_prefix, PARTITIONS)
        await lake.publish(8)
        with pytest.raises(LakeError, match=f"{lake.names.requests} was deleted and made anew"):
            await running
    assert read(lake.spark, lake.root, REQUESTS).count() == 4


# --- exactly once ----------------------------------------------------------------------------------------------------

# Kills itself when it is about to write the positions of a batch: the requests of it are committed, the checkpoint is
# not.
WEAK_POINT = """
import os, signal
from kafka_timers import __main__
from kafka_timers.lake import tables
from kafka_timers.lake.schema import POSITIONS, REQUESTS

append = tables.append

def append_or_die(frame, root, table, *more, **options):
    if table is POSITIONS and tables.read(frame.sparkSession, root, REQUESTS).count():
        os.kill(os.getpid(), signal.SIGKILL)
    append(frame, root, table, *more, **options)

tables.append = append_or_die
__main__.main()
"""


async def test_a_kill_between_the_commits_of_table_and_checkpoint_doubles_nothing(lake: Lake, tmp_path: Path) -> None:
    await lake.publish(1_000)
    script, log = tmp_path / "weak_point.py", tmp_path / "land.log"
    script.write_text(WEAK_POINT)
    child = await start(lake, str(script), log=log)
    assert await asyncio.wait_for(child.wait(), LIMIT_S) == -signal.SIGKILL, child.last_words()
    checkpoint = Path(lake.settings.lake) / "_land" / "requests"
    assert (checkpoint / "offsets" / "0").exists()
    assert not (checkpoint / "commits" / "0").exists()
    assert read(lake.spark, lake.root, REQUESTS).count() == 1_000
    assert read_positions(lake.spark, lake.root, lake.names.requests) == {}
    await lake.publish(500)
    await lake.land()
    await lake.assert_landed(1_500)


async def kills(lake: Lake, folder: Path, count: int, seed: int) -> None:
    """Kill a landing *count* times while requests come in, then end one gently, and check the landed rows."""
    rand, published, done, port = random.Random(seed), 0, asyncio.Event(), free_port()

    async def publish() -> None:
        nonlocal published
        while not done.is_set():
            await lake.publish(20)
            published += 20
            await asyncio.sleep(0.1)

    publishing = asyncio.create_task(publish())
    for number in itertools.count():
        log = folder / f"land-{number}.log"
        child = await start(lake, "-m", "kafka_timers", log=log, port=port)
        await until(log, child, "timer-request into", rand.randrange(1, 3))
        if number == count:
            break
        await asyncio.sleep(rand.uniform(0, 2))
        child.kill()
        await child.wait()
    done.set()
    await publishing
    before = told(log).count("timer-request into")
    await until(log, child, "timer-request into", before + 1)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=LIMIT_S) as answer:  # noqa: ASYNC210
        assert f'kafka_timers_lake_landed_total{{topic="{lake.names.requests}"}} ' in answer.read().decode()
    # Behind the batch under way, and without a word of Spark's.
    child._signal(signal.SIGTERM)
    assert await asyncio.wait_for(child.wait(), LIMIT_S) == 0, child.last_words()
    assert all(" INFO kafka_timers.lake.land: " in line for line in told(log).splitlines()), told(log)
    await lake.land()
    await lake.assert_landed(published)


@pytest.mark.chaos
async def test_kills_at_random_points_lose_and_double_nothing(lake: Lake, tmp_path: Path) -> None:
    await kills(lake, tmp_path, 2, seed=1)


@pytest.mark.chaos
async def test_many_kills_at_random_points_lose_and_double_nothing(lake: Lake, tmp_path: Path) -> None:
    await kills(lake, tmp_path, 10, seed=2)


async def test_metrics_show_the_landed_records_and_the_lag(lake: Lake) -> None:
    metrics, stop, begun_s = LakeMetrics(), threading.Event(), time.time()

    def shown(name: str, topic: str = lake.names.requests) -> float | None:
        return metrics.registry.get_sample_value(f"kafka_timers_lake_{name}", {"topic": topic})

    async def until_landed(count: int) -> None:
        while shown("landed_total") != count:
            assert not landing.done()
            await asyncio.sleep(0.1)

    await lake.publish(30)
    landing = asyncio.create_task(
        asyncio.to_thread(land, lake.spark, lake.settings, every_s=0.5, stop=stop, metrics=metrics)
    )
    try:
        async with asyncio.timeout(LIMIT_S):
            await until_landed(30)
            await lake.publish(20)
            await until_landed(50)
    finally:
        stop.set()
        await landing
    assert shown("landing_lag_records") == 0
    assert (shown("batch_seconds") or 0) > 0
    assert begun_s < (shown("position_seconds") or 0) < time.time()
    # Nothing was ever sealed, and that is known.
    assert (shown("landed_total", lake.names.sealed), shown("landing_lag_records", lake.names.sealed)) == (None, 0)


# --- missing things --------------------------------------------------------------------------------------------------


@contextmanager
def away(folder: Path) -> Iterator[None]:
    """Put a file in the place of *folder* for a while."""
    folder.rename(folder.with_name("away"))
    folder.touch()
    yield
    folder.unlink()
    folder.with_name("away").rename(folder)


async def test_landing_goes_on_when_the_lake_is_back_and_reports_records_deleted_meanwhile(lake: Lake) -> None:
    await lake.publish(10)
    await lake.land()
    folder = Path(lake.settings.lake)
    await lake.publish(10)
    with away(folder), pytest.raises(LakeError, match=f"file:{folder} .*: .*[Nn]ot ?[Aa]? ?[Dd]irectory"):
        await lake.land()
    await drop(lake, 0, 7)
    wanted = f"{lake.names.requests} partition 0 was landed up to offset 5 and begins at 7: "
    with pytest.raises(LakeError, match=wanted):
        await lake.land()
    # Without its checkpoint it knows as much.
    shutil.rmtree(folder / "_land")
    with pytest.raises(LakeError, match=wanted):
        await lake.land()
    await lake.land(skip_lost=True)
    await lake.assert_landed(18)
    # A checkpoint without its table would pass over the records that it had landed.
    shutil.rmtree(folder / "requests")
    with pytest.raises(LakeError, match="requests is gone"):
        await lake.land()


async def drop(lake: Lake, partition: int, before: int) -> None:
    """Let the broker forget the requests of a partition below an offset, as retention does."""
    await delete_records(lake.settings.bootstrap, lake.names.requests, partition, before)


async def test_missing_topics_and_a_kafka_that_is_away_are_told(
    spark: SparkSession, bootstrap: str, prefix: str
) -> None:
    settings = LakeSettings(bootstrap=bootstrap, topic_prefix=prefix)
    with pytest.raises(LakeError, match=f"{prefix}timer-request is missing: create it with kafka-timers topics create"):
        await asyncio.to_thread(land_once, spark, settings)
    away = f"127.0.0.1:{free_port()}"
    with pytest.raises(BrokerError, match=f"no Kafka answers at {away}"):
        await asyncio.to_thread(land_once, spark, LakeSettings(bootstrap=away))
