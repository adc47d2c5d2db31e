"""From another system's topic into `timer-request`, on a real broker, written by a client that is not ours."""

import asyncio
import base64
import itertools
import json
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.admin import NewPartitions
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import CorruptRecordException, KafkaTimeoutError, UnknownTopicOrPartitionError
from batches import append_batch, batch_of
from brokers import administering, consuming, delete_group, make_topic, set_topic
from click.testing import CliRunner
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from patience import LIMIT_S

from kafka_timers.adapters import DOORS
from kafka_timers.adapters.commands import Parsed, SourceRecord
from kafka_timers.adapters.lag import adapter_lags
from kafka_timers.adapters.passing import OwnedPartition
from kafka_timers.adapters.place import begin_places
from kafka_timers.adapters.reader import AdapterReader
from kafka_timers.broker import producer as broker_producer
from kafka_timers.broker.bounds import LogBounds
from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.offsets import GroupOffsets
from kafka_timers.broker.topics import create
from kafka_timers.cli.program import program
from kafka_timers.clock import HostClock
from kafka_timers.core.callbacks import Target
from kafka_timers.core.routing import partition_of
from kafka_timers.core.wire import Future, Topics
from kafka_timers.processes.worker import door_settings
from kafka_timers.runtime.metrics import WorkerMetrics
from kafka_timers.runtime.outlet import Outlet
from kafka_timers.runtime.priority import PriorityGate
from kafka_timers.settings import WorkerSettings

PARTITIONS = 4
LATER = int(time.time()) + 100_000
ALL = "read_uncommitted"

Headers = dict[str, bytes]


class Harness:
    """The topics of one test, and readers on them."""

    def __init__(self, bootstrap: str, prefix: str) -> None:
        self.bootstrap, self.prefix = bootstrap, prefix
        self.topics = Topics.of(prefix)
        self.metrics = WorkerMetrics()

    def reader(self, name: str = "etf1", topic: str = "theirs", **more: object) -> AdapterReader:
        """Return a reader that is not running."""
        settings = WorkerSettings(
            bootstrap=self.bootstrap, topic_prefix=self.prefix, group=self.prefix + "g", session_timeout_s=2.0, **more
        )
        outlet = Outlet(
            self.topics.requests, Target(PARTITIONS, 1_048_588), self.topics.rejected, Target(PARTITIONS, 1_048_588)
        )
        return AdapterReader(
            door_settings(settings), name, self.prefix + topic, outlet, PriorityGate(), self.metrics, HostClock()
        )

    @asynccontextmanager
    async def open(self, name: str = "etf1", topic: str = "theirs", **more: object) -> AsyncIterator[AdapterReader]:
        """Have a reader running."""
        async with self.run(self.reader(name, topic, **more)) as reader:
            yield reader

    @asynccontextmanager
    async def run(self, reader: AdapterReader) -> AsyncIterator[AdapterReader]:
        """Have *reader* running."""
        task = asyncio.create_task(reader.run())
        try:
            yield reader
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def write(
        self, records: Sequence[tuple[bytes | None, bytes | None, Headers]], topic: str = "theirs", **at: int
    ) -> None:
        """Write records as another system's users do."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 5})
        for key, value, headers in records:
            producer.produce(self.prefix + topic, value, key, headers=list(headers.items()), **at)
            producer.poll(0)
        assert producer.flush(LIMIT_S) == 0

    async def read(
        self, topic: str, count: int, quiet_s: float = 0.7, partitions: int = PARTITIONS
    ) -> list[ConsumerRecord]:
        """Return the committed records of *topic*, once *count* are there and nothing more comes for a moment."""
        records: list[ConsumerRecord] = []
        async with consuming(Kafka(self.bootstrap), auto_offset_reset="earliest", fetch_max_wait_ms=50) as consumer:
            where = [TopicPartition(topic, number) for number in range(partitions)]
            consumer.assign(where)
            await consumer.seek_to_beginning(*where)
            end_s = time.monotonic() + LIMIT_S
            while time.monotonic() < end_s:
                came = await consumer.getmany(timeout_ms=int((quiet_s if len(records) >= count else 0.2) * 1000))
                if not came and len(records) >= count:
                    break
                records += itertools.chain.from_iterable(came.values())
        return records

    async def requests(self, count: int) -> list[ConsumerRecord]:
        return await self.read(self.topics.requests, count)

    async def committed(self, name: str = "etf1", topic: str = "theirs") -> dict[int, int]:
        """Return the offsets of an adapter's group by partition."""
        async with administering(self.bootstrap) as admin:
            offsets = await admin.list_consumer_group_offsets(f"{self.prefix}g.door.{name}")
        return {at.partition: offset.offset for at, offset in offsets.items() if at.topic == self.prefix + topic}

    async def lags(self) -> list[tuple[str, str, int]]:
        """Return how far the adapters of the group are behind."""
        async with Cluster.open(Kafka(self.bootstrap)) as cluster:
            return await adapter_lags(cluster, self.prefix + "g")


@pytest.fixture
async def harness(bootstrap: str, prefix: str) -> Harness:
    """The service's topics, and `theirs` with two partitions."""
    await create(Kafka(bootstrap), prefix, PARTITIONS)
    await make_topic(bootstrap, prefix + "theirs", 2)
    return Harness(bootstrap, prefix)


def schedule(second: int = LATER) -> Headers:
    return {"scheduler-epoch": b"%d" % second, "scheduler-target-topic": b"t", "scheduler-target-key": b"k"}


GOOD: dict[str, tuple[bytes, bytes, Headers]] = {
    "etf1": (b"k", b"v", schedule()),
    "skyuk": (b"k", b'{"time": %d000, "topic": "t", "key": "aw=="}' % LATER, {}),
    "countdown": (b"k", b'{"topic": "t", "message": "m", "countdown": 100000}', {"CALLER_SERVICE": b"c"}),
    "headers": (b"k", b"v", {"timer-expiry": b"%d" % LATER, "timer-callback-topic": b"t"}),
    "karafka": (
        b"k",
        b"v",
        {
            "schedule_schema_version": b"1.0.0",
            "schedule_source_type": b"schedule",
            "schedule_target_epoch": b"%d" % LATER,
            "schedule_target_topic": b"t",
        },
    ),
    "timebridge": (b"k", b"v", {"X-Timebridge-When": b"2500-01-01T00:00:00Z", "X-Timebridge-Where": b"t"}),
}


async def until(what: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
    async with asyncio.timeout(limit_s):
        while not what():  # noqa: ASYNC110  # a metric has to be asked
            await asyncio.sleep(0.02)


def parsed(records: Sequence[ConsumerRecord]) -> list[tuple[bytes, Future]]:
    return [(record.key, Future.FromString(record.value)) for record in records]


async def test_each_record_is_one_request_in_the_partition_of_its_id(harness: Harness) -> None:
    harness.write([(b"s%d" % n, b"v%d" % n, schedule(LATER + n)) for n in range(3_000)])
    async with harness.open():
        await harness.requests(3_000)
        harness.write([(b"s7", None, {}), (b"s8", b"new", schedule())])
        # Those of one id come in their order, in any order of the partitions.
        records = await harness.requests(3_002)
    by_id = {future.timerId: (key, future.callBack) for key, future in parsed(records) if not future.cancel}
    wanted = {f"etf1:{harness.prefix}theirs:s{n}": (b"%d" % (LATER + n), b"v%d" % n) for n in range(3_000)}
    wanted[f"etf1:{harness.prefix}theirs:s8"] = (b"%d" % LATER, b"new")
    assert by_id == wanted
    assert len(records) == 3_002
    for record in records:
        future = Future.FromString(record.value)
        assert record.partition == partition_of(future.timerId, PARTITIONS)
    [(key, cancel)] = [each for each in parsed(records) if each[1].cancel]
    assert (key.decode(), cancel.timerId) == (cancel.timerId, f"etf1:{harness.prefix}theirs:s7")


async def test_a_door_goes_by_the_limits_that_the_topics_of_the_service_have_by_now(harness: Harness) -> None:
    """The limits that were read at the start are higher."""
    for topic in (harness.topics.requests, harness.topics.rejected):
        await set_topic(harness.bootstrap, topic, {"max.message.bytes": "3000"})
    harness.write([(b"s%d" % n, b"v" * 1_000, schedule()) for n in range(10)] + [(b"s", b"v" * 5_000, schedule())])
    async with harness.open():
        assert len(await harness.requests(10)) == 10
        [record] = await harness.read(harness.topics.rejected, 1)
    assert dict(record.headers)["timer-rejected-reason"] == b"too-large"


async def test_a_refused_record_goes_to_timer_rejected_with_all_its_parts(harness: Harness) -> None:
    bad: list[tuple[bytes | None, bytes | None, Headers]] = [
        (None, b"a", schedule()),
        (b"b", b"b", {"other": b"1", "timer-rejected-offset": b"77"}),
        (b"\xff", b"c", schedule()),
        (b"d", b"d", schedule(1_893_456_000_000)),
        (b"e", b"x" * 999_000, schedule() | {"large": b"x" * 1_000_000}),
    ]
    async with harness.open():
        for record in bad[:4]:
            harness.write([record], partition=0)
        harness.write([(b"good", b"v", schedule())])
        records = await harness.read(harness.topics.rejected, 4)
        assert len(await harness.requests(1)) == 1
    reasons = ("key-missing", "expiry-missing", "not-utf8", "expiry-in-milliseconds")
    for offset, (record, given, reason) in enumerate(zip(records, bad, reasons, strict=False)):
        assert (record.key, record.value) == given[:2]
        assert list(record.headers) == [
            ("timer-rejected-reason", reason.encode()),
            ("timer-rejected-topic", harness.prefix.encode() + b"theirs"),
            ("timer-rejected-partition", b"0"),
            ("timer-rejected-offset", b"%d" % offset),
            ("timer-rejected-door", b"etf1"),
            *[header for header in given[2].items() if header[0] != "timer-rejected-offset"],
        ]
    text = {
        (sample.labels["door"], sample.labels["reason"]): sample.value
        for family in harness.metrics.registry.collect()
        if family.name == "kafka_timers_door_rejected"
        for sample in family.samples
        if sample.name.endswith("_total")
    }
    assert text == {("etf1", reason): 1 for reason in reasons}


@pytest.mark.parametrize("name", DOORS)
async def test_a_header_name_that_is_not_text_stops_no_other(harness: Harness, name: str) -> None:
    """To clients in C, Go and Rust such a name is any bytes; no callback can have it, so its record is refused."""
    key, value, headers = GOOD[name]
    odd = batch_of([(key, value)] * 3, odd=(1,), headers=[*headers.items()])
    await append_batch(harness.bootstrap, harness.prefix + "theirs", 0, odd)
    for number in range(2):
        harness.write([(key, value, headers)] * 5, partition=number)
    # Of a record for `skyuk` no header travels on.
    refused = 0 if name == "skyuk" else 1
    async with harness.open(name):
        assert len(await harness.requests(13 - refused)) == 13 - refused
        rejected = await harness.read(harness.topics.rejected, refused)
        await until(lambda: value_of(harness, "kafka_timers_door_lag_records") == 0)
    assert value_of(harness, "kafka_timers_door_failures_total") == 0
    assert len(rejected) == refused
    for record in rejected:
        told = dict(record.headers)
        assert (record.key, record.value) == (key, value)
        assert (told["timer-rejected-reason"], told["timer-rejected-offset"]) == (b"not-utf8", b"1")
        assert told[r"\xff\xfe\xfd\xfc"] == b"header"


async def test_a_record_on_which_an_adapter_fails_is_refused_and_told(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    harness.write([(b"a", b"v", schedule()), (b"b", b"v", schedule()), (b"c", b"v", schedule())], partition=0)
    reader = harness.reader()
    parse = reader._parse_record

    def fails(record: SourceRecord) -> Parsed:
        if record.key == b"b":
            raise ZeroDivisionError
        return parse(record)

    reader._parse_record = fails
    async with harness.run(reader):
        # Their ids may lie in two partitions, which are read in any order.
        assert sorted(future.tombstoneKey for _, future in parsed(await harness.requests(2))) == ["a", "c"]
        [record] = await harness.read(harness.topics.rejected, 1)
    assert dict(record.headers)["timer-rejected-reason"] == b"unreadable"
    assert f"{harness.prefix}theirs partition 0 offset 1" in caplog.text


async def test_a_partition_that_fails_stops_no_other_and_is_counted_as_unread(harness: Harness) -> None:
    """Here its reader is told that its records are damaged, as by a broker's broken disk."""
    reader = harness.reader()
    follow, broken = reader._follow, asyncio.Event()

    async def fails(cluster: Cluster, at: TopicPartition, owned: OwnedPartition) -> None:
        if at.partition == 0 and not broken.is_set():
            raise CorruptRecordException("damaged")
        await follow(cluster, at, owned)

    reader._follow = fails
    harness.write([(b"s%d" % n, b"v", schedule()) for n in range(7)], partition=0)
    async with harness.run(reader):
        await until(lambda: value_of(harness, "kafka_timers_door_lag_records") == 7)
        for n in range(3):
            # In the middle of the other one's tries.
            harness.write([(b"t%d" % n, b"v", schedule())], partition=1)
            assert len(await harness.requests(n + 1)) == n + 1
        await until(lambda: value_of(harness, "kafka_timers_door_failures_total") >= 2)
        assert value_of(harness, "kafka_timers_door_lag_records") == 7
        broken.set()
        assert len(await harness.requests(10)) == 10
        await until(lambda: value_of(harness, "kafka_timers_door_lag_records") == 0)


async def test_a_record_too_large_for_timer_request_stops_no_other(harness: Harness) -> None:
    await make_topic(harness.bootstrap, harness.prefix + "large", 1, {"max.message.bytes": "4000000"})
    producer = Producer({"bootstrap.servers": harness.bootstrap, "message.max.bytes": 4_000_000})
    topic = harness.prefix + "large"
    producer.produce(topic, b"x" * 2_000_000, b"value", headers=list(schedule().items()))
    producer.produce(topic, b"v", b"header", headers=[*schedule().items(), ("x", b"x" * 2_000_000)])
    producer.produce(topic, b"x" * 1_040_000, b"fits", headers=list(schedule().items()))
    producer.produce(topic, b"v", b"good", headers=list(schedule().items()))
    assert producer.flush(LIMIT_S) == 0
    async with harness.open(topic="large"):
        assert {future.tombstoneKey for _, future in parsed(await harness.requests(2))} == {"fits", "good"}
        rejected = await harness.read(harness.topics.rejected, 2)
    assert [dict(record.headers)["timer-rejected-reason"] for record in rejected] == [b"too-large"] * 2
    assert rejected[0].value.startswith(b"x" * 1_000_000)
    assert rejected[1].value == b"v"


async def test_a_topic_is_taken_over_as_a_whole(harness: Harness) -> None:
    """
    Schedules that the other scheduler has fired or deleted do not fire again although they are past due: the request
    for it would fire before the adapter has come to the tombstone behind. So only the latest version is passed on.
    """
    past = int(time.time()) - 1_000
    old = [(b"fired-%d" % n, b"v", schedule(past)) for n in range(4_000)]
    old += [(b"missed", b"v1", schedule(past - 5)), (b"moved", b"v1", schedule(past)), (b"pending", b"v", schedule())]
    harness.write(old)
    harness.write([(b"n%d" % n, b"v", schedule()) for n in range(12_000)])
    # As the other scheduler leaves them.
    tombstone = schedule(past) | {"scheduler-key": b"k", "scheduler-topic": b"t"}
    harness.write([(b"fired-%d" % n, None, tombstone) for n in range(4_000)])
    harness.write([(b"moved", b"v2", schedule()), (b"missed", b"v2", schedule(past))])
    async with harness.open():
        requests = parsed(await harness.requests(12_003 + 4_000))
        await until(lambda: value_of(harness, "kafka_timers_door_lag_records") == 0)
    made = Counter(future.tombstoneKey for _, future in requests if not future.cancel)
    assert not [key for key in made if key.startswith("fired")]
    assert {key: made[key] for key in ("missed", "moved", "pending")} == {"missed": 1, "moved": 1, "pending": 1}
    assert sum(made.values()) == 12_003
    assert {future.callBack for _, future in requests if future.tombstoneKey in ("missed", "moved")} == {b"v2"}
    assert sum(await committed_counts(harness)) == 20_005


async def committed_counts(harness: Harness) -> list[int]:
    return list((await harness.committed()).values())


def value_of(harness: Harness, name: str) -> float | None:
    """Return a metric's sum over its labels."""
    samples = [sample for family in harness.metrics.registry.collect() for sample in family.samples]
    return sum([sample.value for sample in samples if sample.name == name])


async def test_our_own_tombstones_are_passed_over(harness: Harness) -> None:
    harness.write([(b"k", None, {"timer-request": b"0:1"}), (b"k2", b"v", schedule())], partition=0)
    async with harness.open():
        [(_, future)] = parsed(await harness.requests(1))
    assert future.tombstoneKey == "k2"
    assert await harness.committed() == {0: 2}


async def test_status_tells_how_far_each_adapter_is_behind(harness: Harness) -> None:
    """Also of a partition in which nothing was read yet, and after a marker of a transaction, which is no record."""
    assert await harness.lags() == []
    producer = Producer({"bootstrap.servers": harness.bootstrap, "transactional.id": harness.prefix + "theirs"})
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce(harness.prefix + "theirs", b"v", b"k", headers=list(schedule().items()), partition=0)
    producer.commit_transaction(10)
    async with harness.open():
        assert len(await harness.requests(1)) == 1
        async with asyncio.timeout(LIMIT_S):
            while await harness.committed() != {0: 2}:  # noqa: ASYNC110  # a broker has to be asked
                await asyncio.sleep(0.05)
    read = ("etf1", harness.prefix + "theirs", 0)
    assert await harness.lags() == [read]
    harness.write([(b"k", b"v", schedule())] * 3, partition=0)
    harness.write([(b"k", b"v", schedule())] * 4, partition=1)
    assert await harness.lags() == [("etf1", harness.prefix + "theirs", 7)]
    command = [
        "status",
        "--bootstrap",
        harness.bootstrap,
        "--topic-prefix",
        harness.prefix,
        "--group",
        harness.prefix + "g",
    ]
    told = await asyncio.to_thread(CliRunner().invoke, program, command)
    assert f"door etf1: 7 records of {harness.prefix}theirs not read yet" in told.output
    assert f"door etf1: no worker reads {harness.prefix}theirs, and 7 records of it wait" in told.output
    assert told.exit_code == 1
    told = await asyncio.to_thread(CliRunner().invoke, program, [*command, "--json"])
    door = {"door": "etf1", "topic": harness.prefix + "theirs", "lag": 7, "readers": 0}
    assert json.loads(told.output)["doors"] == [door]


async def test_a_schedule_past_its_grace_is_rejected(harness: Harness) -> None:
    now = int(time.time())
    harness.write([(b"old", b"v", schedule(now - 1_000)), (b"late", b"v", schedule(now - 100))])
    async with harness.open(door_grace_s=500):
        asked = [future for _, future in parsed(await harness.requests(2))]
        [record] = await harness.read(harness.topics.rejected, 1)
    assert [future.tombstoneKey for future in asked if not future.cancel] == ["late"]
    # Had there been a version before it, that would not fire either.
    assert [future.timerId for future in asked if future.cancel] == [f"etf1:{harness.prefix}theirs:old"]
    assert dict(record.headers)["timer-rejected-reason"] == b"past-grace"


READER = (
    "import asyncio, sys; from test_adapter_reader import Harness; asyncio.run(Harness(*sys.argv[1:]).reader().run())"
)


async def test_a_takeover_in_mid_batch_neither_loses_nor_doubles(harness: Harness) -> None:
    """Readers are killed one after the other, each while a transaction of its own is open."""
    count = 40_000
    harness.write([(b"s%d" % n, b"v", schedule()) for n in range(count)])
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    async with (
        consuming(Kafka(harness.bootstrap)) as stable,
        consuming(Kafka(harness.bootstrap), isolation_level=ALL) as everything,
    ):
        where = [TopicPartition(harness.topics.requests, number) for number in range(PARTITIONS)]

        async def end_of(consumer: AIOKafkaConsumer) -> int:
            return sum((await consumer.end_offsets(where)).values())

        for _ in range(3):
            command = [sys.executable, "-c", READER, harness.bootstrap, harness.prefix]
            process = await asyncio.create_subprocess_exec(*command, env=env)
            async with asyncio.timeout(LIMIT_S):
                while await end_of(everything) <= await end_of(stable):  # noqa: ASYNC110  # a broker has to be asked
                    await asyncio.sleep(0)
            process.kill()
            await process.wait()
            assert sum((await harness.committed()).values()) < count
    async with harness.open():
        records = await harness.requests(count)
    assert len(records) == count
    assert len({future.tombstoneKey for _, future in parsed(records)}) == count
    assert sum(await committed_counts(harness)) == count


async def test_two_readers_share_the_partitions_and_one_takes_them_all_when_the_other_ends(harness: Harness) -> None:
    written = 0

    def write() -> None:
        nonlocal written
        harness.write([(b"s%d" % n, b"v", schedule()) for n in range(written, written + 1_000)])
        written += 1_000

    async with harness.open() as first:
        await until(lambda: len(first._sharing._serving) == 2)
        write()
        async with harness.open() as second:
            write()
            await until(lambda: len(first._sharing._serving) == 1 and len(second._sharing._serving) == 1)
            write()
        write()
        await until(lambda: len(first._sharing._serving) == 2)
        write()
        records = await harness.requests(written)
    assert Counter(future.tombstoneKey for _, future in parsed(records)) == {f"s{n}": 1 for n in range(written)}
    assert value_of(harness, "kafka_timers_door_failures_total") == 0


async def test_one_that_was_shut_out_makes_nothing_visible_and_starts_anew(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with harness.open():
        await until(lambda: caplog.text.count("from offset 0") == 2)
        for at in range(2):
            # Another worker takes over while this one is paused.
            rival = harness.reader()
            async with Cluster.open(Kafka(harness.bootstrap)) as cluster:
                await cluster.look_up([harness.prefix + "theirs"])
                owned = await rival._acquire(cluster, TopicPartition(harness.prefix + "theirs", at))
                await owned.producer.stop()
        harness.write([(b"s%d" % n, b"v", schedule()) for n in range(1_000)])
        assert len(await harness.requests(1_000)) == 1_000
        assert value_of(harness, "kafka_timers_door_failures_total") >= 1


async def test_a_missing_topic_is_told_and_read_once_it_is_there(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    async with harness.open(topic="missing"):
        await until(lambda: f"door etf1: topic {harness.prefix}missing does not exist: create it" in caplog.text)
        await make_topic(harness.bootstrap, harness.prefix + "missing")
        harness.write([(b"k", b"v", schedule())], topic="missing")
        assert len(await harness.requests(1)) == 1


async def test_topics_of_one_adapter_are_read_side_by_side(harness: Harness) -> None:
    """They share a consumer group, each with its own part of it."""
    await make_topic(harness.bootstrap, harness.prefix + "more", 3)
    async with harness.open() as one, harness.open(topic="more") as other:
        await until(lambda: len(one._sharing._serving) == 2 and len(other._sharing._serving) == 3)
        harness.write([(b"a%d" % n, b"v", schedule()) for n in range(100)])
        harness.write([(b"b%d" % n, b"v", schedule()) for n in range(100)], topic="more")
        assert len(await harness.requests(200)) == 200


async def test_callers_of_countdowns_are_counted_and_limited(harness: Harness) -> None:
    countdown = b'{"topic": "t", "message": "m", "countdown": 60}'
    producer, second = Producer({"bootstrap.servers": harness.bootstrap}), int(time.time())
    for caller in [b"a"] * 5 + [b"b"] * 2:
        headers = [("CALLER_SERVICE", caller)]
        producer.produce(harness.prefix + "theirs", countdown, headers=headers, partition=0, timestamp=second * 1000)
    assert producer.flush(LIMIT_S) == 0
    async with harness.open("countdown", door_caller_limit=3):
        requests = parsed(await harness.requests(5))
        assert len(await harness.read(harness.topics.rejected, 2)) == 2
    assert {key for key, _ in requests} == {b"%d" % (second + 60)}
    counted = {
        sample.labels["caller"]: sample.value
        for family in harness.metrics.registry.collect()
        for sample in family.samples
        if sample.name == "kafka_timers_door_callers_total"
    }
    assert counted == {"a": 3, "b": 2}


async def test_partitions_that_are_added_are_read_within_ten_seconds(harness: Harness) -> None:
    topic = harness.prefix + "theirs"
    async with harness.open():
        harness.write([(b"before", b"v", schedule())], partition=0)
        await harness.requests(1)
        async with administering(harness.bootstrap) as admin:
            await admin.create_partitions({topic: NewPartitions(4)})
        began_s = time.monotonic()
        harness.write([(b"%d" % number, b"v", schedule()) for number in range(2)], partition=3)
        found = parsed(await harness.requests(3))
        # And some more on a busy machine; Kafka's own clients look every five minutes.
        assert time.monotonic() - began_s < 100
    names = {future.timerId for _, future in found}
    assert names == {f"etf1:{topic}:{name}" for name in ("before", "0", "1")}


async def test_a_topic_that_is_deleted_and_made_anew_is_read_from_its_beginning(harness: Harness) -> None:
    topic = harness.prefix + "theirs"
    async with harness.open():
        harness.write([(b"before-%d" % number, b"v", schedule()) for number in range(20)])
        await harness.requests(20)
        async with administering(harness.bootstrap) as admin:
            await admin.delete_topics([topic])
        await asyncio.to_thread(_until_gone, harness.bootstrap, topic)
        await make_topic(harness.bootstrap, topic, 3)
        harness.write([(b"after-%d" % number, b"v", schedule()) for number in range(20)])
        found = parsed(await harness.requests(40))
    names = [future.timerId for _, future in found]
    assert sorted(names) == sorted(f"etf1:{topic}:{name}-{n}" for name in ("before", "after") for n in range(20))
    await until(lambda: value_of(harness, "kafka_timers_door_lag_records") == 0)


async def make_anew(harness: Harness, cluster: Cluster, partitions: int) -> None:
    """Delete the other system's topic and make it anew, and have *cluster* know that."""
    topic = harness.prefix + "theirs"
    before = cluster.topic_id(topic)
    async with administering(harness.bootstrap) as admin:
        await admin.delete_topics([topic])
    await asyncio.to_thread(_until_gone, harness.bootstrap, topic)
    await make_topic(harness.bootstrap, topic, partitions)
    async with asyncio.timeout(LIMIT_S):
        while cluster.topic_id(topic) in (before, b""):
            await cluster.refresh()


async def test_offsets_of_a_topic_are_committed_for_that_topic_alone(harness: Harness) -> None:
    """
    The topic is made anew while a transaction is under way: its offset would have the first records of the new one be
    passed over.
    """
    topic, group = harness.prefix + "theirs", harness.prefix + "g"
    async with Cluster.open(Kafka(harness.bootstrap)) as cluster:
        await cluster.look_up([topic])
        writer = broker_producer.Producer(cluster, group, 10.0, 1_000, "writer", group)
        await writer.start()
        assert await writer.committed(topic, 0) is None
        writer.begin()
        await make_anew(harness, cluster, 1)
        # It has fewer partitions now.
        assert cluster.partitions(topic) == [0]
        await writer.send_offsets(topic, {0: 7}, 3)
        await writer.commit()
        assert await writer.committed(topic, 0) == (7, 3)
        await writer.stop()
        assert await GroupOffsets(cluster, group, 10.0, "later").committed(topic, 0) is None
    async with Cluster.open(Kafka(harness.bootstrap)) as ignorant:
        # As when a broker tells an error in place of the id: the committed offset may well be of this topic.
        with pytest.raises(UnknownTopicOrPartitionError, match=f"the id of topic {topic} is not known") as caught:
            await GroupOffsets(ignorant, group, 10.0, "other").committed(topic, 0)
    assert caught.value.retriable


async def test_a_door_reads_on_where_a_log_ends_that_has_lost_records(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    """Ten records were read of it under its leader, which has three."""
    topic, group = harness.prefix + "theirs", harness.prefix + "g.door.etf1"
    harness.write([(b"old%d" % n, b"v", schedule()) for n in range(3)], partition=0)
    async with Cluster.open(Kafka(harness.bootstrap)) as cluster:
        await cluster.look_up([topic])
        writer = broker_producer.Producer(cluster, group, 10.0, 1_000, "writer", group)
        await writer.start()
        writer.begin()
        await writer.send_offsets(topic, {0: 10}, 0)
        await writer.commit()
        await writer.stop()
    async with harness.open():
        await until(lambda: "has lost its records from offset 3 on" in caplog.text)
        harness.write([(b"new%d" % n, b"v", schedule()) for n in range(2)], partition=0)
        records = await harness.requests(2)
    assert {future.timerId.rsplit(":")[-1] for _, future in parsed(records)} == {"new0", "new1"}


async def test_records_read_while_a_topic_was_recreated_are_not_passed_on(harness: Harness) -> None:
    """It is of either, and the new one is read from its beginning."""
    reader = harness.reader()
    follow, passed_on, made = reader._follow, reader._pass_on, asyncio.Event()
    positions: list[int] = []

    async def counts(at: TopicPartition, owned: OwnedPartition, records: Sequence[SourceRecord], position: int) -> None:
        positions.append(position)
        await passed_on(at, owned, records, position)

    async def follows(cluster: Cluster, at: TopicPartition, owned: OwnedPartition) -> None:
        take = owned.source.take

        async def takes(count_max: int) -> list[SourceRecord]:
            records = await take(count_max)
            if records and not made.is_set():
                made.set()
                await make_anew(harness, cluster, 1)
                harness.write([(b"after", b"v", schedule())] * 3, partition=0)
            return records

        owned.source.take = takes  # type: ignore[method-assign]
        await follow(cluster, at, owned)

    reader._follow, reader._pass_on = follows, counts
    harness.write([(b"before", b"v", schedule())] * 2, partition=0)
    async with harness.run(reader):
        found = parsed(await harness.requests(3))
    assert [future.tombstoneKey for _, future in found] == ["after"] * 3
    assert positions == [3]


def _until_gone(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    while topic in admin.list_topics(timeout=LIMIT_S).topics:
        time.sleep(0.05)


# --- etf1's tombstones, in any partition -----------------------------------------------------------------------------


def fired_by_etf1(written_s: int) -> Headers:
    """Headers of the tombstone that etf1 writes for a schedule that was written in that second."""
    return schedule() | {"scheduler-timestamp": b"%d" % written_s, "scheduler-key": b"k", "scheduler-topic": b"t"}


async def test_a_schedule_that_etf1_has_fired_does_not_fire_again_wherever_its_tombstone_lies(harness: Harness) -> None:
    """Its own producer hashes otherwise than Java's or JavaScript's, so most of them lie in the other partition."""
    now_s = int(time.time())
    past, written = now_s - 3_000, (now_s - 4_000) * 1000

    def write(key: str, value: bytes | None, headers: Headers, partition: int, at_ms: int) -> None:
        harness.write([(key.encode(), value, headers)], partition=partition, timestamp=at_ms)

    for number in range(10):
        write(f"fired-{number}", b"v", schedule(past), 0, written)
        write(f"fired-{number}", None, fired_by_etf1(written // 1000), number % 2, (past + 1) * 1000)
    # It was fired, and then made anew.
    write("anew", b"old", schedule(past), 0, written)
    write("anew", None, fired_by_etf1(written // 1000), 1, (past + 1) * 1000)
    write("anew", b"new", schedule(past + 10), 0, written + 5_000)
    # As users write them with another partitioner.
    write("deleted", b"v", schedule(past), 0, written)
    write("deleted", None, {}, 1, written + 1_000)
    write("moved", b"old", schedule(past), 0, written)
    write("moved", b"new", schedule(past + 5), 1, written + 1_000)
    write("moved back", b"new", schedule(past + 5), 0, written + 1_000)
    write("moved back", b"old", schedule(past), 1, written)
    # In the gap: nobody has fired it.
    write("missed", b"v", schedule(past), 1, written)
    write("pending", b"v", schedule(), 0, written)
    async with harness.open():
        await until(lambda: value_of(harness, "kafka_timers_door_records_total") == 31 + 6)
        found = parsed(await harness.requests(5))
        await until(lambda: value_of(harness, "kafka_timers_door_lag_records") == 0)
    asked = [(future.tombstoneKey, future.callBack) for _, future in found if not future.cancel]
    assert sorted(asked) == [
        ("anew", b"new"),
        ("missed", b"v"),
        ("moved", b"new"),
        ("moved back", b"new"),
        ("pending", b"v"),
    ]
    # A schedule that a tombstone elsewhere has ended gets one here: etf1 then does not fire it when it reads all anew.
    own = [each for each in await harness.read(harness.prefix + "theirs", 37, partitions=2) if each.value is None]
    over = {each.key: (each.partition, each.headers) for each in own if "timer-over" in dict(each.headers)}
    assert over.keys() == {b"deleted", *[b"fired-%d" % number for number in range(1, 10, 2)]}
    assert {partition for partition, _ in over.values()} == {0}


async def test_a_version_that_was_over_elsewhere_stays_over_and_a_later_one_fires(harness: Harness) -> None:
    """By our own tombstone, when the door begins anew and compaction has taken that of etf1."""
    past = int(time.time()) - 1_000
    harness.write([(b"cancelled", b"v1", schedule(past)), (b"again", b"v1", schedule(past))], partition=0)
    harness.write([(b"again", b"v2", schedule(past + 5))], partition=0)
    over: list[Headers] = [{"timer-over": b"0"}, {"timer-over": b"1"}]
    harness.write([(b"cancelled", None, over[0]), (b"again", None, over[1])], partition=0)
    harness.write([(b"other", b"v", schedule(past))], partition=0)
    async with harness.open():
        found = parsed(await harness.requests(2))
    assert sorted((future.tombstoneKey, future.callBack) for _, future in found) == [("again", b"v2"), ("other", b"v")]


def asked(records: Sequence[ConsumerRecord]) -> list[str]:
    """Return the keys of the schedules that *records* ask for, in their order."""
    return [future.tombstoneKey for _, future in parsed(records) if not future.cancel]


async def test_a_partition_that_cannot_be_read_holds_up_the_others_when_etf1_leaves_alone(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It may name schedules that etf1 has fired. Later, when workers come and go, nothing but an alarm tells of it."""
    past, since, is_read = int(time.time()) - 1_000, LogBounds.since, asyncio.Event()

    async def since_if_it_has_a_leader(self: LogBounds, number: int, moment_ms: int) -> int | None:
        if number == 1 and not is_read.is_set():
            raise KafkaTimeoutError("partition 1 has no leader")
        return await since(self, number, moment_ms)

    monkeypatch.setattr(LogBounds, "since", since_if_it_has_a_leader)
    harness.write([(b"fired", b"v", schedule(past)), (b"missed", b"v", schedule(past))], partition=0)
    harness.write([(b"fired", None, fired_by_etf1(int(time.time())))], partition=1)
    async with harness.open():
        await until(lambda: value_of(harness, "kafka_timers_door_failures_total") > 0)
        [(_, cancel)] = parsed(await harness.requests(1))
        assert cancel.cancel, "it lies in the partition that cannot be read by others"
        assert "the records in partitions 1 cannot be read, and may show that schedules of partition 0" in caplog.text
        is_read.set()
        assert asked(await harness.requests(2)) == ["missed"]
        await until(lambda: value_of(harness, "kafka_timers_door_lag_records") == 0)
    is_read.clear()
    harness.write([(b"later", b"v", schedule(past))], partition=0)
    failures = value_of(harness, "kafka_timers_door_failures_total")
    async with harness.open():
        assert asked(await harness.requests(3)) == ["missed", "later"]
    assert value_of(harness, "kafka_timers_door_unread_total") == 1
    assert value_of(harness, "kafka_timers_door_failures_total") == failures
    assert "schedules of partition 0 that they end fire all the same" in caplog.text


async def test_a_schedule_that_etf1_would_take_off_its_topic_goes_and_ends_the_one_before(harness: Harness) -> None:
    topic, day = harness.prefix + "theirs", 86_400
    async with harness.open(door_grace_s=day):
        harness.write([(b"moved", b"v1", schedule())], partition=0)
        await harness.requests(1)
        harness.write([(b"moved", b"v2", schedule(LATER - 30 * day))], partition=0)
        harness.write([(b"no topic", b"v", {"scheduler-epoch": b"%d" % LATER})], partition=1)
        harness.write([(b"\xff", b"v", schedule())], partition=1)
        rejected = await harness.read(harness.topics.rejected, 3)
        requests = parsed(await harness.requests(2))
        await until(lambda: value_of(harness, "kafka_timers_door_lag_records") == 0)
        # Our own tombstones are passed over.
        assert len(await harness.requests(2)) == 2
        there = await harness.read(topic, 6, partitions=2)
    assert {record.key for record in rejected} == {b"moved", b"no topic", b"\xff"}
    assert [(future.timerId, future.cancel) for _, future in requests] == [
        (f"etf1:{topic}:moved", False),
        (f"etf1:{topic}:moved", True),
    ]
    assert {record.key: (record.partition, dict(record.headers)) for record in there if record.value is None} == {
        b"moved": (0, {"timer-rejected-reason": b"past-grace"}),
        b"no topic": (1, {"timer-rejected-reason": b"topic-missing"}),
    }


def tombstones(records: Sequence[ConsumerRecord]) -> list[bytes]:
    return sorted(record.key for record in records if record.value is None)


async def test_a_refused_schedule_does_not_take_a_later_version_with_it(harness: Harness) -> None:
    """On a compacted topic its tombstone would lie behind that. Here both are in one batch, or far from each other."""
    topic, no_epoch = harness.prefix + "theirs", {"scheduler-target-topic": b"t"}
    harness.write([(b"far", b"v1", no_epoch), (b"alone", b"v1", no_epoch)], partition=0)
    harness.write([(b"s%d" % number, b"v", schedule()) for number in range(6_000)], partition=0)
    harness.write([(b"far", b"v2", schedule())], partition=0)
    async with harness.open():
        await harness.requests(6_001)
        harness.write([(b"near", b"v1", no_epoch), (b"near", b"v2", schedule())], partition=0)
        await harness.requests(6_002)
        assert {record.key for record in await harness.read(harness.topics.rejected, 3)} == {b"far", b"alone", b"near"}
        there = await harness.read(topic, 6_006, partitions=2)
    assert tombstones(there) == [b"alone"]


async def test_a_schedule_topic_that_takes_no_tombstones_holds_nothing_up(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    """Its limit is less than a tombstone's size here; rights that lack are told in the same way."""
    topic, no_epoch = harness.prefix + "small", {"scheduler-target-topic": b"t"}
    await make_topic(harness.bootstrap, topic, 1)
    harness.write([(b"bad-%d" % number, b"v", no_epoch) for number in range(3)], topic="small")
    harness.write([(b"good", b"v", schedule())], topic="small")
    await limit(harness, topic, 80)
    async with harness.open(topic="small"):
        assert [future.tombstoneKey for _, future in parsed(await harness.requests(1))] == ["good"]
        assert len(await harness.read(harness.topics.rejected, 3)) == 3
        await limit(harness, topic, 1_000_000)
        harness.write([(b"bad-3", b"v", no_epoch), (b"better", b"v", schedule())], topic="small")
        assert len(await harness.requests(2)) == 2
        assert len(await harness.read(harness.topics.rejected, 4)) == 4
    assert value_of(harness, "kafka_timers_door_failures_total") == 0
    [told] = [each.getMessage() for each in caplog.records if "takes no tombstones" in each.getMessage()]
    assert told.startswith(f"door etf1={topic}: {topic} partition 0 takes no tombstones (")
    assert "TOO_LARGE" in told
    assert "kafka-timers acls" in told
    # Nothing that was refused before is tried again.
    async with harness.open(topic="small"):
        harness.write([(b"bad-4", b"v", no_epoch)], topic="small")
        there = await harness.read(topic, 7, partitions=1)
    assert tombstones(there) == [b"bad-4"]


async def limit(harness: Harness, topic: str, bytes_max: int) -> None:
    """Have *topic* take no larger batches."""
    async with administering(harness.bootstrap) as admin:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, {"max.message.bytes": str(bytes_max)})
        await admin.alter_configs([resource])


async def test_a_schedule_that_has_fired_here_does_not_fire_again_when_the_door_begins_anew(harness: Harness) -> None:
    """Our own tombstones tell of it, unless the last version was not due yet by then."""
    past, own = int(time.time()) - 1_000, {"timer-request": b"0:1"}

    def write(key: bytes, value: bytes | None, headers: Headers, at_s: int) -> None:
        harness.write([(key, value, headers)], partition=0, timestamp=at_s * 1000)

    for key in (b"fired", b"again", b"moved"):
        write(key, b"v1", schedule(past), past - 50)
    write(b"moved", b"v2", schedule(past + 5), past - 1)
    for key in (b"fired", b"again", b"moved"):
        write(key, None, own, past)
    write(b"again", b"v2", schedule(past + 7), past + 1)
    async with harness.open():
        await until(lambda: value_of(harness, "kafka_timers_door_records_total") == 8)
        found = parsed(await harness.requests(2))
    assert sorted((future.tombstoneKey, future.callBack) for _, future in found) == [("again", b"v2"), ("moved", b"v2")]


# --- sky-uk's scheduler: times in milliseconds, and tombstones that do not name their version ------------------------

FIRED_BY_SKYUK: Headers = {"schedule:expired": b"true"}


def plan(second: int = LATER, value: bytes = b"v") -> bytes:
    """Return a schedule in JSON, as that scheduler reads it."""
    body = {"time": second * 1000, "topic": "t", "key": "aw==", "value": base64.b64encode(value).decode()}
    return json.dumps(body).encode()


async def test_a_schedule_that_skyuk_has_fired_does_not_fire_again_and_a_moved_one_does(harness: Harness) -> None:
    """Its producer hashes as Java's clients do; schedules of others lie in other partitions than its tombstones."""
    now_s = int(time.time())
    past, written, fired = now_s - 3_000, (now_s - 4_000) * 1000, (now_s - 3_000) * 1000 + 90

    def write(key: str, value: bytes | None, at_ms: int, partition: int = 0, headers: Headers | None = None) -> None:
        harness.write([(key.encode(), value, headers or {})], "theirs", partition=partition, timestamp=at_ms)

    for number in range(10):
        write(f"fired-{number}", plan(past), written)
        write(f"fired-{number}", None, fired, number % 2, FIRED_BY_SKYUK)
    # By versions that mark their tombstones with nothing.
    write("fired before 1.0", plan(past), written)
    write("fired before 1.0", None, fired)
    # Its clock may be a little behind the schedule's time.
    write("fired early", plan(past), written)
    write("fired early", None, past * 1000 - 40, 0, FIRED_BY_SKYUK)
    for partition in range(2):
        # The receiver of the callback asks for the next one before the tombstone is written.
        write(f"next-{partition}", plan(past), written)
        write(f"next-{partition}", plan(now_s - 500, b"next"), fired - 50)
        write(f"next-{partition}", None, fired, partition, FIRED_BY_SKYUK)
    write("anew", plan(past), written)
    write("anew", None, fired, 1, FIRED_BY_SKYUK)
    write("anew", plan(past + 10, b"new"), fired + 5_000)
    # A version that it cannot read takes the one before with it.
    write("replaced", plan(past), written)
    write("replaced", b"no schedule", written + 1)
    write("fired here", plan(past), written)
    write("fired here", None, fired, 0, {"timer-request": b"0:1"})
    write("missed", plan(past), written)
    write("pending", plan(), written)
    async with harness.open("skyuk"):
        found = parsed(await harness.requests(7))
        await until(lambda: value_of(harness, "kafka_timers_door_records_total") == 20 + 2 + 2 + 6 + 3 + 2 + 2 + 2 + 5)
        [refused] = await harness.read(harness.topics.rejected, 1)
    assert (refused.key, refused.value) == (b"replaced", b"no schedule")
    assert sorted((future.tombstoneKey, future.callBack) for _, future in found if not future.cancel) == [
        ("anew", b"new"),
        ("missed", b"v"),
        ("next-0", b"next"),
        ("next-1", b"next"),
        ("pending", b"v"),
    ]
    # Had they been passed on before.
    assert sorted(future.timerId.rpartition(":")[2] for _, future in found if future.cancel) == [
        "fired before 1.0",
        "replaced",
    ]


async def test_a_version_that_skyuk_would_not_read_ends_the_one_before(harness: Harness) -> None:
    topic, now_s = harness.prefix + "theirs", int(time.time())
    async with harness.open("skyuk", door_grace_s=1_000):
        harness.write([(key, plan(), {}) for key in (b"damaged", b"past", b"stays")], partition=0)
        await harness.requests(3)
        bad = [(b"damaged", b"\0", {}), (b"past", plan(now_s - 2_000), {}), (b"\xff", plan(), {}), (b"never", b"", {})]
        harness.write(bad, partition=0)
        rejected = await harness.read(harness.topics.rejected, 4)
        requests = parsed(await harness.requests(6))
        there = await harness.read(topic, 8, partitions=2)
        await until(lambda: value_of(harness, "kafka_timers_door_lag_records") == 0)
        assert len(await harness.requests(6)) == 6
    assert {record.key: dict(record.headers)["timer-rejected-reason"] for record in rejected} == {
        b"damaged": b"value-not-schedule",
        b"past": b"past-grace",
        b"\xff": b"not-utf8",
        b"never": b"value-not-schedule",
    }
    ended = sorted(future.timerId for _, future in requests if future.cancel)
    assert ended == [f"skyuk:{topic}:{key}" for key in ("damaged", "never", "past")]
    # The schedules that it would fire, had it the topic back.
    assert [(record.key, record.partition) for record in there if record.value is None] == [(b"past", 0)]


# --- all workers are away for longer than Kafka keeps offsets --------------------------------------------------------


def counted_down(name: str) -> tuple[bytes | None, bytes, Headers]:
    """Return a countdown, a record without an id."""
    return None, json.dumps({"topic": "callbacks", "message": name, "countdown": 90_000}).encode(), {}


def with_id(name: str) -> tuple[bytes | None, bytes, Headers]:
    """Return a record whose key is a timer id."""
    headers = {"timer-expiry": b"%d" % LATER, "timer-callback-topic": b"callbacks"}
    return name.encode(), name.encode(), headers


RECORDS = {"countdown": counted_down, "headers": with_id}


def write_named(harness: Harness, door: str, names: Sequence[str], **at: int) -> None:
    """Write a record of *door* for each name, to both partitions."""
    for partition in range(2):
        harness.write([RECORDS[door](name) for name in names[partition::2]], partition=partition, **at)


async def names_asked(harness: Harness, count: int) -> list[str]:
    return sorted(future.callBack.decode() for _, future in parsed(await harness.requests(count)))


async def until_committed(harness: Harness, door: str, offsets: dict[int, int]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while await harness.committed(door) != offsets:  # noqa: ASYNC110  # only Kafka knows
            await asyncio.sleep(0.1)


async def forget_offsets(harness: Harness, door: str) -> None:
    await delete_group(harness.bootstrap, f"{harness.prefix}g.door.{door}")


async def make_places_anew(harness: Harness) -> None:
    async with administering(harness.bootstrap) as admin:
        await admin.delete_topics([harness.topics.doors])
    await asyncio.to_thread(_until_gone, harness.bootstrap, harness.topics.doors)
    await create(Kafka(harness.bootstrap), harness.prefix, PARTITIONS)


async def delete_requests(harness: Harness, first: int = 0) -> None:
    """Delete all records of timer-request from partition *first* on, as workers do with those that nobody needs."""
    async with Cluster.open(Kafka(harness.bootstrap)) as cluster:
        await cluster.look_up([harness.topics.requests])
        bounds = LogBounds(cluster, harness.topics.requests)
        for number in bounds.numbers[first:]:
            await bounds.delete_below(number, await bounds.watermark(number))


async def pass_on(harness: Harness, door: str, names: Sequence[str]) -> None:
    """Have a door pass records on, and end."""
    write_named(harness, door, names)
    async with harness.open(door):
        await harness.requests(len(names))


DOORS_LOG = "kafka_timers.adapters.reader"
BEFORE, MEANWHILE = [f"before-{n:02}" for n in range(40)], [f"meanwhile-{n:02}" for n in range(10)]


@pytest.mark.parametrize("is_place_lost", [False, True], ids=["its place is left", "its requests alone are left"])
@pytest.mark.parametrize("door", RECORDS)
async def test_a_door_goes_on_where_it_was_once_kafka_has_forgotten_its_offsets(
    harness: Harness, door: str, is_place_lost: bool
) -> None:
    await pass_on(harness, door, BEFORE)
    write_named(harness, door, MEANWHILE)
    await forget_offsets(harness, door)
    await (make_places_anew if is_place_lost else delete_requests)(harness)
    expected = BEFORE + MEANWHILE if is_place_lost else MEANWHILE
    async with harness.open(door):
        assert await names_asked(harness, len(expected)) == expected
        await until(lambda: value_of(harness, "kafka_timers_door_lag_records") == 0)
    assert await harness.committed(door) == {0: 25, 1: 25}


async def test_a_door_that_comes_back_to_a_quiet_topic_has_offsets_again(harness: Harness) -> None:
    """Otherwise the tools of Kafka and `status` would not tell how far it is."""
    await pass_on(harness, "countdown", BEFORE)
    await forget_offsets(harness, "countdown")
    async with harness.open("countdown"):
        await until_committed(harness, "countdown", {0: 20, 1: 20})
    assert len(await harness.requests(40)) == 40


@pytest.mark.parametrize(
    ("door", "begin_from", "more"),
    [
        ("countdown", "earliest", BEFORE + MEANWHILE),
        ("countdown", "latest", []),
        ("headers", "the first one meanwhile", MEANWHILE),
    ],
)
async def test_a_door_that_knows_nothing_of_its_topic_is_told_where_to_begin(
    harness: Harness, caplog: pytest.LogCaptureFixture, door: str, begin_from: str, more: list[str]
) -> None:
    """Offsets, places and requests are gone. Another door, which has its offsets, goes on."""
    theirs = harness.prefix + "theirs"
    await make_topic(harness.bootstrap, harness.prefix + "others")
    harness.write([(b"first", b"v", schedule())], topic="others")
    async with harness.open("etf1", "others"):
        await harness.requests(1)
    since_s = int(time.time()) - 50
    write_named(harness, door, BEFORE, timestamp=(since_s - 50) * 1000)
    async with harness.open(door):
        await harness.requests(len(BEFORE) + 1)
    write_named(harness, door, MEANWHILE, timestamp=since_s * 1000)
    await forget_offsets(harness, door)
    await make_places_anew(harness)
    await delete_requests(harness)
    harness.write([(b"second", b"v", schedule())], topic="others")
    reader, said = harness.reader(door), f"door {door}={theirs}: nothing tells how far partition"
    async with harness.open("etf1", "others"), harness.run(reader):
        await until(lambda: len(reader.refused) == 2)
        assert [future.tombstoneKey for _, future in parsed(await harness.requests(1))] == ["second"]
    told = [each.message for each in caplog.records if (each.name, each.levelname) == (DOORS_LOG, "ERROR")]
    assert len(told) == 2
    assert all(each.startswith(said) and "Start the workers with --door-from earliest" in each for each in told)
    assert reader.refused == {}
    given = begin_from if begin_from in ("earliest", "latest") else str(since_s)
    async with harness.open(door, door_from=given):
        await until_committed(harness, door, {0: 25, 1: 25})
    assert [each for each in await names_asked(harness, 1 + len(more)) if each != "v"] == sorted(more)


async def test_a_new_door_begins_with_its_topic_in_a_service_that_has_deleted_old_requests(harness: Harness) -> None:
    """Workers have run from the first on beside this `timer-door`, so no door has read anything without a place."""
    async with Cluster.open(Kafka(harness.bootstrap)) as cluster:
        await cluster.look_up([harness.topics.doors])
        await begin_places(cluster, harness.topics.doors)
    await make_topic(harness.bootstrap, harness.prefix + "others")
    harness.write([(b"first", b"v", schedule())], topic="others")
    async with harness.open("etf1", "others"):
        await harness.requests(1)
    await delete_requests(harness)
    write_named(harness, "countdown", BEFORE)
    async with harness.open("countdown"):
        assert await names_asked(harness, 40) == BEFORE


async def test_a_topic_that_was_made_anew_while_all_workers_were_away_is_read_from_its_beginning(
    harness: Harness,
) -> None:
    """Kafka has deleted the offsets together with the topic. The place names the one before."""
    topic = harness.prefix + "theirs"
    await pass_on(harness, "countdown", BEFORE)
    async with Cluster.open(Kafka(harness.bootstrap)) as cluster:
        await cluster.look_up([topic])
        await make_anew(harness, cluster, 2)
    write_named(harness, "countdown", MEANWHILE)
    async with harness.open("countdown"):
        assert await names_asked(harness, 50) == BEFORE + MEANWHILE


async def test_a_door_goes_on_when_timer_door_is_made_anew_beside_it(harness: Harness) -> None:
    """It writes its place to the new one, which it goes by later."""
    async with harness.open("countdown"):
        write_named(harness, "countdown", BEFORE)
        await harness.requests(40)
        await make_places_anew(harness)
        write_named(harness, "countdown", MEANWHILE)
        await harness.requests(50)
    await forget_offsets(harness, "countdown")
    await delete_requests(harness)
    write_named(harness, "countdown", ["after"])
    async with harness.open("countdown"):
        assert await names_asked(harness, 1) == ["after"]


@pytest.mark.parametrize("fault", ["requests after it may be deleted", "it is of another topic"])
async def test_a_door_does_not_go_on_behind_a_request_that_may_not_be_its_last(harness: Harness, fault: str) -> None:
    await pass_on(harness, "headers", BEFORE)
    await forget_offsets(harness, "headers")
    await make_places_anew(harness)
    if fault == "requests after it may be deleted":
        await delete_requests(harness, first=1)
    else:
        async with Cluster.open(Kafka(harness.bootstrap)) as cluster:
            await cluster.look_up([harness.prefix + "theirs"])
            await make_anew(harness, cluster, 2)
        write_named(harness, "headers", [f"other-{n}" for n in range(50)])
    async with harness.open("headers") as reader:
        await until(lambda: len(reader.refused) == 2)
    assert not any(name.startswith("other") for name in await names_asked(harness, 1))
