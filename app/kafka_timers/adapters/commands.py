"""The command that an adapter makes of another system's record, and functions that all adapters share (pure)."""

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
    Record,
    Source,
    number_in,
    second_in,
)
from kafka_timers.errors import WhenError

SourceHeaders = Sequence[tuple[str, bytes | None]]

# A loop takes about a second for each turn.
_HOPS_MAX = 100
_ROUND = SERVICE_HEADERS | {HOPS_HEADER}
_EPOCH_YEAR = 1970
_PARTITION_MAX = (1 << 31) - 1
_rfc3339_matches = re.compile(
    rb"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})"
).fullmatch
_BYTES = [bytes((number,)) for number in range(128)]


class Refusal(StrEnum):
    """The reason why an adapter refuses a record: the value of the header `timer-rejected-reason`."""

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
    """A record came round so often that it must be in a loop."""


class Command(NamedTuple):
    """
    A record for `timer-request`: a request or a cancel.

    Attributes:
        second: UNIX second in which the timer fires; None for a cancel.
        name: its hash chooses the partition. It is the timer id if there is one, otherwise the callback's key; with
            None the sender chooses.
        future: a serialised `Future`.
    """

    second: int | None
    name: bytes | None
    future: bytes

    @property
    def key(self) -> bytes | None:
        """Key of the record on `timer-request`."""
        return self.name if self.second is None else b"%d" % self.second


# None: the record asks for nothing.
Parsed = Command | Refusal | None


class SourceRecord(Record, Protocol):
    """A record of another system's topic."""

    @property
    def topic(self) -> str:
        """Name of the topic."""

    @property
    def partition(self) -> int:
        """Partition of the topic."""


def headers_by_name(record: SourceRecord) -> dict[str, bytes | None]:
    """Return the headers of *record* by name. If several have the same name, the first counts."""
    return dict(reversed(record.headers))


def forwarded_headers(given: SourceHeaders, without: Collection[str] = ()) -> list[tuple[str, bytes | None]]:
    """
    Return the headers for the callback: the headers *given* without the service's own and those in *without*.

    A receiver that forwards its callback as a new timer sends the service's headers too. If they were kept, the next
    callback would carry the old ones beside its own. The same happens if the callback topic of a schedule is a door's
    own topic. The last header counts the rounds.

    Raises:
        TooManyHopsError: the record came round too often.
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
    Return the UNIX millisecond of *text*, which is in RFC 3339, rounded up.

    A time before the epoch gives the first possible moment, so the timer is due at once. A time after the last possible
    moment gives that one.
    """
    if not _rfc3339_matches(text):
        return Refusal.EXPIRY_NOT_RFC3339
    try:
        moment = datetime.fromisoformat(text.decode())
    except ValueError:
        # For example the 30th of February.
        return Refusal.EXPIRY_NOT_RFC3339
    try:
        return moment_at(moment)
    except (WhenError, OverflowError):
        return FIRST_MS if moment.year <= _EPOCH_YEAR else SECOND_LIMIT * 1000 - 1


def expiry_in(text: bytes | None) -> int | Refusal:
    """Return the UNIX second that *text* holds in ASCII digits, or the reason why there is none."""
    return second_in(
        text,
        missing=Refusal.EXPIRY_MISSING,
        malformed=Refusal.EXPIRY_NOT_A_SECOND,
        in_milliseconds=Refusal.EXPIRY_IN_MILLISECONDS,
    )


def partition_in(text: bytes | None) -> int | Refusal:
    """Return the partition that *text* holds in ASCII digits, or the reason why there is none."""
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
    Return a serialised `Future` with *fields*. Text may be given as bytes. None leaves a field unset.

    Args:
        partition: partition of the callback; None: its key decides.
        partition_key: decides the partition instead of the key; None for none.
        is_tombstone: True if the callback has no value.
        keeps_empty_key: True if an empty `callBackKey` is a key; otherwise it means no key.
        fields: fields of the `Future`. A `callBackKey` that is not text is kept as bytes.

    Raises:
        UnicodeError: a text field is not UTF-8.
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
    # Fields may come in any order. Headers are built by hand: as messages they would cost more than the rest of an
    # adapter.
    try:
        framed = [
            b"\x3a%b%b\x12%b%b" % (_BYTES[len(key := _name_of(name)) + len(value) + 2], key, _BYTES[len(value)], value)
            for name, value in cast("Sequence[tuple[str, bytes]]", headers)
        ]
    except (IndexError, TypeError):
        # A header is long, or has no value.
        framed = [_framed(_name_of(name), value) for name, value in headers]
    return b"".join([Future(**fields).SerializeToString(), *framed])


def source_field(door: str, record: SourceRecord) -> bytes:
    """
    Return bytes that name *door* and *record* as the source of a `Future`. Append them to the serialised `Future`.
    """
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
