"""
Which `timer-request` the offsets in a seal belong to.

Pure. A topic that was deleted and made anew, restored or mirrored has its old name, and Kafka gives it another id. Old
offsets then say nothing of what has fired, or of what a store has read. Only people know what lies there. So a
partition whose last seal names another id stands still until one of two seals is written, with the new id:

    begun_anew   it is another log: whatever lies in it is due by its own time
    gone_on      it is the same log: what has fired stays fired

Seals of a former log lie before these two, and say nothing from then on.
"""

from collections.abc import Sequence

from kafka_timers.core.takeover import last_slice_of
from kafka_timers.core.wire import FORMAT, Sealed, is_complete, latest

# What a seal tells of its own callbacks and of its worker.
_OF_ITS_OWN = (
    *("due", "fired", "rejected", "late_arrivals", "cancelled", "moved", "forwarded", "fired_digest", "sent"),
    *("lateness_p50_ms", "lateness_p99_ms", "lateness_max_ms", "worker", "queries", "previous"),
)


def is_other_log(one: bytes, other: bytes) -> bool:
    """Tell whether two ids of `timer-request` are of different topics. A broker may tell no id, which tells nothing."""
    return bool(one and other and one != other)


def of_last_log(seals: Sequence[Sealed]) -> list[Sealed]:
    """Return those of *seals* of one partition, in log order, whose offsets lie on the log of the last one."""
    return [seal for seal in seals if not is_other_log(seal.log, seals[-1].log)]


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
    last = latest(seals), last_slice_of(seals, _sealed_ms(seals))
    return [_copied(seal, log_id) for seal in last if seal]


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
    return copy
