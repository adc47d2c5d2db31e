"""
The door for countdowns: a record that says how long it wants to be held back.

    value             {"topic": "T", "message": "<body>", "countdown": 120}, seconds from the record's timestamp
    CALLER_SERVICE    header: who asks

All headers pass on to the callback, which has no key, as the message itself names none.

Source: "Implementing delayed message support with Apache Kafka" (agrim mittal).
"""

import json
from collections import Counter

from kafka_timers.adapters.commands import Ask, Asked, Reason, Record, first_of, future_of, passed_on
from kafka_timers.core.wire import SECOND_LIMIT

_CALLER = "CALLER_SERVICE"


def ask(record: Record) -> Asked:
    """Return what a countdown asks for."""
    if not record.value:
        return Reason.VALUE_MISSING
    try:
        body = json.loads(record.value)
    except (ValueError, RecursionError):
        return Reason.VALUE_NOT_COUNTDOWN
    if not isinstance(body, dict):
        return Reason.VALUE_NOT_COUNTDOWN
    topic, message, countdown_s = body.get("topic"), body.get("message"), body.get("countdown")
    if not isinstance(topic, str) or not isinstance(message, str):
        return Reason.VALUE_NOT_COUNTDOWN
    if isinstance(countdown_s, bool) or not isinstance(countdown_s, int | float):
        return Reason.VALUE_NOT_COUNTDOWN
    if not topic:
        return Reason.TOPIC_MISSING
    # One comparison refuses NaN too.
    if not 0 <= countdown_s < SECOND_LIMIT:
        return Reason.EXPIRY_OUT_OF_RANGE
    # The first whole second that is not before the end of the countdown.
    second = int(-((record.timestamp + countdown_s * 1000) // -1000))
    if not 0 < second < SECOND_LIMIT:
        return Reason.EXPIRY_OUT_OF_RANGE
    future = future_of(callBackTopic=topic, callBack=message.encode(), headers=passed_on(record))
    return Ask(second, None, future)


class Callers:
    """
    Who asks, and whether they may.

    Args:
        required: a record must name its caller.
        limit: most requests of one caller in one second of the records' timestamps; 0 is no limit.

    Attributes:
        asked: requests by caller, until somebody takes them away.
    """

    def __init__(self, *, required: bool, limit: int) -> None:
        self.asked: Counter[str] = Counter()
        self._required = required
        self._limit = limit
        self._second = 0
        self._in_second: Counter[str] = Counter()

    def refuse(self, record: Record) -> Reason | None:
        """Take note of *record*, the next of its partition, and return why its caller may not ask."""
        caller = (first_of(record).get(_CALLER) or b"").decode("utf-8", "replace")
        if self._required and not caller:
            return Reason.CALLER_MISSING
        # By the log's own time, so that a backlog that is read in one go is no burst.
        if record.timestamp // 1000 > self._second:
            self._second = record.timestamp // 1000
            self._in_second.clear()
        self._in_second[caller] += 1
        if 0 < self._limit < self._in_second[caller]:
            return Reason.CALLER_OVER_LIMIT
        self.asked[caller] += 1
        return None
