"""Cancels and moves against a real broker; the test itself plays the worker that answers them."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord
from batches import append_batch, batch_of
from brokers import StartKafka, administering, make_topic
from patience import LIMIT_S

from kafka_timers import Answer, AnswerError, Outcome, PublishError, RequestError, TimerClient, TopicsError, WhenError
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.topics import create
from kafka_timers.core.routing import partition_of
from kafka_timers.core.wire import Condition, Reply, future_from

PARTITIONS = 8
FAR = 4_000_000_000

Record = ConsumerRecord[bytes, bytes]


@pytest.fixture
async def topics(bootstrap: str, prefix: str) -> str:
    """The prefix of topics that exist."""
    await create(Kafka(bootstrap), prefix, PARTITIONS)
    return prefix


@pytest.fixture
async def client(bootstrap: str, topics: str) -> AsyncIterator[TimerClient]:
    async with TimerClient(bootstrap, topic_prefix=topics) as client:
        yield client


@pytest.fixture
async def producer(bootstrap: str) -> AsyncIterator[AIOKafkaProducer]:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        yield producer


@pytest.fixture
async def requests(bootstrap: str, topics: str) -> AsyncIterator[AIOKafkaConsumer]:
    """Reads `timer-request` from its beginning."""
    async with AIOKafkaConsumer(
        topics + "timer-request", bootstrap_servers=bootstrap, auto_offset_reset="earliest"
    ) as consumer:
        yield consumer


def place(record: Record) -> str:
    return f"{record.partition}:{record.offset}"


async def reply(producer: AIOKafkaProducer, record: Record, **given: Any) -> None:
    """Answer the cancel or move *record*, with CANCELLED unless something else is given."""
    future = future_from(record.value)
    content = {"timerId": future.timerId, "outcome": Reply.CANCELLED, "second": FAR, "millis": 7, "request": "0:0"}
    answer = Reply(**(content | {"asked": place(record)} | given))
    await producer.send_and_wait(future.replyTopic, answer.SerializeToString(), future.timerId.encode())


@asynccontextmanager
async def working(requests: AIOKafkaConsumer, producer: AIOKafkaProducer) -> AsyncIterator[None]:
    """A worker that answers every request."""

    async def work() -> None:
        async for record in requests:
            await reply(producer, record)

    task = asyncio.create_task(work())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def asked(call: Coroutine[Any, Any, Answer], requests: AIOKafkaConsumer) -> tuple[asyncio.Task[Answer], Record]:
    """Begin *call*, and return it with its published record."""
    task = asyncio.create_task(call)
    return task, await asyncio.wait_for(requests.getone(), LIMIT_S)


async def test_cancel_is_published_for_the_partition_of_its_id_and_its_answer_returned(
    topics: str, client: TimerClient, requests: AIOKafkaConsumer, producer: AIOKafkaProducer
) -> None:
    call, record = await asked(client.cancel("größe"), requests)
    future = future_from(record.value)
    assert (record.key, record.partition) == ("größe".encode(), partition_of("größe", PARTITIONS))
    assert [field.name for field, _ in future.ListFields()] == ["timerId", "cancel", "replyTopic"]
    assert (future.timerId, future.cancel, future.replyTopic) == ("größe", True, topics + "timer-reply")
    await reply(producer, record, outcome=Reply.CANCELLED, second=FAR, request="3:17")
    assert await call == Answer(Outcome.CANCELLED, FAR * 1000 + 7, "3:17", place(record))


async def test_move_is_a_whole_request_with_an_answer(
    topics: str, client: TimerClient, requests: AIOKafkaConsumer, producer: AIOKafkaProducer
) -> None:
    given: dict[str, Any] = {"topic": "reminders", "key": "k", "value": b"v", "token": "t"}
    call, record = await asked(client.move("id", FAR + 0.007, headers=[("a", b"b")], **given), requests)
    future = future_from(record.value)
    assert (record.key, record.partition) == (b"4000000000", partition_of("id", PARTITIONS))
    assert (future.timerId, future.cancel, future.replyTopic) == ("id", False, topics + "timer-reply")
    assert (future.callBackTopic, future.callBackKey, future.callBack) == ("reminders", "k", b"v")
    assert (future.token, future.millis, future.headers[0].key) == ("t", 7, "a")
    await reply(producer, record, outcome=Reply.MOVED, second=FAR, request="3:16")
    assert await call == Answer(Outcome.MOVED, FAR * 1000 + 7, "3:16", place(record))


async def test_create_is_a_whole_request_under_a_condition(
    topics: str, client: TimerClient, requests: AIOKafkaConsumer, producer: AIOKafkaProducer
) -> None:
    given: dict[str, Any] = {"topic": "reminders", "key": "k", "value": b"v", "token": "t"}
    call, record = await asked(client.create("id", FAR + 0.007, headers=[("a", b"b")], **given), requests)
    future = future_from(record.value)
    assert (record.key, record.partition) == (b"4000000000", partition_of("id", PARTITIONS))
    assert (future.timerId, future.condition, future.ifRequest) == ("id", Condition.IF_ABSENT, "")
    assert (future.callBackTopic, future.callBackKey, future.callBack) == ("reminders", "k", b"v")
    assert (future.token, future.millis, future.headers[0].key) == ("t", 7, "a")
    assert future.replyTopic == topics + "timer-reply"
    await reply(producer, record, outcome=Reply.ACCEPTED, second=0, request="")
    assert await call == Answer(Outcome.ACCEPTED, None, None, place(record))


async def test_cancel_and_move_name_the_pending_request_that_they_mean(
    client: TimerClient, requests: AIOKafkaConsumer, producer: AIOKafkaProducer
) -> None:
    meant = f"{partition_of('id', PARTITIONS)}:17"
    for conditional in (
        client.cancel("id", if_pending=True, request=meant),
        client.move("id", FAR, topic="reminders", if_pending=True, request=meant),
    ):
        call, record = await asked(conditional, requests)
        future = future_from(record.value)
        assert (future.condition, future.ifRequest) == (Condition.IF_PENDING, meant)
        await reply(producer, record, outcome=Reply.IGNORED, second=FAR, request="3:18")
        assert await call == Answer(Outcome.IGNORED, FAR * 1000 + 7, "3:18", place(record))


@pytest.mark.parametrize("outcome", Outcome)
async def test_every_outcome_is_told(
    client: TimerClient, requests: AIOKafkaConsumer, producer: AIOKafkaProducer, outcome: Outcome
) -> None:
    call, record = await asked(client.cancel("id"), requests)
    known = {"second": 0, "request": ""} if outcome is Outcome.UNKNOWN else {}
    await reply(producer, record, outcome=Reply.Outcome.Value(outcome), **known)
    due_ms, request = (None, None) if outcome is Outcome.UNKNOWN else (FAR * 1000 + 7, "0:0")
    assert await call == Answer(outcome, due_ms, request, place(record))


async def test_answer_may_come_before_the_place_of_its_question(
    client: TimerClient, requests: AIOKafkaConsumer, producer: AIOKafkaProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish, acknowledged = client._channel.publish, asyncio.Event()

    async def slowly(*given: Any) -> tuple[int, int]:
        where = await publish(*given)
        await acknowledged.wait()
        return where

    monkeypatch.setattr(client._channel, "publish", slowly)
    call, record = await asked(client.cancel("id"), requests)
    await reply(producer, record)
    monkeypatch.setattr(client._channel, "publish", publish)
    # Answers to one id lie in one partition: the one before was read before this one.
    other, later = await asked(client.cancel("id"), requests)
    await reply(producer, later)
    await other
    assert not call.done()
    acknowledged.set()
    assert (await asyncio.wait_for(call, LIMIT_S)).asked == place(record)


async def test_two_clients_on_one_reply_topic_get_their_own_answers(
    bootstrap: str, topics: str, client: TimerClient, requests: AIOKafkaConsumer, producer: AIOKafkaProducer
) -> None:
    async with TimerClient(bootstrap, topic_prefix=topics) as other:
        mine, first = await asked(client.cancel("id"), requests)
        theirs, second = await asked(other.cancel("id"), requests)
        await reply(producer, second, outcome=Reply.UNKNOWN)
        assert ((await theirs).outcome, (await theirs).asked) == (Outcome.UNKNOWN, place(second))
        assert not mine.done()
        await reply(producer, first)
        assert ((await mine).outcome, (await mine).asked) == (Outcome.CANCELLED, place(first))


async def test_foreign_records_on_the_reply_topic_are_ignored(
    bootstrap: str, topics: str, client: TimerClient, requests: AIOKafkaConsumer, producer: AIOKafkaProducer
) -> None:
    call, record = await asked(client.cancel("id"), requests)
    for key, value in [
        (None, b"x"),
        (b"id", None),
        (b"id", b""),
        (b"id", b"\xff\x00"),
        (b"\xff", b"\xff"),
        (b"x", b""),
    ]:
        await producer.send_and_wait(topics + "timer-reply", value, key)
    for partition in range(PARTITIONS):
        odd = batch_of([(b"id", b"\xff")] * 3, odd=(1,))
        await append_batch(bootstrap, topics + "timer-reply", partition, odd)
    await reply(producer, record, outcome=Reply.OUTCOME_UNSPECIFIED)
    await reply(producer, record, outcome=77)
    await reply(producer, record, asked="7:1000")
    await reply(producer, record, asked="")
    await reply(producer, record, outcome=Reply.TOO_LATE)
    assert (await asyncio.wait_for(call, LIMIT_S)).outcome is Outcome.TOO_LATE


async def test_answer_that_comes_twice_does_no_harm(
    client: TimerClient, requests: AIOKafkaConsumer, producer: AIOKafkaProducer
) -> None:
    call, record = await asked(client.cancel("id"), requests)
    again, other = await asked(client.cancel("id"), requests)
    # In one batch, so that the caller has not taken the first when the second is read.
    await asyncio.gather(reply(producer, record), reply(producer, record))
    assert (await call).asked == place(record)
    await reply(producer, other)
    assert (await again).asked == place(other)


async def test_thousand_at_once_get_an_answer_each(
    client: TimerClient, requests: AIOKafkaConsumer, producer: AIOKafkaProducer
) -> None:
    async def work() -> None:
        while True:
            for records in (await requests.getmany(timeout_ms=1_000)).values():
                await asyncio.gather(*(reply(producer, record, request="1:1") for record in records))

    worker = asyncio.create_task(work())
    answers = await asyncio.gather(*(client.cancel(f"id-{number}") for number in range(1_000)))
    worker.cancel()
    await asyncio.wait([worker])
    assert [int(answer.asked.split(":")[0]) for answer in answers] == [
        partition_of(f"id-{number}", PARTITIONS) for number in range(1_000)
    ]
    assert len({answer.asked for answer in answers}) == 1_000


async def test_answer_is_there_as_soon_as_it_is_written(
    client: TimerClient, requests: AIOKafkaConsumer, producer: AIOKafkaProducer
) -> None:
    took_ms = []
    for number in range(30):
        call, record = await asked(client.cancel(f"id-{number}"), requests)
        started_s = time.monotonic()
        await reply(producer, record)
        await call
        took_ms.append((time.monotonic() - started_s) * 1_000)
    # The broker's acknowledgement is in it. A machine that does other things too is slow for most of them.
    assert sorted(took_ms)[2] < 25, took_ms


async def test_without_an_answer_it_says_where_the_cancel_stands(
    client: TimerClient, requests: AIOKafkaConsumer, producer: AIOKafkaProducer
) -> None:
    call, record = await asked(client.cancel("order-7", timeout_s=0.2), requests)
    with pytest.raises(
        AnswerError, match=r"no answer came within 0.2 s. The cancel of 'order-7' was accepted"
    ) as caught:
        await call
    assert caught.value.asked == place(record)
    text = (
        f"in partition {record.partition} of timer-request at offset {record.offset}, and stands: `kafka-timers find`"
    )
    assert text in str(caught.value)
    await reply(producer, record)  # the late one disturbs nobody
    move, moved = await asked(client.move("order-7", FAR, topic="calls", timeout_s=0.2), requests)
    with pytest.raises(AnswerError, match=r"The move of 'order-7' .* and stands:"):
        await move
    with pytest.raises(AnswerError, match=r"The create of 'order-7' .* and stands if its condition holds:"):
        await client.create("order-7", FAR, topic="calls", timeout_s=0.2)
    async with working(requests, producer):
        await client.cancel("order-7")
    assert moved.partition == record.partition


async def test_a_question_without_an_answer_has_changed_nothing(
    client: TimerClient, requests: AIOKafkaConsumer, producer: AIOKafkaProducer
) -> None:
    gone = f"{partition_of('id', PARTITIONS)}:99"
    calls = (
        client.get("id", timeout_s=0.2),
        client.move("id", FAR, timeout_s=0.2),
        client.move("id", FAR, request=gone, timeout_s=0.2),
    )
    words = r"no answer came within 0.2 s. The question about 'id' is in partition .* and changes nothing"
    for call in calls:
        with pytest.raises(AnswerError, match=words):
            await call


async def test_broker_that_tells_no_offset_is_said(client: TimerClient, monkeypatch: pytest.MonkeyPatch) -> None:
    async def untold(*_: Any) -> tuple[int, int]:
        return 3, -1

    monkeypatch.setattr(client._channel, "publish", untold)
    with pytest.raises(AnswerError, match=r"did not tell its offset.* in partition 3 of timer-request") as caught:
        await asyncio.wait_for(client.cancel("id", timeout_s=LIMIT_S), LIMIT_S / 2)
    assert caught.value.asked is None


async def test_client_that_is_stopped_waits_for_no_answer(
    bootstrap: str, topics: str, requests: AIOKafkaConsumer
) -> None:
    async with TimerClient(bootstrap, topic_prefix=topics) as client:
        call, _ = await asked(client.cancel("id", timeout_s=600), requests)
    with pytest.raises(AnswerError, match=r"stopped before the answer came.*and stands"):
        await asyncio.wait_for(call, LIMIT_S / 2)
    with pytest.raises(PublishError, match="not started"):
        await client.cancel("id")


async def test_call_that_is_cancelled_disturbs_no_other(
    client: TimerClient, requests: AIOKafkaConsumer, producer: AIOKafkaProducer
) -> None:
    call, record = await asked(client.cancel("id"), requests)
    other, later = await asked(client.cancel("id"), requests)
    call.cancel()
    await reply(producer, record)
    await reply(producer, later)
    assert (await other).asked == place(later)
    assert call.cancelled()


async def test_reply_topic_of_ones_own(
    bootstrap: str, topics: str, requests: AIOKafkaConsumer, producer: AIOKafkaProducer
) -> None:
    await make_topic(bootstrap, topics + "answers", 2)
    async with TimerClient(bootstrap, topic_prefix=topics, reply_topic=topics + "answers") as client:
        call, record = await asked(client.cancel("id"), requests)
        assert future_from(record.value).replyTopic == topics + "answers"
        await reply(producer, record)
        assert (await call).outcome is Outcome.CANCELLED


async def test_missing_reply_topic_is_named_before_anything_is_published(bootstrap: str, topics: str) -> None:
    async with TimerClient(bootstrap, topic_prefix=topics, reply_topic=topics + "nowhere") as client:
        with pytest.raises(TopicsError, match=f"{topics}nowhere is missing"):
            await client.cancel("id")
        timer = await client.at(FAR, topic="calls", timer_id="id")
        assert timer.offset == 0


async def test_answers_are_read_on_when_the_reply_topic_was_made_anew(
    bootstrap: str, topics: str, client: TimerClient, requests: AIOKafkaConsumer, producer: AIOKafkaProducer
) -> None:
    for _ in range(3):
        call, record = await asked(client.cancel("id"), requests)
        await reply(producer, record)
        await call
    call, record = await asked(client.cancel("id", timeout_s=600), requests)
    async with administering(bootstrap) as admin:
        await admin.delete_topics([topics + "timer-reply"])
        await until_gone(admin.list_topics, topics + "timer-reply")
    await make_topic(bootstrap, topics + "timer-reply", PARTITIONS)
    await reply(producer, record)
    assert (await asyncio.wait_for(call, LIMIT_S)).outcome is Outcome.CANCELLED
    async with working(requests, producer):
        assert (await client.cancel("id")).outcome is Outcome.CANCELLED


async def test_broker_that_was_away_brings_answers_again(start_kafka: StartKafka, prefix: str) -> None:
    broker = await start_kafka()
    await create(Kafka(broker.bootstrap), prefix, 1)
    async with TimerClient(broker.bootstrap, topic_prefix=prefix, timeout_s=6.0) as client:
        async with (
            AIOKafkaConsumer(prefix + "timer-request", bootstrap_servers=broker.bootstrap) as requests,
            AIOKafkaProducer(bootstrap_servers=broker.bootstrap) as producer,
            working(requests, producer),
        ):
            await requests.seek_to_end()
            await client.cancel("id")
        await broker.stop()
        with pytest.raises(PublishError):
            await client.cancel("id")
        await broker.start()
        call = asyncio.create_task(client.cancel("id", timeout_s=LIMIT_S))
        async with (
            AIOKafkaConsumer(
                prefix + "timer-request", bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest"
            ) as requests,
            AIOKafkaProducer(bootstrap_servers=broker.bootstrap) as producer,
            working(requests, producer),
        ):
            assert (await call).outcome is Outcome.CANCELLED


async def until_gone(names: Callable[[], Coroutine[Any, Any, list[str]]], name: str) -> None:
    while name in await names():  # noqa: ASYNC110  # a broker has to be asked
        await asyncio.sleep(0.02)


async def test_given_producer_is_answered_too(
    bootstrap: str, topics: str, requests: AIOKafkaConsumer, producer: AIOKafkaProducer
) -> None:
    # The address of the client is not used.
    async with (
        TimerClient("127.0.0.1:1", topic_prefix=topics, producer=producer) as client,
        working(requests, producer),
    ):
        assert (await client.cancel("id")).outcome is Outcome.CANCELLED


async def test_transactional_producer_is_told_that_no_answer_can_come(bootstrap: str, topics: str) -> None:
    async with (
        AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=topics) as producer,
        TimerClient(topic_prefix=topics, producer=producer) as client,
        producer.transaction(),
    ):
        with pytest.raises(RequestError, match="use a client whose producer is not transactional"):
            await client.cancel("id")


async def test_a_request_is_checked_before_anything_else(client: TimerClient) -> None:
    with pytest.raises(RequestError, match="timer_id is empty"):
        await client.cancel("")
    with pytest.raises(RequestError, match="timer_id is of type int"):
        await client.cancel(7)  # type: ignore[arg-type]
    with pytest.raises(WhenError):
        await client.move("id", 0, topic="calls")
    with pytest.raises(RequestError, match="timer service's own"):
        await client.move("id", FAR, topic=client._reply_topic)
    foreign = (partition_of("id", PARTITIONS) + 1) % PARTITIONS
    with pytest.raises(RequestError, match="not one of 'id': all requests of this timer id lie in partition"):
        await client.cancel("id", if_pending=True, request=f"{foreign}:17")
    assert client._channel._answers is None
