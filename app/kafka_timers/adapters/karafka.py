"""
The adapter for Karafka's Scheduled Messages.

    key                     key of the envelope, unique within its partition; a newer record replaces the older one
    schedule_source_type    header: schedule; cancel or tombstone cancel the timer of the key
    schedule_target_epoch, schedule_target_topic, schedule_target_key       headers: time, topic and key of the callback

The callback equals the message that Karafka dispatches: value and headers unchanged, plus headers about its origin. The
adapter writes no tombstones, because Karafka cannot read tombstones without its own headers.

Source: https://karafka.io/docs/Pro-Scheduled-Messages and the API pages of Karafka::Pro::ScheduledMessages.
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
    partition_in,
)
from kafka_timers.core.wire import number_in

# Version of the schema. Karafka accepts this version and older ones.
_VERSION = (1, 0, 0)
_TRACE = ("schedule_source_topic", "schedule_source_partition", "schedule_source_offset", "schedule_source_key")


def parse(record: SourceRecord) -> Parsed:
    """Return the command for *record*, an envelope, or the reason for refusing it."""
    key, headers = record.key, headers_by_name(record)
    if not key:
        return Refusal.KEY_MISSING
    if not _is_known(headers.get("schedule_schema_version")):
        return Refusal.VERSION_UNKNOWN
    topic, partition = record.topic.encode(), b"%d" % record.partition
    timer_id = b"karafka:%b:%b:%b" % (topic, partition, key)
    kind = headers.get("schedule_source_type")
    if kind in (b"cancel", b"tombstone"):
        return cancel_command(timer_id)
    if kind != b"schedule":
        return Refusal.TYPE_UNKNOWN
    second = expiry_in(headers.get("schedule_target_epoch"))
    if isinstance(second, Refusal):
        return second
    target, target_key = headers.get("schedule_target_topic"), headers.get("schedule_target_key")
    if not target:
        return Refusal.TOPIC_MISSING
    to, partition_key = headers.get("schedule_target_partition"), headers.get("schedule_target_partition_key")
    number = None if to is None else partition_in(to)
    if isinstance(number, Refusal):
        return number
    origin = (topic, partition, b"%d" % record.offset, key)
    future = pack_future(
        callBackTopic=target,
        callBackKey=target_key,
        callBack=record.value,
        is_tombstone=record.value is None,
        partition=number,
        # A given partition wins over the partition key.
        partition_key=None if partition_key == target_key or to is not None else partition_key,
        timerId=timer_id,
        headers=[*forwarded_headers(record.headers, _TRACE), *zip(_TRACE, origin, strict=True)],
    )
    return Command(second, timer_id, future)


def _is_known(version: bytes | None) -> bool:
    numbers = [number_in(part) for part in (version or b"").split(b".")]
    known = tuple([number for number in numbers if number is not None])
    return len(known) == len(numbers) == len(_VERSION) and known <= _VERSION
