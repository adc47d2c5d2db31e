"""
A topic of another system → `timer-request`, whole batches at a time, exactly once.

The consumer group shares the topic's partitions among all workers. Each partition has a transactional producer of its
own, whose start shuts out the one before and ends what that one had begun; only then are the committed offsets asked
for. A batch, what is refused of it and its offsets are one transaction, so each record is passed on once, whoever dies
when. Transactions are short: readers of `timer-request` wait at one that is open.

A schedule that is past due fires at once. So where many versions of it lie on the topic, as on a compacted one that is
taken over, the latest must be known before the first is passed on:

    offset 3  vid1, due yesterday      offset 900,000  vid1, a tombstone: the other scheduler has fired it

Whoever takes a partition over therefore reads ahead to its end, and then passes over what is superseded there.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition

from kafka_timers.adapters import DOORS, WITH_IDS, door_group
from kafka_timers.adapters.commands import Ask, Asked, Reason, Record
from kafka_timers.adapters.countdown import Callers
from kafka_timers.broker.consuming import consuming
from kafka_timers.broker.producing import start, stop
from kafka_timers.clock import Clock
from kafka_timers.core.callbacks import OVERHEAD_BYTES, Target
from kafka_timers.core.routing import hash_of
from kafka_timers.errors import TopicsError
from kafka_timers.settings import WorkerSettings
from kafka_timers.worker.metrics import WorkerMetrics
from kafka_timers.worker.ports import Ready
from kafka_timers.worker.priority import PriorityGate
from kafka_timers.worker.sender import BATCH_BYTES, Filling
from kafka_timers.worker.slices import reject_headers
from kafka_timers.worker.tasks import cancel

log = logging.getLogger(__name__)

# Of one transaction. Records between two turns of the event loop are some 5 ms of work.
_RECORDS_MAX = 5_000
_FETCH_BYTES = 2 << 20
_STRIDE_RECORDS = 250
# A transaction costs the same for one record as for a thousand. Where few come, more of them are waited for.
_MANY, _LINGER_S = 1_000, 0.1
# The broker refuses the first batches of a transaction that follows another one closely, until that one is settled.
_BACKOFF_MS = 10
_POLL_MS = 200
_RETRY_S = 2.0
_HAND_OVER_S = 2.0
# What falls due while a backlog is passed on is read ahead as well.
_AHEAD_S = 3_600


@dataclass(frozen=True, slots=True)
class Outlet:
    """Where requests and refused records go, and what the two topics take."""

    requests: str
    requests_take: Target
    rejected: str
    rejected_takes: Target

    @property
    def batch_bytes(self) -> int:
        """Return the most bytes of a batch; a larger one has a single record."""
        return min(BATCH_BYTES, self.requests_take.batch_bytes_max, self.rejected_takes.batch_bytes_max)


@dataclass(slots=True)
class _Source:
    """An owned partition: its producer, what is passed on, and up to where it is known what supersedes what."""

    producer: AIOKafkaProducer
    position: int
    ahead: int
    latest: dict[bytes, int]
    callers: Callers
    following: asyncio.Task[None] = field(init=False)
    lag: int = 0


@dataclass(slots=True)
class _Batch:
    """What a transaction holds."""

    batches: list[Ready] = field(default_factory=list)
    made: int = 0
    refused: Counter[Reason] = field(default_factory=Counter)


class DoorReader(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """
    Reads *topic* through the door *name*.

    Args:
        settings: of the worker.
        name: of the door.
        topic: of the other system.
        outlet: where requests go.
        rush: goes before reading.
        metrics: of the worker.
        clock: tells what is past the grace, never when anything fires.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        name: str,
        topic: str,
        outlet: Outlet,
        gate: PriorityGate,
        metrics: WorkerMetrics,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._name = name
        self._topic = topic
        self._outlet = outlet
        self._gate = gate
        self._metrics = metrics
        self._clock = clock
        self._ask = DOORS[name]
        self._group = door_group(settings.group, name)
        self._sources: dict[TopicPartition, _Source] = {}
        self._changed = asyncio.Event()
        self._assigned: frozenset[TopicPartition] = frozenset()
        self._turn = 0

    async def run(self) -> None:
        """Read until cancelled; after any fault anew from the committed offsets."""
        while True:
            try:
                await self._read()
            except TopicsError as error:
                log.error("%s", error)
            except Exception as error:
                self._metrics.door_failures.labels(self._name).inc()
                log.warning("door %s=%s starts anew: %s", self._name, self._topic, error or type(error).__name__)
            await asyncio.sleep(_RETRY_S)

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Give up all partitions, after the transactions that are under way."""
        self._assigned = frozenset()
        await self._close()

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Have *assigned* taken over."""
        self._assigned = frozenset(assigned)
        self._changed.set()

    async def _read(self) -> None:
        session_ms = int(self._settings.session_timeout_s * 1000)
        async with AsyncExitStack() as stack:
            consumer: AIOKafkaConsumer = await stack.enter_async_context(
                consuming(
                    self._settings.kafka,
                    group_id=self._group,
                    auto_offset_reset="earliest",
                    max_partition_fetch_bytes=_FETCH_BYTES,
                    session_timeout_ms=session_ms,
                    heartbeat_interval_ms=session_ms // 4,
                )
            )
            # Asks for all topics: a question for one that is missing makes it, on brokers that allow that.
            if self._topic not in await consumer.topics():
                raise TopicsError(f"door {self._name}: topic {self._topic} does not exist: create it")
            self._assigned = frozenset()
            stack.push_async_callback(self._close)
            consumer.subscribe([self._topic], listener=self)
            while True:
                self._changed.clear()
                await _all([self._take_over(consumer, at) for at in self._assigned - self._sources.keys()])
                if not self._sources:
                    # The consumer wants to be asked, and tells what the group refuses. Records it has are read again.
                    await consumer.getmany(timeout_ms=_POLL_MS)
                    continue
                changed = asyncio.create_task(self._changed.wait())
                following = [source.following for source in self._sources.values()]
                try:
                    done, _ = await asyncio.wait([changed, *following], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    changed.cancel()
                for task in done:
                    # One that was cancelled had its partition revoked.
                    if not task.cancelled():
                        task.result()

    async def _take_over(self, consumer: AIOKafkaConsumer, at: TopicPartition) -> None:
        """Shut out who owned the partition before, and read on where that one has come to."""
        assigned, settings = self._assigned, self._settings
        producer = AIOKafkaProducer(
            **settings.kafka.client_options(),
            acks="all",
            max_batch_size=self._outlet.batch_bytes,
            transactional_id=f"{self._group}.{settings.topic_prefix}{at.topic}.{at.partition}",
            transaction_timeout_ms=int(settings.transaction_timeout_s * 1000),
            request_timeout_ms=int(settings.transaction_timeout_s * 1000),
            retry_backoff_ms=_BACKOFF_MS,
        )
        try:
            async with asyncio.timeout(settings.transaction_timeout_s):
                await start(producer, settings.transaction_timeout_s)
                committed = await consumer.committed(at)
                beginning = (await consumer.beginning_offsets([at]))[at]
                ahead, latest = (await consumer.end_offsets([at]))[at], dict[bytes, int]()
            position = beginning if committed is None else max(committed, beginning)
            if self._name in WITH_IDS and ahead > position:
                latest = await self._latest(at, position, ahead)
        except BaseException:
            await stop(producer)
            raise
        if assigned is not self._assigned:
            # Revoked meanwhile.
            await stop(producer)
            return
        consumer.seek(at, position)
        callers = Callers(required=settings.door_require_caller, limit=settings.door_caller_limit)
        self._sources[at] = source = _Source(producer, position, ahead, latest, callers)
        source.following = asyncio.create_task(self._follow(consumer, at, source))
        log.info("door %s: reads %s partition %d from offset %d", self._name, at.topic, at.partition, position)

    async def _latest(self, at: TopicPartition, position: int, end: int) -> dict[bytes, int]:
        """Return the last offset from *position* to *end* of each timer that may be due before *end* is passed on."""
        due_s = self._clock.wall_s() + _AHEAD_S
        latest: dict[bytes, int] = {}
        async with consuming(self._settings.kafka) as consumer:
            consumer.assign([at])
            consumer.seek(at, position)
            while await consumer.position(at) < end:
                for records in (await consumer.getmany(timeout_ms=_POLL_MS, max_records=_STRIDE_RECORDS)).values():
                    for record in records:
                        asked = self._asked(record)
                        if isinstance(asked, Ask) and asked.name is not None:
                            is_due = asked.second is not None and asked.second <= due_s
                            if is_due or asked.name in latest:
                                latest[asked.name] = record.offset
                # Ticks and heartbeats get their turn.
                await asyncio.sleep(0)
        return latest

    async def _close(self) -> None:
        sources, self._sources = self._sources, {}
        await cancel([source.following for source in sources.values()])
        await _all([stop(source.producer) for source in sources.values()])
        self._metrics.door_lag.labels(self._name, self._topic).set(0)

    async def _follow(self, consumer: AIOKafkaConsumer, at: TopicPartition, source: _Source) -> None:
        """Pass on what comes until the partition is revoked."""
        while True:
            records: list[Record] = []
            while len(records) < _RECORDS_MAX:
                wait_ms = 0 if records else _POLL_MS
                more = await consumer.getmany(at, timeout_ms=wait_ms, max_records=_STRIDE_RECORDS)
                if at not in more:
                    break
                records += more[at]
                await asyncio.sleep(0)
            # Also markers of transactions are passed, so that nothing seems to be left where nothing is.
            position = await consumer.position(at)
            if position > source.position:
                work = asyncio.create_task(self._pass_on(at, source, records, position))
                try:
                    await asyncio.shield(work)
                finally:
                    # A transaction that is under way when the partition is revoked does not stay open.
                    await asyncio.wait([work], timeout=_HAND_OVER_S)
                    work.cancel()
            source.lag = max((consumer.last_stable_offset(at) or 0) - position, 0)
            lag = sum([source.lag for source in self._sources.values()])
            self._metrics.door_lag.labels(self._name, self._topic).set(lag)
            if len(records) < _MANY:
                await asyncio.sleep(_LINGER_S)

    async def _pass_on(self, at: TopicPartition, source: _Source, records: Sequence[Record], position: int) -> None:
        """Pass *records* on, after which the partition has been read up to *position*."""
        batch, producer, acks = await self._built(source, records), source.producer, list[asyncio.Future[Any]]()
        try:
            async with asyncio.timeout(self._settings.transaction_timeout_s):
                await producer.begin_transaction()
                for ready, topic, to in batch.batches:
                    acks.append(await producer.send_batch(ready, topic, partition=to))
                await producer.send_offsets_to_transaction({at: position}, self._group)
                # commit_transaction() returns normally when a batch has failed, so every ack is looked at before.
                await _all(acks)
                await producer.commit_transaction()
        finally:
            for ack in acks:
                # Nobody asks for its outcome any more; one that has failed would be logged for that.
                if not ack.cancel() and not ack.cancelled():
                    ack.exception()
        source.position = position
        if position >= source.ahead:
            source.latest = {}
        metrics, name = self._metrics, self._name
        metrics.door_records.labels(name).inc(len(records))
        metrics.door_requests.labels(name).inc(batch.made)
        for reason, count in batch.refused.items():
            metrics.door_rejected.labels(name, reason).inc(count)
        metrics.count_callers(source.callers.asked)
        source.callers.asked.clear()

    async def _built(self, source: _Source, records: Sequence[Record]) -> _Batch:
        """Return what *records* ask for, as batches."""
        out, filling = _Batch(), Filling(source.producer.create_batch)
        outlet, now_ms = self._outlet, int(self._clock.wall_s() * 1000)
        partitions, bytes_max = outlet.requests_take.partitions, outlet.requests_take.batch_bytes_max - OVERHEAD_BYTES
        grace_s = self._settings.door_grace_s
        oldest_s = -1 if grace_s < 0 else now_ms // 1000 - grace_s
        is_countdown, latest, ahead = self._name == "countdown", source.latest, source.ahead
        for number, record in enumerate(records):
            if number % _STRIDE_RECORDS == 0:
                await asyncio.sleep(0)
                await self._gate.over(unless=lambda: False)
            asked = (source.callers.refuse(record) if is_countdown else None) or self._asked(record)
            if asked is None:
                continue
            if isinstance(asked, Ask):
                second, name, future = asked
                if latest and record.offset < ahead and latest.get(name or b"", -1) > record.offset:
                    continue
                if second is not None and second < oldest_s:
                    asked = Reason.PAST_GRACE
                elif len(future) > bytes_max:
                    asked = Reason.TOO_LARGE
                else:
                    if name is None:
                        at = self._turn = (self._turn + 1) % partitions
                    else:
                        at = hash_of(name) % partitions
                    filling.add(outlet.requests, at, now_ms, asked.key, future)
                    out.made += 1
                    continue
            out.refused[asked] += 1
            self._reject(filling, record, asked, now_ms)
        out.batches = filling.all()
        return out

    def _asked(self, record: Record) -> Asked:
        try:
            return self._ask(record)
        except UnicodeError:
            return Reason.NOT_UTF8

    def _reject(self, filling: Filling, record: Record, reason: Reason, now_ms: int) -> None:
        outlet, key, value = self._outlet, record.key, record.value
        headers = reject_headers(reason, record.topic, record.partition, record.offset)
        headers.append(("timer-rejected-door", self._name.encode()))
        room = outlet.rejected_takes.batch_bytes_max - 2 * OVERHEAD_BYTES - len(record.topic)
        own_bytes = sum([len(name.encode()) + len(content or b"") + 10 for name, content in record.headers])
        if own_bytes <= room:
            # They say most of what the record asks for.
            headers += record.headers
            room -= own_bytes
        key, value = key and key[:room], value and value[: max(room - len(key or b""), 0)]
        filling.add(outlet.rejected, record.partition % outlet.rejected_takes.partitions, now_ms, key, value, headers)


async def _all(work: Iterable[Awaitable[Any]]) -> None:
    """Wait for all of *work*, then raise the first error in it."""
    for answer in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(answer, BaseException):
            raise answer
