"""
The door for Karafka's Scheduled Messages.

    key                     of the envelope, unique within its partition; a newer record takes the older one's place
    schedule_source_type    header: schedule; cancel or tombstone take back what is scheduled under the key
    schedule_target_epoch, schedule_target_topic, schedule_target_key       headers: when, where to, under which key

The callback has what Karafka dispatches: value and headers untouched, and headers that tell where it comes from. It
writes no tombstones, which without Karafka's own headers Karafka could not read.

Source: https://karafka.io/docs/Pro-Scheduled-Messages and the API pages of Karafka::Pro::ScheduledMessages.
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

_VERSION = b"1.0.0"
_TRACE = ("schedule_source_topic", "schedule_source_partition", "schedule_source_offset", "schedule_source_key")


def ask(record: Record) -> Asked:
    """Return what an envelope asks for."""
    key, headers = record.key, first_of(record)
    if not key:
        return Reason.KEY_MISSING
    if headers.get("schedule_schema_version") != _VERSION:
        return Reason.VERSION_UNKNOWN
    topic, partition = record.topic.encode(), b"%d" % record.partition
    timer_id = b"karafka:%b:%b:%b" % (topic, partition, key)
    kind = headers.get("schedule_source_type")
    if kind in (b"cancel", b"tombstone"):
        return take_back(timer_id)
    if kind != b"schedule":
        return Reason.TYPE_UNKNOWN
    if record.value is None:
        return Reason.VALUE_MISSING
    second = second_of(headers.get("schedule_target_epoch"))
    if isinstance(second, Reason):
        return second
    target, target_key = headers.get("schedule_target_topic"), headers.get("schedule_target_key")
    if not target:
        return Reason.TOPIC_MISSING
    # A callback goes where its key says.
    if "schedule_target_partition" in headers or headers.get("schedule_target_partition_key", target_key) != target_key:
        return Reason.PARTITION_UNSUPPORTED
    origin = (topic, partition, b"%d" % record.offset, key)
    future = future_of(
        callBackTopic=target,
        callBackKey=target_key,
        callBack=record.value,
        timerId=timer_id,
        headers=[*passed_on(record, _TRACE), *zip(_TRACE, origin, strict=True)],
    )
    return Ask(second, timer_id, future)
