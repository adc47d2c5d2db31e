"""
The door for schedules of etf1/kafka-message-scheduler.

    key               schedule id; a newer record takes the place of the older one, one without a value takes it back
    scheduler-epoch, scheduler-target-topic, scheduler-target-key        headers: when, where to, under which key

The callback has what that scheduler writes: the value, all headers of the schedule, and three that tell where it comes
from. When it fires, a tombstone on the schedule topic says that it is done; the door passes over those.

Source: https://github.com/etf1/kafka-message-scheduler, README.md and runner/kafka/handler.go.
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
from kafka_timers.core.wire import REQUEST_HEADER


def ask(record: Record) -> Asked:
    """Return what a schedule asks for."""
    key, headers = record.key, first_of(record)
    if not key or not key.strip():
        return Reason.KEY_MISSING
    topic = record.topic.encode()
    timer_id = b"etf1:%b:%b" % (topic, key)
    if record.value is None:
        return None if REQUEST_HEADER in headers else take_back(timer_id)
    second = second_of(headers.get("scheduler-epoch"))
    if isinstance(second, Reason):
        return second
    target = headers.get("scheduler-target-topic")
    if not target:
        return Reason.TOPIC_MISSING
    future = future_of(
        callBackTopic=target,
        callBackKey=headers.get("scheduler-target-key"),
        callBack=record.value,
        timerId=timer_id,
        headers=[
            *passed_on(record),
            ("scheduler-timestamp", b"%d" % (record.timestamp // 1000)),
            ("scheduler-key", key),
            ("scheduler-topic", topic),
        ],
        tombstoneTopic=topic,
        tombstoneKey=key,
        tombstonePartition=record.partition,
    )
    return Ask(second, timer_id, future)
