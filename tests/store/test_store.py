"""The rows of a partition in a real RocksDB: order, bounds, and the rows that a start finds."""

import dataclasses
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from patience import LIMIT_S

from kafka_timers.core import rows as batches
from kafka_timers.core.changes import Changes, Head, Mark, Scan
from kafka_timers.core.decisions import decide
from kafka_timers.core.keys import (
    FIRST_MS,
    Copied,
    batch_key,
    first_key,
    is_batch,
    is_late,
    late_key,
    moment_of,
    parts_of,
    row_key,
)
from kafka_timers.core.memory_store import MemoryStore
from kafka_timers.core.partition import Partition
from kafka_timers.core.reconcile import reconcile, unreconciled
from kafka_timers.core.versions import Answer, Decided, Original, TimerRecord, Version
from kafka_timers.core.wire import ID_MEMORY_S, Future, Reply, Sealed
from kafka_timers.errors import NewerFormatError
from kafka_timers.worker.damage import destroy, is_damage
from kafka_timers.worker.store import TimerStore
from kafka_timers.worker.store_head import FORMAT
from kafka_timers.worker.store_memory import StoreMemory

IDENTITY = b"cluster/timer-request"
MEMORY = StoreMemory()
# Bounds of all rows.
FIRST, LAST = first_key(FIRST_MS), first_key(10**14)


def opened(folder: Path, identity: bytes = IDENTITY) -> TimerStore:
    return TimerStore(folder, identity, MEMORY)


def keep(store: TimerStore, partition: Partition, changes: Changes) -> None:
    """Keep *changes* in the store, then in the state, as the follower of a partition does."""
    store.write(changes)
    partition.apply(changes)


def drop(store: TimerStore, partition: Partition, before: bytes) -> None:
    """Drop the fired rows, which are all below the key *before*."""
    store.write(Changes(partition.head, drop_before=before))


def filled(store: TimerStore, partition: Partition, seconds: list[int]) -> list[bytes]:
    """Keep a request per second, at the next offsets, and return their keys."""
    start, end = partition.position, partition.position + len(seconds)
    keys = [partition.place(second * 1000, start + number) or b"" for number, second in enumerate(seconds)]
    rows = [(key, b"request of %d" % second) for key, second in zip(keys, seconds, strict=True)]
    keep(store, partition, partition.read(end, rows, range(start, end)))
    return keys


def head_of(store: TimerStore) -> Head:
    head = store.head()
    assert head
    return head


def acquired(store: TimerStore, partition: Partition, seals: list[Sealed]) -> None:
    """Acquire *partition*, and bring the store in line with the *seals*."""
    local = head_of(store)
    assert partition.acquire(seals, local, ignored=store.ignored())
    partition.restore(store.counts())
    before = unreconciled(partition, local)
    rows, marks = store.kept_rows(before), store.marks(before)
    keep(store, partition, reconcile(partition, rows, marks, store.versions, has_ids=store.has_ids))


def rewrite_format(store: TimerStore, number: int) -> None:
    """Let *store* be of format *number*."""
    meta = first_key(0) + b"m"
    store._db[meta] = bytes([number]) + store._db[meta][1:]


def read_all(folder: Path) -> None:
    """Open the store in *folder* and read its rows."""
    store = opened(folder)
    try:
        store.head()
        list(store.rows(FIRST, LAST))
    finally:
        store.close()


def test_rows_come_in_order_of_second_and_offset_and_within_bounds(tmp_path: Path) -> None:
    store, partition = opened(tmp_path), Partition(0)
    keys = filled(store, partition, [300, 12, 300, 256, 13, 99_999_999_999])
    assert list(store.rows(FIRST, first_key(13_000))) == [(keys[1], b"request of 12")]
    ordered = [keys[number] for number in (4, 3, 0, 2)]
    assert [key for key, _ in store.rows(first_key(13_000), first_key(301_000))] == ordered
    assert [key for key, _ in store.rows(keys[4] + b"\0", first_key(300_000))] == [keys[3]]
    assert list(store.rows(first_key(301_000), first_key(302_000))) == []
    store.close()


def test_a_long_scan_is_not_cut_short(tmp_path: Path) -> None:
    """rocksdict ends an iteration silently once its options are collected."""
    store, partition = opened(tmp_path), Partition(0)
    for _ in range(20):
        filled(store, partition, [100] * 5_000)
    assert sum(1 for _ in store.rows(FIRST, first_key(101_000))) == 100_000
    store.close()


def test_a_scan_shows_the_rows_that_were_there_when_it_began(tmp_path: Path) -> None:
    store, partition = opened(tmp_path), Partition(0)
    filled(store, partition, [100] * 10)
    rows = store.rows(FIRST, first_key(101_000))
    next(rows)
    filled(store, partition, [100] * 10)
    assert len(list(rows)) == 9
    store.close()


def test_rows_between_the_sealed_second_and_the_tick_are_due(tmp_path: Path) -> None:
    store, partition = opened(tmp_path), Partition(0)
    assert not store.has_due(FIRST_MS, 10**14)
    keys = filled(store, partition, [200, 300])
    assert [store.has_due(100_000, end_ms) for end_ms in (101_000, 200_000, 201_000)] == [False, False, True]
    keys += filled(store, partition, [150, 250])
    assert [store.has_due(100_000, end_ms) for end_ms in (150_000, 151_000)] == [False, True]
    for last, sealed_ms, due_ms in (
        (keys[2], 151_000, 200_000),
        (keys[0], 201_000, 250_000),
        (keys[1], 301_000, 10**14),
    ):
        drop(store, partition, last + b"\0")
        has_due = [store.has_due(sealed_ms, end_ms) for end_ms in (due_ms, due_ms + 1_000)]
        assert has_due == [False, due_ms < 10**14]
    store.close()


def test_the_last_second_is_that_of_the_row_that_is_due_last(tmp_path: Path) -> None:
    store, partition = opened(tmp_path), Partition(0)
    store.write(Changes(partition.head))
    assert store.last_second() == 0
    keys = filled(store, partition, [200, 10**10, 300])
    assert store.last_second() == 10**10
    drop(store, partition, keys[1] + b"\0")
    assert store.last_second() == 0
    store.close()


@pytest.mark.parametrize(("written", "is_known"), [(FORMAT - 1, False), (FORMAT, True)])
def test_a_store_of_an_older_format_is_read_again_from_the_log(tmp_path: Path, written: int, is_known: bool) -> None:
    store, partition = opened(tmp_path), Partition(0)
    filled(store, partition, [200])
    rewrite_format(store, written)
    assert bool(store.head()) is is_known
    store.close()


def test_a_store_of_a_later_format_is_left_as_it_is(tmp_path: Path) -> None:
    store, partition = opened(tmp_path), Partition(0)
    keys = filled(store, partition, [200])
    rewrite_format(store, FORMAT + 1)
    told = rf"{tmp_path} is of format {FORMAT + 1}, .* up to {FORMAT}: run the version that wrote it"
    with pytest.raises(NewerFormatError, match=told):
        store.head()
    assert [key for key, _ in store.rows(FIRST, first_key(201_000))] == keys
    store.close()


def test_fired_rows_are_gone_and_the_others_stay(tmp_path: Path) -> None:
    store, partition = opened(tmp_path), Partition(0)
    keys = filled(store, partition, [100, 101, 102])
    drop(store, partition, keys[1] + b"\0")
    assert [key for key, _ in store.rows(FIRST, LAST)] == [keys[2]]
    store.close()


def test_rows_move_to_the_keys_that_they_must_have_by_now(tmp_path: Path) -> None:
    store, partition = opened(tmp_path), Partition(0)
    keys = filled(store, partition, [100, 101, 102])
    partition = Partition(0)
    acquired(store, partition, [Sealed(end_ms=102_000, fence=1)])
    rows = list(store.rows(FIRST, LAST))
    assert [value for _, value in rows] == [b"request of 101", b"request of 102"]
    assert is_late(rows[0][0])
    assert rows[1][0] == keys[2]
    assert partition.pending == 2
    assert store.counts() == {0: (2, 0)}
    store.close()


@pytest.mark.parametrize(("through", "left"), [(None, [10, 11, 12]), (11, [12]), (12, [])])
def test_a_partly_fired_batch_is_taken_apart(tmp_path: Path, through: int | None, left: list[int]) -> None:
    """Another owner has read the same requests in other fetches, and has died between two slices."""
    store, partition = opened(tmp_path), Partition(0)
    requests = {offset: Future(callBack=b"%d" % offset).SerializeToString() for offset in (10, 11, 12)}
    batch = batches.pack(batches.framed([*requests.values()]), [*requests], plain=True)
    rows = [(batch_key(100_000, 12, 3), batch), (row_key(200_000, 12), b"later")]
    keep(store, partition, partition.read(13, rows, [*requests]))
    heir = Partition(0)
    seals = [Sealed(first_ms=1_000, end_ms=10_000)]
    if through:
        seals.append(Sealed(first_ms=10_000, end_ms=101_000, fence=13, through=row_key(100_000, through)))
    acquired(store, heir, seals)
    rows = list(store.rows(FIRST, first_key(101_000)))
    if through is None:
        assert rows == [(batch_key(100_000, 12, 3), batch)]
    else:
        assert rows == [(row_key(100_000, offset), requests[offset]) for offset in left]
    assert heir.pending == len(left)
    store.close()


@pytest.mark.parametrize("family", ["_db", "_ids", "_side"])
def test_a_store_whose_families_are_of_different_moments_after_a_kill_says_nothing(tmp_path: Path, family: str) -> None:
    """RocksDB closes one family after the other; the next owner found fewer requests counted than it had rows."""
    store, partition = opened(tmp_path / "store"), Partition(0)
    filled(store, partition, [100, 200])
    store.close()
    store = opened(tmp_path / "store")
    assert store.head()
    filled(store, partition, [300])
    getattr(store, family).flush()
    shutil.copytree(tmp_path / "store", tmp_path / "left")
    store.close()
    assert opened(tmp_path / "store").head()
    assert opened(tmp_path / "left").head() is None


def test_a_store_that_is_opened_again_knows_where_it_was(tmp_path: Path) -> None:
    store, partition = opened(tmp_path), Partition(0)
    assert store.is_new
    filled(store, partition, [100, 200, 200])
    partition.begin(151_000)
    keep(store, partition, partition.read(3))
    store.close()
    again = opened(tmp_path)
    assert not again.is_new
    assert again.head() == Head(position=3, sealed_ms=FIRST_MS, snapshot=0, known_from=0, scan=Scan(151_000, 3))
    assert again.counts() == {0: (3, 0)}
    assert len(list(again.rows(first_key(1), first_key(10**11)))) == 3
    again.close()


@pytest.mark.parametrize("scan", [None, Scan(152_000, 3), Scan(151_999, 3)])
@pytest.mark.parametrize("sealed_ms", [FIRST_MS, 151_000, 151_001, 151_750])
def test_a_store_that_is_opened_again_knows_up_to_which_moment_it_was_sealed(
    tmp_path: Path, sealed_ms: int, scan: Scan | None
) -> None:
    head = Head(position=3, sealed_ms=sealed_ms, snapshot=2, known_from=1, scan=scan)
    store = opened(tmp_path)
    store.write(Changes(head))
    store.close()
    again = opened(tmp_path)
    assert again.head() == head
    again.close()


def test_a_store_of_another_kafka_says_nothing(tmp_path: Path) -> None:
    store = opened(tmp_path)
    filled(store, Partition(0), [100])
    store.close()
    other = opened(tmp_path, b"another cluster/timer-request")
    assert other.head() is None
    assert not other.is_new
    other.close()


@pytest.mark.parametrize("names", ["CURRENT", "MANIFEST-*", "*.sst"])
def test_a_damaged_store_is_known_as_such_and_can_be_made_anew(tmp_path: Path, names: str) -> None:
    folder = tmp_path / "0"
    store, partition = opened(folder), Partition(0)
    filled(store, partition, [100] * 1_000)
    store.close()
    opened(folder).close()  # writes the rows of the log into a table
    damaged = list(folder.glob(names))
    assert damaged
    for path in damaged:
        path.write_bytes(b"nonsense" * 10)
    with pytest.raises(Exception) as caught:  # noqa: PT011  # RocksDB has one class for all
        read_all(folder)
    assert is_damage(caught.value)
    destroy(folder)
    anew = opened(folder)
    assert anew.is_new
    anew.close()


@pytest.mark.parametrize("where", [0.1, 0.5, 0.9])
def test_rows_that_cannot_be_read_are_no_end_of_the_rows(tmp_path: Path, where: float) -> None:
    """RocksDB's iterator ends in silence where a block is damaged; a seal would declare all behind it as done."""
    folder, partition = tmp_path / "store", Partition(0)
    store = opened(folder)
    store.write(partition.read(0))
    filled(store, partition, [100 + number for number in range(10_000)])
    store.close()
    [file] = [path for path in folder.glob("*.sst") if path.stat().st_size > 50_000]
    data = bytearray(file.read_bytes())
    data[int(len(data) * where)] ^= 0xFF
    file.write_bytes(data)
    store = opened(folder)
    head_of(store)
    for rows in (store.rows(FIRST, LAST), store.kept_rows(LAST)):
        with pytest.raises(Exception, match="Corruption") as caught:
            list(rows)
        assert is_damage(caught.value)
    store.close()


def test_a_store_without_one_of_its_files_is_known_as_damaged(tmp_path: Path) -> None:
    folder = tmp_path / "0"
    store = opened(folder)
    filled(store, Partition(0), [100] * 1_000)
    store.close()
    opened(folder).close()
    for path in folder.glob("*.sst"):
        path.unlink()
    with pytest.raises(Exception) as caught:  # noqa: PT011  # RocksDB has one class for all
        read_all(folder)
    assert is_damage(caught.value)


CRASHING = """
import os, sys
from pathlib import Path
from kafka_timers.core.partition import Partition
from kafka_timers.core.versions import Decided, Version
from kafka_timers.worker.store import TimerStore
from kafka_timers.worker.store_head import FORMAT
from kafka_timers.worker.store_memory import StoreMemory

store, partition = TimerStore(Path(sys.argv[1]), sys.argv[2].encode(), StoreMemory()), Partition(0)
# More than is held in memory before it is written into a table.
for offset in range(500):
    decided = Decided(versions={b"%d" % offset: Version(100_000, offset)})
    row = partition.place(100_000, offset), os.urandom(100_000)
    changes = partition.read(offset + 1, [row], [offset], decided)
    store.write(changes)
    partition.apply(changes)
os._exit(3)
"""


def test_a_store_whose_process_has_crashed_opens_as_of_some_moment(tmp_path: Path) -> None:
    """Its parts fit together."""
    crash = subprocess.run(
        [sys.executable, "-c", CRASHING, str(tmp_path), IDENTITY.decode()], check=False, timeout=LIMIT_S
    )
    assert crash.returncode == 3
    store = opened(tmp_path)
    local = head_of(store)
    assert 0 < local.position < 500
    assert len(list(store.rows(FIRST, LAST))) == local.position
    assert sum(count for count, _ in store.counts().values()) == local.position
    known = list(store.versions([b"%d" % offset for offset in range(500)]))
    assert [version is not None for version in known] == [offset < local.position for offset in range(500)]
    store.close()


# --- timer ids -------------------------------------------------------------------------------------------------------


def asked(store: TimerStore, partition: Partition, offset: int, second: int | None, timer_id: bytes = b"a") -> None:
    """Keep a request at *offset*, or for no second a cancel, as the owner of a partition does."""
    due_ms = None if second is None else second * 1000
    record = TimerRecord(timer_id, due_ms, offset, 1_000, b"replies")
    decided = decide([record], {timer_id: next(store.versions([timer_id]))}, partition)
    rows = [] if due_ms is None else [(partition.place(due_ms, offset) or b"", b"%d" % offset)]
    keep(store, partition, partition.read(offset + 1, rows, [] if due_ms is None else [offset], decided))


def left(store: TimerStore) -> list[bytes]:
    return [row for _, row in store.rows(FIRST, LAST)]


def test_a_withdrawn_request_is_no_row_any_more_also_after_a_restart(tmp_path: Path) -> None:
    store, partition = opened(tmp_path), Partition(0)
    for offset, second in enumerate((100, 200, None, 100, 300)):
        asked(store, partition, offset, second, b"a" if offset < 3 else b"b")
    assert left(store) == [b"4"]
    store.close()
    store = opened(tmp_path)
    assert left(store) == [b"4"]
    assert store.count_withdrawn(first_key(100_000), first_key(101_000)) == (0, 2)
    assert store.count_withdrawn(first_key(101_000), LAST) == (1, 0)
    assert [answer.offset for answer in store.answers()] == [0, 1, 2, 3, 4]
    store.write(Changes(partition.head, answered_before=4))
    assert [answer.offset for answer in store.answers()] == [4]
    drop(store, partition, first_key(101_000))
    assert store.count_withdrawn(FIRST, LAST) == (1, 0)
    store.close()


def test_dropped_rows_do_not_slow_down_later_drops(tmp_path: Path) -> None:
    """In CPU time, since RocksDB looks at all that it has deleted when the way in which that was done is wrong."""
    store, partition = opened(tmp_path), Partition(0)
    keys = [row_key(second * 1000, offset) for offset, second in enumerate(range(100, 1_700))]
    store.write(Changes(partition.head, rows=[(key, b"row") for key in keys]))
    took_s = []
    for offset, second in enumerate(range(100, 1_699)):
        began_s = time.process_time()
        store.write(Changes(partition.head, answers=[Answer(offset, b"t", b"a", Reply.UNKNOWN, None)]))
        store.write(Changes(partition.head, answered_before=offset + 1, drop_before=first_key((second + 1) * 1000)))
        assert store.first_ms((second + 1) * 1000) == (second + 1) * 1000
        assert next(store.answers(), None) is None
        took_s.append(time.process_time() - began_s)
    store.close()
    assert min(took_s[-100:]) < 20 * min(took_s[:100])


def test_ids_are_forgotten_an_hour_after_their_second_but_not_those_asked_for_again(tmp_path: Path) -> None:
    store, partition = opened(tmp_path), Partition(0)
    for offset, (timer_id, second) in enumerate(((b"a", 100), (b"b", 100), (b"b", 200), (b"c", 150))):
        asked(store, partition, offset, second, timer_id)

    def known(second: int) -> list[bytes]:
        while store.forget(second - ID_MEMORY_S):
            pass
        ids = [b"a", b"b", b"c"]
        return [timer_id for timer_id, version in zip(ids, store.versions(ids), strict=True) if version]

    # By whole minutes.
    assert known(119 + ID_MEMORY_S) == [b"a", b"b", b"c"]
    assert known(120 + ID_MEMORY_S) == [b"b", b"c"]
    assert known(180 + ID_MEMORY_S) == [b"b"]
    assert known(240 + ID_MEMORY_S) == []
    store.close()


def test_a_next_owner_does_not_fire_a_request_withdrawn_from_a_batch_that_it_takes_apart(tmp_path: Path) -> None:
    """One half of the second was sealed by another one."""
    store, partition = opened(tmp_path), Partition(0)
    requests = {offset: Future(timerId=f"id-{offset}").SerializeToString() for offset in range(6)}
    batch = batches.pack(batches.framed([*requests.values()]), [*requests], named=True)
    versions = {b"id-%d" % offset: Version(100_000, offset) for offset in requests}
    rows = [(batch_key(100_000, 5, 6), batch)]
    keep(store, partition, partition.read(6, rows, [*requests], Decided(versions=versions)))
    for offset in (1, 4):
        asked(store, partition, 6 + offset, None, b"id-%d" % offset)
    assert partition.pending == 4
    heir = Partition(0)
    acquired(store, heir, [Sealed(first_ms=1_000, end_ms=101_000, fence=11, through=row_key(100_000, 2))])
    assert list(store.rows(FIRST, first_key(101_000))) == [(row_key(100_000, at), requests[at]) for at in (3, 5)]
    assert heir.pending == 2
    # Whether the other one has read the cancel in time is not known here; of its own it still knows.
    ids = [b"id-1", b"id-4"]
    assert list(store.versions(ids)) == [
        Version(100_000, 1, cancelled=True, unsure=True, since_ms=1000),
        Version(100_000, 4, cancelled=True, since_ms=1000),
    ]
    # An owner that begins without a store will still read the records that may be asked about.
    assert heir.backlog.remembered
    assert heir.restore_from == 0
    store.close()


def test_a_store_whose_folder_has_gone_can_be_closed_and_made_anew(tmp_path: Path) -> None:
    folder = tmp_path / "0"
    store = opened(folder)
    filled(store, Partition(0), [100])
    shutil.rmtree(folder)
    store.close()
    again = opened(folder)
    assert again.is_new
    again.close()


def test_two_stores_in_one_folder_are_refused_and_that_is_no_damage(tmp_path: Path) -> None:
    store = opened(tmp_path)
    with pytest.raises(Exception) as caught:  # noqa: PT011  # RocksDB has one class for all
        opened(tmp_path)
    assert not is_damage(caught.value)
    store.close()


def test_a_late_request_takes_the_batch_apart_in_which_it_comes_to_lie(tmp_path: Path) -> None:
    """The last key of a slice says how far it is done, so the keys of a second are those of its requests one by one."""
    store, partition = opened(tmp_path), Partition(0)
    request = Future(callBack=b"v").SerializeToString()
    for second, offsets in ((14, [0, 3]), (14, [4, 5]), (13, [1])):
        row = batches.pack(batches.framed([request] * len(offsets)), offsets)
        key = batch_key(second * 1000, offsets[-1], len(offsets))
        keep(store, partition, partition.read(6, [(key, row)], offsets))
    after = Partition(0)
    acquired(store, after, [Sealed(first_ms=1_000, end_ms=14_000, fence=1)])
    keys = [key for key, _ in store.rows(FIRST, first_key(15_000))]
    told = [(parts_of(key)[1], is_late(key), is_batch(key)) for key in keys]
    assert told == [(0, False, False), (1, True, False), (3, False, False), (5, False, True)]
    store.close()


# --- whole changes ---------------------------------------------------------------------------------------------------


class Steps:
    """Random steps of a partition: the changes of each fit the rows that those before it have kept."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.offset = 0
        self.names = [b"a", b"b", b"c", "clé".encode(), Original(7, 0, 0, 0).name]
        # Single requests that may be withdrawn, by the key of the row in which they lie.
        self.rows: dict[bytes, list[bytes]] = {}

    def next(self) -> Changes:
        """Return a step."""
        chance = self.chance
        changes = Changes(self._head())
        if chance.random() < 0.3:
            changes.drop_before = first_key(chance.randrange(8_000, 11_500))
            self.rows = {key: singles for key, singles in self.rows.items() if key >= changes.drop_before}
        changes.removed = chance.sample(sorted(self.rows), len(self.rows) // 4) if chance.random() < 0.3 else []
        for key in changes.removed:
            del self.rows[key]
        for _ in range(chance.randrange(4)):
            self._add_row(changes)
        singles = [single for each in self.rows.values() for single in each]
        for key in chance.sample(singles, len(singles) // 3) if chance.random() < 0.4 else []:
            changes.marks[key] = chance.choice([None, Mark(b"a", True), Mark(b"b", False)])
        for name in chance.sample(self.names, chance.randrange(3)):
            changes.versions[name] = chance.choice([None, self._version()])
        self.offset += 1
        changes.last = self.offset
        known = [(name, version.made_at) for name, version in changes.versions.items() if version]
        if known:
            names, offsets = zip(*known, strict=True)
            changes.expiring[chance.randrange(60, 6_000, 60)] = [*names], [*offsets]
        for _ in range(chance.randrange(3)):
            self.offset += 1
            about = chance.choice([None, self._version()])
            changes.answers.append(Answer(self.offset, b"replies", b"a", Reply.CANCELLED, about))
        if chance.random() < 0.2:
            changes.answered_before = chance.randrange(self.offset + 2)
        for chunk in chance.sample(range(6), chance.randrange(4)):
            changes.counts[chunk] = chance.choice([0, 0, 1, 2**32 - 1]), chance.choice([0, 5_000, 7_200_000])
        changes.ignored = {at: chance.randrange(10**13) for at in chance.sample(range(9), chance.randrange(3))}
        changes.unignored = chance.sample(sorted({*range(9)} - changes.ignored.keys()), chance.randrange(3))
        return changes

    def _head(self) -> Head:
        chance = self.chance
        scan = Scan(
            chance.choice([5_000, chance.randrange(2_000, 99_000)]),
            chance.randrange(99),
            chance.choice([b"", first_key(5_000)]),
        )
        sealed_ms = chance.choice([5_000, chance.randrange(1_000, 10**12)])
        parts = chance.randrange(2**63), sealed_ms, chance.randrange(99), chance.randrange(99)
        return Head(*parts, chance.choice([None, scan]), done_below=chance.randrange(99))

    def _version(self) -> Version:
        chance, due_ms = self.chance, self.chance.randrange(10**14)
        version = Version(
            due_ms,
            chance.randrange(50),
            cancelled=chance.random() < 0.5,
            by=chance.choice([0, 60]),
            far=bool(due_ms % 2),
        )
        copied = chance.choice([None, Copied(chance.randrange(99), chance.randrange(99))])
        return version._replace(copied=copied, since_ms=chance.choice([0, chance.randrange(99_000)]))

    def _add_row(self, changes: Changes) -> None:
        chance, least = self.chance, changes.drop_before or first_key(FIRST_MS)
        due_ms, self.offset = chance.randrange(max(9_000, moment_of(least)), 12_000), self.offset + 10
        offsets = [self.offset - 2, self.offset]
        value = Future(callBack=b"%d" % self.offset).SerializeToString()
        kinds = {
            row_key(due_ms, self.offset): value,
            late_key(due_ms, self.offset, due_ms - 1, Copied(self.offset, 5)): value,
            batch_key(due_ms, self.offset, 2): batches.pack(batches.framed([value] * 2), offsets, named=True),
        }
        key = chance.choice([*kinds])
        assert key >= least
        changes.rows.append((key, kinds[key]))
        self.rows[key] = [single for single, _ in batches.singles(key, kinds[key])]


def assert_alike(store: TimerStore, memory: MemoryStore, steps: Steps) -> None:
    """Compare all that the two say."""
    assert memory.head
    # The progress of a scan is told by the seals.
    scan = memory.head.scan and memory.head.scan._replace(through=b"")
    assert store.head() == dataclasses.replace(memory.head, scan=scan, done_below=0)
    bounds = [FIRST, *steps.chance.sample(sorted(steps.rows), len(steps.rows) // 2), first_key(10_000), LAST]
    for start in bounds:
        for before in bounds:
            assert [*store.rows(start, before)] == [*memory.rows(start, before)]
            assert store.count_withdrawn(start, before) == memory.count_withdrawn(start, before)
    for before in bounds:
        assert [*store.kept_rows(before)] == [row for row in sorted(memory.data.items()) if row[0] < before]
        assert store.marks(before) == {key: mark for key, mark in memory.marks.items() if key < before}
    assert [*store.versions(steps.names)] == memory.versions(steps.names)
    # The name of a copy is no timer id.
    assert store.has_ids is any(name[0] < 0xFF for name in memory.known)
    assert [*store.answers()] == [answer for _, answer in sorted(memory.answers.items())]
    assert store.counts() == memory.counts
    assert store.ignored() == memory.ignored
    assert store.has_due(FIRST_MS, 10_000) is any(key < first_key(10_000) for key in memory.data)
    last = max((parts_of(key)[0] // 1000 for key in memory.data if not is_late(key)), default=0)
    assert store.last_second() >= last


@pytest.mark.parametrize("seed", range(5))
def test_a_store_on_disk_and_one_in_memory_keep_the_same(tmp_path: Path, seed: int) -> None:
    """Each step changes both alike, also after the one on disk was opened again: tests in memory hold on disk."""
    store, memory, steps = opened(tmp_path), MemoryStore(), Steps(seed)
    for number in range(45):
        changes = steps.next()
        store.write(changes)
        memory.write(changes)
        if number % 9 == 3:
            second = steps.chance.randrange(6_000)
            while store.forget(second):
                pass
            memory.forget(second)
        if number % 7 == 5:
            store.close()
            store = opened(tmp_path)
        assert_alike(store, memory, steps)
    store.close()


def test_an_id_remembered_into_a_second_is_remembered_to_its_end(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.write(Changes(Partition(0).head, counts={0: (0, 5_001), 1: (1, 5_000)}))
    assert store.counts() == {0: (0, 6_000), 1: (1, 5_000)}
    store.close()


class Refusing:
    """A RocksDB that takes no write, as with a full disk."""

    def __init__(self, db: Any) -> None:
        self._db = db

    def write(self, batch: object) -> None:
        raise OSError("No space left on device")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)


def test_a_store_with_nothing_but_flushed_ids_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    """They would stand for records that are read again."""
    store, partition = opened(tmp_path / "killed"), Partition(0)
    keep(store, partition, partition.read(1))
    store._ids.flush()
    shutil.copytree(tmp_path / "killed", tmp_path / "copy")
    store.close()
    store = opened(tmp_path / "copy")
    assert (store.head(), store.is_new) == (None, False)
    store.close()


@pytest.mark.parametrize("seed", range(3))
def test_a_refused_write_changes_nothing_in_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    store, memory, steps = opened(tmp_path), MemoryStore(), Steps(seed)
    for number in range(20):
        changes = steps.next()
        store.write(changes)
        memory.write(changes)
        rows = dict(steps.rows)
        # The store's memory of its rows is asked for before.
        assert_alike(store, memory, steps)
        refused = steps.next()
        if number % 2:
            refused.rows.append((row_key(FIRST_MS, 0), b"due before all others"))
        with monkeypatch.context() as patch:
            patch.setattr(store, "_db", Refusing(store._db))
            with pytest.raises(OSError, match="No space"):
                store.write(refused)
        steps.rows = rows
        assert_alike(store, memory, steps)
    # Rows written before a refused write are kept if another write is taken.
    changes = steps.next()
    store.write(changes)
    memory.write(changes)
    store.close()
    store = opened(tmp_path)
    assert_alike(store, memory, steps)
    store.close()


# --- iterators -------------------------------------------------------------------------------------------------------


def withdrawn_among(store: TimerStore) -> bytes:
    """Keep ten requests, one of them withdrawn, a version and an answer, and return the key of that one."""
    partition = Partition(0)
    keys = filled(store, partition, [100] * 10)
    changes = partition.read(10)
    changes.marks, changes.versions = {keys[3]: Mark(b"a", False)}, {b"a": Version(100_000, 3, cancelled=True)}
    changes.answers = [Answer(at, b"replies", b"a", Reply.CANCELLED, None) for at in (4, 5)]
    changes.ignored = {6: 200_000}
    keep(store, partition, changes)
    return keys[3]


def iterators_of(store: TimerStore) -> list[Iterator[Any]]:
    """Return one of each kind, begun."""
    kinds = [store.rows(FIRST, LAST), store.kept_rows(LAST), store.answers(), store._marks(FIRST, LAST)]
    for kind in kinds:
        next(kind)
    return [*kinds, store.rows(FIRST, LAST), store.versions([b"a"])]


def test_an_iterator_that_is_still_held_does_not_keep_the_folder_locked(tmp_path: Path) -> None:
    """The next owner of the partition may be this very process, and at once."""
    store = opened(tmp_path)
    withdrawn_among(store)
    held = iterators_of(store)
    store.close()
    again = opened(tmp_path)
    assert len(list(again.rows(FIRST, LAST))) == 9
    assert [list(rows) for rows in held[:4]] == [[]] * 4
    again.close()


def test_a_traceback_that_holds_an_iterator_does_not_keep_the_folder_locked(tmp_path: Path) -> None:
    """A fault is looked at after the store was closed, and its frames still name their objects."""
    store = opened(tmp_path)
    withdrawn_among(store)

    def fail() -> None:
        rows, kept = store.rows(FIRST, LAST), store.kept_rows(LAST)
        for _ in zip(rows, kept, strict=False):
            raise ValueError("in the midst of it")

    def fail_within() -> None:
        rows = store.rows(FIRST, LAST)
        next(rows)
        rows.throw(ValueError("in the iterator itself"))  # type: ignore[attr-defined]  # of a generator

    caught = []
    for broken in (fail, fail_within):
        with pytest.raises(ValueError, match="it") as info:
            broken()
        caught.append(info)
    store.close()
    again = opened(tmp_path)
    assert len(list(again.rows(FIRST, LAST))) == 9
    again.close()
    assert all(info.tb for info in caught)


def test_a_store_that_is_closed_may_be_closed_again(tmp_path: Path) -> None:
    store = opened(tmp_path)
    withdrawn_among(store)
    store.close()
    store.close()
    opened(tmp_path).close()


def test_a_store_that_cannot_be_flushed_lets_go_of_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows are read from the log again."""

    class Full(Refusing):
        def flush(self) -> None:
            raise OSError("No space left on device")

    store = opened(tmp_path)
    withdrawn_among(store)
    store._db = Full(store._db)
    held = store.rows(FIRST, LAST)
    next(held)
    store.close()
    opened(tmp_path).close()
