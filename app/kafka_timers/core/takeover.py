"""The start of a new owner, from the seals of a partition and a store that was kept."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from kafka_timers.core.changes import Head, Scan
from kafka_timers.core.keys import FIRST_MS
from kafka_timers.core.sums import ReadSums
from kafka_timers.core.sweep import sweeps_in
from kafka_timers.core.wire import Sealed, age_of, check_format, is_complete, latest


class _Start(NamedTuple):
    """
    The state with which an owner starts.

    Attributes:
        horizon_from: see `Partition`.
    """

    head: Head
    keeps_store: bool
    horizon_from: int
    ignored: Sequence[int]


def start_of(
    seals: Iterable[Sealed],
    local: Head | None,
    ignored: Collection[int],
    *,
    horizon_s: int,
    log_start: int = 0,
    read_from: int | None = None,
) -> _Start:
    """Return the start of an owner with this horizon; the other arguments are those of `Partition.acquire`."""
    seals = list(seals)
    for seal in seals:
        check_format(seal)
    complete = latest(seals)
    sealed_ms, snapshot = (complete.end_ms, complete.fence) if complete else (FIRST_MS, 0)
    last_slice = last_slice_of(seals, sealed_ms)
    scan = None
    if last_slice:
        scan = Scan(last_slice.end_ms, last_slice.fence, last_slice.through, ReadSums.of(last_slice))
    restore_from = max((seal.restore_from for seal in (last_slice, complete) if seal), default=0)
    if local is not None and (local.position < restore_from or local.lacks_swept):
        # A store that ends below restore_from has no row that waits and is not repeated above. One that lacks some of
        # these was killed while it took them.
        local = None
    last = last_slice or complete or Sealed()
    if (
        local is not None
        and local.sealed_ms <= sealed_ms
        and (_has_read_beyond(scan, local) or _has_judged_otherwise(last, sealed_ms, local, ignored))
    ):
        local = None
    if local is None:
        position = known_from = restore_from if read_from is None else min(restore_from, read_from)
    else:
        position, known_from = local.position, local.known_from
        if local.sealed_ms > sealed_ms:
            # The seals are gone, but this store is not.
            sealed_ms, snapshot, scan = local.sealed_ms, local.snapshot, None
    sweeps = max(sweeps_in(last), local.sweeps if local else (), key=lambda each: each[-1:])
    # If the log starts above the position, nothing that must be known lies below.
    known_from_start = 0 if position <= log_start else known_from
    head = Head(
        position,
        sealed_ms,
        snapshot,
        known_from_start,
        scan,
        restore_from,
        _read_before(last, local, position),
        leader_epoch=epoch_in(last) if local is None else local.leader_epoch,
        sweeps=sweeps,
    )
    return _Start(
        replace(head, lacks_swept=local is None and bool(head.to_take)),
        keeps_store=local is not None,
        # Rows of owners with another horizon lie below and are reconciled. The log is read anew from here.
        horizon_from=last.horizon_from if horizon_s == last.horizon_s else known_from,
        ignored=last.ignored,
    )


def may_wait_below(seals: Sequence[Sealed], start: int) -> bool:
    """
    Tell whether requests may still wait below *start*, where the log begins now, by the last *seals* of a partition.

    It lies above `restore_from`.
    """
    # A seal counts all that its owner had read, which is more than the offsets below its fence.
    return not seals or seals[-1].pending > 0 or seals[-1].fence < start


def epoch_in(seal: Sealed) -> int:
    """Return the leader epoch under which the log was read for *seal*; -1 if it is not known."""
    return seal.leader_epoch if seal.HasField("leader_epoch") else -1


def _read_before(last: Sealed, local: Head | None, position: int) -> ReadSums:
    """
    Return the sums of the records that are known to have been read, for an owner that reads on from *position*.

    These come from the *last* seal, up to its fence, or from a *local* store, which may have read further. If neither
    knows the records below *position*, the count begins there.
    """
    sealed, kept = ReadSums.of(last), local.read if local else None
    if kept and (sealed is None or (kept.since == sealed.since and kept.to > sealed.to)):
        return kept
    return sealed if sealed and sealed.to >= position else ReadSums(position, position)


def last_slice_of(seals: Iterable[Sealed], sealed_ms: int) -> Sealed | None:
    """Return the last slice of the scan that is open behind the complete seal that ends at *sealed_ms*."""
    # `through` is a key relative to the complete seal before the slice. A paused owner with at-least-once may add a
    # slice to an older seal. Its key would declare requests as done that are not.
    slices = [seal for seal in seals if not is_complete(seal) and seal.first_ms == sealed_ms]
    return max(slices, key=lambda seal: (*age_of(seal), seal.through), default=None)


def _has_read_beyond(scan: Scan | None, local: Head) -> bool:
    """
    Tell whether a *local* store may have withdrawn a request that the open *scan* of other owners fires.

    A paused owner reads on:
     1. A pauses at offset 11; B takes over, scans second 19 with snapshot 11, seals its first slice, and dies
     2. A goes on, and reads offset 11: a cancel of a request that is due in 19
     3. A takes over, and goes on with the scan, which knows nothing of offset 11
    Held by test_a_timer_cancelled_by_a_paused_owner_fires_if_the_open_scan_says_so.
    """
    own = local.scan
    if scan is None or (own is not None and (own.end_ms, own.snapshot) == (scan.end_ms, scan.snapshot)):
        return False
    return local.position > scan.snapshot


def _has_judged_otherwise(last: Sealed, sealed_ms: int, local: Head, ignored: Collection[int]) -> bool:
    """
    Tell whether a *local* store, which has ignored the requests *ignored*, lets one stand that the *last* seal ignores.

    A paused owner reads on:
     1. A pauses at offset 7; B takes over, and fires offset 0 with snapshot 7; it ignores offset 7, a move that came
        too late for it
     2. A goes on, and reads offset 7: it takes the place of offset 0
     3. A takes over with its store: offset 7 would fire
    Held by test_a_move_that_a_paused_owner_lets_stand_is_ignored_as_the_seals_say.
    """
    # An owner of the last seal may have forgotten requests with it that it names.
    if local.sealed_ms == sealed_ms:
        return False
    return any(offset < local.position and offset not in ignored for offset in last.ignored)
