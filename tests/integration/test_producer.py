"""
A producer of batches: each is in the log once, although answers are lost on the way, in both protocols of transactions.

Answers are lost between the broker, which has carried out the request, and the producer.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import (
    KafkaConnectionError,
    ProducerFenced,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)
from aiokafka.record.memory_records import MemoryRecords
from brokers import administering, make_topic
from patience import LIMIT_S

from kafka_timers.broker import codes
from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.producer import Producer
from kafka_timers.broker.refusals import RefusedError
from kafka_timers.broker.requests import ApiVersions, Fetch

_BATCH_BYTES = 4_096
# A broker looks every five minutes for records that are older than a topic keeps them.
NOW_MS = int(time.time() * 1000)


class Lossy(Cluster):
    """
    Brokers that lose some answers.

    Attributes:
        loses: names of requests whose next answer is lost.
        lost: those whose answer was lost.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.loses: set[str] = set()
        self.lost: list[str] = []

    async def send(self, node: int, request: Any, **more: Any) -> Any:
        answer = await super().send(node, request, **more)
        name = type(request).__name__
        if name in self.loses:
            self.loses.remove(name)
            self.lost.append(name)
            raise KafkaConnectionError("the answer is lost")
        return answer


@pytest.fixture
async def topic(address: str, prefix: str) -> str:
    await make_topic(address, prefix + "callbacks", 3)
    return prefix + "callbacks"


@pytest.fixture
async def cluster(address: str) -> AsyncIterator[Lossy]:
    async with Lossy.open(Kafka(address)) as cluster:
        yield cluster


async def started(cluster: Cluster, name: str | None, lane: str = "a", group: str = "") -> Producer:
    producer = Producer(cluster, name, 10.0, _BATCH_BYTES, lane, group)
    await producer.start()
    return producer


def send(producer: Producer, topic: str, *values: bytes, partition: int = 0) -> None:
    batch = producer.new_batch()
    for value in values:
        assert batch.append(timestamp=NOW_MS, key=b"k", value=value, headers=[("h", b"x")])
    producer.send(batch, topic, partition)


async def fetched(cluster: Cluster, topic: str, partition: int = 0) -> tuple[list[Any], list[tuple[int, int]]]:
    """Return all batches of records that *topic* has, and which transactions were aborted."""
    await cluster.look_up([topic])
    leader = cluster.leader(topic, partition)
    assert leader
    position, end, batches, gone = 0, 1, [], {}
    while position < end:
        # The markers of a transaction that has just ended may be on their way, and an answer may end at one.
        request = Fetch(topic, {partition: (-1, position)}, 100, 1 << 20, 1 << 20)
        answer = await cluster.send(leader.node, request, lane="test")
        [(_, [(_, _, end, _, _, aborted, _, data, _)], _)] = answer.topics
        gone |= {producer_id: first for producer_id, first, _ in aborted or []}
        parser = MemoryRecords(data)
        while parser.has_next():
            batches.append(parser.next_batch())
            position = batches[-1].next_offset
    return [batch for batch in batches if not batch.is_control_batch], list(gone.items())


async def values(cluster: Cluster, topic: str, partition: int = 0) -> list[bytes]:
    batches, aborted = await fetched(cluster, topic, partition)
    assert not aborted
    return [record.value for batch in batches for record in batch]


@pytest.mark.parametrize("asked", ["InitProducerId", "AddPartitionsToTxnRequest", "Produce", "EndTxn", "later epoch"])
async def test_a_request_to_the_broker_takes_effect_once_when_the_answer_is_lost(
    cluster: Lossy, topic: str, prefix: str, asked: str
) -> None:
    names = {
        "EndTxn": {"EndTxnRequest", "EndTransaction"},
        "Produce": {"Produce", "ProduceInTransaction"},
        "later epoch": {"InitProducerId", "EndTransaction"},
    }
    losses = names.get(asked, {asked})
    if asked != "later epoch":
        cluster.loses = losses
    producer = await started(cluster, prefix)
    cluster.loses = losses if not cluster.lost else set()
    for count in range(3):
        producer.begin()
        for partition in range(3):
            for number in range(2):
                send(producer, topic, b"%d %d" % (count, number), partition=partition)
        await producer.commit()
        assert await producer.is_held()
    expected = [b"%d %d" % (count, number) for count in range(3) for number in range(2)]
    assert [await values(cluster, topic, partition) for partition in range(3)] == [expected] * 3
    if asked != "AddPartitionsToTxnRequest" or not producer.coordinator.joins_by_writing:
        assert cluster.lost
    await producer.stop()


async def test_records_are_there_once_without_transactions(cluster: Lossy, topic: str) -> None:
    producer = await started(cluster, None)
    cluster.loses = {"Produce"}
    for number in range(5):
        send(producer, topic, b"%d" % number)
    await producer.flush()
    assert cluster.lost == ["Produce"]
    assert await values(cluster, topic) == [b"0", b"1", b"2", b"3", b"4"]
    await producer.stop()


async def test_an_aborted_transaction_can_be_sent_again(cluster: Lossy, topic: str, address: str, prefix: str) -> None:
    """As it is, also in the transactions that follow: a producer is of use after a topic has refused."""
    await make_topic(address, prefix + "small", configs={"max.message.bytes": "300"})
    producer = await started(cluster, prefix)
    good, bad, missing = (producer.new_batch() for _ in range(3))
    good.append(timestamp=NOW_MS, key=None, value=b"good")
    bad.append(timestamp=NOW_MS, key=None, value=b"x" * 1_000)
    missing.append(timestamp=NOW_MS, key=None, value=b"nowhere")
    producer.begin()
    producer.send(good, topic, 0)
    producer.send(bad, prefix + "small", 0)
    producer.send(missing, prefix + "missing", 0)
    with pytest.raises(RefusedError, match=r"small partition 0 does not take it: MESSAGE_TOO_LARGE") as caught:
        await producer.commit()
    assert {(refusal.topic, refusal.code) for refusal in caught.value.refusals} == {
        (prefix + "small", codes.MESSAGE_TOO_LARGE),
        (prefix + "missing", codes.UNKNOWN_TOPIC_OR_PARTITION),
    }
    await producer.abort()
    for _ in range(2):
        producer.begin()
        producer.send(good, topic, 0)
        await producer.commit()
        assert await producer.is_held()
    batches, aborted = await fetched(cluster, topic)
    assert [record.value for batch in batches for record in batch] == [b"good"] * 3
    assert [first for _, first in aborted] == [0]
    await producer.stop()


async def test_an_owner_is_told_that_it_is_one_until_another_was_let_in(
    cluster: Lossy, topic: str, prefix: str
) -> None:
    """Independent of its past: each of these raises its epoch, or does not."""
    producer = await started(cluster, prefix)
    for number in range(30):
        producer.begin()
        send(producer, topic, b"%d" % number)
        await producer.flush()
        await (producer.abort() if number % 3 else producer.commit())
        for _ in range(number % 4):
            assert await producer.is_held()
    other = await started(cluster, prefix, "b")
    assert not await producer.is_held()
    producer.begin()
    send(producer, topic, b"late")
    with pytest.raises(ProducerFenced):
        await producer.commit()
    for each in (producer, other):
        await each.stop()


@pytest.mark.chaos
async def test_a_producer_id_whose_epochs_are_used_up_is_followed_by_another(bootstrap: str, prefix: str) -> None:
    """Each end of a transaction takes an epoch, of which an id has 32,767: hours of seals."""
    await make_topic(bootstrap, prefix)
    async with Cluster.open(Kafka(bootstrap)) as cluster:
        producer = await started(cluster, prefix)
        first = producer.coordinator.identity.producer_id
        while producer.coordinator.identity.epoch < 32_740:
            await producer.coordinator.end(is_commit=False)
        for number in range(60):
            producer.begin()
            send(producer, prefix, b"%d" % number)
            await producer.commit()
            assert await producer.is_held()
        assert producer.coordinator.identity.producer_id != first
        assert await values(cluster, prefix) == [b"%d" % number for number in range(60)]
        await producer.stop()


async def test_the_same_traffic_gives_the_batches_that_aiokafka_sends(
    cluster: Lossy, topic: str, address: str, prefix: str
) -> None:
    """But for their producers: partition 0 is written by aiokafka, partition 1 by us."""
    theirs = AIOKafkaProducer(bootstrap_servers=address, transactional_id=prefix + "theirs", acks="all")
    await theirs.start()
    ours = await started(cluster, prefix)
    for number in range(4):
        ours.begin()
        async with theirs.transaction():
            for part in range(3):
                left, right = theirs.create_batch(), ours.new_batch()
                for place in range(7):
                    record = {
                        "timestamp": NOW_MS + 10 * place - number,
                        "key": [None, b"key"][place % 2],
                        "value": [b"value %d" % part, None][place % 5 == 4],
                        "headers": [(f"h{n}", b"x" * n) for n in range(place)],
                    }
                    assert left.append(**record)
                    assert right.append(**record)
                await theirs.send_batch(left, topic, partition=0)
                ours.send(right, topic, 1)
        await ours.commit()
    await theirs.stop()
    await ours.stop()

    def seen(batch: Any) -> list[Any]:
        head = [
            batch.base_offset,
            batch.is_transactional,
            batch.is_control_batch,
            batch.compression_type,
            batch.timestamp_type,
        ]
        return [head, [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in batch]]

    left, right = [[seen(batch) for batch in (await fetched(cluster, topic, number))[0]] for number in range(2)]
    assert len(left) == 12
    assert left == right


# --- offsets ---------------------------------------------------------------------------------------------------------


async def told(address: str, group: str, topic: str) -> dict[int, int]:
    """Return the offsets that *group* has committed, as a client that is not ours reads them."""
    async with administering(address) as admin:
        offsets = await admin.list_consumer_group_offsets(group)
    return {at.partition: offset.offset for at, offset in offsets.items() if at.topic == topic and offset.offset >= 0}


async def test_offsets_count_with_the_transaction_that_is_committed(
    cluster: Lossy, topic: str, address: str, prefix: str
) -> None:
    producer = await started(cluster, prefix, group=prefix + "g")
    assert await producer.committed(topic, 0) is None
    expected: dict[int, int] = {}
    for number in range(6):
        producer.begin()
        send(producer, topic, b"%d" % number)
        await producer.send_offsets(topic, {0: number, 2: number + 100})
        assert await told(address, prefix + "g", topic) == expected
        # To be aborted when nothing is on its way any more.
        await producer.flush()
        if number % 2:
            await producer.commit()
            expected = {0: number, 2: number + 100}
        else:
            await producer.abort()
        # Each is an aborted transaction of its own, which changes nothing.
        found = [await producer.committed(topic, place) for place in range(3)]
        assert {place: bound.offset for place, bound in enumerate(found) if bound} == expected
        assert await told(address, prefix + "g", topic) == expected
    batches, _ = await fetched(cluster, topic)
    assert len(batches) == 6
    await producer.stop()


async def test_offsets_are_committed_alone_and_for_a_group_that_has_members(
    cluster: Lossy, topic: str, address: str, prefix: str
) -> None:
    group, options = prefix + "g", {"enable_auto_commit": False, "auto_offset_reset": "earliest"}
    async with AIOKafkaConsumer(topic, bootstrap_servers=address, group_id=group, **options) as member:
        async with asyncio.timeout(LIMIT_S):
            while len(member.assignment()) < 3:
                await member.getmany(timeout_ms=50)
        producer = await started(cluster, prefix, group=group)
        assert await producer.committed(topic, 1) is None
        for offset in (5, 7):
            producer.begin()
            await producer.send_offsets(topic, {1: offset})
            await producer.commit()
            assert await producer.committed(topic, 1) == (offset, -1)
            assert await told(address, group, topic) == {1: offset}
        await producer.stop()


@pytest.mark.parametrize("asked", ["AddOffsetsToTxnRequest", "TxnOffsetCommit", "CommittedOffsets", "EndTxn"])
async def test_offsets_are_committed_when_an_answer_is_lost(
    cluster: Lossy, topic: str, address: str, prefix: str, asked: str
) -> None:
    names = {
        "TxnOffsetCommit": {"TxnOffsetCommitRequest", "CommitOffsets"},
        "EndTxn": {"EndTxnRequest", "EndTransaction"},
    }
    producer = await started(cluster, prefix, group=prefix + "g")
    for number in range(3):
        before = producer.coordinator.identity
        cluster.loses = {*names.get(asked, {asked})}
        producer.begin()
        send(producer, topic, b"%d" % number)
        await producer.send_offsets(topic, {0: number})
        await producer.commit()
        if asked == "TxnOffsetCommit":
            # A batch that was not answered may arrive yet, and is refused in the next transaction.
            assert producer.coordinator.identity != before
        assert await producer.committed(topic, 0) == (number, -1)
        assert await told(address, prefix + "g", topic) == {0: number}
    assert await values(cluster, topic) == [b"0", b"1", b"2"]
    if asked != "AddOffsetsToTxnRequest" or not producer.coordinator.joins_by_writing:
        assert cluster.lost
    await producer.stop()


async def test_offsets_of_one_that_was_shut_out_are_refused_and_those_before_are_told(
    cluster: Lossy, topic: str, address: str, prefix: str
) -> None:
    group = prefix + "g"
    first = await started(cluster, prefix, group=group)
    first.begin()
    await first.send_offsets(topic, {0: 4})
    await first.commit()
    first.begin()
    await first.send_offsets(topic, {0: 9})
    second = await started(cluster, prefix, "b", group)
    assert await second.committed(topic, 0) == (4, -1)
    with pytest.raises(ProducerFenced):
        await first.commit()
    for is_read in (False, True):
        with pytest.raises(ProducerFenced):
            await (first.committed(topic, 0) if is_read else first.send_offsets(topic, {0: 9}))
    assert await told(address, group, topic) == {0: 4}
    for each in (first, second):
        await each.stop()


async def test_a_refusal_to_commit_offsets_names_the_broker_and_the_offsets(
    cluster: Lossy, topic: str, prefix: str
) -> None:
    producer = await started(cluster, prefix, group=prefix + "g")
    producer.begin()
    with pytest.raises(
        UnknownTopicOrPartitionError,
        match=rf"broker 1 at .*, the coordinator of group {prefix}g, was asked to commit offsets of {prefix}missing, "
        "partitions 0 and answers UNKNOWN_TOPIC_OR_PARTITION",
    ):
        await producer.send_offsets(prefix + "missing", {0: 1})
    await producer.stop()


# --- brokers ---------------------------------------------------------------------------------------------------------


@pytest.fixture
async def silent() -> AsyncIterator[str]:
    """The address of a broker that takes connections and answers nothing."""

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(hold, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        yield f"{host}:{port}"


async def test_a_broker_that_is_silent_delays_no_question_that_another_can_answer(bootstrap: str, silent: str) -> None:
    async with asyncio.timeout(3), Cluster.open(Kafka(f"{silent},{bootstrap}")) as cluster:
        for _ in range(5):
            await cluster.refresh()
        assert cluster.any_node() == 1


async def test_a_question_that_nobody_answers_says_where_and_for_how_long(silent: str) -> None:
    with pytest.raises(KafkaConnectionError, match=rf"{silent} has not answered Metadata within 0\.2 s"):
        async with Cluster.open(Kafka(silent), limit_s=0.2):
            pass


async def test_a_broker_that_is_frozen_is_asked_again_when_it_goes_on(start_kafka: Any, prefix: str) -> None:
    broker = await start_kafka()
    await make_topic(broker.bootstrap, prefix)
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(Cluster.open(Kafka(broker.bootstrap), limit_s=2))
        producer = await started(cluster, prefix)
        stack.push_async_callback(producer.stop)
        producer.begin()
        send(producer, prefix, b"first")
        await producer.commit()
        broker.pause()
        producer.begin()
        send(producer, prefix, b"second")
        with pytest.raises(RequestTimedOutError, match=rf"{broker.bootstrap} has not answered ApiVersions within 2 s"):
            await cluster.send(1, ApiVersions(), lane="test")
        committing = asyncio.create_task(producer.commit())
        async with asyncio.timeout(LIMIT_S):
            while prefix not in producer.trouble:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        broker.resume()
        await committing
        assert await values(cluster, prefix) == [b"first", b"second"]
