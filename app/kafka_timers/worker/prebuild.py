"""
Callbacks of the next seconds, built before their ticks come.

Prebuilding prepares and decides nothing: what fires is told by the tick, the store and the snapshot as if nothing had
been prebuilt, and whatever happens to it, dropping it is always right. So a slice that is ready is used only where it
is a part of the scan, together with the rows that came into its range later:

    prebuilt   12.000 @40 · 12.000 @41 · 12.500 @17             built while second 11 was over
    then       12.000 @42 (a lower key than 12.500 @17)         read meanwhile: in the store, not in the slice
    tick       12 → the slice, 12.000 @42, then the next slice, or all rows behind 12.500 @17

What is idle time before a quiet second is building time for a hot one behind it, so several seconds are prebuilt, the
next one first.
"""

from collections import deque
from collections.abc import Callable, Iterator

from kafka_timers.core.changes import Row
from kafka_timers.core.keys import count_of
from kafka_timers.core.rows import holds_any
from kafka_timers.worker.slices import Slice

_ABOVE_ALL = b"\xff"
# So many requests may lie before what is ready, and be fired with it.
_BEFORE_MAX = 1_000

# Returns what the store has from one key on and before another one, in order.
Rows = Callable[[bytes, bytes], Iterator[Row]]


class ByteBudget:
    """
    Bytes of requests whose callbacks may be held ready, for all partitions of a process.

    Attributes:
        bytes: that are left; the last stride of a slice may bring it below 0.
        size: what was there at first.
    """

    def __init__(self, size: int) -> None:
        self.bytes = self.size = size


class Prebuilt:
    """
    What is ready of the rows from *start* on and before key *end*.

    Args:
        new_slice: returns an empty one.
        rows: those of the store, as they are now.
        start: key.
        end: key, excluded.
        budget: shrinks by what is built.

    Attributes:
        slices: hold the callbacks, in the order of firing; filled by `more`.
        start: key from which on they are left.
        end: key, excluded.
        is_spoilt: something was withdrawn of what was ready or would have been.
    """

    def __init__(
        self, new_slice: Callable[[], Slice], rows: Iterator[Row], start: bytes, end: bytes, budget: ByteBudget
    ) -> None:
        self.slices: deque[Slice] = deque()
        self._new_slice = new_slice
        self._rows = rows
        self.start, self.end = start, end
        self.is_spoilt = False
        self._budget = budget
        self._lowest = _ABOVE_ALL
        self._is_building = False
        self._bytes_before = 0

    @property
    def requests(self) -> int:
        """How many callbacks are ready."""
        return sum(map(len, self.slices))

    async def more(self) -> bool:
        """
        Build for a few milliseconds; False when there are no rows left, or no budget.

        Raises:
            aiokafka.errors.KafkaError: no broker tells what callback topics there are; this is of no more use.
        """
        if not self.slices or self.slices[-1].is_full:
            self.slices.append(self._new_slice())
        built = self.slices[-1]
        self._bytes_before = built.bytes
        self._is_building = True
        try:
            has_more = await built.add(self._rows)
        finally:
            # Unless something was withdrawn meanwhile.
            is_whole, self._is_building = self._is_building, False
            if is_whole:
                self._budget.bytes -= built.bytes - self._bytes_before
        if not is_whole:
            return False
        if not len(built):
            self.slices.pop()
        return has_more and self._budget.bytes > 0

    def added(self, lowest: bytes) -> None:
        """Take note that rows came into the store, none with a key below *lowest*."""
        self._lowest = min(self._lowest, lowest)

    def withdrawn(self, key: bytes) -> None:
        """Take note that the request under *key* does not fire; what is ready up to there stays of use."""
        if not self.start <= key < self.end:
            return
        self.is_spoilt = True
        # It may be about to go into the slice that is being built.
        if self._is_building:
            self._is_building = False
            self._budget.bytes += self._bytes_before
            self.slices.pop()
        while self.slices and behind(self.slices[-1]) > key:
            self._budget.bytes += self.slices.pop().bytes
        # What comes behind is read when the tick has come.
        self._rows = iter(())

    def take(self, start: bytes, end: bytes, rows: Rows) -> Slice | None:
        """Hand out the next slice if the *rows* from *start* on and before key *end* begin with it, or nearly so."""
        if not self.slices or self.start < start or self.end > end:
            return None
        before = 0
        for key, _ in rows(start, self.start) if self.start > start else ():
            before += count_of(key)
            if before > _BEFORE_MAX:
                return None
        if before:
            # Of the second before, and due when its last moment was fired: they are missed in this slice.
            self._lowest = min(self._lowest, start)
        built = self.slices.popleft()
        self._budget.bytes += built.bytes
        self.start = behind(built)
        return built

    def missed(self, built: Slice, rows: Rows, start: bytes) -> Iterator[Row]:
        """Return the *rows* that came into the range of *built*, which was taken and begins at *start*."""
        if self._lowest >= behind(built):
            return iter(())
        known = set(built.contents.offsets)
        return ((key, row) for key, row in rows(start, behind(built)) if not holds_any(key, row, known))

    def release(self) -> None:
        """Give the budget of what is left back."""
        while self.slices:
            self._budget.bytes += self.slices.pop().bytes


class PrebuiltSeconds:
    """What is ready of the next seconds of a partition."""

    def __init__(self) -> None:
        self._seconds: deque[Prebuilt] = deque()

    @property
    def requests(self) -> int:
        """How many callbacks are ready."""
        return sum(prebuilt.requests for prebuilt in self._seconds)

    def up_to(self, end: bytes) -> Prebuilt | None:
        """Return what is ready of the rows that end before key *end*, unless it must be made ready anew."""
        prebuilt = next((each for each in self._seconds if each.end == end), None)
        if prebuilt and prebuilt.is_spoilt:
            prebuilt.release()
            self._seconds.remove(prebuilt)
            return None
        return prebuilt

    def add(self, prebuilt: Prebuilt) -> None:
        """Have *prebuilt*, which lies behind all others, handed out in its turn."""
        self._seconds.append(prebuilt)

    def added(self, lowest: bytes) -> None:
        """Take note that rows came into the store, none with a key below *lowest*."""
        for prebuilt in self._seconds:
            prebuilt.added(lowest)

    def withdrawn(self, key: bytes) -> None:
        """Take note that the request under *key* does not fire."""
        for prebuilt in self._seconds:
            prebuilt.withdrawn(key)

    def next_slice(self, start: bytes, end: bytes, rows: Rows) -> tuple[Slice, Iterator[Row], bool] | None:
        """
        Hand out what is to be fired next of the *rows* from *start* on and before key *end*.

        Returns:
            The slice, the rows that came into its range later, and whether none is ready of the rows behind it; None
            when no slice is what has to be fired next: callback topics are judged in the request's second.
        """
        prebuilt = self._seconds[0] if self._seconds else None
        built = prebuilt.take(start, end, rows) if prebuilt else None
        if prebuilt is None or built is None or built.is_outdated:
            self._drop(end)
            return None
        missed, is_last = prebuilt.missed(built, rows, start), not prebuilt.slices
        if is_last:
            # What it has not read of the store would stay pinned there.
            self._drop(end)
        return built, missed, is_last

    def _drop(self, before: bytes) -> None:
        while self._seconds and self._seconds[0].start < before:
            self._seconds.popleft().release()

    def release(self) -> None:
        """Give the budget of all that is left back."""
        self._drop(_ABOVE_ALL)


def behind(built: Slice) -> bytes:
    """Return the lowest key that is higher than those of *built*."""
    return built.contents.through + b"\0"
