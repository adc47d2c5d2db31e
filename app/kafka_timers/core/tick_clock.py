"""
Which second a tick counts as, and what time it is at least by the clock of the broker that has appended it.

Pure. A tick tells when the broker appended it, and it was read later than that. So what has passed since it was read,
by a clock that counts no faster than the broker's, is added to its append time: the sum is never ahead of the broker.
"""

from collections import deque
from typing import NamedTuple

__all__ = ["TickClock", "TickRead", "tick_second"]

# The best of so many ticks counts: one that was read quickly tells more than one that was read late.
_TICKS = 8
# What a clock may be too fast by. Host clocks are slewed by half of this at most.
_DRIFT = 0.001
# An earlier tick that tells so much more than a new one is from before a step of the broker's clock, or the new one was
# read late. To drop it makes the clock too slow for a while, and nothing early.
_STEP_MS = 50


def tick_second(second: int, appended_ms: int, max_clock_skew_s: float) -> int | None:
    """
    Return the second that a tick counts as, or None when it is too far ahead of the broker to be believed.

    An oscillator ahead of the broker must not make anything early, so a tick never counts as more than the second in
    which the broker appended it.

    Args:
        second: the tick's own second.
        appended_ms: UNIX milliseconds of its append, by the broker's clock.
        max_clock_skew_s: how far ahead is still believed.
    """
    if second * 1000 - appended_ms > max_clock_skew_s * 1000:
        return None
    return min(second, appended_ms // 1000)


class TickRead(NamedTuple):
    """
    A tick that was read.

    Attributes:
        appended_ms: UNIX milliseconds of its append, by the broker's clock.
        read_s: when it was read, by a monotonic clock.
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
        """Take note of *tick*, which was read after all others."""
        # Another leader epoch is another broker, and another clock.
        kept = [each for each in self._ticks if each.epoch == tick.epoch]
        kept = [each for each in kept if _told(each, tick.read_s) <= tick.appended_ms + _STEP_MS]
        self._ticks = deque([*kept, tick], _TICKS)

    def now_ms(self, at_s: float) -> int | None:
        """Return the UNIX millisecond that the broker's clock has reached at *at_s*, by the monotonic clock."""
        return int(max(_told(tick, at_s) for tick in self._ticks)) if self._ticks else None

    def when_s(self, at_ms: int) -> float | None:
        """Return when `now_ms` will tell *at_ms*, by the monotonic clock, if no further tick is read."""
        return min([_reached(tick, at_ms) for tick in self._ticks], default=None)


def _told(tick: TickRead, at_s: float) -> float:
    return tick.appended_ms + max(at_s - tick.read_s, 0.0) * 1000 * (1 - _DRIFT)


def _reached(tick: TickRead, at_ms: int) -> float:
    # A microsecond later, lest a rounding error has a moment looked for that has not come.
    return tick.read_s + max(at_ms - tick.appended_ms + 0.001, 0) / (1000 * (1 - _DRIFT))
