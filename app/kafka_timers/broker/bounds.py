"""
Where the partitions of a topic begin and end.

A leader that was cut off from the others, or wakes from a freeze, does not know that another one leads in its place,
and tells its old end. Whether an end is the true one is told by an offset that is known to be acknowledged by all
replicas in sync (`above`): a leader whose log has that has all that was acknowledged before it.
"""

import asyncio
from collections.abc import Collection
from functools import partial
from typing import NamedTuple

from aiokafka.errors import KafkaError, KafkaTimeoutError, for_code

from kafka_timers.broker import codes
from kafka_timers.broker.cluster import Cluster, Leader
from kafka_timers.broker.requests import ListOffsets

__all__ = ["Bound", "LogBounds"]

_PAUSE_S = 0.1


class Bound(NamedTuple):
    """An offset, and a leader epoch: of an end that in which it was told, else that of the record."""

    offset: int
    epoch: int


class LogBounds:
    """
    The bounds of one topic.

    Args:
        cluster: to ask; has looked the topic up.
        topic: name.
        limit_s: of the waiting for a leader that answers.
        is_committed: whether ends are those of what readers of committed records get.
    """

    def __init__(self, cluster: Cluster, topic: str, limit_s: float = 5.0, *, is_committed: bool = True) -> None:
        self._cluster = cluster
        self._topic = topic
        self._lane = f"bounds of {topic}"
        self._limit_s = limit_s
        self._is_committed = is_committed

    async def starts(self, numbers: Collection[int]) -> dict[int, int]:
        """
        Return the first offset that is left of each partition.

        Raises:
            KafkaTimeoutError: no leader of one has answered in time.
            aiokafka.errors.KafkaError: a leader refuses.
        """
        bounds = await asyncio.gather(*(self._ask(number, ListOffsets.START) for number in numbers))
        return {number: bound.offset for number, bound in zip(numbers, bounds, strict=True)}

    async def end(self, number: int, above: int | None = None) -> int:
        """
        Return the offset behind the last record.

        Args:
            number: of the partition.
            above: an offset that the leader must have; None believes whoever says that it leads.

        Raises:
            KafkaTimeoutError: no leader has answered in time.
            aiokafka.errors.KafkaError: a leader refuses.
        """
        if above is None:
            return (await self._ask(number, ListOffsets.END, is_committed=self._is_committed)).offset
        try:
            async with asyncio.timeout(self._limit_s) as limit:
                while True:
                    # What is read up to here may end below that offset, where a transaction is open.
                    behind = await self._ask(number, ListOffsets.END, is_committed=False)
                    stable = await self._ask(number, ListOffsets.END)
                    if behind.offset > above and stable.epoch == behind.epoch:
                        return stable.offset
                    await asyncio.sleep(_PAUSE_S)
                    await self.refresh()
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise KafkaTimeoutError(
                f"who says to lead {self._topic} partition {number} does not have offset {above}, which is "
                f"acknowledged: it is cut off from the others"
            ) from error

    async def since(self, number: int, moment_ms: int) -> int | None:
        """
        Return the offset of the first record that was appended at *moment_ms* or later, UNIX time; None for none.

        Raises:
            KafkaTimeoutError: no leader has answered in time.
            aiokafka.errors.KafkaError: a leader refuses.
        """
        first = await self._ask(number, moment_ms)
        return None if first.offset < 0 else first.offset

    async def told_by(
        self, node: int, numbers: Collection[int], moment: int = ListOffsets.END, *, is_committed: bool = True
    ) -> dict[int, Bound | int]:
        """
        Return what broker *node* tells of partitions: what `ListOffsets` asks for, or the number of the error.

        Once it no longer leads one that it is known to lead now, it is not waited for.

        Raises:
            aiokafka.errors.KafkaError: it does not answer.
        """
        request = ListOffsets(self._topic, numbers, moment, is_committed=is_committed)
        led = [(self._topic, number) for number in self._cluster.led(self._topic, numbers).get(node, ())]
        has_moved = partial(self._cluster.has_lost, node, led) if led else None
        answer = await self._cluster.send(node, request, lane=self._lane, has_moved=has_moved)
        told: dict[int, Bound | int] = {}
        for _, partitions, *_ in answer.topics:
            for number, code, _, offset, epoch, *_ in partitions:
                told[number] = code or Bound(offset, epoch)
                if not code and moment == ListOffsets.END:
                    self._cluster.learn(self._topic, number, Leader(node, epoch))
        return told

    async def _ask(self, number: int, moment: int, *, is_committed: bool = True) -> Bound:
        """Ask the leader until there is one that answers."""
        why = "no leader is known"
        try:
            async with asyncio.timeout(self._limit_s) as limit:
                while True:
                    if leader := self._cluster.leader(self._topic, number):
                        why = f"{self._name_of(leader)} has not answered yet"
                        told = await self._ask_leader(leader, number, moment, is_committed=is_committed)
                        if isinstance(told, Bound):
                            return told
                        why = told
                    await asyncio.sleep(_PAUSE_S)
                    await self.refresh()
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise KafkaTimeoutError(
                f"where {self._topic} partition {number} begins or ends is not told within {self._limit_s:g} s: {why}"
            ) from error

    async def _ask_leader(self, leader: Leader, number: int, moment: int, *, is_committed: bool) -> Bound | str:
        """Return what *leader* tells, or why it is to be asked again, or another one."""
        try:
            told = (await self.told_by(leader.node, [number], moment, is_committed=is_committed))[number]
        except KafkaError as error:
            if not error.retriable:
                raise
            return str(error)
        if isinstance(told, Bound):
            if moment != ListOffsets.END or told.epoch >= leader.epoch:
                return told
            told = codes.NOT_LEADER
        why = f"{self._name_of(leader)} answers {codes.name_of(told)}"
        if told not in codes.DELAYS_OF_LEADERS:
            raise for_code(told)(f"{self._topic} partition {number}: {why}")
        return why

    def _name_of(self, leader: Leader) -> str:
        return f"{self._cluster.name_of(leader.node)}, which is to lead it,"

    async def refresh(self) -> None:
        """
        Ask anew who leads the topic, if any broker answers.

        Raises:
            aiokafka.errors.KafkaError: they refuse.
        """
        try:
            await self._cluster.refresh()
        except KafkaError as error:
            if not error.retriable:
                raise
            await asyncio.sleep(_PAUSE_S)
