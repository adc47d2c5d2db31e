"""Where the request log ends when a tick comes: one question for all partitions of a worker."""

import asyncio
from collections.abc import Callable, Collection

from aiokafka.errors import KafkaError

from kafka_timers.worker.ports import LogBounds


class EndOffsets:
    """
    End offsets of the request log, asked for once per tick.

    Args:
        bounds: asks the brokers, over a connection of its own: behind the reader's long poll an answer takes as long
            as the poll.
        numbers: returns the partitions that this worker owns.
    """

    def __init__(self, bounds: LogBounds, numbers: Callable[[], Collection[int]]) -> None:
        self._bounds = bounds
        self._numbers = numbers
        self._second = 0
        self._asked: asyncio.Task[dict[int, int]] | None = None
        # An older question may still wait for a broker that is silent.
        self._open: set[asyncio.Task[dict[int, int]]] = set()

    async def end(self, number: int, second: int) -> int:
        """
        Return the offset behind the last committed request of partition *number*, asked for after tick *second*.

        Raises:
            aiokafka.errors.KafkaError: the broker did not answer, also not when it was asked for this partition alone.
        """
        if self._asked is None or second != self._second:
            self._second = second
            self._asked = asyncio.create_task(self._bounds.ends(self._numbers()))
            self._open.add(self._asked)
            self._asked.add_done_callback(self._ended)
        asked = self._asked
        ends: dict[int, int] = {}
        try:
            ends = await asyncio.shield(asked)
        except KafkaError:
            # One lost answer is no reason for all partitions to fail.
            if self._asked is asked:
                self._asked = None
        if number not in ends:
            ends = await self._bounds.ends([number])
        return ends[number]

    def _ended(self, question: asyncio.Task[dict[int, int]]) -> None:
        self._open.discard(question)
        # Nobody may be left to look at it.
        if not question.cancelled():
            question.exception()

    def close(self) -> None:
        """End all questions that are under way; nobody waits for them any more."""
        for question in list(self._open):
            question.cancel()
