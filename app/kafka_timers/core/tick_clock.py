"""
The second that a tick counts as, and a lower bound of the time on the clock of the broker that has appended it.

Pure. A tick tells when the broker appended it, and it was read later than that. The time since it was read is added to
its append time, measured by a clock that counts no faster than the broker's. So the sum is never ahead of the broker.
"""

from collections import deque
from typing import NamedTuple

# The best of this many ticks counts: a tick that was read quickly tells more than one that was read late.
_TICKS = 8
# Largest rate by which two clocks differ that nobody corrects. ntpd slews a clock by half of this at most.
_DRIFT = 0.001
# If an earlier tick tells more than a new one by more than this, the broker's clock was slewed or stepped back, or the
# new tick was read late. Nothing shows which, so the broker's clock is taken for as slow as that until the next tick.
_LATE_MS = 10
# No clock is slewed by more: chrony's `maxslewrate` is a twelfth. Ticks that differ more are from before a step.
_SLEW_MAX = 0.1


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
        self._drift = _DRIFT

    def read(self, tick: TickRead) -> None:
        """Add *tick*, which was read after all others."""
        # Another leader epoch is another broker, with another clock.
        slower = {each: _slower(each, tick) for each in self._ticks if each.epoch == tick.epoch}
        self._ticks = deque([*(each for each, by in slower.items() if by <= _SLEW_MAX), tick], _TICKS)
        self._drift = min(max(slower.values(), default=0.0), _SLEW_MAX) + _DRIFT

    def now_ms(self, at_s: float) -> int | None:
        """
        Return the UNIX millisecond that the broker's clock has reached at *at_s* of the monotonic clock; None before a
        tick.
        """
        return int(max(_told(tick, at_s, self._drift) for tick in self._ticks)) if self._ticks else None

    def when_s(self, at_ms: int) -> float | None:
        """
        Return the monotonic time at which `now_ms` will reach *at_ms* if no further tick is read; None before a tick.
        """
        return min([_reached(tick, at_ms, self._drift) for tick in self._ticks], default=None)


def _slower(before: TickRead, tick: TickRead) -> float:
    """Return by which rate the broker's clock may have been slower from *before* to *tick*; 0 if that hardly shows."""
    passed_ms = (tick.read_s - before.read_s) * 1000
    ahead_ms = before.appended_ms + passed_ms - tick.appended_ms
    return 0.0 if ahead_ms <= _LATE_MS else ahead_ms / passed_ms if passed_ms > 0 else 1.0


def _told(tick: TickRead, at_s: float, drift: float) -> float:
    return tick.appended_ms + max(at_s - tick.read_s, 0.0) * 1000 * (1 - drift)


def _reached(tick: TickRead, at_ms: int, drift: float) -> float:
    # Add a microsecond, so that a rounding error cannot ask for a moment that has not come.
    return tick.read_s + max(at_ms - tick.appended_ms + 0.001, 0) / (1000 * (1 - drift))
