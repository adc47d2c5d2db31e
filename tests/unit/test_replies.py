"""Answers on their way out: a seal waits for some, takes others along, and gets an error when they cannot leave."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka.errors import KafkaError

from kafka_timers.core.refused import Reason
from kafka_timers.core.versions import Answer, Letter, Version
from kafka_timers.core.wire import Reply, Sealed
from kafka_timers.runtime.metrics import WorkerMetrics
from kafka_timers.testing import ManualClock
from kafka_timers.worker import outbox as module
from kafka_timers.worker.faults import FaultError, FencedError, Kind
from kafka_timers.worker.outbox import Outbox
from kafka_timers.worker.replies import KafkaReplies

CANCELLED = Answer(7, b"replies", b"a", Reply.CANCELLED, Version(100_000, 3))
UNKNOWN = Answer(8, b"replies", b"b", Reply.UNKNOWN, None)
ELSEWHERE = Answer(9, b"elsewhere", b"c", Reply.UNKNOWN, None)


def letters(*answers: Answer) -> list[Letter]:
    return [Letter.of(answer, 0) for answer in answers]


class Topics:
    """
    Stand for the way to reply topics: keep the sent answers, once they take them.

    Attributes:
        sent: in its order.
        closed: topics that take nothing for now.
        failing: how often more sending fails.
    """

    def __init__(self, *closed: str) -> None:
        self.sent: list[Letter] = []
        self.closed = set(closed)
        self.failing = 0
        self._changed = asyncio.Event()

    async def send(self, topic: str, letters: Sequence[Letter]) -> None:
        while topic in self.closed:
            await self._changed.wait()
        if self.failing:
            self.failing -= 1
            raise KafkaError("not now")
        self.sent += letters

    def open(self) -> None:
        self.closed.clear()
        self._changed.set()


class Desk:
    """An outbox that runs, with a clock that the test moves, and a broker that tells the owner of the partition."""

    def __init__(self, topics: Topics, *, held: bool = True) -> None:
        self.now_s = 0.0
        self.held = held
        self.asked = 0
        self.metrics = WorkerMetrics()
        self.box = Outbox(0, topics, self._is_held, self, self.metrics)  # type: ignore[arg-type]
        self.running = asyncio.create_task(self.box.run())

    async def _is_held(self) -> bool:
        self.asked += 1
        return self.held

    def elapsed_s(self) -> float:
        return self.now_s

    def given_up(self) -> float:
        return self.metrics.replies.labels("given-up")._value.get()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RETRY_S", 0.001)


async def test_a_seal_waits_for_answers_confirmed_before_it() -> None:
    topics = Topics("replies")
    desk = Desk(topics)
    desk.box.add([CANCELLED, UNKNOWN])
    assert await desk.box.confirmed() == 2
    waiting = asyncio.create_task(desk.box.unsent())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    topics.open()
    assert await waiting == []
    assert topics.sent == letters(CANCELLED, UNKNOWN)
    desk.box.add([UNKNOWN])
    assert await desk.box.confirmed() == 3
    # An answer about no withdrawn timer needs no question.
    assert desk.asked == 1
    desk.running.cancel()


async def test_a_seal_takes_along_answers_that_have_waited_for_two_seconds_and_holds_up_no_other_topic() -> None:
    topics = Topics("replies")
    desk = Desk(topics)
    desk.box.add([CANCELLED, ELSEWHERE, UNKNOWN])
    await desk.box.confirmed()
    desk.now_s = 2.0
    assert await desk.box.unsent() == letters(CANCELLED, UNKNOWN)
    assert topics.sent == letters(ELSEWHERE)
    seal = Sealed(end_ms=4_000)
    for letter in letters(CANCELLED, UNKNOWN):
        seal.unsent.add(topic=letter.topic, key=letter.key, reply=letter.value)
    assert Letter.unsent(Sealed.FromString(seal.SerializeToString())) == letters(CANCELLED, UNKNOWN)
    desk.now_s = 0.0
    topics.open()
    assert await desk.box.unsent() == []
    assert topics.sent == letters(ELSEWHERE, CANCELLED, UNKNOWN)
    desk.running.cancel()


async def test_answers_left_by_another_owner_are_sent_without_a_question() -> None:
    topics = Topics()
    desk = Desk(topics, held=False)
    desk.box.add_letters(letters(CANCELLED))
    assert await desk.box.unsent() == []
    assert (topics.sent, desk.asked) == (letters(CANCELLED), 0)
    desk.running.cancel()


async def test_an_answer_that_fails_is_sent_again() -> None:
    topics = Topics()
    topics.failing = 2
    desk = Desk(topics)
    desk.box.add([CANCELLED])
    await desk.box.confirmed()
    assert await desk.box.unsent() == []
    assert topics.sent == letters(CANCELLED)
    desk.running.cancel()


async def test_an_answer_that_comes_while_others_are_sent_is_sent_too() -> None:
    topics = Topics("replies")
    desk = Desk(topics)
    desk.box.add([UNKNOWN])
    await desk.box.confirmed()
    await asyncio.sleep(0)
    desk.box.add([CANCELLED])
    await desk.box.confirmed()
    topics.open()
    assert await desk.box.unsent() == []
    assert topics.sent == letters(UNKNOWN, CANCELLED)
    desk.running.cancel()


async def test_a_seal_hears_of_a_fault_while_answers_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: object) -> None:
        raise ValueError("a fault of its own")

    monkeypatch.setattr(module, "_WAIT_S", 0.01)
    desk = Desk(Topics())
    desk.box._replies.send = fails  # type: ignore[method-assign]
    desk.box.add([UNKNOWN])
    await desk.box.confirmed()
    with pytest.raises(FaultError, match="a fault of its own"):
        await desk.box.unsent()
    desk.running.cancel()


async def test_of_several_topics_the_oldest_answers_are_given_up_and_the_others_keep_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_KEPT_BYTES_MAX", 2 * letters(UNKNOWN)[0].size() + letters(ELSEWHERE)[0].size())
    monkeypatch.setattr(module, "_WAIT_S", 0.01)
    desk = Desk(Topics("replies", "elsewhere"))
    desk.box.add_letters(letters(UNKNOWN, UNKNOWN, ELSEWHERE, UNKNOWN))
    desk.now_s = 2.0
    assert await desk.box.unsent() == letters(UNKNOWN, ELSEWHERE, UNKNOWN)
    assert desk.given_up() == 1
    desk.running.cancel()


async def test_of_too_many_the_oldest_are_given_up_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SEALED_BYTES_MAX", 3 * letters(UNKNOWN)[0].size())
    monkeypatch.setattr(module, "_KEPT_BYTES_MAX", 3 * letters(UNKNOWN)[0].size())
    monkeypatch.setattr(module, "_WAIT_S", 0.01)
    desk = Desk(Topics("replies"))
    many = [UNKNOWN._replace(timer_id=b"%d" % number) for number in range(5)]
    desk.box.add(many)
    await desk.box.confirmed()
    desk.now_s = 2.0
    assert await desk.box.unsent() == letters(*many[2:])
    assert desk.given_up() == 2
    desk.running.cancel()


async def test_answers_for_which_a_seal_has_no_room_are_sent_when_their_topic_takes_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_SEALED_BYTES_MAX", 3 * letters(UNKNOWN)[0].size())
    monkeypatch.setattr(module, "_WAIT_S", 0.01)
    topics = Topics("replies")
    desk = Desk(topics)
    many = [UNKNOWN._replace(timer_id=b"%d" % number) for number in range(5)]
    desk.box.add(many)
    await desk.box.confirmed()
    desk.now_s = 2.0
    assert [await desk.box.unsent() for _ in range(2)] == [letters(*many[:3])] * 2
    [told] = [line for line in caplog.messages if "a seal has room" in line]
    assert told.startswith("partition 0: 5 replies wait for their topics, and a seal has room for 3 of them")
    topics.open()
    desk.now_s = 0.0
    assert await desk.box.unsent() == []
    assert (topics.sent, desk.given_up()) == (letters(*many), 0)
    desk.running.cancel()


async def test_more_answers_at_once_than_there_is_room_for_are_sent_one_part_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when a log is caught up with: the topic takes them, and only not all of them at once."""
    monkeypatch.setattr(module, "_KEPT_BYTES_MAX", 3 * letters(UNKNOWN)[0].size())
    topics = Topics()
    desk = Desk(topics)
    many = [UNKNOWN._replace(timer_id=b"%d" % number) for number in range(20)]
    desk.box.add(many)
    assert await desk.box.confirmed() == 20
    assert await desk.box.unsent() == []
    assert (topics.sent, desk.given_up()) == (letters(*many), 0)
    desk.running.cancel()


async def test_a_seal_waits_no_longer_for_a_topic_that_takes_answers_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other makes room, so that there never is none for two seconds."""
    monkeypatch.setattr(module, "_KEPT_BYTES_MAX", letters(UNKNOWN)[0].size())
    topics = Topics()
    desk = Desk(topics)
    take = topics.send

    async def take_in_a_second(topic: str, letters: Sequence[Letter]) -> None:
        await asyncio.sleep(0.01)
        desk.now_s += 1
        await take(topic, letters)

    topics.send = take_in_a_second  # type: ignore[method-assign]
    desk.box.add([UNKNOWN] * 20)
    assert await desk.box.confirmed() == 20
    assert desk.now_s <= 3
    assert desk.given_up() >= 16
    desk.running.cancel()


async def test_after_a_seal_answers_wait_for_room_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_KEPT_BYTES_MAX", letters(UNKNOWN)[0].size())
    topics = Topics()
    desk = Desk(topics)
    desk.box.add([UNKNOWN])
    await desk.box.confirmed()
    assert await desk.box.unsent() == []
    desk.now_s = 5.0
    topics.closed = {"replies"}
    desk.box.add([UNKNOWN] * 2)
    for _ in range(10):
        await asyncio.sleep(0)
    topics.open()
    await desk.box.confirmed()
    assert await desk.box.unsent() == []
    assert (len(topics.sent), desk.given_up()) == (3, 0)
    desk.running.cancel()


async def test_an_answer_that_is_larger_than_the_room_in_a_seal_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SEALED_BYTES_MAX", letters(UNKNOWN)[0].size() - 1)
    monkeypatch.setattr(module, "_WAIT_S", 0.01)
    topics = Topics()
    desk = Desk(topics)
    desk.box.add([UNKNOWN])
    await desk.box.confirmed()
    assert await desk.box.unsent() == []
    assert (topics.sent, desk.given_up()) == (letters(UNKNOWN), 0)
    desk.running.cancel()


async def test_a_waiting_seal_hears_that_another_worker_owns_the_partition_and_nothing_is_sent() -> None:
    topics = Topics()
    desk = Desk(topics, held=False)
    desk.box.add([CANCELLED])
    with pytest.raises(FaultError) as heard:
        await desk.box.confirmed()
    assert heard.value.fault.kind is Kind.FENCED
    with pytest.raises(FencedError):
        await desk.running
    assert topics.sent == []


# --- topics that take none --------------------------------------------------------------------------------------------


async def test_a_topic_that_takes_no_replies_is_told_of_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    clock, targets = ManualClock(), SimpleNamespace(verdicts={"replies": Reason.TOPIC_UNKNOWN})
    metrics = WorkerMetrics()
    replies = KafkaReplies(cast(Any, None), "timer-reply", cast(Any, targets), metrics, clock)
    for _ in range(25):
        await replies.send("replies", letters(CANCELLED, UNKNOWN))
        await clock.advance(1)
    why = f"replies are lost, since topic replies does not take them: {Reason.TOPIC_UNKNOWN}"
    assert caplog.messages == [f"2 {why}", f"20 {why}", f"20 {why}"]
    assert metrics.replies.labels(Reason.TOPIC_UNKNOWN)._value.get() == 50
