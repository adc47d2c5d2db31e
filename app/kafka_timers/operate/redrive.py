"""Read the refused requests. `kafka-timers rejected` shows them, `kafka-timers redrive` sends them again."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from operator import attrgetter

from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.placed import RequestPlaces
from kafka_timers.broker.reading import TopicLog, consumed
from kafka_timers.broker.topics import knowing
from kafka_timers.core.rejected import Rejected
from kafka_timers.core.wire import Topics
from kafka_timers.errors import RequestError, TopicsError

# When the leader of a partition dies, another one takes over after some 10 s.
_LIMIT_S = 20.0

_age = attrgetter("at_ms")
_place_in = re.compile(r"([0-9]{1,9}):([0-9]{1,18})", re.ASCII).fullmatch


@dataclass(frozen=True, slots=True)
class Which:
    """
    A filter for refused requests. A request passes if it meets all conditions.

    Attributes:
        reasons: reasons that pass; empty for any.
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

    Its methods raise `aiokafka.errors.KafkaError` if the topic cannot be read.

    Args:
        bounds: first offset of each partition, and the offset behind its last record.
        requests: reads `timer-request`.
    """

    def __init__(self, log: TopicLog, bounds: dict[int, tuple[int, int]], requests: RequestPlaces) -> None:
        self._log = log
        self._bounds = bounds
        self._requests = requests

    async def _before(self, from_ms: int) -> AsyncIterator[Rejected]:
        """Yield the requests that were refused before the log was opened and since *from_ms*, by partition."""
        for number, (start, end) in self._bounds.items():
            if from_ms > 0:
                since = await self._log.bounds.since(number, from_ms)
                start = end if since is None else max(start, since)
            async for records in self._log.pages(number, start, end, skips_deleted=True):
                for record in records:
                    yield Rejected.of(consumed(record, self._log.topic, number))

    async def last(self, which: Which, from_ms: int, limit: int) -> tuple[list[Rejected], int]:
        """
        Return the last *limit* requests that pass *which*, by time of refusal, and the number of all that pass.
        Refusals before *from_ms*, UNIX milliseconds, do not count.
        """
        found: list[Rejected] = []
        count = 0
        async for each in self._before(from_ms):
            if which.takes(each):
                found.append(each)
                count += 1
            if len(found) > 2 * limit:
                found = sorted(found, key=_age)[-limit:]
        return sorted(found, key=_age)[-limit:], count

    async def after(self) -> AsyncIterator[Rejected]:
        """Yield requests as they are refused from now on, without end."""
        async with self._log.following({number: end for number, (_, end) in self._bounds.items()}) as following:
            while True:
                for record in await following.poll():
                    yield Rejected.of(record)

    async def at(self, place: str) -> Rejected:
        """
        Return the refused request at *place*, partition:offset.

        Raises:
            RequestError: there is none, or *place* has another form.
        """
        match = _place_in(place)
        if match is None:
            raise RequestError(f"{place!r} is not partition:offset, as kafka-timers rejected tells it")
        number, offset = map(int, match.groups())
        if number in self._bounds and (record := await self._log.record_at(number, offset)):
            return Rejected.of(consumed(record, self._log.topic, number))
        raise RequestError(
            f"timer-rejected has no record at {place}: run kafka-timers rejected to list the records that it still has"
        )

    async def whole(self, rejected: Rejected) -> Rejected:
        """
        Return *rejected* with its payload. If a door made the request, or it is cut, that is read from `timer-request`.

        If the request is gone from there, *rejected* says so.
        """
        match = _place_in(rejected.lies_at)
        if match is None:
            return rejected
        found = await self._requests.at(*map(int, match.groups()))
        return rejected.with_request(found.record.value or b"") if found.record else replace(rejected, gone=found.why)


@asynccontextmanager
async def reading_rejected(kafka: Kafka, prefix: str) -> AsyncIterator[RejectedLog]:
    """
    Open `timer-rejected` for reading inside the block.

    Raises:
        TopicsError: the topic does not exist.
    """
    topics = Topics.of(prefix)
    async with knowing(kafka, [topics.rejected, topics.requests, topics.sealed], timeout_s=_LIMIT_S) as cluster:
        log = TopicLog(cluster, topics.rejected, _LIMIT_S)
        if not log.numbers:
            raise TopicsError(f"topic {log.topic} is missing: create it with kafka-timers topics create")
        starts, ends = await log.bounds.starts(log.numbers), await log.bounds.ends(log.numbers)
        requests = RequestPlaces(cluster, topics, _LIMIT_S)
        yield RejectedLog(log, {number: (starts[number], ends[number]) for number in log.numbers}, requests)


async def last_refused(kafka: Kafka, prefix: str, which: Which, from_ms: int, limit: int) -> tuple[list[Rejected], int]:
    """Open `timer-rejected` and return the last refused requests: see `reading_rejected` and `RejectedLog.last`."""
    async with reading_rejected(kafka, prefix) as log:
        return await log.last(which, from_ms, limit)
