"""
Read the end of `timer-sealed`: what each partition has fired, for whoever takes it over and for whoever looks on.

The last seals of a partition lie at the end of its log, but not at its last offsets: the markers of transactions,
aborted transactions and compacted records use up offsets too. So the last 64 offsets are read, and sixteen times as
many again and again, until a complete seal is among them or the log has no more:

    complete  slice  slice  aborted slice  marker │ end        latest() is the complete one, the slices are of the
                                                                second that is being fired
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping
from contextlib import AsyncExitStack

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError

from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.consuming import consuming
from kafka_timers.broker.topics import answering, counts
from kafka_timers.core.wire import Sealed, Topics, is_complete, latest, sealed_from
from kafka_timers.errors import BrokerError, TopicsError, WireError

__all__ = ["is_complete", "last_seals", "latest", "read_tail", "read_tails", "seals_in"]

_FIRST_REACH = 64
_REACH_GROWTH = 16
_POLL_MS = 50

log = logging.getLogger(__name__)


async def read_tail(consumer: AIOKafkaConsumer, topic: str, partition: int, *, timeout_s: float = 10.0) -> list[Sealed]:
    """
    Return the last seals of one partition, as `read_tails` does for several.

    Raises:
        BrokerError: the end was not reached within *timeout_s*.
    """
    return (await read_tails(consumer, topic, [partition], timeout_s=timeout_s))[partition]


async def read_tails(
    consumer: AIOKafkaConsumer, topic: str, partitions: Collection[int], *, timeout_s: float = 10.0
) -> dict[int, list[Sealed]]:
    """
    Return the last committed seals of each partition in the order of the log.

    The latest complete seal and all that follow it are among them; earlier ones may be. Ends at the offset that was the
    end when the call began. A record that is not a seal is skipped and logged.

    Args:
        consumer: from `consuming`. It is given a new assignment, and keeps it, paused. A small `fetch_max_wait_ms` lets
            the next call begin sooner.
        topic: name of `timer-sealed`.
        partitions: numbers; each is a key of the result.
        timeout_s: bound of the whole call.

    Raises:
        BrokerError: an end was not reached within *timeout_s*, or the broker refused.
    """
    where = [TopicPartition(topic, partition) for partition in partitions]
    tails: dict[int, list[Sealed]] = {partition: [] for partition in partitions}
    try:
        async with asyncio.timeout(timeout_s):
            ends = await consumer.end_offsets(where)
            starts = await consumer.beginning_offsets(where)
            reach, unread = _FIRST_REACH, [tp for tp in where if ends[tp] > starts[tp]]
            while unread:
                froms = {tp: max(starts[tp], ends[tp] - reach) for tp in unread}
                for tp, seals in (await _read(consumer, froms, ends)).items():
                    tails[tp.partition] = seals
                unread = [tp for tp in unread if froms[tp] > starts[tp] and latest(tails[tp.partition]) is None]
                reach *= _REACH_GROWTH
    except TimeoutError as error:
        raise BrokerError(f"the end of {topic} could not be read within {timeout_s:g} s: is Kafka there?") from error
    except KafkaError as error:
        raise BrokerError(f"the end of {topic} could not be read: {error}") from error
    return tails


async def last_seals(kafka: Kafka, prefix: str) -> dict[int, list[Sealed]]:
    """
    Return the last seals of every partition, read over a connection of its own.

    Args:
        kafka: to talk to.
        prefix: put before the topics' names.

    Returns:
        As `read_tails`; a partition without a seal has an empty list.

    Raises:
        TopicsError: `timer-sealed` does not exist.
        BrokerError: no broker answers within some 10 s, or it refuses.
    """
    topic = Topics.of(prefix).sealed
    count = (await counts(kafka, prefix)).get(topic)
    if count is None:
        raise TopicsError(f"topic {topic} is missing: create it with kafka-timers topics create")
    async with AsyncExitStack() as opened:
        async with answering(kafka):
            consumer = await opened.enter_async_context(consuming(kafka, fetch_max_wait_ms=_POLL_MS))
        return await read_tails(consumer, topic, range(count))


async def _read(
    consumer: AIOKafkaConsumer, froms: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, list[Sealed]]:
    consumer.assign(list(froms))
    for tp, offset in froms.items():
        # Before anything is awaited: a partition without a position is an error to a consumer that resets none.
        consumer.seek(tp, offset)
    seals: dict[TopicPartition, list[Sealed]] = {tp: [] for tp in froms}
    unread = set(froms)
    while unread:
        for tp, records in (await consumer.getmany(*unread, timeout_ms=_POLL_MS)).items():
            seals[tp].extend(seals_in(record for record in records if record.offset < ends[tp]).values())
        # The position, not the last record: it also passes markers and aborted records, which are never returned.
        unread = {tp for tp in unread if await consumer.position(tp) < ends[tp]}
    # At once, or the consumer asks for more and waits at the end, and what is asked next waits behind that for half a
    # second.
    consumer.pause(*froms)
    return seals


def seals_in(records: Iterable[ConsumerRecord]) -> dict[int, Sealed]:
    """Return the seals in *records* by offset; a record that is not a seal is skipped and logged."""
    seals = {}
    for record in records:
        try:
            # No bytes at all would parse, as a seal of second 0.
            seals[record.offset] = sealed_from(
                record.value or b"\0", topic=record.topic, partition=record.partition, offset=record.offset
            )
        except WireError as error:
            log.warning("skipped: %s", error)
    return seals
