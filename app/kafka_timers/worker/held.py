"""The pending timers of one partition, as its store has them at one moment."""

from collections.abc import Iterator
from itertools import chain

from kafka_timers.core import rows as batches
from kafka_timers.core.changes import Row
from kafka_timers.core.keys import REFUSED_MS, count_of, first_key, moment_of, parts_of
from kafka_timers.core.partition import Partition
from kafka_timers.core.pending import Pending, Wanted, waiting_in
from kafka_timers.core.versions import Version
from kafka_timers.worker.store import TimerStore

# Up to this number of timer ids, timers are looked up one by one; above it, all rows are searched.
_LOOKED_UP_MAX = 300


class Held:
    """
    The pending timers of one partition.

    Args:
        partition: state of the partition, whose log has been read.
    """

    def __init__(self, partition: Partition, store: TimerStore) -> None:
        self._partition = partition
        self._store = store

    @property
    def is_open(self) -> bool:
        """True while the store can be read. If it is False, the results may be incomplete."""
        return self._store.is_open

    def rows(self, wanted: Wanted) -> Iterator[Row]:
        """Yield rows that may hold *wanted* timers, in order, as of the call."""
        return self._rows(*wanted.bounds(self._partition.number))

    def looked_up(self, wanted: Wanted) -> list[Pending] | None:
        """Return the *wanted* timers in order, found by timer id; None if that would take too long."""
        if wanted.timer_id:
            versions = [version for version in self._store.versions([wanted.timer_id]) if version]
        elif wanted.id_prefix:
            versions = []
            for version in self._store.named(wanted.id_prefix):
                versions.append(version)
                if len(versions) > _LOOKED_UP_MAX:
                    return None
        else:
            return None
        found = (waiting for version in versions for waiting in self._waiting(version, wanted))
        return sorted(found, key=lambda waiting: waiting.place)

    def _waiting(self, version: Version, wanted: Wanted) -> Iterator[Pending]:
        """Yield the timer of *version* if it is pending and *wanted*."""
        if version.cancelled or version.far or not version.due_ms:
            return
        if row := self._row_of(version):
            found = waiting_in(self._partition.number, row, wanted)
            yield from (each for each in found if each.place.offset == version.offset)

    def kept(self, version: Version) -> bytes:
        """Return the Future of the request of *version* if it waits, and may have left the log; else nothing."""
        if version.offset >= self._partition.head.swept.below or not (row := self._row_of(version)):
            return b""
        return next((value for key, value in batches.singles(*row) if parts_of(key)[1] == version.offset), b"")

    def _row_of(self, version: Version) -> Row | None:
        """Return the row that holds the request of *version*; None if there is none."""
        key = self._partition.key_of(version)
        if key is None:
            return None
        # It may be in a batch, whose key is the key of the batch's last request.
        rows = self._rows(key, first_key(moment_of(key) + 1))
        return next((row for row in rows if batches.holds_any(*row, (version.offset,))), None)

    def _rows(self, start: bytes, before: bytes) -> Iterator[Row]:
        """Yield the rows with *start* <= key < *before*. *start* may lie within a batch."""
        # Unlike in `TimerStore.rows`, all requests withdrawn since the moment of *start* are left out.
        return batches.without(self._store.kept_rows(before, start), self._store.withdrawn(start, before))

    def counts(self, start_ms: int, end_ms: int) -> Iterator[tuple[int, int]]:
        """
        Yield pairs of a moment and a number of pending timers, as of the call.

        The moments of rows come in order. After them come the withdrawn requests, each as -1.
        """
        start, end = first_key(start_ms), first_key(end_ms)
        keys, withdrawn = self._store.keys(start, end), self._store.withdrawn(start, end)
        kept = ((moment_of(key), count_of(key)) for key in keys if parts_of(key)[0] != REFUSED_MS)
        return chain(kept, ((moment_of(key), -1) for key in withdrawn))
