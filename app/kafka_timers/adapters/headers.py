"""
The adapter for any client without protobuf: a plain record with the timer in its headers.

    key                     the timer id, as in `Future.timerId`; a later record with it moves or cancels the timer
    value                   value of the callback; a record without a value cancels the timer
    timer-delay             header: delay after the record's timestamp, as 5m, 250ms or plain seconds; or
    timer-expiry            header: due time, as UNIX seconds or milliseconds in ASCII, or RFC 3339
    timer-millis            header: millisecond within that second, 0 to 999 in ASCII; 0 if missing
    timer-tombstone         header: 1 for a callback without a value
    timer-callback-partition, timer-callback-partition-key      headers: the partition, if the key does not decide it
    timer-callback-topic, timer-callback-key, timer-token, timer-reply-topic        headers: as in a Future

All other headers are passed on to the callback. You can rename each header, see `names_of`.
"""

import re
from collections.abc import Callable, Mapping

from kafka_timers.adapters.commands import (
    Command,
    Parsed,
    Refusal,
    SourceRecord,
    cancel_command,
    forwarded_headers,
    headers_by_name,
    pack_future,
    partition_in,
    rfc3339_ms,
)
from kafka_timers.core.durations import delay_ms_of
from kafka_timers.core.moments import moment_after, moment_at
from kafka_timers.core.wire import EXPIRY_HEADER, MILLIS_HEADER, SECOND_LIMIT, TOKEN_HEADER, number_in
from kafka_timers.errors import WhenError

# Field → name of its header.
NAMES: Mapping[str, str] = {
    "expiry": EXPIRY_HEADER,
    "delay": "timer-delay",
    "millis": MILLIS_HEADER,
    "topic": "timer-callback-topic",
    "key": "timer-callback-key",
    "partition": "timer-callback-partition",
    "partition-key": "timer-callback-partition-key",
    "tombstone": "timer-tombstone",
    "token": TOKEN_HEADER,
    "reply-topic": "timer-reply-topic",
}

_seconds_match = re.compile(rb"[0-9]{1,14}(?:\.[0-9]{1,9})?").fullmatch


def names_of(text: str) -> dict[str, str]:
    """
    Return the name of each header: the usual ones, replaced by those in *text*. *text* has pairs WHAT=HEADER, comma
    separated, for example expiry=x-deliver-at.

    Raises:
        ValueError: a field is unknown, a name is missing, or two fields have the same name; the text says which.
    """
    names = dict(NAMES)
    for pair in filter(None, map(str.strip, text.split(","))):
        what, _, name = pair.partition("=")
        if what not in NAMES or not name:
            raise ValueError(f"door header {pair!r}: give WHAT=HEADER, one of {', '.join(NAMES)}")
        names[what] = name
    for what, name in names.items():
        if twice := [other for other, its in names.items() if its == name and other != what]:
            raise ValueError(f"door header {name!r} tells both {what} and {twice[0]}: give each a name of its own")
    return names


def parser_of(names: Mapping[str, str]) -> Callable[[SourceRecord], Parsed]:
    """Return a function that turns a record into its command, or into the reason for refusing it."""
    expiry, delay, millis = names["expiry"], names["delay"], names["millis"]
    topic, key, token, reply = names["topic"], names["key"], names["token"], names["reply-topic"]
    partition, partition_key, tombstone = names["partition"], names["partition-key"], names["tombstone"]
    own = frozenset(names.values())

    def parse(record: SourceRecord) -> Parsed:
        timer_id, headers = record.key, headers_by_name(record)
        if not timer_id:
            return Refusal.KEY_MISSING
        if record.value is None:
            return cancel_command(timer_id, headers.get(reply))
        due_ms = _due_ms(headers.get(expiry), headers.get(delay), headers.get(millis), record.timestamp)
        if isinstance(due_ms, Refusal):
            return due_ms
        callback_topic = headers.get(topic)
        if not callback_topic:
            return Refusal.TOPIC_MISSING
        number = partition_in(headers[partition]) if partition in headers else None
        if isinstance(number, Refusal) or (number is not None and partition_key in headers):
            return Refusal.PARTITION_INVALID
        future = pack_future(
            callBackTopic=callback_topic,
            callBackKey=headers.get(key),
            callBack=record.value,
            timerId=timer_id,
            token=headers.get(token),
            millis=due_ms % 1000,
            headers=forwarded_headers(record.headers, own),
            replyTopic=headers.get(reply),
            is_tombstone=headers.get(tombstone) in (b"1", b"true"),
            partition=number,
            partition_key=headers.get(partition_key),
        )
        return Command(due_ms // 1000, timer_id, future)

    return parse


def _due_ms(expiry: bytes | None, delay: bytes | None, millis: bytes | None, timestamp_ms: int) -> int | Refusal:
    """Return the due time in the headers, as UNIX milliseconds, or the reason for refusing it."""
    if delay:
        if expiry:
            return Refusal.EXPIRY_INVALID
        try:
            return moment_after(delay_ms_of(delay.decode("ascii")) / 1000, timestamp_ms / 1000)
        except WhenError:
            return Refusal.EXPIRY_OUT_OF_RANGE
        except ValueError:
            return Refusal.DELAY_INVALID
    if not expiry:
        return Refusal.EXPIRY_MISSING
    if not _seconds_match(expiry):
        moment_ms = rfc3339_ms(expiry) if b"T" in expiry else Refusal.EXPIRY_INVALID
        return Refusal.EXPIRY_INVALID if isinstance(moment_ms, Refusal) else moment_ms
    whole, _, fraction = expiry.partition(b".")
    number = int(whole)
    if number >= SECOND_LIMIT:
        return Refusal.EXPIRY_INVALID if fraction else number
    if fraction:
        try:
            return moment_at(float(expiry)) if number else Refusal.EXPIRY_INVALID
        except WhenError:
            # As a float it may be rounded up to the limit.
            return Refusal.EXPIRY_OUT_OF_RANGE
    within = number_in(millis or b"0")
    if within is None or within > 999:
        return Refusal.MILLIS_OUT_OF_RANGE
    return number * 1000 + within if number else Refusal.EXPIRY_INVALID


parse = parser_of(NAMES)
