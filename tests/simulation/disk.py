"""
The disks of workers: real RocksDB in temporary folders, in memory where the host has such a place.

A store is flushed at drawn moments only, so a worker that is killed comes back with one that is some batches old. No
thread of RocksDB runs meanwhile, since a seed could not tell that again.
"""

import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from weakref import WeakSet

from rocksdict import Options

from kafka_timers.worker.room import DiskFullError
from kafka_timers.worker.store import TimerStore
from kafka_timers.worker.store_memory import StoreMemory
from simulation.faults import Faults

# How often writes get to the disk, of all writes and of the moments at which a worker is killed.
_FLUSHED, _FLUSHED_WHEN_KILLED = 0.005, 0.4


@contextmanager
def scratch() -> Iterator[Path]:
    """Yield a folder for the disks of one history."""
    shared_memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared_memory if shared_memory.is_dir() else None) as folder:
        yield Path(folder)


class SmallMemory(StoreMemory):
    """Memory for stores of a few rows: opening one costs a third of the time with buffers of megabytes."""

    def __init__(self) -> None:
        super().__init__(1 << 20, 1 << 20)

    def options(self) -> Options:
        """Return the options to open one store with."""
        options = super().options()
        options.set_write_buffer_size(256 << 10)
        options.set_disable_auto_compactions(True)
        return options


class Disk:
    """
    The disk of one worker.

    Args:
        folder: where its stores lie.
        faults: the faults of the history.
        seed: of the moments of flushing; None flushes when a store is closed.

    Attributes:
        folder: another one after `lose_power`.
        is_full: whether nothing can be written.
        databases: that are open.
        killed: called when the worker is killed while it closes a store.
    """

    def __init__(self, folder: Path, faults: Faults, seed: object = None) -> None:
        self.folder = folder
        self.faults = faults
        self.is_full = False
        self.killed: Callable[[], None] = lambda: None
        self._rng = None if seed is None else random.Random(f"{seed}/{folder.name}")
        self.databases: WeakSet[_Database] = WeakSet()
        self._backup: Path | None = None
        self._moves = 0

    def check(self, for_bytes: int = 0) -> None:
        """
        Stand in for `Room.check`.

        Raises:
            DiskFullError: there is no room.
        """
        if self.is_full:
            raise DiskFullError(f"the disk of {self.folder.name} is full")

    def write(self) -> None:
        """
        Let RocksDB write, or not: a store that has looked for room may find none a moment later.

        Raises:
            Exception: there is none, in the words of RocksDB.
        """
        if self.is_full or self.faults.drawn("disk_write_fails"):
            raise Exception(f"IO error: No space left on device: While appending to file: {self.folder.name}")

    def flushes(self) -> bool:
        """Draw whether all writes so far get to the disk."""
        return self._rng is not None and self._rng.random() < _FLUSHED

    def lose_power(self, *, keeps: bool = True, old: bool = False) -> None:
        """Copy all writes so far to another folder: the worker that is killed holds the one from before."""
        if self._rng and self._rng.random() < _FLUSHED_WHEN_KILLED:
            self._flush()
        source = self._backup if old and self._backup else self.folder
        self._moves += 1
        folder = self.folder.with_name(f"{self.folder.name.split('-')[0]}-{self._moves}")
        if keeps and source.is_dir():
            shutil.copytree(source, folder)
        self.folder = folder

    def back_up(self) -> None:
        """Keep a copy, that may come back with `lose_power`."""
        self._flush()
        self._backup = self.folder.with_name(f"{self.folder.name.split('-')[0]}-backup")
        shutil.rmtree(self._backup, ignore_errors=True)
        if self.folder.is_dir():
            shutil.copytree(self.folder, self._backup)

    def _flush(self) -> None:
        for database in list(self.databases):
            database.flush_all()

    def open_stores(self) -> list[str]:
        """Return which stores in the folder are open in this process, as far as the system tells."""
        descriptors = Path("/proc/self/fd")
        if not descriptors.is_dir():
            return []
        targets = []
        for each in os.listdir(descriptors):
            try:
                targets.append(os.readlink(descriptors / each))
            except OSError:
                continue
        return sorted({path for path in targets if path.startswith(f"{self.folder}/") and path.endswith("/LOCK")})


class _Database:
    """A RocksDB whose disk may be full, and whose process may be killed at the worst moment."""

    def __init__(self, db: Any, families: Sequence[Any], disk: Disk) -> None:
        self._db, self._families, self._disk = db, families, disk
        disk.databases.add(self)

    def write(self, batch: Any) -> None:
        self._disk.write()
        self._db.write(batch)
        if self._disk.flushes():
            self.flush_all()

    def flush_all(self) -> None:
        # As RocksDB does by itself with full buffers, all families at once: nobody can die in between here.
        for family in (*self._families, self._db):
            family.flush()

    def flush(self) -> None:
        self._db.flush()
        if self._disk.faults.drawn("killed_while_closing"):
            self._disk.killed()

    def close(self) -> None:
        self._disk.databases.discard(self)
        self._families = ()
        if self._disk.faults.drawn("killed_while_closing"):
            self._disk.killed()
        self._db.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    def __getitem__(self, key: bytes) -> Any:
        return self._db[key]


class DiskStore(TimerStore):
    """
    The real store on a disk that may be full.

    Args:
        folder: see `TimerStore`.
        identity: the same.
        memory: the same.
        disk: that the folder lies on.
    """

    def __init__(self, folder: Path, identity: bytes, memory: StoreMemory, disk: Disk) -> None:
        disk.write()
        super().__init__(folder, identity, memory)
        self._disk = self._room = disk  # type: ignore[assignment]
        self._db = _Database(self._db, (self._ids, self._side), disk)  # type: ignore[assignment]

    @property
    def is_behind(self) -> bool:
        """Whether the disk is slower than the writes."""
        self._disk.check()
        return self._disk.faults.drawn("disk_is_behind")
