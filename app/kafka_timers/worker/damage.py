"""What RocksDB's errors say of the files of a store, and the end of a store that is of no more use."""

import shutil
from pathlib import Path

# A file that cannot be read is of no more use than one with other bytes: the log has all that it had.
_DAMAGE = ("Corruption:", "No such file or directory", "Not implemented", "IO error: While pread")


def is_damage(error: Exception) -> bool:
    """Tell whether *error* says that the files of a store are damaged; RocksDB tells by its message alone."""
    return any(sign in str(error) for sign in _DAMAGE)


def is_of_the_disk(error: Exception) -> bool:
    """Tell whether *error* is one of RocksDB about its files: no room, no right, damage, or a lock."""
    return is_damage(error) or (type(error) is Exception and str(error).startswith("IO error: "))


def is_own_lock(error: Exception) -> bool:
    """Tell whether *error* says that this very process has the store open already."""
    return "lock hold by current process" in str(error)


def destroy(folder: Path) -> None:
    """Remove the store in *folder*, whatever state it is in."""
    shutil.rmtree(folder, ignore_errors=True)
