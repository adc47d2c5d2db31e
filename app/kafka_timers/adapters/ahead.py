"""
What lies further on in a topic that is taken over, so that a schedule which is past due fires only if it is the last.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

from kafka_timers.adapters.commands import Command, Parsed, SourceRecord, headers_by_name
from kafka_timers.adapters.etf1 import FIRED_HEADER
from kafka_timers.adapters.source import SourceLog
from kafka_timers.broker.bounds import LogBounds
from kafka_timers.broker.cluster import Cluster
from kafka_timers.core.wire import number_in

__all__ = ["Last", "last_versions", "superseded_elsewhere"]

# Some 5 ms of work between two turns of the event loop.
_STRIDE_RECORDS = 250


class Last(NamedTuple):
    """
    The last version of a timer: its offset, key and UNIX milliseconds of its record, and its second.

    Key and second are None for what is cancelled, or has fired.
    """

    offset: int
    key: bytes | None
    timestamp_ms: int
    second: int | None


async def last_versions(
    source: SourceLog,
    end: int,
    parse: Callable[[SourceRecord], Parsed | StrEnum],
    due_s: float,
    fired: Callable[[SourceRecord], bytes | None] | None,
) -> dict[bytes, Last]:
    """
    Return the last version of each timer of a partition that may be due, by its name.

    Args:
        source: reads from where the backlog begins.
        end: offset behind the backlog.
        parse: returns the command of a record.
        due_s: UNIX seconds: what is due later is left out, unless it replaces what is not.
        fired: returns the name of the timer that a record says has fired here, None of any other record; None where
            no record says so. The last version is over by that if it was due by then; one that was moved on in time is
            not what has fired.
    """
    last: dict[bytes, Last] = {}
    while source.position < end:
        for record in await source.take(_STRIDE_RECORDS):
            command = parse(record)
            if isinstance(command, Command) and command.name is not None:
                is_due = command.second is not None and command.second <= due_s
                if is_due or command.name in last:
                    key = None if command.second is None else record.key
                    last[command.name] = Last(record.offset, key, record.timestamp, command.second)
            elif command is None and fired and (name := fired(record)) is not None and name in last:
                due = last[name].second
                if due is not None and due * 1000 <= record.timestamp:
                    last[name] = Last(record.offset, None, record.timestamp, None)
        # Ticks and heartbeats get their turn.
        await asyncio.sleep(0)
    return last


async def superseded_elsewhere(
    cluster: Cluster, topic: str, number: int, others: Iterable[int], last: Mapping[bytes, Last]
) -> list[bytes]:
    """
    Return the names of those *last* versions that etf1 has fired, or that were replaced, in another partition.

    Its ids are those of a whole topic. Its own producer hashes otherwise than Kafka's default, so its tombstones lie in
    another partition than the schedules of most clients. Such a tombstone names the second in which the schedule was
    written; of all else the later record counts.

    Args:
        cluster: to ask.
        topic: of the schedules.
        number: of the partition that they lie in.
        others: numbers of the other partitions.
        last: by name.
    """
    versions = {each.key: (name, each.timestamp_ms) for name, each in last.items() if each.key is not None}
    found: set[bytes] = set()
    bounds = LogBounds(cluster, topic)
    for other in others if versions else ():
        start, end = (await bounds.starts([other]))[other], await bounds.end(other)
        source = SourceLog(cluster, topic, other, start, f"reading ahead of {number}")
        try:
            while source.position < end:
                for record in await source.take(_STRIDE_RECORDS):
                    if record.key in versions:
                        name, timestamp_ms = versions[record.key]
                        if _is_later(record, timestamp_ms):
                            found.add(name)
                await asyncio.sleep(0)
        finally:
            await source.close()
    return sorted(found)


def _is_later(record: SourceRecord, timestamp_ms: int) -> bool:
    """Tell whether *record* says that what was written at *timestamp_ms* is done, or replaces it."""
    fired_s = number_in(headers_by_name(record).get(FIRED_HEADER)) if record.value is None else None
    return record.timestamp > timestamp_ms if fired_s is None else fired_s >= timestamp_ms // 1000
