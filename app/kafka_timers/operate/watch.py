"""
Read a callback topic as it grows, and compute the lateness of each callback. `kafka-timers watch` shows it.
"""

import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from aiokafka import AIOKafkaConsumer, ConsumerRecord
from aiokafka.errors import UnknownTopicOrPartitionError

from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.consuming import consuming
from kafka_timers.broker.topics import answering
from kafka_timers.core.wire import EXPIRY_HEADER, MILLIS_HEADER
from kafka_timers.errors import TopicsError

__all__ = ["lateness_of", "watching"]

# Time to wait for a topic that does not exist: some brokers create a topic when a client asks for it.
_TOPIC_WAIT_MS = 5_000
# When the leader of a partition dies, another one takes over after some 10 s.
_LIMIT_S = 20.0


@asynccontextmanager
async def watching(kafka: Kafka, topic: str, *, from_beginning: bool) -> AsyncIterator[AIOKafkaConsumer]:
    """
    Yield a consumer of the committed records of *topic*, once it sees every record that comes from now on.

    Args:
        kafka: cluster of the topic.
        topic: name of the topic.
        from_beginning: also read the records that are already there.

    Raises:
        TopicsError: the topic does not exist.
        BrokerError: no broker answers within some 20 s, or a broker refuses.
    """
    reset = "earliest" if from_beginning else "latest"
    async with AsyncExitStack() as opened:
        async with answering(kafka, timeout_s=_LIMIT_S):
            try:
                reading = consuming(kafka, topic, auto_offset_reset=reset, request_timeout_ms=_TOPIC_WAIT_MS)
                consumer = await opened.enter_async_context(reading)
            except UnknownTopicOrPartitionError as error:
                raise TopicsError(f"topic {topic} does not exist: create it first") from error
            for partition in consumer.assignment():
                # "From now on" begins here: records pass unseen until a position is known. A seek instead would race
                # with the reset that the consumer begins by itself, and the later of the two would win.
                await consumer.position(partition)
        yield consumer


def lateness_of(record: ConsumerRecord, now_s: float) -> tuple[int | None, int | None]:
    """
    Return the due time of a callback in UNIX milliseconds, and its lateness; None and None for any other record.

    Lateness counts to the record's timestamp, or to *now_s* if the record has none.

    Args:
        record: read from a callback topic.
        now_s: UNIX time at which the record arrived.
    """
    headers = dict(record.headers)
    expiry, millis = headers.get(EXPIRY_HEADER) or b"", headers.get(MILLIS_HEADER) or b"0"
    if not re.fullmatch(b"[0-9]{1,11}", expiry) or not re.fullmatch(b"[0-9]{1,3}", millis):
        return None, None
    due_ms = int(expiry) * 1000 + int(millis)
    at_ms = record.timestamp if record.timestamp >= 0 else int(now_s * 1000)
    return due_ms, at_ms - due_ms
