"""
Share slow questions: each is asked once for all its callers, and no caller waits long.

When a caller has waited too long, it gets an error and the question goes on. Ask again to get the answer once it is
there.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from kafka_timers.errors import KafkaTimersError
from kafka_timers.runtime.tasks import cancel

# A person takes this as an answer at once; a page should have its answer within 3 s.
ANSWER_S = 2.5

# Maximum of questions under way at once; each may hold a connection and a part of a log.
_MOST = 16
# An answer that no caller waited for any more is kept for this time, and given once.
_KEPT_S = 10.0

_T = TypeVar("_T")


class LateError(KafkaTimersError):
    """There is no answer yet. The question goes on."""


class BusyError(KafkaTimersError):
    """The maximum number of questions is under way."""


@dataclass(slots=True, eq=False)
class _Question:
    """A question: its task, the number of waiting callers, and its end by the loop's clock."""

    task: asyncio.Task[Any]
    waiting: int = 0
    ended_s: float | None = None


class Shared:
    """Questions under way, by name. A caller waits for *limit_s* seconds by default."""

    def __init__(self, limit_s: float = ANSWER_S) -> None:
        self._limit_s = limit_s
        self._asked: dict[object, _Question] = {}
        self._running: set[asyncio.Task[Any]] = set()

    async def answer(
        self, name: object, ask: Callable[[], Coroutine[Any, Any, _T]], what: str, limit_s: float | None = None
    ) -> _T:
        """
        Return the answer to a question. If the question fails, all its callers get the error.

        Args:
            name: name of the question; callers that use the same one meanwhile get the same answer.
            what: the question in words, for messages.
            limit_s: limit of the wait in seconds; None for the default.

        Raises:
            LateError: the answer is not there in time.
            BusyError: too many other questions are under way.
        """
        self._drop_old()
        question = self._asked.get(name)
        if question is None:
            if len(self._running) >= _MOST:
                raise BusyError(f"{what}: {_MOST} questions that take long are under way: ask again later")
            question = self._asked[name] = _Question(asyncio.create_task(ask()))
            self._running.add(question.task)
            question.task.add_done_callback(lambda _: self._end(name, question))
        limit_s = self._limit_s if limit_s is None else limit_s
        question.waiting += 1
        try:
            await asyncio.wait({question.task}, timeout=limit_s)
        finally:
            question.waiting -= 1
        if not question.task.done():
            raise LateError(f"{what}: no answer within {limit_s:g} s. It is still being looked for: ask again")
        if self._asked.get(name) is question:
            del self._asked[name]
        answer: _T = question.task.result()
        return answer

    def forget(self, name: object) -> None:
        """Make the next caller ask anew, instead of sharing a question under way."""
        self._asked.pop(name, None)

    def _end(self, name: object, question: _Question) -> None:
        self._running.discard(question.task)
        failed = question.task.cancelled() or question.task.exception() is not None
        if self._asked.get(name) is not question:
            return
        if failed or question.waiting:
            del self._asked[name]
        else:
            question.ended_s = asyncio.get_running_loop().time()

    def _drop_old(self) -> None:
        oldest_s = asyncio.get_running_loop().time() - _KEPT_S
        for name in [
            name for name, each in self._asked.items() if each.ended_s is not None and each.ended_s < oldest_s
        ]:
            del self._asked[name]

    async def close(self) -> None:
        """Cancel all questions."""
        await cancel(self._running)


async def within(answer: Awaitable[_T], what: str, limit_s: float) -> _T:
    """
    Return *answer*, or give it up when it takes too long. *what* is the question in words, for messages.

    Raises:
        LateError: the answer is not there in time.
    """
    try:
        async with asyncio.timeout(limit_s):
            return await answer
    except TimeoutError:
        raise LateError(f"{what}: no answer within {limit_s:g} s, and it was given up") from None
