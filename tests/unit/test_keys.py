"""The keys of pending requests: their order, their parts, and their bytes, which lie on disk and in seals."""

import random

import pytest

from kafka_timers.core.keys import (
    FIRST_MS,
    REFUSED_MS,
    Copied,
    batch_key,
    copied_in,
    count_of,
    counted_under,
    first_key,
    is_batch,
    is_late,
    late_key,
    parts_of,
    row_key,
)

DUE_MS = 1_800_000_000_250
LARGE = 2**63 - 1


@pytest.mark.parametrize(
    ("key", "written"),
    [
        (row_key(DUE_MS, 7), "000000006b49d200 00fa 0000000000000007"),
        (batch_key(DUE_MS, 7, 3), "000000006b49d200 00fa 0000000000000007 0003"),
        (late_key(21_000, 9, 12_250), "0000000000000015 0000 0000000000000009 000000000000000c 00fa"),
        (
            row_key(21_000, 9, Copied(12, 10)),
            "0000000000000015 0000 0000000000000009 000000000000000c 000000000000000a",
        ),
        (first_key(DUE_MS), "000000006b49d200 00fa 0000000000000000"),
    ],
    ids=["in time", "batch", "late", "copy", "bound"],
)
def test_keys_are_written_as_stores_and_seals_of_earlier_versions_have_them(key: bytes, written: str) -> None:
    """A change of one byte would have a next owner fire again, or never."""
    assert key.hex() == written.replace(" ", "")


@pytest.mark.parametrize("due_ms", [FIRST_MS, 12_999, DUE_MS, 99_999_999_999_999])
@pytest.mark.parametrize("offset", [0, 7, LARGE])
@pytest.mark.parametrize("copied", [None, Copied(0, 0), Copied(LARGE, 12)])
def test_a_key_tells_the_request_that_lies_under_it(due_ms: int, offset: int, copied: Copied | None) -> None:
    in_time, late = row_key(due_ms, offset, copied), late_key(due_ms + 5_000, offset, due_ms, copied)
    for key in (in_time, late):
        assert parts_of(key) == (due_ms, offset)
        assert copied_in(key) == copied
        assert counted_under(key) == (copied.decided if copied else offset)
        assert (is_batch(key), count_of(key)) == (False, 1)
    assert [is_late(in_time), is_late(late)] == [False, True]


@pytest.mark.parametrize("count", [2, 65_535])
def test_a_batch_tells_its_moment_its_last_offset_and_how_many_it_has(count: int) -> None:
    key = batch_key(DUE_MS, LARGE, count)
    assert (parts_of(key), count_of(key)) == ((DUE_MS, LARGE), count)
    assert (is_batch(key), is_late(key), copied_in(key)) == (True, False, None)
    assert counted_under(key) == LARGE


def test_a_refused_request_keeps_that_it_was_refused() -> None:
    key = late_key(FIRST_MS, 7, REFUSED_MS)
    assert (parts_of(key), is_late(key)) == ((REFUSED_MS, 7), True)


def test_keys_of_all_kinds_sort_by_moment_and_then_by_offset() -> None:
    """A late one by the moment from which it may fire; a batch by its last offset."""
    ordered = [
        first_key(21_000),
        late_key(21_000, 3, 1_000),
        row_key(21_000, 4),
        late_key(21_000, 5, 20_999),
        row_key(21_000, 6, Copied(99, 98)),
        batch_key(21_000, 9, 3),
        late_key(21_000, 10, 2_000, Copied(99, 98)),
        first_key(21_001),
        row_key(21_001, 0),
        batch_key(21_001, 2, 2),
        row_key(21_999, 1),
        first_key(22_000),
    ]
    assert sorted(random.Random(5).sample(ordered, len(ordered))) == ordered


def test_the_first_key_of_a_moment_bounds_all_that_is_due_before_it() -> None:
    assert row_key(20_999, LARGE, Copied(LARGE, LARGE)) < first_key(21_000) <= row_key(21_000, 0)
    assert batch_key(20_999, LARGE, 65_535) < first_key(21_000)
    assert late_key(20_000, LARGE, 19_999) < first_key(20_001)
