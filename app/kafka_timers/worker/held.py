"""What one partition holds, as its store tells it at one moment."""

from collections.abc import Iterator
from itertools import chain

from kafka_timers.core import rows as batches
from kafka_timers.core.changes import Row
from kafka_timers.core.keys import REFUSED_MS, count_of, first_key, moment_of, parts_of
from kafka_timers.core.partition import Partition
from kafka_timers.core.pending import Pending, Wanted, waiting_in
from kafka_timers.core.versions import Version
from kafka_timers.worker.store import TimerStore

__all__ = ["Held"]

# Of so many timer ids the timers are looked up one by one; of more, all rows are looked at.
_LOOKED_UP_MAX = 300


class Held:
    """
    The timers of one partition that wait.

    Args:
        partition: whose log has been read.
        store: its own.
    """

    def __init__(self, partition: Partition, store: TimerStore) -> None:
        self._partition = partition
        self._store = store

    @property
    def is_open(self) -> bool:
        """Whether all was read that was there; what the store did not have any more is missing otherwise."""
        return self._store.is_open

    def rows(self, wanted: Wanted) -> Iterator[Row]:
        """Yield the rows that may have some of the *wanted* timers, in their order, as they are at the call."""
        return self._rows(*wanted.bounds(self._partition.number))

    def looked_up(self, wanted: Wanted) -> list[Pending] | None:
        """Return the *wanted* timers in their order, found by timer id; None where that would take too long."""
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
        """Yield the timer of *version* if it waits and is *wanted*."""
        if version.cancelled or version.far or not version.due_ms:
            return
        key = self._partition.key_of(version)
        if key is None:
            return
        number = self._partition.number
        # It may lie in a batch, whose key is that of its last request.
        for row in self._rows(key, first_key(moment_of(key) + 1)):
            if batches.holds_any(*row, (version.offset,)):
                yield from (each for each in waiting_in(number, row, wanted) if each.place.offset == version.offset)
                return

    def _rows(self, start: bytes, before: bytes) -> Iterator[Row]:
        """Yield the rows with *start* <= key < *before*, where *start* may lie within a batch."""
        # Other than those of `TimerStore.rows`, the withdrawn ones are those from the moment of *start* on.
        return batches.without(self._store.kept_rows(before, start), self._store.withdrawn(start, before))

    def counts(self, start_ms: int, end_ms: int) -> Iterator[tuple[int, int]]:
        """
        Yield moments and how many timers wait there, as they are at the call.

        Those of each row come in order, and behind them, with -1, those that were withdrawn.
        """
        start, end = first_key(start_ms), first_key(end_ms)
        keys, withdrawn = self._store.keys(start, end), self._store.withdrawn(start, end)
        kept = ((moment_of(key), count_of(key)) for key in keys if parts_of(key)[0] != REFUSED_MS)
        return chain(kept, ((moment_of(key), -1) for key in withdrawn))
