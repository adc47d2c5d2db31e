"""The records of a partition in one transaction, as its seal counts them."""

import pytest

from kafka_timers.core import backlog
from kafka_timers.core.contents import Contents


def test_contents_count_their_offsets_by_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "CHUNK_BITS", 2)
    assert Contents().chunks == {}
    assert Contents([1, 9, 2, 8, 3]).chunks == {0: 3, 2: 2}


def test_a_copy_counts_where_it_was_decided_and_not_where_its_original_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its original may lie where nothing waits any more: no chunk has less than nothing."""
    monkeypatch.setattr(backlog, "CHUNK_BITS", 2)
    contents = Contents([1, 2, 9], copies=[(1, 13), (2, 9)])
    assert contents.chunks == {2: 2, 3: 1}


def test_two_contents_share_nothing() -> None:
    one, other = Contents(), Contents()
    one.offsets.append(1)
    one.copies.append((1, 2))
    assert (other.offsets, other.copies) == ([], [])
