"""The figures of `status`, from the records on the topics."""

import pytest
from aiokafka import AIOKafkaProducer

from kafka_timers.broker import topics
from kafka_timers.broker.connection import Kafka
from kafka_timers.core.wire import Sealed, Topics
from kafka_timers.operate.health import problems_of
from kafka_timers.operate.status import read_status
from kafka_timers.testing import ManualClock


async def test_requests_that_were_there_and_not_read_for_a_second_are_told(bootstrap: str, prefix: str) -> None:
    """The partition is sealed second after second, and all else looks well."""
    kafka, names = Kafka(bootstrap), Topics.of(prefix)
    await topics.create(kafka, prefix, 1)
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        read = await producer.send_and_wait(names.requests, b"read", b"1", partition=0)
        second = read.timestamp // 1000 + 600

        async def status_at(wall_s: float, fence: int) -> tuple[float, bool]:
            seal = Sealed(first_ms=second * 1000, end_ms=(second + 1) * 1000, fence=fence, partitions=1)
            await producer.send_and_wait(names.sealed, seal.SerializeToString(), b"0", partition=0)
            await producer.send_and_wait(names.oscillator, b"1", b"%d" % second, partition=0)
            status = await read_status(kafka, prefix, prefix + "workers", ManualClock(wall_s))
            told = any("have not been read, and seconds fire without them" in each for each in problems_of(status))
            return status.partitions[0].unread_s, told

        assert await status_at(second + 6, fence=1) == (0, False)
        unread = await producer.send_and_wait(names.requests, b"unread", b"1", partition=0)
        age_s = pytest.approx(second + 6 - unread.timestamp / 1000, abs=0.01)
        assert await status_at(second + 6, fence=1) == (age_s, True)
