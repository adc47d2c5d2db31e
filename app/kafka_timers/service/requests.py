"""
What a record on `timer-request` asks for, or why it is refused.

Pure. A refused request is kept like any other until the next tick takes it to `timer-rejected`, in the same transaction
as that second's callbacks: it gets there exactly once, whatever crashes. Its row holds the reason and the whole record.
What only the callback topic can tell is judged in the request's second, by `callbacks`.
"""

import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from google.protobuf.message import DecodeError

from kafka_timers.service.partition import REFUSED, Partition, pack_row
from kafka_timers.wire import SECOND_LIMIT, Future, callback_headers, plain_fields


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


# Key and value in the store.
Row = tuple[bytes, bytes]

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


def fits(future: Future, size: int, target: Target) -> bool:
    """Tell whether a callback fits into its topic; *size* is that of the serialised *future*."""
    if size + OVERHEAD_BYTES <= target.batch_bytes_max:
        return True
    headers = callback_headers(future, SECOND_LIMIT, b"0123456789:01234567890123456789")
    header_bytes = sum([len(name) + len(value or b"") + _HEADER_OVERHEAD for name, value in headers])
    body_bytes = len(future.callBackKey.encode()) + len(future.callBack)
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
        rows: key and value of each record that is kept.
        offsets: of those records, ascending.
        refused: how many of them are refused requests, by reason.
        topics: callback topics that the others name.
    """

    rows: list[Row] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    refused: Counter[Reason] = field(default_factory=Counter)
    topics: set[str] = field(default_factory=set)


def accept(records: Sequence[Record], partition: Partition) -> Accepted:
    """
    Return a row for each of *records* that is not done yet.

    Only what the record itself shows is judged here, so that whoever reads it again, much later and on an empty disk,
    comes to the same end. What may change, such as whether its callback topic exists, is judged in its second.

    Args:
        records: of this partition, offsets ascending.
        partition: decides where each row is kept.
    """
    out = Accepted()
    add_row, add_offset, place = out.rows.append, out.offsets.append, partition.place
    # Above it the key is the request's own place in time, as `place` would say, without the call.
    settled = max(partition.second, partition.scan.second if partition.scan else 0)
    # Many requests of a fetch are due in the same seconds, and go to the same topics.
    seconds: dict[bytes | None, int | Reason] = {}
    topics: dict[bytes, str] = {}
    plain = plain_fields([record.value or b"" for record in records])
    for record, fields in zip(records, plain, strict=True):
        key, value, offset = record.key, record.value, record.offset
        second = seconds.get(key) or seconds.setdefault(key, second_of(key))
        # What the short way does not know, or may not be UTF-8, goes the long one.
        if fields and fields[0] in topics and fields[1].isascii() and isinstance(second, int):
            row_key = pack_row(second, 0, offset) if second > settled else place(second, 0, offset)
        else:
            future, refusal = _judged(second, value)
            if refusal:
                row_key, value = place(REFUSED, 0, offset), pack_refused(refusal, record)
                out.refused[refusal] += row_key is not None
            else:
                row_key = place(second, future.millis, offset)  # type: ignore[arg-type]  # else it would be refused
                topics[future.callBackTopic.encode()] = future.callBackTopic
        if row_key is not None:
            add_row((row_key, value))  # type: ignore[arg-type]  # a record without a value is refused
            add_offset(offset)
    out.topics.update(topics.values())
    return out


def _judged(second: int | Reason, value: bytes | None) -> tuple[Future, Reason | None]:
    """Return what *value* asks for, and the reason why it is refused if it is."""
    future = Future()
    if isinstance(second, Reason):
        return future, second
    if not value:
        return future, Reason.VALUE_MISSING
    try:
        future = Future.FromString(value)
    except DecodeError:
        return future, Reason.VALUE_NOT_A_FUTURE
    if future.cancel:
        return future, Reason.CANCEL_UNSUPPORTED
    if future.millis > 999:
        return future, Reason.MILLIS_OUT_OF_RANGE
    return future, None if future.callBackTopic else Reason.TOPIC_MISSING
