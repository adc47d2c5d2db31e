"""
Room on the disks of stores.

RocksDB writes its tables in the background. A disk that is full therefore shows late, as a store that takes nothing
more and needs seconds to be closed. So some room is left for what RocksDB still has to write, and each write asks first
whether it is there. A partition is judged by its own folder, which may be a disk of its own.
"""

import errno
import os
from pathlib import Path

from kafka_timers.errors import KafkaTimersError

# Twice what the stores of a worker have in memory at most; a small disk gives up less of itself.
_RESERVE_BYTES, _RESERVE_SHARE = 64 << 20, 0.1
_MIB = 1 << 20


class DiskFullError(KafkaTimersError):
    """The disk of a store has no room left; the text says which folder, and how much has to be free."""


class Room:
    """The room on the disk of *folder*, which need not be there yet."""

    def __init__(self, folder: Path) -> None:
        # As text, since each write asks.
        self._path = str(folder.absolute())

    @property
    def free_bytes(self) -> int:
        """How much may still be written; 0 when the disk is gone."""
        return self._look()[0]

    @property
    def reserve_bytes(self) -> int:
        """How much is left free for what RocksDB still has to write."""
        return _reserve(self._look()[1])

    def check(self, for_bytes: int = 0) -> None:
        """
        Check that there is room for *for_bytes* beside the reserve; takes some microseconds.

        Raises:
            DiskFullError: there is not.
        """
        free, size = self._look()
        wanted = _reserve(size) + for_bytes
        if free < wanted:
            raise DiskFullError(
                f"the disk of {self._path} is full: {free / _MIB:.1f} MiB are free, and {wanted / _MIB:.1f} MiB have "
                "to be. Make room there, and the partition goes on by itself"
            )

    def _look(self) -> tuple[int, int]:
        """Return how many bytes are free, and how many there are."""
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
    """Return how much of a disk of *size* bytes is left free."""
    return min(_RESERVE_BYTES, int(size * _RESERVE_SHARE))


def is_full(error: BaseException) -> bool:
    """Tell whether *error* says that the disk of a store is full; RocksDB tells by its message alone."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    signs = ("No space left on device", "Disk quota exceeded")
    return isinstance(error, DiskFullError) or (type(error) is Exception and any(sign in str(error) for sign in signs))
