"""
The changes of one step of a partition, as one value. The store writes them first, and only then the state follows.

Pure. `Partition` and `reconcile` make these; `worker.store.TimerStore` and `MemoryStore` write them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kafka_timers.core.backlog import Count
from kafka_timers.core.sums import ReadSums
from kafka_timers.core.versions import Answer, Version

# A key of `keys`, and its value: a request as it came, `rows.pack` or `refused.pack_refused`.
Row = tuple[bytes, bytes]


class Scan(NamedTuple):
    """
    A scan: all requests that are due before `end_ms` and lie below the offset `snapshot`.

    Attributes:
        end_ms: UNIX milliseconds, excluded.
        snapshot: offset up to which the request log had been read when the scan began.
        through: highest key that is done already; empty before the first slice.
        read: sums of the records read by then; None if they were not counted.
    """

    end_ms: int
    snapshot: int
    through: bytes = b""
    read: ReadSums | None = None


class Swept(NamedTuple):
    """
    A sweep, see `sweep`: what waits below the offset `below` is repeated between the offsets `since` and `to`.

    Attributes:
        begun_us: UNIX microseconds of its begin; no other sweep of the partition has the same.
        requests: number of requests that are repeated.
        from_ms: UNIX milliseconds; what was due before was left out.
    """

    begun_us: int = 0
    below: int = 0
    since: int = 0
    to: int = 0
    requests: int = 0
    from_ms: int = 0


NOTHING_SWEPT = Swept()


def to_take(sweeps: Sequence[Swept], position: int) -> list[tuple[Swept, range]]:
    """
    Return those of *sweeps* of which a store that is read anew from *position* on needs requests, and their offsets.

    A request that waited at the last sweep is in each sweep behind it. The one before has others that have fired or
    were withdrawn since then, and whose ids are known.
    """
    lows = (0, *(swept.below for swept in sweeps))
    taken = zip(sweeps, lows, strict=False)
    return [(swept, range(low, min(swept.below, position))) for swept, low in taken if position <= swept.since]


@dataclass(frozen=True, slots=True)
class Head:
    """
    The progress of a partition. A store keeps it too.

    Attributes:
        position: offset up to which the request log has been read into the store.
        sealed_ms: all requests that were due before this moment and lie below `snapshot` are done.
        snapshot: offset up to which the request log had been read when the last seal's scan began.
        known_from: offset from which on the log has been read into the store, without a gap up to `position`.
        scan: the open scan, if there is one.
        done_below: the highest `restore_from` that was sealed; a store does not keep it.
        read: sums of the records up to `position`, or up to a higher offset if that is known; None before a takeover.
        passed_ms: UNIX milliseconds before which no unread record was appended, but for `hour.SLACK_MS`; a store does
            not keep it.
        leader_epoch: under which the log was read last; -1 if no broker tells it.
        log: Kafka's id of the topic of the request log, or its mark, see `log_identity`; empty if it has neither.
        sweeps: the last sweep, and before it the one before as long as `restore_from` is not behind its `since`.
        lacks_swept: whether the store lacks requests that are still `to_take`.
    """

    position: int
    sealed_ms: int
    snapshot: int
    known_from: int
    scan: Scan | None
    done_below: int = 0
    read: ReadSums | None = None
    passed_ms: int = 0
    leader_epoch: int = -1
    log: bytes = b""
    sweeps: tuple[Swept, ...] = ()
    lacks_swept: bool = False

    @property
    def swept(self) -> Swept:
        """The last sweep."""
        return self.sweeps[-1] if self.sweeps else NOTHING_SWEPT

    @property
    def to_take(self) -> list[tuple[Swept, range]]:
        """The sweeps of which a store that is read anew from `position` on needs requests, and their offsets."""
        return to_take(self.sweeps, self.position)

    @property
    def must_read_to(self) -> int:
        """
        The position that the store must have reached before a scan may begin.

        A seal with a lower snapshot than an earlier seal would declare the requests between the two as not done.
        """
        return max(self.snapshot, self.scan.snapshot if self.scan else 0)


class Mark(NamedTuple):
    """Marks a held request that does not fire: a request of its timer id has superseded it, or it was cancelled."""

    timer_id: bytes
    superseded: bool


@dataclass(slots=True)
class Changes:
    """
    The changes of one step.

    Attributes:
        rows: rows to add, after the removals.
        drop_before: all rows and marks below this key go; nothing else in this step touches them.
        marks: marks by the key of the request; None removes a mark.
        versions: the version of each timer id, and of each copy's original; None removes it.
        expiring: names, and the offset that the last record of each must have to be forgotten, by the UNIX second from
            which on an hour is counted.
        last: offset of the last record that `expiring` follows from.
        answers: answers to records with timer ids, to be kept until a seal covers them.
        answered_before: answers to records below this offset have been sent.
        ignored: offsets of requests whose condition does not hold, and their due in UNIX milliseconds.
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
