"""The planner of a process: has partitions of timer-schedule, and plans each by a task of its own."""

import asyncio
import logging
from functools import partial

from aiokafka import TopicPartition

from kafka_timers.broker.cluster import Cluster
from kafka_timers.core.calendar import TZDATA_VERSION
from kafka_timers.core.tick_clock import TickRead, tick_second
from kafka_timers.core.wire import Topics, number_in
from kafka_timers.planner import planner_group
from kafka_timers.planner.plan_metrics import PlannerMetrics
from kafka_timers.planner.schedule_log import PlannedPartition
from kafka_timers.planner.turns import Turns
from kafka_timers.runtime.outlet import Outlet
from kafka_timers.runtime.priority import PriorityGate
from kafka_timers.runtime.shared_topic import SharedTopic
from kafka_timers.runtime.targets import TopicLookup
from kafka_timers.runtime.tasks import until_one_ends
from kafka_timers.runtime.ticked_clock import TickedClock
from kafka_timers.runtime.ticks import TickReader
from kafka_timers.settings import PlannerSettings, WorkerSettings

log = logging.getLogger(__name__)

_RETRY_S = 2.0
_MISSING_RETRY_S = 30.0
# So long after the last tick nothing has been planned; each tick has its turn.
_LATE_S = 15.0
# The same as a worker's.
SKEW_S = 2.0


class SchedulePlanner:
    """
    Plans schedules, as many as its group leaves to it.

    Args:
        outlet: topics for requests and rejected records.
        gate: holds planning up while the worker of this process fires a second.
        clock: dates records, and is told of ticks; nothing is planned by it.
    """

    def __init__(
        self,
        settings: WorkerSettings | PlannerSettings,
        outlet: Outlet,
        gate: PriorityGate,
        metrics: PlannerMetrics,
        clock: TickedClock,
    ) -> None:
        self._settings = settings
        self._topics = Topics.of(settings.topic_prefix)
        self._outlet = outlet
        self._turns = Turns(gate, clock)
        self._metrics = metrics
        self._clock = clock
        self._sharing = SharedTopic(
            settings.kafka,
            self._topics.schedules,
            planner_group(settings.group),
            settings.session_timeout_s,
            self._serve,
            lambda _: True,
            TZDATA_VERSION.encode(),
        )
        self._ticks: TickReader | None = None
        # Newest second, and an event that is set with each, by partition.
        self._seconds: dict[int, int] = {}
        self._ticked: dict[int, asyncio.Event] = {}
        # When all due runs of a partition were planned last, or else since when this process has it.
        self._planned_s: dict[int, float] = {}
        # Since when planning has failed as a whole. It ends when a partition is planned: a planner that joins the group
        # again and again, and never plans, is as far behind as one that does not join.
        self._failing_s: float | None = None
        # Why planning has failed last, as a whole and by partition.
        self._trouble = ""
        self._troubles: dict[int, str] = {}
        metrics.behind.set_function(self._behind_s)

    async def run(self) -> None:
        """Plan until cancelled; after any fault, begin anew from the records on the topics."""
        while True:
            try:
                pause_s = await self._run()
            except Exception as error:
                self._trouble = self._failed("planning of schedules begins anew", error)
                if self._failing_s is None or self._is_idle:
                    self._failing_s = self._clock.elapsed_s()
                pause_s = _RETRY_S
            await asyncio.sleep(pause_s)

    def problems(self) -> list[str]:
        """Return reasons, as sentences, why schedules are not planned; none when they are."""
        if not self._sharing.is_member:
            return [self._trouble or "has not joined the group yet"]
        behind_s = self._behind_s()
        why = next(iter(self._troubles.values()), self._trouble)
        behind = f"schedules have not been planned for {behind_s:.0f} s"
        return [f"{behind}: {why}" if why else behind] if behind_s > _LATE_S else []

    @property
    def _is_idle(self) -> bool:
        """Whether the group has more members than partitions, and has none for this process."""
        return self._sharing.is_member and not self._sharing.assigned

    def _behind_s(self) -> float:
        since_s = list(self._planned_s.values())
        if self._failing_s is not None and not self._is_idle:
            since_s.append(self._failing_s)
        now_s = self._clock.elapsed_s()
        return now_s - min(since_s, default=now_s)

    def _on_planned(self, number: int) -> None:
        self._planned_s[number] = self._clock.elapsed_s()
        self._troubles.pop(number, None)
        self._failing_s, self._trouble = None, ""

    async def _run(self) -> float:
        """Plan, and return how long to wait before the next try if there is nothing to plan yet."""
        topics = self._topics
        async with Cluster.open(self._settings.kafka) as cluster:
            await cluster.look_up(
                [topics.schedules, topics.planned, topics.oscillator, topics.requests, topics.rejected]
            )
            if missing := [name for name in (topics.schedules, topics.planned) if not cluster.partitions(name)]:
                trouble = f"no topic {' and no '.join(missing)}: make them with `kafka-timers topics create`"
                if trouble != self._trouble:
                    log.warning("recurring timers are off: %s", trouble)
                self._trouble = trouble
                return _MISSING_RETRY_S
            log.info("plans schedules by the time zones of tzdata %s", TZDATA_VERSION)
            self._ticks = ticks = TickReader(cluster, topics.oscillator, self._on_tick)
            await until_one_ends(ticks.run(), self._sharing.run(cluster))
        return _RETRY_S

    async def _serve(self, cluster: Cluster, at: TopicPartition) -> None:
        """Plan one partition until it is revoked; after any fault, begin anew from the records on the topics."""
        number = at.partition
        ticked = self._ticked[number] = asyncio.Event()
        self._seconds.pop(number, None)
        # It stays when planning begins anew, so that a partition that always fails is behind.
        self._planned_s[number] = self._clock.elapsed_s()
        if self._ticks:
            self._ticks.follow([number])
        # Records are dated by it, also the first one.
        await self._clock.ticked.wait()
        try:
            while True:
                try:
                    await self._outlet.renew(TopicLookup(cluster, self._topics, "*", self._clock))
                    partition = PlannedPartition(
                        cluster,
                        number,
                        self._settings,
                        self._outlet,
                        lambda: self._seconds.get(number, 0) * 1000 or None,
                        ticked,
                        self._turns,
                        partial(self._on_planned, number),
                        self._metrics,
                        self._clock,
                    )
                    await partition.run()
                except Exception as error:
                    self._troubles[number] = self._failed(f"planning of partition {number} begins anew", error)
                await asyncio.sleep(_RETRY_S)
        finally:
            self._planned_s.pop(number, None)
            self._troubles.pop(number, None)
            if self._ticks:
                self._ticks.leave([number])

    def _failed(self, what: str, error: Exception) -> str:
        self._metrics.failures.inc()
        why = str(error) or type(error).__name__
        log.warning("%s: %s", what, why)
        return why

    def _on_tick(self, number: int, key: bytes | None, appended_ms: int, epoch: int) -> None:
        second = number_in(key)
        # The worker that owns the partition tells of ticks that are none.
        if second is None or (now_s := tick_second(second, appended_ms, SKEW_S)) is None:
            return
        self._clock.read(number, TickRead(appended_ms, self._clock.elapsed_s(), epoch))
        if now_s > self._seconds.get(number, 0):
            self._seconds[number] = now_s
            if ticked := self._ticked.get(number):
                ticked.set()
