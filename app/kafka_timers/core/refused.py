"""
Why a request is refused, and the row in which it waits for `timer-rejected`: the reason and the whole record.

A record that waits to be sent on to another partition is kept in the same way.
"""

import struct
from enum import StrEnum

from kafka_timers.core.wire import Forwarded, Future, Record

_LENGTHS = struct.Struct(">ii")


class Reason(StrEnum):
    """The reasons for refusals; each is a value of the header `timer-rejected-reason`."""

    KEY_MISSING = "key-missing"
    KEY_NOT_A_SECOND = "key-not-a-second"
    KEY_IN_MILLISECONDS = "key-in-milliseconds"
    VALUE_MISSING = "value-missing"
    VALUE_NOT_A_FUTURE = "value-not-a-future"
    MILLIS_OUT_OF_RANGE = "millis-out-of-range"
    ID_MISSING = "id-missing"
    ID_IN_FOREIGN_PARTITION = "id-in-foreign-partition"
    FORWARDED_INVALID = "forwarded-invalid"
    CONDITION_INVALID = "condition-invalid"
    CALLBACK_INVALID = "callback-invalid"
    COPY_INVALID = "copy-invalid"
    UNREADABLE = "unreadable"
    PARTITION_ADDED = "partition-added"
    TOPIC_MISSING = "topic-missing"
    TOPIC_UNKNOWN = "topic-unknown"
    TOPIC_FORBIDDEN = "topic-forbidden"
    TOPIC_RESERVED = "topic-reserved"
    TOPIC_NEEDS_KEY = "topic-needs-key"
    PARTITION_UNKNOWN = "partition-unknown"
    TOPIC_REFUSED = "topic-refused"
    TOPIC_UNAVAILABLE = "topic-unavailable"
    TOO_LARGE = "too-large"


# Those of a request that is due: they depend on its callback topic.
WHEN_DUE = frozenset(
    (
        Reason.TOPIC_UNKNOWN,
        Reason.TOPIC_FORBIDDEN,
        Reason.TOPIC_RESERVED,
        Reason.TOPIC_NEEDS_KEY,
        Reason.PARTITION_UNKNOWN,
        Reason.TOPIC_REFUSED,
        Reason.TOPIC_UNAVAILABLE,
        Reason.TOO_LARGE,
        Reason.UNREADABLE,
    )
)


def pack_refused(reason: Reason, record: Record) -> bytes:
    """Return the row of a refused record."""
    return _packed(reason, record.key, record.value)


def pack_forwarded(number: int, record: Record) -> bytes:
    """Return the row of a record of partition *number* that waits to be sent on, with its origin."""
    first = Forwarded(fromPartition=number, fromOffset=record.offset, appendedMs=max(record.timestamp, 0))
    # Protobuf merges messages that are written one behind the other.
    return _packed("", record.key, (record.value or b"") + Future(forwarded=first).SerializeToString())


def _packed(why: str, key: bytes | None, value: bytes | None) -> bytes:
    lengths = _LENGTHS.pack(len(why), -1 if key is None else len(key))
    return lengths + why.encode() + (key or b"") + (b"" if value is None else b"v" + value)


def unpack_refused(row: bytes) -> tuple[Reason | None, bytes | None, bytes | None]:
    """Return reason, key and value of a refused record. The reason is None for a record that is to be sent on."""
    reason_bytes, key_bytes = _LENGTHS.unpack_from(row)
    key_at = _LENGTHS.size + reason_bytes
    value_at = key_at + max(key_bytes, 0)
    reason = Reason(row[_LENGTHS.size : key_at].decode()) if reason_bytes else None
    return reason, None if key_bytes < 0 else row[key_at:value_at], row[value_at + 1 :] if row[value_at:] else None
