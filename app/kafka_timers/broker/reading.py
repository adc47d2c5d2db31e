"""
Reads a topic for callers that have no store: in pages up to an end, and as it grows.

Both read what `fetching` returns, so any batch that a broker takes can be read, and a silent broker is waited for as
long as `cluster` waits.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Self

from aiokafka import ConsumerRecord
from aiokafka.errors import KafkaError, OffsetOutOfRangeError, StaleMetadata

from kafka_timers.broker.bounds import LogBounds
from kafka_timers.broker.cluster import Cluster, limited
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.fetching import Fetched, Fetcher
from kafka_timers.broker.topics import knowing
from kafka_timers.core.log_identity import is_other_log, marked_in
from kafka_timers.core.wire import Record

log = logging.getLogger(__name__)

_PAGE_WAIT_MS, _FOLLOW_WAIT_MS = 50, 500
_PAUSE_S = 0.1
# A leader that was cut off reports neither news nor an error. Other brokers know the new leader.
_LOOK_EVERY_S = 5.0


class TopicLog:
    """
    The log of one topic.

    Args:
        cluster: the cluster to ask. It must have looked the topic up.
        timeout_s: longest wait for the leader of a partition, and for records that must be there.

    Attributes:
        numbers: its partitions, as the cluster knows them.
        bounds: tells their first and last offsets.
    """

    def __init__(self, cluster: Cluster, topic: str, timeout_s: float = 10.0, *, is_committed: bool = True) -> None:
        self.topic = topic
        self.numbers = cluster.partitions(topic)
        self._cluster = cluster
        self._is_committed = is_committed
        self._timeout_s = timeout_s
        self.bounds = LogBounds(cluster, topic, timeout_s, is_committed=is_committed)
        self._fetcher = self._new_fetcher("pages")

    @classmethod
    @asynccontextmanager
    async def open(
        cls, kafka: Kafka, *topics: str, timeout_s: float = 10.0, is_committed: bool = True, **options: Any
    ) -> AsyncIterator[list[Self]]:
        """
        Yield the logs of *topics*, over connections of their own.

        Args:
            topics: names of the topics. The log of a missing one has no partitions.
            options: connection options. They override those of *kafka*.

        Raises:
            BrokerError: no broker answers in time, or it refuses; also in place of a KafkaError within the block.
        """
        async with knowing(kafka, topics, timeout_s=timeout_s, **options) as cluster:
            yield [cls(cluster, topic, timeout_s, is_committed=is_committed) for topic in topics]

    def _new_fetcher(self, use: str) -> Fetcher:
        return Fetcher(self._cluster, self.topic, f"{use} of {self.topic}", is_committed=self._is_committed)

    async def pages(
        self, number: int, start: int, end: int, *, skips_deleted: bool = False
    ) -> AsyncIterator[list[Record]]:
        """
        Yield the records of a partition from *start* up to, not including, *end*, in lists. Raises as `page`.

        Args:
            end: offset behind the last record, at most that of `ends`.
            skips_deleted: go on behind the records that retention deletes meanwhile.
        """
        position = start
        while position < end:
            try:
                part = await self.page(number, position)
            except OffsetOutOfRangeError:
                first = (await self.bounds.starts([number]))[number]
                if not skips_deleted or first <= position:
                    raise
                position = first
                continue
            yield [record for record in part.records if record.offset < end]
            position = part.position

    async def page(self, number: int, position: int) -> Fetched:
        """
        Return what comes next at *position*, where the log must go on: records, or markers and aborted records alone.

        Raises:
            KafkaTimeoutError: nothing arrived in time.
            OffsetOutOfRangeError: the partition has no such offset.
        """
        why: object = ""
        what = f"nothing came from {self.topic} partition {number} at offset {position} for {self._timeout_s:g} s"
        async with limited(self._timeout_s, lambda: f"{what}. Is Kafka there? {why}".rstrip()):
            while True:
                try:
                    part = await self._fetcher.fetch_one(number, position, _PAGE_WAIT_MS)
                except KafkaError as error:
                    part = error
                if isinstance(part, Fetched):
                    if part.position > position:
                        return part
                    continue
                if not part.retriable:
                    raise part
                why = part
                await asyncio.sleep(_PAUSE_S)
                await self.bounds.refresh()

    async def record_at(self, number: int, offset: int) -> Record | None:
        """Return the record at *offset*; None if it is not there any more, or not yet. Raises as `page`."""
        start, end = (await self.bounds.starts([number]))[number], await self.bounds.end(number)
        if start <= offset < end:
            async for records in self.pages(number, offset, offset + 1):
                for record in records:
                    return record
        return None

    async def mark(self, number: int, offset: int) -> bytes:
        """Return the mark of the batch that has *offset*; empty if it is not there any more, or not yet."""
        start, end = (await self.bounds.starts([number]))[number], await self.bounds.end(number)
        found = (await self.page(number, offset)).mark if start <= offset < end else b""
        first = marked_in(found)
        return b"" if first is None or first > offset else found

    async def is_other(self, number: int, known: bytes) -> bool:
        """Tell whether a partition is another log than the one with the id or mark *known*, as far as that tells."""
        offset = marked_in(known)
        if offset is None:
            return is_other_log(known, self.bounds.log_id)
        return await self.mark(number, offset) not in (b"", known)

    @asynccontextmanager
    async def following(self, positions: Mapping[int, int]) -> AsyncIterator["Following"]:
        """Yield what reads the partitions as they grow, from their *positions* on."""
        following = Following(self.topic, self._new_fetcher("news"), self.bounds, positions)
        try:
            yield following
        finally:
            await following.close()


class Following:
    """
    Reads partitions of a topic as they grow. `TopicLog.following` makes one.

    Partitions that are added are read from their beginning, and so are all if the topic is made anew.

    Args:
        fetcher: fetches the records, and serves nobody else.
        bounds: tells where a partition begins whose next records were deleted.
        positions: the next offset to read, by partition.
    """

    def __init__(self, topic: str, fetcher: Fetcher, bounds: LogBounds, positions: Mapping[int, int]) -> None:
        self._topic = topic
        self._fetcher = fetcher
        self._bounds = bounds
        self._positions = dict(positions)
        self._id = bounds.log_id
        # The node that is asked, and the partitions that it is asked for.
        self._fetches: dict[asyncio.Task[dict[int, Fetched | KafkaError]], tuple[int, list[int]]] = {}
        self._in_session: set[int] = set()
        self._troubles: dict[int, str] = {}
        self._out_of_range: dict[int, KafkaError] = {}
        self._looking: asyncio.Task[None] | None = None
        self._looked_s = self._now_s()

    async def close(self) -> None:
        """End the fetches."""
        tasks = self._tasks()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def trouble(self) -> str:
        """The reason why partitions cannot be read now, as far as known; empty if all can be. It is logged once."""
        return "; ".join([*dict.fromkeys(self._troubles.values())][:3])

    async def poll(self) -> list[ConsumerRecord]:
        """
        Wait for records, and return those that have come since the last call. A silent leader is waited for.

        If you cancel this call, no record is lost.

        Raises:
            aiokafka.errors.KafkaError: a partition cannot be read.
        """
        while not (came := await self._poll()):
            pass
        return came

    async def _poll(self) -> list[ConsumerRecord]:
        for number, error in [*self._out_of_range.items()]:
            await self._skip_deleted(number, error)
        self._fetch()
        is_due = not self._fetches or self._troubles or self._now_s() - self._looked_s > _LOOK_EVERY_S
        if self._looking is None and is_due:
            self._looking = asyncio.create_task(self._look_again())
        await asyncio.wait(self._tasks(), return_when=asyncio.FIRST_COMPLETED)
        # Nothing is awaited from here on, so no record is lost if the call is cancelled.
        if self._looking and self._looking.done():
            looked, self._looking = self._looking, None
            looked.result()
            self._follow_all()
        came: list[ConsumerRecord] = []
        for task in [task for task in self._fetches if task.done()]:
            node, numbers = self._fetches.pop(task)
            try:
                parts = task.result()
            except KafkaError as error:
                self._in_session.discard(node)
                self._not_read(numbers, error)
                continue
            for number in numbers:
                part = parts.get(number)
                if isinstance(part, OffsetOutOfRangeError):
                    self._out_of_range[number] = part
                elif isinstance(part, KafkaError):
                    self._not_read([number], part)
                else:
                    self._troubles.pop(number, None)
                    if part:
                        came += [consumed(record, self._topic, number) for record in part.records]
                        self._positions[number] = part.position
        return came

    async def _skip_deleted(self, number: int, error: KafkaError) -> None:
        first, position = (await self._bounds.starts([number]))[number], self._positions[number]
        if first <= position:
            raise error
        log.warning("%s partition %d: offsets %d to %d were deleted unread", self._topic, number, position, first - 1)
        self._positions[number] = first
        del self._out_of_range[number]

    def _fetch(self) -> None:
        """Ask each leader that is not asked now for all its partitions, except those that another one is asked for."""
        asked = {node for node, _ in self._fetches.values()}
        free = self._positions.keys() - {number for _, numbers in self._fetches.values() for number in numbers}
        if self._looking:
            # Another leader may be found in a moment.
            free -= self._troubles.keys()
        by_node = self._fetcher.leaders(sorted(free))
        if leaderless := sorted(free.difference(*by_node.values())):
            self._not_read(leaderless, StaleMetadata("no leader is known"))
        for node, numbers in by_node.items():
            if node not in asked:
                wanted = {number: self._positions[number] for number in numbers}
                fetch = self._fetcher.fetch(node, wanted, _FOLLOW_WAIT_MS, anew=node not in self._in_session)
                self._fetches[asyncio.create_task(fetch)] = node, numbers
                self._in_session.add(node)

    def _not_read(self, numbers: list[int], error: KafkaError) -> None:
        if not error.retriable:
            raise error
        places = ", ".join(f"{number} (at offset {self._positions[number]})" for number in numbers)
        text = f"{self._topic} partition {places}: {error}"
        if not self._troubles.keys() >= set(numbers):
            log.warning("%s; trying again", text)
        self._troubles |= dict.fromkeys(numbers, text)

    async def _look_again(self) -> None:
        await asyncio.sleep(_PAUSE_S)
        await self._bounds.refresh()
        self._looked_s = self._now_s()

    def _follow_all(self) -> None:
        """Follow the partitions that the topic has by now."""
        now = self._bounds.log_id
        if is_other_log(self._id, now):
            log.warning("topic %s was deleted and made anew: it is read from its beginning", self._topic)
            for task in self._fetches:
                task.cancel()
            for former in (self._fetches, self._in_session, self._troubles, self._out_of_range, self._positions):
                former.clear()
        self._id = now or self._id
        for number in self._bounds.numbers:
            self._positions.setdefault(number, 0)

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def _tasks(self) -> list[asyncio.Task[Any]]:
        return [*self._fetches, *filter(None, [self._looking])]


def consumed(record: Any, topic: str, number: int) -> ConsumerRecord:
    """Return a *record* of partition *number* as aiokafka's consumer returns it."""
    key, value = record.key, record.value
    sizes = [-1 if each is None else len(each) for each in (key, value)]
    time = record.timestamp, record.timestamp_type
    return ConsumerRecord(topic, number, record.offset, *time, key, value, None, *sizes, tuple(record.headers))
