"""
How many requests of a partition wait, and from which offset on the log must be read to know all of them.

Requests are counted per chunk of offsets. A chunk is also remembered for a while after the last of its requests was
decided, so that a worker without a store reads again what the records of a timer id mean for each other.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

# `restore_from` is exact to one chunk, and a worker with 10 million pending requests keeps some 600 numbers.
CHUNK_BITS = 14

# Of one chunk: how many requests wait, and the UNIX milliseconds up to which it is worth to be read again.
Count = tuple[int, int]


def chunk_of(offset: int) -> int:
    """Return the number of the chunk in which *offset* lies."""
    return offset >> CHUNK_BITS


def chunks_of(offsets: Sequence[int], *, ascending: bool = False) -> Counter[int]:
    """Return how many of *offsets* lie in each chunk; where these are *ascending*, most lie in one."""
    if ascending and offsets and chunk_of(offsets[0]) == chunk_of(offsets[-1]):
        return Counter({chunk_of(offsets[0]): len(offsets)})
    return Counter([offset >> CHUNK_BITS for offset in offsets])


class Backlog:
    """
    The counts of a partition.

    Attributes:
        pending: how many requests wait in each chunk, without the chunks in which none does.
        remembered: until when the other chunks are worth to be read again, in UNIX milliseconds.
    """

    def __init__(self) -> None:
        self.pending: Counter[int] = Counter()
        self.remembered: dict[int, int] = {}

    def apply(self, counts: Mapping[int, Count]) -> None:
        """Set the chunks in *counts*."""
        for chunk, (count, until_ms) in counts.items():
            if count:
                self.pending[chunk] = count
            else:
                self.pending.pop(chunk, None)
            if until_ms:
                self.remembered[chunk] = until_ms
            else:
                self.remembered.pop(chunk, None)

    @property
    def first_chunk_end(self) -> int | None:
        """The last offset of the first chunk in which a request waits; None when none does."""
        lowest = min(self.pending, default=None)
        return None if lowest is None else ((lowest + 1) << CHUNK_BITS) - 1

    @property
    def total(self) -> int:
        """How many requests wait."""
        return self.pending.total()


class Tally:
    """
    What the counts of some chunks become; changes nothing.

    Args:
        backlog: the counts as they are.
        now_ms: what is remembered up to then is of no use any more.

    Attributes:
        counts: of the chunks that change.
    """

    def __init__(self, backlog: Backlog, now_ms: int) -> None:
        self.counts: dict[int, Count] = {}
        self._backlog = backlog
        self._now_ms = now_ms

    def _count(self, chunk: int) -> Count:
        backlog = self._backlog
        return self.counts.get(chunk) or (backlog.pending[chunk], backlog.remembered.get(chunk, 0))

    def add(self, chunks: Mapping[int, int]) -> None:
        """Count so many requests more in each of *chunks*; less, where the number is negative."""
        for chunk, more in chunks.items():
            count, until_ms = self._count(chunk)
            self.counts[chunk] = count + more, until_ms

    def remove(self, chunks: Mapping[int, int]) -> None:
        """Count so many requests less in each of *chunks*."""
        self.add({chunk: -less for chunk, less in chunks.items()})

    def remember(self, chunks: Iterable[int], until_ms: int) -> None:
        """Remember *chunks* until then, unless they are remembered for longer, or that is over."""
        for chunk in chunks:
            count, before_ms = self._count(chunk)
            if until_ms > max(before_ms, self._now_ms):
                self.counts[chunk] = count, until_ms

    def forget(self, until_ms: int) -> None:
        """Remember nothing any more that was to be remembered up to *until_ms* at most."""
        for chunk in {*self._backlog.remembered, *self.counts}:
            count, remembered_ms = self._count(chunk)
            if 0 < remembered_ms <= until_ms:
                self.counts[chunk] = count, 0

    @property
    def pending(self) -> int:
        """How many requests wait then."""
        before = sum([self._backlog.pending[chunk] for chunk in self.counts])
        return self._backlog.total - before + sum([count for count, _ in self.counts.values()])

    def lowest(self, at_ms: int) -> int | None:
        """Return the first offset of the first chunk in which a request waits, or which is remembered at *at_ms*."""
        backlog, counts = self._backlog, self.counts
        pending = (chunk for chunk in backlog.pending if chunk not in counts)
        remembered = (chunk for chunk, until in backlog.remembered.items() if until > at_ms and chunk not in counts)
        changed = (chunk for chunk, (count, until_ms) in counts.items() if count or until_ms > at_ms)
        first = min(chain(pending, remembered, changed), default=None)
        return None if first is None else first << CHUNK_BITS
