"""
Read the refused requests. `kafka-timers rejected` shows them, `kafka-timers redrive` sends them again.
"""

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.consuming import consuming, pages
from kafka_timers.broker.topics import answering, counts
from kafka_timers.core.rejected import Rejected
from kafka_timers.core.wire import Topics
from kafka_timers.errors import BrokerError, RequestError, TopicsError

__all__ = ["RejectedLog", "Which", "last_refused", "reading_rejected"]

# A partition whose leader has died has another one after some 10 s.
_LIMIT_S = 20.0

_place_in = re.compile(r"([0-9]{1,9}):([0-9]{1,18})", re.ASCII).fullmatch


@dataclass(frozen=True, slots=True)
class Which:
    """
    Which refused requests are meant: those for which all of this holds.

    Attributes:
        reasons: they have one of these; empty is any.
        topic: they ask for a callback on this one; empty is any.
        timer_id: they have it; empty is any, and none.
    """

    reasons: tuple[str, ...] = ()
    topic: str = ""
    timer_id: str = ""

    def takes(self, rejected: Rejected) -> bool:
        """Tell whether *rejected* is one of them."""
        return (
            (not self.reasons or rejected.reason in self.reasons)
            and self.topic in ("", rejected.callback_topic)
            and self.timer_id in ("", rejected.timer_id)
        )


class RejectedLog:
    """
    The topic `timer-rejected`, as it was when it was opened, and what has come since.

    Args:
        consumer: to read it with.
        bounds: first offset of each partition, and the one behind the last.
        requests: name of `timer-request`.
    """

    def __init__(
        self, consumer: AIOKafkaConsumer, bounds: dict[TopicPartition, tuple[int, int]], requests: str
    ) -> None:
        self._consumer = consumer
        self._bounds = bounds
        self._requests = requests

    async def before(self, from_ms: int) -> AsyncIterator[Rejected]:
        """
        Yield what had been refused, since the UNIX millisecond *from_ms*; a partition after the other.

        Raises:
            BrokerError: it cannot be read.
        """
        with _told(self._consumer):
            for where, (start, end) in self._bounds.items():
                if from_ms > 0:
                    at = (await self._consumer.offsets_for_times({where: from_ms}))[where]
                    start = end if at is None else max(start, at.offset)
                async for records in pages(self._consumer, where, start, end):
                    for record in records:
                        yield Rejected.of(record)

    async def last(self, which: Which, from_ms: int, limit: int) -> tuple[list[Rejected], int]:
        """
        Return the last *limit* that are meant, in the order of their refusal, and how many there are in all.

        Args:
            which: are meant.
            from_ms: and were refused since this UNIX millisecond.
            limit: at most.

        Raises:
            BrokerError: it cannot be read.
        """
        found: list[Rejected] = []
        count = 0
        async for each in self.before(from_ms):
            if which.takes(each):
                found.append(each)
                count += 1
            if len(found) > 2 * limit:
                found = sorted(found, key=_age)[-limit:]
        return sorted(found, key=_age)[-limit:], count

    async def after(self) -> AsyncIterator[Rejected]:
        """
        Yield what is refused from now on, without end.

        Raises:
            BrokerError: it cannot be read.
        """
        with _told(self._consumer):
            self._consumer.assign(list(self._bounds))
            for where, (_, end) in self._bounds.items():
                self._consumer.seek(where, end)
            async for record in self._consumer:
                yield Rejected.of(record)

    async def at(self, place: str) -> Rejected:
        """
        Return the refused request at *place*, partition:offset.

        Raises:
            RequestError: there is none.
            BrokerError: it cannot be read.
        """
        match = _place_in(place)
        if match is None:
            raise RequestError(f"{place!r} is not partition:offset, as kafka-timers rejected tells it")
        number, offset = map(int, match.groups())
        for where, (start, end) in self._bounds.items():
            if where.partition == number and start <= offset < end:
                with _told(self._consumer):
                    async for records in pages(self._consumer, where, offset, offset + 1):
                        for record in records:
                            return Rejected.of(record)
        raise RequestError(f"nothing lies at {place}: kafka-timers rejected shows what there is, until its retention")

    async def whole(self, rejected: Rejected) -> Rejected:
        """
        Return *rejected* with what it asks for, which is read from `timer-request` where a door has made it.

        If that is gone from there, *rejected* is returned as it is.

        Raises:
            BrokerError: it cannot be read.
        """
        match = _place_in(rejected.made.request) if rejected.made else None
        if match is None:
            return rejected
        number, offset = map(int, match.groups())
        where = TopicPartition(self._requests, number)
        with _told(self._consumer):
            start, end = await self._consumer.beginning_offsets([where]), await self._consumer.end_offsets([where])
            if start[where] <= offset < end[where]:
                async for records in pages(self._consumer, where, offset, offset + 1):
                    for record in records:
                        if record.value:
                            return rejected.with_request(record.value)
        return rejected


@asynccontextmanager
async def reading_rejected(kafka: Kafka, prefix: str) -> AsyncIterator[RejectedLog]:
    """
    Open `timer-rejected`, to be read inside.

    Args:
        kafka: where it is.
        prefix: put before the topics' names.

    Raises:
        TopicsError: it does not exist.
        BrokerError: no broker answers within some 20 s, or it refuses.
    """
    topics = Topics.of(prefix)
    topic = topics.rejected
    async with AsyncExitStack() as opened:
        async with answering(kafka, timeout_s=_LIMIT_S):
            places = [TopicPartition(topic, number) for number in range((await counts(kafka, prefix)).get(topic, 0))]
            if not places:
                raise TopicsError(f"topic {topic} is missing: create it with kafka-timers topics create")
            # What retention takes while it is read is passed over.
            consumer = await opened.enter_async_context(consuming(kafka, auto_offset_reset="earliest"))
            starts, ends = await consumer.beginning_offsets(places), await consumer.end_offsets(places)
        yield RejectedLog(consumer, {where: (starts[where], ends[where]) for where in places}, topics.requests)


async def last_refused(kafka: Kafka, prefix: str, which: Which, from_ms: int, limit: int) -> tuple[list[Rejected], int]:
    """Open `timer-rejected` and return what was refused last: see `reading_rejected` and `RejectedLog.last`."""
    async with reading_rejected(kafka, prefix) as log:
        return await log.last(which, from_ms, limit)


def _age(rejected: Rejected) -> int:
    return rejected.at_ms


@contextmanager
def _told(consumer: AIOKafkaConsumer) -> Iterator[None]:
    try:
        yield
    except KafkaError as error:
        where = ", ".join(f"{each.topic} partition {each.partition}" for each in consumer.assignment())
        raise BrokerError(f"{where} could not be read: {error}") from error
