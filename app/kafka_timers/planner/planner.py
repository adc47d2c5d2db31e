"""The planner of a process: has partitions of timer-schedule, and plans each by a task of its own."""

import asyncio
import logging

from aiokafka import TopicPartition

from kafka_timers.adapters.passing import Outlet, transactional_id
from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka
from kafka_timers.clock import Clock
from kafka_timers.core.calendar import TZDATA_VERSION
from kafka_timers.core.tick_clock import tick_second
from kafka_timers.core.wire import Topics, number_in
from kafka_timers.planner import planner_group
from kafka_timers.planner.metrics import PlannerMetrics
from kafka_timers.planner.partition import PlannedPartition
from kafka_timers.planner.turns import Turns
from kafka_timers.worker.priority import PriorityGate
from kafka_timers.worker.shared_topic import SharedTopic
from kafka_timers.worker.tasks import cancel
from kafka_timers.worker.ticks import TickReader

__all__ = ["SchedulePlanner"]

log = logging.getLogger(__name__)

_RETRY_S = 2.0
_MISSING_RETRY_S = 30.0
# So long after the last tick nothing has been planned; each tick has its turn.
_LATE_S = 15.0
# The same as a worker's.
_SKEW_S = 2.0


class SchedulePlanner:
    """
    Plans schedules, as many as its group leaves to it.

    Args:
        kafka: to connect to.
        prefix: put before the names of the service's topics.
        group: of the workers.
        session_timeout_s: silence after which other planners take over.
        transaction_timeout_s: after it the broker aborts the transaction of a dead planner.
        outlet: where requests and rejected records go.
        gate: holds planning up while the worker of this process fires a second.
        metrics: of the planner.
        clock: tells how long planning takes; nothing is planned by it.
    """

    def __init__(
        self,
        kafka: Kafka,
        prefix: str,
        group: str,
        session_timeout_s: float,
        transaction_timeout_s: float,
        outlet: Outlet,
        gate: PriorityGate,
        metrics: PlannerMetrics,
        clock: Clock,
    ) -> None:
        self._kafka = kafka
        self._prefix = prefix
        self._topics = Topics.of(prefix)
        self._group = planner_group(group)
        self._timeout_s = transaction_timeout_s
        self._outlet = outlet
        self._turns = Turns(gate)
        self._metrics = metrics
        self._clock = clock
        self._sharing = SharedTopic(
            kafka,
            self._topics.schedules,
            self._group,
            session_timeout_s,
            self._serve,
            lambda _: True,
            TZDATA_VERSION.encode(),
        )
        self._ticks: TickReader | None = None
        # Newest second, and an event that is set with each, by partition.
        self._seconds: dict[int, int] = {}
        self._ticked: dict[int, asyncio.Event] = {}
        self._partitions: dict[int, PlannedPartition] = {}
        self._trouble = "has not joined the group yet"
        metrics.behind.set_function(self._behind_s)

    async def run(self) -> None:
        """Plan until cancelled; after any fault, begin anew from the records on the topics."""
        while True:
            try:
                pause_s = await self._run()
            except Exception as error:
                self._failed("planning of schedules begins anew", error)
                pause_s = _RETRY_S
            await asyncio.sleep(pause_s)

    def problems(self) -> list[str]:
        """Return reasons, as sentences, why schedules are not planned; none when they are."""
        if self._trouble:
            return [self._trouble]
        behind_s = self._behind_s()
        return [f"schedules have not been planned for {behind_s:.0f} s"] if behind_s > _LATE_S else []

    def _behind_s(self) -> float:
        now_s = self._clock.elapsed_s()
        return max((now_s - each.planned_s for each in self._partitions.values()), default=0.0)

    async def _run(self) -> float:
        """Plan, and return how long to wait before the next try if there is nothing to plan yet."""
        topics = self._topics
        async with Cluster.open(self._kafka) as cluster:
            await cluster.look_up(
                [topics.schedules, topics.planned, topics.oscillator, topics.requests, topics.rejected]
            )
            if missing := [name for name in (topics.schedules, topics.planned) if not cluster.partitions(name)]:
                told = f"no topic {' and no '.join(missing)}: make them with `kafka-timers topics create`"
                if told != self._trouble:
                    log.warning("recurring timers are off: %s", told)
                self._trouble = told
                return _MISSING_RETRY_S
            log.info("plans schedules by the time zones of tzdata %s", TZDATA_VERSION)
            self._trouble = ""
            self._ticks = ticks = TickReader(cluster, topics.oscillator, self._on_tick)
            reading = asyncio.create_task(ticks.run())
            sharing = asyncio.create_task(self._sharing.run(cluster))
            try:
                done, _ = await asyncio.wait([reading, sharing], return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                await cancel([reading, sharing])
        return _RETRY_S

    async def _serve(self, cluster: Cluster, at: TopicPartition) -> None:
        """Plan one partition until it is revoked; after any fault, begin anew from the records on the topics."""
        number = at.partition
        ticked = self._ticked[number] = asyncio.Event()
        self._seconds.pop(number, None)
        if self._ticks:
            self._ticks.follow([number])
        base = Topics()
        try:
            while True:
                partition = self._partitions[number] = PlannedPartition(
                    cluster,
                    number,
                    self._topics,
                    self._outlet,
                    transactional_id(self._group, self._prefix, base.schedules, number),
                    self._timeout_s,
                    lambda: self._seconds.get(number, 0) * 1000 or None,
                    ticked,
                    self._turns,
                    self._metrics,
                    self._clock,
                )
                try:
                    await partition.run()
                except Exception as error:
                    self._failed(f"planning of partition {number} begins anew", error)
                await asyncio.sleep(_RETRY_S)
        finally:
            self._partitions.pop(number, None)
            if self._ticks:
                self._ticks.leave([number])

    def _failed(self, what: str, error: Exception) -> None:
        self._metrics.failures.inc()
        log.warning("%s: %s", what, str(error) or type(error).__name__)

    def _on_tick(self, number: int, key: bytes | None, appended_ms: int, epoch: int) -> None:
        second = number_in(key)
        # The worker that owns the partition tells of ticks that are none.
        if second is None or tick_second(second, appended_ms, _SKEW_S) is None:
            return
        # Seconds that were missed are ticked anew, one behind the other. Runs missed in them are known at once.
        now_s = appended_ms // 1000
        if now_s > self._seconds.get(number, 0):
            self._seconds[number] = now_s
            if ticked := self._ticked.get(number):
                ticked.set()
