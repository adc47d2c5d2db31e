"""
End offsets of the request log at a tick: one question to each broker for all partitions of a worker.

The question goes to every broker with a replica, not only to the leader. A broker that was cut off may still believe
that it leads, and reports an old end. Its successor knows that it leads, in a later leader epoch. If all brokers have
answered and none reports a later epoch, the end is *proved*. This costs nothing, and is good enough for ticks: a
request that it misses during an election fires a second later. Takeovers need more, see `Sender.barrier`.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial

from kafka_timers.broker import codes
from kafka_timers.broker.bounds import Bound, LogBounds
from kafka_timers.broker.cluster import Cluster, Leader
from kafka_timers.clock import Clock

_Bounds = Mapping[int, Bound | int]


# Answers of a broker that does not lead a partition.
_FOLLOWS = (codes.NOT_LEADER, codes.UNKNOWN_TOPIC_OR_PARTITION)


@dataclass(slots=True)
class _Round:
    """
    The questions of one tick.

    Attributes:
        leaders: known leaders of the partitions at the start.
        left: brokers whose answers are missing for a proof, by partition.
        ends: the leader's answer by partition; None if the partition has to be asked for again.
    """

    second: int
    began_s: float
    leaders: dict[int, Leader]
    left: dict[int, set[int]]
    ends: dict[int, asyncio.Future[int | None]]


class EndOffsets:
    """
    End offsets of the request log, asked for once for each tick.

    Args:
        numbers: returns the partitions that this worker reads.
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
        # An older question may still wait for a silent broker.
        # A dict keeps their order, so that a seed of the simulation gives one history.
        self._open: dict[asyncio.Task[_Bounds], None] = {}

    async def end(self, number: int, second: int) -> int:
        """
        Return the offset after the last committed request of partition *number*, asked for after tick *second*.

        Raises:
            aiokafka.errors.KafkaError: no leader answers, not even to a question for this partition alone.
        """
        asked = self._round
        if asked is None or second != asked.second:
            asked = self._round = self._ask(second)
        answer = asked.ends.get(number)
        end = await asyncio.shield(answer) if answer else None
        # If this fails too, its error has the reason.
        return await self._bounds.end(number) if end is None else end

    def asked_s(self, second: int) -> float:
        """Return the time of the question after tick *second*, on the monotonic clock; now if there was none yet."""
        asked = self._round
        return asked.began_s if asked and asked.second == second else self._clock.elapsed_s()

    def proved(self, number: int, at_s: float) -> None:
        """Note that at *at_s*, on the monotonic clock, the true end of partition *number* was known."""
        self._proved_s[number] = max(at_s, self._proved_s.get(number, at_s))

    def proved_s(self, number: int) -> float | None:
        """Return the time of the last proof for partition *number*, on the monotonic clock; None without a proof."""
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

    def _heard(self, asked: _Round, node: int, numbers: Collection[int], task: asyncio.Task[_Bounds]) -> None:
        del self._open[task]
        # asyncio logs an exception that was never retrieved, and nothing else retrieves this one.
        bounds: _Bounds = {} if task.cancelled() or task.exception() else task.result()
        for number in numbers:
            bound, end, left = bounds.get(number), asked.ends[number], asked.left[number]
            leads = isinstance(bound, Bound) and bound.epoch >= asked.leaders[number].epoch
            is_leader = node == asked.leaders[number].node
            if not end.done() and (leads or is_leader):
                end.set_result(bound.offset if isinstance(bound, Bound) and leads else None)
            # After any other error the broker may lead: a newly elected leader does not know its end yet.
            tells = isinstance(bound, Bound) or bound in _FOLLOWS
            if tells and leads == is_leader:
                left.discard(node)
            if not left:
                self.proved(number, asked.began_s)

    def close(self) -> None:
        """Cancel all open questions, because their answers are not needed any more."""
        for question in list(self._open):
            question.cancel()
