"""
Decides which ticks one replica emits, and when. Pure: the caller passes the broker's time in.

A tick counts as min(its second, the second of its append time). A tick that landed 3 ms early counts as the second
before, so its own second is still missing and is emitted again. A tick far ahead of its append time does not count at
all; the workers refuse it too.

    replica     emits second 12 at     if by then
    0           12.0005                its partition has not got it yet
    1           12.2505                the same, so replica 0 is gone
    2           12.5005                the same, so both are gone

During a catch-up all these times lie in the past. So a replica counts its wait from the last tick of another replica:
the first replica catches up, and the others keep silent until there is no more progress.
"""

import math
from collections.abc import Iterable, Iterator, Mapping

REPLICA_WAIT_S = 0.25

# Ticks are sent this long after their second, to allow for errors in the estimate of the broker's time.
MARGIN_S = 0.0005

# Limit of seconds that a catch-up sends to one partition at once: a few kilobytes, far below any broker's limit.
ROUND_SECONDS = 200

# Stands for the last tick of a partition without ticks. Sent as a tick to such a partition to learn the broker's time,
# since a tick of this second changes nothing.
NONE = 0


class Schedule:
    """
    Knows the last tick of each partition, and when its next tick is due. All times are the brokers', in UNIX seconds.

    Args:
        replica: rank of this replica, from 0.
        catch_up_s: how far back missed seconds are emitted; older ones are skipped.
        max_ahead_s: a tick further ahead of its append time does not count.

    Attributes:
        behind_s: by partition, seconds by which its leader's clock is behind the time; 0 where it is missing.
    """

    def __init__(self, partitions: Iterable[int], *, replica: int, catch_up_s: int, max_ahead_s: float) -> None:
        self._last = dict.fromkeys(partitions, NONE)
        self._sent = dict.fromkeys(self._last, NONE)
        self._quiet_since_s = dict.fromkeys(self._last, -math.inf)
        self._in_flight: set[int] = set()
        self.replica = replica
        self._wait_s = replica * REPLICA_WAIT_S + MARGIN_S
        self._catch_up_s = catch_up_s
        self._max_ahead_s = max_ahead_s
        self.behind_s: Mapping[int, float] = {}

    def start(self, now_s: float) -> None:
        """Start, so that ticks become due. Call this once, after `saw` was given the ticks up to the end of the log."""
        # A partition without ticks starts with the newest tick of the others, since a crash in the very first broadcast
        # left it out. Without any ticks, time starts now.
        newest = max(self._last.values())
        for partition, last in self._last.items():
            there_s = self._there(partition, now_s)
            if last == NONE:
                self._last[partition] = (math.floor(there_s - MARGIN_S) if newest == NONE else newest) - 1
            if self.replica:
                self._quiet_since_s[partition] = there_s

    @property
    def last(self) -> int:
        """The last second that every partition has."""
        return min(self._last.values())

    def last_in(self, partition: int) -> int:
        """Return the last second that *partition* has; `NONE` before `start` when it holds no tick."""
        return self._last[partition]

    def idle(self) -> Iterator[int]:
        """Yield the partitions that are not in flight, in order."""
        return (partition for partition in self._last if partition not in self._in_flight)

    def next_s(self) -> float:
        """Return when this replica must emit its next tick; infinite while every partition is in flight."""
        return min(
            (self._next_s(partition) + self.behind_s.get(partition, 0.0) for partition in self.idle()), default=math.inf
        )

    def due(self, now_s: float) -> dict[int, range]:
        """Return the seconds to emit now by partition, ascending. More may be due right after them."""
        due = dict[int, range]()
        for partition in self.idle():
            there_s, first = self._there(partition, now_s), self._last[partition] + 1
            up_to = math.floor(there_s - self._wait_s)
            if self._next_s(partition) <= there_s and first <= up_to:
                due[partition] = range(first, min(up_to + 1, first + ROUND_SECONDS))
        return due

    def skip(self, now_s: float) -> int:
        """Skip seconds before the catch-up limit; return the number of skipped ticks."""
        skipped = 0
        for partition in self.idle():
            oldest = math.floor(self._there(partition, now_s)) - self._catch_up_s
            if (behind := oldest - 1 - self._last[partition]) > 0:
                self._last[partition] += behind
                skipped += behind
        return skipped

    def take(self, partition: int) -> None:
        """Note that *partition* is in flight: it has nothing due until `landed`."""
        self._in_flight.add(partition)

    def sent(self, partition: int, seconds: range) -> None:
        """Note that *seconds* were sent to *partition*, which is in flight."""
        self._sent[partition] = seconds[-1]

    def landed(self, partition: int) -> None:
        """Note that *partition* is not in flight any more. Call `saw` for its ticks in the log first."""
        self._in_flight.discard(partition)

    def saw(self, partition: int, second: int, append_s: float, now_s: float) -> int:
        """
        Note a tick in the log, from any replica.

        Returns:
            The number of seconds by which it advanced its partition; 0 if it was known, repeated, or does not count.
        """
        if second > append_s + self._max_ahead_s:
            return 0
        counted, last = math.floor(min(second, append_s)), self._last[partition]
        if counted <= last:
            return 0
        self._last[partition] = counted
        if not self.is_own(partition, second):
            self._quiet_since_s[partition] = self._there(partition, now_s)
        return 1 if last == NONE else counted - last

    def is_own(self, partition: int, second: int) -> bool:
        """Tell whether this replica has sent *second*, or a later one, to *partition*."""
        return second <= self._sent[partition]

    def _there(self, partition: int, now_s: float) -> float:
        return now_s - self.behind_s.get(partition, 0.0)

    def _next_s(self, partition: int) -> float:
        return max(self._last[partition] + 1, self._quiet_since_s[partition]) + self._wait_s
