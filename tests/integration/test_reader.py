"""The request log → feeds: everything committed, in order, and positions that pass offsets without a record."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import OffsetOutOfRangeError
from brokers import StartKafka, consuming, delete_records, make_topic
from patience import LIMIT_S

from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.fetching import Fetcher
from kafka_timers.core.partition import Partition
from kafka_timers.core.wire import Record
from kafka_timers.runtime.log_reader import LogReader
from kafka_timers.runtime.priority import PriorityGate


class Collected:
    """A feed that keeps its records, and can be waited for."""

    def __init__(self, number: int, position: int = 0) -> None:
        self.partition = Partition(number)
        self.go_on_at(position)
        self.awaited = 0
        self.values: list[bytes | None] = []
        self.fetches = 0
        self.error: Exception | None = None
        self._fed = asyncio.Event()
        # Cleared while its disk is slower than the requests.
        self.takes = asyncio.Event()
        self.takes.set()
        self.asked = asyncio.Event()

    def go_on_at(self, position: int) -> None:
        self.partition.apply(self.partition.read(position))

    async def ready(self, epoch: int) -> None:
        self.asked.set()
        await self.takes.wait()

    def ingest(self, records: Sequence[Record], position: int) -> None:
        self.go_on_at(position)
        self.values += [record.value for record in records]
        self.fetches += 1
        self._fed.set()
        if b"poison" in self.values:
            raise ValueError("poison")

    def blocked(self, stable: int, end: int) -> None:
        pass

    def fail(self, error: Exception) -> None:
        self.error = error
        self._fed.set()

    async def reached(self, position: int) -> None:
        """Wait until the position is *position*, or the feed has failed."""
        self.awaited = position
        async with asyncio.timeout(LIMIT_S):
            while self.partition.position < position and not self.error:
                self._fed.clear()
                await self._fed.wait()


@pytest.fixture
async def topic(bootstrap: str, prefix: str) -> str:
    """A request topic of four partitions."""
    await make_topic(bootstrap, prefix + "timer-request", 4)
    return prefix + "timer-request"


@asynccontextmanager
async def reading(bootstrap: str, topic: str) -> AsyncIterator[LogReader]:
    """A reader that runs."""
    async with Cluster.open(Kafka(bootstrap)) as cluster:
        await cluster.look_up([topic])
        reader = LogReader(Fetcher(cluster, topic, "requests"), PriorityGate())
        task = asyncio.create_task(reader.run())
        yield reader
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.fixture
async def reader(bootstrap: str, topic: str) -> AsyncIterator[LogReader]:
    async with reading(bootstrap, topic) as started:
        yield started


@pytest.fixture
async def producer(bootstrap: str, topic: str) -> AsyncIterator[AIOKafkaProducer]:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as started:
        yield started


async def put(producer: AIOKafkaProducer, topic: str, partition: int, *values: bytes) -> None:
    await asyncio.gather(*[await producer.send(topic, value, partition=partition) for value in values])


async def test_each_feed_gets_its_partition_in_order_in_large_pieces(
    reader: LogReader, producer: AIOKafkaProducer, topic: str
) -> None:
    values = [b"%d" % number for number in range(10_000)]
    for number in range(4):
        await put(producer, topic, number, *values)
    feeds = [Collected(number) for number in range(4)]
    for feed in feeds:
        reader.add(feed)
    for feed in feeds:
        await feed.reached(10_000)
        assert feed.values == values
        assert feed.fetches < 1_000
    assert reader.numbers == [0, 1, 2, 3]


async def test_a_feed_starts_at_its_position_and_others_lose_nothing_by_it(
    reader: LogReader, producer: AIOKafkaProducer, topic: str
) -> None:
    first = Collected(0)
    reader.add(first)
    await put(producer, topic, 0, b"a", b"b")
    await put(producer, topic, 1, b"a", b"b", b"c")
    second = Collected(1, position=1)
    reader.add(second)
    await put(producer, topic, 0, b"c")
    await first.reached(3)
    await second.reached(3)
    assert (first.values, second.values) == ([b"a", b"b", b"c"], [b"b", b"c"])


async def test_a_feed_is_given_nothing_until_it_is_ready(
    reader: LogReader, producer: AIOKafkaProducer, topic: str
) -> None:
    feed = Collected(0)
    feed.takes.clear()
    reader.add(feed)
    await put(producer, topic, 0, b"a")
    async with asyncio.timeout(LIMIT_S):
        await feed.asked.wait()
    assert feed.values == []
    feed.takes.set()
    await feed.reached(1)
    assert feed.values == [b"a"]


async def test_a_feed_that_is_removed_gets_nothing_more(
    reader: LogReader, producer: AIOKafkaProducer, topic: str
) -> None:
    feed, heir, other = Collected(0), Collected(0), Collected(1)
    reader.add(feed)
    reader.add(other)
    await put(producer, topic, 0, b"a")
    await feed.reached(1)
    heir.go_on_at(1)
    reader.add(heir)
    reader.remove(feed)  # no longer the one that is read for
    await put(producer, topic, 0, b"b")
    await heir.reached(2)
    assert (feed.values, heir.values) == ([b"a"], [b"b"])
    reader.remove(heir)
    await put(producer, topic, 0, b"c")
    await put(producer, topic, 1, b"c")
    await other.reached(1)
    assert heir.values == [b"b"]
    assert reader.numbers == [1]


async def test_a_feed_that_is_removed_at_once_disturbs_no_other(
    reader: LogReader, producer: AIOKafkaProducer, topic: str
) -> None:
    """Also when that comes just after the reader has seen it."""
    gone, other = Collected(0), Collected(1)
    reader.add(gone)
    asyncio.get_running_loop().call_soon(reader.remove, gone)
    await put(producer, topic, 1, b"a")
    reader.add(other)
    await other.reached(1)
    assert other.values == [b"a"]


async def test_aborted_records_and_markers_are_passed_when_somebody_waits(
    reader: LogReader, bootstrap: str, topic: str
) -> None:
    """They yield nothing, and yet the end of the log is reached."""
    feed = Collected(0)
    reader.add(feed)
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=topic) as user:
        async with user.transaction():
            await put(user, topic, 0, b"committed")
        await user.begin_transaction()
        await put(user, topic, 0, b"aborted")
        await user.abort_transaction()
        await feed.reached(4)
        assert feed.values == [b"committed"]
        await user.begin_transaction()
        await put(user, topic, 0, b"open")
        async with consuming(Kafka(bootstrap)) as asking:
            assert await asking.end_offsets([TopicPartition(topic, 0)]) == {TopicPartition(topic, 0): 4}
        await user.commit_transaction()
    await feed.reached(6)
    assert feed.values == [b"committed", b"open"]


async def test_a_position_that_is_not_in_the_log_fails_its_own_feed_alone(
    reader: LogReader, producer: AIOKafkaProducer, bootstrap: str, topic: str
) -> None:
    await put(producer, topic, 0, b"a", b"b", b"c")
    await delete_records(bootstrap, topic, 0, before=2)
    deleted, beyond, good = Collected(0), Collected(1, position=10), Collected(2)
    for feed in (deleted, beyond, good):
        reader.add(feed)
    await deleted.reached(3)
    await beyond.reached(11)
    assert isinstance(deleted.error, OffsetOutOfRangeError)
    assert isinstance(beyond.error, OffsetOutOfRangeError)
    await put(producer, topic, 2, b"a")
    await good.reached(1)
    assert good.values == [b"a"]
    assert good.error is None
    assert reader.numbers == [2]


async def test_a_feed_that_cannot_take_its_records_fails_alone(
    reader: LogReader, producer: AIOKafkaProducer, topic: str
) -> None:
    bad, good = Collected(0), Collected(1)
    reader.add(bad)
    reader.add(good)
    await put(producer, topic, 0, b"poison")
    await put(producer, topic, 1, b"a")
    await good.reached(1)
    await bad.reached(2)
    assert str(bad.error) == "poison"
    assert good.values == [b"a"]


async def test_a_broker_without_room_for_fetch_sessions_is_read_as_well(start_kafka: StartKafka) -> None:
    kafka = await start_kafka(properties={"max.incremental.fetch.session.cache.slots": "0"})
    await make_topic(kafka.bootstrap, "timer-request", 2)
    feeds = [Collected(number) for number in range(2)]
    async with (
        reading(kafka.bootstrap, "timer-request") as reader,
        AIOKafkaProducer(bootstrap_servers=kafka.bootstrap) as producer,
    ):
        for feed in feeds:
            reader.add(feed)
        for end in range(1, 4):
            for feed in feeds:
                await put(producer, "timer-request", feed.partition.number, b"%d" % end)
                await feed.reached(end)
    assert [feed.values for feed in feeds] == [[b"1", b"2", b"3"]] * 2
