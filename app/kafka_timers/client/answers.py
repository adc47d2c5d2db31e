"""
Bring the answers to cancels, moves and creates from the reply topic to the calls that asked.

Each client reads the whole topic, from where it ended before the client's first question on. An answer is told by the
place of its question, which the caller may learn later than the answer arrives:

    1. the broker appends the cancel at 3:17      2. the worker reads it, and answers to "3:17"
    3. the answer is here, and waits              4. the broker's acknowledgement is here: the cancel is 3:17

So answers to an id are kept while a call for that id does not know its place yet; all others are passed over unparsed.
Held by test_answer_may_come_before_the_place_of_its_question.
"""

import asyncio
from collections.abc import Awaitable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, Self

from aiokafka import AIOKafkaConsumer, TopicPartition
from google.protobuf.message import DecodeError

from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.consuming import consuming
from kafka_timers.broker.topics import answering
from kafka_timers.client.request import Answer
from kafka_timers.core.wire import Condition, Future, Reply
from kafka_timers.errors import AnswerError

__all__ = ["Replies"]

# It returns with the first record; this is how long it may find nothing.
_POLL_MS = 60_000

# Answers to one id that wait for their question: only others who ask for the same id can make it so many.
_EARLY_MAX = 1_000


@dataclass(slots=True)
class _Asking:
    """The calls under way for one timer id, and the answers to it, by the place of their question."""

    calls: int = 0
    waiting: dict[str, asyncio.Future[Answer]] = field(default_factory=dict)
    early: dict[str, Answer] = field(default_factory=dict)


class Replies:
    """
    Reads a reply topic until it is closed or fails.

    Attributes:
        failed: why no answer will come any more, empty while one may.
    """

    def __init__(self) -> None:
        self.failed = ""
        self._cause: Exception | None = None
        self._asking: dict[bytes, _Asking] = {}
        self._stack = AsyncExitStack()

    @classmethod
    async def open(
        cls, topic: str, partitions: int, kafka: Kafka, options: Mapping[str, Any], timeout_s: float
    ) -> Self:
        """
        Return a reader that has every answer to what is asked from now on.

        Args:
            topic: for replies.
            partitions: how many it has.
            kafka: to read from.
            options: of the consumer, over those of *kafka*.
            timeout_s: longest wait for the broker.

        Raises:
            BrokerError: no broker answers within *timeout_s*, or it refuses.
        """
        where = [TopicPartition(topic, partition) for partition in range(partitions)]
        replies = cls()
        async with AsyncExitStack() as stack:
            async with answering(kafka, timeout_s=timeout_s):
                consumer = await stack.enter_async_context(consuming(kafka, **options))
                ends = await consumer.end_offsets(where)
            consumer.assign(where)
            for tp, end in ends.items():
                consumer.seek(tp, end)
            stack.push_async_callback(_ended, asyncio.create_task(replies._read(consumer)))
            replies._stack = stack.pop_all()
        return replies

    async def close(self) -> None:
        """Let go of the connection; who still waits for an answer gets `AnswerError`."""
        self._fail("the client was stopped before the answer came", None)
        await self._stack.aclose()

    async def answer(self, future: Future, publishing: Awaitable[tuple[int, int]], timeout_s: float) -> Answer:
        """
        Return the answer to *future*, a cancel, a move or a create.

        Args:
            future: what *publishing* publishes.
            publishing: returns partition and offset, -1 for one that the broker did not tell.
            timeout_s: longest wait for the answer, counted from there.

        Raises:
            AnswerError: it did not come.
        """
        key = future.timerId.encode()
        asking = self._asking.setdefault(key, _Asking())
        asking.calls += 1
        try:
            partition, offset = await publishing
            if offset < 0:
                why = "the broker did not tell its offset, by which its answer is known"
                raise AnswerError(_text(future, partition, "an offset not told", why), asked=None)
            asked = f"{partition}:{offset}"
            try:
                async with asyncio.timeout(timeout_s):
                    return await self._wait(asking, asked)
            except (TimeoutError, _NoAnswerError) as error:
                why = self.failed or f"no answer came within {timeout_s:g} s"
                raise AnswerError(_text(future, partition, f"offset {offset}", why), asked=asked) from error
        finally:
            asking.calls -= 1
            if not asking.calls:
                del self._asking[key]

    async def _wait(self, asking: _Asking, asked: str) -> Answer:
        if asked in asking.early:
            return asking.early.pop(asked)
        if self.failed:
            raise _NoAnswerError from self._cause
        waiting: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        asking.waiting[asked] = waiting
        try:
            return await waiting
        finally:
            del asking.waiting[asked]

    async def _read(self, consumer: AIOKafkaConsumer) -> None:
        try:
            while True:
                for records in (await consumer.getmany(timeout_ms=_POLL_MS)).values():
                    for record in records:
                        self._take(record.key, record.value)
        except Exception as error:  # every caller hears of it, whatever it is
            self._fail(f"the reply topic cannot be read any more ({error!r})", error)

    def _take(self, key: bytes | None, value: bytes | None) -> None:
        asking = self._asking.get(key or b"")
        answer = _answer_in(value or b"") if asking else None
        if asking is None or answer is None:
            return
        waiting = asking.waiting.get(answer.asked)
        if waiting is None:
            if len(asking.early) == _EARLY_MAX:
                del asking.early[next(iter(asking.early))]
            asking.early[answer.asked] = answer
        elif not waiting.done():  # after a crash the worker may answer twice
            waiting.set_result(answer)

    def _fail(self, why: str, cause: Exception | None) -> None:
        self.failed, self._cause = self.failed or why, self._cause or cause
        for asking in self._asking.values():
            for waiting in asking.waiting.values():
                if not waiting.done():
                    waiting.set_exception(_NoAnswerError())


class _NoAnswerError(Exception):
    """No answer will come; `Replies.failed` says why."""


async def _ended(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def _answer_in(value: bytes) -> Answer | None:
    """Return the answer that *value* carries, None for what somebody else has put on the topic."""
    try:
        return Answer.of(Reply.FromString(value))
    except (DecodeError, ValueError):
        return None


def _text(future: Future, partition: int, place: str, why: str) -> str:
    what = "cancel" if future.cancel else "create" if future.condition == Condition.IF_ABSENT else "move"
    stands = "stands if its condition holds" if future.condition else "stands"
    return (
        f"{why}. The {what} of {future.timerId!r} was accepted, in partition {partition} of timer-request at {place}, "
        f"and {stands}: `kafka-timers find` shows what became of the timer, `kafka-timers status` whether that "
        f"partition has an owner, and the topic timer-rejected whether the {what} was refused"
    )
