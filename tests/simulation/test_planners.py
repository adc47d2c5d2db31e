"""Told stories about planners of recurring timers: what a takeover believes, and which log it reads."""

import asyncio
from contextlib import suppress
from typing import Any, cast

from aiokafka.errors import KafkaError
from prometheus_client import CollectorRegistry

from kafka_timers.adapters.commands import SourceRecord
from kafka_timers.broker.cluster import Cluster
from kafka_timers.core.callbacks import Target
from kafka_timers.core.schedules import CatchUp, Schedule
from kafka_timers.errors import KafkaTimersError
from kafka_timers.planner.plan_metrics import PlannerMetrics
from kafka_timers.planner.schedule_log import PlannedPartition
from kafka_timers.planner.turns import Turns
from kafka_timers.runtime.outlet import Outlet
from kafka_timers.runtime.priority import PriorityGate
from kafka_timers.runtime.ticked_clock import TickedClock
from kafka_timers.settings import PlannerSettings
from simulation.assembly import Process
from simulation.cluster import Brokers
from simulation.log import Record
from simulation.loop import EPOCH_S
from simulation.told import Story, told

_REFRESH_S = 5.0


class _Planner(PlannedPartition):
    """One that tells the offset of the last record of `timer-schedule` that it has read."""

    read = -1

    def _take_schedule(self, record: SourceRecord) -> None:
        super()._take_schedule(record)
        self.read = record.offset


class Planners:
    """The schedules of a story, and its planners; moments are seconds since its beginning."""

    def __init__(self, story: Story) -> None:
        self._story, self._kafka = story, story.kafka
        for name in (self._kafka.own.schedules, self._kafka.own.planned):
            self._kafka.create(name, 1)
        self.log = self._kafka.logs[self._kafka.own.schedules, 0]
        # Up to which offset of it a planner has planned, with the moment in UNIX milliseconds.
        self._worked: list[tuple[int, int]] = []

    def put(self, name: bytes, every_s: int, *, anchor_s: int = 0, **more: Any) -> None:
        schedule = Schedule(catch_up=CatchUp.CATCH_UP_LAST, **more)
        schedule.interval.every_ms = every_s * 1000
        schedule.interval.anchor_ms = int(EPOCH_S + anchor_s) * 1000
        schedule.callback.callBackTopic = "calm"
        self.log.append(Record(name, schedule.SerializeToString()), self._kafka.now_ms)

    def start(self, host: str) -> "asyncio.Task[None]":
        """Start a planner in a process of its own, and return its task."""
        process = self._story.start(host)
        return process.run(self._plan(process))

    def start_for_good(self, host: str) -> "tuple[Process, asyncio.Task[None]]":
        """Start one that begins anew when it fails, as a worker has it do."""
        process = self._story.world.group.start(host)
        return process, process.run(self._plan_on(process))

    async def _plan_on(self, process: Process) -> None:
        while True:
            with suppress(KafkaError, KafkaTimersError):
                await self._plan(process)
            await asyncio.sleep(1)

    async def _plan(self, process: Process) -> None:
        own, ticked = self._kafka.own, asyncio.Event()
        clock = TickedClock(process.clock, 2.0)
        brokers = Brokers(self._kafka, self._story.network, self._story.faults)
        async with Cluster.open(cast(Any, brokers)) as cluster:
            await cluster.look_up([own.schedules, own.planned, own.oscillator, own.requests, own.rejected])

            async def refresh() -> None:
                while True:
                    await asyncio.sleep(_REFRESH_S)
                    await cluster.refresh()

            async def tick() -> None:
                while True:
                    await asyncio.sleep(1 - self._story.now_s % 1 + 1e-3)
                    ticked.set()

            chores = [asyncio.create_task(refresh()), asyncio.create_task(tick())]
            try:
                planner = _Planner(
                    cluster,
                    0,
                    PlannerSettings(),
                    Outlet(own.requests, Target(1, 1 << 20), own.rejected, Target(1, 1 << 20)),
                    lambda: int(EPOCH_S + self._story.now_s) * 1000,
                    ticked,
                    Turns(PriorityGate(), clock),
                    lambda: self._worked.append((planner.read, self._kafka.now_ms)),
                    PlannerMetrics(CollectorRegistry()),
                    process.clock,
                )
                await planner.run()
            finally:
                for chore in chores:
                    chore.cancel()

    def is_read(self, offset: int, by_ms: int) -> bool:
        """Tell whether a planner had the record at *offset*, and did all its work with it, before *by_ms*."""
        return any(read >= offset and at_ms < by_ms for read, at_ms in self._worked)

    def fired(self, since_s: float = 0) -> list[float]:
        """Return when runs have fired, from *since_s* on."""
        came = [record for number in (0, 1) for record in self._kafka.logs["calm", number].records]
        moments = sorted(record.timestamp / 1000 - EPOCH_S for record in came if not record.is_marker)
        return [round(moment) for moment in moments if moment >= since_s]


def test_a_planner_believes_no_schedules_of_a_broker_that_was_cut_off() -> None:
    with told() as story:
        planned = Planners(story)
        planned.log._leader = 2
        story.start("a", 0)
        first = planned.start("p")
        story.until(3)
        planned.log.cut_off(2, 3)
        # By now the first one has learnt of the new leader. A new process is told of leaders by the old one.
        story.until(20)
        planned.put(b"s", 10)
        story.until(120)
        assert len(planned.fired(20)) >= 10
        first.cancel()
        story.until(121)
        second = planned.start("q")
        story.until(140)
        planned.log.out_of_date.clear()
        story.until(305)
        assert not second.done()
        # The last run that was missed, and all after it.
        assert planned.fired(131) == list(range(140, 301, 10))


def test_a_planner_that_is_not_told_where_its_barrier_lies_plans_nothing() -> None:
    """It would take the plans for unknown, and a schedule of one run would have another one."""
    with told(seal_every_s=5) as story:
        planned = Planners(story)
        story.start("a", 0)
        first = planned.start("p")
        story.until(3)
        planned.put(b"d", 86_400, runs_max=1, anchor_s=90)
        story.until(3_700)
        assert planned.fired() == [90]
        first.cancel()
        story.until(3_701)
        story.faults.next("batch_is_not_answered")
        second = planned.start("q")
        story.until(3_800)
        assert "do not tell where it lies" in str(second.exception())
        planned.start("r")
        story.until(3_900)
        assert planned.fired() == [90]
