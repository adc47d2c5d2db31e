"""
The command that an adapter parses from a record of another system, and functions that all adapters share (pure).
"""

import re
from collections.abc import Collection, Sequence
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, cast

from kafka_timers.core.keys import FIRST_MS
from kafka_timers.core.moments import moment_at
from kafka_timers.core.text import is_text
from kafka_timers.core.wire import (
    HOPS_HEADER,
    REQUEST_HEADER,
    SECOND_LIMIT,
    SERVICE_HEADERS,
    SOURCE_TAG,
    Callback,
    Future,
    Source,
    number_in,
    second_in,
)
from kafka_timers.errors import WhenError

__all__ = [
    "Command",
    "Parsed",
    "Refusal",
    "SourceHeaders",
    "SourceRecord",
    "TooManyHopsError",
    "cancel_command",
    "expiry_in",
    "forwarded_headers",
    "headers_by_name",
    "pack_future",
    "partition_in",
    "rfc3339_ms",
    "source_field",
]

SourceHeaders = Sequence[tuple[str, bytes | None]]

# A loop goes round about once a second.
_HOPS_MAX = 100
_ROUND = SERVICE_HEADERS | {HOPS_HEADER}
_EPOCH_YEAR = 1970
_PARTITION_MAX = (1 << 31) - 1
_rfc3339_matches = re.compile(
    rb"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})"
).fullmatch
_BYTES = [bytes((number,)) for number in range(128)]


class Refusal(StrEnum):
    """Why an adapter refuses a record; the value of the header `timer-rejected-reason`."""

    KEY_MISSING = "key-missing"
    VALUE_MISSING = "value-missing"
    VALUE_NOT_COUNTDOWN = "value-not-countdown"
    VALUE_NOT_SCHEDULE = "value-not-schedule"
    EXPIRY_MISSING = "expiry-missing"
    EXPIRY_NOT_A_SECOND = "expiry-not-a-second"
    EXPIRY_IN_MILLISECONDS = "expiry-in-milliseconds"
    EXPIRY_NOT_RFC3339 = "expiry-not-rfc3339"
    EXPIRY_OUT_OF_RANGE = "expiry-out-of-range"
    EXPIRY_INVALID = "expiry-invalid"
    DELAY_INVALID = "delay-invalid"
    MILLIS_OUT_OF_RANGE = "millis-out-of-range"
    TOPIC_MISSING = "topic-missing"
    NOT_UTF8 = "not-utf8"
    CALLER_MISSING = "caller-missing"
    CALLER_OVER_LIMIT = "caller-over-limit"
    VERSION_UNKNOWN = "version-unknown"
    TYPE_UNKNOWN = "type-unknown"
    PARTITION_INVALID = "partition-invalid"
    TOO_MANY_HOPS = "too-many-hops"
    PAST_GRACE = "past-grace"
    TOO_LARGE = "too-large"
    UNREADABLE = "unreadable"


class TooManyHopsError(Exception):
    """A record has gone round so often that it is taken for a loop."""


class Command(NamedTuple):
    """
    A record to be written to `timer-request`: a request, or a cancel.

    Attributes:
        second: UNIX second in which the timer fires; None for a cancel.
        name: chooses the partition by its hash: the timer's id if it has one, else the callback's key; None leaves the
            partition to the sender.
        future: a serialised `Future`.
    """

    second: int | None
    name: bytes | None
    future: bytes

    @property
    def key(self) -> bytes | None:
        """Key of the record."""
        return self.name if self.second is None else b"%d" % self.second


# None stands for a record that asks for nothing.
Parsed = Command | Refusal | None


class SourceRecord(Protocol):
    """The part of a consumed record that adapters use."""

    @property
    def topic(self) -> str:
        """Name of the other system's topic."""

    @property
    def partition(self) -> int:
        """Partition of that topic."""

    @property
    def offset(self) -> int:
        """Offset in that partition."""

    @property
    def timestamp(self) -> int:
        """Time of the record, in UNIX milliseconds."""

    @property
    def key(self) -> bytes | None:
        """Key of the record."""

    @property
    def value(self) -> bytes | None:
        """Value of the record."""

    @property
    def headers(self) -> SourceHeaders:
        """Headers of the record, in their order."""


def headers_by_name(record: SourceRecord) -> dict[str, bytes | None]:
    """Return the headers of *record* by name; of those that share one, the first."""
    return dict(reversed(record.headers))


def forwarded_headers(given: SourceHeaders, without: Collection[str] = ()) -> list[tuple[str, bytes | None]]:
    """
    Return the headers *given* by a record for its callback, but for the service's own and those *without*.

    A receiver that sends its callback round again sends the service's headers too, and the next callback would carry
    the old ones beside its own. The same has a schedule whose callback topic is a door's own: how often it has come
    round is told by the last header.

    Raises:
        TooManyHopsError: it has come round too often.
    """
    own = [header for header in given if header[0] not in _ROUND and header[0] not in without]
    if len(own) < len(given):
        headers = dict(reversed(given))
        if REQUEST_HEADER in headers:
            hops = (number_in(headers.get(HOPS_HEADER)) or 0) + 1
            if hops > _HOPS_MAX:
                raise TooManyHopsError
            own.append((HOPS_HEADER, b"%d" % hops))
    return own


def rfc3339_ms(text: bytes) -> int | Refusal:
    """
    Return the UNIX millisecond that *text* names in RFC 3339, the first one that is not before it.

    What lies before the epoch is due at once, and what lies behind the last moment that a timer can have is due then.
    """
    if not _rfc3339_matches(text):
        return Refusal.EXPIRY_NOT_RFC3339
    try:
        moment = datetime.fromisoformat(text.decode())
    except ValueError:
        # Such as the 30th of February.
        return Refusal.EXPIRY_NOT_RFC3339
    try:
        return moment_at(moment)
    except (WhenError, OverflowError):
        return FIRST_MS if moment.year <= _EPOCH_YEAR else SECOND_LIMIT * 1000 - 1


def expiry_in(text: bytes | None) -> int | Refusal:
    """Return the UNIX second that *text* names in ASCII digits, or why it names none."""
    return second_in(
        text,
        missing=Refusal.EXPIRY_MISSING,
        malformed=Refusal.EXPIRY_NOT_A_SECOND,
        in_milliseconds=Refusal.EXPIRY_IN_MILLISECONDS,
    )


def partition_in(text: bytes | None) -> int | Refusal:
    """Return the partition that *text* names in ASCII digits, or why it names none."""
    number = number_in(text)
    return Refusal.PARTITION_INVALID if number is None or number > _PARTITION_MAX else number


def pack_future(
    headers: SourceHeaders = (),
    *,
    partition: int | None = None,
    partition_key: bytes | None = None,
    is_tombstone: bool = False,
    keeps_empty_key: bool = False,
    **fields: Any,
) -> bytes:
    """
    Return a serialised `Future` of *fields*, in which text may be bytes and None is a field that is not set.

    Args:
        headers: of the callback.
        partition: of the callback; None for the one that its key gives.
        partition_key: gives the partition in place of the key; None for none.
        is_tombstone: the callback has no value.
        keeps_empty_key: an empty `callBackKey` is a key, and not none.
        fields: of the `Future`. A `callBackKey` that is not text is bytes.

    Raises:
        UnicodeError: text is not UTF-8.
    """
    key = fields.get("callBackKey")
    is_other_key = isinstance(key, bytes) and (not is_text(key) or (keeps_empty_key and not key))
    if is_tombstone or partition is not None or partition_key is not None or is_other_key:
        topic, value = fields.pop("callBackTopic"), fields.pop("callBack", None)
        fields.pop("callBackKey", None)
        fields["callBackRecord"] = Callback(
            topic=topic,
            key=key,
            value=None if is_tombstone else value,
            partition=partition,
            partitionKey=partition_key,
        )
    # Fields may come in any order. As messages of their own, headers cost more than all else that an adapter does.
    try:
        framed = [
            b"\x3a%b%b\x12%b%b" % (_BYTES[len(key := _name_of(name)) + len(value) + 2], key, _BYTES[len(value)], value)
            for name, value in cast("Sequence[tuple[str, bytes]]", headers)
        ]
    except (IndexError, TypeError):
        # One is long or null.
        framed = [_framed(_name_of(name), value) for name, value in headers]
    return b"".join([Future(**fields).SerializeToString(), *framed])


def source_field(door: str, record: SourceRecord) -> bytes:
    """Return what makes a serialised `Future` tell that *door* has made it of *record*, if it is put behind it."""
    key = record.key
    own = b"" if key is None else b"\x2a%b%b" % (_varint(len(key)), key)
    content = b"%b\x20%b%b" % (_source_of(door, record.topic, record.partition), _varint(record.offset), own)
    return b"%b%b%b" % (SOURCE_TAG, _varint(len(content)), content)


@lru_cache(1_000)
def _source_of(door: str, topic: str, partition: int) -> bytes:
    return Source(door=door, topic=topic, partition=partition).SerializeToString()


def _framed(key: bytes, value: bytes | None) -> bytes:
    content = key if value is None else b"%b\x12%b%b" % (key, _varint(len(value)), value)
    return b"\x3a%b%b" % (_varint(len(content)), content)


@lru_cache(1_000)
def _name_of(header: str) -> bytes:
    name = header.encode()
    return b"\x0a%b%b" % (_varint(len(name)), name)


def _varint(number: int) -> bytes:
    if number < 128:
        return _BYTES[number]
    return bytes((number & 127 | 128,)) + _varint(number >> 7)


def cancel_command(timer_id: bytes, reply_topic: bytes | None = None) -> Command:
    """
    Return the command that cancels the timer *timer_id*.

    Raises:
        UnicodeError: *timer_id* or *reply_topic* is not UTF-8.
    """
    return Command(None, timer_id, pack_future(timerId=timer_id, cancel=True, replyTopic=reply_topic))
