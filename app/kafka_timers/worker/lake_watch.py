"""Watches how far the lake has promoted, for all that this worker tells. It also works while no lake job runs."""

import asyncio
import logging
from typing import Never

from aiokafka.errors import KafkaError

from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.lake_group import closed_second, lake_progress
from kafka_timers.broker.seals import SealLog, latest
from kafka_timers.clock import Clock
from kafka_timers.core.lake_progress import LakeProgress
from kafka_timers.core.wire import Topics
from kafka_timers.errors import BrokerError
from kafka_timers.runtime.metrics import WorkerMetrics

log = logging.getLogger(__name__)

_EVERY_S = 60.0
# A short horizon needs a shorter interval, because the two are compared.
_TIMES_IN_HORIZON = 20


class LakeWatch:
    """
    Knows whether the lake is behind.

    Args:
        cluster: the cluster to ask. It must have looked the service's topics up.
        horizon_s: horizon of this worker, above 0.
        clock: the brokers' time.
    """

    def __init__(self, cluster: Cluster, prefix: str, horizon_s: int, metrics: WorkerMetrics, clock: Clock) -> None:
        self._cluster = cluster
        self._prefix = prefix
        self._seals = SealLog(cluster, Topics.of(prefix).sealed)
        self._horizon_s = horizon_s
        self._every_s = min(_EVERY_S, horizon_s / _TIMES_IN_HORIZON)
        self._metrics = metrics
        self._clock = clock
        self._read = LakeProgress(0, 0)
        self._is_told = False

    @property
    def progress(self) -> LakeProgress:
        """What was read last, and the present."""
        return self._read._replace(now_s=int(self._clock.wall_s()))

    async def run(self) -> Never:
        """Keep looking. While no broker answers, the last answer counts."""
        trouble = ""
        while True:
            try:
                await self.look()
                trouble = ""
            except (KafkaError, BrokerError) as error:
                if str(error) != trouble:
                    trouble = str(error)
                    log.warning("the progress of the lake is not known: %s", trouble)
            self.tell()
            await asyncio.sleep(self._every_s)

    def tell(self) -> None:
        """Show by how much the lake is behind. Log once that it has fallen behind, and once that it has caught up."""
        progress = self.progress
        problem = progress.problem
        if progress.horizon_s:
            self._metrics.lake_behind.value = progress.behind_s
        if problem and not self._is_told:
            log.warning("%s", problem)
        elif self._is_told and not problem:
            log.info("the lake has caught up")
        self._is_told = bool(problem)

    async def look(self) -> None:
        """
        Read the progress, and show it.

        Raises:
            BrokerError: a broker refuses, or the seals cannot be read.
            KafkaError: no broker answers.
        """
        told_s = await closed_second(self._cluster, self._prefix)
        self._metrics.lake_closed.value = told_s
        if told_s is not None:
            self._read = LakeProgress(0, self._horizon_s, told_s)
            return
        # A lake that works tells something at its first look, so the seals are seldom read.
        numbers = self._cluster.partitions(Topics.of(self._prefix).sealed)
        tails = await asyncio.gather(*map(self._seals.seals, numbers))
        last = {number: latest(tail) for number, tail in zip(numbers, tails, strict=True)}
        self._read = await lake_progress(self._cluster, self._prefix, last, self._clock.wall_s())
