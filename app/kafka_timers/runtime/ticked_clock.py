"""The time of the brokers, as ticks tell it. A process goes by it wherever it would ask its host for the date."""

import asyncio
import logging
from statistics import median_low

from kafka_timers.clock import Clock
from kafka_timers.core.tick_clock import TickClock, TickRead

log = logging.getLogger(__name__)

# A partition that was given up, or has no ticks, does not count for longer than this.
_FRESH_S = 5.0


class TickedClock:
    """
    A clock that shows the brokers' time: never ahead of them, and behind by the age of the newest tick at the start.

    Brokers may differ, and one of them may be wrong, so the middle of the partitions' leaders counts, of two the slower
    one. Before the first tick the host's date is shown, for want of any other: nothing may be decided by that.

    Args:
        host: clock of this host.
        skew_s: seconds by which the host may be wrong without a warning in the log.

    Attributes:
        ticked: set once a tick has been read.
    """

    def __init__(self, host: Clock, skew_s: float) -> None:
        self._host, self._skew_s = host, skew_s
        self._clocks: dict[int, TickClock] = {}
        # By partition, when its last tick was read, and the seconds by which its leader is ahead of elapsed time then.
        self._told: dict[int, tuple[float, float]] = {}
        self._ahead_s = 0.0
        self._differs_since_s: float | None = None
        self._is_told = False
        self.ticked = asyncio.Event()

    def wall_s(self) -> float:
        """Return UNIX time in seconds."""
        return self._host.elapsed_s() + self._ahead_s if self.ticked.is_set() else self._host.wall_s()

    def elapsed_s(self) -> float:
        """Return monotonic seconds since an arbitrary start."""
        return self._host.elapsed_s()

    async def sleep_until(self, wall_s: float) -> None:
        """Return when `wall_s()` reaches *wall_s*, unless a tick moves it meanwhile."""
        await asyncio.sleep(max(wall_s - self.wall_s(), 0.0))

    def read(self, number: int, tick: TickRead) -> None:
        """Learn from *tick* of partition *number*."""
        clock = self._clocks.setdefault(number, TickClock())
        clock.read(tick)
        self._told[number] = tick.read_s, (clock.now_ms(tick.read_s) or 0) / 1000 - tick.read_s
        self._ahead_s = median_low([ahead_s for at_s, ahead_s in self._told.values() if at_s > tick.read_s - _FRESH_S])
        self.ticked.set()
        off_s = self._host.wall_s() - self.wall_s()
        if abs(off_s) <= self._skew_s:
            self._differs_since_s, self._is_told = None, False
        elif self._differs_since_s is None:
            # This tick may have been read late, as the first one, and those from before a broker was replaced.
            self._differs_since_s = tick.read_s
        elif not self._is_told and tick.read_s > self._differs_since_s + _FRESH_S:
            self._is_told = True
            side = "ahead of" if off_s > 0 else "behind"
            log.warning(
                "this host's clock is %.1f s %s the brokers': nothing goes by it, but look at NTP", abs(off_s), side
            )
