"""The figures of `status`, from the records on the topics."""

import pytest
from aiokafka import AIOKafkaProducer
from brokers import delete_records

from kafka_timers.broker import topics
from kafka_timers.broker.connection import Kafka
from kafka_timers.cli.render import status_lines
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


async def test_requests_behind_an_open_transaction_are_told(bootstrap: str, prefix: str) -> None:
    kafka, names = Kafka(bootstrap), Topics.of(prefix)
    await topics.create(kafka, prefix, 1)

    async def blocked_s(wall_s: float) -> float:
        [row] = (await read_status(kafka, prefix, prefix + "workers", ManualClock(wall_s))).partitions
        return row.blocked_s

    async with AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=prefix + "user") as producer:
        assert await blocked_s(1_900_000_000) == 0
        await producer.begin_transaction()
        sent = await producer.send_and_wait(names.requests, b"v", b"1", partition=0)
        assert await blocked_s(sent.timestamp / 1000 + 30) == pytest.approx(30, abs=0.01)
        await producer.commit_transaction()


async def test_what_the_request_log_keeps_and_of_when_that_may_be_needed_is_told(bootstrap: str, prefix: str) -> None:
    kafka, names, clock = Kafka(bootstrap), Topics.of(prefix), ManualClock(1_900_000_000)
    await topics.create(kafka, prefix, 1)
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for _ in range(3):
            last = await producer.send_and_wait(names.requests, b"v", b"1", partition=0)
        [row] = (await read_status(kafka, prefix, prefix + "workers", clock)).partitions
        assert (row.log_records, row.log_start) == (3, 0)
        # Three batches of one record: what Kafka's files have of it.
        assert row.log_bytes == 3 * 70
        seal = Sealed(first_ms=1_000, end_ms=2_000, fence=3, restore_from=2, partitions=1)
        await producer.send_and_wait(names.sealed, seal.SerializeToString(), b"0", partition=0)
    await delete_records(bootstrap, names.requests, 0, 1)
    status = await read_status(kafka, prefix, prefix + "workers", clock)
    [row] = status.partitions
    assert (row.log_records, row.log_start, row.held_from, row.held_since_s) == (2, 1, 2, last.timestamp / 1000)
    lines = status_lines(status)
    at = lines.index("request log   2 records, 210 bytes; 1 are given back")
    assert lines[at + 1].startswith("              needed from 20")
    assert lines[at + 1].endswith(" UTC on, request 0:2")
