"""
Where the request log ends when a tick comes: one question to each broker for all partitions of a worker.

Not only the leader of a partition is asked but every broker that has it. One that was cut off from the others may still
believe that it leads, and so tells an old end; whoever leads in its place knows that it does, in a later leader epoch.
If all have answered and none tells of a later one, the end is *proved*. That costs nothing, and is good for ticks: what
it might miss in the moment of an election fires a second later. Takeovers want more, see `Sender.barrier`.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial

from kafka_timers.broker import codes
from kafka_timers.broker.bounds import Bound, LogBounds
from kafka_timers.broker.cluster import Cluster, Leader
from kafka_timers.clock import Clock

_Told = Mapping[int, Bound | int]


# What a broker answers that does not lead a partition.
_FOLLOWS = (codes.NOT_LEADER, codes.UNKNOWN_TOPIC_OR_PARTITION)


@dataclass(slots=True)
class _Round:
    """
    What is asked for one tick.

    Attributes:
        second: of the tick.
        began_s: when, by the monotonic clock.
        leaders: of the partitions, as was known then.
        left: of each partition the brokers that have yet to answer for a proof.
        ends: of each partition what its leader tells; None when that one has to be asked anew, or another one.
    """

    second: int
    began_s: float
    leaders: dict[int, Leader]
    left: dict[int, set[int]]
    ends: dict[int, asyncio.Future[int | None]]


class EndOffsets:
    """
    End offsets of the request log, asked for once per tick.

    Args:
        bounds: of the log.
        cluster: knows who has which partition.
        topic: name of the log.
        numbers: returns the partitions that this worker reads.
        clock: tells how old a proof is.
    """

    def __init__(
        self, bounds: LogBounds, cluster: Cluster, topic: str, numbers: Callable[[], Collection[int]], clock: Clock
    ) -> None:
        self._bounds = bounds
        self._cluster = cluster
        self._topic = topic
        self._numbers = numbers
        self._clock = clock
        self._round: _Round | None = None
        self._proved_s: dict[int, float] = {}
        # An older question may still wait for a broker that is silent.
        # In their order, so that a seed of the simulation has one history.
        self._open: dict[asyncio.Task[_Told], None] = {}

    async def end(self, number: int, second: int) -> int:
        """
        Return the offset behind the last committed request of partition *number*, asked for after tick *second*.

        Raises:
            aiokafka.errors.KafkaError: no leader answers, also not when it was asked for this partition alone.
        """
        asked = self._round
        if asked is None or second != asked.second:
            asked = self._round = self._ask(second)
        told = asked.ends.get(number)
        end = await asyncio.shield(told) if told else None
        # If that fails as well, it says why.
        return await self._bounds.end(number) if end is None else end

    def proved(self, number: int, at_s: float) -> None:
        """Take note that whatever partition *number* had at *at_s*, by the monotonic clock, was known then."""
        self._proved_s[number] = max(at_s, self._proved_s.get(number, at_s))

    def proved_s(self, number: int) -> float | None:
        """Return when an end of partition *number* was proved last, by the monotonic clock; None for never."""
        return self._proved_s.get(number)

    def _ask(self, second: int) -> _Round:
        cluster, topic, loop = self._cluster, self._topic, asyncio.get_running_loop()
        led = [(number, cluster.leader(topic, number)) for number in self._numbers()]
        leaders = {number: leader for number, leader in led if leader}
        left = {number: {leader.node, *cluster.replicas(topic, number)} for number, leader in leaders.items()}
        ends = {number: loop.create_future() for number in leaders}
        asked = _Round(second, self._clock.elapsed_s(), leaders, left, ends)
        by_node: dict[int, list[int]] = {}
        for number, nodes in left.items():
            for node in sorted(nodes):
                by_node.setdefault(node, []).append(number)
        for node, numbers in by_node.items():
            task = asyncio.create_task(self._bounds.told_by(node, numbers))
            self._open[task] = None
            task.add_done_callback(partial(self._heard, asked, node, numbers))
        return asked

    def _heard(self, asked: _Round, node: int, numbers: Collection[int], task: asyncio.Task[_Told]) -> None:
        del self._open[task]
        # An exception that nobody looks at is logged, and nobody else does.
        told: _Told = {} if task.cancelled() or task.exception() else task.result()
        for number in numbers:
            bound, end, left = told.get(number), asked.ends[number], asked.left[number]
            leads = isinstance(bound, Bound) and bound.epoch >= asked.leaders[number].epoch
            is_leader = node == asked.leaders[number].node
            if not end.done() and (leads or is_leader):
                end.set_result(bound.offset if isinstance(bound, Bound) and leads else None)
            # Of any other error it may lead: one that was elected a moment ago does not know its end yet.
            tells = isinstance(bound, Bound) or bound in _FOLLOWS
            if tells and leads == is_leader:
                left.discard(node)
            if not left:
                self.proved(number, asked.began_s)

    def close(self) -> None:
        """End all questions that are under way; nobody waits for them any more."""
        for question in list(self._open):
            question.cancel()
