"""The partitions of a process plan in turns, so that the callbacks of its worker do not wait for them."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

from kafka_timers.clock import Clock
from kafka_timers.runtime.priority import PriorityGate

_T = TypeVar("_T")

# About a millisecond of work: callbacks wait for as long as it takes.
STRIDE_RECORDS = 40
# No transaction begins so long before a second, since it would be open then, or so long after it, when its tick has not
# come to all partitions.
_BEFORE_S, _AFTER_S = 0.05, 0.02
# Strides after a wait in vain, so that a worker that fires without a pause does not stop planning.
_STRIDES_UNASKED = 40


class Turns:
    """Pauses between strides of planning."""

    def __init__(self, gate: PriorityGate, clock: Clock) -> None:
        self._gate = gate
        self._clock = clock
        # Without it, each turn of the event loop would have a stride of every partition.
        self._one = asyncio.Lock()
        self._unasked = 0

    async def over(self) -> None:
        """End a stride of at most `STRIDE_RECORDS` records, and return when the next one may begin."""
        async with self._one:
            await asyncio.sleep(0)
            if self._unasked:
                self._unasked -= 1
            elif not await self._gate.idle_soon():
                self._unasked = _STRIDES_UNASKED

    async def may_begin(self) -> None:
        """
        End a stride, and return when a transaction may begin.

        Owners cannot read what lies behind an open transaction, so those that fire a second would wait for its end.
        """
        now_s = self._clock.wall_s()
        second_s = round(now_s)
        if second_s - _BEFORE_S < now_s < second_s + _AFTER_S:
            await self._clock.sleep_until(second_s + _AFTER_S)
        await self.over()

    async def spread(self, items: Iterable[_T]) -> AsyncIterator[_T]:
        """Yield *items*, and end a stride before each `STRIDE_RECORDS` of them."""
        for number, item in enumerate(items):
            if number % STRIDE_RECORDS == 0:
                await self.over()
            yield item
