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
from collections.abc import Collection, Iterable

from aiokafka import AIOKafkaConsumer, TopicPartition

from kafka_timers.errors import TopicsError, WireError
from kafka_timers.topics import answering
from kafka_timers.wire import Sealed, sealed_from

__all__ = ["latest", "read_all_tails", "read_tail", "read_tails"]

_FIRST_REACH = 64
_REACH_GROWTH = 16

log = logging.getLogger(__name__)


def is_complete(seal: Sealed) -> bool:
    """Tell whether *seal* closes its second; one that does not is a slice of a second that goes on."""
    return not seal.HasField("through")


def latest(seals: Iterable[Sealed]) -> Sealed | None:
    """Return the complete seal with the highest (last second, fence), None when no seal is complete."""
    return max(filter(is_complete, seals), key=lambda seal: (seal.last, seal.fence), default=None)


async def read_tail(
    consumer: AIOKafkaConsumer, topic: str, partition: int, *, timeout_s: float = 10.0
) -> list[Sealed]:
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
        consumer: started, without a group, `isolation_level="read_committed"` and `auto_offset_reset="none"`. It is
            assigned to *partitions* and stays so. A small `fetch_max_wait_ms` lets the next call begin sooner.
        topic: name of `timer-sealed`.
        partitions: numbers; each is a key of the result.
        timeout_s: bound of the whole call.

    Raises:
        BrokerError: an end was not reached within *timeout_s*, or the broker refused.
    """
    where = [TopicPartition(topic, partition) for partition in partitions]
    tails: dict[int, list[Sealed]] = {partition: [] for partition in partitions}
    async with answering(_address_of(consumer), timeout_s=timeout_s):
        # Before the assignment: an assigned partition without a position is an error to a consumer that resets none.
        ends = await consumer.end_offsets(where)
        starts = await consumer.beginning_offsets(where)
        consumer.assign(where)
        reach, unread = _FIRST_REACH, [tp for tp in where if ends[tp] > starts[tp]]
        for tp in where:
            consumer.seek(tp, ends[tp])
        while unread:
            froms = {tp: max(starts[tp], ends[tp] - reach) for tp in unread}
            for tp, seals in (await _read(consumer, froms, ends)).items():
                tails[tp.partition] = seals
            unread = [tp for tp in unread if froms[tp] > starts[tp] and latest(tails[tp.partition]) is None]
            reach *= _REACH_GROWTH
    return tails
