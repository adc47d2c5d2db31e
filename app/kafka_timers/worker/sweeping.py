"""
Sweeps of one owned partition: writes once more what waits far behind on the request log, see `core.sweep`.

    begin        below an offset, as `trim` asks
    go on        between seconds: the next parts, each in a transaction of its own, for a small part of the time
    read back    and once all is sealed that was left out, the next seal tells of it

An owner that is followed by another one sweeps no further, and the next one begins anew.
"""

import asyncio
import logging
from collections.abc import Callable

from kafka_timers.broker.refusals import RefusedError
from kafka_timers.core.sweep import Sweep
from kafka_timers.core.wire import KEPT_KEY
from kafka_timers.worker.follower import Follower
from kafka_timers.worker.sender import KafkaSender
from kafka_timers.worker.shared import Ports

log = logging.getLogger(__name__)

# What is due sooner fires before a sweep ends, if there is as much time.
_AHEAD_S = 600.0
# The share of the time that goes into it, and the share of each second at whose end nothing is begun.
_SHARE, _QUIET_S = 0.02, 0.1


class Sweeping:
    """The sweeps of one owner, whose *sender* has fenced the owner before."""

    def __init__(self, number: int, ports: Ports, follower: Follower, sender: KafkaSender) -> None:
        self._number = number
        self._ports = ports
        self._follower = follower
        self._sender = sender
        self._sweep: Sweep | None = None
        self._began_s = self._spent_s = 0.0
        # Behind the last record of the sweep.
        self._to = 0

    def begin(self, below: int) -> None:
        """Begin to sweep what waits below the offset *below*, unless a sweep is under way or nothing waits there."""
        if self._sweep is None:
            clock = self._ports.clock
            ahead_s = min(_AHEAD_S, self._ports.settings.keep_s / 4)
            self._sweep = self._follower.partition.sweep(
                int(clock.wall_s() * 1_000_000), below, ahead_ms=int(ahead_s * 1000)
            )
            self._began_s, self._spent_s = clock.elapsed_s(), 0.0

    async def go_on(self, is_wanted: Callable[[], bool]) -> None:
        """
        Write the next parts, as long as that does not take too much of the time and *is_wanted* returns False.

        Raises:
            FencedError: another worker owns the partition.
            KafkaError: a part was not written. The partition must be taken over again.
        """
        clock = self._ports.clock
        while (sweep := self._sweep) and not sweep.is_written and not is_wanted():
            at_s = clock.elapsed_s()
            if self._spent_s > _SHARE * (at_s - self._began_s) or clock.wall_s() % 1.0 > 1.0 - _QUIET_S:
                return
            await self._write_part(sweep)
            self._spent_s += clock.elapsed_s() - at_s
            await asyncio.sleep(0)
        partition = self._follower.partition
        if sweep and sweep.is_written and partition.position >= self._to and partition.sealed_ms >= sweep.from_ms:
            partition.swept, self._sweep = sweep.over(self._to), None

    async def _write_part(self, sweep: Sweep) -> None:
        topic = self._ports.names.requests
        part = sweep.part(self._follower.store.rows(*sweep.range))
        if part.values:
            some = [self._sender.new_batch() for _ in part.values]
            for batch, value in zip(some, part.values, strict=True):
                batch.append(timestamp=None, key=KEPT_KEY, value=value)
            try:
                self._to = await self._sender.write(some, topic) + 1
            except RefusedError as error:
                # As it would be again. The log is kept meanwhile.
                log.warning("%s partition %d: what waits cannot be repeated: %s", topic, self._number, error)
                self._sweep = None
                return
            self._ports.metrics.swept.inc(part.requests)
        sweep.written(part)
