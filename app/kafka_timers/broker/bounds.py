"""
First and last offsets of a topic's partitions, and their bytes.

A leader that was cut off from the others, or was frozen, does not know that it has been replaced, and reports its old
end. Pass an offset that all in-sync replicas have acknowledged (`above`) to get the true end. A leader that has this
offset also has everything acknowledged before it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import NamedTuple

from aiokafka.errors import KafkaError, KafkaTimeoutError, for_code
from aiokafka.protocol.admin import DeleteRecordsRequest

from kafka_timers.broker import codes
from kafka_timers.broker.cluster import Cluster, Leader, limited
from kafka_timers.broker.requests import EpochEnd, ListOffsets, LogDirs

_PAUSE_S = 0.1
# Brokers answer its questions at once. They delete records once all replicas do.
_LANE, _DELETING_LANE = "bounds", "deletions"


class Bound(NamedTuple):
    """
    An offset with a leader epoch. For the end of a log it is the leader's epoch, otherwise the epoch of the record.
    """

    offset: int
    epoch: int


# Asks a broker that leads a partition, and returns its answer, or an error number.
_Asking = Callable[[Leader], Awaitable[Bound | int]]


class LogBounds:
    """
    Finds first and last offsets of one topic.

    Its methods raise KafkaTimeoutError if no leader has answered in time, and another `aiokafka.errors.KafkaError` if
    a leader refuses.

    Args:
        cluster: the cluster to ask. It must have looked the topic up.
        limit_s: how long to wait for a leader that answers, in seconds.
        is_committed: whether `end` stops where readers of committed records stop.
    """

    def __init__(self, cluster: Cluster, topic: str, limit_s: float = 5.0, *, is_committed: bool = True) -> None:
        self._cluster = cluster
        self._topic = topic
        self._limit_s = limit_s
        self._is_committed = is_committed

    @property
    def numbers(self) -> list[int]:
        """The topic's partitions, as far as known."""
        return self._cluster.partitions(self._topic)

    @property
    def log_id(self) -> bytes:
        """Kafka's id of the topic; empty if no broker tells one."""
        told = self._cluster.topic_id(self._topic)
        return told if any(told) else b""

    async def starts(self, numbers: Collection[int]) -> dict[int, int]:
        """Return the first offset that each partition still has."""
        bounds = await asyncio.gather(*(self._ask(number, ListOffsets.START) for number in numbers))
        return {number: bound.offset for number, bound in zip(numbers, bounds, strict=True)}

    async def end(self, number: int, above: int | None = None) -> int:
        """
        Return the offset after the last record.

        *above* is an offset that the leader must have; with None, any broker that claims to lead is believed.
        """
        if above is None:
            return (await self._ask(number, ListOffsets.END, is_committed=self._is_committed)).offset
        cut_off = (
            f"the broker that says it leads {self._topic} partition {number} does not have offset {above}, which is "
            "acknowledged: it is cut off from the others"
        )
        async with limited(self._limit_s, lambda: cut_off):
            while True:
                # While a transaction is open, the committed end may lie below *above*; so both ends are asked for.
                behind = await self._ask(number, ListOffsets.END, is_committed=False)
                stable = await self._ask(number, ListOffsets.END)
                if behind.offset > above and stable.epoch == behind.epoch:
                    return stable.offset
                await asyncio.sleep(_PAUSE_S)
                await self.refresh()

    async def watermark(self, number: int) -> int:
        """Return the offset after the last record, also where it belongs to a transaction that is open."""
        return (await self._ask(number, ListOffsets.END, is_committed=False)).offset

    async def ends(self, numbers: Collection[int]) -> dict[int, int]:
        """Return the offset after the last record of each partition; see `end`."""
        return dict(zip(numbers, await asyncio.gather(*map(self.end, numbers)), strict=True))

    async def since(self, number: int, moment_ms: int) -> int | None:
        """
        Return the offset of the first record appended at *moment_ms* (UNIX milliseconds) or later; None if there is
        none.
        """
        first = await self._ask(number, moment_ms)
        return None if first.offset < 0 else first.offset

    async def delete_below(self, number: int, offset: int) -> int:
        """Delete all records below *offset*, and return the first offset that the partition still has."""
        request = DeleteRecordsRequest([(self._topic, [(number, offset)])], int(self._limit_s * 1000))

        async def told(leader: Leader) -> Bound | int:
            answer = await self._cluster.send(leader.node, request, lane=_DELETING_LANE)
            [(_, [(_, start, code, *_)], *_)] = answer.topics
            return int(code) or Bound(start, leader.epoch)

        return (await self._from_leader(number, told)).offset

    async def has_before(self, number: int, moment_ms: int) -> bool:
        """Tell whether the log has a record that was appended before *moment_ms* (UNIX milliseconds)."""
        start, since = (await self.starts([number]))[number], await self.since(number, moment_ms)
        return (await self.watermark(number) if since is None else since) > start

    async def sizes(self) -> dict[int, int]:
        """
        Return the bytes of each partition on its leader, without those of which no broker tells them: it is away, or
        this user may not describe the cluster.
        """
        led = self._cluster.led(self._topic, self.numbers)
        told = await asyncio.gather(*(self._sizes_on(node, numbers) for node, numbers in led.items()))
        return {number: size for sizes in told for number, size in sizes.items()}

    async def _sizes_on(self, node: int, numbers: Collection[int]) -> dict[int, int]:
        try:
            answer = await self._cluster.send(node, LogDirs(self._topic, numbers), lane=f"sizes of {self._topic}")
        except KafkaError:
            return {}
        return {
            number: size
            for _, _, topics, *_ in answer.folders
            for _, partitions, *_ in topics
            for number, size, _, is_future, *_ in partitions
            if not is_future
        }

    async def kept(self, number: int, epoch: int) -> int:
        """
        Return the offset below which the log has what it had under a leader *epoch*. It lies below what was read then
        where the log was cut, as by an unclean election. Where no epoch tells, it is the end of the log.
        """
        found = Bound(-1, -1)
        try:
            if epoch >= 0:
                found = await self._from_leader(number, lambda leader: self._epoch_end(leader, number, epoch))
        except KafkaTimeoutError:
            leader = self._cluster.leader(self._topic, number)
            if leader is None or leader.epoch >= epoch or self.log_id:
                raise
            # Nobody leads in a later epoch: it is another topic, though no id tells it.
            return 0
        return await self.watermark(number) if found.offset < 0 else found.offset

    async def told_by(
        self, node: int, numbers: Collection[int], moment: int = ListOffsets.END, *, is_committed: bool = True
    ) -> dict[int, Bound | int]:
        """
        Return the answer of broker *node* for each partition: the offset that `ListOffsets` asks for, or an error
        number.

        The wait ends early if *node* was known to lead one of the partitions, and leads it no more.
        """
        request = ListOffsets(self._topic, numbers, moment, is_committed=is_committed)
        led = [(self._topic, number) for number in self._cluster.led(self._topic, numbers).get(node, ())]
        has_moved = partial(self._cluster.has_lost, node, led) if led else None
        answer = await self._cluster.send(node, request, lane=_LANE, has_moved=has_moved)
        bounds: dict[int, Bound | int] = {}
        for _, partitions, *_ in answer.topics:
            for number, code, _, offset, epoch, *_ in partitions:
                bounds[number] = code or Bound(offset, epoch)
                if not code and moment == ListOffsets.END:
                    self._cluster.learn(self._topic, number, Leader(node, epoch))
        return bounds

    async def _epoch_end(self, leader: Leader, number: int, epoch: int) -> Bound | int:
        if leader.epoch < epoch:
            return codes.NOT_LEADER
        answer = await self._cluster.send(leader.node, EpochEnd(self._topic, number, leader.epoch, epoch), lane=_LANE)
        [(_, [(code, _, found, end, *_)], *_)] = answer.topics
        return code or Bound(end, found)

    async def _ask(self, number: int, moment: int, *, is_committed: bool = True) -> Bound:
        """Return what the leader tells of *moment*, see `ListOffsets`."""

        async def told(leader: Leader) -> Bound | int:
            bound = (await self.told_by(leader.node, [number], moment, is_committed=is_committed))[number]
            is_late = isinstance(bound, Bound) and moment == ListOffsets.END and bound.epoch < leader.epoch
            return codes.NOT_LEADER if is_late else bound

        return await self._from_leader(number, told)

    async def _from_leader(self, number: int, told: _Asking) -> Bound:
        """Ask the leader, whichever broker that is, until one answers."""
        why = "no leader is known"
        what = f"no broker tells the bounds of {self._topic} partition {number} within {self._limit_s:g} s"
        async with limited(self._limit_s, lambda: f"{what}: {why}"):
            while True:
                if leader := self._cluster.leader(self._topic, number):
                    why = f"{self._name_of(leader)} has not answered yet"
                    bound = await self._answer_of(leader, number, told)
                    if isinstance(bound, Bound):
                        return bound
                    why = bound
                await asyncio.sleep(_PAUSE_S)
                await self.refresh()

    async def _answer_of(self, leader: Leader, number: int, told: _Asking) -> Bound | str:
        """Return what *leader* has *told*, or as text the reason to ask again."""
        try:
            bound = await told(leader)
        except KafkaError as error:
            if not error.retriable:
                raise
            return str(error)
        if isinstance(bound, Bound):
            return bound
        why = f"{self._name_of(leader)} answers {codes.name_of(bound)}"
        if bound not in codes.DELAYS_OF_LEADERS:
            raise for_code(bound)(f"{self._topic} partition {number}: {why}")
        return why

    def _name_of(self, leader: Leader) -> str:
        return f"{self._cluster.name_of(leader.node)}, which is to lead it,"

    async def refresh(self) -> None:
        """
        Look the topic's leaders up again. Does nothing if no broker answers.

        Raises:
            aiokafka.errors.KafkaError: the brokers refuse.
        """
        try:
            await self._cluster.refresh()
        except KafkaError as error:
            if not error.retriable:
                raise
            await asyncio.sleep(_PAUSE_S)
