"""The client against a real broker: the records on the topic, their partitions, and the errors."""

import asyncio
import re
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from brokers import administering, make_topic
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from kafka_timers import BrokerError, Every, PublishError, Timer, TimerClient, TopicsError
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.topics import create
from kafka_timers.core.wire import callback_headers, future_from
from kafka_timers.errors import ClientStateError

DOCS = Path(__file__).parents[2] / "docs"
PARTITIONS = 8
FAR = 4_000_000_000


@pytest.fixture
async def topics(bootstrap: str, prefix: str) -> str:
    """The prefix of topics that exist."""
    await create(Kafka(bootstrap), prefix, PARTITIONS)
    return prefix


@pytest.fixture
async def client(bootstrap: str, topics: str) -> AsyncIterator[TimerClient]:
    async with TimerClient(bootstrap, topic_prefix=topics) as client:
        yield client


async def read(bootstrap: str, topic: str, *, committed: bool = True) -> list[ConsumerRecord[bytes, bytes]]:
    """All records of *topic*, by partition and offset."""
    isolation = "read_committed" if committed else "read_uncommitted"
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap, isolation_level=isolation) as consumer:
        partitions = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
        consumer.assign(partitions)
        await consumer.seek_to_beginning()
        ends = await consumer.end_offsets(partitions)
        records = []
        while any([await consumer.position(partition) < ends[partition] for partition in partitions]):
            for some in (await consumer.getmany(timeout_ms=200)).values():
                records += some
        return sorted(records, key=lambda record: (record.partition, record.offset))


async def test_request_lies_where_the_timer_says(bootstrap: str, topics: str, client: TimerClient) -> None:
    timer = await client.at(
        FAR + 0.25, topic="reminders", key="order-7", value=b"pay", timer_id="id", token="token", headers=[("a", None)]
    )
    [record] = await read(bootstrap, topics + "timer-request")
    assert (record.key, record.headers) == (b"4000000000", ())
    assert (timer.due_ms, timer.partition, timer.offset) == (FAR * 1000 + 250, record.partition, record.offset)
    assert (timer.timer_id, timer.token, timer.request) == ("id", "token", f"{record.partition}:{record.offset}")
    future = future_from(record.value)
    assert (future.callBackTopic, future.callBackKey, future.callBack) == ("reminders", "order-7", b"pay")
    assert (future.timerId, future.token, future.headers[0].key, future.millis) == ("id", "token", "a", 250)


async def test_delay_counts_from_this_hosts_clock(client: TimerClient) -> None:
    before = time.time()
    timer = await client.after(30.5, topic="reminders")
    assert before + 30.5 <= timer.due_ms / 1000 + 1e-6 < time.time() + 30.502


async def test_send_later_asks_for_key_and_value_on_the_topic(bootstrap: str, topics: str, client: TimerClient) -> None:
    await client.send_later(b"order-7", b"pay", "reminders", FAR)
    [record] = await read(bootstrap, topics + "timer-request")
    future = future_from(record.value)
    assert record.key == b"4000000000"
    assert (future.callBackTopic, future.callBackKey, future.callBack) == ("reminders", "order-7", b"pay")


async def test_partition_is_the_one_that_another_client_gives_to_the_timer_id(
    bootstrap: str, topics: str, client: TimerClient
) -> None:
    names = [f"name-{number}-ä" for number in range(50)]
    theirs: dict[str, int] = {}
    producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"})
    for name in names:
        # The other topic with as many partitions.
        producer.produce(
            topics + "oscillator",
            key=name,
            on_delivery=lambda _, done: theirs.update({done.key().decode(): done.partition()}),
        )
    producer.flush()
    for name in names:
        by_id = await client.at(FAR, topic="reminders", key="another", timer_id=name)
        again = await client.at(FAR + 60, topic="reminders", timer_id=name)
        by_key = await client.at(FAR, topic="reminders", key=name.encode())
        assert {by_id.partition, again.partition, by_key.partition} == {theirs[name]}
    assert len(set(theirs.values())) == PARTITIONS


async def test_requests_without_id_and_key_are_spread(client: TimerClient) -> None:
    timers = [await client.at(FAR, topic="reminders") for _ in range(2 * PARTITIONS)]
    assert sorted(timer.partition for timer in timers) == sorted(2 * [*range(PARTITIONS)])


async def test_each_of_many_at_once_gets_its_own_place_in_order_of_the_calls(
    bootstrap: str, topics: str, client: TimerClient
) -> None:
    timers = await asyncio.gather(
        *(client.at(FAR, topic="reminders", key=f"key-{number % 20}", value=b"%d" % number) for number in range(5_000))
    )
    records = {(record.partition, record.offset): record for record in await read(bootstrap, topics + "timer-request")}
    assert len(records) == 5_000
    for number, timer in enumerate(timers):
        assert future_from(records[timer.partition, timer.offset].value).callBack == b"%d" % number
    for key in range(20):
        offsets = [timer.offset for timer in timers[key::20]]
        assert offsets == sorted(offsets)


async def test_request_too_large_fails_alone(client: TimerClient) -> None:
    small, large, other = await asyncio.gather(
        client.at(FAR, topic="reminders", key="k", value=b"small"),
        client.at(FAR, topic="reminders", key="k", value=bytes(2 << 20)),
        client.at(FAR, topic="reminders", key="k", value=b"small"),
        return_exceptions=True,
    )
    assert isinstance(large, PublishError)
    assert not large.retriable
    assert "larger than topic" in str(large)
    assert not isinstance(small, BaseException)
    assert not isinstance(other, BaseException)


async def test_refused_request_disturbs_none_of_those_after_it_or_beside_it(client: TimerClient) -> None:
    """The broker takes the sequence numbers of a refused batch for lost ones; see `RenewableProducer`."""
    for _ in range(3):
        answers = await asyncio.gather(
            client.at(FAR, topic="reminders", key="k", value=bytes(2 << 20)),
            client.at(FAR, topic="reminders", key="other", value=bytes(2 << 20)),
            *(client.at(FAR, topic="reminders", key=f"k{number}", value=bytes(1_000)) for number in range(1_000)),
            return_exceptions=True,
        )
        assert [type(answer) for answer in answers] == 2 * [PublishError] + 1_000 * [Timer]
        assert (await client.at(FAR, topic="reminders", key="k")).offset >= 0


async def test_call_that_is_cancelled_before_it_is_sent_asks_for_nothing(
    bootstrap: str, topics: str, client: TimerClient
) -> None:
    cancelled = asyncio.create_task(client.at(FAR, topic="reminders", key="k", value=b"cancelled"))
    kept = asyncio.create_task(client.at(FAR, topic="reminders", key="k", value=b"kept"))
    asyncio.get_running_loop().call_soon(cancelled.cancel)
    await asyncio.wait([cancelled, kept])
    assert cancelled.cancelled()
    [record] = await read(bootstrap, topics + "timer-request")
    assert future_from(record.value).callBack == b"kept"


async def test_leaving_the_client_waits_for_requests_under_way(bootstrap: str, topics: str) -> None:
    async with TimerClient(bootstrap, topic_prefix=topics) as client:
        calls = [asyncio.create_task(client.at(FAR, topic="reminders")) for _ in range(100)]
        await asyncio.sleep(0)
    assert len({(await call).request for call in calls}) == 100
    with pytest.raises(PublishError, match="not started"):
        await client.at(FAR, topic="reminders")


async def test_a_client_that_has_ended_takes_no_schedule(bootstrap: str, topics: str) -> None:
    async with TimerClient(bootstrap, topic_prefix=topics) as client:
        await client.schedules.put("s", Every(60), topic="reminders")
    with pytest.raises(ClientStateError, match="not started"):
        await client.schedules.put("s", Every(60), topic="reminders")


async def test_timer_of_a_transaction_exists_once_that_commits(bootstrap: str, topics: str, prefix: str) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=prefix) as producer:
        async with TimerClient(topic_prefix=topics, producer=producer) as client:
            await producer.begin_transaction()
            await client.at(FAR, topic="reminders", value=b"aborted")
            await producer.abort_transaction()
            async with producer.transaction():
                timer = await client.at(FAR, topic="reminders", value=b"committed")
            with pytest.raises(PublishError, match="transaction") as caught:
                await client.at(FAR, topic="reminders")
            assert not caught.value.retriable
        async with producer.transaction():  # the client has left the producer running
            pass
    [record] = await read(bootstrap, topics + "timer-request")
    assert future_from(record.value).callBack == b"committed"
    assert f"{record.partition}:{record.offset}" == timer.request


async def test_producer_that_was_not_started_is_named(bootstrap: str, topics: str) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
    with pytest.raises(BrokerError, match="was it started"):
        await TimerClient(topic_prefix=topics, producer=producer).start()
    await producer.stop()


async def test_missing_topic_is_named_and_not_made_by_asking(bootstrap: str, prefix: str) -> None:
    with pytest.raises(TopicsError, match=f"{prefix}timer-request is missing.* kafka-timers topics create"):
        async with TimerClient(bootstrap, topic_prefix=prefix):
            pass
    async with administering(bootstrap) as admin:
        assert prefix + "timer-request" not in await admin.list_topics()


async def test_address_without_a_broker_is_said_at_the_start() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: nobody answers there, nor takes the port
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(BrokerError, match=f"{address}.*start it"):
            async with TimerClient(address):
                pass


async def test_broker_that_goes_away_fails_the_call_in_time_and_serves_the_next_when_it_is_back(
    start_kafka: Callable[..., Awaitable[Any]], prefix: str
) -> None:
    broker = await start_kafka()
    await create(Kafka(broker.bootstrap), prefix, PARTITIONS)
    async with TimerClient(broker.bootstrap, topic_prefix=prefix, timeout_s=6.0) as client:
        await client.at(FAR, topic="reminders", key="k")
        await broker.stop()
        answers = await asyncio.gather(
            *(client.at(FAR, topic="reminders", key="k", value=bytes(50_000)) for _ in range(20)),
            return_exceptions=True,
        )
        for answer in answers:
            assert isinstance(answer, PublishError)
            assert answer.retriable
            assert "within 6 s" in str(answer)
        await broker.start()
        await client.at(FAR, topic="reminders", key="k")


async def test_client_without_the_right_to_write_is_told_so(
    start_kafka: Callable[..., Awaitable[Any]], prefix: str
) -> None:
    broker = await start_kafka(
        properties={
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "true",
        }
    )
    await create(Kafka(broker.bootstrap), prefix, PARTITIONS)
    denied = AclBinding(
        ResourceType.TOPIC,
        prefix + "timer-request",
        ResourcePatternType.LITERAL,
        "User:ANONYMOUS",
        "*",
        AclOperation.WRITE,
        AclPermissionType.DENY,
    )
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})

    async def until_refused(client: TimerClient) -> None:
        while True:  # the broker heeds an ACL a moment after it has taken it
            await client.at(FAR, topic="reminders")

    async with TimerClient(broker.bootstrap, topic_prefix=prefix) as client:
        # Only now: once a topic has an ACL, nobody may see it but by another one.
        for done in admin.create_acls([denied]).values():
            await asyncio.to_thread(done.result)
        with pytest.raises(PublishError, match="may not write") as caught:
            await asyncio.wait_for(until_refused(client), 20)
    assert not caught.value.retriable


def blocks(page: str, bootstrap: str, prefix: str) -> list[str]:
    """The Python of a page of the docs, with the names of this test."""
    text = (DOCS / page).read_text().replace("127.0.0.1:9092", bootstrap).replace('"reminders"', f'"{prefix}reminders"')
    text = text.replace("TimerClient(", f'TimerClient(topic_prefix="{prefix}", bootstrap=')
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


async def test_receiver_on_the_receivers_page_gets_its_callback(
    bootstrap: str, topics: str, capsys: pytest.CaptureFixture[str]
) -> None:
    await make_topic(bootstrap, topics + "reminders")
    names: dict[str, Any] = {}
    exec(blocks("receivers.md", bootstrap, topics)[0], names)
    receiver = asyncio.create_task(names["remind"](delay_s=0))
    async with (
        AIOKafkaConsumer(
            topics + "timer-request", bootstrap_servers=bootstrap, auto_offset_reset="earliest"
        ) as requests,
        AIOKafkaProducer(bootstrap_servers=bootstrap) as service,
    ):
        request = await requests.getone()
        future = future_from(request.value)
        headers = callback_headers(future, int(request.key), b"%d:%d" % (request.partition, request.offset))
        await service.send_and_wait(future.callBackTopic, future.callBack, future.callBackKey.encode(), headers=headers)
        await receiver
    assert capsys.readouterr().out == "b'order-7' b'pay now'\n"
