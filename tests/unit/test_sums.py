"""The sums of read and fired records in seals."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stand_ins import Record

from kafka_timers.core.contents import DIGESTS
from kafka_timers.core.sums import (
    NOTHING,
    ReadSums,
    Sum,
    fired_digest_of,
    hash_of_record,
    hash_of_seal,
    sum_of,
)
from kafka_timers.core.wire import Sealed

VECTORS = json.loads((Path(__file__).parents[2] / "docs/wire-vectors.json").read_text())["digests"]
PLAIN = [Record(b"1900000000", b"value %d" % offset, offset, 1_800_000_000_000 + offset) for offset in range(9)]


def test_digests_of_parts_add_up_in_any_order() -> None:
    offsets = [0, 1, 5, 2**40, 2**62]
    whole = fired_digest_of(3, offsets)
    assert whole == fired_digest_of(3, reversed(offsets)) < DIGESTS
    assert whole == (fired_digest_of(3, offsets[:2]) + fired_digest_of(3, offsets[2:])) % DIGESTS
    assert sum_of(3, PLAIN) == sum_of(3, PLAIN[4:]).plus(sum_of(3, PLAIN[:4]))
    assert sum_of(3, PLAIN).minus(sum_of(3, PLAIN[:4])) == sum_of(3, PLAIN[4:])
    assert (fired_digest_of(3, []), sum_of(3, [])) == (0, NOTHING)


def test_sets_of_as_many_that_had_one_digest_as_sums_of_cubes_have_two() -> None:
    assert fired_digest_of(0, [0, 11]) != fired_digest_of(0, [8, 9])


# Each differs from the first one in one thing.
DIFFERENT = [
    Record(b"19", b"v", 7, 18),
    Record(b"19", b"v", 8, 18),
    Record(b"19", b"v", 7, 19),
    Record(b"1", b"9v", 7, 18),
    Record(b"", b"19v", 7, 18),
    Record(None, b"19v", 7, 18),
    Record(b"19", None, 7, 18),
    Record(None, b"19", 7, 18),
    Record(b"19", b"", 7, 18),
    Record(b"19", b"v", 7, 18, [("a", b"b")]),
    Record(b"19", b"v", 7, 18, [("ab", b"")]),
    Record(b"19", b"v", 7, 18, [("ab", None)]),
    Record(b"19", b"v", 7, 18, [("a", b""), ("b", b"")]),
    Record(b"19", b"v", 7, 18, [("b", b""), ("a", b"")]),
]


def test_records_that_differ_have_different_digests() -> None:
    hashes = {hash_of_record(number, record) for number in (0, 1) for record in DIFFERENT}
    assert len(hashes) == 2 * len(DIFFERENT)
    assert fired_digest_of(0, [7]) != fired_digest_of(1, [7])


@pytest.mark.parametrize("odd", [None, *DIFFERENT])
def test_many_at_once_count_as_each_by_itself(odd: Record | None) -> None:
    records = PLAIN if odd is None else [*PLAIN, odd]
    assert sum_of(5, records) == (len(records), sum(hash_of_record(5, each) for each in records) % DIGESTS)


@pytest.mark.parametrize("told", VECTORS, ids=lambda told: f"{told['partition']}:{told['offset']}")
def test_records_count_as_the_page_tells(told: dict[str, Any]) -> None:
    key, value = (None if told[name] is None else bytes.fromhex(told[name]) for name in ("key", "value"))
    headers = [(name, None if content is None else bytes.fromhex(content)) for name, content in told["headers"]]
    record = Record(key, value, told["offset"], told["appended_ms"], headers)
    assert f"{hash_of_record(told['partition'], record):016x}" == told["read"]
    assert f"{fired_digest_of(told['partition'], [record.offset]):016x}" == told["fired"]


@pytest.mark.parametrize("name", ["\udcff", "a\udcff", chr(0xFFFD), ""])
def test_names_of_headers_that_are_no_text_count_as_empty(name: str) -> None:
    records = [replace(PLAIN[0], headers=[(each, b"v")]) for each in (name, "")]
    assert hash_of_record(0, records[0]) == hash_of_record(0, records[1])


def _parts(records: Sequence[Record], *at: int) -> list[Sequence[Record]]:
    return [records[begin:end] for begin, end in zip((0, *at), (*at, len(records)), strict=True)]


@pytest.mark.parametrize("at", [(), (1,), (4,), (3, 5), (8,)])
def test_records_read_in_parts_are_counted_as_in_one(at: tuple[int, ...]) -> None:
    read = ReadSums(0, 0)
    for part in _parts(PLAIN, *at):
        read = read.read_on(3, part, part[-1].offset + 1, {2, 6}, {5})
    of = {name: sum_of(3, [PLAIN[each] for each in each_of]) for name, each_of in
          {"near": (0, 1, 3, 4, 7, 8), "far": (2, 6), "cancels": (5,)}.items()}  # fmt: skip
    assert read == ReadSums(0, 9, **of)


def test_records_counted_already_are_not_counted_again() -> None:
    known = ReadSums(0, 4, near=sum_of(3, PLAIN[:4]))
    assert known.read_on(3, PLAIN[1:3], 3, set(), set()) is known
    assert known.read_on(3, PLAIN[1:6], 7, set(), set()) == ReadSums(0, 7, near=sum_of(3, PLAIN[:6]))
    assert known.read_on(3, [], 9, set(), set()) == replace(known, to=9)


def test_a_seal_counts_records_read_up_to_its_fence() -> None:
    read = ReadSums(2, 9, Sum(4, 2**64 - 1), Sum(2, 1), Sum(1, 5))
    seal = Sealed(fence=9)
    read.tell(seal)
    assert ReadSums.of(Sealed.FromString(seal.SerializeToString())) == read
    assert ReadSums.of(Sealed(fence=9)) is None


def test_a_seal_is_named_by_its_bytes() -> None:
    assert hash_of_seal(b"") != hash_of_seal(b"\0") != hash_of_seal(b"")
    assert len(hash_of_seal(b"")) == 32
