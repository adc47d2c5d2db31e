"""Ending a producer, also while the broker is away."""

import asyncio
from contextlib import suppress

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

_STOP_S = 5.0


async def stop(producer: AIOKafkaProducer) -> None:
    """Disconnect *producer*; what it has left is sent if the broker takes it soon, a transaction is not committed."""
    # Without a limit it would wait for a broker that is gone for as long as it is gone.
    with suppress(TimeoutError, KafkaError):
        async with asyncio.timeout(_STOP_S):
            await producer.stop()
