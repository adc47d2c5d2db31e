"""
The adapter for countdowns: records that say how long to hold them back.

    value             {"topic": "T", "message": "<body>", "countdown": 120}, seconds from the record's timestamp
    CALLER_SERVICE    header: name of the caller

All headers are passed on to the callback. The callback has no key, because the message names none.

Source: "Implementing delayed message support with Apache Kafka" (agrim mittal).
"""

import json
from collections import Counter

from kafka_timers.adapters.commands import (
    Command,
    Parsed,
    Refusal,
    SourceRecord,
    forwarded_headers,
    headers_by_name,
    pack_future,
)
from kafka_timers.core.moments import moment_after
from kafka_timers.errors import WhenError

_CALLER = "CALLER_SERVICE"
# Timestamps of several producers are out of order by less than this. A record that is further ahead counts only for its
# own second.
_DISORDER_S = 60


def parse(record: SourceRecord) -> Parsed:
    """Return the command for *record*, a countdown, or the reason for refusing it."""
    if not record.value:
        return Refusal.VALUE_MISSING
    try:
        body = json.loads(record.value)
    except (ValueError, RecursionError):
        return Refusal.VALUE_NOT_COUNTDOWN
    if not isinstance(body, dict):
        return Refusal.VALUE_NOT_COUNTDOWN
    topic, message, countdown_s = body.get("topic"), body.get("message"), body.get("countdown")
    if not isinstance(topic, str) or not isinstance(message, str):
        return Refusal.VALUE_NOT_COUNTDOWN
    if isinstance(countdown_s, bool) or not isinstance(countdown_s, int | float):
        return Refusal.VALUE_NOT_COUNTDOWN
    if not topic:
        return Refusal.TOPIC_MISSING
    try:
        due_ms = moment_after(countdown_s, record.timestamp / 1000)
    except WhenError:
        return Refusal.EXPIRY_OUT_OF_RANGE
    headers = forwarded_headers(record.headers)
    future = pack_future(callBackTopic=topic, callBack=message.encode(), millis=due_ms % 1000, headers=headers)
    return Command(due_ms // 1000, None, future)


class Callers:
    """
    Counts the requests of each caller, and refuses those above a limit or without a caller.

    Args:
        required: True if a record must name its caller.
        limit: most requests of one caller in one second of record timestamps; 0 for no limit.

    Attributes:
        counted: accepted requests by caller. The reader clears it once it has passed them on.
    """

    def __init__(self, *, required: bool, limit: int) -> None:
        self.counted: Counter[str] = Counter()
        self._required = required
        self._limit = limit
        self._second = 0
        self._in_second: Counter[str] = Counter()

    def refuse(self, record: SourceRecord) -> Refusal | None:
        """Count *record*, the next one of its partition. Return the reason for refusing it, or None."""
        caller = (headers_by_name(record).get(_CALLER) or b"").decode("utf-8", "replace")
        if self._required and not caller:
            return Refusal.CALLER_MISSING
        # Record timestamps are used, so that a backlog that is read in one go does not count as a burst.
        second = record.timestamp // 1000
        if not self._second - _DISORDER_S <= second <= self._second:
            self._second = second
            self._in_second.clear()
        self._in_second[caller] += 1
        if 0 < self._limit < self._in_second[caller]:
            return Refusal.CALLER_OVER_LIMIT
        self.counted[caller] += 1
        return None
