"""Stores on a disk that is full: nothing waits for it, and a partition is judged by the disk of its own folder."""

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from disks import SmallDisk, small_disk

from kafka_timers.core.changes import Changes, Head
from kafka_timers.core.keys import row_key
from kafka_timers.worker import room
from kafka_timers.worker.faults import Fault, Kind
from kafka_timers.worker.room import DiskFullError, Room, is_full
from kafka_timers.worker.store import TimerStore
from kafka_timers.worker.store_memory import StoreMemory
from kafka_timers.worker.stores import StoreFolders

MIB = 1 << 20
# RocksDB rests for a second after a flush that has failed, and so does a caller that waits for it; a busy machine may
# hold this process up for some tenths.
WAITED_S = 0.9


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", 40) as made:
        yield made


def rows(first: int, count: int) -> Changes:
    """Return *count* requests of 10 KB each, which do not compress."""
    changes = Changes(Head(first + count, 1000, 0, 0, None))
    changes.rows.extend((row_key(100_000, first + number), os.urandom(10_000)) for number in range(count))
    return changes


def test_a_write_for_which_there_is_no_room_is_refused_and_changes_nothing(disk: SmallDisk) -> None:
    store = TimerStore(disk.folder / "3", b"identity", StoreMemory())
    store.write(rows(0, 10))
    disk.fill()
    with pytest.raises(DiskFullError, match=f"the disk of {disk.folder / '3'} is full: 0.0 MiB are free, and 4.0 MiB"):
        store.write(rows(10, 10))
    assert store.head() == Head(10, 1000, 0, 0, None)
    disk.free()
    store.write(rows(10, 10))
    assert len(list(store.kept_rows(row_key(101_000, 0)))) == 20
    store.close()


@pytest.mark.parametrize("looks_ahead", [True, False], ids=["with a reserve", "without one"])
async def test_no_store_holds_up_the_process_when_its_disk_is_full(
    disk: SmallDisk, monkeypatch: pytest.MonkeyPatch, looks_ahead: bool
) -> None:
    """Without a reserve RocksDB itself meets the full disk, as it does when somebody else is quicker."""
    if not looks_ahead:
        monkeypatch.setattr(room, "_RESERVE_SHARE", 0.0)
    folders = StoreFolders(disk.folder, "identity", 0)
    stores = [folders.open(number) for number in range(4)]
    gaps_s, over = list[float](), asyncio.Event()

    async def beat() -> None:
        while not over.is_set():
            before_s = time.monotonic()
            await asyncio.sleep(0.01)
            gaps_s.append(time.monotonic() - before_s)

    beating = asyncio.create_task(beat())
    refused: list[Exception] = []
    for number in range(1_000):
        for store in stores:
            try:
                store.write(rows(10 * number, 10))
            except Exception as error:
                refused.append(error)
        await asyncio.sleep(0)
    await asyncio.gather(*[folders.close(store) for store in stores])
    over.set()
    await beating
    assert refused
    assert all(map(is_full, refused))
    # The host may rest as well, but not each time.
    assert sum(gap_s > WAITED_S for gap_s in gaps_s) < len(stores)


def test_a_store_whose_disk_is_full_comes_back_as_it_was_last_flushed(disk: SmallDisk) -> None:
    store = TimerStore(disk.folder / "0", b"identity", StoreMemory())
    store.write(rows(0, 10))
    store.close()
    store = TimerStore(disk.folder / "0", b"identity", StoreMemory())
    store.write(rows(10, 10))
    disk.fill()
    store.close()
    disk.free()
    store = TimerStore(disk.folder / "0", b"identity", StoreMemory())
    assert store.head() == Head(10, 1000, 0, 0, None)
    store.close()


def test_each_partition_is_judged_by_the_disk_that_its_folder_is_on(disk: SmallDisk) -> None:
    stores = StoreFolders(disk.folder.parent, "identity", 0)
    disk.fill()
    own = StoreFolders(disk.folder, "identity", 0)
    assert own.free_bytes([]) == own.free_bytes([1]) == 0
    with pytest.raises(DiskFullError):
        own.check_room(1)
    stores.check_room(1)
    assert stores.free_bytes([1]) > 0


def test_a_store_that_was_dropped_waits_for_as_much_room_as_it_had(disk: SmallDisk) -> None:
    """With less it would fill the disk anew, and all that it reads meanwhile would be in vain."""
    stores = StoreFolders(disk.folder, "identity", 0)
    store = stores.open(0)
    for first in range(0, 2_000, 100):
        store.write(rows(first, 100))
    store.close()
    stores.make_room(0)
    assert not (disk.folder / "0").exists()
    # Of 40 MiB the store had some 20, and 4 are kept free, once more for new requests.
    other = disk.folder / "other"
    other.write_bytes(bytes(16 * MIB))
    with pytest.raises(DiskFullError):
        stores.check_room(0)
    stores.check_room(1)
    other.write_bytes(bytes(8 * MIB))
    stores.check_room(0)
    stores.open(0).close()
    other.write_bytes(bytes(16 * MIB))
    # It is there again.
    stores.check_room(0)


@pytest.mark.parametrize(("size", "reserve"), [(1 << 40, 64 * MIB), (100 * MIB, 10 * MIB)])
def test_a_large_disk_keeps_64_mib_free_and_a_small_one_a_tenth(
    monkeypatch: pytest.MonkeyPatch, size: int, reserve: int
) -> None:
    free = [reserve, reserve - 4096]

    def answer(_: object) -> os.statvfs_result:
        return os.statvfs_result((4096, 4096, size // 4096, 0, free.pop(0) // 4096, 0, 0, 0, 0, 255))

    monkeypatch.setattr(os, "statvfs", answer)
    room_there = Room(Path("/anywhere"))
    room_there.check()
    with pytest.raises(DiskFullError):
        room_there.check()


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (Exception("IO error: No space left on device: While appending to file: /data/3/000016.sst"), True),
        (Exception("DB::Open() failed --- Unable to persist Options file: IO error: Disk quota exceeded"), True),
        (OSError(28, "No space left on device"), True),
        (Exception("IO error: While lock file: Permission denied"), False),
        (ValueError("No space left on device"), False),
    ],
)
def test_a_full_disk_is_told_from_other_faults(error: Exception, full: bool) -> None:
    assert (Fault.of(error).kind is Kind.DISK_FULL) == is_full(error) == full
