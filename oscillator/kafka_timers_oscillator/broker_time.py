"""
What the broker's clock shows, told from monotonic time: pure arithmetic, no clock and no Kafka.

Ticks are placed by the broker's clock, since it stamps them and the workers go by its stamp. This host's own wall
clock takes no part: it may step, be wrong by an hour, or be put right while the process runs.

    a record sent at 10.000 (monotonic), acknowledged at 10.004, stamped 500.002 by the broker
        the broker is at least 489.998 s ahead of the monotonic clock     stamp - acknowledged
        and at most            490.002 s                                  stamp - sent

As in NTP the middle of the tightest bounds of the last records is taken. A tick sent at its second then lands later by
the time that a record needs to reach the log, so it is early only if that time shrinks by more than half at once.
"""

from collections import deque

# A drift between the two clocks is followed within as many seconds; it is below 0.1 ms a second.
SAMPLES = 32

# Bounds from above are noisy (a connection is slow at first) and would place ticks early; below so many they wait.
SAMPLES_MIN = 4

# Bounds that contradict each other by more come from a step of a clock or a suspended host. By less, from stamps being
# rounded to milliseconds, or from two brokers whose clocks differ a little.
STEP_S = 0.05


class BrokerTime:
    """The estimate; times named `_elapsed_s` are monotonic, `_append_s` are UNIX seconds as stamped by the broker."""

    def __init__(self) -> None:
        self._at_least: deque[float] = deque(maxlen=SAMPLES)
        self._at_most: deque[float] = deque(maxlen=SAMPLES)
        self._told_elapsed_s = float("-inf")

    def acknowledged(self, sent_elapsed_s: float, acknowledged_elapsed_s: float, append_s: float) -> None:
        """
        Learn from a record of this process.

        Of records sent together to many partitions *append_s* is the earliest stamp: among brokers whose clocks differ,
        the slowest decides when a tick is due, else its partitions would get it early.
        """
        at_most_s = append_s - sent_elapsed_s
        if self._at_least and at_most_s < max(self._at_least) - STEP_S:
            self._forget()
        self._at_most.append(at_most_s)
        self.heard(acknowledged_elapsed_s, append_s)

    def heard(self, heard_elapsed_s: float, append_s: float) -> None:
        """Learn from a record that was in the log at *heard_elapsed_s*, written by anyone."""
        at_least_s = append_s - heard_elapsed_s
        if self._at_most and at_least_s > min(self._at_most) + STEP_S:
            self._forget()
        self._at_least.append(at_least_s)
        self._told_elapsed_s = heard_elapsed_s

    def at(self, elapsed_s: float) -> float | None:
        """Return the broker's time in UNIX seconds; None while nothing is known, too low while little is."""
        if not self._at_least:
            return None
        at_least_s = max(self._at_least)
        if len(self._at_most) < SAMPLES_MIN:
            return elapsed_s + at_least_s
        return elapsed_s + (at_least_s + min(self._at_most)) / 2

    def age_s(self, elapsed_s: float) -> float:
        """Return the seconds since something was learnt; infinite when nothing was."""
        return elapsed_s - self._told_elapsed_s

    def _forget(self) -> None:
        self._at_least.clear()
        self._at_most.clear()
