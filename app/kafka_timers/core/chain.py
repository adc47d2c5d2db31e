"""
The published chain of seals: for each day of a partition, one hash over all of its seals.

Pure. The hash is the root of a tree as in RFC 6962. Its leaves are the seals' values in their order. Some twenty hashes
prove that a seal is one of 86,400, and at which place.
"""

import json
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from kafka_timers.errors import ProofError

__all__ = ["Day", "Place", "PublishedDay", "days_in", "path_to", "root_from", "root_of"]

_LEAF, _NODE = b"\0", b"\1"


class Day(NamedTuple):
    """
    The published facts about the seals of a partition that end within one day.

    Attributes:
        seals: number of seals, slices included.
        root: root of the tree over them.
    """

    seals: int
    root: bytes


class PublishedDay(NamedTuple):
    """
    A line of the published file.

    Attributes:
        partition: partition of `timer-sealed`.
        date: date of the day, as 2030-01-31.
        day: see `Day`.
    """

    partition: int
    date: str
    day: Day

    def line(self) -> str:
        """Return the line as JSON."""
        told = {"partition": self.partition, "day": self.date, "seals": self.day.seals, "root": self.day.root.hex()}
        return json.dumps(told)


class Place(NamedTuple):
    """
    The place of a seal in the tree of its day.

    Attributes:
        number: number of the seal, from 0 on.
        among: number of seals of that day.
        path: the hashes to combine with the seal's own, from the leaf to the root.
    """

    number: int
    among: int
    path: Sequence[bytes]


def days_in(lines: Iterable[str], source: str) -> dict[tuple[int, str], Day]:
    """
    Return the published days, by partition and date.

    Args:
        lines: lines of `PublishedDay.line`. Empty ones are skipped, and a line may be repeated.
        source: origin of the lines, for error messages.

    Raises:
        ProofError: a line has another form, or contradicts another line about the same day.
    """
    found: dict[tuple[int, str], Day] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            told: dict[str, Any] = json.loads(line)
            key, day = (int(told["partition"]), str(told["day"])), Day(int(told["seals"]), bytes.fromhex(told["root"]))
        except (ValueError, KeyError, TypeError) as error:
            raise ProofError(f"{source}, line {number}: this is no line of lake publish-chain: {error!r}") from error
        if found.setdefault(key, day) != day:
            raise ProofError(f"{source}, line {number}: another line differs from it, for {key[1]}, partition {key[0]}")
    return found


def root_of(seals: Sequence[bytes]) -> bytes:
    """Return the root of the tree over the *seals* of a day, given by their SHA-256."""
    return _root([_leaf(seal) for seal in seals])


def path_to(seals: Sequence[bytes], number: int) -> Place:
    """Return the place of the seal with this *number* among *seals*."""
    leaves = [_leaf(seal) for seal in seals]
    return Place(number, len(leaves), _path(leaves, number))


def root_from(seal: bytes, place: Place) -> bytes | None:
    """Return the root that a *seal*, given by its SHA-256, has at this *place*; None if no tree has such a place."""
    number, last = place.number, place.among - 1
    if not 0 <= number <= last:
        return None
    found = _leaf(seal)
    for other in place.path:
        if last == 0:
            return None
        if number % 2 or number == last:
            found = _node(other, found)
            while number % 2 == 0 and number:
                number, last = number // 2, last // 2
        else:
            found = _node(found, other)
        number, last = number // 2, last // 2
    return found if last == 0 else None


def _leaf(seal: bytes) -> bytes:
    return sha256(_LEAF + seal).digest()


def _node(left: bytes, right: bytes) -> bytes:
    return sha256(_NODE + left + right).digest()


def _split(count: int) -> int:
    """Return how many of *count* leaves, two or more, lie on the left: the largest power of two below *count*."""
    return 1 << (count - 1).bit_length() - 1


def _root(leaves: Sequence[bytes]) -> bytes:
    if len(leaves) < 2:
        return leaves[0] if leaves else sha256(b"").digest()
    at = _split(len(leaves))
    return _node(_root(leaves[:at]), _root(leaves[at:]))


def _path(leaves: Sequence[bytes], number: int) -> list[bytes]:
    if len(leaves) < 2:
        return []
    at = _split(len(leaves))
    if number < at:
        return [*_path(leaves[:at], number), _root(leaves[at:])]
    return [*_path(leaves[at:], number - at), _root(leaves[:at])]
