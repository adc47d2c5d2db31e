"""
Accept records of `timer-request` into a partition: the rows to keep of them, and what they do to earlier ones.

A refused request is kept like any other until the next tick takes it to `timer-rejected`, in the same transaction as
that second's callbacks. So it gets there exactly once, despite any crash. A record with a timer id of another partition
is kept in the same way, and sent on to that partition.

Every record gets a verdict, so that its neighbours can be judged: a record on which this code itself fails is refused
as unreadable.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kafka_timers.core import rows as batches
from kafka_timers.core.callbacks import Shown
from kafka_timers.core.changes import Row
from kafka_timers.core.decisions import decide
from kafka_timers.core.keys import REFUSED_MS, Copied, batch_key, is_late, row_key
from kafka_timers.core.partition import Partition
from kafka_timers.core.refused import Reason, pack_forwarded, pack_refused
from kafka_timers.core.verdicts import dues_of, judged, judged_at_home, screened, timer_record
from kafka_timers.core.versions import Decided, Dropped, KnownFromError, TimerRecord, Version
from kafka_timers.core.wire import Record, is_far, is_framed, unframed

# Dispositions of a copy of a far request that is not dropped.
IN_TIME, LATE = "in time", "late"

# Returns the version of each timer id, and of each name of a copy.
Lookup = Callable[[Sequence[bytes]], Iterable[Version | None]]


@dataclass(slots=True)
class Accepted:
    """
    The result of judging some records.

    Attributes:
        count: number of records that were judged; the next one cannot be judged yet.
        rows: rows to keep, one for each record or each batch of them.
        offsets: offsets under which all kept records count as pending, ascending.
        refused: number of refused requests, by reason.
        far: offsets of the requests that are left to the lake.
        cancels: offsets of the cancels.
        copies: number of copies of far requests, by disposition: `IN_TIME`, `LATE` or `Dropped`.
        copies_lead_s: seconds from append to due, summed over the copies that are kept.
        topics: callback topics of the other records.
        decided: decisions about timer ids and copies.
        faults: records on which this code has failed, and the exceptions.
        has_callbacks: whether any accepted record has a `callBackRecord`, the framing of a schema registry, or is or
            was sent on to the partition of its timer id.
        undecided_at: offset of the first record that cannot be judged yet, for another reason than its id.
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
    has_callbacks: bool = False
    undecided_at: int | None = None


def accept(records: Sequence[Record], partition: Partition, partitions: int, lookup: Lookup) -> Accepted:
    """
    Judge *records*: return the rows to keep of those that are not done, and the effect on earlier records.

    This judges only by the record itself, so that a worker that reads it again, much later and on an empty disk, gets
    the same result. Facts that may change, such as whether its callback topic exists, are checked in its second.

    Args:
        records: records of this partition, offsets ascending.
        partition: decides the key of each row.
        partitions: number of partitions.
        lookup: knows the records before these.

    Raises:
        KnownFromError: the decisions need earlier records than have been read.
        Exception: any exception of *lookup*.
    """
    faults: dict[int, Exception] = {}
    while True:
        kept = (None if faults else _usual(records, partition, partitions)) or _one_by_one(
            records, partition, partitions, faults
        )
        if not kept.named:
            break
        names = list({name: None for each in kept.named for name in each.names})
        known = dict(zip(names, lookup(names), strict=True))
        try:
            kept.out.decided = decide(kept.named, dict(known), partition)
            break
        except KnownFromError:
            raise
        except Exception:
            # A record may pass when judged alone. Then its neighbours are to blame, and one of those fails.
            faults |= _faults_among(kept.named, known, partition)
    out = kept.out
    undecided_at = min([at for at in (out.undecided_at, out.decided.undecided_at) if at is not None], default=None)
    if undecided_at is not None:
        sure = [record for record in records if record.offset < undecided_at]
        return accept(sure, partition, partitions, lookup)
    _add_doubtful(out, kept.doubtful)
    out.faults = faults
    return out


# Requests that may be dropped, by offset: the row, the offset under which it counts as pending, and for copies the
# seconds from append to due.
_Doubtful = dict[int, tuple[Row, int, int | None]]


class _Kept(NamedTuple):
    out: Accepted
    named: list[TimerRecord]
    doubtful: _Doubtful


def _add_doubtful(out: Accepted, doubtful: _Doubtful) -> None:
    """Add those of the *doubtful* requests to *out* that the decisions have left."""
    if not doubtful:
        return
    decided = out.decided
    out.copies.update(decided.dropped.values())
    left = [each for at, each in doubtful.items() if at not in decided.dropped and at not in decided.ignored]
    copies = [(row, lead_s) for row, _, lead_s in left if lead_s is not None]
    out.copies.update(LATE if is_late(key) else IN_TIME for (key, _), _ in copies)
    out.copies_lead_s = sum([max(lead_s, 0) for _, lead_s in copies])
    out.rows += [row for row, _, _ in left]
    out.offsets = sorted(out.offsets + [counted for _, counted, _ in left])


def _faults_among(
    named: Iterable[TimerRecord], known: Mapping[bytes, Version | None], partition: Partition
) -> dict[int, Exception]:
    """Return the first of *named* on which deciding fails, with its exception."""
    now = dict(known)
    for each in named:
        try:
            if decide([each], now, partition).undecided_at is not None:
                break
        except Exception as error:
            return {each.offset: error}
    raise AssertionError("records can be decided on one by one, and not together")


def _one_by_one(
    records: Sequence[Record], partition: Partition, partitions: int, faults: dict[int, Exception]
) -> _Kept:
    kept = _Kept(Accepted(len(records)), [], {})
    for record in records:
        if record.offset not in faults:
            try:
                _take(record, partition, partitions, kept)
                if kept.out.undecided_at is not None:
                    break
                continue
            except Exception as error:
                faults[record.offset] = error
        _refuse(Reason.UNREADABLE, record, partition, kept.out)
    return kept


def _take(record: Record, partition: Partition, partitions: int, kept: _Kept) -> None:
    out, number, offset = kept.out, partition.number, record.offset
    due_ms, future = judged(record, number, partitions)
    is_foreign = future is Reason.ID_IN_FOREIGN_PARTITION and not partition.refuses_callback(offset)
    if is_foreign:
        due_ms, future = judged_at_home(record, partitions)
    elif not isinstance(future, Reason) and future.condition and partition.refuses_condition(offset):
        future = Reason.CONDITION_UNSUPPORTED
    # Support for all of these came with the same version.
    if not isinstance(future, Reason) and (
        is_foreign or is_framed(record.value) or any(map(future.HasField, ("callBackRecord", "forwarded")))
    ):
        if partition.waits_to_take:
            out.undecided_at = offset
            return
        if future.HasField("copy"):
            if partition.refuses_callback(future.copy.offset):
                out.copies[Dropped.REFUSED] += 1
                return
            out.has_callbacks = True
        elif partition.refuses_callback(offset):
            future = Reason.CALLBACK_UNSUPPORTED
        else:
            out.has_callbacks = True
    if is_foreign and not isinstance(future, Reason):
        _forward(record, partition, out)
        return
    if isinstance(future, Reason):
        _refuse(future, record, partition, out)
        return
    appended_s = record.timestamp // 1000
    if due_ms is None:
        kept.named.append(timer_record(future, due_ms, record, number))
        out.cancels.add(offset)
        return
    if future.HasField("copy"):
        copied = Copied(offset, future.copy.decidedOffset)
        key, counted, lead_s = partition.place(due_ms, future.copy.offset, copied), copied.decided, due_ms // 1000
        lead_s -= appended_s
    elif is_far(due_ms // 1000, appended_s, partition.horizon_s):
        if future.timerId:
            kept.named.append(timer_record(future, due_ms, record, number, far=True))
        out.far.add(offset)
        return
    else:
        key, counted, lead_s = partition.place(due_ms, offset), offset, None
    if future.timerId or lead_s is not None:
        # A copy that is done may be followed by another copy of the same original.
        kept.named.append(timer_record(future, due_ms, record, number))
    if key is not None:
        out.topics.add(Shown.of(future).topic)
        row = (key, unframed(record.value or b""))
        if lead_s is not None or future.condition or future.HasField("forwarded"):
            kept.doubtful[offset] = row, counted, lead_s
        else:
            out.rows.append(row)
            out.offsets.append(counted)


def _forward(record: Record, partition: Partition, out: Accepted) -> None:
    """Keep *record* like a refused one, until it is sent on."""
    key = partition.place(REFUSED_MS, record.offset)
    if key is not None:
        out.rows.append((key, pack_forwarded(partition.number, record)))
        out.offsets.append(record.offset)


def _refuse(reason: Reason, record: Record, partition: Partition, out: Accepted) -> None:
    key = partition.place(REFUSED_MS, record.offset)
    if key is not None:
        out.refused[reason] += 1
        out.rows.append((key, pack_refused(reason, record)))
        out.offsets.append(record.offset)


def _usual(records: Sequence[Record], partition: Partition, partitions: int) -> _Kept | None:
    """Return the result of `_one_by_one` if nothing in *records* is unusual, else None: many times faster."""
    try:
        return _at_once(records, partition, partitions)
    except Exception:
        # One of them is to blame, and `_one_by_one` finds it.
        return None


def _at_once(records: Sequence[Record], partition: Partition, partitions: int) -> _Kept | None:
    values = [record.value or b"" for record in records]
    passed = screened(values, partition.number, partitions)
    if passed is None:
        return None
    futures, framed, extras, topics, ids = passed
    has_callbacks = extras.HasField("callBackRecord")
    if has_callbacks and (partition.callbacks_from is None or records[0].offset < partition.callbacks_from):
        return None
    requests, cancels = records, set[int]()
    if extras.HasField("cancel"):
        requests = [record for record, future in zip(records, futures, strict=True) if not future.cancel]
        cancels = {record.offset for record, future in zip(records, futures, strict=True) if future.cancel}
    # Many requests of a fetch are due in the same seconds.
    due = dues_of({record.key for record in requests})
    # A request that is due before a scanned moment may be done or late.
    if due is None or min(due.values(), default=partition.scanned_ms) < partition.scanned_ms:
        return None
    far = _far_among(requests, due, partition.horizon_s)
    named = []
    for record, future, timer_id in zip(records, futures, ids, strict=True) if ids else ():
        if timer_id:
            due_ms = None if future.cancel else due[record.key]
            reply_topic = future.replyTopic.encode()
            is_left = record.offset in far
            named.append(TimerRecord(timer_id, due_ms, record.offset, record.timestamp, reply_topic, is_left))
    if far:
        requests = [record for record in requests if record.offset not in far]
        due = {record.key: due[record.key] for record in requests}
    if len(requests) < len(records):
        values = [record.value or b"" for record in requests]
        framed = batches.framed(values)
    offsets = [record.offset for record in requests]
    plain, has_ids = not extras.ListFields(), extras.HasField("timerId")
    rows: list[Row] = []
    if not requests:
        topics = set()
    elif len(due) == 1:
        [due_ms] = due.values()
        batch = batches.pack(framed, offsets, plain=plain, named=has_ids)
        rows.append((batch_key(due_ms, offsets[-1], len(offsets)), batch))
    else:
        rows = _by_due(requests, values, due, plain=plain, named=has_ids)
    accepted = Accepted(
        len(records), rows, offsets, far=far, cancels=cancels, topics=topics, has_callbacks=has_callbacks
    )
    return _Kept(accepted, named, {})


def _by_due(
    requests: Sequence[Record], values: Sequence[bytes], due: Mapping[bytes | None, int], *, plain: bool, named: bool
) -> list[Row]:
    """Return rows for *requests*, one row for all that are due at one moment."""
    parts: dict[int, tuple[list[bytes], list[int]]] = {due_ms: ([], []) for due_ms in due.values()}
    for record, value in zip(requests, values, strict=True):
        part = parts[due[record.key]]
        part[0].append(value)
        part[1].append(record.offset)
    rows = []
    for due_ms, (part_values, offsets) in parts.items():
        if len(offsets) == 1:
            rows.append((row_key(due_ms, offsets[0]), part_values[0]))
        else:
            batch = batches.pack(batches.framed(part_values), offsets, plain=plain, named=named)
            rows.append((batch_key(due_ms, offsets[-1], len(offsets)), batch))
    return rows


def _far_among(requests: Sequence[Record], due: Mapping[bytes | None, int], horizon_s: int) -> set[int]:
    """Return the offsets of those *requests* that are left to the lake; *due* has the due of each key."""
    if not horizon_s or not requests:
        return set()
    times_ms = [record.timestamp for record in requests]
    # Most are near, and records that lie together were appended together.
    if not is_far(max(due.values()) // 1000, min(times_ms) // 1000, horizon_s):
        return set()
    return {each.offset for each in requests if is_far(due[each.key] // 1000, each.timestamp // 1000, horizon_s)}
