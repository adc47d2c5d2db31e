"""
Who goes first on the one event loop.

While callbacks leave, their receivers wait; reading requests and building the callbacks of the next second can wait for
some tenths of a second, as long as no tick waits for what is read.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_SOON_S = 0.2


class PriorityGate:
    """Whether any partition of this process is sending callbacks, or has begun with a second."""

    def __init__(self) -> None:
        self._sending = self._firing = 0
        self._look_again = asyncio.Event()

    @contextmanager
    def on(self) -> Iterator[None]:
        """Send callbacks inside."""
        self._sending += 1
        try:
            yield
        finally:
            self._sending -= 1
            self._look_again.set()

    @contextmanager
    def firing(self) -> Iterator[None]:
        """Fire a second inside, from the question for the log's end on."""
        self._firing += 1
        try:
            yield
        finally:
            self._firing -= 1
            self._look_again.set()

    def nudge(self) -> None:
        """Have everybody who waits look again whether they must."""
        self._look_again.set()

    async def over(self, unless: Callable[[], bool]) -> None:
        """Return when nobody sends, or when *unless* holds; that is looked at after each `nudge`."""
        await self._until(lambda: not self._sending or unless())

    async def over_soon(self) -> None:
        """Return when nobody sends, or soon: who sends may wait for a broker, several in turn without an end."""
        await self._soon(lambda: not self._sending)

    async def idle_soon(self) -> None:
        """Return when nobody is at a second, or soon."""
        await self._soon(lambda: not self._firing)

    async def _soon(self, is_over: Callable[[], bool]) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_SOON_S):
                await self._until(is_over)

    async def _until(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            self._look_again.clear()
            await self._look_again.wait()
