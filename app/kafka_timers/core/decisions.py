"""
How requests and cancels affect earlier requests of the same timer id, and their answers.

All records of an id lie in one partition, so they have one order. Each affects at most one other record: the last
request of the id before it, its version. `Partition.effect` decides whether it withdraws that one.

    the version before              a cancel            a request
    none is known                   UNKNOWN             UNKNOWN, and it stands
    it was cancelled                CANCELLED again     UNKNOWN, and it stands
    it waits                        CANCELLED           MOVED: it takes its place
    it fires, or has fired          TOO_LATE            TOO_LATE, and it stands too
    it has fired an hour before     UNKNOWN             UNKNOWN, and it stands too
    one or the other, long ago      not answered again  not answered again, and it stands

    IF_ABSENT                       none is known, its hour is over, or it is the one named and it is due:
                                    ACCEPTED, else IGNORED
    IF_PENDING                      it waits, and is the one named: as above, else IGNORED
"""

from collections.abc import Iterable, MutableMapping

from kafka_timers.core.keys import Copied
from kafka_timers.core.partition import Partition
from kafka_timers.core.versions import (
    Answer,
    Decided,
    Dropped,
    Effect,
    KnownFromError,
    Original,
    TimerRecord,
    Version,
    Withdrawn,
    cancel_name,
)
from kafka_timers.core.wire import COPY_STALE_S, Condition, Reply, is_far

Known = MutableMapping[bytes, Version | None]

# Requests that are read together are due in many different seconds, but in few different minutes.
_MINUTE_S = 60


def true_by_now(answer: Answer, partition: Partition) -> Answer:
    """Return the *answer*, not sent yet, as it is true after others may have owned the *partition*."""
    version = answer.version
    if version is not None and version.waits and partition.is_done(version):
        return answer._replace(version=version._replace(waits=False))
    says_withdrawn = answer.outcome in (Reply.CANCELLED, Reply.MOVED)
    if version is None or not says_withdrawn or not partition.is_done(version):
        return answer
    if version.cancelled:
        # This was the second cancel. This owner cannot know whether the first one was in time for the others.
        return answer._replace(outcome=Reply.UNKNOWN, version=None)
    # No seal covers the record that asks, so the scan that covers the earlier request was made without it.
    return answer._replace(outcome=Reply.TOO_LATE)


def decide(records: Iterable[TimerRecord], known: Known, partition: Partition) -> Decided:
    """
    Decide on *records*.

    Args:
        records: offsets ascending, without refused requests.
        known: the last request of each name before these records; changed to the last one after them.
        partition: knows which requests have fired.

    Raises:
        KnownFromError: the decision on a copy needs earlier records than have been read.
    """
    out = Decided()
    for record in records:
        if record.original:
            _decide_copy(record, record.original, known, partition, out)
        elif not _decide(record, known, partition, out):
            break
        out.last = record.offset
    return out


def _decide(record: TimerRecord, known: Known, partition: Partition, out: Decided) -> bool:
    """Decide on a request or a cancel; False if it cannot be decided yet."""
    before = known.get(record.timer_id)
    effect = None
    if before is not None and not before.cancelled:
        effect = partition.effect(before, record.offset, record.appended_ms)
        if effect is Effect.UNDECIDED:
            out.undecided_at = record.offset
            return False
    outcome = _outcome_of(record, before, effect, partition)
    if record.first and _is_taken_back(record, known, partition):
        _ignore(record, before, effect, partition, out)
        return True
    if record.condition:
        if not _holds(record, before, effect, partition):
            _ignore(record, before, effect, partition, out)
            return True
        if record.condition == Condition.IF_ABSENT:
            outcome, before = Reply.ACCEPTED, None
    kept = before
    if effect is Effect.WITHDRAWS and before is not None:
        kept = before._replace(cancelled=True)
        if before.far:
            out.remember.append((before.offset, record.appended_ms))
        else:
            _withdraw(record, before, partition, out)
    elif effect is Effect.FORGOTTEN and before is not None:
        kept = before.doubted
        _remember_withdrawn(record, before, partition, out)
    if kept is not None and record.due_ms is None and not kept.since_ms and record.appended_ms < kept.due_ms:
        # Whatever it did: an owner that reads the log again cannot always tell, and must know the id for as long.
        kept = kept._replace(since_ms=record.appended_ms)
    if record.due_ms is None and not record.condition:
        _remember_cancel(record, known, out)
    _keep(record, before, kept, known, partition, out)
    if record.reply_topic and not partition.is_answered(record.offset):
        about = None if outcome in (Reply.UNKNOWN, Reply.ACCEPTED) else before
        out.answers.append(Answer(record.offset, record.reply_topic, record.timer_id, outcome, about, record.first))
    return True


def _outcome_of(
    record: TimerRecord, before: Version | None, effect: Effect | None, partition: Partition
) -> Reply.Outcome:
    is_cancel = record.due_ms is None
    if before is None:
        return Reply.UNKNOWN
    if before.cancelled:
        return Reply.CANCELLED if is_cancel and before.due_ms and not before.unsure else Reply.UNKNOWN
    if effect is Effect.WITHDRAWS:
        return Reply.CANCELLED if is_cancel else Reply.MOVED
    # Whether an ignored request stood, nobody can tell when its hour is over: the seals name it no more.
    is_held = not before.far and not partition.is_done(before)
    is_forgotten = not is_held and before.is_over(record.appended_ms)
    return Reply.TOO_LATE if effect is Effect.TOO_LATE and not is_forgotten else Reply.UNKNOWN


def _withdraw(record: TimerRecord, before: Version, partition: Partition, out: Decided) -> None:
    key = partition.key_of(before)
    if key is None:
        raise AssertionError(f"offset {record.offset} withdraws offset {before.offset}, which is done")
    out.withdrawn.append(Withdrawn(key, before.counted, record.timer_id, record.due_ms is not None))
    _remember_withdrawn(record, before, partition, out)


def _remember_withdrawn(record: TimerRecord, before: Version, partition: Partition, out: Decided) -> None:
    again_at = partition.read_again_at(before.counted, before.due_ms, record.offset)
    out.remember.append((again_at, record.appended_ms))


def _keep(
    record: TimerRecord,
    before: Version | None,
    kept: Version | None,
    known: Known,
    partition: Partition,
    out: Decided,
) -> None:
    """Keep the state of the id after *record*; *kept* is the state of the request *before* it."""
    appended_s, horizon_s = record.appended_ms // 1000, partition.horizon_s
    # From this UNIX second on an hour is counted; 0 if it is counted already.
    from_s = 0
    if record.due_ms is not None:
        kept = Version(record.due_ms, record.offset)
        from_s = kept.second
        if record.far:
            kept, from_s = kept._replace(far=True, since_ms=record.appended_ms), appended_s
            out.remember.append((record.offset, record.appended_ms))
        elif kept.due_ms < partition.scanned_ms:
            if partition.is_done(kept):
                out.remember.append((partition.read_again_at(record.offset, record.due_ms), record.due_ms))
            else:
                from_s = partition.scanned_ms // 1000
        if horizon_s:
            from_s = max(from_s, appended_s)
    elif horizon_s:
        # The cancel may be about a request in the lake, and the lake may not know it when it makes a copy.
        kept, from_s = (kept or Version(0, 0, cancelled=True))._replace(by=record.offset), appended_s
    elif kept is not before:
        from_s = appended_s
    if from_s and kept:
        _know(record.timer_id, kept, from_s, out)
    if kept is not before or record.condition:
        known[record.timer_id] = out.versions[record.timer_id] = kept


def _know(name: bytes, version: Version, from_s: int, out: Decided) -> None:
    """Keep *version* of *name* for an hour from the UNIX second *from_s* on."""
    out.versions[name] = version
    minute = from_s - from_s % _MINUTE_S + _MINUTE_S
    expiring = out.expiring.get(minute)
    if expiring is None:
        expiring = out.expiring[minute] = ([], [])
    expiring[0].append(name)
    expiring[1].append(version.made_at)


# --- conditions ------------------------------------------------------------------------------------------------------


def _holds(record: TimerRecord, before: Version | None, effect: Effect | None, partition: Partition) -> bool:
    if record.offset in partition.ignored:
        return False
    # Judge by the append time, not by memory: another worker, and the lake, may remember an id for longer.
    is_known = before is not None and not before.is_over(record.appended_ms)
    is_meant = before is not None and before.offset == record.expected
    has_stood = record.due_ms is not None and partition.has_stood(record.offset, record.due_ms)
    if record.condition == Condition.IF_ABSENT:
        return has_stood or not is_known or (is_meant and before is not None and record.appended_ms >= before.due_ms)
    # An hour after it came, what is known of its id may be misjudged too: by then seals name no request any more that
    # was ignored before it, and that one may stand for the replaced one.
    if (before is None or has_stood) and partition.has_replaced(record.offset, record.appended_ms):
        return True
    return is_known and (is_meant or record.expected is None) and effect in (Effect.WITHDRAWS, Effect.FORGOTTEN)


def _ignore(
    record: TimerRecord, before: Version | None, effect: Effect | None, partition: Partition, out: Decided
) -> None:
    # Also the due of one that is named without it, even if it is done: or it would be named as long as it may be read.
    is_named = record.offset in partition.ignored
    if record.due_ms is not None and (is_named or not partition.is_done(Version(record.due_ms, record.offset))):
        out.ignored[record.offset] = record.due_ms
    if record.reply_topic and not partition.is_answered(record.offset):
        about = before._replace(waits=effect is Effect.WITHDRAWS) if before and before.due_ms else None
        out.answers.append(
            Answer(record.offset, record.reply_topic, record.timer_id, Reply.IGNORED, about, record.first)
        )


# --- requests that were sent on --------------------------------------------------------------------------------------


def _remember_cancel(record: TimerRecord, known: Known, out: Decided) -> None:
    """
    Remember a cancel for an hour, since its request may be on its way here from another partition.

    This includes cancels that have withdrawn a request: a worker that reads the log again cannot always tell whether
    they have.
    """
    first_ms = record.first_ms if record.first else record.appended_ms
    name, cancel = cancel_name(record.timer_id), Version(first_ms, record.offset, cancelled=True)
    known[name] = cancel
    _know(name, cancel, record.appended_ms // 1000, out)
    out.remember.append((record.offset, record.appended_ms))


def _is_taken_back(record: TimerRecord, known: Known, partition: Partition) -> bool:
    """Tell whether a cancel that came here up to an hour before the request *record* was appended after it."""
    if record.due_ms is None:
        return False
    if record.offset in partition.ignored:
        return True
    cancel = known.get(cancel_name(record.timer_id))
    return cancel is not None and record.first_ms < cancel.due_ms and not cancel.is_over(record.appended_ms)


# --- copies ----------------------------------------------------------------------------------------------------------


def _decide_copy(record: TimerRecord, original: Original, known: Known, partition: Partition, out: Decided) -> None:
    if record.due_ms is None:
        raise AssertionError("a cancel is no copy")
    appended_s = record.appended_ms // 1000
    before = known.get(record.timer_id) if record.timer_id else None
    why: Dropped | None = None
    if appended_s - original.decided_s > COPY_STALE_S:
        why = Dropped.STALE
    elif original.offset >= partition.horizon_from and not is_far(
        record.due_ms // 1000, original.appended_s, partition.horizon_s
    ):
        # These owners keep, or have kept, the original: the lake's horizon is shorter than theirs.
        why = Dropped.HELD
    elif original.decided < partition.head.known_from:
        raise KnownFromError(original.decided)
    elif known.get(original.name) is not None:
        why = Dropped.REPEATED
    elif before is not None and before.latest >= original.decided:
        why = Dropped.OVERTAKEN
    if why:
        out.dropped[record.offset] = why
        return
    # Another copy of the same original may follow until it is stale. The original's name, kept for an hour, recognises
    # it.
    version = Version(record.due_ms, original.offset, copied=Copied(record.offset, original.decided))
    known[original.name] = version
    _know(original.name, version, appended_s, out)
    # A later request of the id stays the last one, since it was made after this request's second had begun. A cancel of
    # that time was too late for this request, and the next one is again.
    stays = before is not None and before.offset > original.offset
    if record.timer_id and not stays:
        known[record.timer_id] = version
        _know(record.timer_id, version, max(version.second, appended_s), out)
        if partition.is_done(version):
            out.remember.append((original.decided, version.due_ms))
