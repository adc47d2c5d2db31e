"""All or nothing: the records that a slice's transaction makes visible, in both protocols of transactions."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from batches import append_batch, batch_of
from brokers import StartKafka, consuming, make_topic
from patience import LIMIT_S

from kafka_timers.broker.bounds import LogBounds
from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.seals import SealLog, last_seals
from kafka_timers.broker.topics import create
from kafka_timers.core.refused import Reason
from kafka_timers.core.wire import Sealed, Topics, last_second_of
from kafka_timers.errors import SettingsError
from kafka_timers.settings import WorkerSettings
from kafka_timers.worker.faults import FencedError, TopicsRefusedError
from kafka_timers.worker.sender import KafkaSender, transactional_ids

Start = Callable[..., Awaitable[KafkaSender]]
GUARANTEES = pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])


@pytest.fixture
async def start(address: str, prefix: str) -> AsyncIterator[Start]:
    """Start a sender of partition 0; there are the topics of the service, `callbacks`, and `small`."""
    await create(Kafka(address), prefix, 2)
    await make_topic(address, prefix + "callbacks", 2)
    await make_topic(address, prefix + "small", configs={"max.message.bytes": "1000"})
    async with AsyncExitStack() as stack:

        async def start(guarantee: str = "exactly-once") -> KafkaSender:
            settings = WorkerSettings(bootstrap=address, topic_prefix=prefix, group=prefix + "g", guarantee=guarantee)
            cluster = await stack.enter_async_context(Cluster.open(settings.kafka))
            sender = KafkaSender(settings, cluster, 0, Topics.of(prefix))
            await sender.start()
            stack.push_async_callback(sender.stop)
            return sender

        yield start


def send(sender: KafkaSender, topic: str, *values: bytes, partition: int = 0) -> None:
    batch = sender.new_batch()
    for value in values:
        batch.append(timestamp=int(time.time() * 1000), key=b"k", value=value)
    sender.send_all([(batch, topic, partition)])


async def visible(bootstrap: str, topic: str) -> list[bytes | None]:
    """Return the committed records of partition 0 of *topic*, all transactions complete."""
    at = TopicPartition(topic, 0)
    values: list[bytes | None] = []
    # A commit is acknowledged before its markers are in the partitions, and readers of committed records end before it.
    async with consuming(Kafka(bootstrap), isolation_level="read_uncommitted") as consumer:
        end = (await consumer.end_offsets([at]))[at]
    async with consuming(Kafka(bootstrap), isolation_level="read_committed", fetch_max_wait_ms=50) as consumer:
        consumer.assign([at])
        consumer.seek(at, 0)
        while await consumer.position(at) < end:
            for records in (await consumer.getmany(timeout_ms=50)).values():
                values += [record.value for record in records]
    return values


async def sealed_seconds(bootstrap: str, prefix: str) -> list[int]:
    return [last_second_of(seal) for seal in (await last_seals(Kafka(bootstrap), prefix))[0]]


@GUARANTEES
async def test_callbacks_and_seal_are_visible_once_they_are_committed(
    start: Start, address: str, prefix: str, guarantee: str
) -> None:
    sender = await start(guarantee)
    for second in (100, 101):
        await sender.begin()
        send(sender, prefix + "callbacks", b"a%d" % second, b"b%d" % second)
        send(sender, prefix + "callbacks", b"c", partition=1)
        await sender.commit(Sealed(end_ms=(second + 1) * 1000))
    assert await visible(address, prefix + "callbacks") == [b"a100", b"b100", b"a101", b"b101"]
    assert await sealed_seconds(address, prefix) == [100, 101]


async def test_an_open_transaction_of_an_earlier_owner_never_becomes_visible(
    start: Start, address: str, prefix: str
) -> None:
    """Its successor's start ends the transaction, and so holds up no reader of the callback topic."""
    first = await start()
    await first.begin()
    send(first, prefix + "callbacks", b"lost")
    async with consuming(Kafka(address), isolation_level="read_uncommitted") as consumer:
        at = TopicPartition(prefix + "callbacks", 0)
        consumer.assign([at])
        consumer.seek(at, 0)
        assert (await consumer.getone()).value == b"lost"
    second = await start()
    await second.begin()
    send(second, prefix + "callbacks", b"redone")
    await second.commit(Sealed(end_ms=101_000))
    assert await visible(address, prefix + "callbacks") == [b"redone"]


@pytest.mark.parametrize("sealed", [0, 1, 2])
@pytest.mark.parametrize("moment", ["before begin", "before send", "before commit"])
async def test_an_owner_that_was_shut_out_makes_nothing_visible(
    start: Start, address: str, prefix: str, moment: str, sealed: int
) -> None:
    """Whenever it notices, and whichever of its producers is next: it is told that another one owns the partition."""
    first = await start()
    for second in range(sealed):
        await first.begin()
        await first.commit(Sealed(end_ms=(second + 1) * 1000))
    if moment != "before begin":
        await first.begin()
    if moment == "before commit":
        send(first, prefix + "callbacks", b"late")
    second = await start()
    with pytest.raises(FencedError):
        await finish(first, moment, prefix)
    await second.begin()
    send(second, prefix + "callbacks", b"good")
    await second.commit(Sealed(end_ms=101_000))
    assert await visible(address, prefix + "callbacks") == [b"good"]
    assert await sealed_seconds(address, prefix) == [*range(sealed), 100]


async def test_transactions_of_one_owner_appear_in_their_order(start: Start, address: str, prefix: str) -> None:
    sender = await start()
    for second in range(100, 130):
        await sender.begin()
        send(sender, prefix + "callbacks", b"%d" % second)
        await sender.commit(Sealed(end_ms=(second + 1) * 1000))
    assert await visible(address, prefix + "callbacks") == [b"%d" % second for second in range(100, 130)]
    assert (await sealed_seconds(address, prefix))[-1] == 129


async def finish(sender: KafkaSender, moment: str, prefix: str) -> None:
    """Do the rest of a slice after *moment*."""
    if moment == "before begin":
        await sender.begin()
    if moment != "before commit":
        send(sender, prefix + "callbacks", b"late")
    await sender.commit(Sealed(end_ms=100_000))


@GUARANTEES
async def test_a_topic_that_refuses_is_named_and_nothing_is_sealed(
    start: Start, address: str, prefix: str, guarantee: str
) -> None:
    sender = await start(guarantee)
    await sender.begin()
    send(sender, prefix + "callbacks", b"a")
    send(sender, prefix + "small", b"x" * 2_000)
    with pytest.raises(TopicsRefusedError) as caught:
        await sender.commit(Sealed(end_ms=101_000))
    assert caught.value.reasons == {prefix + "small": (Reason.TOO_LARGE, "MESSAGE_TOO_LARGE")}
    await sender.stop()
    heir = await start(guarantee)
    await heir.begin()
    await heir.commit(Sealed(end_ms=102_000))
    assert await sealed_seconds(address, prefix) == [101]
    if guarantee == "exactly-once":
        assert await visible(address, prefix + "callbacks") == []


async def test_a_seal_may_be_all_that_is_sent(start: Start, address: str, prefix: str) -> None:
    sender = await start()
    for second in (100, 105):
        await sender.begin()
        await sender.commit(Sealed(end_ms=(second + 1) * 1000))
    assert await sealed_seconds(address, prefix) == [100, 105]


async def test_a_topic_that_is_missing_is_named_within_seconds(start: Start, prefix: str) -> None:
    sender = await start()
    await sender.begin()
    send(sender, prefix + "missing", b"a")
    with pytest.raises(TopicsRefusedError) as caught:
        await sender.commit(Sealed(end_ms=101_000))
    assert caught.value.reasons == {prefix + "missing": (Reason.TOPIC_UNKNOWN, "UNKNOWN_TOPIC_OR_PARTITION")}


async def test_an_owner_is_one_until_another_sender_was_started(start: Start, address: str, prefix: str) -> None:
    old = await start()
    assert await old.is_held()
    await old.begin()
    send(old, prefix + "callbacks", b"callback")
    asked = asyncio.create_task(old.is_held())
    await old.commit(Sealed(partition=0, first_ms=1_000, end_ms=2_000))
    assert await asked
    assert await old.is_held()
    new = await start()
    assert not await old.is_held()
    assert await new.is_held()
    assert await visible(address, prefix + "callbacks") == [b"callback"]


async def test_without_transactions_nobody_is_shut_out(start: Start) -> None:
    sender, other = await start("at-least-once"), await start("at-least-once")
    assert await sender.is_held()
    assert await other.is_held()
    assert await sender.barrier() == (None, None)


async def test_a_barrier_lies_behind_all_that_was_acknowledged_and_nobody_reads_it(
    start: Start, address: str, prefix: str
) -> None:
    names = Topics.of(prefix)
    async with AIOKafkaProducer(bootstrap_servers=address, acks="all") as producer:
        request = await producer.send_and_wait(names.requests, b"request", partition=0)
    sender = await start()
    await sender.begin()
    await sender.commit(Sealed(end_ms=101_000))
    barrier = await sender.barrier()
    assert barrier.requests is not None
    assert barrier.requests > request.offset
    async with Cluster.open(Kafka(address)) as cluster:
        await cluster.look_up([names.requests, names.sealed])
        bounds, seals = LogBounds(cluster, names.requests), SealLog(cluster, names.sealed)
        assert [last_second_of(seal) for seal in await seals.seals(0, barrier.sealed)] == [100]
        assert await bounds.end(0, barrier.requests) >= request.offset + 1
    assert await visible(address, names.requests) == [b"request"]
    # It goes on after that.
    await sender.begin()
    await sender.commit(Sealed(end_ms=102_000))
    assert await sealed_seconds(address, prefix) == [100, 101]


async def test_a_barrier_ends_a_transaction_whose_end_the_broker_has_lost(start_kafka: StartKafka, prefix: str) -> None:
    """
    A transaction of the owner before, by either of its ids, unknown to the broker's coordinator: it would stay open.

    Kafka 4.3 leaves one when it is killed between the decision and its markers (KAFKA-20734). Here it is written by a
    client that no broker asks whether its transaction was begun.
    """
    broker = await start_kafka(properties={"transaction.partition.verification.enable": "false"})
    names = Topics.of(prefix)
    await create(Kafka(broker.bootstrap), prefix, 2)
    settings = WorkerSettings(bootstrap=broker.bootstrap, topic_prefix=prefix, group=prefix + "g")
    for number in range(2):
        name = transactional_ids(prefix, number)[number]
        async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=name) as producer:
            identity = producer._txn_manager.producer_id, producer._txn_manager.producer_epoch
            batch = batch_of([(b"0", Sealed(end_ms=8_000).SerializeToString())], in_transaction_of=identity)
            await append_batch(broker.bootstrap, names.sealed, number, batch, transactional_id=name)
    async with Cluster.open(settings.kafka) as cluster:
        await cluster.look_up([names.sealed, names.requests])
        seals = SealLog(cluster, names.sealed, LIMIT_S)
        for number in range(2):
            sender = KafkaSender(settings, cluster, number, names)
            await sender.start()
            barrier = await sender.barrier()
            assert await seals.seals(number, barrier.sealed) == []
            await sender.stop()


async def test_an_owner_that_was_shut_out_passes_no_barrier(start: Start) -> None:
    old, new = await start(), await start()
    with pytest.raises(FencedError):
        await old.barrier()
    assert None not in await new.barrier()


async def test_a_broker_that_allows_no_transaction_that_long_names_the_setting(start_kafka: StartKafka) -> None:
    broker = await start_kafka(properties={"transaction.max.timeout.ms": "5000"})
    settings = WorkerSettings(bootstrap=broker.bootstrap, transaction_timeout_s=5.1)
    async with Cluster.open(settings.kafka) as cluster:
        sender = KafkaSender(settings, cluster, 0, Topics())
        with pytest.raises(
            SettingsError, match=r"^transaction_timeout_s 5\.1: .* transaction\.max\.timeout\.ms: give less"
        ):
            await sender.start()
        await sender.stop()
