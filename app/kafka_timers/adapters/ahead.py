"""
What lies further on in a topic that is taken over, so that a schedule which is past due fires only if it is the last.
"""

import asyncio
from collections.abc import Callable, Mapping
from enum import StrEnum

from kafka_timers.adapters.commands import Command, Parsed, SourceRecord
from kafka_timers.adapters.keeping import Keeping, Last
from kafka_timers.adapters.source import SourceLog
from kafka_timers.broker.bounds import LogBounds
from kafka_timers.broker.cluster import Cluster

__all__ = ["last_offsets"]

# Some 5 ms of work between two turns of the event loop.
_STRIDE_RECORDS = 250


async def last_offsets(
    cluster: Cluster,
    topic: str,
    number: int,
    backlog: tuple[int, int],
    parse: Callable[[SourceRecord], Parsed | StrEnum],
    due_s: float,
    keeping: Keeping | None,
    *,
    is_new: bool,
) -> dict[bytes, int]:
    """
    Return the offset of the last version of each timer of a partition that may be due, by its name.

    It is the end of the backlog for versions that another partition says are done or replaced. For where *keeping* is
    given, ids are those of a whole topic, and the scheduler's producer may hash otherwise than those of its users: then
    its tombstones lie in another partition than their schedules.

    Args:
        cluster: to ask.
        topic: name.
        number: of the partition.
        backlog: the offset with which it begins, and the one behind it.
        parse: returns the command of a record.
        due_s: UNIX seconds: what is due later is left out, unless it replaces what is not.
        keeping: how the scheduler keeps its schedules; None where nothing but later versions ends one.
        is_new: whether the door has read nothing of the topic before.
    """
    start, end = backlog
    source = SourceLog(cluster, topic, number, start, f"reading ahead {number}")
    try:
        last = await _last_versions(source, end, parse, due_s, keeping, is_new=is_new)
    finally:
        await source.close()
    latest = {name: each.offset for name, each in last.items()}
    if keeping is not None:
        latest |= dict.fromkeys(await _superseded_elsewhere(cluster, topic, number, keeping, last), end)
    return latest


async def _last_versions(
    source: SourceLog,
    end: int,
    parse: Callable[[SourceRecord], Parsed | StrEnum],
    due_s: float,
    keeping: Keeping | None,
    *,
    is_new: bool,
) -> dict[bytes, Last]:
    last: dict[bytes, Last] = {}
    while source.position < end:
        for record in await source.take(_STRIDE_RECORDS):
            command = parse(record)
            if isinstance(command, Command):
                if command.name is None:
                    continue
                is_due = command.second is not None and command.second <= due_s
                if is_due or command.name in last:
                    key = None if command.second is None else record.key
                    last[command.name] = Last(record.offset, key, record.timestamp, command.second)
            elif keeping and (ended := keeping.ended_by(record, command, is_new=is_new)):
                name, by_ms = ended
                due = last[name].second if name in last else None
                if due is not None and due * 1000 <= by_ms:
                    last[name] = Last(record.offset, None, record.timestamp, None)
        # Ticks and heartbeats get their turn.
        await asyncio.sleep(0)
    return last


async def _superseded_elsewhere(
    cluster: Cluster, topic: str, number: int, keeping: Keeping, last: Mapping[bytes, Last]
) -> list[bytes]:
    versions = {each.key: (name, each) for name, each in last.items() if each.key is not None}
    found: set[bytes] = set()
    bounds = LogBounds(cluster, topic)
    others = [other for other in cluster.partitions(topic) if other != number]
    for other in others if versions else ():
        start, end = (await bounds.starts([other]))[other], await bounds.end(other)
        source = SourceLog(cluster, topic, other, start, f"reading ahead of {number}")
        try:
            while source.position < end:
                for record in await source.take(_STRIDE_RECORDS):
                    if record.key in versions:
                        name, version = versions[record.key]
                        if keeping.is_later(record, version):
                            found.add(name)
                await asyncio.sleep(0)
        finally:
            await source.close()
    return sorted(found)
