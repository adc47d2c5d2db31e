"""
How the live part of the service stands, told by its topics: what the lake has to know before it decides anything.
"""

from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from kafka_timers.consuming import consuming
from kafka_timers.errors import LakeError, TopicsError
from kafka_timers.seals import last_seals, latest
from kafka_timers.topics import answering, counts
from kafka_timers.wire import Topics, number_in

__all__ = ["Live", "look", "tick_of"]

# Records read back from the end of `oscillator`: one is enough unless something else writes there.
_TAIL = 20
_MAX_MESSAGE = "max.message.bytes"
# Kafka's own default, assumed where the lake may not read the topic's settings.
_MAX_MESSAGE_BYTES = 1_048_588


@dataclass(frozen=True, slots=True)
class Live:
    """
    How the live part stands.

    Attributes:
        now: UNIX second of the last tick; of all partitions' the smallest.
        ends: of each partition of `timer-request` the offset below which lies all that was appended before this was
            asked, which was after *now* was read; also what lies in open transactions.
        horizons_s: of each partition that is sealed the horizon of its worker; 0 is none.
        message_bytes_max: the largest message that `timer-request` takes.
    """

    now: int
    ends: Mapping[int, int]
    horizons_s: Mapping[int, int]
    message_bytes_max: int


async def look(bootstrap: str, prefix: str) -> Live:
    """
    Return how the live part stands now.

    Raises:
        LakeError: a partition has no tick.
        TopicsError: a topic of the service is missing.
        BrokerError: no broker answers within some 10 s, or it refuses.
    """
    topics = Topics.of(prefix)
    partitions = await counts(bootstrap, prefix)
    for topic in (topics.oscillator, topics.requests):
        if topic not in partitions:
            raise TopicsError(f"topic {topic} is missing: create it with kafka-timers topics create")
    async with AsyncExitStack() as opened:
        async with answering(bootstrap):
            # Ticks are sent outside of transactions. And a far request in a transaction that is still open may be of a
            # bucket that is about to be closed, so the ends are those of the log and not of what can be read.
            reading = consuming(bootstrap, isolation_level="read_uncommitted", fetch_max_wait_ms=50)
            consumer = await opened.enter_async_context(reading)
        async with answering(bootstrap):
            now = await _last_tick(consumer, topics.oscillator, partitions[topics.oscillator])
            requests = [TopicPartition(topics.requests, number) for number in range(partitions[topics.requests])]
            ends = {where.partition: end for where, end in (await consumer.end_offsets(requests)).items()}
    sealed = {number: latest(seals) for number, seals in (await last_seals(bootstrap, prefix)).items()}
    horizons_s = {number: seal.horizon_s for number, seal in sealed.items() if seal}
    return Live(now, ends, horizons_s, await _message_bytes_max(bootstrap, topics.requests))


def tick_of(key: bytes | None, appended_ms: int) -> int | None:
    """Return the UNIX second that a record of `oscillator` stands for, None when it is no tick."""
    second = number_in(key or b"")
    return None if second is None else min(second, appended_ms // 1000)


async def _last_tick(consumer: AIOKafkaConsumer, topic: str, partitions: int) -> int:
    where = [TopicPartition(topic, number) for number in range(partitions)]
    ends, starts = await consumer.end_offsets(where), await consumer.beginning_offsets(where)
    consumer.assign(where)
    for partition in where:
        # Before anything is awaited: a partition without a position is an error to a consumer that resets none.
        consumer.seek(partition, max(starts[partition], ends[partition] - _TAIL))
    last: dict[int, int] = {}
    unread = {partition for partition in where if ends[partition] > starts[partition]}
    while unread:
        for partition, records in (await consumer.getmany(*unread, timeout_ms=50)).items():
            seconds = [tick_of(record.key, record.timestamp) for record in records]
            for second in seconds:
                if second is not None:
                    last[partition.partition] = max(second, last.get(partition.partition, 0))
        unread = {partition for partition in unread if await consumer.position(partition) < ends[partition]}
    # At once, or the consumer goes on fetching, and what is asked next waits behind that.
    consumer.pause(*where)
    missing = sorted(set(range(partitions)) - set(last))
    if missing:
        raise LakeError(
            f"no tick lies at the end of {topic} partition {missing[0]}, so the lake cannot know what time it is: is "
            "an oscillator running?"
        )
    return min(last.values())


async def _message_bytes_max(bootstrap: str, topic: str) -> int:
    async with answering(bootstrap):
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        try:
            await admin.start()
            wanted = ConfigResource(ConfigResourceType.TOPIC, topic, {_MAX_MESSAGE: None})
            answers = [answer.resources for answer in await admin.describe_configs([wanted])]
        finally:
            await admin.close()
    limits = [int(entry[1]) for resources in answers for resource in resources for entry in resource[4]]
    return limits[0] if limits else _MAX_MESSAGE_BYTES
