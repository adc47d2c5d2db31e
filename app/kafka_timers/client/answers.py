"""
Bring the answers to cancels, moves and creates from the reply topic to the calls that asked.

Each client reads the whole topic, from its end before the client's first question. An answer names the partition and
offset of its question, and the caller may learn those later than the answer arrives:

    1. the broker appends the cancel at 3:17      2. the worker reads it, and answers to "3:17"
    3. the answer is here, and waits              4. the broker's acknowledgement is here: the cancel is 3:17

So the reader keeps answers to an id while a call for that id does not know its offset yet, and skips all others
unparsed. Held by test_answer_may_come_before_the_place_of_its_question.
"""

import asyncio
from collections.abc import Awaitable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Self

from google.protobuf.message import DecodeError

from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.reading import Following, TopicLog
from kafka_timers.broker.topics import answering
from kafka_timers.client.request import Answer
from kafka_timers.core.wire import Condition, Future, Reply, is_question
from kafka_timers.errors import AnswerError

# Answers to one id that wait for their question. Only other clients that ask for the same id can produce so many.
_EARLY_MAX = 1_000


@dataclass(slots=True)
class _Calls:
    """The calls under way for one timer id, and early answers to it, by partition:offset of their question."""

    count: int = 0
    waiting: dict[str, asyncio.Future[Answer]] = field(default_factory=dict)
    early: dict[str, Answer] = field(default_factory=dict)


class AnswerReader:
    """
    Reads a reply topic, and hands each answer to the call that waits for it, until it is closed or fails.

    Attributes:
        failed: reason why no answer will come any more; empty while one may come.
    """

    def __init__(self, following: Following | None = None) -> None:
        self.failed = ""
        self._following = following
        self._cause: Exception | None = None
        self._calls: dict[bytes, _Calls] = {}
        self._stack = AsyncExitStack()

    @classmethod
    async def open(cls, topic: str, cluster: Cluster, kafka: Kafka, timeout_s: float) -> Self:
        """Return a reader that sees the answer to every question asked from now on. The topic must exist."""
        async with AsyncExitStack() as stack:
            async with answering(kafka, timeout_s=timeout_s):
                await cluster.look_up([topic])
                log = TopicLog(cluster, topic, timeout_s)
                ends = await log.bounds.ends(log.numbers)
            following = await stack.enter_async_context(log.following(ends))
            reader = cls(following)
            stack.push_async_callback(_ended, asyncio.create_task(reader._read(following)))
            reader._stack = stack.pop_all()
        return reader

    async def close(self) -> None:
        """Disconnect. Every call that still waits for an answer raises `AnswerError`."""
        self._fail("the client was stopped before the answer came", None)
        await self._stack.aclose()

    async def answer(self, future: Future, publishing: Awaitable[tuple[int, int]], timeout_s: float) -> Answer:
        """
        Return the answer to *future*, a cancel, a move or a create.

        Args:
            future: the message that *publishing* publishes.
            publishing: returns partition and offset; the offset is -1 if the broker did not tell it.
            timeout_s: longest wait for the answer, once the message is published.

        Raises:
            AnswerError: the answer did not come in time, or cannot come.
        """
        key = future.timerId.encode()
        calls = self._calls.setdefault(key, _Calls())
        calls.count += 1
        try:
            partition, offset = await publishing
            if offset < 0:
                why = "the broker did not tell its offset, so its answer cannot be found"
                raise AnswerError(_failure_text(future, partition, "an unknown offset", why), asked=None)
            asked = f"{partition}:{offset}"
            try:
                async with asyncio.timeout(timeout_s):
                    return await self._wait(calls, asked)
            except (TimeoutError, _NoAnswerError) as error:
                trouble = self._following.trouble if self._following else ""
                why = self.failed or f"no answer came within {timeout_s:g} s" + (trouble and f" ({trouble})")
                raise AnswerError(_failure_text(future, partition, f"offset {offset}", why), asked=asked) from error
        finally:
            calls.count -= 1
            if not calls.count:
                del self._calls[key]

    async def _wait(self, calls: _Calls, asked: str) -> Answer:
        if asked in calls.early:
            return calls.early.pop(asked)
        if self.failed:
            raise _NoAnswerError from self._cause
        waiting: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        calls.waiting[asked] = waiting
        try:
            return await waiting
        finally:
            del calls.waiting[asked]

    async def _read(self, following: Following) -> None:
        try:
            while True:
                for record in await following.poll():
                    self._take(record.key, record.value)
        except Exception as error:  # every caller gets the error, of any kind
            self._fail(f"the reply topic cannot be read any more ({error!r})", error)

    def _take(self, key: bytes | None, value: bytes | None) -> None:
        calls = self._calls.get(key or b"")
        answer = _answer_in(value or b"") if calls else None
        if calls is None or answer is None:
            return
        waiting = calls.waiting.get(answer.asked)
        if waiting is None:
            if len(calls.early) == _EARLY_MAX:
                del calls.early[next(iter(calls.early))]
            calls.early[answer.asked] = answer
        elif not waiting.done():  # after a crash the worker may answer twice
            waiting.set_result(answer)

    def _fail(self, why: str, cause: Exception | None) -> None:
        self.failed, self._cause = self.failed or why, self._cause or cause
        for calls in self._calls.values():
            for waiting in calls.waiting.values():
                if not waiting.done():
                    waiting.set_exception(_NoAnswerError())


class _NoAnswerError(Exception):
    """No answer will come; `AnswerReader.failed` says why."""


async def _ended(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def _answer_in(value: bytes) -> Answer | None:
    """Return the answer in *value*, None if it holds none: others may write to the topic too."""
    try:
        return Answer.of(Reply.FromString(value))
    except (DecodeError, ValueError):
        return None


def _failure_text(future: Future, partition: int, place: str, why: str) -> str:
    if is_question(future):
        return (
            f"{why}. The question about {future.timerId!r} is in partition {partition} of timer-request at {place}, "
            "and changes nothing: `kafka-timers status` shows whether that partition has an owner"
        )
    what = "cancel" if future.cancel else "create" if future.condition == Condition.IF_ABSENT else "move"
    stands = "stands if its condition holds" if future.condition else "stands"
    return (
        f"{why}. The {what} of {future.timerId!r} was accepted, in partition {partition} of timer-request at {place}, "
        f"and {stands}: `kafka-timers find` shows the outcome of the timer, `kafka-timers status` whether that "
        f"partition has an owner, and the topic timer-rejected whether the {what} was refused"
    )
