"""
Questions that may take long: each is asked once, however many wait for its answer, and nobody waits long.

Whoever has waited for too long is told so, and the question goes on: when it is asked again, the answer is nearer.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from kafka_timers.errors import KafkaTimersError

__all__ = ["ANSWER_S", "BusyError", "LateError", "Shared"]

# What a person still takes for an answer at once; a page is to have one within 3 s.
ANSWER_S = 2.5

# Each may hold a connection and a part of a log.
_QUESTIONS_MAX = 16

_T = TypeVar("_T")


class LateError(KafkaTimersError):
    """There is no answer yet; the question goes on."""


class BusyError(KafkaTimersError):
    """As many questions are under way as may be at once."""


class Shared:
    """
    Questions under way, each under a name.

    Args:
        limit_s: that somebody waits for an answer, if they say nothing else.
    """

    def __init__(self, limit_s: float = ANSWER_S) -> None:
        self._limit_s = limit_s
        self._asked: dict[object, asyncio.Task[Any]] = {}

    async def told(
        self, name: object, ask: Callable[[], Coroutine[Any, Any, _T]], what: str, limit_s: float | None = None
    ) -> _T:
        """
        Return the answer to a question; what the question raises is raised to all who wait for it.

        Args:
            name: of the question; whoever comes with the same one meanwhile gets the same answer.
            ask: asks it.
            what: is asked for, in words.
            limit_s: to wait at most; None is what all wait.

        Raises:
            LateError: the answer is not there in time.
            BusyError: too many others are under way.
        """
        task = self._asked.get(name)
        if task is None:
            if len(self._asked) >= _QUESTIONS_MAX:
                raise BusyError(f"{what}: {_QUESTIONS_MAX} questions that take long are under way: ask again later")
            task = self._asked[name] = asyncio.create_task(ask())
            task.add_done_callback(lambda done: self._end(name, done))
        limit_s = self._limit_s if limit_s is None else limit_s
        await asyncio.wait({task}, timeout=limit_s)
        if not task.done():
            raise LateError(f"{what}: no answer within {limit_s:g} s. It is still being looked for: ask again")
        answer: _T = task.result()
        return answer

    def _end(self, name: object, task: asyncio.Task[Any]) -> None:
        del self._asked[name]
        if not task.cancelled():
            # All who waited may have gone.
            task.exception()

    async def close(self) -> None:
        """End all questions."""
        tasks = list(self._asked.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def within(answer: Awaitable[_T], what: str, limit_s: float) -> _T:
    """
    Return *answer*; it is given up when it takes too long.

    Args:
        answer: to wait for.
        what: is asked for, in words.
        limit_s: to wait at most.

    Raises:
        LateError: it is not there in time.
    """
    try:
        async with asyncio.timeout(limit_s):
            return await answer
    except TimeoutError:
        raise LateError(f"{what}: no answer within {limit_s:g} s, and it was given up") from None
