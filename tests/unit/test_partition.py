"""The rules of one partition, one at a time."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from kafka_timers.core import backlog
from kafka_timers.core import ignored as rules
from kafka_timers.core.changes import Head, Scan
from kafka_timers.core.contents import Contents
from kafka_timers.core.hour import SLACK_MS
from kafka_timers.core.keys import REFUSED_MS, first_key, is_late, parts_of
from kafka_timers.core.partition import Partition
from kafka_timers.core.reconcile import key_by_now, unreconciled
from kafka_timers.core.sums import ReadSums, Sum, fired_digest_of
from kafka_timers.core.tick_clock import tick_second
from kafka_timers.core.wire import FORMAT, Sealed
from kafka_timers.errors import NewerFormatError


def read_to(partition: Partition, position: int, offsets: Sequence[int] = ()) -> None:
    """Read the log on up to *position*, with requests at *offsets*."""
    partition.apply(partition.read(position, offsets=offsets))


def sealed_up_to(second: int, snapshot: int) -> Partition:
    partition = Partition(3)
    partition.acquire([Sealed(end_ms=(second + 1) * 1000, fence=snapshot)], None)
    read_to(partition, snapshot)
    return partition


def contents_of(due: Sequence[bytes], rejected: Sequence[bytes] = ()) -> Contents:
    """Return the contents of a slice of these rows, none of which is a batch."""
    return Contents(
        [parts_of(key)[1] for key in due],
        [parts_of(key)[1] for key in rejected],
        late=sum(map(is_late, due)),
        through=max(due, default=b""),
    )


def place(partition: Partition, due_ms: int, offset: int) -> bytes:
    """Return the key of a request that is kept, and count it."""
    key = partition.place(due_ms, offset)
    assert key is not None
    read_to(partition, partition.position, [offset])
    return key


def seal(partition: Partition, contents: Contents, *, complete: bool = True) -> Sealed:
    """Seal *contents* of the open scan."""
    sealed = partition.seal(contents, complete=complete)
    partition.apply(partition.sealed(sealed, contents))
    return sealed


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "CHUNK_BITS", 2)


# --- keys ------------------------------------------------------------------------------------------------------------


def test_keys_sort_by_moment_and_offset() -> None:
    partition = Partition(0)
    asked = [(12_000, 7), (12_000, 300), (12_999, 1), (13_000, 0), (70_000_005, 2), (99_999_999_999_000, 3)]
    shuffled = random.Random(1).sample(asked, len(asked))
    keys = sorted(partition.place(*parts) or b"" for parts in shuffled)
    assert [parts_of(key) for key in keys] == asked


def test_a_late_key_sorts_first_in_the_next_second_and_knows_the_requested_one() -> None:
    partition = sealed_up_to(20, snapshot=5)
    late, on_time = place(partition, 12_250, 9), place(partition, 21_001, 8)
    assert (is_late(late), is_late(on_time)) == (True, False)
    assert first_key(21_000) < late < on_time < first_key(22_000)
    assert parts_of(late) == (12_250, 9)


def test_late_keys_sort_in_order_of_acceptance() -> None:
    partition = sealed_up_to(20, snapshot=5)
    assert place(partition, 19_999, 6) < place(partition, 3_000, 7) < place(partition, 20_000, 8)


# --- place -----------------------------------------------------------------------------------------------------------


def test_a_request_is_done_when_its_second_is_sealed_and_its_offset_below_the_snapshot() -> None:
    partition = sealed_up_to(20, snapshot=5)
    assert partition.place(20_000, 4) is None
    assert partition.place(20_999, 4) is None
    assert partition.place(20_000, 5) is not None
    assert partition.place(21_000, 4) is not None


def test_a_refused_request_goes_with_the_next_tick() -> None:
    first = Partition(0).place(REFUSED_MS, 0)
    assert first is not None
    assert first_key(1_000) <= first < first_key(2_000)
    late = sealed_up_to(20, snapshot=5).place(REFUSED_MS, 5)
    assert late is not None
    assert first_key(21_000) <= late < first_key(22_000)
    assert parts_of(late) == (REFUSED_MS, 5)


def test_a_request_read_during_a_scan_is_kept_behind_it() -> None:
    partition = sealed_up_to(20, snapshot=5)
    read_to(partition, 8)
    partition.begin(31_000)
    for due_ms in (12_000, 21_000, 30_999):
        key = partition.place(due_ms, 8)
        assert key is not None
        assert first_key(31_000) <= key < first_key(32_000)
        assert parts_of(key) == (due_ms, 8)
    assert partition.place(31_000, 8) == first_key(31_000)[:10] + (8).to_bytes(8, "big")


def test_a_request_that_a_scan_covers_has_the_same_key_before_and_during_it() -> None:
    partition = sealed_up_to(20, snapshot=5)
    before = [partition.place(due_ms, 7) for due_ms in (12_000, 25_000)]
    read_to(partition, 8)
    partition.begin(31_000)
    assert [partition.place(due_ms, 7) for due_ms in (12_000, 25_000)] == before


def test_a_slice_has_done_requests_up_to_its_last_key_and_below_its_snapshot() -> None:
    owner = sealed_up_to(20, snapshot=5)
    keys = [place(owner, due_ms, offset) for due_ms, offset in ((25_000, 5), (26_000, 6), (26_000, 7))]
    read_to(owner, 8)
    owner.begin(31_000)
    part = owner.seal(contents_of(keys[:2]), complete=False)
    heir = Partition(3)
    heir.acquire([Sealed(end_ms=21_000, fence=5), part], None)
    assert heir.scan == Scan(31_000, 8, keys[1])
    assert [key_by_now(heir, key) for key in keys] == [None, None, keys[2]]
    behind = heir.place(25_000, 8)
    assert behind is not None
    assert behind >= first_key(31_000)


# --- counts ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_chunks")
def test_restore_from_is_where_the_first_chunk_with_pending_requests_begins() -> None:
    partition = Partition(0)
    read_to(partition, 23)
    assert (partition.pending, partition.restore_from) == (0, 23)
    read_to(partition, 23, [5, 6])
    read_to(partition, 23, [7, 8, 21])
    assert (partition.pending, partition.restore_from) == (5, 4)
    partition.begin(12_000)
    seal(partition, Contents([5, 7, 6], through=first_key(11_000)), complete=False)
    assert (partition.pending, partition.restore_from) == (2, 8)
    seal(partition, Contents([8, 21]))
    assert (partition.pending, partition.restore_from) == (0, 23)


@pytest.mark.usefixtures("small_chunks")
def test_a_log_that_starts_within_the_first_chunk_that_waits_has_all_if_nothing_below_waits() -> None:
    partition = Partition(0)
    read_to(partition, 23, [7, 21])
    partition.begins_at(6, 0)
    partition.begin(12_000)
    sealed = seal(partition, Contents())
    assert (sealed.restore_from, sealed.held_alone) == (6, 0)


@pytest.mark.usefixtures("small_chunks")
def test_seals_tell_how_many_requests_have_left_the_log_and_wait() -> None:
    partition = Partition(0)
    read_to(partition, 23, [5, 6, 21])
    partition.begins_at(7, 2)
    partition.begin(12_000)
    sealed = seal(partition, Contents())
    assert (sealed.restore_from, sealed.held_alone) == (4, 2)
    # Of those that wait at most all are such.
    partition.begin(13_000)
    assert seal(partition, Contents([5, 6])).held_alone == 1


@pytest.mark.usefixtures("small_chunks")
def test_a_step_tells_the_counts_of_the_chunks_that_it_changes_and_of_no_others() -> None:
    partition = Partition(0)
    changes = partition.read(10, offsets=[1, 2, 9])
    assert changes.counts == {0: (2, 0), 2: (1, 0)}
    partition.apply(changes)
    assert partition.read(11).counts == {}
    partition.begin(12_000)
    contents = Contents([9, 1])
    assert partition.sealed(partition.seal(contents, complete=True), contents).counts == {0: (1, 0), 2: (0, 0)}


def test_nothing_is_counted_for_no_offsets() -> None:
    partition = Partition(0)
    changes = partition.read(0, offsets=[])
    assert changes.counts == {}
    partition.apply(changes)
    assert partition.pending == 0


def test_a_step_moves_the_state_when_it_is_applied_and_not_before() -> None:
    """In between it is written, which may fail."""
    partition = Partition(0)
    read = partition.read(3, offsets=[0, 1])
    assert (partition.position, partition.pending) == (0, 0)
    partition.apply(read)
    assert (partition.position, partition.pending) == (3, 2)
    partition.begin(12_000)
    begun = partition.scan
    contents = Contents([0, 1])
    changes = partition.sealed(partition.seal(contents, complete=True), contents)
    assert (partition.sealed_ms, partition.pending, partition.scan) == (1_000, 2, begun)
    partition.apply(changes)
    assert (partition.sealed_ms, partition.pending, partition.scan) == (12_000, 0, None)


@pytest.mark.usefixtures("small_chunks")
def test_restore_from_never_goes_back() -> None:
    partition = Partition(0)
    read_to(partition, 6)
    partition.begin(11_000)
    sealed = seal(partition, contents_of([]))
    assert sealed.restore_from == 6
    read_to(partition, 8, [7])
    assert partition.restore_from == 6
    heir = Partition(0)
    assert not heir.acquire([sealed], None)
    read_to(heir, 8, [7])
    assert heir.restore_from == 6


# --- firing ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_chunks")
def test_a_seal_counts_done_and_pending_requests() -> None:
    partition = sealed_up_to(20, snapshot=5)
    late, on_time = place(partition, 19_000, 6), place(partition, 22_000, 9)
    refused = place(partition, REFUSED_MS, 10)
    place(partition, 40_000, 13)
    read_to(partition, 15)
    partition.begin(31_000)
    contents = contents_of(sorted([late, on_time, refused]), [refused])
    sealed = partition.seal(contents, complete=True)
    assert sealed == Sealed(
        partition=3,
        due=3,
        fired=2,
        rejected=1,
        late_arrivals=2,
        pending=1,
        fired_digest=fired_digest_of(3, [6, 9]),
        fence=15,
        restore_from=12,
        first_ms=21_000,
        end_ms=31_000,
        format=FORMAT,
    )
    assert (partition.sealed_ms, partition.pending) == (21_000, 4)
    partition.apply(partition.sealed(sealed, contents))
    assert (partition.sealed_ms, partition.head.snapshot, partition.scan) == (31_000, 15, None)
    assert partition.pending == 1


def test_slices_go_on_where_the_one_before_ended() -> None:
    partition = Partition(0)
    keys = [place(partition, 11_000, offset) for offset in range(3)]
    read_to(partition, 3)
    partition.begin(13_000)
    assert partition.keys_left() == (first_key(1_000), first_key(13_000))
    sealed = seal(partition, contents_of(keys[:2]), complete=False)
    assert (sealed.through, sealed.first_ms, sealed.end_ms) == (keys[1], 1_000, 13_000)
    partition.begin(13_000)
    start, before = partition.keys_left()
    assert [key for key in keys if start <= key < before] == keys[2:]
    sealed = seal(partition, contents_of(keys[2:]))
    assert not sealed.HasField("through")
    assert (partition.sealed_ms, partition.scan, partition.pending) == (13_000, None, 0)


def test_an_open_scan_comes_first_and_keeps_its_snapshot() -> None:
    partition = Partition(0)
    read_to(partition, 4)
    partition.begin(13_000)
    scan = partition.scan
    read_to(partition, 9)
    partition.begin(16_000)
    assert partition.scan is scan
    assert scan == Scan(13_000, 4)


def test_nothing_can_be_sealed_without_a_scan() -> None:
    with pytest.raises(AssertionError, match="begin"):
        Partition(0).seal(contents_of([]), complete=True)


# --- acquiring it ----------------------------------------------------------------------------------------------------


def test_the_first_owner_of_all_begins_at_the_beginning() -> None:
    partition = Partition(0)
    assert partition.acquire([], None) is False
    assert (partition.sealed_ms, partition.position, partition.scan, partition.must_read_to) == (1_000, 0, None, 0)


def test_an_empty_store_is_filled_from_where_something_waits() -> None:
    partition = Partition(0)
    seals = [Sealed(end_ms=11_000, fence=5, restore_from=2), Sealed(end_ms=12_000, fence=90, restore_from=40)]
    assert partition.acquire(seals, None) is False
    assert (partition.sealed_ms, partition.head.snapshot) == (12_000, 90)
    assert (partition.position, partition.must_read_to) == (40, 90)


def test_the_highest_seal_counts_in_any_order_of_the_log() -> None:
    partition = Partition(0)
    partition.acquire(
        [Sealed(end_ms=13_000, fence=9), Sealed(end_ms=13_000, fence=7), Sealed(end_ms=12_000, fence=8)], None
    )
    assert (partition.sealed_ms, partition.head.snapshot) == (13_000, 9)


def test_slices_of_a_second_that_is_complete_by_now_do_not_count() -> None:
    partition = Partition(0)
    part = Sealed(first_ms=11_000, end_ms=13_000, fence=9, through=first_key(12_000))
    partition.acquire([part, Sealed(end_ms=13_000, fence=9)], None)
    assert (partition.sealed_ms, partition.scan) == (13_000, None)


def test_an_open_scan_must_be_read_up_to_its_snapshot_before_it_goes_on() -> None:
    partition = Partition(0)
    slice_of_15 = Sealed(first_ms=13_000, end_ms=16_000, fence=20, through=first_key(14_000))
    partition.acquire([Sealed(end_ms=13_000, fence=9), slice_of_15], None)
    assert (partition.sealed_ms, partition.scan) == (13_000, Scan(16_000, 20, first_key(14_000)))
    assert partition.must_read_to == 20


def test_a_slice_counts_only_on_top_of_the_complete_seal_that_it_was_made_on() -> None:
    owner = sealed_up_to(12, snapshot=5)
    keys = [place(owner, 11_000, 6), place(owner, 11_000, 7)]
    read_to(owner, 8)
    owner.begin(14_000)
    part = owner.seal(contents_of(keys[:1]), complete=False)
    heir = Partition(3)
    heir.acquire([part, Sealed(end_ms=10_000, fence=5)], None)
    assert heir.scan is None
    assert key_by_now(heir, keys[1]) is not None


@pytest.mark.parametrize(("position", "kept"), [(39, False), (40, True), (95, True)])
def test_a_store_is_kept_unless_it_ends_below_pending_requests(position: int, kept: bool) -> None:
    partition = Partition(0)
    local = Head(position, sealed_ms=11_000, snapshot=5, known_from=0, scan=None)
    assert partition.acquire([Sealed(end_ms=12_000, fence=90, restore_from=40)], local) is kept
    assert partition.position == (position if kept else 40)
    assert (partition.sealed_ms, partition.head.snapshot) == (12_000, 90)


def test_a_store_that_knows_more_than_the_seals_is_believed() -> None:
    partition = Partition(0)
    local = Head(9, sealed_ms=13_000, snapshot=8, known_from=0, scan=None)
    assert partition.acquire([], local) is True
    assert (partition.sealed_ms, partition.head.snapshot, partition.position) == (13_000, 8, 9)


def test_rows_of_a_kept_store_get_the_keys_that_a_new_reading_would_give_them() -> None:
    stale = Partition(0)
    stale.acquire([Sealed(end_ms=11_000, fence=2)], None)
    asked = [(9_000, 3), (12_005, 4), (14_000, 5)]
    rows = {key: parts_of(key) for key in (stale.place(*parts) for parts in asked) if key}
    heir = Partition(0)
    heir.acquire([Sealed(end_ms=14_000, fence=4)], Head(6, sealed_ms=11_000, snapshot=2, known_from=0, scan=None))
    assert {key_by_now(heir, key): parts for key, parts in rows.items()} == {
        None: (9_000, 3),
        heir.place(12_005, 4): (12_005, 4),
        heir.place(14_000, 5): (14_000, 5),
    }


def test_rows_beyond_the_reconciled_range_keep_their_keys() -> None:
    heir = Partition(0)
    local = Head(6, sealed_ms=11_000, snapshot=2, known_from=0, scan=Scan(18_000, 4))
    heir.acquire([Sealed(end_ms=14_000, fence=5)], local)
    bound = unreconciled(heir, local)
    stale = Partition(0)
    read_to(stale, 4)
    stale.begin(18_000)
    assert stale.scan == local.scan
    moved = stale.place(11_000, 5)
    assert moved is not None
    assert moved < bound
    untouched = heir.place(parts_of(bound)[0], 5)
    assert untouched is not None
    assert untouched > bound
    assert key_by_now(heir, untouched) == untouched


# --- the format of seals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, {"through": first_key(12_500)}], ids=["complete", "slice"])
def test_a_seal_of_a_later_format_is_not_gone_on_from(more: dict[str, Any]) -> None:
    """Also not when an earlier one says all that is needed: the addition of the later one may be needed too."""
    partition = Partition(4)
    later = Sealed(partition=4, fence=9, format=FORMAT + 1, first_ms=12_000, end_ms=13_000, **more)
    with pytest.raises(NewerFormatError, match=r"partition 4 has seals of format 2, .* up to 1: upgrade this worker"):
        partition.acquire([Sealed(first_ms=1_000, end_ms=12_000, fence=8), later], None)
    assert (partition.sealed_ms, partition.position, partition.scan) == (1_000, 0, None)


SEALED = ReadSums(2, 9, Sum(4, 40), Sum(2, 20), Sum(1, 10))
FURTHER = ReadSums(2, 12, Sum(6, 60), Sum(2, 20), Sum(2, 30))


def seal_telling(read: ReadSums | None) -> Sealed:
    told = Sealed(fence=9, restore_from=3, first_ms=9_000, end_ms=13_000)
    if read is not None:
        read.tell(told)
    return told


@pytest.mark.parametrize(
    ("read", "kept", "position", "known"),
    [
        (SEALED, None, None, SEALED),
        (SEALED, FURTHER, 12, FURTHER),
        (SEALED, ReadSums(2, 5, Sum(2, 20)), 5, SEALED),
        (SEALED, None, 7, SEALED),
        (SEALED, None, 12, ReadSums(12, 12)),
        (SEALED, replace(FURTHER, since=5), 12, ReadSums(12, 12)),
        (None, None, None, ReadSums(3, 3)),
        (None, FURTHER, 12, FURTHER),
        (None, None, 12, ReadSums(12, 12)),
    ],
    ids=[
        *(
            "no store",
            "a store that has read further",
            "a store that is behind",
            "a store without a count that is behind",
        ),
        *("a store without a count that is further", "a store that has counted from elsewhere on"),
        *("seals without a count", "seals without a count, and a store", "neither has counted"),
    ],
)
def test_an_owner_goes_on_counting_read_records_from_the_known_offset(
    read: ReadSums | None, kept: ReadSums | None, position: int | None, known: ReadSums
) -> None:
    local = None if position is None else Head(position, 13_000, 9, 3, None, read=kept)
    partition = Partition(3)
    partition.acquire([seal_telling(read)], local)
    assert partition.head.read == known


def test_a_slice_counts_records_read_below_its_own_fence_and_so_does_the_next_owner_of_the_scan() -> None:
    owner = Partition(3)
    owner.apply(owner.read(5, read=replace(SEALED, to=5)))
    owner.begin(31_000)
    owner.apply(owner.read(12, read=FURTHER))
    part = owner.seal(Contents([1], through=first_key(25_000)), complete=False)
    assert ReadSums.of(part) == replace(SEALED, to=5)
    heir = Partition(3)
    heir.acquire([part], None)
    heir.apply(heir.read(12, read=FURTHER))
    assert ReadSums.of(heir.seal(Contents(), complete=True)) == replace(SEALED, to=5)
    owner.apply(owner.sealed(rest := owner.seal(Contents(), complete=True), Contents()))
    assert ReadSums.of(rest) == replace(SEALED, to=5)
    owner.begin(32_000)
    assert ReadSums.of(owner.seal(Contents(), complete=True)) == FURTHER


def test_an_owner_that_has_not_counted_seals_no_count_of_read_records() -> None:
    partition = sealed_up_to(20, snapshot=5)
    read_to(partition, 8)
    partition.begin(31_000)
    assert ReadSums.of(partition.seal(Contents(), complete=True)) is None


def test_a_request_that_waits_in_vain_is_named_by_each_seal_until_an_hour_after_its_moment() -> None:
    """An owner that begins without a store reads it again, and could not tell by the log that is left."""
    partition = Partition(0)
    changes = partition.read(9)
    changes.ignored = {7: 12_500, 3: 40_000}
    partition.apply(changes)
    told = []
    for end_ms in (12_000, 3_613_000, 3_614_000):
        partition.begin(end_ms)
        partition.passed(end_ms + SLACK_MS)
        told.append([*seal(partition, contents_of([])).ignored])
    assert told == [[3, 7], [3, 7], [3]]
    heir = Partition(0)
    heir.acquire([Sealed(first_ms=1_000, end_ms=13_000, fence=9, ignored=[3, 7])], None)
    assert heir.ignored == {3: 0, 7: 0}


def test_of_requests_that_wait_in_vain_the_newest_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "IGNORED_MAX", 2)
    partition = Partition(0)
    changes = partition.read(9)
    changes.ignored = dict.fromkeys([5, 1, 3], 40_000)
    partition.apply(changes)
    partition.begin(12_000)
    assert [*seal(partition, contents_of([])).ignored] == [3, 5]
    assert sorted(partition.ignored) == [3, 5]


def test_of_requests_that_were_ignored_those_that_are_done_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "IGNORED_MAX", 2)
    partition = Partition(0)
    changes = partition.read(9)
    changes.ignored = {1: 40_000, 3: 11_000, 5: 41_000, 7: 11_000}
    partition.apply(changes)
    for end_ms in (12_000, 13_000):
        partition.begin(end_ms)
        sealed = seal(partition, contents_of([]))
    assert [*sealed.ignored] == sorted(partition.ignored) == [1, 5]


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
