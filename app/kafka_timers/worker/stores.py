"""The stores of one worker: a folder for each partition."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from kafka_timers.core.changes import Head
from kafka_timers.worker.damage import destroy, is_damage
from kafka_timers.worker.room import Room
from kafka_timers.worker.store import TimerStore
from kafka_timers.worker.store_memory import StoreMemory

log = logging.getLogger(__name__)


def stores_in(folder: Path) -> dict[int, float]:
    """Return the partitions that have a store in *folder*, each with the UNIX second of its last change."""
    return {
        int(each.name): each.stat().st_mtime for each in folder.iterdir() if each.name.isdecimal() and each.is_dir()
    }


def head_in(opened: Callable[[], TimerStore]) -> Head | None:
    """Open a store, and return its head, as `TimerStore.head`."""
    store = opened()
    try:
        return store.head()
    finally:
        store.close()


class StoreFolders:
    """
    Stores in folders of *data_dir*, named by partition.

    Args:
        identity: first part of the identity that a store must have; the partition number follows.
        horizon_s: horizon in seconds, a part of the identity, since it decides which requests are kept.

    Attributes:
        alone: the offset up to which a store has read, for each that has requests which have left the log and wait.
    """

    def __init__(self, data_dir: Path, identity: str, horizon_s: int) -> None:
        self._data_dir = data_dir
        self._identity = identity
        self._horizon_s = horizon_s
        self._memory = StoreMemory()
        # Sizes of stores that were dropped because their disk was full.
        self._dropped: dict[int, int] = {}
        self.alone: dict[int, int] = {}

    @property
    def numbers(self) -> list[int]:
        """The partitions that have a store here."""
        return [*stores_in(self._data_dir)]

    def check_room(self, number: int) -> None:
        """
        Check that the disk of partition *number* has room for its store.

        A dropped store needs room for its former size; with less it would soon be full again.

        Raises:
            DiskFullError: it has no room; the text says how much must be free.
        """
        room = Room(self._folder(number))
        dropped = self._dropped.get(number)
        # With twice the reserve, since a store that only just fits would soon be full again.
        room.check(0 if dropped is None else dropped + room.reserve_bytes)

    def free_bytes(self, numbers: Iterable[int]) -> int:
        """Return the free bytes of the fullest disk that holds one of the partitions *numbers*."""
        return min(Room(folder).free_bytes for folder in (self._data_dir, *map(self._folder, numbers)))

    def open(self, number: int) -> TimerStore:
        """Open the store of partition *number*. It is created if missing, and emptied if damaged."""
        self._dropped.pop(number, None)
        folder, identity = self._folder(number), f"{self._identity}/{number}/{self._horizon_s}".encode()
        try:
            return TimerStore(folder, identity, self._memory)
        except Exception as error:
            if not is_damage(error):
                raise
            log.warning("partition %d: its store is damaged and is rebuilt from the log: %s", number, error)
            destroy(folder)
            return TimerStore(folder, identity, self._memory)

    async def head(self, number: int) -> Head | None:
        """Return the head of the closed store of partition *number*; returns and raises as `TimerStore.head`."""
        return await asyncio.to_thread(head_in, partial(self.open, number))

    async def close(self, store: TimerStore) -> None:
        """Close *store* in the background. If this call is cancelled, it still waits until the store is closed."""
        store.end_reading()
        closing = asyncio.create_task(asyncio.to_thread(store.close))
        try:
            await asyncio.shield(closing)
        finally:
            # Otherwise the next opening of the folder would find it locked.
            await closing

    def destroy(self, number: int) -> None:
        """Remove the closed store of partition *number*, in any state."""
        destroy(self._folder(number))

    def make_room(self, number: int) -> None:
        """Remove the closed store of partition *number*, and remember its size, unless it is the only copy."""
        if number in self.alone:
            return
        files = [each.stat().st_size for each in self._folder(number).glob("*") if each.is_file()]
        self._dropped[number] = max(sum(files), self._dropped.get(number, 0))
        self.destroy(number)

    def _folder(self, number: int) -> Path:
        return self._data_dir / str(number)
