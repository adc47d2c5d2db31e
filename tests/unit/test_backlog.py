"""How many requests wait, and from where the log must be read to know them: counts, and their change by a step."""

import pytest

from kafka_timers.core import backlog as module
from kafka_timers.core.backlog import CHUNK_BITS, Backlog, Count, Tally, chunk_of, chunks_of


def backlog_of(counts: dict[int, Count]) -> Backlog:
    backlog = Backlog()
    backlog.apply(counts)
    return backlog


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_BITS", 2)


@pytest.mark.parametrize("offsets", [[], [0], [0, 1, 3], [3, 4], [1, 4, 5, 21]])
@pytest.mark.usefixtures("small_chunks")
def test_offsets_are_counted_alike_whether_they_are_known_to_ascend_or_not(offsets: list[int]) -> None:
    assert chunks_of(offsets) == chunks_of(offsets, ascending=True)
    assert chunks_of(offsets).total() == len(offsets)
    assert {chunk_of(offset) for offset in offsets} == set(chunks_of(offsets))


def test_a_chunk_has_16384_offsets() -> None:
    """Stores on disk count by these."""
    assert 1 << CHUNK_BITS == 16_384
    assert (chunk_of(16_383), chunk_of(16_384)) == (0, 1)


def test_a_second_without_pending_or_remembered_timers_is_not_kept() -> None:
    backlog = backlog_of({1: (2, 0), 2: (0, 9_000), 3: (1, 9_000)})
    assert (dict(backlog.pending), backlog.remembered) == ({1: 2, 3: 1}, {2: 9_000, 3: 9_000})
    backlog.apply({1: (0, 0), 2: (0, 0), 3: (0, 9_000), 4: (0, 0)})
    assert (dict(backlog.pending), backlog.remembered, backlog.total) == ({}, {3: 9_000}, 0)


def test_a_tally_changes_nothing_until_it_is_applied() -> None:
    before: dict[int, Count] = {1: (2, 0), 2: (1, 9_000)}
    backlog = backlog_of(before)
    tally = Tally(backlog, 5_000)
    tally.add({1: 1, 3: 4})
    tally.remove({2: 1})
    tally.remember([3], 8_000)
    tally.forget(9_000)
    assert (dict(backlog.pending), backlog.remembered) == ({1: 2, 2: 1}, {2: 9_000})
    assert (tally.pending, backlog.total) == (7, 3)
    assert tally.counts == {1: (3, 0), 2: (0, 0), 3: (4, 0)}
    backlog.apply(tally.counts)
    assert (dict(backlog.pending), backlog.remembered) == ({1: 3, 3: 4}, {})


def test_a_tally_tells_the_chunks_that_change_and_no_others() -> None:
    tally = Tally(backlog_of({1: (2, 0), 2: (1, 9_000)}), 5_000)
    tally.add({})
    tally.remember([1], 5_000)
    tally.remember([2], 9_000)
    tally.forget(8_999)
    assert tally.counts == {}


def test_additions_and_removals_of_one_step_add_up() -> None:
    tally = Tally(backlog_of({1: (2, 0)}), 0)
    tally.add({1: 3})
    tally.remove({1: 4})
    tally.add({1: 1})
    assert (tally.counts, tally.pending) == ({1: (2, 0)}, 2)


def test_a_chunk_is_remembered_for_as_long_as_any_of_its_requests_is() -> None:
    tally = Tally(backlog_of({1: (1, 7_000)}), 5_000)
    tally.remember([1, 2], 6_000)
    tally.remember([1, 2], 8_000)
    tally.remember([1, 2], 7_500)
    assert tally.counts == {1: (1, 8_000), 2: (0, 8_000)}


@pytest.mark.parametrize(("until_ms", "is_remembered"), [(4_999, False), (5_000, False), (5_001, True)])
def test_a_request_that_is_over_by_now_is_not_remembered(until_ms: int, is_remembered: bool) -> None:
    tally = Tally(Backlog(), 5_000)
    tally.remember([1], until_ms)
    assert bool(tally.counts) is is_remembered


def test_only_past_ids_are_forgotten_and_pending_timers_there_still_count() -> None:
    backlog = backlog_of({1: (0, 7_000), 2: (3, 7_001), 3: (3, 6_000), 4: (1, 0)})
    tally = Tally(backlog, 5_000)
    tally.remember([5], 6_500)
    tally.forget(7_000)
    assert tally.counts == {1: (0, 0), 3: (3, 0), 5: (0, 0)}
    assert tally.pending == 7


@pytest.mark.usefixtures("small_chunks")
def test_the_lowest_offset_is_that_of_the_first_chunk_that_waits_or_is_remembered() -> None:
    backlog = backlog_of({2: (0, 7_000), 3: (1, 0)})
    tally = Tally(backlog, 5_000)
    assert (tally.lowest(6_999), tally.lowest(7_000)) == (8, 12)
    tally.remove({3: 1})
    assert (tally.lowest(6_999), tally.lowest(7_000)) == (8, None)
    tally.add({1: 1})
    assert tally.lowest(7_000) == 4
    tally.remove({1: 1})
    tally.remember([0], 9_000)
    assert (tally.lowest(8_999), tally.lowest(9_000)) == (0, None)
    assert Tally(backlog, 5_000).lowest(7_000) == 12
