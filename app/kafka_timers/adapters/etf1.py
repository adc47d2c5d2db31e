"""
The adapter for schedules of etf1/kafka-message-scheduler.

    key               schedule id; a newer record replaces the older one, a record without a value cancels it
    scheduler-epoch, scheduler-target-topic, scheduler-target-key        headers: when, where to, under which key

The callback has what that scheduler writes: the value, all headers of the schedule, and three that tell where it comes
from. When it fires, a tombstone on the schedule topic says that it is done; the adapter passes over those.

Source: https://github.com/etf1/kafka-message-scheduler, README.md and runner/kafka/handler.go.
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
from kafka_timers.core.wire import REASON_HEADER, REQUEST_HEADER

# On its own tombstones etf1 tells of which schedule they are: the second in which that was written.
FIRED_HEADER = "scheduler-timestamp"
_ORIGIN = (FIRED_HEADER, "scheduler-key", "scheduler-topic")
# Why schedules are refused that etf1 takes off its topic. What it would have fired stays there.
ENDED = frozenset(
    (
        Refusal.EXPIRY_MISSING,
        Refusal.EXPIRY_NOT_A_SECOND,
        Refusal.TOPIC_MISSING,
        Refusal.PAST_GRACE,
        Refusal.TOO_MANY_HOPS,
    )
)
# One of these is on our own tombstones, of what has fired and of what was refused.
_OWN = {REQUEST_HEADER, REASON_HEADER}


def fired_here(record: SourceRecord) -> bytes | None:
    """Return the id of the timer whose firing *record*, our own tombstone, tells of; None for any other record."""
    if record.value is not None or not record.key or REQUEST_HEADER not in headers_by_name(record):
        return None
    return _timer_id(record.topic.encode(), record.key)


def _timer_id(topic: bytes, key: bytes) -> bytes:
    return b"etf1:%b:%b" % (topic, key)


def parse(record: SourceRecord) -> Parsed:
    """Return the command that *record*, a schedule, stands for, or why it is refused."""
    key, headers = record.key, headers_by_name(record)
    if not key or not key.strip():
        return Refusal.KEY_MISSING
    topic = record.topic.encode()
    timer_id = _timer_id(topic, key)
    if record.value is None:
        return None if _OWN & headers.keys() else cancel_command(timer_id)
    second = expiry_in(headers.get("scheduler-epoch"))
    if isinstance(second, Refusal):
        return second
    target = headers.get("scheduler-target-topic")
    if not target:
        return Refusal.TOPIC_MISSING
    future = pack_future(
        callBackTopic=target,
        callBackKey=headers.get("scheduler-target-key"),
        callBack=record.value,
        timerId=timer_id,
        headers=[
            # One that comes round, as the callback of a schedule for its own topic, has those of the time before.
            *forwarded_headers(record, _ORIGIN if REQUEST_HEADER in headers else ()),
            *zip(_ORIGIN, (b"%d" % (record.timestamp // 1000), key, topic), strict=True),
        ],
        tombstoneTopic=topic,
        tombstoneKey=key,
        tombstonePartition=record.partition,
    )
    return Command(second, timer_id, future)
