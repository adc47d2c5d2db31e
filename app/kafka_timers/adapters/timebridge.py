"""
The adapter for messages of kafka-timebridge.

    X-Timebridge-When     header: due time, as RFC 3339
    X-Timebridge-Where    header: topic of the callback

Key, value and all other headers are passed on to the callback.

Source: https://github.com/martavoi/kafka-timebridge, README.md and timebridge/acceptor.go.
"""

from kafka_timers.adapters.commands import (
    Command,
    Parsed,
    Refusal,
    SourceRecord,
    forwarded_headers,
    pack_future,
    rfc3339_ms,
)

_WHEN, _WHERE = "X-Timebridge-When", "X-Timebridge-Where"


def parse(record: SourceRecord) -> Parsed:
    """Return the command for *record*, or the reason for refusing it."""
    # If headers share a name, the last counts.
    headers = dict(record.headers)
    when, where = headers.get(_WHEN), headers.get(_WHERE)
    if not when:
        return Refusal.EXPIRY_MISSING
    if not where:
        return Refusal.TOPIC_MISSING
    due_ms = rfc3339_ms(when)
    if isinstance(due_ms, Refusal):
        return due_ms
    headers_on = forwarded_headers(record.headers, (_WHEN, _WHERE))
    future = pack_future(
        callBackTopic=where,
        callBackKey=record.key,
        callBack=record.value,
        is_tombstone=record.value is None,
        millis=due_ms % 1000,
        headers=headers_on,
    )
    return Command(due_ms // 1000, record.key or None, future)
