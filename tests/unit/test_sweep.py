"""What a sweep repeats of a partition, and what a store that is read anew takes from it."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from walk import Record

from kafka_timers.core import rows as batches
from kafka_timers.core.accepting import accept
from kafka_timers.core.backlog import CHUNK_BITS
from kafka_timers.core.changes import Head, Row, Swept, to_take
from kafka_timers.core.keys import Copied, batch_key, is_batch, row_key
from kafka_timers.core.partition import Partition
from kafka_timers.core.refused import Reason
from kafka_timers.core.sweep import Part, Sweep, repeated_in, sweeps_in, tell
from kafka_timers.core.verdicts import judged
from kafka_timers.core.wire import KEPT_KEY, Condition, Future, Kept, Sealed

BELOW = 1 << CHUNK_BITS
FROM_MS = 100_000
DUE_MS = 200_000


def value(name: str, **more: object) -> bytes:
    return Future(callBackTopic="t", callBackKey=name, **more).SerializeToString()  # type: ignore[arg-type]


def parts_of(sweep: Sweep, rows: list[Row]) -> Iterator[Part]:
    """Yield the parts of *sweep*, each of which is written."""
    while not sweep.is_written:
        start, before = sweep.range
        part = sweep.part((key, row) for key, row in rows if start <= key < before)
        sweep.written(part)
        yield part


def repeated(part: Part) -> list[tuple[int, int, bytes]]:
    every = [each for value in part.values for each in Future.FromString(value).kept.requests]
    return [(each.offset, each.dueMs, each.future) for each in every]


def test_requests_below_an_offset_are_repeated_and_no_others() -> None:
    run = batches.pack(batches.framed([value("1"), value("2")]), [BELOW - 1, BELOW])
    rows = [
        (row_key(FROM_MS - 1, 1), value("soon")),
        (row_key(DUE_MS, 2), value("single")),
        (batch_key(DUE_MS, BELOW, 2), run),
        (row_key(DUE_MS, 3, Copied(5, 4)), value("copy of a far one")),
        (row_key(DUE_MS, BELOW + 1), value("behind")),
    ]
    sweep = Sweep(7, BELOW + 5, BELOW + 9, FROM_MS)
    (part,) = parts_of(sweep, sorted(rows))
    assert repeated(part) == [(2, DUE_MS, value("single")), (BELOW - 1, DUE_MS, value("1"))]
    assert sweep.over(BELOW + 20) == Swept(7, BELOW, BELOW + 9, BELOW + 20, 2, FROM_MS)


def test_a_condition_has_held_and_is_not_repeated() -> None:
    asked = value("k", timerId="a", condition=Condition.IF_ABSENT, ifRequest="0:3")
    (part,) = parts_of(Sweep(7, BELOW, BELOW, FROM_MS), [(row_key(DUE_MS, 1), asked)])
    assert repeated(part) == [(1, DUE_MS, value("k", timerId="a"))]


def test_a_sweep_goes_on_where_its_last_part_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafka_timers.core.sweep._REQUESTS_MAX", 2)
    rows = [(row_key(DUE_MS, offset), value("k")) for offset in range(5)]
    parts = list(parts_of(Sweep(7, BELOW, BELOW, FROM_MS), rows))
    assert [[offset for offset, *_ in repeated(part)] for part in parts] == [[0, 1], [2, 3], [4]]
    monkeypatch.setattr("kafka_timers.core.sweep._REQUESTS_MAX", 500)
    monkeypatch.setattr("kafka_timers.core.sweep._LOOKED_AT_MAX", 2)
    behind = [(row_key(DUE_MS, BELOW + offset), value("k")) for offset in range(3)]
    assert [part.values for part in parts_of(Sweep(7, BELOW, BELOW, FROM_MS), behind)] == [[], []]


def test_a_row_of_many_large_requests_is_repeated_in_several_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafka_timers.core.sweep._BYTES_MAX", 100)
    values = [value("k", callBack=b"x" * 60) for _ in range(5)]
    rows = [(batch_key(DUE_MS, 4, 5), batches.pack(batches.framed(values), range(5)))]
    (part,) = parts_of(Sweep(7, BELOW, BELOW, FROM_MS), rows)
    assert [len(Future.FromString(each).kept.requests) for each in part.values] == [2, 2, 1]
    assert [offset for offset, *_ in repeated(part)] == [*range(5)]


def kept(begun_us: int, *offsets: int) -> bytes:
    requests = [{"offset": each, "dueMs": DUE_MS + 250, "future": value("k", millis=250)} for each in offsets]
    return Future(kept=Kept(begun=begun_us, requests=requests)).SerializeToString()  # type: ignore[arg-type]


def test_a_store_takes_the_requests_of_one_sweep_at_some_offsets_in_their_order() -> None:
    records = [
        Record(30, 5, KEPT_KEY, kept(7, 9, 4, 1)),
        Record(31, 5, KEPT_KEY, kept(8, 2)),
        Record(32, 5, b"200", value("a request")),
        Record(33, 5, KEPT_KEY, b"\xff"),
        Record(34, 5, None, None),
    ]
    (asked,) = repeated_in(records, 7, range(2, 10))
    assert [(each.offset, each.key, each.value) for each in asked] == [
        (4, b"200", value("k", millis=250)),
        (9, b"200", value("k", millis=250)),
    ]
    partition = Partition(0)
    assert [key for key, _ in accept(asked, partition, 1, lambda names: [None for _ in names]).rows] == [
        row_key(DUE_MS + 250, 4),
        row_key(DUE_MS + 250, 9),
    ]


@pytest.mark.parametrize(
    ("position", "taken"),
    [
        (0, [(1, range(0)), (2, range(100, 0))]),
        (120, [(1, range(100)), (2, range(100, 120))]),
        (150, [(1, range(100)), (2, range(100, 150))]),
        (151, [(2, range(100, 151))]),
        (400, [(2, range(100, 300))]),
        (401, []),
    ],
)
def test_what_one_sweep_has_is_not_taken_from_the_next_one(position: int, taken: list[tuple[int, range]]) -> None:
    sweeps = Swept(1, 100, 150, 170, 9), Swept(2, 300, 400, 420, 9)
    assert [(swept.begun_us, offsets) for swept, offsets in to_take(sweeps, position)] == taken


def test_records_of_a_sweep_are_no_requests_and_leave_the_others_together() -> None:
    records = [Record(0, 5, b"200", value("a")), Record(1, 5, KEPT_KEY, kept(7, 0)), Record(2, 5, b"200", value("b"))]
    accepted = accept(records, Partition(0), 1, lambda names: [None for _ in names])
    assert (accepted.count, accepted.offsets, accepted.refused.total()) == (3, [0, 2], 0)
    assert [is_batch(key) for key, _ in accepted.rows] == [True]


def test_a_request_that_says_it_were_of_a_sweep_is_refused() -> None:
    assert judged(Record(0, 5, b"200", kept(7, 1)), 0, 1) is Reason.TOPIC_MISSING
    assert judged(Record(0, 5, KEPT_KEY, value("k")), 0, 1) is Reason.KEY_NOT_A_SECOND


def test_a_store_that_was_killed_while_it_took_from_a_sweep_is_read_anew() -> None:
    seal = Sealed(format=1, first_ms=1_000, end_ms=10_000, fence=50, restore_from=40)
    seal.swept.add(begun=7, below=30, since=45, to=48, requests=2)
    local = Head(50, 10_000, 50, 40, None)
    assert Partition(0).acquire([seal], local)
    again = Partition(0)
    assert not again.acquire([seal], replace(local, lacks_swept=True))
    assert (again.position, again.head.lacks_swept) == (40, True)


def with_waiting(horizon_s: int = 0, *sweeps: Swept) -> Partition:
    """Return a partition of three chunks, in whose first one a request waits."""
    partition = Partition(0, horizon_s)
    partition.head = replace(partition.head, position=3 * BELOW, sweeps=sweeps)
    partition.restore({0: (1, 0)})
    return partition


def test_a_sweep_begins_where_something_waits_and_behind_the_begin_of_the_one_before() -> None:
    assert with_waiting().sweep(7, 2 * BELOW, 0)
    assert not with_waiting().sweep(7, BELOW - 1, 0)
    assert not with_waiting(3600).sweep(7, 2 * BELOW, 0)
    before = Swept(6, BELOW, BELOW + 5, BELOW + 9, 1, FROM_MS)
    assert with_waiting(0, before).sweep(7, 2 * BELOW, 0)
    assert not with_waiting(0, before).sweep(7, 2 * BELOW - 1, 0)
    assert not with_waiting(0, before, before).sweep(7, 2 * BELOW, 0)


@pytest.mark.parametrize(("restore_from", "told"), [(45, [6, 7]), (46, [7]), (99, [7])])
def test_a_sweep_is_told_of_until_the_log_is_needed_from_behind_its_begin(restore_from: int, told: list[int]) -> None:
    seal = Sealed(restore_from=restore_from)
    tell((Swept(6, 30, 45, 48, 2, FROM_MS), Swept(7, 60, 90, 93, 1, FROM_MS)), seal)
    assert [swept.begun_us for swept in sweeps_in(seal)] == told
