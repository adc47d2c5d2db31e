"""
Reads records by place (topic, partition and offset) or by key.
"""

from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Any

from aiokafka import ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError

from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.consuming import consuming, pages
from kafka_timers.broker.topics import answering
from kafka_timers.core.wire import Future, Topics, future_from
from kafka_timers.errors import BrokerError

__all__ = ["latest_values", "record_at", "request_at"]


async def request_at(kafka: Kafka, prefix: str, request: str, **options: Any) -> Future | None:
    """
    Return the parsed *request*; None if it is not there any more.

    Args:
        kafka: the cluster to read from.
        prefix: prefix of the topics' names.
        request: place of the request: partition:offset on `timer-request`.
        options: options of aiokafka's consumer. They override those of *kafka*.

    Raises:
        BrokerError: no broker answers within some 10 s, or it refuses; or there is no such partition.
        WireError: the record is not a valid request.
    """
    record = await record_at(kafka, prefix, request, **options)
    if record is None:
        return None
    return future_from(record.value or b"", topic=record.topic, partition=record.partition, offset=record.offset)


async def record_at(kafka: Kafka, prefix: str, request: str, **options: Any) -> ConsumerRecord | None:
    """
    Return the record of the *request*; None if it is not there any more, or not yet.

    Args:
        kafka: the cluster to read from.
        prefix: prefix of the topics' names.
        request: place of the request: partition:offset on `timer-request`.
        options: options of aiokafka's consumer. They override those of *kafka*.

    Raises:
        BrokerError: no broker answers within some 10 s, or it refuses; or there is no such partition.
    """
    number, offset = map(int, request.split(":"))
    where = TopicPartition(Topics.of(prefix).requests, number)
    async with AsyncExitStack() as opened:
        async with answering(kafka):
            consumer = await opened.enter_async_context(consuming(kafka, fetch_max_wait_ms=50, **options))
            start = (await consumer.beginning_offsets([where]))[where]
            end = (await consumer.end_offsets([where]))[where]
        if not start <= offset < end:
            return None
        try:
            async for records in pages(consumer, where, offset, offset + 1):
                for record in records:
                    return record
        except KafkaError as error:
            raise BrokerError(f"{where.topic} partition {number} offset {offset} could not be read: {error}") from error
    return None


async def latest_values(kafka: Kafka, topic: str, numbers: Iterable[int], **options: Any) -> dict[bytes, bytes]:
    """
    Return the latest value of each key in some partitions. Keys whose latest record is a tombstone are left out.

    Args:
        kafka: the cluster to read from.
        topic: name of the topic. All records of the partitions are read.
        numbers: partition numbers.
        options: options of aiokafka's consumer. They override those of *kafka*.

    Raises:
        BrokerError: no broker answers within some 10 s, or it refuses.
    """
    found: dict[bytes, bytes] = {}
    places = [TopicPartition(topic, number) for number in numbers]
    async with AsyncExitStack() as opened:
        async with answering(kafka):
            consumer = await opened.enter_async_context(consuming(kafka, fetch_max_wait_ms=50, **options))
            starts, ends = await consumer.beginning_offsets(places), await consumer.end_offsets(places)
        for where in places:
            try:
                async for records in pages(consumer, where, starts[where], ends[where]):
                    for record in records:
                        if record.value is None:
                            found.pop(record.key, None)
                        else:
                            found[record.key] = record.value
            except KafkaError as error:
                raise BrokerError(f"{topic} partition {where.partition} could not be read: {error}") from error
    return found
