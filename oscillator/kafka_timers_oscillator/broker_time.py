"""
What the broker's clock shows, told from monotonic time: pure arithmetic, no clock and no Kafka.

Ticks are placed by the broker's clock, since it stamps them and the workers go by its stamp. This host's own wall
clock takes no part: it may step, be wrong by an hour, or be put right while the process runs.

    a record sent at 10.000 (monotonic), acknowledged at 10.004, stamped 500.002 by the broker
        the broker is at least 489.998 ahead of the monotonic clock     stamp - acknowledged
        and a record sent later lands at most 490.002 after its sending  stamp - sent

The second figure holds the time a record needs to reach the log, which is just what placing a tick needs. It is noisy
upwards only (a busy broker stamps late), so the smallest of the last few is the best.
"""

from collections import deque

# As many as the seconds that a drift between two clocks may take to be followed; drift is below 0.1 ms a second.
SAMPLES = 32

# Bounds that contradict each other by more than this come from a step of a clock, or from a host that was suspended.
# Less than this is the rounding of stamps to milliseconds, or two brokers whose clocks differ a little.
STEP_S = 0.05


class BrokerTime:
    """The estimate; times named `_elapsed_s` are monotonic, `_append_s` are UNIX seconds as stamped by the broker."""

    def __init__(self) -> None:
        self._landings: deque[float] = deque(maxlen=SAMPLES)
        self._hearings: deque[float] = deque(maxlen=SAMPLES)
        self._told_elapsed_s: float | None = None

    def acknowledged(self, sent_elapsed_s: float, acknowledged_elapsed_s: float, append_s: float) -> None:
        """
        Learn from a record of this process.

        With records sent together to many partitions *append_s* is the earliest stamp: among brokers whose clocks
        differ, the slowest decides when a tick is due, else its partitions would get it early.
        """
        self._forget_before_step(append_s - acknowledged_elapsed_s)
        self._landings.append(append_s - sent_elapsed_s)
        self._told_elapsed_s = acknowledged_elapsed_s

    def heard(self, heard_elapsed_s: float, append_s: float) -> None:
        """Learn from a record of another process, read as soon as it was written."""
        self._forget_before_step(append_s - heard_elapsed_s)
        self._hearings.append(append_s - heard_elapsed_s)
        self._told_elapsed_s = heard_elapsed_s

    def at(self, elapsed_s: float) -> float | None:
        """
        Return the stamp, in UNIX seconds, that a record sent at *elapsed_s* would get; None while nothing is known.

        From hearings alone it is a little too low (by the time a record needs to be read), so a tick placed by it is
        late by that, never early.
        """
        if self._landings:
            return elapsed_s + min(self._landings)
        if self._hearings:
            return elapsed_s + max(self._hearings)
        return None

    def age_s(self, elapsed_s: float) -> float:
        """Return the seconds since something was learnt; infinite when nothing was."""
        return float("inf") if self._told_elapsed_s is None else elapsed_s - self._told_elapsed_s

    def _forget_before_step(self, at_least_s: float) -> None:
        # A step back of the broker's clock needs no care: the smallest landing follows it at once.
        if self._landings and at_least_s > min(self._landings) + STEP_S:
            self._landings.clear()
            self._hearings.clear()
