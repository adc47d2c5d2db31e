"""
An upgrade from the first version, and the way back, in the middle of a second.

`store_of_format_4.json` was written by that version (0.1.0): every kind of row, in the middle of a scan of which
the first slice is sealed. The version of today must read it, and must write the same while some worker of the group is
of the first version.
"""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rocksdict import Options, Rdict

from kafka_timers.core.accepting import accept
from kafka_timers.core.changes import Scan
from kafka_timers.core.contents import Contents, digest_of
from kafka_timers.core.keys import first_key, is_late, parts_of
from kafka_timers.core.partition import Partition
from kafka_timers.core.reconcile import reconcile, unreconciled
from kafka_timers.core.wire import Future, Record, Reply, Sealed, end_ms_of
from kafka_timers.worker.store import TimerStore
from kafka_timers.worker.store_memory import StoreMemory

WRITTEN: dict[str, Any] = json.loads((Path(__file__).parent / "store_of_format_4.json").read_text())
IDENTITY = b"cluster/timer-request/0/0"
COMPLETE = Sealed(first=1, last=10, fence=2)
SLICE = Sealed.FromString(bytes.fromhex(WRITTEN["slice"]))
FAMILIES = {"default": "_db", "ids": "_ids", "side": "_side"}


def as_written(folder: Path) -> TimerStore:
    """Return the store that the first version has left behind."""
    raw = Options(raw_mode=True)
    raw.create_if_missing(True)
    raw.create_missing_column_families(True)
    families = {name: Options(raw_mode=True) for name in ("ids", "side")}
    db = Rdict(str(folder), options=raw, column_families=families)
    for name, rows in WRITTEN["stores"].items():
        family = db if name == "default" else db.get_column_family(name)
        for key, row in rows:
            family[bytes.fromhex(key)] = bytes.fromhex(row)
    # RocksDB keeps the folder locked while anything of it is left.
    del family
    db.close()
    return TimerStore(folder, IDENTITY, StoreMemory())


# Keys of the numbers of batches, which an earlier version passes over.
NUMBERS = (first_key(0) + b"n", b"\xff", b"n")


def written_by(store: TimerStore) -> dict[str, list[list[str]]]:
    """Return all that *store* holds and the first version knows."""
    return {
        name: [
            [key.hex(), row.hex()] for key, row in cast(Any, getattr(store, attribute)).items() if key not in NUMBERS
        ]
        for name, attribute in FAMILIES.items()
    }


def record(offset: int, key: bytes, **more: object) -> Record:
    value = Future(**({"callBackTopic": "cb"} | more)).SerializeToString()  # type: ignore[arg-type]
    return cast(Record, SimpleNamespace(key=key, value=value, offset=offset, timestamp=9_000))


FETCHES = [
    [record(2, b"20"), record(3, b"20"), record(4, b"20", timerId="a", replyTopic="r")],
    [record(5, b"21", millis=7)],
    [record(6, b"9")],
    [record(7, b"20", timerId="b"), record(8, b"x", timerId="b", cancel=True, replyTopic="r")],
    [record(9, b"soon")],
    [record(10, b"30", timerId="a", replyTopic="r")],
]


def live(store: TimerStore, partition: Partition) -> None:
    """Read the records that the first version had read, and open the scan that it had open."""

    def read(records: list[Record]) -> None:
        accepted = accept(records, partition, 1, store.versions)
        changes = partition.read(records[-1].offset + 1, accepted.rows, accepted.offsets, accepted.decided)
        store.write(changes)
        partition.apply(changes)

    for records in FETCHES:
        read(records)
    partition.begin(16_000)
    read([record(11, b"14")])


def test_a_store_of_the_first_version_is_read(tmp_path: Path) -> None:
    store = as_written(tmp_path)
    head = store.head()
    assert head
    assert (head.position, head.sealed_ms, head.snapshot, head.scan) == (12, 11_000, 2, Scan(16_000, 11))
    assert store.counts()[0][0] == 7
    assert [(answer.offset, answer.outcome) for answer in store.answers()] == [
        (4, Reply.UNKNOWN),
        (8, Reply.CANCELLED),
        (10, Reply.MOVED),
    ]
    store.close()


def test_an_open_scan_of_the_first_version_is_finished(tmp_path: Path) -> None:
    store, partition = as_written(tmp_path), Partition(0)
    head = store.head()
    assert head
    assert partition.acquire([COMPLETE, SLICE], head)
    assert (partition.scan, partition.must_read_to) == (Scan(16_000, 11, SLICE.through), 11)
    partition.restore(store.counts(), store.ignored())
    before = unreconciled(partition, head)
    changes = reconcile(partition, store.kept_rows(before), store.marks(before), store.versions, has_ids=store.has_ids)
    store.write(changes)
    partition.apply(changes)
    # The rows that the slice has fired are gone; those read during the scan are left for the next tick.
    left = [(parts_of(key), is_late(key)) for key, _ in store.rows(*partition.keys_left())]
    assert left == []
    assert [(parts_of(key), is_late(key)) for key, _ in store.kept_rows(before)] == [((14_000, 11), True)]
    seal = partition.seal(Contents(), complete=True)
    assert (seal.first, seal.last, seal.first_ms, seal.end_ms) == (11, 15, 11_000, 16_000)
    store.close()


def test_the_way_back_finds_a_store_as_the_first_version_writes_it(tmp_path: Path) -> None:
    store, partition = TimerStore(tmp_path, IDENTITY, StoreMemory()), Partition(0, format=1)
    partition.acquire([COMPLETE], None)
    live(store, partition)
    assert written_by(store) == WRITTEN["stores"]
    store.close()


@pytest.mark.parametrize("format", [1, 2])
def test_the_way_back_finds_seals_that_say_the_same(tmp_path: Path, format: int) -> None:
    store, partition = TimerStore(tmp_path, IDENTITY, StoreMemory()), Partition(0, format=format)
    partition.acquire([COMPLETE], None)
    live(store, partition)
    contents = Contents([6, 9], [9], late=2, through=SLICE.through)
    seal = partition.seal(contents, complete=False)
    assert end_ms_of(seal) == end_ms_of(SLICE) == 16_000
    if format > 1:
        # Fields that the first version does not know, and skips.
        for name in ("format", "first_ms", "end_ms", "conditions_from", "digests", "fired_digest"):
            seal.ClearField(name)
        # That no worker reads.
        seal.digest = digest_of([6])
    assert seal.SerializeToString(deterministic=True).hex() == WRITTEN["slice"]
    store.close()
