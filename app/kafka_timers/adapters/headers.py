"""
The door for any client without protobuf: a timer in the headers of a plain record.

    key                     the timer's id, as in `Future.timerId`: who knows it takes the timer back or moves it
    value                   of the callback; a record without one takes the timer back
    timer-expiry            header: UNIX seconds in ASCII
    timer-callback-topic, timer-callback-key, timer-token, timer-reply-topic        headers: as the fields of a Future

All other headers pass on to the callback.
"""

from kafka_timers.adapters.commands import (
    Ask,
    Asked,
    Reason,
    Record,
    first_of,
    future_of,
    passed_on,
    second_of,
    take_back,
)
from kafka_timers.core.wire import EXPIRY_HEADER, TOKEN_HEADER

_TOPIC, _KEY, _REPLY = "timer-callback-topic", "timer-callback-key", "timer-reply-topic"


def ask(record: Record) -> Asked:
    """Return what a record asks for."""
    timer_id, headers = record.key, first_of(record)
    if not timer_id:
        return Reason.KEY_MISSING
    if record.value is None:
        return take_back(timer_id, headers.get(_REPLY))
    second = second_of(headers.get(EXPIRY_HEADER))
    if isinstance(second, Reason):
        return second
    topic = headers.get(_TOPIC)
    if not topic:
        return Reason.TOPIC_MISSING
    future = future_of(
        callBackTopic=topic,
        callBackKey=headers.get(_KEY),
        callBack=record.value,
        timerId=timer_id,
        token=headers.get(TOKEN_HEADER),
        headers=passed_on(record, (_TOPIC, _KEY, _REPLY)),
        replyTopic=headers.get(_REPLY),
    )
    return Ask(second, timer_id, future)
