"""Reads records by place (topic, partition and offset) or by key."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from aiokafka import ConsumerRecord

from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.reading import TopicLog, consumed
from kafka_timers.core.wire import Future, Topics, future_from
from kafka_timers.errors import BrokerError


async def request_at(kafka: Kafka, prefix: str, request: str, **options: Any) -> Future | None:
    """
    Return the parsed request at partition:offset on `timer-request`; None as in `record_at`.

    Raises:
        WireError: the record is not a valid request.
    """
    record = await record_at(kafka, prefix, request, **options)
    if record is None:
        return None
    return future_from(record.value or b"", topic=record.topic, partition=record.partition, offset=record.offset)


async def record_at(kafka: Kafka, prefix: str, request: str, **options: Any) -> ConsumerRecord | None:
    """
    Return the record of the request at partition:offset on `timer-request`; None if it is not there any more, or not
    yet.

    Connection options override those of *kafka*.

    Raises:
        BrokerError: no broker answers within some 10 s, or it refuses; or there is no such partition.
    """
    number, offset = map(int, request.split(":"))
    async with TopicLog.open(kafka, Topics.of(prefix).requests, **options) as (log,):
        if number not in log.numbers:
            raise BrokerError(f"{log.topic} has no partition {number}")
        record = await log.record_at(number, offset)
    return record and consumed(record, log.topic, number)


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
