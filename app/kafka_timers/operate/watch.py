"""Read a callback topic as it grows, and compute the lateness of each callback. `kafka-timers watch` shows it."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiokafka import ConsumerRecord

from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.reading import Following, TopicLog
from kafka_timers.core.wire import EXPIRY_HEADER, MILLIS_HEADER
from kafka_timers.errors import TopicsError

# When the leader of a partition dies, another one takes over after some 10 s.
_LIMIT_S = 20.0


@asynccontextmanager
async def watching(kafka: Kafka, topic: str, *, from_beginning: bool) -> AsyncIterator[Following]:
    """
    Yield a reader of the committed records of *topic*, once it sees every record that comes from now on. With
    *from_beginning*, also of the records that are already there.

    Raises:
        TopicsError: the topic does not exist.
    """
    async with TopicLog.open(kafka, topic, timeout_s=_LIMIT_S) as (log,):
        if not log.numbers:
            raise TopicsError(f"topic {topic} does not exist, or this user may not look at it: create it first")
        positions = await (log.bounds.starts(log.numbers) if from_beginning else log.bounds.ends(log.numbers))
        async with log.following(positions) as following:
            yield following


def lateness_of(record: ConsumerRecord, now_s: float) -> tuple[int | None, int | None]:
    """
    Return the due time of a callback in UNIX milliseconds, and its lateness; None and None for any other record.

    Lateness counts to the record's timestamp, or to *now_s* if the record has none. *record* arrived at the UNIX time
    *now_s*.
    """
    headers = dict(record.headers)
    expiry, millis = headers.get(EXPIRY_HEADER) or b"", headers.get(MILLIS_HEADER) or b"0"
    if not re.fullmatch(b"[0-9]{1,11}", expiry) or not re.fullmatch(b"[0-9]{1,3}", millis):
        return None, None
    due_ms = int(expiry) * 1000 + int(millis)
    at_ms = record.timestamp if record.timestamp >= 0 else int(now_s * 1000)
    return due_ms, at_ms - due_ms
