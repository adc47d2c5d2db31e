"""Requests that mean something on a condition only: judged once, and the same after worker and disk are lost."""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition
from patience import LIMIT_S, SOON_S
from service import Process, Service, take

from kafka_timers import Answer, Callback, Outcome, Pending, RetryPolicy, TimerClient, request_from


class Live:
    """A service that ticks, its only worker, and a client; tests use timer ids of their own."""

    def __init__(self, service: Service, worker: Process, client: TimerClient) -> None:
        self.service = service
        self.worker = worker
        self.client = client

    async def lose_the_worker(self) -> None:
        """Kill the worker and remove its disk; another one takes over with an empty one."""
        self.worker.child.kill()
        await self.worker.child.wait()
        shutil.rmtree(self.worker.data_dir)
        self.worker = await self.service.firing()

    async def fired(self, timer_id: str, until_s: float) -> list[str]:
        """Return the requests of *timer_id* that have fired, once the second *until_s* has been sealed."""
        await until(until_s)
        await self.service.until_sealed(int(until_s))
        async with self.service.reading(self.service.callbacks) as consumer:
            callbacks = await take(consumer, 1, LIMIT_S)
            while more := await take(consumer, 1, 1.0):
                callbacks += more
        mine = [record for record in callbacks if dict(record.headers).get("timer-id") == timer_id.encode()]
        return [request_from(record.headers) or "" for record in mine]

    async def ask(self, call: str, timer_id: str, when: float, **more: object) -> Answer:
        """Create or move a timer."""
        answer: Answer = await getattr(self.client, call)(timer_id, when, topic=self.service.callbacks, **more)
        return answer


@pytest.fixture(scope="module")
async def live(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    prefix = f"conditions-{time.time_ns()}-"
    folder: Path = tmp_path_factory.mktemp("conditions")
    async with Service(bootstrap, prefix, folder) as service, TimerClient(bootstrap, topic_prefix=prefix) as client:
        await service.start("oscillator")
        yield Live(service, await service.firing(), client)


async def until(second: float) -> None:
    await asyncio.sleep(max(second - time.time(), 0))


def soon() -> int:
    """A second that is far enough ahead to ask for something before it."""
    return int(time.time()) + SOON_S


async def test_a_late_move_fires_twice_without_a_condition_and_not_at_all_with_one(live: Live) -> None:
    due = soon()
    plain = await live.ask("create", "plain", due)
    conditional = await live.ask("create", "conditional", due)
    await until(due + 0.2)
    late = await live.ask("move", "plain", due + 2)
    ignored = await live.ask("move", "conditional", due + 2, if_pending=True)
    assert late == Answer(Outcome.TOO_LATE, due * 1000, plain.asked, late.asked)
    assert ignored == Answer(Outcome.IGNORED, due * 1000, conditional.asked, ignored.asked)
    assert sorted(await live.fired("plain", due + 2)) == sorted([plain.asked, late.asked])
    assert await live.fired("conditional", due + 2) == [conditional.asked]


async def test_a_timer_that_is_created_twice_stands_once(live: Live) -> None:
    due = soon()
    answers = await asyncio.gather(*(live.ask("create", "twice", due + number) for number in (0, 1, 2)))
    [accepted] = [answer for answer in answers if answer.outcome is Outcome.ACCEPTED]
    ignored = [answer for answer in answers if answer.outcome is Outcome.IGNORED]
    assert [answer.request for answer in ignored] == [accepted.asked] * 2
    assert await live.fired("twice", due + 2) == [accepted.asked]
    # It is known for an hour more.
    again = await live.ask("create", "twice", soon() + 1000)
    assert (again.outcome, again.request) == (Outcome.IGNORED, accepted.asked)


async def test_a_cancel_that_names_another_version_is_ignored(live: Live) -> None:
    due = soon() + 1
    first = await live.ask("create", "named", due)
    moved = await live.ask("move", "named", due + 1, if_pending=True, request=first.asked)
    assert moved == Answer(Outcome.MOVED, due * 1000, first.asked, moved.asked)
    other = await live.client.cancel("named", if_pending=True, request=first.asked)
    assert other == Answer(Outcome.IGNORED, (due + 1) * 1000, moved.asked, other.asked, waits=True)
    assert await live.fired("named", due + 1) == [moved.asked]
    gone = await live.client.cancel("named", if_pending=True)
    assert (gone.outcome, gone.request) == (Outcome.IGNORED, moved.asked)


async def test_an_ignored_request_does_not_fire_after_worker_and_disk_are_lost(live: Live) -> None:
    """Both one that a seal names and one that no seal knew yet when the worker died."""
    due = soon()
    first = await live.ask("create", "lost", due)
    await until(due + 0.2)
    # A worker starts before that.
    later = due + 30
    sealed = await live.ask("move", "lost", later, if_pending=True)
    kept = await live.ask("create", "kept", later)
    moved = await live.ask("move", "kept", later + 1, if_pending=True, request=kept.asked)
    assert await live.fired("lost", due + 1) == [first.asked]
    partition, offset = map(int, sealed.asked.split(":"))
    assert offset in (await live.service.seals())[partition][-1].ignored
    unsealed = [await live.ask("create", timer_id, later) for timer_id in ("lost", "kept")]
    await live.lose_the_worker()
    assert [answer.outcome for answer in (sealed, *unsealed)] == [Outcome.IGNORED] * 3
    assert moved.outcome is Outcome.MOVED
    after = [
        await live.ask("create", "kept", later),
        await live.ask("move", "lost", later, if_pending=True),
        await live.client.cancel("kept", if_pending=True, request=kept.asked),
    ]
    assert [(answer.outcome, answer.request) for answer in after] == [
        (Outcome.IGNORED, moved.asked),
        (Outcome.IGNORED, first.asked),
        (Outcome.IGNORED, moved.asked),
    ]
    assert await live.fired("kept", later + 1) == [moved.asked]
    assert await live.fired("lost", later + 1) == [first.asked]


async def test_get_returns_the_pending_timer_and_changes_nothing(live: Live) -> None:
    due = soon()
    asked = {"topic": live.service.callbacks, "key": "k", "value": b"v", "token": "t", "headers": [("a", None)]}
    timer = await live.client.at(due + 0.25, timer_id="looked at", **asked)
    waiting = await live.client.get("looked at")
    topic = live.service.callbacks
    assert waiting == Pending("looked at", due * 1000 + 250, timer.request, topic, b"k", b"v", "t", (("a", None),))
    assert await live.client.get("nothing of this name") is None
    assert await live.fired("looked at", due + 1) == [timer.request]
    assert await live.client.get("looked at") is None


async def test_the_time_of_a_timer_is_moved_alone_also_by_two_at_once(live: Live) -> None:
    due = soon()
    asked = {"topic": live.service.callbacks, "key": "k", "value": b"v", "token": "t", "headers": [("a", b"1")]}
    await live.client.at(due + 100, timer_id="moved alone", **asked)
    answers = await asyncio.gather(*(live.client.move("moved alone", due + 0.5 * number) for number in range(4)))
    assert {answer.outcome for answer in answers} == {Outcome.MOVED}
    waiting = await live.client.get("moved alone")
    assert waiting is not None
    assert (waiting.topic, waiting.key, waiting.value, waiting.token, waiting.headers) == (
        live.service.callbacks,
        b"k",
        b"v",
        "t",
        (("a", b"1"),),
    )
    assert waiting.request in {answer.asked for answer in answers}
    assert await live.fired("moved alone", due + 3) == [waiting.request]


def first_with(bootstrap: str, topic: str, key: bytes) -> Message:
    """Return the first record on *topic* with the *key*, as confluent-kafka reads it."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "orders", "isolation.level": "read_committed"})
    partitions = consumer.list_topics(topic, LIMIT_S).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
    try:
        while (record := consumer.poll(LIMIT_S)) is not None:
            if record.error() is None and record.key() == key:
                return record
    finally:
        consumer.close()
    raise AssertionError(f"no record with key {key!r} on {topic}")


async def test_a_record_of_another_client_comes_again_once_although_it_is_read_twice(live: Live) -> None:
    """Read by confluent-kafka, which has committed no offset before the first reader has crashed."""
    service, topic = live.service, live.service.callbacks
    # The repeated records lie behind it in its partition, and the second reader does not find them first.
    producer = Producer({"bootstrap.servers": service.bootstrap, "partitioner": "murmur2_random"})
    producer.produce(topic, key=b"order-7", value=b"order", headers=[("trace", b"abc"), ("null", None)])
    producer.flush()
    policy = RetryPolicy(topic, first=0.5)
    for is_again in (False, True):
        record = await asyncio.to_thread(first_with, service.bootstrap, topic, b"order-7")
        retry = await live.client.retry(record, policy, error="no stock", timeout_s=LIMIT_S)
        assert (retry.attempt, retry.gave_up, retry.ignored) == (1, False, is_again)
    until_s = retry.timer.second + 1
    await until(until_s)
    await service.until_sealed(until_s)
    async with service.reading(topic) as consumer:
        read = await take(consumer, 1, LIMIT_S)
        while more := await take(consumer, 1, 1.0):
            read += more
    [again] = [callback for each in read if (callback := Callback.of(each)) and callback.attempt]
    assert (again.key, again.value, again.headers) == (b"order-7", b"order", (("trace", b"abc"), ("null", None)))
    assert (again.attempt, again.timer_id) == (1, None)
