"""
Detects partitions that no worker seals. Workers that own other partitions report them.

The owner of a partition reports how long its oldest request has been due. If there is no working owner, nobody would.
So each worker watches the seal logs of the partitions that it does not own: one question to each broker. It reports a
log that has not grown for longer than an owner's interval between seals plus a takeover.
"""

import asyncio
from collections.abc import Collection

from aiokafka.errors import KafkaError

from kafka_timers.broker.bounds import Bound, LogBounds
from kafka_timers.broker.cluster import Cluster
from kafka_timers.clock import Clock
from kafka_timers.runtime.metrics import WorkerMetrics
from kafka_timers.worker.overdue import is_unserved


class Unowned:
    """
    Shows partitions as overdue for as long as they are not sealed.

    Args:
        cluster: the cluster to ask. It must have looked the topic up.
        seal_every_s: longest time between two seals of an owner without due timers, in seconds.
    """

    def __init__(self, cluster: Cluster, topic: str, seal_every_s: float, metrics: WorkerMetrics, clock: Clock) -> None:
        self._cluster = cluster
        self._topic = topic
        self._bounds = LogBounds(cluster, topic)
        self._seal_every_s = seal_every_s
        self._metrics = metrics
        self._clock = clock
        # By partition: the end of its log, and the time since when.
        self._ends: dict[int, tuple[int, float]] = {}
        self._shown: set[int] = set()

    async def look(self, others: Collection[int]) -> None:
        """Check the partitions *others*, which this worker does not own. If a leader is silent, nothing changes."""
        ends, now_s = await self._ends_of(others), self._clock.elapsed_s()
        known, self._ends = self._ends, {}
        for number in others:
            before = known.get(number, (-1, now_s))
            end = ends.get(number, before[0])
            self._ends[number] = before if end == before[0] else (end, now_s)
            age_s = now_s - self._ends[number][1]
            if is_unserved(age_s, self._seal_every_s):
                self._metrics.oldest_due.labels(number).set(age_s)
                self._shown.add(number)
            elif number in self._shown:
                self._shown.remove(number)
                self._metrics.oldest_due.remove(str(number))
        # Partitions that this worker owns now are shown by their owner object.
        self._shown.intersection_update(others)

    async def _ends_of(self, numbers: Collection[int]) -> dict[int, int]:
        """Return the ends of the logs, as far as the leaders answer."""
        # The log of a leader that was cut off does not grow, though the partition is served.
        await self._bounds.refresh()
        by_node = self._cluster.led(self._topic, numbers)
        asked = (self._bounds.told_by(node, led) for node, led in by_node.items())
        ends: dict[int, int] = {}
        for bounds in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(bounds, dict):
                ends |= {number: bound.offset for number, bound in bounds.items() if isinstance(bound, Bound)}
            elif not isinstance(bounds, KafkaError):
                raise bounds
        return ends
