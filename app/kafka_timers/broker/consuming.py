"""
A consumer that is always closed properly: no group, no automatic offset commits, committed records only.

If you assign partitions yourself, also set the position: `assign`, then `seek`, before you await anything.
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
    Yield a started consumer, and stop it at the end, even while the broker is away.

    Args:
        kafka: the cluster to read from.
        topics: topics to subscribe to; without any, the caller assigns partitions.
        kind: class of the consumer.
        options: options of aiokafka's consumer. They override *kafka* and the settings in the module's docstring.

    Raises:
        aiokafka.errors.KafkaError: no broker answers.
    """
    fixed = {"isolation_level": "read_committed", "enable_auto_commit": False, "auto_offset_reset": "none"}
    consumer = kind(*topics, **(kafka.client_options() | fixed | options))
    try:
        await consumer.start()
        yield consumer
    finally:
        # Two traps of aiokafka 0.14. If stopped while a failed fetch waits for its retry, it raises that fetch's
        # CancelledError, which looks like our own, and leaves connections open. So we first end its fetches. If stopped
        # while they end, it loses the cancellation and waits for ever. So it gets a moment, and a limit.
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
    Yield the records of a partition from *start* up to, not including, *end*, in lists; assigns *consumer* to it.

    Raises:
        BrokerError: nothing arrived for some 10 s.
        aiokafka.errors.KafkaError: the broker refuses.
    """
    if start >= end:
        # aiokafka's consumer fails if it is assigned and closed at once.
        return
    consumer.assign([where])
    consumer.seek(where, start)
    position = start
    while position < end:
        found: list[ConsumerRecord] = []
        try:
            async with asyncio.timeout(_STUCK_S):
                # The position also passes markers and aborted records, which are never returned. The last record would
                # not.
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
