"""
Turns on connections that several callers share.

A broker answers the requests of a connection one after the other, so whoever shares one may wait for the request of
another. One whose replicas are slow can take seconds. So a connection has one request at a time, and whoever waits gets
one more connection once all others have waited for their answers for a moment.
"""

import asyncio
from asyncio import Future, TimerHandle
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

# Nobody waits longer than that for one answer of another caller. A healthy broker, and a login, need less.
_HELD_S = 0.25
# An additional connection that was idle for this time is given up.
_IDLE_S = 60.0

K = TypeVar("K", bound=Hashable)


class _Line:
    """
    Those who share connections, which are numbered from 0.

    Attributes:
        busy: by number, when its turn began, in seconds of the event loop.
        idle: by number, what will give it up; nothing gives up number 0.
    """

    def __init__(self) -> None:
        self.busy: dict[int, float] = {}
        self.idle: dict[int, TimerHandle | None] = {}
        self.waiting: deque[Future[int]] = deque()
        self.is_looked_at = False


class SharedLanes(Generic[K]):
    """
    Gives out the numbers of connections.

    Args:
        give_up: called with a key and a number that is no longer needed.
    """

    def __init__(self, give_up: Callable[[K, int], object]) -> None:
        self._give_up = give_up
        self._lines: dict[K, _Line] = {}

    @asynccontextmanager
    async def one(self, key: K) -> AsyncIterator[int]:
        """Yield the number of a connection of *key* that nobody else uses meanwhile."""
        line = self._lines.setdefault(key, _Line())
        number = await self._turn(key, line)
        try:
            yield number
        finally:
            self._over(key, line, number)

    async def _turn(self, key: K, line: _Line) -> int:
        loop = asyncio.get_running_loop()
        if line.busy and not line.idle:
            turn: Future[int] = loop.create_future()
            line.waiting.append(turn)
            self._look_later(line)
            try:
                return await turn
            except asyncio.CancelledError:
                if not turn.cancelled():
                    self._over(key, line, turn.result())
                raise
        number = min(line.idle, default=0)
        if giving_up := line.idle.pop(number, None):
            giving_up.cancel()
        line.busy[number] = loop.time()
        return number

    def _over(self, key: K, line: _Line, number: int) -> None:
        loop = asyncio.get_running_loop()
        if not self._handed(line, number):
            del line.busy[number]
            line.idle[number] = loop.call_later(_IDLE_S, self._expire, key, line, number) if number else None

    def _handed(self, line: _Line, number: int) -> bool:
        """Hand *number* to the first one who waits, if anybody does."""
        while line.waiting:
            turn = line.waiting.popleft()
            if not turn.done():
                turn.set_result(number)
                line.busy[number] = turn.get_loop().time()
                return True
        return False

    def _expire(self, key: K, line: _Line, number: int) -> None:
        del line.idle[number]
        self._give_up(key, number)

    def _look_later(self, line: _Line) -> None:
        if not line.is_looked_at:
            line.is_looked_at = True
            last_s = max(line.busy.values())
            asyncio.get_running_loop().call_at(last_s + _HELD_S, self._look, line, last_s)

    def _look(self, line: _Line, last_s: float) -> None:
        """Have one more connection if no turn has begun since *last_s*."""
        line.is_looked_at = False
        if not line.waiting:
            return
        if max(line.busy.values()) == last_s:
            self._handed(line, next(number for number in range(len(line.busy) + 1) if number not in line.busy))
        if line.waiting:
            self._look_later(line)
