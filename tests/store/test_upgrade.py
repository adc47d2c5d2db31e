"""
The drill of an upgrade: workers of a made-up next version, with a next format of seals, take over in the middle of a
second, and give the partition back. docs/design.md, "Formats", has the recipe.

The next version is this one with a higher `FORMAT`. Which format an owner writes, the group's assignor decides
(tests/unit/test_assignor.py).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from kafka_timers.core import rows as batches
from kafka_timers.core import wire
from kafka_timers.core.accepting import accept
from kafka_timers.core.contents import Contents
from kafka_timers.core.keys import parts_of
from kafka_timers.core.partition import Partition
from kafka_timers.core.reconcile import reconcile, unreconciled
from kafka_timers.core.wire import FORMAT, Future, Record, Sealed
from kafka_timers.errors import NewerFormatError
from kafka_timers.worker.store import TimerStore
from kafka_timers.worker.store_memory import StoreMemory

NEXT = FORMAT + 1
IDENTITY = b"cluster/timer-request/0/0"
COMPLETE = Sealed(first_ms=1_000, end_ms=11_000, fence=2, format=FORMAT)


def record(offset: int, key: bytes, **more: object) -> Record:
    value = Future(callBackTopic="cb", **more).SerializeToString()  # type: ignore[arg-type]
    return cast(Record, SimpleNamespace(key=key, value=value, offset=offset, timestamp=9_000, headers=()))


RECORDS = [
    record(2, b"14"),
    record(3, b"14"),
    record(4, b"14", timerId="a"),
    record(5, b"15", millis=7),
    record(6, b"9"),
    record(7, b"30", timerId="b"),
]


@contextmanager
def worker(folder: Path, version: int, format: int, seals: list[Sealed]) -> Iterator[tuple[TimerStore, Partition]]:
    """An owner that goes on from *seals*: one of *version*, in a group of which every member knows *format*."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "FORMAT", version)
        store, partition = TimerStore(folder, IDENTITY, StoreMemory()), Partition(0, format=format)
        try:
            head = store.head()
            if partition.acquire(seals, head, ignored=store.ignored()) and head:
                partition.restore(store.counts())
                before = unreconciled(partition, head)
                kept = store.kept_rows(before), store.marks(before)
                changes = reconcile(partition, *kept, store.versions, has_ids=store.has_ids)
                store.write(changes)
                partition.apply(changes)
            yield store, partition
        finally:
            store.close()


def read(store: TimerStore, partition: Partition) -> None:
    accepted = accept(RECORDS, partition, 1, store.versions)
    changes = partition.read(RECORDS[-1].offset + 1, accepted.rows, accepted.offsets, accepted.decided)
    store.write(changes)
    partition.apply(changes)


def fire(store: TimerStore, partition: Partition, at_most: int) -> tuple[list[int], Sealed]:
    """Fire *at_most* rows of the open scan; return their offsets, and the seal."""
    left = list(store.rows(*partition.keys_left()))
    now = [single for key, row in left[:at_most] for single, _ in batches.singles(key, row)]
    offsets = [parts_of(key)[1] for key in now]
    contents = Contents(offsets, through=max(now, default=b""))
    return offsets, partition.seal(contents, complete=len(left) <= at_most)


def test_owners_of_two_versions_share_a_second_while_the_group_has_both(tmp_path: Path) -> None:
    """An upgrade begins, and is taken back: nothing fires twice, and nothing is left out."""
    with worker(tmp_path, FORMAT, FORMAT, [COMPLETE]) as (store, partition):
        read(store, partition)
        partition.begin(16_000)
        first, slice_1 = fire(store, partition, 1)
    with worker(tmp_path, NEXT, FORMAT, [COMPLETE, slice_1]) as (store, partition):
        second, slice_2 = fire(store, partition, 1)
    with worker(tmp_path, FORMAT, FORMAT, [COMPLETE, slice_1, slice_2]) as (store, partition):
        third, rest = fire(store, partition, 9)
    assert {slice_1.format, slice_2.format, rest.format} == {FORMAT}
    assert (slice_2.HasField("through"), rest.HasField("through"), rest.end_ms) == (True, False, 16_000)
    assert all((first, second, third))
    assert sorted(first + second + third) == [2, 3, 4, 5, 6]


def test_once_all_members_know_the_next_format_an_earlier_version_goes_on_from_nothing(tmp_path: Path) -> None:
    with worker(tmp_path, NEXT, NEXT, [COMPLETE]) as (store, partition):
        read(store, partition)
        partition.begin(16_000)
        first, slice_1 = fire(store, partition, 1)
    assert slice_1.format == NEXT
    with (
        pytest.raises(NewerFormatError, match=f"has seals of format {NEXT}, .* up to {FORMAT}: upgrade this worker"),
        worker(tmp_path, FORMAT, FORMAT, [COMPLETE, slice_1]),
    ):
        pass
    with worker(tmp_path, NEXT, NEXT, [COMPLETE, slice_1]) as (store, partition):
        rest, _ = fire(store, partition, 9)
    assert sorted(first + rest) == [2, 3, 4, 5, 6]
