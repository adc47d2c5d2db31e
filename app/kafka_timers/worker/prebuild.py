"""
Callbacks of the next seconds, built before their ticks come.

Prebuilding decides nothing. Tick, store and snapshot decide which timers fire, just as without it, and dropping
prebuilt callbacks is always safe. So a prebuilt slice is used only if it is a part of the scan, together with the rows
that entered its range later:

    prebuilt   12.000 @40 · 12.000 @41 · 12.500 @17             built while second 11 was over
    then       12.000 @42 (a lower key than 12.500 @17)         read meanwhile: in the store, not in the slice
    tick       12 → the slice, 12.000 @42, then the next slice, or all rows behind 12.500 @17

Idle time before a quiet second is used for a busy one after it: several seconds are prebuilt, the next one first.
"""

from collections import deque
from collections.abc import Callable, Iterator

from kafka_timers.core.changes import Row
from kafka_timers.core.keys import count_of
from kafka_timers.core.rows import holds_any
from kafka_timers.worker.slices import Slice

_ABOVE_ALL = b"\xff"
# At most this many requests may lie before a prebuilt slice, and fire with it.
_BEFORE_MAX = 1_000

# Returns the store's rows from one key up to, not including, another one, in order.
Rows = Callable[[bytes, bytes], Iterator[Row]]


class ByteBudget:
    """
    Size limit for requests with prebuilt callbacks, for all partitions of a process.

    Attributes:
        bytes: bytes that are left. The last stride of a slice may bring it below 0.
    """

    def __init__(self, size: int) -> None:
        self.bytes = self.size = size


class Prebuilt:
    """
    Prebuilt callbacks for the rows from key *start* up to, not including, key *end*.

    Args:
        rows: rows of the store, as of now.

    Attributes:
        slices: slices with callbacks, in firing order; filled by `more`.
        start: first key that was not taken yet.
        is_spoilt: True if a request in the range was withdrawn.
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
        """Number of callbacks that are ready."""
        return sum(map(len, self.slices))

    async def more(self) -> bool:
        """
        Build for a few milliseconds; False if there are no rows left, or no budget.

        Raises:
            aiokafka.errors.KafkaError: no broker answers about callback topics. This object cannot be used any more.
        """
        if not self.slices or self.slices[-1].is_full:
            self.slices.append(self._new_slice())
        built = self.slices[-1]
        self._bytes_before = built.bytes
        self._is_building = True
        try:
            has_more = await built.add(self._rows)
        finally:
            # Unless a request was withdrawn meanwhile.
            is_whole, self._is_building = self._is_building, False
            if is_whole:
                self._budget.bytes -= built.bytes - self._bytes_before
        if not is_whole:
            return False
        if not len(built):
            self.slices.pop()
        return has_more and self._budget.bytes > 0

    def added(self, lowest: bytes) -> None:
        """Note that rows entered the store, with *lowest* as the lowest key."""
        self._lowest = min(self._lowest, lowest)

    def withdrawn(self, key: bytes) -> None:
        """Note that the request under *key* does not fire. Slices below that key stay valid."""
        if not self.start <= key < self.end:
            return
        self.is_spoilt = True
        # The request may be about to enter the slice that is being built.
        if self._is_building:
            self._is_building = False
            self._budget.bytes += self._bytes_before
            self.slices.pop()
        while self.slices and behind(self.slices[-1]) > key:
            self._budget.bytes += self.slices.pop().bytes
        # Later rows are read after the tick.
        self._rows = iter(())

    def take(self, start: bytes, end: bytes, rows: Rows) -> Slice | None:
        """Return the next slice if the *rows* between *start* and *end* begin with it, or nearly so; otherwise None."""
        if not self.slices or self.start < start or self.end > end:
            return None
        before = 0
        for key, _ in rows(start, self.start) if self.start > start else ():
            before += count_of(key)
            if before > _BEFORE_MAX:
                return None
        if before:
            # Rows of the second before are left, and this slice misses them.
            self._lowest = min(self._lowest, start)
        built = self.slices.popleft()
        self._budget.bytes += built.bytes
        self.start = behind(built)
        return built

    def missed(self, built: Slice, rows: Rows, start: bytes) -> Iterator[Row]:
        """Return the *rows* that entered the range of *built* later. That slice was taken and begins at *start*."""
        if self._lowest >= behind(built):
            return iter(())
        known = set(built.contents.offsets)
        return ((key, row) for key, row in rows(start, behind(built)) if not holds_any(key, row, known))

    def release(self) -> None:
        """Give the budget of the remaining slices back."""
        while self.slices:
            self._budget.bytes += self.slices.pop().bytes


class PrebuiltSeconds:
    """Prebuilt callbacks of a partition's next seconds."""

    def __init__(self) -> None:
        self._seconds: deque[Prebuilt] = deque()

    @property
    def requests(self) -> int:
        """Number of callbacks that are ready."""
        return sum(prebuilt.requests for prebuilt in self._seconds)

    def up_to(self, end: bytes) -> Prebuilt | None:
        """Return the prebuilt part that ends before key *end*; None if there is none, or if it must be built again."""
        prebuilt = next((each for each in self._seconds if each.end == end), None)
        if prebuilt and prebuilt.is_spoilt:
            prebuilt.release()
            self._seconds.remove(prebuilt)
            return None
        return prebuilt

    def add(self, prebuilt: Prebuilt) -> None:
        """Append *prebuilt*, which lies after all others."""
        self._seconds.append(prebuilt)

    def added(self, lowest: bytes) -> None:
        """Note that rows entered the store, with *lowest* as the lowest key."""
        for prebuilt in self._seconds:
            prebuilt.added(lowest)

    def withdrawn(self, key: bytes) -> None:
        """Note that the request under *key* does not fire."""
        for prebuilt in self._seconds:
            prebuilt.withdrawn(key)

    def next_slice(self, start: bytes, end: bytes, rows: Rows) -> tuple[Slice, Iterator[Row], bool] | None:
        """
        Return the slice to fire next for the *rows* from *start* up to, not including, key *end*.

        Returns:
            The slice, the rows that entered its range later, and whether nothing after it is prebuilt. None if no slice
            can fire next: callback topics are judged in the request's own second.
        """
        prebuilt = self._seconds[0] if self._seconds else None
        built = prebuilt.take(start, end, rows) if prebuilt else None
        if prebuilt is None or built is None or built.is_outdated:
            self._drop(end)
            return None
        missed, is_last = prebuilt.missed(built, rows, start), not prebuilt.slices
        if is_last:
            # An open iterator would keep the store's old data alive.
            self._drop(end)
        return built, missed, is_last

    def _drop(self, before: bytes) -> None:
        while self._seconds and self._seconds[0].start < before:
            self._seconds.popleft().release()

    def release(self) -> None:
        """Give all of the remaining budget back."""
        self._drop(_ABOVE_ALL)


def behind(built: Slice) -> bytes:
    """Return the lowest key above those of *built*."""
    return built.contents.through + b"\0"
