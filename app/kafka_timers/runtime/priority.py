"""
Priorities on the one event loop.

While callbacks are being sent, receivers wait. Reading requests and prebuilding can wait for some tenths of a second,
as long as no tick waits for the requests.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_SOON_S = 0.2


class PriorityGate:
    """Knows whether any partition of this process is sending callbacks, or has begun with a second."""

    def __init__(self) -> None:
        self._sending = self._firing = 0
        self._look_again = asyncio.Event()

    @contextmanager
    def on(self) -> Iterator[None]:
        """Mark the block as sending callbacks."""
        self._sending += 1
        try:
            yield
        finally:
            self._sending -= 1
            self._look_again.set()

    @contextmanager
    def firing(self) -> Iterator[None]:
        """Mark the block as firing a second, beginning with the question for the log's end."""
        self._firing += 1
        try:
            yield
        finally:
            self._firing -= 1
            self._look_again.set()

    def nudge(self) -> None:
        """Make all waiting tasks check again."""
        self._look_again.set()

    async def over(self, unless: Callable[[], bool]) -> None:
        """Return once no partition sends, or once *unless* returns True, which is checked after each `nudge`."""
        await self._until(lambda: not self._sending or unless())

    async def over_soon(self) -> None:
        """Return once no partition sends, but soon: senders may wait for a broker, and take turns without end."""
        await self._soon(lambda: not self._sending)

    async def idle_soon(self) -> bool:
        """Return once no partition fires a second, but soon. Returns False if one still does."""
        return await self._soon(lambda: not self._firing)

    async def _soon(self, is_over: Callable[[], bool]) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(_SOON_S):
                await self._until(is_over)
        return is_over()

    async def _until(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            self._look_again.clear()
            await self._look_again.wait()
