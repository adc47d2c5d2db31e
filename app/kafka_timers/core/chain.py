"""
The published chain of seals: for each day of a partition, one hash over all of its seals.

Pure. The hash is the SHA-256 over the SHA-256 of each seal's value, in their order.
"""

import json
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from kafka_timers.errors import ChainError


class Day(NamedTuple):
    """
    The published facts about the seals of a partition that end within one day.

    Attributes:
        seals: number of seals, slices included.
    """

    seals: int
    sha256: bytes

    @classmethod
    def of(cls, seals: Sequence[bytes]) -> "Day":
        """Return the facts about the *seals* of a day, given by the SHA-256 of each, in their order."""
        return cls(len(seals), sha256(b"".join(seals)).digest())


class PublishedDay(NamedTuple):
    """
    A line of the published file.

    Attributes:
        date: date of the day, as 2030-01-31.
    """

    partition: int
    date: str
    day: Day

    def line(self) -> str:
        """Return the line as JSON."""
        facts = {"partition": self.partition, "day": self.date, "seals": self.day.seals}
        return json.dumps(facts | {"sha256": self.day.sha256.hex()})


def days_in(*files: tuple[str, Iterable[str]]) -> dict[tuple[int, str], Day]:
    """
    Return the published days, by partition and date.

    Args:
        files: name and lines of each file; the lines are those of `PublishedDay.line`. Empty ones are skipped, and a
            line may be repeated.

    Raises:
        ChainError: a line has another form, or contradicts another line about the same day.
    """
    found: dict[tuple[int, str], Day] = {}
    for name, lines in files:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            at = f"{name}, line {number}"
            try:
                facts: dict[str, Any] = json.loads(line)
                key = int(facts["partition"]), str(facts["day"])
                day = Day(int(facts["seals"]), bytes.fromhex(facts["sha256"]))
            except (ValueError, KeyError, TypeError) as error:
                raise ChainError(f"{at}: this is no line of lake publish-chain: {error!r}") from error
            if found.setdefault(key, day) != day:
                raise ChainError(f"{at}: another line differs from it, for {key[1]}, partition {key[0]}")
    return found
