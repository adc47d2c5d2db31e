"""Reads records by place (topic, partition and offset) or by key."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.reading import TopicLog
from kafka_timers.broker.seals import SealLog
from kafka_timers.broker.topics import knowing
from kafka_timers.core.changes import to_take
from kafka_timers.core.sweep import is_of_a_sweep, repeated_in, sweeps_in
from kafka_timers.core.wire import Future, Record, Topics, future_from, latest
from kafka_timers.errors import BrokerError


async def request_at(kafka: Kafka, prefix: str, request: str, **options: Any) -> Future | None:
    """
    Return the parsed request at partition:offset on `timer-request`; None if it is not there any more, or not yet.

    Connection options override those of *kafka*.

    Raises:
        BrokerError: no broker answers within some 10 s, or it refuses; or there is no such partition.
        WireError: the record is not a valid request.
    """
    number, offset = map(int, request.split(":"))
    async with TopicLog.open(kafka, Topics.of(prefix).requests, **options) as (log,):
        if number not in log.numbers:
            raise BrokerError(f"{log.topic} has no partition {number}")
        record = await log.record_at(number, offset)
    if record is None:
        return None
    return future_from(record.value or b"", topic=log.topic, partition=number, offset=offset)


class Placed(NamedTuple):
    """
    What is known of the request at a place of `timer-request`.

    Attributes:
        record: its record; None without one.
        has_left: whether it has left the log. Then *record* is what a sweep repeats of it, and nobody knows when it was
            appended.
        why: why there is no record.
    """

    record: Record | None = None
    has_left: bool = False
    why: str = ""


class RequestPlaces:
    """
    Reads requests by their place, also those that have left `timer-request` while a sweep has them.

    Args:
        cluster: the cluster to ask. It must have looked `timer-request` and `timer-sealed` up.
    """

    def __init__(self, cluster: Cluster, topics: Topics, timeout_s: float = 10.0) -> None:
        self._log = TopicLog(cluster, topics.requests, timeout_s)
        self._seals = SealLog(cluster, topics.sealed, timeout_s)

    async def at(self, number: int, offset: int) -> Placed:
        """
        Return what is known of the request at *offset* of partition *number*.

        Raises:
            BrokerError: the seals cannot be read.
            aiokafka.errors.KafkaError: the log cannot be read.
        """
        log, bounds = self._log, self._log.bounds
        if number not in log.numbers:
            return Placed(why=f"{log.topic} has no partition {number}")
        if (record := await log.record_at(number, offset)) and not is_of_a_sweep(record):
            return Placed(record)
        start = (await bounds.starts([number]))[number]
        if offset >= start:
            return Placed(why=f"no request lies at {number}:{offset} on {log.topic}, or none that was committed")
        seal, end = latest(await self._seals.seals(number)), await bounds.end(number)
        for swept, offsets in to_take(sweeps_in(seal), start) if seal else ():
            if offset in offsets:
                async for page in log.pages(number, swept.since, min(swept.to, end), skips_deleted=True):
                    for found in repeated_in(page, swept.begun_us, range(offset, offset + 1)):
                        if found:
                            return Placed(found[0], has_left=True)
        gone = f"request {number}:{offset} has left {log.topic}: partition {number} begins at offset {start} by now"
        return Placed(has_left=True, why=gone)


async def placed(kafka: Kafka, prefix: str, request: str) -> Placed:
    """Return what is known of the request at partition:offset, over connections of its own; see `RequestPlaces`."""
    topics = Topics.of(prefix)
    async with knowing(kafka, [topics.requests, topics.sealed]) as cluster:
        number, offset = map(int, request.split(":"))
        return await RequestPlaces(cluster, topics).at(number, offset)


class Latest(NamedTuple):
    """The latest record of a key: its offset, and its value or None."""

    offset: int
    value: bytes | None


async def latest_records(
    kafka: Kafka, topic: str, numbers: Iterable[int], before: int | None = None, **options: Any
) -> dict[bytes, Latest]:
    """
    Return the latest record of each key in some partitions, of those before the offset *before*. Connection options
    override those of *kafka*.
    """
    found: dict[bytes, Latest] = {}
    async with TopicLog.open(kafka, topic, **options) as (log,):
        places = list(numbers)
        starts, ends = await log.bounds.starts(places), await log.bounds.ends(places)
        for number in places:
            end = ends[number] if before is None else min(before, ends[number])
            async for records in log.pages(number, starts[number], end):
                for record in records:
                    found[record.key or b""] = Latest(record.offset, record.value)
    return found
