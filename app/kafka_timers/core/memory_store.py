"""
A partition's rows in memory, for `kafka_timers.testing`, `find` and the walk through the rules.

It is written by the `Changes` of each step, as the store on disk is.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from kafka_timers.core import rows as batches
from kafka_timers.core.backlog import Count
from kafka_timers.core.changes import Changes, Head, Mark, Row
from kafka_timers.core.versions import Answer, Version

_K = TypeVar("_K")
_V = TypeVar("_V")


class MemoryStore:
    """
    The stored state of one partition.

    Attributes:
        head: the progress of the partition; None before the first step.
        answers: answers that no seal covers yet, by the offset of the record that they answer.
        ignored: offsets of requests whose condition did not hold, and their due.
    """

    def __init__(self) -> None:
        self.head: Head | None = None
        self.data: dict[bytes, bytes] = {}
        self.marks: dict[bytes, Mark] = {}
        self.known: dict[bytes, Version] = {}
        self.answers: dict[int, Answer] = {}
        self.counts: dict[int, Count] = {}
        self.ignored: dict[int, int] = {}
        self._keys: list[bytes] = []
        self._expiring: list[tuple[int, int, list[bytes], list[int]]] = []

    def write(self, changes: Changes) -> None:
        """Apply *changes*."""
        self.head = changes.head
        if changes.drop_before is not None:
            gone = self._keys[: bisect_left(self._keys, changes.drop_before)]
            self.marks = {key: mark for key, mark in self.marks.items() if key >= changes.drop_before}
            self._remove(gone)
        self._remove(changes.removed)
        for key, row in changes.rows:
            if key not in self.data:
                insort(self._keys, key)
            self.data[key] = row
        _put(self.marks, changes.marks)
        _put(self.known, changes.versions)
        for second, (names, offsets) in changes.expiring.items():
            insort(self._expiring, (second, changes.last, names, offsets))
        self.answers.update({answer.offset: answer for answer in changes.answers})
        if changes.answered_before is not None:
            self.answers = {at: each for at, each in self.answers.items() if at >= changes.answered_before}
        _put(self.counts, {chunk: count if any(count) else None for chunk, count in changes.counts.items()})
        self.ignored.update(changes.ignored)
        for offset in changes.unignored:
            self.ignored.pop(offset, None)

    def rows(self, start: bytes, before: bytes) -> Iterator[Row]:
        """Yield (key, value) with *start* <= key < *before*, in order, without the requests that were withdrawn."""
        first, last = bisect_left(self._keys, start), bisect_left(self._keys, before)
        rows = [(key, self.data[key]) for key in self._keys[first:last]]
        marked = sorted(key for key in self.marks if start <= key < before)
        return batches.without(rows, iter(marked)) if marked else iter(rows)

    def count_withdrawn(self, start: bytes, before: bytes) -> tuple[int, int]:
        """Return how many requests with *start* <= key < *before* were cancelled, and how many were superseded."""
        marks = [mark.superseded for key, mark in self.marks.items() if start <= key < before]
        return marks.count(False), marks.count(True)

    def versions(self, names: Sequence[bytes]) -> list[Version | None]:
        """Return the version of each of *names*."""
        return [self.known.get(name) for name in names]

    def forget(self, begun_s: int) -> None:
        """Forget the names whose hour began at the UNIX second *begun_s* or earlier."""
        while self._expiring and self._expiring[0][0] <= begun_s:
            _, _, names, offsets = self._expiring.pop(0)
            for name, offset in zip(names, offsets, strict=True):
                version = self.known.get(name)
                # If a later record is known, that one is kept.
                if version and version.made_at == offset:
                    del self.known[name]

    def _remove(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            del self.data[key]
        if keys:
            self._keys = sorted(self.data)


def _put(into: dict[_K, _V], changes: Mapping[_K, _V | None]) -> None:
    for key, value in changes.items():
        if value is None:
            into.pop(key, None)
        else:
            into[key] = value
