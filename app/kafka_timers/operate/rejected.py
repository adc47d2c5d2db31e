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

# When the leader of a partition dies, another one takes over after some 10 s.
_LIMIT_S = 20.0

_place_in = re.compile(r"([0-9]{1,9}):([0-9]{1,18})", re.ASCII).fullmatch


@dataclass(frozen=True, slots=True)
class Which:
    """
    A filter for refused requests. A request passes if it meets all conditions.

    Attributes:
        reasons: reasons that pass; empty for any.
        topic: callback topic; empty for any.
        timer_id: timer id; empty for any, and for requests without one.
    """

    reasons: tuple[str, ...] = ()
    topic: str = ""
    timer_id: str = ""

    def takes(self, rejected: Rejected) -> bool:
        """Tell whether *rejected* passes the filter."""
        return (
            (not self.reasons or rejected.reason in self.reasons)
            and self.topic in ("", rejected.callback_topic)
            and self.timer_id in ("", rejected.timer_id)
        )


class RejectedLog:
    """
    The topic `timer-rejected`: its records when it was opened, and those that have come since.

    Args:
        consumer: consumer to read with.
        bounds: first offset of each partition, and the offset behind its last record.
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
        Yield the requests that were refused before the log was opened and since *from_ms*, one partition after another.

        Args:
            from_ms: UNIX milliseconds.

        Raises:
            BrokerError: the topic cannot be read.
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
        Return the last *limit* requests that pass *which*, by time of refusal, and the number of all that pass.

        Args:
            which: filter.
            from_ms: UNIX milliseconds; earlier refusals do not count.
            limit: maximum.

        Raises:
            BrokerError: the topic cannot be read.
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
        Yield requests as they are refused from now on, without end.

        Raises:
            BrokerError: the topic cannot be read.
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
            RequestError: there is none, or *place* has another form.
            BrokerError: the topic cannot be read.
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
        raise RequestError(
            f"timer-rejected has no record at {place}: run kafka-timers rejected to list the records that it still has"
        )

    async def whole(self, rejected: Rejected) -> Rejected:
        """
        Return *rejected* with its payload. For a request that a door made, the payload is read from `timer-request`.

        If the request is gone from there, *rejected* is returned unchanged.

        Raises:
            BrokerError: the topic cannot be read.
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
    Open `timer-rejected` for reading inside the block.

    Args:
        kafka: cluster to read from.
        prefix: prefix of the service's own topics.

    Raises:
        TopicsError: the topic does not exist.
        BrokerError: no broker answers within some 20 s, or a broker refuses.
    """
    topics = Topics.of(prefix)
    topic = topics.rejected
    async with AsyncExitStack() as opened:
        async with answering(kafka, timeout_s=_LIMIT_S):
            places = [TopicPartition(topic, number) for number in range((await counts(kafka, prefix)).get(topic, 0))]
            if not places:
                raise TopicsError(f"topic {topic} is missing: create it with kafka-timers topics create")
            # Records that retention deletes meanwhile are skipped.
            consumer = await opened.enter_async_context(consuming(kafka, auto_offset_reset="earliest"))
            starts, ends = await consumer.beginning_offsets(places), await consumer.end_offsets(places)
        yield RejectedLog(consumer, {where: (starts[where], ends[where]) for where in places}, topics.requests)


async def last_refused(kafka: Kafka, prefix: str, which: Which, from_ms: int, limit: int) -> tuple[list[Rejected], int]:
    """Open `timer-rejected` and return the last refused requests: see `reading_rejected` and `RejectedLog.last`."""
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
