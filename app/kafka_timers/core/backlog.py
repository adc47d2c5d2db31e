"""
Count the pending requests of a partition, and find the offset from which the log must be read to know all of them.

Requests are counted per chunk of offsets. A chunk is also remembered for a while after its last request was decided. A
worker without a store then reads it again, and so learns how the records of a timer id affect each other.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

# `restore_from` is exact to one chunk, and a worker with 10 million pending requests keeps some 600 counts.
CHUNK_BITS = 14

# Of one chunk: its pending requests, and the UNIX milliseconds until which it should be read again.
Count = tuple[int, int]


def chunk_of(offset: int) -> int:
    """Return the number of the chunk that holds *offset*."""
    return offset >> CHUNK_BITS


def begin_of(offset: int) -> int:
    """Return the first offset of the chunk that holds *offset*."""
    return offset >> CHUNK_BITS << CHUNK_BITS


def chunks_of(offsets: Sequence[int], *, ascending: bool = False) -> Counter[int]:
    """Return the number of *offsets* in each chunk. With *ascending* this is fast, since most lie in one chunk."""
    if ascending and offsets and chunk_of(offsets[0]) == chunk_of(offsets[-1]):
        return Counter({chunk_of(offsets[0]): len(offsets)})
    return Counter([offset >> CHUNK_BITS for offset in offsets])


class Backlog:
    """
    The counts of a partition.

    Attributes:
        pending: number of pending requests in each chunk, without chunks that have none.
        remembered: UNIX milliseconds until which a chunk should be read again, by chunk.
    """

    def __init__(self) -> None:
        self.pending: Counter[int] = Counter()
        self.remembered: dict[int, int] = {}

    def apply(self, counts: Mapping[int, Count]) -> None:
        """Replace the counts of the chunks in *counts*."""
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
    def total(self) -> int:
        """The number of pending requests."""
        return self.pending.total()


class Tally:
    """
    Computes new counts of some chunks without changing the backlog.

    Args:
        now_ms: UNIX milliseconds; nothing needs to be remembered until then or earlier.
        below, to: what is pending in chunks below the first one counts in the second one.

    Attributes:
        counts: the new counts of the chunks that change.
    """

    def __init__(self, backlog: Backlog, now_ms: int, below: int = 0, to: int = 0) -> None:
        self.counts: dict[int, Count] = {}
        self._backlog = backlog
        self._now_ms = now_ms
        self._below, self._to = below, to

    def _count(self, chunk: int) -> Count:
        backlog = self._backlog
        return self.counts.get(chunk) or (backlog.pending[chunk], backlog.remembered.get(chunk, 0))

    def counts_in(self, chunk: int) -> int:
        """Return the chunk in which a request of *chunk* counts that was not done when the last sweep ended."""
        return self._to if chunk < self._below else chunk

    def sweep(self, below: int, to: int) -> None:
        """Count all that is pending in chunks below *below* in the chunk *to*, from now on too."""
        self._below, self._to = below, to
        moved = 0
        for chunk in {*self._backlog.pending, *self.counts}:
            if chunk < below:
                count, until_ms = self._count(chunk)
                moved += count
                self.counts[chunk] = 0, until_ms
        if moved:
            self.add({to: moved})

    def add(self, chunks: Mapping[int, int]) -> None:
        """Add to the count of each of *chunks*; a negative number takes away."""
        for chunk, more in ((self.counts_in(chunk), more) for chunk, more in chunks.items()):
            count, until_ms = self._count(chunk)
            self.counts[chunk] = count + more, until_ms

    def remove(self, chunks: Mapping[int, int]) -> None:
        """Take away from the count of each of *chunks*."""
        self.add({chunk: -less for chunk, less in chunks.items()})

    def remember(self, chunks: Iterable[int], until_ms: int) -> None:
        """Remember *chunks* until then, unless they are remembered for longer or the time has passed."""
        for chunk in chunks:
            count, before_ms = self._count(chunk)
            if until_ms > max(before_ms, self._now_ms):
                self.counts[chunk] = count, until_ms

    def forget(self, until_ms: int) -> None:
        """Stop remembering the chunks that were to be remembered until *until_ms* or earlier."""
        for chunk in {*self._backlog.remembered, *self.counts}:
            count, remembered_ms = self._count(chunk)
            if 0 < remembered_ms <= until_ms:
                self.counts[chunk] = count, 0

    @property
    def pending(self) -> int:
        """The number of pending requests after the change."""
        before = sum([self._backlog.pending[chunk] for chunk in self.counts])
        return self._backlog.total - before + sum([count for count, _ in self.counts.values()])

    def lowest(self, at_ms: int) -> int | None:
        """Return the first offset of the first chunk that has a pending request or is remembered at *at_ms*."""
        backlog, counts = self._backlog, self.counts
        pending = (chunk for chunk in backlog.pending if chunk not in counts)
        remembered = (chunk for chunk, until in backlog.remembered.items() if until > at_ms and chunk not in counts)
        changed = (chunk for chunk, (count, until_ms) in counts.items() if count or until_ms > at_ms)
        first = min(chain(pending, remembered, changed), default=None)
        return None if first is None else first << CHUNK_BITS
