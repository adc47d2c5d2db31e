"""Answers on their way out: what a seal waits for, and what it hears when they cannot leave."""

import asyncio
from collections.abc import Iterable

import pytest

from kafka_timers.core.versions import Answer, Version
from kafka_timers.core.wire import Reply
from kafka_timers.worker.faults import FaultError, FencedError
from kafka_timers.worker.outbox import Outbox

CANCELLED = Answer(7, b"replies", b"a", Reply.CANCELLED, Version(100_000, 3))
UNKNOWN = Answer(8, b"replies", b"b", Reply.UNKNOWN, None)


class Topic:
    """Stands for the way to reply topics: keeps what is sent, once it may."""

    def __init__(self) -> None:
        self.sent: list[Answer] = []
        self.open = asyncio.Event()

    async def send(self, number: int, answers: Iterable[Answer]) -> None:
        await self.open.wait()
        self.sent += answers


class Held:
    """Stands for the broker's answer to whose the partition is."""

    def __init__(self, *, held: bool) -> None:
        self.held = held
        self.asked = 0

    async def is_held(self) -> bool:
        self.asked += 1
        return self.held


def outbox(topic: Topic, held: Held | None) -> Outbox:
    return Outbox(0, topic, held)


async def test_a_seal_waits_for_what_was_added_before_and_not_for_more() -> None:
    topic, check = Topic(), Held(held=True)
    box = outbox(topic, check)
    running = asyncio.create_task(box.run())
    box.add([CANCELLED, UNKNOWN])
    waiting = asyncio.create_task(box.sent())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    box.add([UNKNOWN])
    topic.open.set()
    assert await waiting == 2
    assert topic.sent[:2] == [CANCELLED, UNKNOWN]
    assert await box.sent() == 3
    # What tells of nothing that was withdrawn needs no question.
    assert check.asked == 1
    running.cancel()


async def test_whoever_waits_hears_that_another_owns_the_partition_and_nothing_is_sent() -> None:
    topic = Topic()
    box = outbox(topic, Held(held=False))
    running = asyncio.create_task(box.run())
    box.add([CANCELLED])
    with pytest.raises(FaultError) as heard:
        await box.sent()
    assert heard.value.fault.fenced
    with pytest.raises(FencedError):
        await running
    assert topic.sent == []


async def test_with_nobody_to_ask_answers_are_sent_as_they_are() -> None:
    topic = Topic()
    topic.open.set()
    box = outbox(topic, None)
    running = asyncio.create_task(box.run())
    box.add([CANCELLED])
    assert await box.sent() == 1
    assert topic.sent == [CANCELLED]
    running.cancel()
