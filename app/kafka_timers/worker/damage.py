"""Recognises RocksDB's errors about the files of a store, and removes a store that cannot be used any more."""

import shutil
from pathlib import Path

# An unreadable file is as useless as one with wrong bytes. The log still has all the requests.
_DAMAGE = ("Corruption:", "No such file or directory", "Not implemented", "IO error: While pread")


def is_damage(error: Exception) -> bool:
    """Tell whether *error* means that the files of a store are damaged. Only RocksDB's message shows it."""
    return any(sign in str(error) for sign in _DAMAGE)


def is_of_the_disk(error: Exception) -> bool:
    """Tell whether *error* is RocksDB's about its files: no space, no permission, damage, or a lock."""
    return is_damage(error) or (type(error) is Exception and str(error).startswith("IO error: "))


def is_own_lock(error: Exception) -> bool:
    """Tell whether *error* means that this process already has the store open."""
    return "lock hold by current process" in str(error)


def destroy(folder: Path) -> None:
    """Remove the store in *folder*, in any state."""
    shutil.rmtree(folder, ignore_errors=True)
