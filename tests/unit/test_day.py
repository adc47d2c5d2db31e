"""
A day of a fresh instance has the outcomes that `find` has always told: day.json.gz holds both, `day.py` has made it.

Nothing in the file may change, whatever becomes of the code. It has what Kafka has: records, and of each seal the
fields on which outcomes depend.
"""

import gzip
import json
from base64 import b64decode
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from law_cases import Record

from kafka_timers.core.outcomes import Outcome, outcomes_of, records_of, uncertain, with_rejected
from kafka_timers.core.wire import Future, Sealed, future_from

FILE = Path(__file__).with_name("day.json.gz")
START_S, NOON_S, PARTITIONS = 1_800_000_000, 43_200, 4


class Partition(NamedTuple):
    """
    A partition at some moment.

    Attributes:
        number: of the partition.
        names: timer ids that belong there.
        records: offset, UNIX milliseconds of the append, key and value (base64) of each.
        seals: end_ms, fence, restore_from, horizon_s, through (base64, or null) and ignored of each.
        rejected: offsets of the requests on `timer-rejected` whose topic did not take the callback.
        outcomes: for each name the outcomes that were found, and then for each name of another partition with records.
        recent: the same of a log that is read from the last seal's `restore_from` on, as `find` does without a lake.
    """

    number: int
    names: list[str]
    records: list[Any]
    seals: list[Any]
    rejected: list[int]
    outcomes: list[Any] = []  # noqa: RUF012
    recent: list[Any] = []  # noqa: RUF012

    def find_all(self, *, recent: bool = False) -> list[list[Outcome]]:
        """Return the outcomes of the records of each id, as `find` does: the names, then the ids that lie astray."""
        seals = [_seal_of(*each) for each in self.seals]
        complete = [at for at, seal in enumerate(seals) if not seal.HasField("through")]
        by_id: dict[str, list[Record]] = {name: [] for name in self.names}
        start = seals[complete[-1]].restore_from if recent else 0
        for offset, appended_ms, key, value in self.records:
            if offset < start:
                continue
            record = Record(key.encode(), b64decode(value), offset, appended_ms)
            by_id.setdefault(future_from(record.value or b"").timerId, []).append(record)
        tail = seals[complete[-1] :]
        return [
            self._find(records_of(records, name), seals, tail, is_whole=start == 0) for name, records in by_id.items()
        ]

    def _find(
        self, records: Sequence[Record], seals: Sequence[Sealed], tail: Sequence[Sealed], *, is_whole: bool
    ) -> list[Outcome]:
        over: dict[int, Sealed] = {}
        for due_ms in uncertain(records, self.number, PARTITIONS):
            # The complete seal that covers it, and the slices of its scan.
            last = next(
                (at for at, seal in enumerate(seals) if seal.end_ms > due_ms and _is_complete(seal)), len(seals)
            )
            first = last
            while first and not _is_complete(seals[first - 1]):
                first -= 1
            over |= {at: seals[at] for at in range(first, min(last + 1, len(seals)))}
        all_seals = [*(seal for _, seal in sorted(over.items())), *tail]
        found = outcomes_of(records, all_seals, self.number, PARTITIONS, whole=is_whole)
        return with_rejected(found, dict.fromkeys(self.rejected, "topic-unknown"))


class Day(NamedTuple):
    """The partitions at noon, and at the end of the day."""

    parts: list[Partition]

    def counts(self) -> dict[str, int]:
        """Return how many records are in each state at the end of the day."""
        return dict(Counter(each[6] for part in self.parts[2:] for found in part.outcomes for each in found))


def shown(outcomes: Sequence[Outcome]) -> list[list[Any]]:
    """Return *outcomes* as the file has them."""
    return [
        [
            *(each.offset, each.appended_ms, each.due_ms, each.cancel, each.topic),
            *((each.key or b"").decode(errors="backslashreplace"), each.state.value, each.reason),
        ]
        for each in outcomes
    ]


def _seal_of(
    end_ms: int, fence: int, restore_from: int, horizon_s: int, through: str | None, ignored: list[int]
) -> Sealed:
    seal = Sealed(end_ms=end_ms, fence=fence, restore_from=restore_from, horizon_s=horizon_s, ignored=ignored)
    if through is not None:
        seal.through = b64decode(through)
    return seal


def _is_complete(seal: Sealed) -> bool:
    return not seal.HasField("through")


@pytest.fixture(scope="module")
def day() -> Day:
    [parts] = json.loads(gzip.decompress(FILE.read_bytes()))
    return Day([Partition(*each) for each in parts])


@pytest.mark.parametrize("at", range(4), ids=["noon, lake", "noon", "evening, lake", "evening"])
def test_each_record_of_the_day_has_the_outcome_that_it_has_always_had(day: Day, at: int) -> None:
    part = day.parts[at]
    for is_recent, all_expected in ((False, part.outcomes), (True, part.recent)):
        found = [shown(each) for each in part.find_all(recent=is_recent)]
        assert len(found) == len(all_expected)
        for one, expected in zip(found, all_expected, strict=True):
            assert one == expected


def test_the_day_has_all_that_becomes_of_records(day: Day) -> None:
    assert sum(len(part.names) for part in day.parts[2:]) == 1_000
    assert min(day.counts().values()) > 5
    assert len(day.counts()) == 9, "each state"
    futures = [future_from(b64decode(value)) for part in day.parts[2:] for *_, value in part.records]
    fields = Counter(field.name for future in futures for field, _ in future.ListFields())
    for name in ("copy", "forwarded", "condition", "ifRequest", "callBackRecord", "cancel", "millis"):
        assert fields[name] > 50, name
    assert {future.condition for future in futures} == set(Future.Condition.values())
