"""
The live part of the service, as the lake deals with it: how it stands, told by its topics, and what it is asked.
"""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.consuming import consuming
from kafka_timers.broker.seals import last_seals, latest, served_counts
from kafka_timers.broker.topics import answering
from kafka_timers.core.wire import Sealed, Topics, number_in
from kafka_timers.errors import BrokerError, LakeError, TopicsError
from kafka_timers.lake.session import kafka_options
from kafka_timers.lake.tables import words_of
from kafka_timers.settings import LakeSettings

__all__ = ["Live", "look", "publish", "refuse_other_topic", "tick_of"]

# Records read back from the end of `oscillator`: one is enough unless something else writes there.
_TAIL = 20
_MAX_MESSAGE = "max.message.bytes"
# Kafka's own default, assumed where the lake may not read the topic's settings.
_MAX_MESSAGE_BYTES = 1_048_588


# Many records at once, and nobody waits for a single one.
_BATCH_BYTES = 256 << 10
_SINK = {
    "kafka.acks": "all",
    "kafka.linger.ms": "50",
    # A broker that has much to do may take longer than the two minutes that producers wait by default.
    "kafka.delivery.timeout.ms": "300000",
    "kafka.buffer.memory": str(64 << 20),
    # What the topic takes is what counts.
    "kafka.max.request.size": str(64 << 20),
}


@dataclass(frozen=True, slots=True)
class Live:
    """
    How the live part stands.

    Attributes:
        now: UNIX second of the last tick; of all partitions' the smallest.
        ends: of each partition of `timer-request` the offset below which lies all that was appended before this was
            asked, which was after *now* was read; also what lies in open transactions.
        seals: the last complete seal of each partition that has one.
        message_bytes_max: the largest message that `timer-request` takes.
    """

    now: int
    ends: Mapping[int, int]
    seals: Mapping[int, Sealed]
    message_bytes_max: int


async def look(kafka: Kafka, prefix: str) -> Live:
    """
    Return how the live part stands now.

    Raises:
        LakeError: a partition has no tick.
        TopicsError: a topic of the service is missing.
        BrokerError: no broker answers within some 10 s, or it refuses.
    """
    topics = Topics.of(prefix)
    partitions = await served_counts(kafka, prefix)
    for topic in (topics.oscillator, topics.requests):
        if topic not in partitions:
            raise TopicsError(f"topic {topic} is missing: create it with kafka-timers topics create")
    async with AsyncExitStack() as opened:
        async with answering(kafka):
            # Ticks are sent outside of transactions. And a far request in a transaction that is still open may be of a
            # bucket that is about to be closed, so the ends are those of the log and not of what can be read.
            reading = consuming(kafka, isolation_level="read_uncommitted", fetch_max_wait_ms=50)
            consumer = await opened.enter_async_context(reading)
        async with answering(kafka):
            now = await _last_tick(consumer, topics.oscillator, partitions[topics.oscillator])
            requests = [TopicPartition(topics.requests, number) for number in range(partitions[topics.requests])]
            ends = {where.partition: end for where, end in (await consumer.end_offsets(requests)).items()}
    tails = await last_seals(kafka, prefix)
    seals = {number: seal for number, tail in tails.items() if (seal := latest(tail))}
    return Live(now, ends, seals, await _message_bytes_max(kafka, topics.requests))


def publish(records: DataFrame, settings: LakeSettings) -> None:
    """
    Publish *records* to `timer-request`, each at least once.

    Args:
        records: partition int, key binary, value binary; the topic has these partitions: for another one Spark would
            wait a minute, and fail.
        settings: of the job.

    Raises:
        BrokerError: not all of them were taken.
    """
    topic = Topics.of(settings.topic_prefix).requests
    # A batch that is larger than the topic takes would be split by this size, and so sent again as it is, without end.
    batch_bytes = min(_BATCH_BYTES, asyncio.run(_message_bytes_max(settings.kafka, topic)))
    sink = {
        **kafka_options(settings.kafka),
        "topic": topic,
        "kafka.batch.size": str(batch_bytes),
    }
    try:
        records.write.format("kafka").options(**sink, **_SINK).save()
    except (PySparkException, Py4JError) as error:
        raise BrokerError(f"{topic} has not taken all that was to be published: {words_of(error)}") from error


def refuse_other_topic(landed: Mapping[int, int], topic: str, partitions: int) -> None:
    """
    Check that *topic* may be the one that the lake was made from.

    Args:
        landed: how far that was landed, by partition.
        topic: its name.
        partitions: how many it has.

    Raises:
        LakeError: it has fewer.
    """
    if unknown := [number for number in landed if number >= partitions]:
        raise LakeError(
            f"{topic} has no partition {min(unknown)}, of which the lake holds requests: is it another topic of the "
            "same name? Its partitions never change"
        )


def tick_of(key: bytes | None, appended_ms: int) -> int | None:
    """Return the UNIX second that a record of `oscillator` stands for, None when it is no tick."""
    second = number_in(key)
    return None if second is None else min(second, appended_ms // 1000)


async def _last_tick(consumer: AIOKafkaConsumer, topic: str, partitions: int) -> int:
    where = [TopicPartition(topic, number) for number in range(partitions)]
    ends, starts = await consumer.end_offsets(where), await consumer.beginning_offsets(where)
    last: dict[int, int] = {}
    # Assigned and let go at once, aiokafka's consumer fails.
    if all(ends[tp] > starts[tp] for tp in where):
        last = await _read_ticks(consumer, {tp: max(starts[tp], ends[tp] - _TAIL) for tp in where}, ends)
    if len(last) < partitions:
        raise LakeError(
            f"not all partitions of {topic} have a tick at their end, so the lake cannot know what time it is: is an "
            "oscillator running?"
        )
    return min(last.values())


async def _read_ticks(
    consumer: AIOKafkaConsumer, froms: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[int, int]:
    """Return for each partition the latest second that was ticked, if one was."""
    consumer.assign(list(froms))
    for tp, offset in froms.items():
        # Before anything is awaited: a partition without a position is an error to a consumer that resets none.
        consumer.seek(tp, offset)
    last: dict[int, int] = {}
    unread = set(froms)
    while unread:
        for tp, records in (await consumer.getmany(*unread, timeout_ms=50)).items():
            for second in filter(None, (tick_of(record.key, record.timestamp) for record in records)):
                last[tp.partition] = max(second, last.get(tp.partition, 0))
        unread = {tp for tp in unread if await consumer.position(tp) < ends[tp]}
    # At once, or the consumer goes on fetching, and what is asked next waits behind that.
    consumer.pause(*froms)
    return last


async def _message_bytes_max(kafka: Kafka, topic: str) -> int:
    async with answering(kafka):
        admin = AIOKafkaAdminClient(**kafka.client_options())
        try:
            await admin.start()
            wanted = ConfigResource(ConfigResourceType.TOPIC, topic, {_MAX_MESSAGE: None})
            answers = [answer.resources for answer in await admin.describe_configs([wanted])]
        finally:
            await admin.close()
    limits = [int(entry[1]) for resources in answers for resource in resources for entry in resource[4]]
    return limits[0] if limits else _MAX_MESSAGE_BYTES
