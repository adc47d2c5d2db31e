"""
One record by its place, which is a topic, a partition and an offset.
"""

from contextlib import AsyncExitStack
from typing import Any

from aiokafka import ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError

from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.consuming import consuming, pages
from kafka_timers.broker.topics import answering
from kafka_timers.core.wire import Future, Topics, future_from
from kafka_timers.errors import BrokerError

__all__ = ["record_at", "request_at"]


async def request_at(kafka: Kafka, prefix: str, request: str, **options: Any) -> Future | None:
    """
    Return what the *request*, partition:offset on `timer-request`, asks for; None if it does not lie there any more.

    Args:
        kafka: to talk to.
        prefix: put before the topics' names.
        request: its place.
        options: of aiokafka's consumer, over those of *kafka*.

    Raises:
        BrokerError: no broker answers within some 10 s, or it refuses; or there is no such partition.
        WireError: it asks for nothing that can be read.
    """
    record = await record_at(kafka, prefix, request, **options)
    if record is None:
        return None
    return future_from(record.value or b"", topic=record.topic, partition=record.partition, offset=record.offset)


async def record_at(kafka: Kafka, prefix: str, request: str, **options: Any) -> ConsumerRecord | None:
    """
    Return the record of the *request*, partition:offset on `timer-request`; None if none lies there any more, or yet.

    Args:
        kafka: to talk to.
        prefix: put before the topics' names.
        request: its place.
        options: of aiokafka's consumer, over those of *kafka*.

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
