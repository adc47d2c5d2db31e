"""The end of `timer-sealed` as a worker and `status` read it, on a real broker."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable

import pytest
from aiokafka import AIOKafkaProducer

from kafka_timers.broker import topics
from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.seals import SealLog, last_seals, latest
from kafka_timers.core.wire import FORMAT, Sealed
from kafka_timers.errors import BrokerError, TopicsError


class Ledger:
    """Writes seals as workers do: in transactions, some of which are aborted."""

    def __init__(self, bootstrap: str, prefix: str) -> None:
        self.bootstrap, self.name, self.topic = bootstrap, prefix + "0", prefix + "timer-sealed"
        self.producer: AIOKafkaProducer | None = None

    async def take_over(self) -> None:
        """Have a new producer. Its start waits for the broker's part of a commit: only then can others read it."""
        await self.stop()
        self.producer = AIOKafkaProducer(bootstrap_servers=self.bootstrap, transactional_id=self.name)
        await self.producer.start()

    async def stop(self) -> None:
        if self.producer is not None:
            await self.producer.stop()

    async def seal(self, *seals: Sealed, commit: bool = True) -> None:
        await self.put([seal.SerializeToString() for seal in seals], commit=commit)

    async def put(self, values: Iterable[bytes | None], *, commit: bool = True) -> None:
        await self.open(values)
        await (self.producer.commit_transaction() if commit else self.producer.abort_transaction())
        await self.take_over()

    async def open(self, values: Iterable[bytes | None]) -> None:
        """Put *values* into a transaction and leave it open."""
        await self.producer.begin_transaction()
        sent = [await self.producer.send(self.topic, value, key=b"0", partition=0) for value in values]
        await asyncio.gather(*sent)


@pytest.fixture
async def ledger(bootstrap: str, prefix: str) -> AsyncIterator[Ledger]:
    await topics.create(Kafka(bootstrap), prefix, 2)
    ledger = Ledger(bootstrap, prefix)
    await ledger.take_over()
    yield ledger
    await ledger.stop()


@pytest.fixture
async def log(bootstrap: str, ledger: Ledger) -> AsyncIterator[SealLog]:
    async with Cluster.open(Kafka(bootstrap)) as cluster:
        await cluster.look_up([ledger.topic])
        yield SealLog(cluster, ledger.topic)


def slices(second: int, count: int) -> list[Sealed]:
    return [Sealed(end_ms=(second + 1) * 1000, fence=1, through=b"%d" % number) for number in range(count)]


async def test_a_log_without_seals_has_an_empty_tail(log: SealLog, ledger: Ledger) -> None:
    assert await log.seals(0) == []


async def test_the_tail_ends_with_the_last_seal_in_the_order_of_the_log(log: SealLog, ledger: Ledger) -> None:
    seals = [Sealed(end_ms=6_000, fence=2), *slices(6, 3)]
    for seal in seals:
        await ledger.seal(seal)
    assert await log.seals(0) == seals
    # The same one serves one partition after the other, and again.
    assert await log.seals(1) == []
    await ledger.seal(Sealed(end_ms=7_000, fence=9))
    assert await log.seals(0) == [*seals, Sealed(end_ms=7_000, fence=9)]


async def test_seals_of_aborted_transactions_are_none(log: SealLog, ledger: Ledger) -> None:
    await ledger.seal(Sealed(end_ms=6_000))
    await ledger.seal(Sealed(end_ms=7_000), commit=False)
    assert await log.seals(0) == [Sealed(end_ms=6_000)]


async def test_a_log_of_aborted_transactions_alone_has_an_empty_tail(log: SealLog, ledger: Ledger) -> None:
    for _ in range(3):
        await ledger.seal(*slices(6, 40), commit=False)
    assert await log.seals(0) == []


async def test_a_transaction_that_is_still_open_is_not_waited_for(log: SealLog, ledger: Ledger) -> None:
    await ledger.seal(Sealed(end_ms=6_000))
    await ledger.open([Sealed(end_ms=7_000).SerializeToString()])
    assert await log.seals(0) == [Sealed(end_ms=6_000)]


async def test_a_complete_seal_is_found_however_many_aborted_ones_follow_it(log: SealLog, ledger: Ledger) -> None:
    """1,500 offsets: past the first reach of 64 and the second of 1,024."""
    await ledger.seal(Sealed(end_ms=5_000))
    await ledger.seal(Sealed(end_ms=6_000, fence=7))
    await ledger.seal(*slices(6, 500))
    for _ in range(2):
        await ledger.seal(*slices(7, 500), commit=False)
    tail = await log.seals(0)
    assert latest(tail) == Sealed(end_ms=6_000, fence=7)
    assert tail[-500:] == slices(6, 500)


async def test_a_long_log_is_not_read_from_its_beginning(log: SealLog, ledger: Ledger) -> None:
    await ledger.seal(*(Sealed(end_ms=(second + 1) * 1000, format=FORMAT) for second in range(1, 1_001)))
    tail = await log.seals(0)
    assert tail[-1] == Sealed(end_ms=1_001_000, format=FORMAT)
    assert len(tail) < 64


async def test_records_that_are_no_seals_are_skipped_and_named(
    log: SealLog, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    await ledger.put(
        [Sealed(end_ms=6_000).SerializeToString(), b"\xff\xff", None, b"", Sealed(end_ms=7_000).SerializeToString()]
    )
    with caplog.at_level(logging.WARNING, "kafka_timers.broker.seals"):
        assert await log.seals(0) == [Sealed(end_ms=6_000), Sealed(end_ms=7_000)]
    # Kafka's client has words of its own where a new topic has no leader yet.
    assert [record.getMessage() for record in caplog.records if record.name == "kafka_timers.broker.seals"] == [
        f"skipped: bytes are not a seal ({ledger.topic} partition 0 offset {offset})" for offset in (1, 2, 3)
    ]


async def test_tails_of_all_partitions_are_read_at_once(bootstrap: str, prefix: str, ledger: Ledger) -> None:
    await ledger.seal(Sealed(end_ms=6_000))
    assert await last_seals(Kafka(bootstrap), prefix) == {0: [Sealed(end_ms=6_000)], 1: []}


async def test_an_end_that_cannot_be_reached_is_given_up(bootstrap: str, ledger: Ledger) -> None:
    await ledger.seal(Sealed(end_ms=6_000))
    async with Cluster.open(Kafka(bootstrap)) as cluster:
        await cluster.look_up([ledger.topic])
        with pytest.raises(BrokerError, match=r"partition 0 could not be read within 0\.5 s"):
            await SealLog(cluster, ledger.topic, 0.5).seals(0, above=1_000)


async def test_without_the_topic_it_says_how_to_make_it(bootstrap: str, prefix: str) -> None:
    with pytest.raises(TopicsError, match=f"{prefix}timer-sealed is missing: create it with kafka-timers topics"):
        await last_seals(Kafka(bootstrap), prefix)
