"""
Accept records of `timer-request` into a partition: the rows to keep of them, and what they do to earlier ones.

Three passes, each over all records: *judge* each of them by itself, *decide* what those of a timer id do to each other,
and *place* what is left. Only the second one looks at earlier records, and only the third one keeps any.

A refused request is kept like any other until the next tick takes it to `timer-rejected`, in the same transaction as
that second's callbacks. So it gets there exactly once, despite any crash. A record with a timer id of another partition
is kept in the same way, and sent on to that partition.

Every record gets a verdict, so that its neighbours can be judged: a record on which this code itself fails is refused
as unreadable.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from kafka_timers.core import rows as batches
from kafka_timers.core.callbacks import Shown
from kafka_timers.core.changes import Changes, Row
from kafka_timers.core.decisions import decide
from kafka_timers.core.keys import REFUSED_MS, Copied, batch_key, copied_in, is_late, row_key
from kafka_timers.core.partition import Partition
from kafka_timers.core.refused import Reason, pack_forwarded, pack_refused
from kafka_timers.core.sweep import is_of_a_sweep
from kafka_timers.core.verdicts import (
    Ask,
    Cancel,
    Repeats,
    Screened,
    SendOn,
    Verdict,
    dues_of,
    judged,
    screened,
    timer_record,
)
from kafka_timers.core.versions import Decided, KnownFromError, TimerRecord, Version
from kafka_timers.core.wire import Record, is_far, unframed

# Dispositions of a copy of a far request that is not dropped.
IN_TIME, LATE = "in time", "late"

# Returns the version of each timer id, and of each name of a copy.
Lookup = Callable[[Sequence[bytes]], Iterable[Version | None]]


@dataclass(slots=True)
class Accepted:
    """
    The result of accepting some records.

    Attributes:
        count: number of records that were accepted; the next one cannot be decided yet.
        rows: rows to keep, one for each record or each batch of them.
        offsets: offsets under which all kept records count as pending, ascending.
        far: offsets of the requests that are left to the lake.
        cancels: offsets of the cancels.
        copies: number of copies of far requests, by disposition: `IN_TIME`, `LATE` or `Dropped`.
        copies_lead_s: seconds from append to due, summed over the copies that are kept.
        faults: records on which this code has failed, and the exceptions.
    """

    count: int
    rows: list[Row] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    refused: Counter[Reason] = field(default_factory=Counter)
    far: set[int] = field(default_factory=set)
    cancels: set[int] = field(default_factory=set)
    copies: Counter[str] = field(default_factory=Counter)
    copies_lead_s: int = 0
    topics: set[str] = field(default_factory=set)
    decided: Decided = field(default_factory=Decided)
    faults: dict[int, Exception] = field(default_factory=dict)


def accept(records: Sequence[Record], partition: Partition, partitions: int, lookup: Lookup) -> Accepted:
    """
    Judge *records*: return the rows to keep of those that are not done, and the effect on earlier records.

    This judges only by the record itself, so that a worker that reads it again, much later and on an empty disk, gets
    the same result. Facts that may change, such as whether its callback topic exists, are checked in its second.

    Args:
        records: records of this partition, offsets ascending.
        lookup: knows the records before these.

    Raises:
        KnownFromError: the decisions need earlier records than have been read.
        Exception: any exception of *lookup*.
    """
    usual = _usual(records, partition, partitions)
    if usual is not None:
        known = _known(usual.named, lookup)
        # If this fails, one of them is to blame, and the way below finds it.
        with suppress(Exception):
            decided = decide(usual.named, known, partition)
            if decided.undecided_at is None:
                return _place_at_once(usual, decided)
    faults: dict[int, Exception] = {}
    judgements = [_judge(record, partition, partitions, faults) for record in records]
    decided = _decide([each.named for each in judgements if each.named], partition, lookup, faults)
    end = decided.undecided_at
    if end is not None:
        judgements = [each for each in judgements if each.record.offset < end]
    return _place(judgements, decided, partition, faults)


def take(repeated: Sequence[Record], partition: Partition, partitions: int, lookup: Lookup) -> Changes:
    """Return the changes that take requests which a sweep has *repeated* into a store that is read anew."""
    accepted = accept(repeated, partition, partitions, lookup)
    return partition.read(partition.position, accepted.rows, accepted.offsets, accepted.decided)


def _known(named: Iterable[TimerRecord], lookup: Lookup) -> dict[bytes, Version | None]:
    names = list({name: None for record in named for name in record.names})
    return dict(zip(names, lookup(names), strict=True)) if names else {}


# --- judge -----------------------------------------------------------------------------------------------------------


class _Judgement(NamedTuple):
    """
    A record that was judged by itself.

    Attributes:
        named: the record for the decisions, if it has a timer id or is a copy.
        key: key of a request that is kept; None if it is done.
    """

    record: Record
    verdict: Verdict
    named: TimerRecord | None = None
    topic: str = ""
    is_far: bool = False
    key: bytes | None = None


def _judge(record: Record, partition: Partition, partitions: int, faults: dict[int, Exception]) -> _Judgement:
    try:
        verdict = judged(record, partition.number, partitions)
        if isinstance(verdict, Cancel):
            return _Judgement(record, verdict, timer_record(verdict.future, None, record, partition.number))
        if not isinstance(verdict, Ask):
            return _Judgement(record, verdict)
        due_ms, future = verdict
        is_copy = future.HasField("copy")
        is_left = not is_copy and is_far(due_ms // 1000, record.timestamp // 1000, partition.horizon_s)
        named = None
        # A copy that is done may be followed by another copy of the same original.
        if future.timerId or is_copy:
            named = timer_record(future, due_ms, record, partition.number, far=is_left)
        offset, copied = record.offset, None
        if is_copy:
            # A copy keeps the name of its original.
            offset, copied = future.copy.offset, Copied(record.offset, future.copy.decidedOffset)
        key = None if is_left else partition.place(due_ms, offset, copied)
        return _Judgement(record, verdict, named, Shown.of(future).topic, is_left, key)
    except Exception as error:
        faults[record.offset] = error
        return _Judgement(record, Reason.UNREADABLE)


# --- decide ----------------------------------------------------------------------------------------------------------


def _decide(
    named: Sequence[TimerRecord], partition: Partition, lookup: Lookup, faults: dict[int, Exception]
) -> Decided:
    """Decide on the *named* records without those on which deciding fails, which are added to *faults*."""
    known = _known(named, lookup)
    while True:
        try:
            return decide(named, dict(known), partition)
        except KnownFromError:
            raise
        except Exception:
            offset, faults[offset] = _culprit(named, known, partition)
            named = [record for record in named if record.offset != offset]


def _culprit(
    named: Iterable[TimerRecord], known: Mapping[bytes, Version | None], partition: Partition
) -> tuple[int, Exception]:
    """Return the offset of the first of *named* on which deciding fails, and the exception."""
    now = dict(known)
    for record in named:
        try:
            decide([record], now, partition)
        except Exception as error:
            return record.offset, error
    raise AssertionError("records can be decided on one by one, and not together")


# --- place -----------------------------------------------------------------------------------------------------------


def _place(
    judgements: Sequence[_Judgement], decided: Decided, partition: Partition, faults: Mapping[int, Exception]
) -> Accepted:
    out = Accepted(len(judgements), decided=decided)
    out.copies.update(decided.dropped.values())
    for each in judgements:
        record, verdict = each.record, each.verdict
        if record.offset in faults:
            out.faults[record.offset], verdict = faults[record.offset], Reason.UNREADABLE
        if isinstance(verdict, Cancel):
            out.cancels.add(record.offset)
        elif isinstance(verdict, Ask) and each.is_far:
            out.far.add(record.offset)
        elif isinstance(verdict, Ask):
            _place_request(each, verdict, out)
        elif not isinstance(verdict, Repeats):
            _place_apart(record, verdict, partition, out)
    # A copy counts as pending under an offset far below its own.
    out.offsets.sort()
    return out


def _place_request(judgement: _Judgement, asked: Ask, out: Accepted) -> None:
    record, key = judgement.record, judgement.key
    if key is None or record.offset in out.decided.dropped or record.offset in out.decided.ignored:
        return
    copied = copied_in(key)
    if copied:
        out.copies[LATE if is_late(key) else IN_TIME] += 1
        out.copies_lead_s += max(asked.due_ms // 1000 - record.timestamp // 1000, 0)
    out.topics.add(judgement.topic)
    out.rows.append((key, unframed(record.value or b"")))
    out.offsets.append(copied.decided if copied else record.offset)


def _place_apart(record: Record, verdict: SendOn | Reason, partition: Partition, out: Accepted) -> None:
    """Keep a record that is refused, or sent on, until the next tick takes it away."""
    key = partition.place(REFUSED_MS, record.offset)
    if key is None:
        return
    if isinstance(verdict, Reason):
        out.refused[verdict] += 1
        row = pack_refused(verdict, record)
    else:
        row = pack_forwarded(partition.number, record)
    out.rows.append((key, row))
    out.offsets.append(record.offset)


# --- all of it at once, if nothing is unusual: many times faster ------------------------------------------------------


class _Usual(NamedTuple):
    """
    Records of which none can be refused, late or dropped.

    Attributes:
        due: due in UNIX milliseconds of the requests that stay here, by key.
        requests: the requests that stay here; the others are cancels, left to the lake, or of a sweep.
        named: those with a timer id, for the decisions.
    """

    records: Sequence[Record]
    due: Mapping[bytes | None, int]
    passed: Screened
    requests: Sequence[Record]
    cancels: set[int]
    far: set[int]
    named: Sequence[TimerRecord]


def _usual(records: Sequence[Record], partition: Partition, partitions: int) -> _Usual | None:
    """Judge *records* together; None if one of them is unusual."""
    try:
        asking, passed = records, screened([record.value or b"" for record in records], partition.number, partitions)
        if passed is None:
            asking = [record for record in records if not is_of_a_sweep(record)]
            if len(asking) == len(records):
                return None
            passed = screened([record.value or b"" for record in asking], partition.number, partitions)
        if passed is None:
            return None
        requests, cancels = asking, set[int]()
        if passed.extras.HasField("cancel"):
            pairs = list(zip(asking, passed.futures, strict=True))
            requests = [record for record, future in pairs if not future.cancel]
            cancels = {record.offset for record, future in pairs if future.cancel}
        # Many requests of a fetch are due in the same seconds.
        due = dues_of({record.key for record in requests})
        # A request that is due before a scanned moment may be done or late.
        if due is None or min(due.values(), default=partition.scanned_ms) < partition.scanned_ms:
            return None
        far = _far_among(requests, due, partition.horizon_s)
        if far and _lies_between(requests, due, far):
            return None
        named = []
        for record, future, timer_id in zip(asking, passed.futures, passed.ids, strict=True) if passed.ids else ():
            if timer_id:
                due_ms = None if future.cancel else due[record.key]
                topic, is_left = future.replyTopic.encode(), record.offset in far
                named.append(TimerRecord(timer_id, due_ms, record.offset, record.timestamp, topic, is_left))
        if far:
            requests = [record for record in requests if record.offset not in far]
            due = {record.key: due[record.key] for record in requests}
        return _Usual(records, due, passed, requests, cancels, far, named)
    except Exception:
        # One of them is to blame, and `_judge` finds it.
        return None


def _place_at_once(usual: _Usual, decided: Decided) -> Accepted:
    requests, extras = usual.requests, usual.passed.extras
    offsets = [record.offset for record in requests]
    plain, has_ids = usual.passed.plain, extras.HasField("timerId")
    rows: list[Row] = []
    for due_ms, (values, due_then) in _by_due(usual, offsets).items():
        if len(due_then) == 1 < len(usual.due):
            rows.append((row_key(due_ms, due_then[0]), values[0]))
        else:
            framed = batches.framed(values) if values else usual.passed.framed
            batch = batches.pack(framed, due_then, plain=plain, named=has_ids)
            rows.append((batch_key(due_ms, due_then[-1], len(due_then)), batch))
    return Accepted(
        len(usual.records),
        rows,
        offsets,
        far=usual.far,
        cancels=usual.cancels,
        topics=usual.passed.topics if requests else set(),
        decided=decided,
    )


def _by_due(usual: _Usual, offsets: list[int]) -> dict[int, tuple[list[bytes], list[int]]]:
    """
    Return values and offsets of the requests that stay here, by due; no values if these are all of the records.

    *offsets* are those of all of them.
    """
    requests, due = usual.requests, usual.due
    if len(due) == 1:
        is_all = len(requests) == len(usual.records)
        values = [] if is_all else [record.value or b"" for record in requests]
        [due_ms] = due.values()
        return {due_ms: (values, offsets)}
    parts: dict[int, tuple[list[bytes], list[int]]] = {due_ms: ([], []) for due_ms in due.values()}
    for record in requests:
        part = parts[due[record.key]]
        part[0].append(record.value or b"")
        part[1].append(record.offset)
    return parts


def _lies_between(requests: Sequence[Record], due: Mapping[bytes | None, int], far: set[int]) -> bool:
    """
    Tell whether one of *far* lies between requests that stay here and are due with it, as where append times step back.

    These would be one batch. The copy of the far one keeps its offset, and no row may lie within a batch: the last key
    of a slice alone tells which requests are done.
    """
    began = set[int]()
    for record in requests:
        if record.offset not in far:
            began.add(due[record.key])
        elif due[record.key] in began:
            return True
    return False


def _far_among(requests: Sequence[Record], due: Mapping[bytes | None, int], horizon_s: int) -> set[int]:
    """Return the offsets of those *requests* that are left to the lake; *due* has the due of each key."""
    if not horizon_s or not requests:
        return set()
    times_ms = [record.timestamp for record in requests]
    # Most are near, and records that lie together were appended together.
    if not is_far(max(due.values()) // 1000, min(times_ms) // 1000, horizon_s):
        return set()
    return {each.offset for each in requests if is_far(due[each.key] // 1000, each.timestamp // 1000, horizon_s)}
