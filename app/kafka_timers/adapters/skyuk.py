"""
The adapter for schedules of sky-uk/kafka-message-scheduler.

    key       schedule id; a newer record replaces the older one, a record without a value cancels it
    value     the schedule: time, topic, key, value (null for a tombstone) and headers of the callback. As JSON with
              base64 for bytes, or in Avro's plain binary encoding, without file header or schema registry framing

The callback holds the contents of the schedule and nothing else of the record. After firing, a tombstone on the
schedule topic marks the schedule as done. The adapter ignores these tombstones, and those that the scheduler itself
writes.

We read Avro without a library: the schema has five fields that never change, and that scheduler knows no other. A
library would add a compiled dependency to each worker to save the thirty lines of `_Bytes`. We would still have to turn
its errors on damaged bytes, and its silence about extra bytes, into refusals.

    record {long time (UNIX milliseconds); string topic; bytes key; union {null, bytes} value; map<bytes> headers}

Before its version 0.20 there were no headers. Schedules without them are still read, there and here.

Source: https://github.com/sky-uk/kafka-message-scheduler, README.md, and the code there of `AvroSchedule`,
`JsonSchedule`, `ScheduleQueue` and `Scheduler`; the Avro specification, section on its binary encoding.
"""

import binascii
import json
import re
from collections.abc import Mapping
from typing import NamedTuple

from kafka_timers.adapters.commands import (
    Command,
    Parsed,
    Refusal,
    SourceRecord,
    cancel_command,
    forwarded_headers,
    pack_future,
)
from kafka_timers.adapters.keeping import Keeping, Last, is_own, timer_id_of
from kafka_timers.core.keys import FIRST_MS
from kafka_timers.core.wire import HOPS_HEADER, REQUEST_HEADER, SECOND_LIMIT

_NAME = "skyuk"
# On its tombstones since version 1.0. Earlier tombstones look as if a user had deleted the schedule.
_FIRED_HEADER, _FIRED_VALUE = "schedule:expired", b"true"
# That scheduler sleeps by its own clock, and so may write a tombstone a little before the schedule's time.
_EARLY_MS = 60_000
_ROUND = (REQUEST_HEADER, HOPS_HEADER)

_TIME_MAX = (1 << 63) - 1
_LAST_MS = SECOND_LIMIT * 1000 - 1
# A long has 64 bits, in groups of seven.
_SHIFT_MAX = 63
_begins_json = re.compile(rb"[ \t\r\n]*\{").match


class _Schedule(NamedTuple):
    """A schedule. Topic and header names may be invalid UTF-8."""

    time_ms: int
    topic: bytes
    key: bytes
    value: bytes | None
    headers: Mapping[bytes, bytes]


def parse(record: SourceRecord) -> Parsed:
    """Return the command for *record*, a schedule, or the reason for refusing it."""
    if record.key is None:
        return Refusal.KEY_MISSING
    timer_id = timer_id_of(_NAME, record)
    if record.value is None:
        return None if is_own(record) or _fired_ms(record) is not None else cancel_command(timer_id)
    schedule = _schedule_in(record.value)
    if schedule is None:
        return Refusal.VALUE_NOT_SCHEDULE
    if not schedule.topic:
        return Refusal.TOPIC_MISSING
    # As in that scheduler, a past time is due at once, and a time beyond any clock never.
    due_ms = min(max(schedule.time_ms, FIRST_MS), _LAST_MS)
    # Headers of the record are not passed on, but its number of rounds counts.
    hops = [header for header in record.headers if header[0] in _ROUND]
    future = pack_future(
        callBackTopic=schedule.topic,
        callBackKey=schedule.key,
        callBack=schedule.value,
        is_tombstone=schedule.value is None,
        keeps_empty_key=True,
        millis=due_ms % 1000,
        timerId=timer_id,
        headers=forwarded_headers([*hops, *((name.decode(), value) for name, value in schedule.headers.items())]),
        tombstoneTopic=record.topic,
        tombstoneKey=record.key,
        tombstonePartition=record.partition,
    )
    return Command(due_ms // 1000, timer_id, future)


def _schedule_in(value: bytes) -> _Schedule | None:
    """Return the schedule in *value*; None if it is not one."""
    # Avro may begin with a brace too, for a time of 62 ms before the epoch.
    return (_of_json(value) if _begins_json(value) else None) or _of_avro(value)


# --- JSON ------------------------------------------------------------------------------------------------------------


def _of_json(value: bytes) -> _Schedule | None:
    try:
        body = json.loads(value.decode())
        topic, content, headers = body["topic"], body.get("value"), body.get("headers")
        if headers is None:
            headers = {}
        if not isinstance(topic, str) or not isinstance(headers, dict):
            return None
        return _Schedule(
            _time_in(body["time"]),
            _utf8(topic),
            _base64(body["key"]),
            None if content is None else _base64(content),
            {_utf8(name): _base64(header) for name, header in headers.items()},
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _time_in(value: object) -> int:
    # As in that scheduler, a number may stand in quotation marks, and 1.0 is an integer.
    number = json.loads(value) if isinstance(value, str) else value
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    if isinstance(number, bool) or not isinstance(number, int) or not -_TIME_MAX - 1 <= number <= _TIME_MAX:
        raise ValueError("no long")
    return number


def _utf8(text: str) -> bytes:
    # Half of a surrogate pair gives invalid UTF-8, and is refused for that.
    return text.encode("utf-8", "surrogatepass")


def _base64(text: object) -> bytes:
    if not isinstance(text, str):
        raise TypeError("no text")
    # As in that scheduler, the padding may be missing.
    padded = text if text.endswith("=") else text + "=" * (-len(text) % 4)
    return binascii.a2b_base64(padded, strict_mode=True)


# --- Avro ------------------------------------------------------------------------------------------------------------


def _of_avro(value: bytes) -> _Schedule | None:
    left = _Bytes(value)
    try:
        time_ms, topic, key = left.long(), left.content(), left.content()
        # The branch of the union.
        has_value = left.long()
        if has_value not in (0, 1):
            return None
        content = left.content() if has_value else None
        schedule = _Schedule(time_ms, topic, key, content, {} if left.is_empty else left.contents())
    except (ValueError, IndexError):
        return None
    return schedule if left.is_empty else None


class _Bytes:
    """Reads Avro's binary encoding from its beginning. Raises ValueError or IndexError if the bytes are invalid."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def is_empty(self) -> bool:
        return self._at == len(self._data)

    def long(self) -> int:
        number, shift = 0, 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            number |= (byte & 127) << shift
            if byte < 128:
                break
            shift += 7
            if shift > _SHIFT_MAX:
                raise ValueError("too long")
        if number >> 64:
            raise ValueError("too large")
        # Zigzag: 0, -1, 1, -2 and so on.
        return number >> 1 ^ -(number & 1)

    def content(self) -> bytes:
        size = self.long()
        begin = self._at
        if not 0 <= size <= len(self._data) - begin:
            raise ValueError("ends too early")
        self._at = begin + size
        return self._data[begin : self._at]

    def contents(self) -> dict[bytes, bytes]:
        found = {}
        while count := self.long():
            if count < 0:
                # The size of the block follows, for readers that skip it.
                count = -count
                self.long()
            for _ in range(count):
                name = self.content()
                found[name] = self.content()
        return found


# --- schedules that have fired there ----------------------------------------------------------------------------------


def _fired_ms(record: SourceRecord) -> int | None:
    """
    If *record* is a tombstone of that scheduler, return the UNIX millisecond by which its schedule was due; else None.
    """
    if record.value is not None:
        return None
    is_fired = any(
        name.lower() == _FIRED_HEADER and (value or b"").lower() == _FIRED_VALUE for name, value in record.headers
    )
    return record.timestamp + _EARLY_MS if is_fired else None


def _is_later(record: SourceRecord, last: Last) -> bool:
    """
    Tell whether *record* shows that *last* is done, or replaces it.

    A tombstone does not say which version has fired. A version that is due long after it has not:

        version 1, due at 10:00     version 2, due at 11:00, written at 09:59:59.9     tombstone of 10:00:00.1
    """
    if record.timestamp <= last.timestamp_ms:
        return False
    by_ms = record.timestamp if record.value is None and is_own(record) else _fired_ms(record)
    return by_ms is None or (last.second is not None and last.second * 1000 <= by_ms)


KEEPING = Keeping(
    _NAME,
    # That scheduler fires all past schedules. Schedules that it cannot read stay on the topic, where they do no harm.
    ended=frozenset((Refusal.PAST_GRACE, Refusal.TOO_MANY_HOPS)),
    # A record that it cannot read cancels the version before.
    superseding=frozenset(Refusal),
    fired_ms=_fired_ms,
    is_later=_is_later,
)
