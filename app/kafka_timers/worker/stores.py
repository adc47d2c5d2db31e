"""The stores of one worker: a folder for each partition."""

import logging
from pathlib import Path

from kafka_timers.worker.store import StoreMemory, TimerStore, destroy, is_damage

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

    def open(self, number: int) -> TimerStore:
        """
        Open the store of partition *number*; it is made when missing, and made anew when damaged.

        Raises:
            Exception: RocksDB cannot open it.
        """
        folder, identity = self._folder(number), f"{self._identity}/{number}/{self._horizon_s}".encode()
        try:
            return TimerStore(folder, identity, self._memory)
        except Exception as error:
            if not is_damage(error):
                raise
            log.warning("partition %d: its store is damaged and is rebuilt from the log: %s", number, error)
            destroy(folder)
            return TimerStore(folder, identity, self._memory)

    def destroy(self, number: int) -> None:
        """Remove the store of partition *number*, which is closed, whatever state it is in."""
        destroy(self._folder(number))

    def _folder(self, number: int) -> Path:
        return self._data_dir / str(number)
