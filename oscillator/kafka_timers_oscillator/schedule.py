"""
Which ticks one replica emits, and when: pure, driven by the broker's time that is handed in.

A partition's *last* tick is the highest that counts there. A tick counts as min(its second, the second of its append
time): one that landed 3 ms early counts as the second before, so its own second is still to come and is emitted again.

    replica     emits second 12 at     if by then
    0           12.003                 its partition has not got it yet
    1           12.253                 the same, which means that replica 0 did not live up to its task
    2           12.503                 …

While seconds are caught up the boundary lies in the past for all replicas. Then a replica counts its wait from the last
tick it saw of another one: the first replica catches up, the second keeps silent until there is no progress any more.
"""

import math
from collections.abc import Iterable, Mapping

REPLICA_WAIT_S = 0.25

# A tick aims at this long after its second: above the jitter of a local broker, so that few land early.
MARGIN_S = 0.003

# Most seconds of one partition that are sent at once when catching up; keeps batches far below any broker's limit.
ROUND_SECONDS = 200


class Schedule:
    """
    What each partition has and when it gets its next tick; all times are the broker's, in UNIX seconds.

    Args:
        last: per partition its last tick that counts, or None when it holds none.
        now_s: the broker's time.
        replica: rank of this replica, from 0.
        catch_up_s: how far back seconds are emitted; older ones are left out.
    """

    def __init__(self, last: Mapping[int, int | None], now_s: float, *, replica: int, catch_up_s: int) -> None:
        known = [second for second in last.values() if second is not None]
        # Partitions without any tick start with the newest of the others: a crash in the very first broadcast left
        # them out. When none has one, time starts now.
        start = max(known) if known else math.floor(now_s - MARGIN_S)
        self._last = {partition: start - 1 if second is None else second for partition, second in last.items()}
        self._wait_s = replica * REPLICA_WAIT_S + MARGIN_S
        self._catch_up_s = catch_up_s
        self._quiet_since_s = dict.fromkeys(last, now_s if replica else -math.inf)
        self._sent: dict[int, int] = {}
        self._in_flight: set[int] = set()

    @property
    def last(self) -> int:
        """The last second that every partition has."""
        return min(self._last.values())

    def last_in(self, partition: int) -> int:
        """Return the last second that *partition* has."""
        return self._last[partition]

    def next_s(self) -> float:
        """Return when the next tick is to be emitted by this replica; infinite while every partition is in flight."""
        return min((self._next_s(partition) for partition in self._idle()), default=math.inf)

    def skip(self, now_s: float) -> int:
        """Leave out what lies further back than the catch-up limit; return how many ticks that are."""
        oldest = math.floor(now_s) - self._catch_up_s
        skipped = 0
        for partition in self._idle():
            if (behind := oldest - 1 - self._last[partition]) > 0:
                self._last[partition] += behind
                skipped += behind
        return skipped

    def due(self, now_s: float) -> dict[int, range]:
        """Return per partition the seconds to emit now, ascending; more may be due right after them."""
        up_to = math.floor(now_s - self._wait_s)
        return {
            partition: range(first, min(up_to + 1, first + ROUND_SECONDS))
            for partition in self._idle()
            if self._next_s(partition) <= now_s and (first := self._last[partition] + 1) <= up_to
        }

    def sent(self, partition: int, seconds: range) -> None:
        """Note that *seconds* were sent; the partition is in flight, with nothing due, until `landed`."""
        self._in_flight.add(partition)
        self._sent[partition] = seconds[-1]

    def landed(self, partition: int) -> None:
        """Note that the outcome of what was sent is known, and `saw` was told of it."""
        self._in_flight.discard(partition)

    def saw(self, partition: int, second: int, append_s: float, now_s: float) -> int:
        """
        Take note of a tick in the log, whoever wrote it.

        Returns:
            The seconds by which it advanced its partition; 0 for a tick that was known, came twice or does not count.
        """
        advance = math.floor(min(second, append_s)) - self._last[partition]
        if advance <= 0:
            return 0
        self._last[partition] += advance
        if not self.is_own(partition, second):
            self._quiet_since_s[partition] = now_s
        return advance

    def is_own(self, partition: int, second: int) -> bool:
        """Tell whether this replica has sent *second*, or a later one, to *partition*."""
        return second <= self._sent.get(partition, -1)

    def _idle(self) -> Iterable[int]:
        return (partition for partition in self._last if partition not in self._in_flight)

    def _next_s(self, partition: int) -> float:
        return max(self._last[partition] + 1, self._quiet_since_s[partition]) + self._wait_s
