"""
A consumer that is always closed well: no group, no automatic offsets, committed records only.

Who assigns partitions also says from where to read: `assign`, then `seek` before anything is awaited.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from aiokafka import AIOKafkaConsumer

from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.internals import Consumer

_SETTLE_S = 0.05
_STOP_S = 2.0


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
