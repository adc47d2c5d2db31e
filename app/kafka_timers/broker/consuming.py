"""
A consumer that is always closed well: no group, no automatic offsets, committed records only.

Who assigns partitions also says from where to read: `assign`, then `seek` before anything is awaited.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition

from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.internals import Consumer
from kafka_timers.errors import BrokerError

__all__ = ["consuming", "pages"]

_SETTLE_S = 0.05
_STOP_S = 2.0
_STUCK_S = 10.0


@asynccontextmanager
async def consuming(
    kafka: Kafka, *topics: str, kind: type[AIOKafkaConsumer] = Consumer, **options: Any
) -> AsyncIterator[AIOKafkaConsumer]:
    """
    Yield a started consumer, and stop it at the end, also while the broker is away.

    Args:
        kafka: to talk to.
        topics: subscribed to as a whole; without any, the caller assigns partitions.
        kind: of the consumer.
        options: of aiokafka's consumer, over those of *kafka* and the ones that the module's docstring names.

    Raises:
        aiokafka.errors.KafkaError: no broker answers.
    """
    fixed = {"isolation_level": "read_committed", "enable_auto_commit": False, "auto_offset_reset": "none"}
    consumer = kind(*topics, **(kafka.client_options() | fixed | options))
    try:
        await consumer.start()
        yield consumer
    finally:
        # Two traps of aiokafka 0.14. Stopped while a failed fetch waits for its repetition, it raises that fetch's
        # CancelledError, which looks like our own, and leaves connections open; so it is told to end its fetches first.
        # Stopped while it ends them, it loses the cancellation and waits for ever; so it gets a moment, and a limit.
        consumer.unsubscribe()
        try:
            await asyncio.sleep(_SETTLE_S)
        finally:
            with suppress(TimeoutError):
                async with asyncio.timeout(_STOP_S):
                    await consumer.stop()


async def pages(
    consumer: AIOKafkaConsumer, where: TopicPartition, start: int, end: int
) -> AsyncIterator[list[ConsumerRecord]]:
    """
    Yield the records of a partition from *start* on and before *end*, many at a time; *consumer* is assigned to it.

    Raises:
        BrokerError: nothing came for some 10 s.
        aiokafka.errors.KafkaError: the broker refuses.
    """
    if start >= end:
        # Assigned and let go at once, aiokafka's consumer fails.
        return
    consumer.assign([where])
    consumer.seek(where, start)
    position = start
    while position < end:
        found: list[ConsumerRecord] = []
        try:
            async with asyncio.timeout(_STUCK_S):
                # The position, not the last record: it also passes markers and aborted records, which are never
                # returned.
                while (now := await consumer.position(where)) == position:
                    for records in (await consumer.getmany(where, timeout_ms=50)).values():
                        found += [record for record in records if record.offset < end]
        except TimeoutError as error:
            raise BrokerError(
                f"{where.topic} partition {where.partition} could not be read up to offset {end}: for {_STUCK_S:g} s "
                "nothing came. Is Kafka there?"
            ) from error
        yield found
        position = now
