"""
One partition of schedules: read, planned by ticks, and written in transactions.

    timer-schedule ──▶ Plans ──▶ requests        ┐
    oscillator ──────▶           timer-planned   ├ one transaction
                                 invalid records ┘ ──▶ timer-rejected

The next planner of the partition shuts out the one before, and writes a record of its own to `timer-planned`. When it
reads that record, it has read all that any planner before has committed, whichever broker answers. So each run is
requested once, whichever planner dies.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress

from kafka_timers.adapters.commands import SourceRecord
from kafka_timers.adapters.source import SourceLog
from kafka_timers.broker.bounds import LogBounds
from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.odd_batches import shown
from kafka_timers.broker.producer import Producer
from kafka_timers.clock import Clock
from kafka_timers.core.calendar import TZDATA_VERSION
from kafka_timers.core.callbacks import OVERHEAD_BYTES
from kafka_timers.core.planning import OWN_KEYS, Plans, Step
from kafka_timers.core.planning import Refused as NoSchedule
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
SCHEDULE_INVALID = "schedule-invalid"
WHY_HEADER = REJECT_PREFIX + "why"

_TAKEOVER_KEY, _PLANNER_KEY = OWN_KEYS + b"takeover", OWN_KEYS + b"planner"
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
        self._zones = ""
        self._topic_id = cluster.topic_id(topics.schedules)
        name = transactional_id(settings.topic_prefix, "planner", topics.schedules, number)
        timeout_s = settings.transaction_timeout_s
        self._producer = Producer(cluster, name, timeout_s, outlet.batch_bytes, f"planner {number}")

    async def run(self) -> None:
        """
        Plan until cancelled.

        Raises:
            aiokafka.errors.KafkaError: a broker refuses, or another planner has taken the partition over.
        """
        topics, number = self._topics, self._number
        try:
            await self._producer.start()
            taken_over = await self._take_over()
            await self._read(topics.planned, taken_over + 1, self._take_planned)
            bounds = LogBounds(self._cluster, topics.schedules)
            position = await self._read(topics.schedules, await bounds.end(number), self._take_schedule)
            self._plans.loaded()
            log.info("plans %d schedules of partition %d", len(self._plans), number)
            source = SourceLog(self._cluster, topics.schedules, number, position, f"schedules {number}")
            try:
                await self._follow(source)
            finally:
                await source.close()
        finally:
            await self._producer.stop()
            with suppress(KeyError):
                self._metrics.schedules.remove(str(number))

    # --- taking over -------------------------------------------------------------------------------------------------

    async def _take_over(self) -> int:
        """Write the record behind which nobody has planned anything but this planner, and return its offset."""
        [(ready, topic, to)] = self._signed(_TAKEOVER_KEY).all()
        self._producer.begin()
        self._producer.send(ready, topic, to)
        await self._producer.flush()
        offset = self._producer.offset_of(topic, to)
        await self._producer.commit()
        return offset

    def _signed(self, key: bytes) -> Filling:
        """Return a record for `timer-planned` that names the planner of this partition, and its version of tzdata."""
        filling = Filling(self._producer.new_batch)
        planner = Planner(name=socket.gethostname(), tzdata=TZDATA_VERSION)
        filling.add(self._topics.planned, self._number, self._wall_ms(), key, planner.SerializeToString())
        return filling

    async def _read(self, topic: str, end: int, take: Callable[[SourceRecord], None]) -> int:
        """Hand the records before offset *end* over, and return the offset behind them."""
        number = self._number
        start = (await LogBounds(self._cluster, topic).starts([number]))[number]
        source = SourceLog(self._cluster, topic, number, start, f"reading {topic} {number}")
        try:
            while source.position < end:
                for record in await source.take(_READ_RECORDS):
                    take(record)
                await asyncio.sleep(0)
            return source.position
        finally:
            await source.close()

    def _take_planned(self, record: SourceRecord) -> None:
        key = record.key or b""
        if not key.startswith(OWN_KEYS):
            self._plans.planned(key, record.value)
        elif key == _PLANNER_KEY:
            self._zones = Planner.FromString(record.value or b"").tzdata

    def _take_schedule(self, record: SourceRecord) -> None:
        self._plans.schedule(record.key or b"", record.offset, record.timestamp, record.value)

    # --- planning ----------------------------------------------------------------------------------------------------

    async def _follow(self, source: SourceLog) -> None:
        await self._plan_by_zones()
        reading = asyncio.create_task(source.take(_READ_RECORDS))
        ticking = asyncio.create_task(self._ticked.wait())
        try:
            while True:
                await asyncio.wait([reading, ticking], return_when=asyncio.FIRST_COMPLETED)
                if self._cluster.topic_id(self._topics.schedules) != self._topic_id:
                    raise TopicsError(f"topic {self._topics.schedules} was deleted, or made anew")
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

    async def _plan_by_zones(self) -> None:
        """Plan all cron expressions anew if the zones are of another version than those by which they were planned."""
        if self._zones == TZDATA_VERSION:
            return
        if self._zones:
            count = self._plans.zones_changed()
            log.warning(
                "time zones are those of tzdata %s, and were of %s: %d schedules of partition %d are planned anew",
                TZDATA_VERSION, self._zones, count, self._number,
            )  # fmt: skip
        while self._now_ms() is None:
            self._ticked.clear()
            await self._ticked.wait()
        await self._plan()
        await self._commit(self._signed(_PLANNER_KEY))
        self._zones = TZDATA_VERSION

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
