"""
Read the part of the request log in which the timers of one id lie; `history` tells how they stand.
"""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.consuming import consuming
from kafka_timers.broker.seals import last_seals, latest
from kafka_timers.broker.topics import answering
from kafka_timers.client.request import partition_of
from kafka_timers.core.outcomes import Asked, asked_in
from kafka_timers.core.wire import Sealed, Topics
from kafka_timers.errors import BrokerError

__all__ = ["Found", "find"]

# Large, since the log may hold millions of records: a fetch costs a round trip.
_FETCH_BYTES = 16 << 20

_STUCK_S = 10.0


@dataclass(frozen=True, slots=True)
class Found:
    """
    What the log has of one timer id.

    Attributes:
        partition: of `timer-request`, in which all records of the id lie.
        start: offset from which on it was read: no timer below waits.
        end: offset below which it was read.
        seal: the last complete one of the partition, read before the log; None when nothing has been sealed.
        asked: what its records ask for, in the order of the log.
    """

    partition: int
    start: int
    end: int
    seal: Sealed | None
    asked: list[Asked]


async def find(kafka: Kafka, prefix: str, timer_id: str) -> Found:
    """
    Return what the request log has of *timer_id*, from the oldest request of its partition on that may still wait.

    Args:
        kafka: to talk to.
        prefix: put before the topics' names.
        timer_id: as it was given to the request.

    Raises:
        TopicsError: a topic of the service does not exist.
        BrokerError: no broker answers within some 10 s, or it refuses.
    """
    tails = await last_seals(kafka, prefix)
    partition = partition_of(timer_id, len(tails))
    seal = latest(tails[partition])
    where = TopicPartition(Topics.of(prefix).requests, partition)
    async with AsyncExitStack() as opened:
        async with answering(kafka):
            consumer = await opened.enter_async_context(
                consuming(kafka, max_partition_fetch_bytes=_FETCH_BYTES, fetch_max_wait_ms=50)
            )
            end = (await consumer.end_offsets([where]))[where]
            start = max((await consumer.beginning_offsets([where]))[where], seal.restore_from if seal else 0)
        try:
            # Assigned and let go at once, aiokafka's consumer fails.
            asked = await _read(consumer, where, start, end, timer_id) if start < end else []
        except TimeoutError as error:
            raise BrokerError(
                f"{where.topic} partition {partition} could not be read up to offset {end}: for {_STUCK_S:g} s nothing "
                "came. Is Kafka there?"
            ) from error
        except KafkaError as error:
            raise BrokerError(f"{where.topic} partition {partition} could not be read: {error}") from error
    return Found(partition, start, end, seal, asked)


async def _read(consumer: AIOKafkaConsumer, where: TopicPartition, start: int, end: int, timer_id: str) -> list[Asked]:
    consumer.assign([where])
    consumer.seek(where, start)
    asked: list[Asked] = []
    position = start
    while position < end:
        async with asyncio.timeout(_STUCK_S):
            # The position, not the last record: it also passes markers and aborted records, which are never returned.
            while (now := await consumer.position(where)) == position:
                for records in (await consumer.getmany(where, timeout_ms=50)).values():
                    asked += asked_in([record for record in records if record.offset < end], timer_id)
        position = now
    return asked
