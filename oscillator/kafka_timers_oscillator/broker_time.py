"""
Estimates the broker's clock from monotonic time. Pure arithmetic, without clock or Kafka.

Ticks follow the broker's clock, because the broker stamps them and the workers use its stamp. This host's own wall
clock is not used: it may step, be wrong by an hour, or be corrected while the process runs.

    a record sent at 10.000 (monotonic), acknowledged at 10.004, stamped 500.002 by the broker
        the broker is at least 489.998 s ahead of the monotonic clock     stamp - acknowledged
        and at most            490.002 s                                  stamp - sent

As in NTP, the estimate is the middle between the tightest bounds of the last records. A tick sent at its second then
lands later by the time that a record needs to reach the log. It is early only if that time suddenly shrinks by more
than half.
"""

from collections import deque

# Drift between the two clocks is followed within as many seconds. It is below 0.1 ms a second.
SAMPLES = 32

# Upper bounds are noisy, since a new connection is slow, and would make ticks early. With fewer bounds than this, ticks
# wait.
SAMPLES_MIN = 4

# If bounds contradict each other by more than this, a clock stepped or the host was suspended. Smaller contradictions
# come from stamps rounded to milliseconds, or from two brokers whose clocks differ a little.
STEP_S = 0.05


class BrokerTime:
    """The estimate. Times named `_elapsed_s` are monotonic; `_append_s` are UNIX seconds as stamped by the broker."""

    def __init__(self) -> None:
        self._at_least: deque[float] = deque(maxlen=SAMPLES)
        self._at_most: deque[float] = deque(maxlen=SAMPLES)
        self._told_elapsed_s = float("-inf")

    def acknowledged(self, sent_elapsed_s: float, acknowledged_elapsed_s: float, append_s: float) -> None:
        """
        Learn from a record that this process sent.

        For records sent together to many partitions, pass the earliest stamp as *append_s*. If the brokers' clocks
        differ, the slowest decides when a tick is due. Otherwise its partitions would get the tick early.
        """
        at_most_s = append_s - sent_elapsed_s
        if self._at_least and at_most_s < max(self._at_least) - STEP_S:
            self._forget()
        self._at_most.append(at_most_s)
        self.heard(acknowledged_elapsed_s, append_s)

    def heard(self, heard_elapsed_s: float, append_s: float) -> None:
        """Learn from a record by any process that was in the log at *heard_elapsed_s*."""
        at_least_s = append_s - heard_elapsed_s
        if self._at_most and at_least_s > min(self._at_most) + STEP_S:
            self._forget()
        self._at_least.append(at_least_s)
        self._told_elapsed_s = heard_elapsed_s

    def at(self, elapsed_s: float) -> float | None:
        """Return the broker's time in UNIX seconds; None without any record, and too low after only a few."""
        if not self._at_least:
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
