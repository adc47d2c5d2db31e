"""
Callbacks of the next second, built before its tick comes.

Arming prepares and decides nothing: what fires is told by the tick, the store and the fence as if nothing had been
armed, and whatever happens to what was armed, dropping it is always right. So a slice that was armed is used only where
it is a part of the scan, together with the rows that came into its range later:

    armed   12.000 @40 · 12.000 @41 · 12.500 @17             built while second 11 was over
    then    12.000 @42 (a lower key than 12.500 @17)         read meanwhile: in the store, not in the slice
    tick    12 → the slice, 12.000 @42, then all rows behind 12.500 @17
"""

from collections.abc import Callable, Iterator

from kafka_timers.service.callbacks import Slice
from kafka_timers.service.partition import parts_of
from kafka_timers.service.runs import Row

_ABOVE_ALL = b"\xff"


class Room:
    """
    Bytes of requests whose callbacks may be held ready, for all partitions of a process.

    Attributes:
        bytes: that are left; the last stride of a slice may bring it below 0.
    """

    def __init__(self, size: int) -> None:
        self.bytes = size


class Armed:
    """
    What is ready of the rows from *start* on and before key *end*.

    Args:
        built: holds the callbacks; it is filled by `more`.
        rows: those of the store, as they are now.
        start: key.
        end: key, excluded.
        room: shrinks by what is built.
    """

    def __init__(self, built: Slice, rows: Iterator[Row], start: bytes, end: bytes, room: Room) -> None:
        self.slice = built
        self.start, self.end = start, end
        self._rows = rows
        self._room = room
        self._lowest = _ABOVE_ALL

    async def more(self) -> bool:
        """
        Build for a few milliseconds; False when there are no rows left, or no room.

        Raises:
            aiokafka.errors.KafkaError: no broker tells what callback topics there are; this is of no more use.
        """
        before = self.slice.bytes
        has_more = await self.slice.add(self._rows)
        self._room.bytes -= self.slice.bytes - before
        return has_more and not self.slice.is_full and self._room.bytes > 0

    def added(self, lowest: bytes) -> None:
        """Take note that rows came into the store, none with a key below *lowest*."""
        self._lowest = min(self._lowest, lowest)

    def is_part_of(self, start: bytes, end: bytes) -> bool:
        """Tell whether the rows from *start* on and before key *end* begin with those that were built."""
        return bool(self.slice.taken.offsets) and self.start == start and self.end <= end

    def left(self, rows: Callable[[bytes, bytes], Iterator[Row]], end: bytes) -> tuple[Iterator[Row], Iterator[Row]]:
        """
        Return the rows that came into the range of those that were built, and the ones behind it.

        Args:
            rows: returns what the store has from one key on and before another one, in order.
            end: key, excluded.
        """
        behind = self.slice.taken.through + b"\0"
        if self._lowest >= behind:
            return iter(()), rows(behind, end)
        built = set(self.slice.taken.offsets)
        missed = ((key, row) for key, row in rows(self.start, behind) if parts_of(key)[2] not in built)
        return missed, rows(behind, end)

    def release(self) -> None:
        """Give its room back."""
        self._room.bytes += self.slice.bytes
        self._room = Room(0)
