"""
The adapter for schedules of etf1/kafka-message-scheduler.

    key               schedule id; a newer record replaces the older one, a record without a value cancels it
    scheduler-epoch, scheduler-target-topic, scheduler-target-key        headers: time, topic and key of the callback

The callback equals the one that etf1 writes: the value, all headers of the schedule, and three headers about its
origin. After firing, a tombstone on the schedule topic marks the schedule as done. The adapter ignores these
tombstones.

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
from kafka_timers.adapters.keeping import Keeping, Last, is_own, timer_id_of
from kafka_timers.core.wire import REQUEST_HEADER, number_in

_NAME = "etf1"
# etf1's own tombstones name their schedule by the second in which it was written.
_FIRED_HEADER = "scheduler-timestamp"
_ORIGIN = (_FIRED_HEADER, "scheduler-key", "scheduler-topic")


def parse(record: SourceRecord) -> Parsed:
    """Return the command for *record*, a schedule, or the reason for refusing it."""
    key, headers = record.key, headers_by_name(record)
    if not key or not key.strip():
        return Refusal.KEY_MISSING
    topic = record.topic.encode()
    timer_id = timer_id_of(_NAME, record)
    if record.value is None:
        return None if is_own(record) else cancel_command(timer_id)
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
            # A callback that is itself a schedule, on the topic of this door, has these headers from the round before.
            *forwarded_headers(record.headers, _ORIGIN if REQUEST_HEADER in headers else ()),
            *zip(_ORIGIN, (b"%d" % (record.timestamp // 1000), key, topic), strict=True),
        ],
        tombstoneTopic=topic,
        tombstoneKey=key,
        tombstonePartition=record.partition,
    )
    return Command(second, timer_id, future)


def _fired_ms(_: SourceRecord) -> None:
    """Return None: in their own partition etf1's tombstones act as cancels, so earlier versions are done."""


def _is_later(record: SourceRecord, last: Last) -> bool:
    """
    Tell whether *record* shows that *last* is done, or replaces it.

    A tombstone of etf1 names the second in which the schedule was written. For all other records the later one counts.
    """
    fired_s = number_in(headers_by_name(record).get(_FIRED_HEADER)) if record.value is None else None
    return record.timestamp > last.timestamp_ms if fired_s is None else fired_s >= last.timestamp_ms // 1000


KEEPING = Keeping(
    _NAME,
    # Schedules that etf1 removes from its topic. Schedules that it would have fired stay there.
    ended=frozenset(
        (
            Refusal.EXPIRY_MISSING,
            Refusal.EXPIRY_NOT_A_SECOND,
            Refusal.TOPIC_MISSING,
            Refusal.PAST_GRACE,
            Refusal.TOO_MANY_HOPS,
        )
    ),
    superseding=frozenset((Refusal.PAST_GRACE,)),
    fired_ms=_fired_ms,
    is_later=_is_later,
)
