"""Reads ahead in a topic that is taken over, so that an overdue schedule fires only if it is the last version."""

from collections.abc import Callable, Mapping
from enum import StrEnum

from aiokafka.errors import KafkaError

from kafka_timers.adapters.commands import Command, Parsed, SourceRecord, headers_by_name
from kafka_timers.adapters.keeping import OVER_HEADER, Keeping, Last
from kafka_timers.adapters.source import SourceLog, read_through
from kafka_timers.broker.bounds import LogBounds
from kafka_timers.broker.cluster import Cluster

# If a partition sends nothing for so long, it has no leader.
_SILENT_S = 10.0
# Upper bound for the difference between the clocks of producers, which may have set the timestamps.
_CLOCKS_MS = 600_000


async def look_ahead(
    cluster: Cluster,
    topic: str,
    number: int,
    backlog: tuple[int, int],
    parse: Callable[[SourceRecord], Parsed | StrEnum],
    due_s: float,
    keeping: Keeping | None,
    *,
    is_new: bool,
) -> tuple[dict[bytes, int], dict[bytes, int], list[int]]:
    """
    Read ahead in a partition, and in the other partitions of the topic.

    With *keeping*, ids are unique in the whole topic, and the scheduler's own producer may choose other partitions than
    its users' producers. Its tombstones then lie in other partitions than their schedules.

    Args:
        backlog: first offset of the backlog, and the offset after it.
        due_s: UNIX seconds. Later timers are left out, unless they replace an earlier one.
        keeping: the scheduler's rules; None if only a later version ends a schedule.
        is_new: True if the door has never read this topic.

    Returns:
        The offset of the last version by timer name, for timers of the partition that may be due. It is the end of the
        backlog if another partition shows that the version is done or replaced. Then the offset by key of each of these
        versions that a tombstone in another partition has ended, and the other partitions that cannot be read.
    """
    start, end = backlog
    source = SourceLog(cluster, topic, number, start, f"reading ahead {number}")
    last: dict[bytes, Last] = {}

    def look_at(record: SourceRecord) -> None:
        command = parse(record)
        if isinstance(command, Command):
            is_due = command.second is not None and command.second <= due_s
            if command.name is not None and (is_due or command.name in last):
                key = None if command.second is None else record.key
                last[command.name] = Last(record.offset, key, record.timestamp, command.second)
        elif keeping and (ended := keeping.ended_by(record, command, is_new=is_new)):
            version = last.get(ended.name)
            if version and ended.is_over(version):
                last[ended.name] = Last(record.offset, None, record.timestamp, None)

    await read_through(source, end, look_at)
    latest = {name: each.offset for name, each in last.items()}
    if keeping is None:
        return latest, {}, []
    elsewhere, over, unread = await _look_elsewhere(cluster, topic, number, keeping, last)
    return latest | dict.fromkeys(elsewhere, end), over, unread


async def _look_elsewhere(
    cluster: Cluster, topic: str, number: int, keeping: Keeping, last: Mapping[bytes, Last]
) -> tuple[list[bytes], dict[bytes, int], list[int]]:
    """
    Return, of the *last* versions, the timer names of those that other partitions show to be done or replaced, and what
    `look_ahead` returns of them besides.
    """
    versions = {each.key: (name, each) for name, each in last.items() if each.key is not None}
    if not versions:
        return [], {}, []
    unread: list[int] = []
    found: set[bytes] = set()
    # Time of the last record of each key in other partitions, and whether it is a tombstone.
    latest: dict[bytes, tuple[int, bool]] = {}
    from_ms = min(each.timestamp_ms for _, each in versions.values()) - _CLOCKS_MS

    def look_at(record: SourceRecord) -> None:
        # Our own tombstone for a version that was over says nothing about other versions.
        if record.key not in versions or (record.value is None and OVER_HEADER in headers_by_name(record)):
            return
        if keeping.is_later(record, versions[record.key][1]):
            found.add(record.key)
        latest[record.key] = max(latest.get(record.key, (0, False)), (record.timestamp, record.value is None))

    for other in cluster.partitions(topic):
        if other == number:
            continue
        try:
            await _read(cluster, topic, other, from_ms, f"reading ahead of {number}", look_at)
        except (TimeoutError, KafkaError):
            unread.append(other)
    over = {key: versions[key][1].offset for key in sorted(found) if latest[key][1]}
    return [versions[key][0] for key in sorted(found)], over, unread


async def _read(
    cluster: Cluster, topic: str, number: int, from_ms: int, lane: str, look_at: Callable[[SourceRecord], None]
) -> None:
    """Call *look_at* with the records of a partition that were written at *from_ms* or later."""
    bounds = LogBounds(cluster, topic)
    start, end = await bounds.since(number, max(from_ms, 0)), await bounds.end(number)
    if start is not None:
        await read_through(SourceLog(cluster, topic, number, start, lane), end, look_at, limit_s=_SILENT_S)
