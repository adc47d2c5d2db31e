"""
Brings an old store in line with the seals, which other owners may have written since.

Pure. Afterwards every row has the key that it would get if the log were read again now. Rows whose request is done are
gone.
"""

from bisect import bisect
from collections.abc import Iterable, Mapping

from kafka_timers.core import rows as batches
from kafka_timers.core.accepting import Lookup
from kafka_timers.core.backlog import chunk_of, chunks_of
from kafka_timers.core.changes import Changes, Head, Mark, Row
from kafka_timers.core.hour import over_ms
from kafka_timers.core.keys import copied_in, counted_under, first_key, is_batch, parts_of
from kafka_timers.core.partition import Partition


def unreconciled(partition: Partition, local: Head) -> bytes:
    """Return the key from which on the rows of a *local* store already have the right key."""
    ends_ms = [partition.sealed_ms, local.sealed_ms]
    ends_ms += [scan.end_ms for scan in (partition.scan, local.scan) if scan]
    return first_key(max(ends_ms) + 1)


def key_by_now(partition: Partition, key: bytes) -> bytes | None:
    """Return the key that the row under *key* must have now, or None if its request is done."""
    return partition.place(*parts_of(key), copied_in(key))


def reconcile(
    partition: Partition, rows: Iterable[Row], marks: Mapping[bytes, Mark], lookup: Lookup, *, has_ids: bool
) -> Changes:
    """
    Return the changes for a store that `Partition.acquire` found worth keeping.

    Args:
        partition: acquired, with the backlog of the store.
        rows: rows of the store below `unreconciled`, keys ascending.
    """
    removed: list[bytes] = []
    moved: list[Row] = []
    done: list[bytes] = []
    kept_batches: list[tuple[bytes, Row]] = []
    for old, row in rows:
        singles = batches.singles(old, row)
        keys = [key_by_now(partition, key) for key, _ in singles]
        if keys == [key for key, _ in singles]:
            if is_batch(old):
                kept_batches.append((singles[0][0], (old, row)))
            continue
        removed.append(old)
        for new, (was, value) in zip(keys, singles, strict=True):
            if was in marks:
                continue
            if new is None:
                done.append(was)
            else:
                moved.append((new, value))
    # The last key of a slice alone tells which requests are done, so no row may come to lie within a batch:
    #  1. A batch of offsets 6 and 9 for 14 lies under 9; offset 7 for 13 comes late, and lies under 14, 7 now
    #  2. a slice ends with offset 7: the next owner believes offset 6 done
    # Held by test_a_late_request_does_not_lie_within_a_batch.
    news = sorted(key for key, _ in moved)
    for first, (key, row) in kept_batches:
        if bisect(news, first) != bisect(news, key):
            removed.append(key)
            moved += batches.singles(key, row)
    tally = partition.tally()
    # Another owner may have swept.
    tally.sweep(*partition.swept_chunks)
    tally.remove(chunks_of([counted_under(was) for was in done]))
    if has_ids:
        for was in done:
            due_ms = parts_of(was)[0]
            tally.remember([chunk_of(partition.read_again_at(counted_under(was), due_ms))], over_ms(due_ms))
    changes = Changes(partition.head, removed=removed, rows=moved, counts=tally.counts)
    _reconcile_marks(partition, marks, lookup, changes)
    return changes


def _reconcile_marks(partition: Partition, marks: Mapping[bytes, Mark], lookup: Lookup, changes: Changes) -> None:
    done: dict[bytes, set[int]] = {}
    for key, mark in marks.items():
        by_now = key_by_now(partition, key)
        if by_now == key:
            continue
        changes.marks[key] = None
        if by_now is None:
            done.setdefault(mark.timer_id, set()).add(parts_of(key)[1])
        else:
            changes.marks[by_now] = mark
    # It was cancelled here, but another owner has done it, and may have fired it before it could read the cancel.
    for timer_id, version in zip(done, lookup(list(done)), strict=True) if done else ():
        if version and version.cancelled and version.offset in done[timer_id]:
            changes.versions[timer_id] = version.doubted
