"""
The time by the last ticks, for what runs now and then and decides by it.

A process that goes on reads ticks itself, and has `runtime.ticked_clock` from them.
"""

from collections.abc import Collection

from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.reading import TopicLog
from kafka_timers.broker.seals import served_counts
from kafka_timers.core.wire import Topics, number_in
from kafka_timers.errors import BrokerError, TopicsError

# Number of records read back from the end of `oscillator`: one suffices unless another program writes there.
_TAIL = 20


async def ticked_s(kafka: Kafka, prefix: str) -> int:
    """
    Return the last UNIX second that all partitions have a tick of. So a timer that is due then fires at once.

    Raises:
        BrokerError: a partition has no tick.
        TopicsError: `oscillator` does not exist.
    """
    topic = Topics.of(prefix).oscillator
    partitions = (await served_counts(kafka, prefix)).get(topic)
    if partitions is None:
        raise TopicsError(f"topic {topic} is missing: create it with kafka-timers topics create")
    async with TopicLog.open(kafka, topic, is_committed=False) as [ticks]:
        return await last_tick(ticks, range(partitions))


async def last_tick(log: TopicLog, numbers: Collection[int]) -> int:
    """
    Return the last UNIX second that partitions *numbers* of *log* all have a tick of.

    Raises:
        BrokerError: a partition has no tick.
    """
    ends, starts = await log.bounds.ends(numbers), await log.bounds.starts(numbers)
    last: dict[int, int] = {}
    for number in numbers:
        async for records in log.pages(number, max(starts[number], ends[number] - _TAIL), ends[number]):
            for second in filter(None, (tick_of(record.key, record.timestamp) for record in records)):
                last[number] = max(second, last.get(number, 0))
    if len(last) < len(numbers):
        raise BrokerError(
            f"not all partitions of {log.topic} have a tick at their end, so nothing tells the time: is an oscillator "
            "running?",
            retriable=True,
        )
    return min(last.values())


def tick_of(key: bytes | None, appended_ms: int) -> int | None:
    """Return the UNIX second that a record of `oscillator` stands for; None if it is not a tick."""
    second = number_in(key)
    return None if second is None else min(second, appended_ms // 1000)
