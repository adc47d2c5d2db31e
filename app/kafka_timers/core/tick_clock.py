"""
The second that a tick counts as, and a lower bound of the time on the clock of the broker that has appended it.

Pure. A tick tells when the broker appended it, and it was read later than that. The time since it was read is added to
its append time, measured by a clock that counts no faster than the broker's. So the sum is never ahead of the broker.
"""

from collections import deque
from typing import NamedTuple

# The best of this many ticks counts: a tick that was read quickly tells more than one that was read late.
_TICKS = 8
# Largest rate by which a clock may be too fast. Host clocks are slewed by half of this at most.
_DRIFT = 0.001
# An earlier tick that is ahead of a new one by more than this is from before a step of the broker's clock, or the new
# one was read late. Dropping it makes the clock too slow for a while, but never fires early.
_STEP_MS = 50


def tick_second(second: int, appended_ms: int, max_clock_skew_s: float) -> int | None:
    """
    Return the second that a tick counts as, or None if it is too far ahead of the broker to be believed.

    An oscillator ahead of the broker must not make anything early, so a tick never counts as more than the second in
    which the broker appended it.

    Args:
        appended_ms: UNIX milliseconds of its append, by the broker's clock.
        max_clock_skew_s: largest lead in seconds that is still believed.
    """
    if second * 1000 - appended_ms > max_clock_skew_s * 1000:
        return None
    return min(second, appended_ms // 1000)


class TickRead(NamedTuple):
    """
    A tick that was read.

    Attributes:
        read_s: time of the read, by a monotonic clock.
        epoch: leader epoch of the broker that it was read from.
    """

    appended_ms: int
    read_s: float
    epoch: int


class TickClock:
    """A lower bound of the broker's clock; None before a tick was read."""

    def __init__(self) -> None:
        self._ticks: deque[TickRead] = deque(maxlen=_TICKS)

    def read(self, tick: TickRead) -> None:
        """Add *tick*, which was read after all others."""
        # Another leader epoch is another broker, with another clock.
        kept = [each for each in self._ticks if each.epoch == tick.epoch]
        kept = [each for each in kept if _told(each, tick.read_s) <= tick.appended_ms + _STEP_MS]
        self._ticks = deque([*kept, tick], _TICKS)

    def now_ms(self, at_s: float) -> int | None:
        """
        Return the UNIX millisecond that the broker's clock has reached at *at_s* of the monotonic clock; None before a
        tick.
        """
        return int(max(_told(tick, at_s) for tick in self._ticks)) if self._ticks else None

    def when_s(self, at_ms: int) -> float | None:
        """
        Return the monotonic time at which `now_ms` will reach *at_ms* if no further tick is read; None before a tick.
        """
        return min([_reached(tick, at_ms) for tick in self._ticks], default=None)


def _told(tick: TickRead, at_s: float) -> float:
    return tick.appended_ms + max(at_s - tick.read_s, 0.0) * 1000 * (1 - _DRIFT)


def _reached(tick: TickRead, at_ms: int) -> float:
    # Add a microsecond, so that a rounding error cannot ask for a moment that has not come.
    return tick.read_s + max(at_ms - tick.appended_ms + 0.001, 0) / (1000 * (1 - _DRIFT))
