"""
Reads a log for the feeds of its partitions, in whole fetches: requests into the stores of owned partitions, and ticks.

The feeds decide which partitions are read, and from which offset. Only committed records are read, since a producer may
schedule timers inside a transaction of its own.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Protocol, Self

from aiokafka.errors import KafkaError, StaleMetadata

from kafka_timers.broker.fetching import Fetched, Fetcher
from kafka_timers.core.wire import Record
from kafka_timers.runtime.priority import PriorityGate
from kafka_timers.runtime.tasks import cancel, until_one_ends

log = logging.getLogger(__name__)

# At most some 10 ms of work between two turns of the event loop.
_RECORDS_MAX = 2_000
# A fetch and a write cost the same for one record as for a thousand. If many records arrive and nothing waits for them,
# wait a moment for more.
_MANY, _LINGER_S = 100, 0.02
# How long the broker waits for a first record. A change of the fetched partitions waits as long for the fetch before,
# and changes come one after the other. A fetch of 64 partitions is a millisecond of work, so later on fewer are made.
_WAIT_MS, _WAIT_LONG_MS = 100, 500
_EARLY_FETCHES = 10
_RETRY_S = 0.1


class _Place(Protocol):
    """A partition, and the offset up to which it has been read."""

    @property
    def number(self) -> int: ...

    @property
    def position(self) -> int: ...


class _Feed(Protocol):
    """Takes the records of one partition, as `Follower` does."""

    # The offset that a caller waits for.
    awaited: int

    @property
    def partition(self) -> _Place: ...

    async def ready(self, epoch: int) -> None: ...

    def ingest(self, records: Sequence[Record], position: int) -> None: ...

    def blocked(self, stable: int, end: int) -> None: ...

    def fail(self, error: Exception) -> None: ...


class SimpleFeed:
    """
    Takes records at once and in order: those of partition *number* from *position* on.

    Args:
        take: called with records, and once `position` is behind them.
        fail: called when the partition cannot be read any more.
    """

    awaited = 0

    def __init__(
        self, number: int, position: int, take: Callable[[Sequence[Record]], None], fail: Callable[[Exception], None]
    ) -> None:
        self.number, self.position = number, position
        self.fail = fail
        self._take = take

    @property
    def partition(self) -> Self:
        """This object: it has the number and the position too."""
        return self

    async def ready(self, epoch: int) -> None:
        """Return at once."""

    def ingest(self, records: Sequence[Record], position: int) -> None:
        """Hand *records* on."""
        self.position = position
        self._take(records)

    def blocked(self, stable: int, end: int) -> None:
        """Do nothing: no caller waits for records that a transaction holds back."""


class LogReader:
    """
    Reads those partitions of a log that have a feed.

    Args:
        gate: sending goes before reading, except while a feed awaits an offset.
    """

    def __init__(self, request_log: Fetcher, gate: PriorityGate) -> None:
        self._log = request_log
        self._gate = gate
        self._feeds: dict[int, _Feed] = {}
        # Nodes that have not answered; each is logged once.
        self._silent: set[int] = set()
        # Partitions that their leaders could not serve; each is logged once.
        self._withheld: set[int] = set()
        # By node: the partition that came first in the last fetch.
        self._first: dict[int, int] = {}
        self._changed = asyncio.Event()
        self._awaited = asyncio.Event()
        self._fetches: dict[int, asyncio.Task[dict[int, Fetched | KafkaError]]] = {}

    @property
    def numbers(self) -> list[int]:
        """The partitions that are read."""
        return list(self._feeds)

    def add(self, feed: _Feed) -> None:
        """Read the partition of *feed* from its position on."""
        self._feeds[feed.partition.number] = feed
        self._changed.set()

    def remove(self, feed: _Feed) -> None:
        """Stop reading for *feed*."""
        if self._feeds.get(feed.partition.number) is feed:
            del self._feeds[feed.partition.number]
            self._changed.set()

    def hurry(self) -> None:
        """Note that a feed awaits an offset."""
        self._awaited.set()
        self._gate.nudge()

    async def run(self) -> None:
        """Read until cancelled."""
        try:
            while True:
                if not self._feeds:
                    await self._changed.wait()
                self._changed.clear()
                by_node = self._log.leaders(self._feeds)
                # Looked up here, because a feed may have been removed by the time a chore begins.
                feeds = [{number: self._feeds[number] for number in numbers} for numbers in by_node.values()]
                chores = [self._follow(node, followed) for node, followed in zip(by_node, feeds, strict=True)]
                if sum(map(len, by_node.values())) < len(self._feeds):
                    chores.append(self._find_leaders())
                # When one ends, everything starts again. Each feed knows its position.
                await until_one_ends(self._changed.wait(), self._log.moved(), *chores)
        finally:
            await cancel(self._fetches.values())

    async def _find_leaders(self) -> None:
        await asyncio.sleep(_RETRY_S)
        with suppress(KafkaError):
            await self._log.find_leaders()

    async def _follow(self, node: int, feeds: Mapping[int, _Feed]) -> None:
        """Read for *feeds*, whose partitions *node* leads, until one has another leader or the node does not answer."""
        if before := self._fetches.get(node):
            # A connection answers its fetches in order. Many partitions come and go at a time. With one more fetch for
            # each of them, the last fetch would wait for all others to find nothing.
            await asyncio.wait([before])
        positions = {number: feed.partition.position for number, feed in feeds.items()}
        self._fetch(node, positions, _WAIT_MS, anew=True)
        fetches = 0
        while True:
            try:
                came = await asyncio.shield(self._fetches[node])
            except KafkaError as why:
                if node not in self._silent:
                    self._silent.add(node)
                    log.warning("%s; trying again", why)
                return await self._find_leaders()
            self._silent.discard(node)
            fetched = {number: part for number, part in came.items() if isinstance(part, Fetched)}
            withheld = {number: error for number, error in came.items() if isinstance(error, StaleMetadata)}
            self._tell_withheld(fetched, withheld)
            for number, error in came.items():
                if isinstance(error, KafkaError) and number not in withheld:
                    self._drop(feeds[number], error)
            positions |= {number: part.position for number, part in fetched.items()}
            # Fetch more while these records are worked on.
            ahead = not withheld and any(part.is_large for part in fetched.values())
            if ahead:
                self._fetch(node, positions, _WAIT_MS)
            count = sum([await self._feed(feeds[number], part) for number, part in fetched.items()])
            if withheld:
                return await self._find_leaders()
            if not ahead:
                if count >= _MANY:
                    await self._linger()
                fetches += 1
                self._fetch(node, positions, _WAIT_MS if fetches < _EARLY_FETCHES else _WAIT_LONG_MS)

    def _tell_withheld(self, fetched: Iterable[int], withheld: Mapping[int, KafkaError]) -> None:
        self._withheld.difference_update(fetched)
        for number in withheld.keys() - self._withheld:
            self._withheld.add(number)
            log.warning("%s; trying again", withheld[number])

    def _fetch(self, node: int, positions: Mapping[int, int], wait_ms: int, *, anew: bool = False) -> None:
        # A broker fills its answer in the order of the question. Partitions with many records would leave no room for
        # those after them.
        first = self._first[node] = (self._first.get(node, 0) + 1) % len(positions)
        numbers = [*positions]
        wanted = {number: positions[number] for number in numbers[first:] + numbers[:first]}
        self._fetches[node] = task = asyncio.create_task(self._log.fetch(node, wanted, wait_ms, anew=anew))
        # The task may be dropped before its error is retrieved.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _feed(self, feed: _Feed, fetched: Fetched) -> int:
        """Hand the fetched records over, and return their number."""
        count, more = 0, True
        feed.blocked(fetched.stable, fetched.end)
        try:
            while more:
                await self._gate.over(unless=self._is_awaited)
                await feed.ready(fetched.epoch)
                if self._feeds.get(feed.partition.number) is not feed:
                    break
                records = list(islice(fetched.records, _RECORDS_MAX))
                count += len(records)
                more = len(records) == _RECORDS_MAX
                # Control records and aborted ones are skipped, so "last record + 1" is too low.
                position = records[-1].offset + 1 if more else fetched.position
                if position > feed.partition.position:
                    feed.ingest(records, position)
                if more:
                    await asyncio.sleep(0)
        except Exception as error:
            self._drop(feed, error)
        return count

    def _is_awaited(self) -> bool:
        return any(feed.awaited > feed.partition.position for feed in self._feeds.values())

    async def _linger(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                await self._awaited.wait()
        self._awaited.clear()

    def _drop(self, feed: _Feed, error: Exception) -> None:
        self.remove(feed)
        feed.fail(error)
