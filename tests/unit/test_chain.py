"""The file of published seals is read as it was written, and a file that says two things of a day is refused."""

import re
from hashlib import sha256

import pytest

from kafka_timers.core.chain import Day, PublishedDay, days_in
from kafka_timers.errors import ChainError

DATE = "2027-01-15"
SEALS = [sha256(b"%d" % number).digest() for number in range(5)]


def test_published_days_are_read_as_they_were_written() -> None:
    days = {(0, DATE): Day(3, b"x" * 32), (1, DATE): Day.of(SEALS)}
    lines = [PublishedDay(*key, day).line() for key, day in days.items()]
    assert days_in(("one", [*lines, "", *lines]), ("other", lines[:1])) == days


def test_a_day_changes_with_each_of_its_seals_and_with_their_order() -> None:
    whole = Day.of(SEALS)
    others = [Day.of([*SEALS[:at], b"y" * 32, *SEALS[at + 1 :]]) for at in range(len(SEALS))]
    others += [Day.of(SEALS[:at] + SEALS[at + 1 :]) for at in range(len(SEALS))]
    others += [Day.of(SEALS[::-1]), Day.of([*SEALS, SEALS[-1]])]
    assert whole == Day.of(list(SEALS))
    assert whole not in others
    assert len({each.sha256 for each in others}) == len(others)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{}", "chain.jsonl, line 2: this is no line of lake publish-chain"),
        ("[]", "no line"),
        ("fired", "no line"),
        ('{"partition": 0, "day": "2027-01-15", "seals": 1, "sha256": "no"}', "no line"),
        ('{"partition": 0, "day": "2027-01-15", "seals": 4, "sha256": "00"}', "differs from it, for 2027-01-15"),
    ],
)
def test_an_invalid_or_contradictory_published_line_is_refused(line: str, says: str) -> None:
    with pytest.raises(ChainError, match=re.escape(says)):
        days_in(("chain.jsonl", [PublishedDay(0, DATE, Day(3, b"x" * 32)).line(), line]))


def test_two_files_that_contradict_each_other_are_refused() -> None:
    lines = [PublishedDay(0, DATE, Day(3, content * 32)).line() for content in (b"x", b"y")]
    with pytest.raises(ChainError, match="today, line 1: another line differs from it"):
        days_in(("yesterday", lines[:1]), ("today", lines[1:]))
