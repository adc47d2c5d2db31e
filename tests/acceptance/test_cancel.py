"""Timers are cancelled and moved by their id, and the sender gets an answer."""

import asyncio
import random
import time
from collections import defaultdict

from confluent_kafka import Producer
from patience import LIMIT_S, SOON_S
from service import Process, Service

from kafka_timers.core.routing import partition_of
from kafka_timers.core.wire import Future, Reply, last_second_of


class Asker:
    """A client of another kind: plain records by librdkafka, ids in their partitions."""

    def __init__(self, service: Service, **config: object) -> None:
        self.service = service
        self.producer = Producer({"bootstrap.servers": service.bootstrap, "linger.ms": 0, **config})
        self.asked: dict[str, tuple[str, int | None]] = {}  # by partition:offset the id, and the second of a request

    def ask(self, timer_id: str, second: int | None, reply_topic: str | None = None, **more: str) -> None:
        """Ask for a timer, or with no second for its cancel; its callback's value is its id and second."""
        service = self.service
        future = Future(timerId=timer_id, replyTopic=reply_topic or service.topics.replies)
        if second is None:
            future.cancel = True
        else:
            future.callBackTopic, future.callBack = service.callbacks, f"{timer_id}@{second}".encode()
        partition = partition_of(timer_id, service.partitions)
        key = timer_id if second is None else str(second)

        def accepted(error: object, message: object) -> None:
            assert error is None, error
            self.asked[f"{message.partition()}:{message.offset()}"] = (timer_id, second)

        self.producer.produce(
            service.topics.requests, future.SerializeToString(), key, partition=partition, on_delivery=accepted
        )

    async def done(self) -> None:
        """Wait until the broker has all."""
        assert await asyncio.to_thread(self.producer.flush, LIMIT_S) == 0


async def replies_in(service: Service, count: int) -> list[Reply]:
    """Return *count* replies, once there are so many and nothing more comes for a while."""
    async with service.reading(service.topics.replies) as consumer:
        replies: list[Reply] = []
        end_s = time.monotonic() + LIMIT_S
        while time.monotonic() < end_s:
            came = await consumer.getmany(timeout_ms=500)
            replies += [Reply.FromString(record.value) for records in came.values() for record in records]
            if len({reply.asked for reply in replies}) >= count and not came:
                break
        return replies


def told(reply: Reply) -> tuple[str, str, int]:
    return reply.timerId, Reply.Outcome.Name(reply.outcome), reply.second


async def test_cancelled_and_moved_timers_do_not_fire_and_the_sender_gets_an_answer(service: Service) -> None:
    await service.start("oscillator")
    worker = await service.worker()
    await worker.until("/readyz", lambda status, _: status == 200)
    due = int(time.time()) + SOON_S
    asker = Asker(service)
    for timer_id, second in {"keep": due, "drop": due, "later": due, "sooner": due + 1000}.items():
        asker.ask(timer_id, second)
    # A sender that wants no answer gets none.
    asker.ask("quiet", due)
    await asker.done()
    for timer_id, second in {"drop": None, "later": due + 1, "sooner": due, "never-seen": None}.items():
        asker.ask(timer_id, second)
    await asker.done()
    asker.ask("drop", None)
    await asker.done()
    fired = await service.read(service.callbacks, 4)
    for timer_id, second in {"keep": None, "later": due + 1000, "drop": None}.items():
        asker.ask(timer_id, second)
    await asker.done()
    replies = await replies_in(service, 13)
    assert sorted(record.value.decode() for record in fired) == sorted(
        [f"keep@{due}", f"later@{due + 1}", f"sooner@{due}", f"quiet@{due}"]
    )
    assert sorted(map(told, replies)) == sorted(
        [(timer_id, "UNKNOWN", 0) for timer_id in ("keep", "drop", "later", "sooner", "quiet", "never-seen")]
        + [("drop", "CANCELLED", due)] * 3
        + [("later", "MOVED", due), ("sooner", "MOVED", due + 1000)]
        + [("keep", "TOO_LATE", due), ("later", "TOO_LATE", due + 1)]
    )
    for reply in replies:
        assert asker.asked[reply.asked][0] == reply.timerId
        if reply.request:
            assert asker.asked[reply.request] == (reply.timerId, reply.second)
    by_request = {dict(record.headers)["timer-request"].decode() for record in fired}
    assert {reply.request for reply in replies if reply.outcome == Reply.TOO_LATE} <= by_request


async def test_seals_count_cancelled_and_moved_timers(service: Service) -> None:
    await service.worker()
    past, due = int(time.time()) - 100, int(time.time()) + SOON_S
    asker = Asker(service)
    for number in range(40):
        asker.ask(f"id-{number}", due)
    for number in range(30):
        asker.ask(f"id-{number}", None if number < 20 else due + 1000)
    await asker.done()
    await replies_in(service, 70)
    seals = await service.until_sealed(past)
    assert sum(tail[-1].pending for tail in seals.values()) == 20
    await asyncio.sleep(max(due - time.time(), 0))
    seals = await service.until_sealed(due)
    sealed = [seal for tail in seals.values() for seal in tail if last_second_of(seal) == due]
    assert sum(seal.fired for seal in sealed) == 10
    assert (sum(seal.cancelled for seal in sealed), sum(seal.moved for seal in sealed)) == (20, 10)


async def test_a_cancel_that_is_committed_after_the_second_is_too_late(service: Service) -> None:
    await service.start("oscillator")
    await service.worker()
    due = int(time.time()) + SOON_S
    asker = Asker(service, **{"transactional.id": f"{service.prefix}asker"})
    asker.producer.init_transactions(LIMIT_S)
    asker.producer.begin_transaction()
    asker.ask("a", due)
    await asyncio.to_thread(asker.producer.commit_transaction, LIMIT_S)
    asker.producer.begin_transaction()
    asker.ask("a", None)
    await asker.done()
    [fired] = await service.read(service.callbacks, 1)
    await asyncio.to_thread(asker.producer.commit_transaction, LIMIT_S)
    replies = await replies_in(service, 2)
    assert fired.timestamp >= due * 1000
    assert [told(reply) for reply in replies] == [("a", "UNKNOWN", 0), ("a", "TOO_LATE", due)]


async def test_a_reply_topic_that_may_not_be_written_to_stops_neither_the_cancel_nor_the_timers(
    service: Service,
) -> None:
    worker = await service.worker()
    asker, due = Asker(service), int(time.time()) + SOON_S
    for timer_id, reply_topic in (
        ("a", service.topics.sealed),
        ("b", service.prefix + "missing"),
        ("c", "not a topic"),
    ):
        asker.ask(timer_id, due, reply_topic)
        asker.ask(timer_id, None, reply_topic)
        asker.ask(timer_id, due, reply_topic)
    asker.ask("d", due)
    await asker.done()
    [reply] = await replies_in(service, 1)
    assert told(reply) == ("d", "UNKNOWN", 0)
    await asyncio.sleep(max(due - time.time(), 0))
    seals = await service.until_sealed(due)
    assert sum(seal.fired for tail in seals.values() for seal in tail) == 4
    assert worker.metric("kafka_timers_replies_total") == 10
    assert 'kafka_timers_replies_total{outcome="topic-reserved"} 3.0' in worker.get("/metrics")[1]


async def test_answers_are_true_however_often_workers_are_killed(service: Service) -> None:
    """Ids are moved and cancelled close to their seconds while owners die; each answer must fit the callbacks."""
    await service.start("oscillator")
    workers = [await service.worker(), await service.worker()]
    asker, chance = Asker(service), random.Random(5)
    for number in (0, 1, 1, 0):
        end_s = time.monotonic() + 3.5 + chance.random()
        while time.monotonic() < end_s:
            for _ in range(20):
                soon = int(time.time()) + chance.choice((1, 2, 3))
                asker.ask(f"id-{chance.randrange(60)}", chance.choice((soon, soon, None)))
            await asker.done()
            await asyncio.sleep(0.02)
        await killed(service, workers, number)
    last = max(second or 0 for _, second in asker.asked.values())
    await asyncio.sleep(max(last + 1 - time.time(), 0))
    await service.until_sealed(last + 1)
    replies = await replies_in(service, len(asker.asked))
    taken_back = {reply.request for reply in replies if reply.outcome in (Reply.CANCELLED, Reply.MOVED)}
    requests = {at for at, (_, second) in asker.asked.items() if second is not None}
    callbacks = await service.read_all(service.callbacks, len(requests - taken_back), quiet_s=2)
    fired = [dict(record.headers)["timer-request"].decode() for record in callbacks]
    assert len(fired) == len(set(fired))
    outcomes: defaultdict[str, set[int]] = defaultdict(set)
    for reply in replies:
        outcomes[reply.asked].add(reply.outcome)
        if reply.outcome in (Reply.CANCELLED, Reply.MOVED):
            assert reply.request not in fired, reply
        if reply.outcome == Reply.TOO_LATE:
            assert reply.request in fired, reply
    assert outcomes.keys() == asker.asked.keys()
    assert {Reply.CANCELLED, Reply.MOVED, Reply.TOO_LATE} <= set().union(*outcomes.values())
    # And the other way round: timers that were never taken back have fired.
    assert requests - taken_back == set(fired)


async def killed(service: Service, workers: list[Process], number: int) -> None:
    """Kill a worker and start another on its disk."""
    process = workers[number]
    process.child.kill()
    await process.child.wait()
    workers[number] = await service.start("worker", data_dir=process.data_dir)
