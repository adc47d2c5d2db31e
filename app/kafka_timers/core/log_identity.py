"""
Which `timer-request` the offsets in a seal belong to.

Pure. A topic that was deleted and made anew, restored or mirrored has its old name, and Kafka gives it another id. One
that was cut by an unclean election keeps its id, and has other records from some offset on, in a later leader epoch.
Old offsets then say nothing of what has fired, or of what a store has read. Only people know what lies there. So a
partition whose last seal names another id, or offsets that were cut off, stands still until one of two seals is
written:

    begun_anew   it is another log: whatever lies in it is due by its own time
    gone_on      it is the same log: what has fired stays fired

Both have `begins`, and the seals before them say nothing from then on.

Where a broker tells no id, a mark stands in its place: offset, append time and checksum of a batch below the fence.
Another log has another batch there. A log that has no such batch any more, or not yet, contradicts no mark.

A `timer-sealed` that was made anew says nothing of what has fired either. A partition without seals is held back in the
same way if its log has records from over an hour ago, and a request in it has been due for as long: an owner would have
sealed it. `unsealed` stands in for its last seal.
"""

import struct
from collections.abc import Sequence

from kafka_timers.core.takeover import last_slice_of
from kafka_timers.core.wire import FORMAT, Sealed, is_complete, latest

# An id has 16 bytes.
_MARK = struct.Struct(">qqI")

# For so long no new service waits for its first seal.
UNSEALED_MS = 3_600_000

# What a seal tells of its own callbacks and of its worker.
_OF_ITS_OWN = (
    *("due", "fired", "rejected", "late_arrivals", "cancelled", "moved", "forwarded", "fired_digest", "sent"),
    *("held_alone", "lost_from", "lost_to"),
    *("lateness_p50_ms", "lateness_p99_ms", "lateness_max_ms", "worker", "queries", "previous"),
)


def is_other_log(one: bytes, other: bytes) -> bool:
    """
    Tell whether two ids of `timer-request` are of different topics. A mark, or an id that no broker tells, is of any.
    """
    return one != other and all(each and marked_in(each) is None for each in (one, other))


def mark_of(offset: int, appended_ms: int, checksum: int) -> bytes:
    """Return the mark of a log that has this batch."""
    return _MARK.pack(offset, appended_ms, checksum)


def marked_in(known: bytes) -> int | None:
    """Return the offset of the batch that *known* is the mark of; None if it is an id, or empty."""
    return _MARK.unpack(known)[0] if len(known) == _MARK.size else None


def of_last_log(seals: Sequence[Sealed]) -> list[Sealed]:
    """Return those of *seals* of one partition, in log order, whose offsets lie on the log of the last one."""
    begin = max((number for number, seal in enumerate(seals) if seal.begins), default=0)
    return [*seals[begin:]]


def unsealed(partition: int, partitions: int, until_ms: int) -> Sealed:
    """Return a seal in place of the last one of a *partition* that has none, where all due before *until_ms* fired."""
    return Sealed(partition=partition, partitions=partitions, format=FORMAT, first_ms=until_ms, end_ms=until_ms)


def begun_anew(seals: Sequence[Sealed], log_id: bytes) -> list[Sealed]:
    """Return what to write behind the last *seals*, one at least, for a log of which nothing has fired."""
    return [_at(seals, log_id, fence=0, restore_from=0)]


def gone_on(seals: Sequence[Sealed], log_id: bytes, fence: int | None, start: int) -> list[Sealed]:
    """
    Return what to write behind the last *seals* for a log that has the same records.

    Args:
        fence: of the requests below this offset, all that were due by the last seal have fired; None if the records
            have their old offsets.
        start: first offset of the log.
    """
    if fence is not None:
        return [_at(seals, log_id, fence=fence, restore_from=start)]
    copies = [_copied(seal, log_id) for seal in (latest(seals), last_slice_of(seals, _sealed_ms(seals))) if seal]
    copies[0].begins = True
    return copies


def _sealed_ms(seals: Sequence[Sealed]) -> int:
    complete = latest(seals)
    return complete.end_ms if complete else seals[-1].first_ms


def _at(seals: Sequence[Sealed], log_id: bytes, *, fence: int, restore_from: int) -> Sealed:
    last, end_ms = seals[-1], _sealed_ms(seals)
    seal = Sealed(
        partition=last.partition,
        partitions=last.partitions,
        format=FORMAT,
        first_ms=end_ms,
        end_ms=end_ms,
        fence=fence,
        restore_from=restore_from,
        horizon_s=last.horizon_s,
        log=log_id,
        begins=True,
    )
    # They answer requests of the former log, which no broker had taken yet.
    seal.unsent.extend(last.unsent)
    return seal


def _copied(seal: Sealed, log_id: bytes) -> Sealed:
    copy = Sealed()
    copy.CopyFrom(seal)
    for name in _OF_ITS_OWN:
        copy.ClearField(name)
    if is_complete(copy):
        copy.first_ms = copy.end_ms
    copy.log = log_id
    # On another topic it counts anew.
    copy.ClearField("leader_epoch")
    return copy
