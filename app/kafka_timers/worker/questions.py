"""
Answers questions about the pending timers of this worker's partitions.

Rows are ordered by the moment at which they fire, so a range of time costs no more than its contents. Other questions
search every row. They do so for some milliseconds at a time, not while a second is fired or its tick is about to come,
and for at most a second and a half. An answer says if it was cut, and where to continue. Each answer shows one moment:
timers that arrive or fire meanwhile are not in it.
"""

import asyncio
import heapq
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from kafka_timers.clock import Clock
from kafka_timers.core.callbacks import Outgoing
from kafka_timers.core.changes import Row
from kafka_timers.core.pending import Pending, Place, Wanted, place_of_row, waiting_in
from kafka_timers.runtime.priority import PriorityGate
from kafka_timers.worker.held import Held

_TURN_S = 0.002
_LOOK_S = 1.5
# Rows between two looks at the clock. A large batch takes some milliseconds by itself.
_ROWS = 16
_KEYS = 512
_AT_ONCE, _WAITING_MAX = 2, 32
# No search runs in this time before a tick, in this time after it if the tick is late, and until the owners know the
# tick. A second is fired in many short steps, and each of them would wait for the search.
_BEFORE_S, _LATE_S, _HEARD_S = 0.02, 0.1, 0.005
# Size limit for the values of one page, in bytes.
_BYTES_MAX = 8 << 20


class TooManyError(Exception):
    """There are more questions than this worker has time for."""


@dataclass(slots=True)
class _Page:
    """
    Pending timers, in the order in which they fire.

    Attributes:
        after: the place after which the rest follows; None if all were found.
        is_cut: True if the time was over before the page was full or complete.
        unknown: partitions that this worker knows nothing about.
    """

    timers: list[Pending] = field(default_factory=list)
    after: Place | None = None
    is_cut: bool = False
    unknown: list[int] = field(default_factory=list)

    def document(self, *, with_values: bool) -> dict[str, Any]:
        """Return the page as JSON."""
        return {
            "timers": [each.document(with_values=with_values) for each in self.timers],
            "next": str(self.after) if self.after else None,
            "cut": self.is_cut,
            "unknown": self.unknown,
        }


@dataclass(slots=True)
class _Counts:
    """
    Numbers of pending timers.

    Attributes:
        buckets: number of timers by the UNIX second in which a bucket begins. Empty buckets are left out.
        is_cut: True if the time was over before all were counted.
        unknown: partitions that this worker knows nothing about.
    """

    buckets: dict[int, int]
    is_cut: bool
    unknown: list[int]

    def document(self) -> dict[str, Any]:
        """Return the counts as JSON."""
        counts = [{"second": second, "count": count} for second, count in self.buckets.items()]
        return {"counts": counts, "cut": self.is_cut, "unknown": self.unknown}


class Questions:
    """
    Asks the partitions of one worker.

    Args:
        held: returns the partitions that can answer now.
        ticked_s: returns the time of the last tick on the monotonic clock.
    """

    def __init__(
        self,
        held: Callable[[], Mapping[int, Held]],
        partitions: int,
        gate: PriorityGate,
        ticked_s: Callable[[], float],
        clock: Clock,
    ) -> None:
        self._held = held
        self._partitions = partitions
        self._gate = gate
        self._ticked_s = ticked_s
        self._clock = clock
        self._free = asyncio.Semaphore(_AT_ONCE)
        self._waiting = 0

    async def page(self, wanted: Wanted, limit: int) -> _Page:
        """
        Return the first *limit* timers that are *wanted*, or fewer.

        Raises:
            TooManyError: too many questions wait; ask again later.
        """
        async with self._turn() as until_s:
            held, page = self._held(), _Page()
            looked_up, rows = list[Pending](), list[_Rows]()
            for number, each in held.items():
                found = each.looked_up(wanted)
                if found is None:
                    rows.append(_Rows(number, each.rows(wanted)))
                else:
                    looked_up += found
            # Partitions without a look-up are searched row by row.
            await self._walk(page, wanted, limit, [each for each in rows if each.next()], until_s)
            if looked_up:
                page = _merged(page, looked_up, limit)
            page.unknown = self._unknown(held)
        return page

    async def _walk(self, page: _Page, wanted: Wanted, limit: int, rows: "list[_Rows]", until_s: float) -> None:
        heapq.heapify(rows)
        size, looked, turn_s = 0, 0, self._clock.elapsed_s()
        while rows:
            first = rows[0]
            for waiting in waiting_in(first.partition, first.row, wanted):
                if len(page.timers) == limit or size > _BYTES_MAX:
                    page.after = page.timers[-1].place
                    return
                page.timers.append(waiting)
                size += len(Outgoing.of(waiting.request).value or b"")
            # No request of a row lies after the one that names it.
            behind = first.place._replace(offset=first.place.row)
            if first.next():
                heapq.heapreplace(rows, first)
            else:
                heapq.heappop(rows)
            looked += 1
            if looked % _ROWS == 0 and (now_s := self._clock.elapsed_s()) - turn_s > _TURN_S and rows:
                if now_s > until_s:
                    page.after, page.is_cut = behind, True
                    return
                await self._leave_room()
                turn_s = self._clock.elapsed_s()

    async def counts(self, start_ms: int, end_ms: int, bucket_s: int) -> _Counts:
        """
        Return numbers of timers due from UNIX millisecond *start_ms* until before *end_ms*, in buckets of *bucket_s*
        seconds.

        Raises:
            TooManyError: too many questions wait; ask again later.
        """
        async with self._turn() as until_s:
            held, buckets, bucket_ms, is_cut = self._held(), Counter[int](), bucket_s * 1000, False
            counting = [each.counts(start_ms, end_ms) for each in held.values()]
            turn_s = self._clock.elapsed_s()
            for counts in counting:
                for looked, (moment_ms, count) in enumerate(counts):
                    buckets[moment_ms // bucket_ms * bucket_s] += count
                    if looked % _KEYS == 0 and (now_s := self._clock.elapsed_s()) - turn_s > _TURN_S:
                        if now_s > until_s:
                            is_cut = True
                            break
                        await self._leave_room()
                        turn_s = self._clock.elapsed_s()
            unknown = self._unknown(held)
        return _Counts({second: count for second, count in sorted(buckets.items()) if count > 0}, is_cut, unknown)

    def _unknown(self, held: Mapping[int, Held]) -> list[int]:
        """Return the partitions for which *held* had no complete answer."""
        return [number for number in range(self._partitions) if number not in held or not held[number].is_open]

    async def _leave_room(self) -> None:
        while 1 - _BEFORE_S < self._since_tick_s() < 1 + _LATE_S:  # noqa: ASYNC110  # it is over without a tick too
            await asyncio.sleep(_HEARD_S)
        if self._since_tick_s() < _HEARD_S:
            await asyncio.sleep(_HEARD_S)
        await self._gate.idle_soon()
        await asyncio.sleep(0)

    def _since_tick_s(self) -> float:
        return self._clock.elapsed_s() - self._ticked_s()

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[float]:
        """Wait for a turn, and yield its end on the monotonic clock."""
        if self._waiting >= _WAITING_MAX:
            raise TooManyError
        self._waiting += 1
        try:
            async with self._free:
                yield self._clock.elapsed_s() + _LOOK_S
        finally:
            self._waiting -= 1


class _Rows:
    """The unread rows of one partition, ordered by the place of the first one."""

    def __init__(self, partition: int, rows: Iterator[Row]) -> None:
        self.partition = partition
        self._rows = rows
        self.row: Row = (b"", b"")
        self.place = Place(0, partition, 0, 0)

    def next(self) -> bool:
        """Take the next row; False if there is none."""
        row = next(self._rows, None)
        if row is None:
            return False
        self.row, self.place = row, place_of_row(self.partition, row[0])
        return True

    def __lt__(self, other: "_Rows") -> bool:
        return self.place < other.place


def _merged(page: _Page, more: list[Pending], limit: int) -> _Page:
    """Return *page* with *more* timers, but with none after the point where it was cut."""
    after = page.after
    timers = sorted([*page.timers, *more], key=lambda waiting: waiting.place)
    if after is not None:
        timers = [each for each in timers if each.place <= after]
    if len(timers) > limit:
        timers, after = timers[:limit], timers[limit - 1].place
    return _Page(timers, after, page.is_cut)
