"""The rules of one partition, one at a time; `test_simulation.py` has them work together."""

import random
from collections.abc import Sequence

import pytest

from kafka_timers.core import partition as core
from kafka_timers.core.partition import (
    REFUSED,
    Local,
    Partition,
    Scan,
    Taken,
    digest_of,
    first_key,
    is_late,
    parts_of,
    tick_second,
)
from kafka_timers.core.wire import Sealed


def sealed_up_to(second: int, fence: int) -> Partition:
    partition = Partition(3)
    partition.take_over([Sealed(last=second, fence=fence)], None)
    partition.position = fence
    return partition


def taken_from(due: Sequence[bytes], rejected: Sequence[bytes] = ()) -> Taken:
    """Return what a slice says of its rows, none of which is a run."""
    through = max(due, default=b"")
    return Taken(
        [parts_of(key)[2] for key in due],
        [parts_of(key)[2] for key in rejected],
        late=sum(map(is_late, due)),
        through=through,
    )


def place(partition: Partition, second: int, offset: int, millis: int = 0) -> bytes:
    key = partition.place(second, millis, offset)
    assert key is not None
    partition.added([offset])
    return key


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "CHUNK_BITS", 2)


# --- keys ------------------------------------------------------------------------------------------------------------


def test_keys_sort_by_second_millis_and_offset() -> None:
    partition = Partition(0)
    asked = [(12, 0, 7), (12, 0, 300), (12, 999, 1), (13, 0, 0), (70_000, 5, 2), (99_999_999_999, 0, 3)]
    shuffled = random.Random(1).sample(asked, len(asked))
    keys = sorted(partition.place(*parts) or b"" for parts in shuffled)
    assert [parts_of(key) for key in keys] == asked


def test_a_late_key_sorts_first_in_the_next_second_and_knows_what_was_asked_for() -> None:
    partition = sealed_up_to(20, fence=5)
    late, on_time = place(partition, 12, 9, millis=250), place(partition, 21, 8, millis=1)
    assert (is_late(late), is_late(on_time)) == (True, False)
    assert first_key(21) < late < on_time < first_key(22)
    assert parts_of(late) == (12, 250, 9)


def test_late_keys_sort_in_order_of_acceptance() -> None:
    partition = sealed_up_to(20, fence=5)
    assert place(partition, 19, 6, millis=999) < place(partition, 3, 7) < place(partition, 20, 8)


def test_digests_of_parts_add_up_in_any_order() -> None:
    offsets = [0, 1, 5, 2**40, 2**63]
    whole = digest_of(offsets)
    assert whole == digest_of(reversed(offsets)) < 2**64
    assert whole == (digest_of(offsets[:2]) + digest_of(offsets[2:])) % 2**64
    assert digest_of([0]) == 1
    assert digest_of([]) == 0


# --- place -----------------------------------------------------------------------------------------------------------


def test_a_request_is_done_when_its_second_is_sealed_and_its_offset_below_the_fence() -> None:
    partition = sealed_up_to(20, fence=5)
    assert partition.place(20, 0, 4) is None
    assert partition.place(20, 0, 5) is not None
    assert partition.place(21, 0, 4) is not None


def test_a_refused_request_goes_with_the_next_tick() -> None:
    first = Partition(0).place(REFUSED, 0, 0)
    assert first is not None
    assert first_key(1) <= first < first_key(2)
    late = sealed_up_to(20, fence=5).place(REFUSED, 0, 5)
    assert late is not None
    assert first_key(21) <= late < first_key(22)
    assert parts_of(late) == (REFUSED, 0, 5)


def test_what_is_read_during_a_scan_is_kept_behind_it() -> None:
    partition = sealed_up_to(20, fence=5)
    partition.position = 8
    partition.begin(30)
    for second in (12, 21, 30):
        key = partition.place(second, 0, 8)
        assert key is not None
        assert first_key(31) <= key < first_key(32)
        assert parts_of(key) == (second, 0, 8)
    assert partition.place(31, 0, 8) == first_key(31)[:10] + (8).to_bytes(8, "big")


def test_what_a_scan_covers_has_the_same_key_before_and_during_it() -> None:
    partition = sealed_up_to(20, fence=5)
    before = [partition.place(second, 0, 7) for second in (12, 25)]
    partition.position = 8
    partition.begin(30)
    assert [partition.place(second, 0, 7) for second in (12, 25)] == before


def test_a_slice_has_done_what_is_up_to_its_last_key_and_below_its_fence() -> None:
    owner = sealed_up_to(20, fence=5)
    keys = [place(owner, second, offset) for second, offset in ((25, 5), (26, 6), (26, 7))]
    owner.position = 8
    owner.begin(30)
    part = owner.seal(taken_from(keys[:2]), complete=False)
    heir = Partition(3)
    heir.take_over([Sealed(last=20, fence=5), part], None)
    assert heir.scan == Scan(30, 8, keys[1])
    assert [heir.settle(key) for key in keys] == [None, None, keys[2]]
    behind = heir.place(25, 0, 8)
    assert behind is not None
    assert behind >= first_key(31)


# --- counts ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_chunks")
def test_restore_from_is_where_the_first_chunk_with_pending_requests_begins() -> None:
    partition = Partition(0)
    partition.position = 23
    assert (partition.pending, partition.restore_from) == (0, 23)
    partition.added([5, 6])
    partition.added([7, 8, 21])
    assert (partition.pending, partition.restore_from) == (5, 4)
    partition.removed([5, 7, 6])
    assert (partition.pending, partition.restore_from) == (2, 8)
    partition.removed([8, 21])
    assert (partition.pending, partition.restore_from) == (0, 23)


@pytest.mark.usefixtures("small_chunks")
def test_touched_chunks_are_told_once_with_their_counts() -> None:
    partition = Partition(0)
    partition.added([1, 2, 9])
    assert partition.take_touched() == {0: (2, 0), 2: (1, 0)}
    assert partition.take_touched() == {}
    partition.removed([9, 1])
    assert partition.take_touched() == {0: (1, 0), 2: (0, 0)}


def test_nothing_is_counted_for_no_offsets() -> None:
    partition = Partition(0)
    partition.added([])
    partition.removed([])
    assert (partition.pending, partition.take_touched()) == (0, {})


@pytest.mark.usefixtures("small_chunks")
def test_restore_from_never_goes_back() -> None:
    partition = Partition(0)
    partition.position = 6
    partition.begin(10)
    seal = partition.seal(taken_from([]), complete=True)
    assert seal.restore_from == 6
    partition.sealed(seal, taken_from([]))
    partition.added([7])
    partition.position = 8
    assert partition.restore_from == 6
    heir = Partition(0)
    assert not heir.take_over([seal], None)
    heir.added([7])
    assert heir.restore_from == 6


# --- firing ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_chunks")
def test_a_seal_tells_what_is_done_and_what_is_left() -> None:
    partition = sealed_up_to(20, fence=5)
    late, on_time, refused = place(partition, 19, 6), place(partition, 22, 9), place(partition, REFUSED, 10)
    place(partition, 40, 13)
    partition.position = 15
    partition.begin(30)
    due = sorted([late, on_time, refused])
    seal = partition.seal(taken_from(due, [refused]), complete=True)
    assert seal == Sealed(
        partition=3,
        first=21,
        last=30,
        due=3,
        fired=2,
        rejected=1,
        late_arrivals=2,
        pending=1,
        digest=digest_of([6, 9]),
        fence=15,
        restore_from=12,
    )
    assert (partition.second, partition.pending) == (20, 4)
    partition.sealed(seal, taken_from(due))
    assert (partition.second, partition.fence, partition.scan, partition.pending) == (30, 15, None, 1)


def test_slices_go_on_where_the_one_before_ended() -> None:
    partition = Partition(0)
    keys = [place(partition, 11, offset) for offset in range(3)]
    partition.position = 3
    scan = partition.begin(12)
    assert partition.range_of(scan) == (first_key(1), first_key(13))
    seal = partition.seal(taken_from(keys[:2]), complete=False)
    assert (seal.through, seal.first, seal.last) == (keys[1], 1, 12)
    partition.sealed(seal, taken_from(keys[:2]))
    scan = partition.begin(12)
    start, before = partition.range_of(scan)
    assert [key for key in keys if start <= key < before] == keys[2:]
    seal = partition.seal(taken_from(keys[2:]), complete=True)
    assert not seal.HasField("through")
    partition.sealed(seal, taken_from(keys[2:]))
    assert (partition.second, partition.scan, partition.pending) == (12, None, 0)


def test_an_open_scan_comes_first_and_keeps_its_fence() -> None:
    partition = Partition(0)
    partition.position = 4
    scan = partition.begin(12)
    partition.position = 9
    assert partition.begin(15) is scan
    assert scan == Scan(12, 4)


def test_nothing_can_be_sealed_without_a_scan() -> None:
    with pytest.raises(AssertionError, match="begin"):
        Partition(0).seal(taken_from([]), complete=True)


# --- taking over -----------------------------------------------------------------------------------------------------


def test_the_first_owner_of_all_begins_at_the_beginning() -> None:
    partition = Partition(0)
    assert partition.take_over([], None) is False
    assert (partition.second, partition.position, partition.scan, partition.must_reach) == (0, 0, None, 0)


def test_an_empty_store_is_filled_from_where_something_waits() -> None:
    partition = Partition(0)
    seals = [Sealed(last=10, fence=5, restore_from=2), Sealed(last=11, fence=90, restore_from=40)]
    assert partition.take_over(seals, None) is False
    assert (partition.second, partition.fence, partition.position, partition.must_reach) == (11, 90, 40, 90)


def test_the_highest_seal_counts_whatever_the_order_in_the_log() -> None:
    partition = Partition(0)
    partition.take_over([Sealed(last=12, fence=9), Sealed(last=12, fence=7), Sealed(last=11, fence=8)], None)
    assert (partition.second, partition.fence) == (12, 9)


def test_slices_of_a_second_that_is_complete_by_now_do_not_count() -> None:
    partition = Partition(0)
    partition.take_over([Sealed(first=11, last=12, fence=9, through=first_key(12)), Sealed(last=12, fence=9)], None)
    assert (partition.second, partition.scan) == (12, None)


def test_an_open_scan_must_be_read_up_to_its_fence_before_it_goes_on() -> None:
    partition = Partition(0)
    slice_of_15 = Sealed(first=13, last=15, fence=20, through=first_key(14))
    partition.take_over([Sealed(last=12, fence=9), slice_of_15], None)
    assert (partition.second, partition.scan, partition.must_reach) == (12, Scan(15, 20, first_key(14)), 20)


def test_a_slice_counts_only_on_top_of_the_complete_seal_that_it_was_made_on() -> None:
    owner = sealed_up_to(12, fence=5)
    keys = [place(owner, 11, 6), place(owner, 11, 7)]
    owner.position = 8
    owner.begin(13)
    part = owner.seal(taken_from(keys[:1]), complete=False)
    heir = Partition(3)
    heir.take_over([part, Sealed(last=9, fence=5)], None)
    assert heir.scan is None
    assert heir.settle(keys[1]) is not None


@pytest.mark.parametrize(("position", "kept"), [(39, False), (40, True), (95, True)])
def test_a_store_is_kept_unless_it_ends_below_what_waits(position: int, kept: bool) -> None:
    partition = Partition(0)
    local = Local(position, second=10, fence=5, scan=None)
    assert partition.take_over([Sealed(last=11, fence=90, restore_from=40)], local) is kept
    assert partition.position == (position if kept else 40)
    assert (partition.second, partition.fence) == (11, 90)


def test_a_store_that_knows_more_than_the_seals_is_believed() -> None:
    partition = Partition(0)
    local = Local(9, second=12, fence=8, scan=None)
    assert partition.take_over([], local) is True
    assert (partition.second, partition.fence, partition.position) == (12, 8, 9)


def test_rows_of_a_kept_store_get_the_keys_that_a_new_reading_would_give_them() -> None:
    stale = Partition(0)
    stale.take_over([Sealed(last=10, fence=2)], None)
    rows = {key: parts_of(key) for key in (stale.place(9, 0, 3), stale.place(12, 5, 4), stale.place(14, 0, 5)) if key}
    heir = Partition(0)
    heir.take_over([Sealed(last=13, fence=4)], Local(6, second=10, fence=2, scan=None))
    assert {heir.settle(key): parts for key, parts in rows.items()} == {
        None: (9, 0, 3),
        heir.place(12, 5, 4): (12, 5, 4),
        heir.place(14, 0, 5): (14, 0, 5),
    }


def test_rows_beyond_unsettled_keep_their_keys() -> None:
    heir = Partition(0)
    local = Local(6, second=10, fence=2, scan=Scan(17, 4))
    heir.take_over([Sealed(last=13, fence=5)], local)
    stale = Partition(0)
    stale.scan = local.scan
    moved = stale.place(11, 0, 5)
    assert moved is not None
    assert moved < first_key(heir.unsettled(local))
    untouched = heir.place(heir.unsettled(local), 0, 5)
    assert untouched is not None
    assert heir.settle(untouched) == untouched


# --- ticks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("second", "appended_ms", "counts_as"),
    [
        (12, 12_000, 12),
        (12, 12_999, 12),
        (12, 60_000, 12),
        (12, 11_999, 11),
        (12, 10_000, 10),
        (12, 9_999, None),
        (3612, 12_000, None),
    ],
)
def test_a_tick_counts_as_no_more_than_the_second_of_its_append(
    second: int, appended_ms: int, counts_as: int | None
) -> None:
    assert tick_second(second, appended_ms, max_clock_skew_s=2.0) == counts_as
