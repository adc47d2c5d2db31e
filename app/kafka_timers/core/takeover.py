"""Where an owner starts: what the seals of a partition, and a store that was kept, say of it."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kafka_timers.core.changes import Head, Scan
from kafka_timers.core.keys import FIRST_MS
from kafka_timers.core.sums import ReadSums
from kafka_timers.core.wire import (
    CALLBACKS_FORMAT,
    Sealed,
    age_of,
    check_format,
    end_ms_of,
    first_ms_of,
    is_complete,
    latest,
)

__all__ = ["Start", "start_of"]


class Start(NamedTuple):
    """
    Where an owner starts.

    Attributes:
        head: how far the partition has come.
        keeps_store: whether the local store is worth keeping.
        horizon_from: see `Partition`.
        conditions_from: see `Partition`.
        millis_from: see `Partition`.
        callbacks_from: see `Partition`.
        ignored: offsets of requests whose condition did not hold, ascending.
    """

    head: Head
    keeps_store: bool
    horizon_from: int
    conditions_from: int | None
    millis_from: int | None
    callbacks_from: int | None
    ignored: Sequence[int]


def start_of(
    seals: Iterable[Sealed],
    local: Head | None,
    *,
    horizon_s: int,
    format: int,
    takes_callbacks: bool = True,
    log_start: int = 0,
    read_from: int | None = None,
) -> Start:
    """Return where an owner of this horizon and format starts; all else is as `Partition.acquire` tells."""
    seals = list(seals)
    for seal in seals:
        check_format(seal)
    complete = latest(seals)
    sealed_ms, snapshot = (end_ms_of(complete), complete.fence) if complete else (FIRST_MS, 0)
    last_slice = _last_slice(seals, sealed_ms)
    scan = None
    if last_slice:
        scan = Scan(end_ms_of(last_slice), last_slice.fence, last_slice.through, ReadSums.of(last_slice))
    restore_from = max((seal.restore_from for seal in (last_slice, complete) if seal), default=0)
    if local is not None and local.position < restore_from:
        # A store that ends below restore_from holds nothing that is pending: all its rows have fired since.
        local = None
    last = last_slice or complete or Sealed()
    if (
        local is not None
        and local.sealed_ms <= sealed_ms
        and (_has_read_beyond(scan, local) or _has_judged_otherwise(last, local))
    ):
        local = None
    is_first = format > 1 and not seals and (local is None or local.sealed_ms <= FIRST_MS)
    if is_first:
        # Nobody has fired anything, so all may be judged from the beginning; a store may have judged otherwise.
        local = None
    if local is None:
        position = known_from = restore_from if read_from is None else min(restore_from, read_from)
    else:
        position, known_from = local.position, local.known_from
        if local.sealed_ms > sealed_ms:
            # The seals are gone, this store is not.
            sealed_ms, snapshot, scan = local.sealed_ms, local.snapshot, None
    has_callbacks = last.format >= CALLBACKS_FORMAT or (local is not None and local.has_callbacks)
    # Where the log starts above it, nothing that is left to be known lies below.
    known_from_start = 0 if position <= log_start else known_from
    return Start(
        Head(
            position,
            sealed_ms,
            snapshot,
            known_from_start,
            scan,
            restore_from,
            has_callbacks,
            _read_before(last, local, position),
        ),
        keeps_store=local is not None,
        # What owners with another horizon have kept is below, and reconciled: the log is read anew from here.
        horizon_from=last.horizon_from if horizon_s == last.horizon_s else known_from,
        conditions_from=last.conditions_from if is_first or last.HasField("conditions_from") else None,
        millis_from=last.millis_from if (is_first and format > 2) or last.HasField("millis_from") else None,
        callbacks_from=(
            last.callbacks_from if (is_first and takes_callbacks) or last.HasField("callbacks_from") else None
        ),
        ignored=last.ignored,
    )


def _read_before(last: Sealed, local: Head | None, position: int) -> ReadSums:
    """
    Return what is known to have been read by whoever reads on from *position*.

    That is what the *last* seal tells, up to its fence, or what a *local* store has counted, which may have been read
    further. Where neither tells what lies below *position*, it is counted from here on.
    """
    sealed, kept = ReadSums.of(last), local.read if local else None
    if kept and (sealed is None or (kept.since == sealed.since and kept.to > sealed.to)):
        return kept
    return sealed if sealed and sealed.to >= position else ReadSums(position, position)


def _last_slice(seals: Iterable[Sealed], sealed_ms: int) -> Sealed | None:
    """Return the last slice of the scan that is open behind the complete seal that ends at *sealed_ms*."""
    # `through` is a key under the complete seal that the slice stands on. Under an older one, as a paused owner adds
    # with at-least-once, the same key would declare requests as done that are not.
    slices = [seal for seal in seals if not is_complete(seal) and first_ms_of(seal) == sealed_ms]
    return max(slices, key=lambda seal: (*age_of(seal), seal.through), default=None)


def _has_read_beyond(scan: Scan | None, local: Head) -> bool:
    """
    Tell whether a *local* store may have withdrawn what the open *scan*, of which others have sealed a part, fires.

    A paused owner reads on:
     1. A pauses at offset 11; B takes over, scans second 19 with snapshot 11, seals its first slice, and dies
     2. A goes on, and reads offset 11: a cancel of what is due in 19
     3. A takes over, and goes on with the scan, which knows nothing of offset 11
    Held by test_what_a_paused_owner_has_cancelled_fires_if_the_open_scan_says_so.
    """
    own = local.scan
    if scan is None or (own is not None and (own.end_ms, own.snapshot) == (scan.end_ms, scan.snapshot)):
        return False
    return local.position > scan.snapshot


def _has_judged_otherwise(last: Sealed, local: Head) -> bool:
    """
    Tell whether a *local* store may have judged by an earlier format what is judged by a later one, as *last* says.

    A paused owner reads on:
     1. A pauses, and nothing tells from where on conditions are judged; B takes over, and seals: from offset 3 on
     2. A goes on, and refuses the condition of offset 4
     3. A takes over with its store; whoever reads the log anew judges offset 4
    Held by test_what_a_paused_owner_has_refused_is_judged_once_another_one_judges_conditions.
    """
    told = (last.conditions_from, last.millis_from, last.callbacks_from)
    return any(_has_passed(judged_from, local) for judged_from in told)


def _has_passed(judged_from: int, local: Head) -> bool:
    own = local.scan
    # It knows where it has sealed or met a later seal, or has begun itself the scan from whose snapshot on all are
    # judged: behind that it has held back what depends on it.
    knows = local.snapshot > judged_from or (own is not None and own.snapshot == judged_from)
    # From 0 on they are judged where nobody had sealed anything, so there was hardly anybody to judge otherwise.
    return 0 < judged_from < local.position and not knows
