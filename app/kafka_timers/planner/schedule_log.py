"""
One partition of schedules: read, planned by ticks, and written in transactions.

    timer-schedule ──▶ Plans ──▶ requests        ┐
    oscillator ──────▶           timer-planned   ├ one transaction
                                 invalid records ┘ ──▶ timer-rejected

The next planner of the partition shuts out the one before, and writes a barrier to both of its topics. When it has read
up to there, it has read all that any planner or client before has committed, whichever broker answers. So each run is
requested once, whichever planner dies.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress

from kafka_timers.adapters.commands import SourceRecord
from kafka_timers.adapters.source import SourceLog, read_through
from kafka_timers.broker.bounds import LogBounds
from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.odd_batches import shown
from kafka_timers.broker.producer import Producer
from kafka_timers.clock import Clock
from kafka_timers.core.calendar import TZDATA_VERSION
from kafka_timers.core.callbacks import OVERHEAD_BYTES
from kafka_timers.core.planning import OWN_KEYS, PLANNER_KEY, Plans, Step
from kafka_timers.core.planning import Refused as NoSchedule
from kafka_timers.core.rejected import SCHEDULE_INVALID
from kafka_timers.core.routing import hash_of
from kafka_timers.core.schedules import Planner
from kafka_timers.core.wire import REJECT_PREFIX, Topics, reject_headers
from kafka_timers.errors import TopicsError
from kafka_timers.planner.plan_metrics import PlannerMetrics
from kafka_timers.planner.turns import STRIDE_RECORDS, Turns
from kafka_timers.runtime.filling import Filling
from kafka_timers.runtime.outlet import Outlet, transactional_id
from kafka_timers.runtime.rejecting import Refused, fitted
from kafka_timers.runtime.tasks import cancel, completed
from kafka_timers.settings import PlannerSettings, WorkerSettings

log = logging.getLogger(__name__)

# For which a record of timer-schedule is rejected.
WHY_HEADER = REJECT_PREFIX + "why"

# Of one transaction. A second that begins meanwhile fires after it: 131 ms late with 4,000 records.
_RECORDS_MAX = 500
_READ_RECORDS = 500
_HAND_OVER_S = 2.0


class PlannedPartition:
    """
    Plans the schedules of a partition of `timer-schedule`.

    Args:
        cluster: the cluster to write to. It must have looked the topics up.
        now_ms: returns the newest tick in UNIX milliseconds; None before the first one.
        planned: called each time that all due runs have been planned.
        clock: stamps the records that are written; nothing is planned by it.
    """

    def __init__(
        self,
        cluster: Cluster,
        number: int,
        settings: WorkerSettings | PlannerSettings,
        outlet: Outlet,
        now_ms: Callable[[], int | None],
        ticked: asyncio.Event,
        turns: Turns,
        planned: Callable[[], None],
        metrics: PlannerMetrics,
        clock: Clock,
    ) -> None:
        self._cluster = cluster
        self._number = number
        self._topics = topics = Topics.of(settings.topic_prefix)
        self._outlet = outlet
        self._now_ms = now_ms
        self._ticked = ticked
        self._turns = turns
        self._planned = planned
        self._metrics = metrics
        self._clock = clock
        self._plans = Plans(outlet.requests_take.batch_bytes_max - OVERHEAD_BYTES)
        self._before = Planner()
        self._topic_ids = self._ids()
        name = transactional_id(settings.topic_prefix, "planner", topics.schedules, number)
        timeout_s = settings.transaction_timeout_s
        self._producer = Producer(cluster, name, timeout_s, outlet.batch_bytes, "planner")

    async def run(self) -> None:
        """
        Plan until cancelled.

        Raises:
            aiokafka.errors.KafkaError: a broker refuses, or another planner has taken the partition over.
        """
        topics, number = self._topics, self._number
        try:
            await self._producer.start()
            await self._read(topics.planned, await self._end(topics.planned), self._take_planned)
            end = await self._end(topics.schedules)
            read = await self._read(topics.schedules, end, self._take_schedule)
            self._tell_lost(self._plans.loaded(end))
            log.info("plans %d schedules of partition %d", len(self._plans), number)
            lane = f"schedules {number}"
            source = SourceLog(self._cluster, topics.schedules, number, read.position, lane, read.epoch)
            try:
                await self._follow(source)
            finally:
                await source.close()
        finally:
            await self._producer.stop()
            with suppress(KeyError):
                self._metrics.schedules.remove(str(number))

    def _ids(self) -> dict[str, bytes]:
        return {name: self._cluster.topic_id(name) for name in (self._topics.schedules, self._topics.planned)}

    # --- taking over -------------------------------------------------------------------------------------------------

    async def _end(self, topic: str) -> int:
        """Return the offset behind all that was committed to *topic*, whichever broker tells."""
        barrier = None
        # Without a plan, none can be taken for that of a deleted schedule.
        if topic == self._topics.planned or self._plans:
            [barrier] = await self._producer.barrier([topic], self._number, self._wall_ms())
        return await LogBounds(self._cluster, topic).end(self._number, barrier)

    def _tell_lost(self, count: int) -> None:
        if count and self._before.schedules not in (b"", self._log_id):
            log.warning(
                "%s was made anew: %d schedules of partition %d were planned, and are not in it; put them again",
                self._topics.schedules, count, self._number,
            )  # fmt: skip

    @property
    def _log_id(self) -> bytes:
        """Kafka's id of the `timer-schedule` that is planned."""
        return self._topic_ids[self._topics.schedules]

    async def _read(self, topic: str, end: int, take: Callable[[SourceRecord], None]) -> SourceLog:
        """Hand the records before offset *end* over, and return the log as it was read."""
        number = self._number
        start = (await LogBounds(self._cluster, topic).starts([number]))[number]
        source = SourceLog(self._cluster, topic, number, start, f"reading {topic} {number}")
        await read_through(source, end, take)
        return source

    def _take_planned(self, record: SourceRecord) -> None:
        key = record.key or b""
        if not key.startswith(OWN_KEYS):
            self._plans.planned(key, record.value)
        elif key == PLANNER_KEY:
            self._before = Planner.FromString(record.value or b"")

    def _take_schedule(self, record: SourceRecord) -> None:
        self._plans.schedule(record.key or b"", record.offset, record.timestamp, record.value)

    # --- planning ----------------------------------------------------------------------------------------------------

    async def _follow(self, source: SourceLog) -> None:
        await self._sign()
        reading = asyncio.create_task(source.take(_READ_RECORDS))
        ticking = asyncio.create_task(self._ticked.wait())
        try:
            while True:
                await asyncio.wait([reading, ticking], return_when=asyncio.FIRST_COMPLETED)
                if changed := [name for name, each in self._ids().items() if self._topic_ids[name] != each]:
                    raise TopicsError(f"topic {' and '.join(changed)} was deleted, or made anew")
                while reading.done():
                    for record in reading.result():
                        self._take_schedule(record)
                    reading = asyncio.create_task(source.take(_READ_RECORDS))
                    await asyncio.sleep(0)
                if ticking.done():
                    self._ticked.clear()
                    ticking = asyncio.create_task(self._ticked.wait())
                await self._plan()
                self._metrics.schedules.labels(str(self._number)).set(len(self._plans))
        finally:
            await cancel([reading, ticking])

    async def _sign(self) -> None:
        """
        Write by which zones and which log schedules are planned, if the planner before went by others.

        With other zones, all cron expressions are planned anew.
        """
        me = Planner(name=socket.gethostname(), tzdata=TZDATA_VERSION, schedules=self._log_id)
        if (self._before.tzdata, self._before.schedules) == (me.tzdata, me.schedules):
            return
        if self._before.tzdata not in ("", TZDATA_VERSION):
            count = self._plans.zones_changed()
            log.warning(
                "time zones are those of tzdata %s, and were of %s: %d schedules of partition %d are planned anew",
                TZDATA_VERSION, self._before.tzdata, count, self._number,
            )  # fmt: skip
        while self._now_ms() is None:
            self._ticked.clear()
            await self._ticked.wait()
        await self._plan()
        filling = Filling(self._producer.new_batch)
        filling.add(self._topics.planned, self._number, self._wall_ms(), PLANNER_KEY, me.SerializeToString())
        await self._commit(filling)

    async def _plan(self) -> None:
        while (now_ms := self._now_ms()) is not None and (step := self._plans.step(now_ms, _RECORDS_MAX)):
            is_left, records = True, 0
            while is_left and records < _RECORDS_MAX and not step.is_full:
                records = max(records, step.records) + STRIDE_RECORDS
                is_left = self._plans.fill(step, records)
                await self._turns.over()
            await self._write(step)
            while self._plans.written(step, STRIDE_RECORDS):
                await self._turns.over()
            for what, count in step.counts.items():
                self._metrics.runs.labels(what).inc(count)
        if now_ms is not None:
            self._planned()

    async def _write(self, step: Step) -> None:
        topics, outlet, now_ms = self._topics, self._outlet, self._wall_ms()
        filling = Filling(self._producer.new_batch)
        partitions = outlet.requests_take.partitions
        async for name, key, value in self._turns.spread(step.requests):
            filling.add(topics.requests, hash_of(name) % partitions, now_ms, key, value)
        async for name, planned in self._turns.spread(step.planned.items()):
            filling.add(topics.planned, self._number, now_ms, name, planned)
        async for refused in self._turns.spread(step.refused):
            self._reject(filling, refused, now_ms)
        await self._commit(filling)

    async def _commit(self, filling: Filling) -> None:
        batches = filling.all()
        if not batches:
            return
        await self._turns.may_begin()
        self._producer.begin()
        for ready, topic, to in batches:
            self._producer.send(ready, topic, to)
        # One that is under way when the partition is given up does not stay open.
        await completed(self._producer.commit(), _HAND_OVER_S)

    def _reject(self, filling: Filling, refused: NoSchedule, now_ms: int) -> None:
        log.warning(
            "%s partition %d offset %d is no schedule: %s",
            self._topics.schedules, self._number, refused.offset, refused.why,
        )  # fmt: skip
        self._metrics.rejected.inc()
        outlet = self._outlet
        [about] = reject_headers(SCHEDULE_INVALID, self._topics.schedules, self._number, [refused.offset])
        headers = [*about, (WHY_HEADER, shown(refused.why).encode())]
        room = outlet.rejected_takes.batch_bytes_max - OVERHEAD_BYTES
        key, value, headers = fitted(Refused(headers, refused.key, refused.value, []), room)
        filling.add(outlet.rejected, self._number % outlet.rejected_takes.partitions, now_ms, key, value, headers)

    def _wall_ms(self) -> int:
        return int(self._clock.wall_s() * 1000)
