"""The records of a partition in one transaction, as its seal counts them."""

import pytest

from kafka_timers.core import backlog
from kafka_timers.core.contents import Contents, digest_of


def test_digests_of_format_1_add_up_in_any_order() -> None:
    offsets = [0, 1, 5, 2**40, 2**63]
    whole = digest_of(offsets)
    assert whole == digest_of(reversed(offsets)) < 2**64
    assert whole == (digest_of(offsets[:2]) + digest_of(offsets[2:])) % 2**64
    assert digest_of([0]) == 1
    assert digest_of([]) == 0


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
