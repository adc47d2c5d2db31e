"""The stores of one worker: a folder for each partition."""

import asyncio
import logging
from collections.abc import Iterable
from pathlib import Path

from kafka_timers.worker.damage import destroy, is_damage
from kafka_timers.worker.room import Room
from kafka_timers.worker.store import TimerStore
from kafka_timers.worker.store_memory import StoreMemory

log = logging.getLogger(__name__)


class StoreFolders:
    """
    Stores in the folders of *data_dir* that are named by partition.

    Args:
        data_dir: of this worker alone.
        identity: what a store must say of itself to be of use, before the number of its partition.
        horizon_s: another horizon is another store, since it tells what is kept.
    """

    def __init__(self, data_dir: Path, identity: str, horizon_s: int) -> None:
        self._data_dir = data_dir
        self._identity = identity
        self._horizon_s = horizon_s
        self._memory = StoreMemory()
        # Of stores that were dropped because their disk is full: their sizes.
        self._dropped: dict[int, int] = {}

    def check_room(self, number: int) -> None:
        """
        Check that the disk of partition *number* has room for its store.

        One that was dropped needs room for what it had before: to begin with less would end as it did.

        Raises:
            DiskFullError: it has not; the text says how much has to be free.
        """
        room = Room(self._folder(number))
        dropped = self._dropped.get(number)
        # Once more the reserve, since what just fits would soon be full again.
        room.check(0 if dropped is None else dropped + room.reserve_bytes)

    def free_bytes(self, numbers: Iterable[int]) -> int:
        """Return how much is free on the fullest of the disks that the partitions *numbers* are on."""
        return min(Room(folder).free_bytes for folder in (self._data_dir, *map(self._folder, numbers)))

    def open(self, number: int) -> TimerStore:
        """
        Open the store of partition *number*; it is made when missing, and made anew when damaged.

        Raises:
            Exception: RocksDB cannot open it.
        """
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

    async def close(self, store: TimerStore) -> None:
        """Close *store*, and let all else go on meanwhile; also when this is cancelled it is closed afterwards."""
        store.end_reading()
        closing = asyncio.create_task(asyncio.to_thread(store.close))
        try:
            await asyncio.shield(closing)
        finally:
            # Whoever opens the folder next would find it locked.
            await closing

    def destroy(self, number: int) -> None:
        """Remove the store of partition *number*, which is closed, whatever state it is in."""
        destroy(self._folder(number))

    def make_room(self, number: int) -> None:
        """Remove the store of partition *number*, which is closed, and remember how much room it needs."""
        files = [each.stat().st_size for each in self._folder(number).glob("*") if each.is_file()]
        self._dropped[number] = max(sum(files), self._dropped.get(number, 0))
        self.destroy(number)

    def _folder(self, number: int) -> Path:
        return self._data_dir / str(number)
