"""
The clock that code takes as an argument, so that tests can replace it by `kafka_timers.testing.ManualClock`.

Three kinds of time have three kinds of name. `second` is stream time and comes from ticks. `wall_s` is UNIX time on
this host. `elapsed_s` is monotonic, so that only differences mean something.
"""

import asyncio
import time
from typing import Protocol

# NTP does not slew this one, where there is it: chrony has CLOCK_MONOTONIC pass up to a twelfth too fast.
_ELAPSED = getattr(time, "CLOCK_MONOTONIC_RAW", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """A source of time that a task can also wait for."""

    def wall_s(self) -> float:
        """Return UNIX time in seconds."""
        ...

    def elapsed_s(self) -> float:
        """Return monotonic seconds since an arbitrary start."""
        ...

    async def sleep_until(self, wall_s: float) -> None:
        """Return once `wall_s()` has reached *wall_s*, at once if that lies in the past."""
        ...


class HostClock:
    """The clock of this host."""

    def wall_s(self) -> float:
        """Return UNIX time in seconds."""
        return time.time()

    def elapsed_s(self) -> float:
        """Return monotonic seconds since an arbitrary start."""
        return time.clock_gettime(_ELAPSED)

    async def sleep_until(self, wall_s: float) -> None:
        """Return once the host's clock shows *wall_s*; it notices within a second that the clock was set."""
        while (left_s := wall_s - time.time()) > 0:  # noqa: ASYNC110  # a clock has no event to await
            await asyncio.sleep(min(left_s, 1.0))
