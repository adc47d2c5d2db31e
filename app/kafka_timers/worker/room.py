"""
Free space on the disks of stores.

RocksDB writes its tables in the background. So a full disk shows late, as a store that takes nothing more and needs
seconds to close. Therefore some space is reserved for RocksDB's pending writes, and each write checks first that it is
there. A partition is judged by its own folder, which may be on a disk of its own.
"""

import errno
import os
from pathlib import Path

from kafka_timers.errors import KafkaTimersError

# Twice the most that a worker's stores keep in memory. A small disk reserves a share of its size instead.
_RESERVE_BYTES, _RESERVE_SHARE = 64 << 20, 0.1
_MIB = 1 << 20


class DiskFullError(KafkaTimersError):
    """The disk of a store has no room left. The text names the folder and the free space that it needs."""


class Room:
    """Free space on the disk of *folder*. The folder need not exist yet."""

    def __init__(self, folder: Path) -> None:
        # Kept as text, since each write needs it.
        self._path = str(folder.absolute())

    @property
    def free_bytes(self) -> int:
        """Free bytes; 0 if the disk has gone."""
        return self._look()[0]

    @property
    def reserve_bytes(self) -> int:
        """Bytes that are kept free for RocksDB's pending writes."""
        return _reserve(self._look()[1])

    def check(self, for_bytes: int = 0) -> None:
        """
        Check that there is room for *for_bytes* beside the reserve. This takes some microseconds.

        Raises:
            DiskFullError: there is no room.
        """
        free, size = self._look()
        wanted = _reserve(size) + for_bytes
        if free < wanted:
            raise DiskFullError(
                f"the disk of {self._path} is full: {free / _MIB:.1f} MiB are free, and {wanted / _MIB:.1f} MiB have "
                "to be. Make room there, and the partition goes on by itself"
            )

    def _look(self) -> tuple[int, int]:
        """Return the free bytes and the size of the disk."""
        folder = self._path
        while True:
            try:
                disk = os.statvfs(folder)
                return disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
            except FileNotFoundError:
                above = os.path.dirname(folder)
                if above == folder:
                    return 0, 0
                folder = above
            except OSError:
                return 0, 0


def _reserve(size: int) -> int:
    return min(_RESERVE_BYTES, int(size * _RESERVE_SHARE))


def is_full(error: BaseException) -> bool:
    """Tell whether *error* means that the disk of a store is full. Only RocksDB's message shows it."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    signs = ("No space left on device", "Disk quota exceeded")
    return isinstance(error, DiskFullError) or (type(error) is Exception and any(sign in str(error) for sign in signs))
