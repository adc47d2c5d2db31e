"""Disks that are small enough to be filled, for tests of all folders."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class SmallDisk:
    """A file system in memory, of some MiB."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self) -> None:
        """Leave no byte free, as somebody else's file might."""
        with self._ballast.open("ab", buffering=0) as file:
            for size in (1 << 16, 1):
                try:
                    while file.write(bytes(size)) == size:
                        pass
                except OSError:
                    continue

    def free(self) -> None:
        """Give back the space that `fill` took."""
        self._ballast.unlink()

    def resize(self, mib: int) -> None:
        """Give it another size, as to a volume that is enlarged while it is used."""
        subprocess.run(["mount", "-o", f"remount,size={mib}m", self.folder], check=True)


@contextmanager
def small_disk(folder: Path, mib: int) -> Iterator[SmallDisk]:
    """Yield *folder* as a disk of its own; the test is skipped where this user may mount none."""
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "kafka-timers-test", folder]
    try:
        made = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount here, so there is no small disk to fill")
    if made.returncode:
        pytest.skip(f"needs the right to mount a small disk, as root has it: {made.stderr.strip()}")
    try:
        yield SmallDisk(folder)
    finally:
        # Lazily: a process that a failed test has left may still be in it.
        subprocess.run(["umount", "--lazy", folder], check=True)
