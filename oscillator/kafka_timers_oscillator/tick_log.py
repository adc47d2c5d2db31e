"""
The `oscillator` topic as one replica uses it: its end, what is appended to it, and appending.

A thin shell around aiokafka. It knows bytes and offsets; which ticks there should be is `schedule.py`'s business.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple, Self

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError

from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.consuming import consuming
from kafka_timers.core.wire import SECOND_LIMIT, TICK, number_in
from kafka_timers.errors import BrokerError, TopicsError

# A tick that was not acknowledged after this is taken for lost. It bounds how long a late one can be on its way.
REQUEST_TIMEOUT_MS = 3_000

# aiokafka may take twice the request timeout before it gives up.
APPEND_LIMIT_S = 2.5 * REQUEST_TIMEOUT_MS / 1000

# Records read back from the end of each partition. One is enough unless something else writes to the topic: records
# that are no ticks, or ticks that do not count.
TAIL = 20

LOG_APPEND_TIME = 1


class Tick(NamedTuple):
    """A tick in the log: its second and the time the broker stamped it with, in UNIX seconds."""

    partition: int
    second: int
    append_s: float


class TickLog:
    """The open topic; `open` makes one."""

    def __init__(
        self,
        topic: str,
        end: Mapping[TopicPartition, int],
        producer: AIOKafkaProducer,
        consumer: AIOKafkaConsumer,
    ) -> None:
        self.partitions = [partition for _, partition in end]
        self._end = end
        self._topic, self._producer, self._consumer = topic, producer, consumer
        self._taken = asyncio.Event()

    @classmethod
    @asynccontextmanager
    async def open(cls, kafka: Kafka, topic: str) -> AsyncIterator[Self]:
        """
        Connect, and be ready to read from just before the end of each partition.

        Raises:
            BrokerError: no broker answers, or it does not know the topic.
            TopicsError: the broker does not stamp the topic's records with its own time.
        """
        async with AsyncExitStack() as opened:
            try:
                partitions = await _partitions(kafka, topic)
                # Without idempotence: a tick that is there twice does no harm, and a producer that cannot fall into a
                # fatal state need not be replaced.
                producer = AIOKafkaProducer(**kafka.client_options(), acks="all", request_timeout_ms=REQUEST_TIMEOUT_MS)
                opened.push_async_callback(producer.stop)
                await producer.start()
                await producer.partitions_for(topic)
                reading = consuming(
                    kafka,
                    # Ticks are sent outside of transactions, and somebody else's open one must not hide them.
                    isolation_level="read_uncommitted",
                    auto_offset_reset="latest",
                    request_timeout_ms=REQUEST_TIMEOUT_MS,
                )
                consumer = await opened.enter_async_context(reading)
                of = [TopicPartition(topic, partition) for partition in partitions]
                first, end = await consumer.beginning_offsets(of), await consumer.end_offsets(of)
            except (KafkaError, OSError) as error:
                raise BrokerError(f"no broker at {kafka} serves {topic}: {_in_words(error)}") from error
            consumer.assign(of)
            for partition in of:
                consumer.seek(partition, max(first[partition], end[partition] - TAIL))
            yield cls(topic, {partition: end[partition] for partition in of}, producer, consumer)

    async def read(self) -> list[Tick]:
        """Return the ticks appended since the last call, those of a partition in order; waits a while for some."""
        # Whoever calls again has taken what the last call gave.
        self._taken.set()
        fetched = await self._consumer.getmany(timeout_ms=500)
        return [
            Tick(record.partition, second, record.timestamp / 1000)
            for records in fetched.values()
            for record in records
            if (second := number_in(record.key)) is not None and second < SECOND_LIMIT
        ]

    async def reach_end_at_open(self, limit_s: float) -> None:
        """
        Return once what there was when the topic was opened was read, by whoever calls `read`, and taken.

        Raises:
            TimeoutError: that took longer than *limit_s*.
        """
        async with asyncio.timeout(limit_s):
            await self._reach(self._end)

    async def reach_end(self, partitions: Iterable[int], limit_s: float) -> None:
        """
        Return once what *partitions* hold now was read, by whoever calls `read`, and taken.

        Raises:
            TimeoutError: that took longer than *limit_s*.
            KafkaError: the broker does not tell the end.
        """
        async with asyncio.timeout(limit_s):
            await self._reach(
                await self._consumer.end_offsets([TopicPartition(self._topic, number) for number in partitions])
            )

    async def _reach(self, end: Mapping[TopicPartition, int]) -> None:
        # aiokafka moves a position and hands over the records in one step, and `read`'s caller takes them in the same:
        # whoever sees the position finds them taken.
        for partition, offset in end.items():
            while await self._consumer.position(partition) < offset:
                self._taken.clear()
                await self._taken.wait()

    async def append(self, partition: int, seconds: Iterable[int]) -> float:
        """
        Write one tick for each of *seconds*; return their append time, which they share, in UNIX seconds.

        Raises:
            KafkaError: they were not acknowledged; they may be in the log all the same.
            TimeoutError: the same.
            TopicsError: the broker did not stamp them with its own time.
        """
        batch = self._producer.create_batch()
        for second in seconds:
            batch.append(key=b"%d" % second, value=TICK, timestamp=None)
        async with asyncio.timeout(APPEND_LIMIT_S):
            acknowledged = await (await self._producer.send_batch(batch, self._topic, partition=partition))
        if acknowledged.timestamp_type != LOG_APPEND_TIME:
            raise _not_append_time(self._topic)
        return float(acknowledged.timestamp / 1000)


async def _partitions(kafka: Kafka, topic: str) -> list[int]:
    admin = AIOKafkaAdminClient(**kafka.client_options(), request_timeout_ms=REQUEST_TIMEOUT_MS)
    try:
        await admin.start()
        # Asked for by its name a missing topic might be created, with settings that do not fit; so all are asked for.
        found = [described for described in await admin.describe_topics() if described["topic"] == topic]
        wanted = ConfigResource(ConfigResourceType.TOPIC, topic, {"message.timestamp.type": None})
        described = [answer.to_object()["resources"][0] for answer in await admin.describe_configs([wanted])]
    finally:
        await admin.close()
    if not found or not found[0]["partitions"]:
        raise BrokerError(f"topic {topic} is not there at {kafka}; create it with `kafka-timers topics create`")
    # Without the right to read settings there are no entries; then the first acknowledgement tells.
    for entry in (entry for resource in described for entry in resource["config_entries"]):
        if entry["config_value"] != "LogAppendTime":
            raise _not_append_time(topic)
    return sorted(partition["partition"] for partition in found[0]["partitions"])


def _in_words(error: Exception) -> str:
    return str(error) or type(error).__name__


def _not_append_time(topic: str) -> TopicsError:
    return TopicsError(
        f"topic {topic} does not have message.timestamp.type=LogAppendTime, so its ticks do not carry the broker's "
        "time; set it (`kafka-timers topics check` shows what else is wrong) and start again"
    )
