"""
What a record on `timer-request` asks for, or why it is refused.

Pure. A refused request is kept like any other until the next tick takes it to `timer-rejected`, in the same transaction
as that second's callbacks: it gets there exactly once, whatever crashes. Its row holds the reason and the whole record.
What only the callback topic can tell is judged in the request's second, by `callbacks`.
"""

import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from google.protobuf.message import DecodeError

from kafka_timers.service import runs
from kafka_timers.service.partition import REFUSED, Partition, run_key
from kafka_timers.service.runs import Row
from kafka_timers.wire import SECOND_LIMIT, Future, Request, callback_headers


class Reason(StrEnum):
    """Why a request is refused; the value of the header `timer-rejected-reason`."""

    KEY_MISSING = "key-missing"
    KEY_NOT_A_SECOND = "key-not-a-second"
    KEY_IN_MILLISECONDS = "key-in-milliseconds"
    VALUE_MISSING = "value-missing"
    VALUE_NOT_A_FUTURE = "value-not-a-future"
    MILLIS_OUT_OF_RANGE = "millis-out-of-range"
    CANCEL_UNSUPPORTED = "cancel-unsupported"
    TOPIC_MISSING = "topic-missing"
    TOPIC_UNKNOWN = "topic-unknown"
    TOPIC_FORBIDDEN = "topic-forbidden"
    TOPIC_RESERVED = "topic-reserved"
    TOPIC_REFUSED = "topic-refused"
    TOO_LARGE = "too-large"


@dataclass(frozen=True, slots=True)
class Target:
    """A callback topic that may be written to: its partitions, and the largest batch that it takes."""

    partitions: int
    batch_bytes_max: int


class Record(Protocol):
    """What is used of a consumed record."""

    @property
    def key(self) -> bytes | None:
        """Expiry second in ASCII."""

    @property
    def value(self) -> bytes | None:
        """A serialised Future."""

    @property
    def offset(self) -> int:
        """On `timer-request`."""


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
    # 14 digits are milliseconds up to the year 5138; a longer number is no time, and may be a megabyte of digits.
    if not key.isdigit() or len(key) > 14:
        return Reason.KEY_NOT_A_SECOND
    second = int(key)
    if second >= SECOND_LIMIT:
        return Reason.KEY_IN_MILLISECONDS
    return second or Reason.KEY_NOT_A_SECOND


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


@dataclass(slots=True)
class Accepted:
    """
    Rows for the store.

    Attributes:
        rows: what is kept, a row for each record or each run of them.
        offsets: of all records that are kept, ascending.
        refused: how many of them are refused requests, by reason.
        topics: callback topics that the others name.
    """

    rows: list[Row] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    refused: Counter[Reason] = field(default_factory=Counter)
    topics: set[str] = field(default_factory=set)


def accept(records: Sequence[Record], partition: Partition) -> Accepted:
    """
    Return rows for those of *records* that are not done yet.

    Only what the record itself shows is judged here, so that whoever reads it again, much later and on an empty disk,
    comes to the same end. What may change, such as whether its callback topic exists, is judged in its second.

    Args:
        records: of this partition, offsets ascending.
        partition: decides where each row is kept.
    """
    # Many requests of a fetch are due in the same seconds.
    seconds = {key: second_of(key) for key in {record.key for record in records}}
    usual = _usual(records, seconds, partition.looked_at)
    if usual:
        return usual
    out = Accepted()
    for record in records:
        asked = _judged(seconds[record.key], record.value)
        if isinstance(asked, Reason):
            key, row = partition.place(REFUSED, 0, record.offset), pack_refused(asked, record)
            out.refused[asked] += key is not None
        else:
            second, future, row = asked
            key = partition.place(second, future.millis, record.offset)
            out.topics.add(future.callBackTopic)
        if key is not None:
            out.rows.append((key, row))
            out.offsets.append(record.offset)
    return out


def _usual(records: Sequence[Record], seconds: Mapping[bytes | None, int | Reason], looked_at: int) -> Accepted | None:
    """
    Return what `accept` does when nothing is unusual in *records*, else None: many times faster than one by one.

    Args:
        records: as `accept` gets them.
        seconds: what their keys name.
        looked_at: requests for this second or an earlier one may be done or late.
    """
    due = {key: second for key, second in seconds.items() if isinstance(second, int) and second > looked_at}
    if len(due) < len(seconds):
        return None
    values = [record.value or b"" for record in records]
    framed = runs.framed(values)
    futures = runs.futures_in(framed)
    if futures is None:
        return None
    topics = {future.callBackTopic for future in futures}
    extras = runs.extras_in(values)
    if "" in topics or extras.HasField("millis") or extras.HasField("cancel"):
        return None
    offsets = [record.offset for record in records]
    together = dict.fromkeys(due.values(), (framed, offsets))
    if len(together) > 1:
        parts: dict[int, tuple[list[bytes], list[int]]] = {second: ([], []) for second in together}
        for record, value, offset in zip(records, values, offsets, strict=True):
            of_second = parts[due[record.key]]
            of_second[0].append(value)
            of_second[1].append(offset)
        together = {second: (runs.framed(part), at) for second, (part, at) in parts.items()}
    plain = not extras.ListFields()
    rows = [
        (run_key(second, run_offsets[-1], len(run_offsets)), runs.pack(run, run_offsets, plain=plain))
        for second, (run, run_offsets) in together.items()
    ]
    return Accepted(rows, offsets, topics=topics)


def _judged(second: int | Reason, value: bytes | None) -> tuple[int, Future, bytes] | Reason:
    """Return the second, the Future in *value* and *value*, or why the request is refused."""
    if isinstance(second, Reason):
        return second
    if not value:
        return Reason.VALUE_MISSING
    try:
        future = Future.FromString(value)
    except DecodeError:
        return Reason.VALUE_NOT_A_FUTURE
    if future.cancel:
        return Reason.CANCEL_UNSUPPORTED
    if future.millis > 999:
        return Reason.MILLIS_OUT_OF_RANGE
    return (second, future, value) if future.callBackTopic else Reason.TOPIC_MISSING
