"""
The adapter for messages of kafka-timebridge.

    X-Timebridge-When     header: when, as RFC 3339
    X-Timebridge-Where    header: the topic

Key, value and all other headers pass on to the callback.

Source: https://github.com/martavoi/kafka-timebridge, README.md and timebridge/acceptor.go.
"""

import re
from datetime import datetime

from kafka_timers.adapters.commands import Command, Parsed, Refusal, SourceRecord, forwarded_headers, pack_future
from kafka_timers.client.request import moment_at
from kafka_timers.errors import WhenError

_WHEN, _WHERE = "X-Timebridge-When", "X-Timebridge-Where"

_rfc3339_matches = re.compile(
    rb"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})"
).fullmatch


def parse(record: SourceRecord) -> Parsed:
    """Return the command that *record* stands for, or why it is refused."""
    # Of headers that share a name, the last.
    headers = dict(record.headers)
    when, where = headers.get(_WHEN), headers.get(_WHERE)
    if not when:
        return Refusal.EXPIRY_MISSING
    if not where:
        return Refusal.TOPIC_MISSING
    if record.value is None:
        return Refusal.VALUE_MISSING
    if not _rfc3339_matches(when):
        return Refusal.EXPIRY_NOT_RFC3339
    try:
        due_ms = moment_at(datetime.fromisoformat(when.decode()))
    except WhenError:
        return Refusal.EXPIRY_OUT_OF_RANGE
    except ValueError:
        # Such as the 30th of February.
        return Refusal.EXPIRY_NOT_RFC3339
    headers_on = forwarded_headers(record, (_WHEN, _WHERE))
    future = pack_future(
        callBackTopic=where, callBackKey=record.key, callBack=record.value, millis=due_ms % 1000, headers=headers_on
    )
    return Command(due_ms // 1000, record.key or None, future)
