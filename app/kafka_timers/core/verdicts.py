"""
What a record on `timer-request` asks for, or why it is refused.

Pure. A refused request is kept like any other until the next tick takes it to `timer-rejected`, in the same transaction
as that second's callbacks: it gets there exactly once, whatever crashes. Its row holds the reason and the whole record.
What only the callback topic can tell is judged in the request's second, by `callbacks`.
"""

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from google.protobuf.message import DecodeError

from kafka_timers.core import rows as runs
from kafka_timers.core.partition import REFUSED, Copied, Partition, Version, is_late, row_key, run_key
from kafka_timers.core.rows import Row
from kafka_timers.core.versions import Asked, CopyOf, Decided, decide, hash_of
from kafka_timers.core.wire import (
    SECOND_LIMIT,
    Future,
    Record,
    Request,
    callback_headers,
    is_far,
    number_in,
)


class Reason(StrEnum):
    """Why a request is refused; the value of the header `timer-rejected-reason`."""

    KEY_MISSING = "key-missing"
    KEY_NOT_A_SECOND = "key-not-a-second"
    KEY_IN_MILLISECONDS = "key-in-milliseconds"
    VALUE_MISSING = "value-missing"
    VALUE_NOT_A_FUTURE = "value-not-a-future"
    MILLIS_OUT_OF_RANGE = "millis-out-of-range"
    ID_MISSING = "id-missing"
    ID_IN_FOREIGN_PARTITION = "id-in-foreign-partition"
    COPY_INVALID = "copy-invalid"
    TOPIC_MISSING = "topic-missing"
    TOPIC_UNKNOWN = "topic-unknown"
    TOPIC_FORBIDDEN = "topic-forbidden"
    TOPIC_RESERVED = "topic-reserved"
    TOPIC_REFUSED = "topic-refused"
    TOO_LARGE = "too-large"


# What a copy of a far request is worth that is not dropped.
IN_TIME, LATE = "in time", "late"


@dataclass(frozen=True, slots=True)
class Target:
    """A callback topic that may be written to: its partitions, and the largest batch that it takes."""

    partitions: int
    batch_bytes_max: int


# Of a batch with one record: 61 bytes of batch header, at most 36 of varints and attributes around key and value.
_BATCH_OVERHEAD = 100
_HEADER_OVERHEAD = 10
# What a callback's batch can be larger than its request: the above, and the service's own four headers.
OVERHEAD_BYTES = _BATCH_OVERHEAD + 150

_LENGTHS = struct.Struct(">ii")


def second_of(key: bytes | None) -> int | Reason:
    """Return the expiry second that a record's key names, or why it names none."""
    if not key:
        return Reason.KEY_MISSING
    second = number_in(key)
    if not second:
        return Reason.KEY_NOT_A_SECOND
    return second if second < SECOND_LIMIT else Reason.KEY_IN_MILLISECONDS


def fits(request: Request, size: int, target: Target) -> bool:
    """Tell whether a callback fits into its topic; *size* is that of the serialised *request*."""
    if size + OVERHEAD_BYTES <= target.batch_bytes_max:
        return True
    headers = callback_headers(request, SECOND_LIMIT, b"0123456789:01234567890123456789")
    header_bytes = sum([len(name) + len(value or b"") + _HEADER_OVERHEAD for name, value in headers])
    body_bytes = len(request.callBackKey) + len(request.callBack)
    return _BATCH_OVERHEAD + body_bytes + header_bytes <= target.batch_bytes_max


def pack_refused(reason: Reason, record: Record) -> bytes:
    """Return the row of a refused record."""
    key, value = record.key, record.value
    lengths = _LENGTHS.pack(len(reason), -1 if key is None else len(key))
    return lengths + reason.encode() + (key or b"") + (b"" if value is None else b"v" + value)


def unpack_refused(row: bytes) -> tuple[Reason, bytes | None, bytes | None]:
    """Return reason, key and value of the record that `pack_refused` was given."""
    reason_bytes, key_bytes = _LENGTHS.unpack_from(row)
    key_at = _LENGTHS.size + reason_bytes
    value_at = key_at + max(key_bytes, 0)
    reason = Reason(row[_LENGTHS.size : key_at].decode())
    return reason, None if key_bytes < 0 else row[key_at:value_at], row[value_at + 1 :] if row[value_at:] else None


# Tells of timer ids, and of names of copies, what is known of each.
Lookup = Callable[[Sequence[bytes]], Iterable[Version | None]]


@dataclass(slots=True)
class Accepted:
    """
    What follows from some records.

    Attributes:
        count: of the records that it follows from; nothing can be said yet of the first one behind them.
        rows: what is kept, a row for each record or each run of them.
        offsets: under which all records that are kept count as pending, ascending.
        refused: how many of them are refused requests, by reason.
        far: how many requests are left to the lake.
        copies: how many copies of far requests there were, by what they are worth: `IN_TIME`, `LATE` or `Dropped`.
        copies_lead_s: seconds from the append of the copies that are kept to their due, all together.
        topics: callback topics that the others name.
        decided: what follows for timer ids, and of copies.
    """

    count: int
    rows: list[Row] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    refused: Counter[Reason] = field(default_factory=Counter)
    far: int = 0
    copies: Counter[str] = field(default_factory=Counter)
    copies_lead_s: int = 0
    topics: set[str] = field(default_factory=set)
    decided: Decided = field(default_factory=Decided)


def accept(records: Sequence[Record], partition: Partition, partitions: int, lookup: Lookup) -> Accepted:
    """
    Return what is kept of those of *records* that are not done yet, and what they mean for earlier ones.

    Only what the record itself shows is judged here, so that whoever reads it again, much later and on an empty disk,
    comes to the same end. What may change, such as whether its callback topic exists, is judged in its second.

    Args:
        records: of this partition, offsets ascending.
        partition: decides where each row is kept.
        partitions: how many there are.
        lookup: knows the records before these.

    Raises:
        KnownFromError: what these records mean depends on earlier ones than have been read.
    """
    usual = _usual(records, partition, partitions)
    out, asked, copies = (*usual, {}) if usual else _one_by_one(records, partition, partitions)
    if asked:
        names = list({name: None for ask in asked for name in ask.names})
        out.decided = decide(asked, dict(zip(names, lookup(names), strict=True)), partition)
        if out.decided.open_at is not None:
            sure = [record for record in records if record.offset < out.decided.open_at]
            return accept(sure, partition, partitions, lookup)
    if copies:
        out.copies.update(out.decided.dropped.values())
        kept = [each for offset, each in copies.items() if offset not in out.decided.dropped]
        out.copies.update(LATE if is_late(key) else IN_TIME for (key, _), _, _ in kept)
        out.copies_lead_s = sum([max(lead_s, 0) for _, _, lead_s in kept])
        out.rows += [row for row, _, _ in kept]
        out.offsets = sorted(out.offsets + [counted for _, counted, _ in kept])
    return out


# Of copies, by the offset of each: its row, the offset under which it counts as pending, seconds from append to due.
_Copies = dict[int, tuple[Row, int, int]]


def _one_by_one(
    records: Sequence[Record], partition: Partition, partitions: int
) -> tuple[Accepted, list[Asked], _Copies]:
    out, asked, copies = Accepted(len(records)), [], {}
    for record in records:
        second, future = judged(record, partition.number, partitions)
        offset, row = record.offset, record.value or b""
        if isinstance(future, Reason):
            key, row = partition.place(REFUSED, 0, offset), pack_refused(future, record)
            out.refused[future] += key is not None
        elif second is None:
            asked.append(_asked(future, second, record))
            continue
        elif future.HasField("copy"):
            copied = Copied(offset, future.copy.decidedOffset)
            key = partition.place(second, future.millis, future.copy.offset, copied)
            # One that is done may be followed by another one of the same original.
            asked.append(_asked(future, second, record))
            if key is not None:
                copies[offset] = (key, row), copied.decided, second - record.timestamp // 1000
                out.topics.add(future.callBackTopic)
            continue
        elif is_far(second, record.timestamp // 1000, partition.horizon_s):
            out.far += 1
            if future.timerId:
                asked.append(_asked(future, second, record, far=True))
            continue
        else:
            if future.timerId:
                asked.append(_asked(future, second, record))
            key = partition.place(second, future.millis, offset)
            out.topics.add(future.callBackTopic)
        if key is not None:
            out.rows.append((key, row))
            out.offsets.append(offset)
    return out, asked, copies


def _usual(records: Sequence[Record], partition: Partition, partitions: int) -> tuple[Accepted, list[Asked]] | None:
    """Return what `_one_by_one` does when nothing is unusual in *records*, else None: many times faster."""
    values = [record.value or b"" for record in records]
    framed = runs.framed(values)
    futures = runs.futures_in(framed)
    if futures is None:
        return None
    extras = runs.extras_in(values)
    if extras.HasField("millis") or extras.HasField("copy"):
        return None
    requests, kept = records, futures
    if extras.HasField("cancel"):
        requests = [record for record, future in zip(records, futures, strict=True) if not future.cancel]
        kept = [future for future in futures if not future.cancel]
        values = [record.value or b"" for record in requests]
        framed = runs.framed(values)
    # Many requests of a fetch are due in the same seconds.
    due: dict[bytes | None, int] = {}
    looked_at = partition.looked_at
    for key in {record.key for record in requests}:
        second = second_of(key)
        # What is due in a second that was looked at may be done or late.
        if isinstance(second, Reason) or second <= looked_at:
            return None
        due[key] = second
    topics = {future.callBackTopic for future in kept}
    if "" in topics:
        return None
    far = _far_among(requests, due, partition.horizon_s)
    asked = []
    named = extras.HasField("timerId")
    if named or extras.HasField("cancel"):
        for record, future in zip(records, futures, strict=True):
            if future.timerId:
                asked_second = None if future.cancel else due[record.key]
                asked.append(_asked(future, asked_second, record, far=record.offset in far))
            elif future.cancel:
                return None
        if any(hash_of(ask.timer_id) % partitions != partition.number for ask in asked):
            return None
    if far:
        requests = [record for record in requests if record.offset not in far]
        due = {record.key: due[record.key] for record in requests}
        values = [record.value or b"" for record in requests]
        framed = runs.framed(values)
    offsets = [record.offset for record in requests]
    plain, rows = not extras.ListFields(), []
    if not requests:
        topics = set()
    elif len(due) == 1:
        [second] = due.values()
        rows.append((run_key(second, offsets[-1], len(offsets)), runs.pack(framed, offsets, plain=plain, named=named)))
    else:
        parts: dict[int, tuple[list[bytes], list[int]]] = {second: ([], []) for second in due.values()}
        for record, value, offset in zip(requests, values, offsets, strict=True):
            of_second = parts[due[record.key]]
            of_second[0].append(value)
            of_second[1].append(offset)
        for second, (part, at) in parts.items():
            if len(at) == 1:
                rows.append((row_key(second, 0, at[0]), part[0]))
            else:
                run = runs.pack(runs.framed(part), at, plain=plain, named=named)
                rows.append((run_key(second, at[-1], len(at)), run))
    return Accepted(len(records), rows, offsets, far=len(far), topics=topics), asked


def _far_among(requests: Sequence[Record], due: Mapping[bytes | None, int], horizon_s: int) -> set[int]:
    """Return the offsets of those *requests* that are left to the lake; *due* has the second of each key."""
    if not horizon_s or not requests:
        return set()
    times_ms = [record.timestamp for record in requests]
    # Most are near, and all that lie together were appended together.
    if not is_far(max(due.values()), min(times_ms) // 1000, horizon_s):
        return set()
    return {each.offset for each in requests if is_far(due[each.key], each.timestamp // 1000, horizon_s)}


def _asked(future: Future, second: int | None, record: Record, *, far: bool = False) -> Asked:
    timer_id, reply_topic = future.timerId.encode(), future.replyTopic.encode()
    copy_of = None
    if future.HasField("copy"):
        copy = future.copy
        copy_of = CopyOf(copy.offset, copy.appended, copy.decidedOffset, copy.decided)
    return Asked(timer_id, second, future.millis, record.offset, record.timestamp, reply_topic, far, copy_of)


def judged(record: Record, number: int, partitions: int) -> tuple[int | None, Future | Reason]:
    """Return second and Future of a request, None and Future of a cancel, or None and why *record* is refused."""
    second, value = second_of(record.key), record.value
    try:
        future = Future.FromString(value or b"")
    except DecodeError:
        return None, second if isinstance(second, Reason) else Reason.VALUE_NOT_A_FUTURE
    if future.timerId and hash_of(future.timerId.encode()) % partitions != number:
        return None, Reason.ID_IN_FOREIGN_PARTITION
    if future.cancel:
        if future.HasField("copy"):
            return None, Reason.COPY_INVALID
        return None, future if future.timerId else Reason.ID_MISSING
    if isinstance(second, Reason):
        return None, second
    if not value:
        return None, Reason.VALUE_MISSING
    if future.millis > 999:
        return None, Reason.MILLIS_OUT_OF_RANGE
    if future.HasField("copy") and not future.copy.offset < future.copy.decidedOffset <= record.offset:
        return None, Reason.COPY_INVALID
    return second, future if future.callBackTopic else Reason.TOPIC_MISSING
