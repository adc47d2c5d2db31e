"""
What a step of a partition changes, as one value: the store writes exactly this, and only then does the state follow.

Pure. `Partition` and `reconcile` make these; `worker.store.TimerStore` and `MemoryStore` write them.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from kafka_timers.core.backlog import Count
from kafka_timers.core.sums import ReadSums
from kafka_timers.core.versions import Answer, Version

# Key and value of what is kept: `keys`, and a request as it came, `rows.pack` or `refused.pack_refused`.
Row = tuple[bytes, bytes]


class Scan(NamedTuple):
    """
    What is being fired: all that is due before `end_ms` and lies below the offset `snapshot`.

    Attributes:
        end_ms: UNIX milliseconds, excluded.
        snapshot: the offset up to which the request log had been read when the scan began.
        through: the highest key of what is done already, empty before the first slice.
        read: what had been read then; None where nobody has counted, as an earlier version does not.
    """

    end_ms: int
    snapshot: int
    through: bytes = b""
    read: ReadSums | None = None


@dataclass(frozen=True, slots=True)
class Head:
    """
    How far a partition has come, which is also what a store says of itself.

    Attributes:
        position: the offset up to which the request log has been read into the store.
        sealed_ms: all that was due before this moment, and lies below `snapshot`, is done.
        snapshot: the offset up to which the request log had been read when the last seal's scan began.
        known_from: the offset from which on the log has been read into the store, without a gap up to `position`.
        scan: what is being fired, if anything.
        done_below: the highest `restore_from` that was sealed; a store does not keep it.
        has_callbacks: whether there was a request with a `callBackRecord`.
        read: what has been read up to `position`, or is known of it up to a higher offset; None before a takeover.
    """

    position: int
    sealed_ms: int
    snapshot: int
    known_from: int
    scan: Scan | None
    done_below: int = 0
    has_callbacks: bool = False
    read: ReadSums | None = None

    @property
    def must_read_to(self) -> int:
        """
        The position that the store must have reached before anything is scanned.

        A seal with a lower snapshot than one before it would declare requests between the two as not done.
        """
        return max(self.snapshot, self.scan.snapshot if self.scan else 0)


class Mark(NamedTuple):
    """Says of a request that is held that it does not fire: superseded by a request of its timer id, or cancelled."""

    timer_id: bytes
    superseded: bool


@dataclass(slots=True)
class Changes:
    """
    What one step changes.

    Attributes:
        head: as it is afterwards.
        removed: keys of rows that go.
        rows: rows that come, after those that go.
        drop_before: all rows and marks below this key go, and nothing else in this step touches these.
        marks: by the key of the request; None takes a mark away.
        versions: what is known of each timer id, and of each copy's original; None for nothing.
        expiring: names, and the offset that the last record of each must have to be forgotten, by the UNIX second
            from which on an hour is counted.
        last: offset of the last record that `expiring` follows from.
        answers: to records with timer ids, to be kept until a seal covers them.
        answered_before: answers to records below this offset have been sent.
        counts: what the counts of chunks become.
        ignored: offsets of requests whose condition does not hold, and their due in UNIX milliseconds.
        unignored: offsets of such requests that are of no interest any more.
        conditions_from: the offset from which on conditions are judged, if this step tells it; a store does not keep
            it.
        millis_from: the same of milliseconds, see `Partition`.
        callbacks_from: the same of requests with a `callBackRecord`.
    """

    head: Head
    removed: list[bytes] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    drop_before: bytes | None = None
    marks: dict[bytes, Mark | None] = field(default_factory=dict)
    versions: dict[bytes, Version | None] = field(default_factory=dict)
    expiring: dict[int, tuple[list[bytes], list[int]]] = field(default_factory=dict)
    last: int = 0
    answers: list[Answer] = field(default_factory=list)
    answered_before: int | None = None
    counts: dict[int, Count] = field(default_factory=dict)
    ignored: dict[int, int] = field(default_factory=dict)
    unignored: list[int] = field(default_factory=list)
    conditions_from: int | None = None
    millis_from: int | None = None
    callbacks_from: int | None = None
