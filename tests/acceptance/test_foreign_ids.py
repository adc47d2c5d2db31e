"""Records with a timer id that a client's own partitioner has put into another partition than that of the id."""

import asyncio
import time
from collections import Counter

from aiokafka import ConsumerRecord
from confluent_kafka import Producer
from patience import LIMIT_S, SOON_S
from service import Service
from test_cancel import replies_in

from kafka_timers import Future
from kafka_timers.core.routing import partition_of
from kafka_timers.core.wire import Reply


class Plain:
    """A producer that leaves the partition to librdkafka, which hashes the key; a request's key is its second."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.producer = Producer({"bootstrap.servers": service.bootstrap, "linger.ms": 0})
        self.placed: dict[str, str] = {}  # partition:offset of each record by its name

    def ask(self, timer_id: str, second: int, partition: int = -1) -> None:
        service = self.service
        future = Future(timerId=timer_id, replyTopic=service.topics.replies, callBackTopic=service.callbacks)
        future.callBack = timer_id.encode()
        self._send(timer_id, str(second), future, partition)

    def cancel(self, timer_id: str, partition: int = -1) -> None:
        future = Future(timerId=timer_id, replyTopic=self.service.topics.replies, cancel=True)
        self._send(f"cancel {timer_id}", timer_id, future, partition)

    def _send(self, what: str, key: str, future: Future, partition: int) -> None:
        def accepted(error: object, message: object) -> None:
            assert error is None, error
            self.placed[what] = f"{message.partition()}:{message.offset()}"

        self.producer.produce(
            self.service.topics.requests, future.SerializeToString(), key, partition=partition, on_delivery=accepted
        )

    async def done(self) -> None:
        assert await asyncio.to_thread(self.producer.flush, LIMIT_S) == 0

    def is_foreign(self, timer_id: str) -> bool:
        home = partition_of(timer_id, self.service.partitions)
        return not self.placed[timer_id].startswith(f"{home}:")


def header(record: ConsumerRecord, name: str) -> str:
    return (dict(record.headers).get(name) or b"").decode()


async def test_a_producer_need_not_know_the_partition_of_an_id(service: Service) -> None:
    await service.start("oscillator")
    worker = await service.firing()
    plain, due, ids = Plain(service), int(time.time()) + SOON_S, [f"id-{number}" for number in range(12)]
    for number, timer_id in enumerate(ids):
        plain.ask(timer_id, due + number % 2)
    await plain.done()
    foreign = [timer_id for timer_id in ids if plain.is_foreign(timer_id)]
    # Before some of the requests have arrived.
    for timer_id in ids[:5]:
        plain.cancel(timer_id)
    await plain.done()
    records = await service.read(service.callbacks, len(ids) - 5)
    assert sorted(record.value.decode() for record in records) == sorted(ids[5:])
    for record in records:
        timer_id = record.value.decode()
        home = partition_of(timer_id, service.partitions)
        assert header(record, "timer-request").startswith(f"{home}:")
        if timer_id in foreign:
            assert header(record, "timer-forwarded") == plain.placed[timer_id]
        else:
            assert header(record, "timer-request") == plain.placed[timer_id]
            assert "timer-forwarded" not in dict(record.headers)
    replies = await replies_in(service, len(plain.placed))
    outcomes = {reply.asked: reply.outcome for reply in replies}
    assert outcomes.keys() == set(plain.placed.values())
    assert {outcomes[plain.placed[timer_id]] for timer_id in ids[5:]} == {Reply.UNKNOWN}
    # A cancel has found its request, or was there first, and nothing fires.
    for timer_id in ids[:5]:
        answers = outcomes[plain.placed[timer_id]], outcomes[plain.placed[f"cancel {timer_id}"]]
        assert answers in ((Reply.UNKNOWN, Reply.CANCELLED), (Reply.IGNORED, Reply.UNKNOWN))
    # Cancels have the id as their key, and librdkafka hashes that in another way.
    astray = [what for what, at in plain.placed.items() if not at.startswith(f"{home_of(service, what)}:")]
    assert worker.metric("kafka_timers_forwarded_total") == len(astray) > 0
    assert worker.metric("kafka_timers_rejected_total") == 0


def home_of(service: Service, what: str) -> int:
    return partition_of(what.removeprefix("cancel "), service.partitions)


async def test_a_cancel_takes_back_a_request_that_arrives_after_it(service: Service) -> None:
    plain, second, home = Plain(service), int(time.time()) + 3600, partition_of("a", service.partitions)
    plain.ask("a", second, (home + 1) % service.partitions)
    await plain.done()
    await asyncio.sleep(0.05)  # so that their append times differ
    plain.cancel("a", home)
    await plain.done()
    await service.start("oscillator")
    await service.firing()
    replies = await replies_in(service, 2)
    told = {reply.asked: Reply.Outcome.Name(reply.outcome) for reply in replies}
    assert told == {plain.placed["cancel a"]: "UNKNOWN", plain.placed["a"]: "IGNORED"}


async def test_a_request_that_was_sent_on_before_is_refused_in_a_foreign_partition(service: Service) -> None:
    await service.worker()
    second = int(time.time()) - 100
    home = partition_of("a", service.partitions)
    future = Future(timerId="a", callBackTopic=service.callbacks)
    future.forwarded.fromPartition = home
    where = await service.request(second, future, partition=(home + 1) % service.partitions)
    await service.tick(second)
    [rejected] = await service.read(service.topics.rejected, 1)
    assert header(rejected, "timer-rejected-reason") == "id-in-foreign-partition"
    assert header(rejected, "timer-rejected-partition") + ":" + header(rejected, "timer-rejected-offset") == where


async def test_each_is_sent_on_once_though_workers_are_killed(service: Service) -> None:
    await service.start("oscillator")
    worker = await service.firing()
    plain, ids = Plain(service), [f"id-{number}" for number in range(600)]
    due = int(time.time()) + 12
    for number, timer_id in enumerate(ids):
        plain.ask(timer_id, due)
        if number % 200 == 100:
            await plain.done()
            worker.child.kill()
            await worker.child.wait()
            worker = await service.start("worker", "--seal-every-s", "1")
    await plain.done()
    records = await service.read(service.callbacks, len(ids))
    assert Counter(record.value.decode() for record in records) == Counter(ids)
