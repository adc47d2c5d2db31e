"""
Requests that have left the request log, as after too short a retention, and wait in a store alone.

Such a store is the only copy. Its worker tells the group, which leaves the partition to it (`placement`), and the seals
say how many there are. A partition's owner counts them. For stores that no owner has open, the seals tell what to look
for: requests below the log's begin that wait, and that the store has read.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping
from typing import Protocol

from kafka_timers.core import rows as batches
from kafka_timers.core.keys import count_of, first_key
from kafka_timers.core.partition import Partition
from kafka_timers.core.takeover import may_wait_below
from kafka_timers.errors import NewerFormatError
from kafka_timers.worker.damage import is_of_the_disk
from kafka_timers.worker.follower import Follower
from kafka_timers.worker.shared import Ports

log = logging.getLogger(__name__)

# Requests that are looked at before others get their turn.
_AT_ONCE = 2_000


class _Owner(Protocol):
    async def watch_log(self, start: int) -> None: ...


async def look_for(ports: Ports, numbers: Collection[int]) -> None:
    """
    Note which stores of the partitions *numbers* have requests that wait and have left the log. No owner has them open.

    Raises:
        KafkaError: the bounds of the log cannot be read.
        BrokerError: the seals cannot be read.
    """
    for number, start in (await ports.bounds.starts(numbers)).items():
        # Nothing has ever left most logs, so their seals need not be read.
        if start:
            await _look_for(ports, number, start)


async def _look_for(ports: Ports, number: int, start: int) -> None:
    alone, seals = ports.stores.alone, (await ports.seals.tail(number)).seals
    position, without = alone.get(number, 0), Partition(number, ports.settings.horizon_s)
    try:
        without.acquire(seals, None)
        lacks = start > without.position and may_wait_below(seals, start)
        if lacks and not position:
            head = await ports.stores.head(number)
            position = head.position if head and not await ports.log.is_other(number, head.log) else 0
    except Exception as error:
        # The takeover meets it too, and tells it.
        if not (isinstance(error, NewerFormatError) or is_of_the_disk(error)):
            raise
        lacks = False
    if lacks and position > without.position:
        alone[number] = position
    else:
        alone.pop(number, None)


async def watch(ports: Ports, owners: Mapping[int, _Owner]) -> None:
    """
    Look where the request log begins now, for the *owners* of partitions and for the other stores on this disk.

    Raises:
        KafkaError: the bounds of the log cannot be read.
        BrokerError: the seals cannot be read.
    """
    for number, start in (await ports.bounds.starts([*owners])).items():
        if owner := owners.get(number):
            await owner.watch_log(start)
    await look_for(ports, [number for number in ports.stores.alone if number not in owners])


async def count(ports: Ports, follower: Follower, start: int) -> None:
    """
    Count the requests that wait in the open store of *follower* and lie below *start*, where the log begins now.

    The follower is told of a fault of the store.
    """
    partition, number = follower.partition, follower.partition.number
    before = partition.held_alone
    try:
        held = await _held_below(ports, follower, start) if start > partition.restore_from else 0
        if held is None:
            return
        if not held:
            ports.stores.alone.pop(number, None)
        elif ports.stores.alone.get(number, 0) < start:
            # What is in memory was to be read from the log again after a crash.
            follower.store.flush()
            ports.stores.alone[number] = partition.position
    except Exception as error:
        follower.fail(error)
        return
    partition.begins_at(start, held)
    ports.metrics.log_gap.labels(number).set(bool(held or partition.lost))
    if held and not before:
        log.error("%s", problem_of(ports, partition))


async def _held_below(ports: Ports, follower: Follower, start: int) -> int | None:
    """Return how many requests wait below *start*; None if the store was closed meanwhile, before all was seen."""
    store, held, seen = follower.store, 0, 0
    # A sweep that the log still has repeats what lies below.
    swept = follower.partition.head.swept
    gone = range(swept.below if swept.since >= start else 0, start)
    for key, row in store.rows(first_key(follower.partition.sealed_ms), b"\xff"):
        held += batches.count_at(key, row, gone)
        seen += count_of(key)
        if seen >= _AT_ONCE:
            seen = 0
            await ports.gate.over_soon()
            await asyncio.sleep(0)
    return held if store.is_open else None


def problem_of(ports: Ports, partition: Partition) -> str | None:
    """Return what the request log has lost of a partition that waits, or waited; None if it has everything."""
    number, topic, lost = partition.number, ports.names.requests, partition.lost
    if partition.held_alone:
        return (
            f"partition {number}: {partition.held_alone} timers have left {topic} and wait in the store of "
            f"{ports.name} alone: keep its disk until they have fired, and look at the topic's retention"
        )
    if lost:
        return (
            f"partition {number}: {topic} has lost its offsets {lost.start} to {lost.stop - 1}, and no store had the "
            "timers that waited there: their senders have to send them again"
        )
    return None
