"""
Estimates the brokers' clocks from monotonic time. Pure arithmetic, without clock or Kafka.

Ticks follow the broker's clock, because the broker stamps them and the workers use its stamp. This host's own wall
clock is not used: it may step, be wrong by an hour, or be corrected while the process runs.

    a record sent at 10.000 (monotonic), acknowledged at 10.004, stamped 500.002 by the broker
        the broker is at least 489.998 s ahead of the monotonic clock     stamp - acknowledged
        and at most            490.002 s                                  stamp - sent

As in NTP, the estimate is the middle between the tightest bounds of the last records. A tick sent at its second then
lands later by the time that a record needs to reach the log. It is early only if that time suddenly shrinks by more
than half.

Each broker has a clock of its own. The middle one of them is the time, of two the slower one. So one of three that is
wrong changes nothing. A partition whose leader is behind the time gets its ticks by that leader's clock: earlier ones
would not count.
"""

from collections import deque
from statistics import median_low

# Drift between the two clocks is followed within as many seconds. It is below 0.1 ms a second.
SAMPLES = 32

# Upper bounds are noisy, since a new connection is slow, and would make ticks early. With fewer bounds than this, ticks
# wait.
SAMPLES_MIN = 4

# If bounds contradict each other by more than this, a clock stepped or the host was suspended. Smaller contradictions
# come from stamps rounded to milliseconds.
STEP_S = 0.05

# A broker that has told nothing for so long counts no more. Until then its clock is known well enough to count.
KEPT_S = 3600.0


class _BrokerTime:
    """
    The estimate of one broker's clock.

    Times named `_elapsed_s` are monotonic; `_append_s` are UNIX seconds as stamped by the broker.
    """

    def __init__(self) -> None:
        self._at_least: deque[float] = deque(maxlen=SAMPLES)
        self._at_most: deque[float] = deque(maxlen=SAMPLES)
        self._told_elapsed_s = float("-inf")

    def heard(self, heard_elapsed_s: float, append_s: float, sent_elapsed_s: float | None = None) -> None:
        """
        Learn from a record that was in the log at *heard_elapsed_s*; of an own one, also when it was sent.

        For records sent together to many partitions, pass the earliest stamp as *append_s*.
        """
        if sent_elapsed_s is not None:
            at_most_s = append_s - sent_elapsed_s
            if self._at_least and at_most_s < max(self._at_least) - STEP_S:
                self._forget()
            self._at_most.append(at_most_s)
        at_least_s = append_s - heard_elapsed_s
        if self._at_most and at_least_s > min(self._at_most) + STEP_S:
            self._forget()
        self._at_least.append(at_least_s)
        self._told_elapsed_s = heard_elapsed_s

    def at(self, elapsed_s: float) -> float | None:
        """Return the broker's time in UNIX seconds; None without a record of late, and too low after only a few."""
        if not self._at_least or self.age_s(elapsed_s) > KEPT_S:
            return None
        at_least_s = max(self._at_least)
        if len(self._at_most) < SAMPLES_MIN:
            return elapsed_s + at_least_s
        return elapsed_s + (at_least_s + min(self._at_most)) / 2

    def age_s(self, elapsed_s: float) -> float:
        """Return the seconds since the last record was learnt from; infinite without one."""
        return elapsed_s - self._told_elapsed_s

    def _forget(self) -> None:
        self._at_least.clear()
        self._at_most.clear()


class BrokersTime:
    """The time by the clocks of all brokers; `of` has the estimate of each."""

    def __init__(self) -> None:
        self._brokers: dict[int, _BrokerTime] = {}

    def of(self, broker: int) -> _BrokerTime:
        """Return the estimate of *broker*'s clock."""
        return self._brokers.setdefault(broker, _BrokerTime())

    def at(self, elapsed_s: float) -> float | None:
        """Return the time in UNIX seconds; None while no broker's is known."""
        return median_low(times) if (times := self._times(elapsed_s).values()) else None

    def off_s(self, elapsed_s: float) -> dict[int, float]:
        """Return by how many seconds the clock of each broker is ahead of the time; negative if it is behind."""
        times = self._times(elapsed_s)
        return {broker: at_s - median_low(times.values()) for broker, at_s in times.items()}

    def age_s(self, elapsed_s: float) -> float:
        """Return the seconds since the last record of any broker was learnt from; infinite without one."""
        return min((each.age_s(elapsed_s) for each in self._brokers.values()), default=float("inf"))

    def _times(self, elapsed_s: float) -> dict[int, float]:
        times = {broker: each.at(elapsed_s) for broker, each in self._brokers.items()}
        return {broker: at_s for broker, at_s in times.items() if at_s is not None}
