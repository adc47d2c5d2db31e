"""
The adapter for any client without protobuf: a timer in the headers of a plain record.

    key                     the timer's id, as in `Future.timerId`; a later record with it moves or cancels the timer
    value                   of the callback; a record without one cancels the timer
    timer-expiry            header: UNIX seconds in ASCII
    timer-millis            header: of that second, 0 to 999 in ASCII; 0 if it is not there
    timer-callback-topic, timer-callback-key, timer-token, timer-reply-topic        headers: as the fields of a Future

All other headers pass on to the callback.
"""

from kafka_timers.adapters.commands import (
    Command,
    Parsed,
    Refusal,
    SourceRecord,
    cancel_command,
    expiry_in,
    forwarded_headers,
    headers_by_name,
    pack_future,
)
from kafka_timers.core.wire import EXPIRY_HEADER, MILLIS_HEADER, TOKEN_HEADER, number_in

_TOPIC, _KEY, _REPLY = "timer-callback-topic", "timer-callback-key", "timer-reply-topic"


def parse(record: SourceRecord) -> Parsed:
    """Return the command that *record* stands for, or why it is refused."""
    timer_id, headers = record.key, headers_by_name(record)
    if not timer_id:
        return Refusal.KEY_MISSING
    if record.value is None:
        return cancel_command(timer_id, headers.get(_REPLY))
    second = expiry_in(headers.get(EXPIRY_HEADER))
    if isinstance(second, Refusal):
        return second
    millis = number_in(headers.get(MILLIS_HEADER) or b"0")
    if millis is None or millis > 999:
        return Refusal.MILLIS_OUT_OF_RANGE
    topic = headers.get(_TOPIC)
    if not topic:
        return Refusal.TOPIC_MISSING
    future = pack_future(
        callBackTopic=topic,
        callBackKey=headers.get(_KEY),
        callBack=record.value,
        timerId=timer_id,
        token=headers.get(TOKEN_HEADER),
        millis=millis,
        headers=forwarded_headers(record, (_TOPIC, _KEY, _REPLY)),
        replyTopic=headers.get(_REPLY),
    )
    return Command(second, timer_id, future)
