"""
Read a topic of another system through an adapter into `timer-request`, whole batches at a time, exactly once.

The consumer group shares the topic's partitions among all workers. Each partition has a transactional producer of its
own, whose start shuts out the one before and ends what that one had begun; only then are the committed offsets asked
for. A batch, what is refused of it and its offsets are one transaction, so each record is passed on once, whoever dies
when. Transactions are short: readers of `timer-request` wait at one that is open.

A schedule that is past due fires at once. So where many versions of it lie on the topic, as on a compacted one that is
taken over, the latest must be known before the first is passed on:

    offset 3  vid1, due yesterday      offset 900,000  vid1, a tombstone: the other scheduler has fired it

A worker that acquires a partition therefore reads ahead to its end, and then passes over versions that are superseded
there.

Each partition is served by a task of its own, which begins anew after a fault: one that cannot be read, or of which the
producer fails, holds back no other. Only what ends the group's consumer has the whole door begin anew.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition

from kafka_timers.adapters import ADAPTERS, WITH_IDS, adapter_group
from kafka_timers.adapters.commands import Command, Parsed, Refusal, SourceRecord
from kafka_timers.adapters.countdown import Callers
from kafka_timers.broker.consuming import consuming
from kafka_timers.broker.odd_batches import shown
from kafka_timers.broker.producing import start, stop
from kafka_timers.clock import Clock
from kafka_timers.core.callbacks import OVERHEAD_BYTES, Target
from kafka_timers.core.routing import hash_of
from kafka_timers.core.wire import REJECT_PREFIX
from kafka_timers.errors import TopicsError
from kafka_timers.settings import WorkerSettings
from kafka_timers.worker.metrics import WorkerMetrics
from kafka_timers.worker.ports import Ready
from kafka_timers.worker.priority import PriorityGate
from kafka_timers.worker.sender import BATCH_BYTES, Filling
from kafka_timers.worker.slices import Headers, reject_headers
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
    """Names of the topics that requests and refused records go to, and what the two topics take."""

    requests: str
    requests_take: Target
    rejected: str
    rejected_takes: Target

    @property
    def batch_bytes(self) -> int:
        """Return the most bytes of a batch; a larger one has a single record."""
        return min(BATCH_BYTES, self.requests_take.batch_bytes_max, self.rejected_takes.batch_bytes_max)


@dataclass(slots=True)
class OwnedPartition:
    """An owned partition: its producer, its position, and up to where the latest version of each timer is known."""

    producer: AIOKafkaProducer
    position: int
    ahead: int
    latest: dict[bytes, int]
    callers: Callers


@dataclass(slots=True)
class Passing:
    """The contents of a transaction."""

    batches: list[Ready] = field(default_factory=list)
    made: int = 0
    refused: Counter[StrEnum] = field(default_factory=Counter)


class AdapterReader(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """
    Reads *topic* through an adapter.

    Args:
        settings: settings of the worker.
        name: name of the adapter.
        topic: name of the other system's topic.
        outlet: where requests and refused records go.
        gate: holds reading up while callbacks leave.
        metrics: metrics of the worker.
        clock: tells which records are past the grace; no timer fires by it.
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
        self._title = f"door {name}={topic}"
        self._parse_record = self._parser()
        self._group = self._group_in(settings.group)
        self._assigned: frozenset[TopicPartition] = frozenset()
        self._changed = asyncio.Event()
        self._serving: dict[TopicPartition, asyncio.Task[None]] = {}
        self._lags: dict[TopicPartition, int] = {}
        self._turn = 0

    def _parser(self) -> Callable[[SourceRecord], Parsed | StrEnum]:
        return ADAPTERS[self._name]

    def _group_in(self, group: str) -> str:
        return adapter_group(group, self._name)

    def _is_read(self, _: TopicPartition) -> bool:
        return True

    async def run(self) -> None:
        """Read until cancelled; after any fault anew from the committed offsets."""
        while True:
            try:
                await self._read()
            except TopicsError as error:
                log.error("%s", error)
            except Exception as error:
                self._failed("starts anew", error)
            await asyncio.sleep(_RETRY_S)

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Release all partitions, after the transactions that are under way."""
        self._assigned = frozenset()
        await self._release()
        self._lags.clear()
        self._show_lag()

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Have *assigned* acquired."""
        self._assigned = frozenset(filter(self._is_read, assigned))
        self._lags = {at: lag for at, lag in self._lags.items() if at in self._assigned}
        self._changed.set()

    def _failed(self, what: str, error: Exception) -> None:
        self._metrics.door_failures.labels(self._name).inc()
        log.warning("%s %s: %s", self._title, what, error or type(error).__name__)

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
            stack.push_async_callback(self._release)
            consumer.subscribe([self._topic], listener=self)
            while True:
                self._changed.clear()
                for at in self._assigned - self._serving.keys():
                    self._serving[at] = asyncio.create_task(self._serve(consumer, at))
                # The consumer wants to be asked, and raises what the group refuses. No partition has this number, so no
                # record is taken from one that is served.
                await consumer.getmany(TopicPartition(self._topic, -1))
                with suppress(TimeoutError):
                    async with asyncio.timeout(_POLL_MS / 1000):
                        await self._changed.wait()

    async def _serve(self, consumer: AIOKafkaConsumer, at: TopicPartition) -> None:
        """Pass on what comes in one partition until it is revoked; after any fault anew from its committed offset."""
        while True:
            try:
                source = await self._acquire(consumer, at)
                try:
                    await self._follow(consumer, at, source)
                finally:
                    await stop(source.producer)
            except Exception as error:
                self._failed(f"starts anew with partition {at.partition}", error)
            # Whatever is wrong, the next try tells it.
            with suppress(Exception):
                async with asyncio.timeout(_RETRY_S):
                    await self._count_unread(consumer, at)
            await asyncio.sleep(_RETRY_S)

    async def _acquire(self, consumer: AIOKafkaConsumer, at: TopicPartition) -> OwnedPartition:
        """Shut out the previous owner of the partition, and have *consumer* read on from its committed offset."""
        settings = self._settings
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
        consumer.seek(at, position)
        log.info("%s: reads partition %d from offset %d", self._title, at.partition, position)
        callers = Callers(required=settings.door_require_caller, limit=settings.door_caller_limit)
        return OwnedPartition(producer, position, ahead, latest, callers)

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
                        command = self._parse(record, tell=False)
                        if isinstance(command, Command) and command.name is not None:
                            is_due = command.second is not None and command.second <= due_s
                            if is_due or command.name in latest:
                                latest[command.name] = record.offset
                # Ticks and heartbeats get their turn.
                await asyncio.sleep(0)
        return latest

    async def _release(self) -> None:
        serving, self._serving = self._serving, {}
        await cancel(serving.values())

    async def _count_unread(self, consumer: AIOKafkaConsumer, at: TopicPartition) -> None:
        """Ask for what a partition that is not followed has left to be read."""
        read = await consumer.committed(at)
        if read is None:
            read = (await consumer.beginning_offsets([at]))[at]
        self._lags[at] = max((await consumer.end_offsets([at]))[at] - read, 0)
        self._show_lag()

    def _show_lag(self) -> None:
        self._metrics.door_lag.labels(self._name, self._topic).set(sum(self._lags.values()))

    async def _follow(self, consumer: AIOKafkaConsumer, at: TopicPartition, source: OwnedPartition) -> None:
        """Pass on what comes until the partition is revoked."""
        while True:
            records: list[SourceRecord] = []
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
            self._lags[at] = max((consumer.last_stable_offset(at) or 0) - position, 0)
            self._show_lag()
            if len(records) < _MANY:
                await asyncio.sleep(_LINGER_S)

    async def _pass_on(
        self, at: TopicPartition, source: OwnedPartition, records: Sequence[SourceRecord], position: int
    ) -> None:
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
        self._count(source, len(records), batch)

    def _count(self, source: OwnedPartition, records: int, batch: Passing) -> None:
        metrics, name = self._metrics, self._name
        metrics.door_records.labels(name).inc(records)
        metrics.door_requests.labels(name).inc(batch.made)
        for reason, count in batch.refused.items():
            metrics.door_rejected.labels(name, reason).inc(count)
        metrics.count_callers(source.callers.counted)
        source.callers.counted.clear()

    async def _built(self, source: OwnedPartition, records: Sequence[SourceRecord]) -> Passing:
        """Return the requests that *records* stand for, and the records that are refused, as batches."""
        out, filling = Passing(), Filling(source.producer.create_batch)
        outlet, now_ms = self._outlet, int(self._clock.wall_s() * 1000)
        partitions, bytes_max = outlet.requests_take.partitions, outlet.requests_take.batch_bytes_max - OVERHEAD_BYTES
        grace_s = self._settings.door_grace_s
        oldest_s = -1 if grace_s < 0 else now_ms // 1000 - grace_s
        is_countdown, latest, ahead = self._name == "countdown", source.latest, source.ahead
        for number, record in enumerate(records):
            if number % _STRIDE_RECORDS == 0:
                await asyncio.sleep(0)
                await self._gate.over(unless=lambda: False)
            parsed = (source.callers.refuse(record) if is_countdown else None) or self._parse(record, tell=True)
            if parsed is None:
                continue
            if isinstance(parsed, Command):
                second, name, future = parsed
                if latest and record.offset < ahead and latest.get(name or b"", -1) > record.offset:
                    continue
                if second is not None and second < oldest_s:
                    parsed = Refusal.PAST_GRACE
                elif len(future) > bytes_max:
                    parsed = Refusal.TOO_LARGE
                else:
                    if name is None:
                        at = self._turn = (self._turn + 1) % partitions
                    else:
                        at = hash_of(name) % partitions
                    filling.add(outlet.requests, at, now_ms, parsed.key, future)
                    out.made += 1
                    continue
            out.refused[parsed] += 1
            self._reject(filling, record, parsed, now_ms)
        out.batches = filling.all()
        return out

    def _parse(self, record: SourceRecord, *, tell: bool) -> Parsed | StrEnum:
        try:
            return self._parse_record(record)
        except UnicodeError:
            return Refusal.NOT_UTF8
        except Exception:
            # It would fail again, and nothing behind it would ever be read.
            if tell:
                place = f"{record.topic} partition {record.partition} offset {record.offset}"
                log.exception("%s fails on the record at %s, which is refused", self._title, place)
            return Refusal.UNREADABLE

    def _told_of(self, record: SourceRecord, reason: StrEnum) -> Headers:
        told = reject_headers(reason, record.topic, record.partition, record.offset)
        return [*told, (REJECT_PREFIX + "door", self._name.encode())]

    def _reject(self, filling: Filling, record: SourceRecord, reason: StrEnum, now_ms: int) -> None:
        outlet, key, value = self._outlet, record.key, record.value
        headers = self._told_of(record, reason)
        room = outlet.rejected_takes.batch_bytes_max - 2 * OVERHEAD_BYTES - len(record.topic)
        # A record may have been rejected before; what was told of it then would be taken for what is told now.
        given = [(shown(name), content) for name, content in record.headers]
        own = [header for header in given if not header[0].startswith(REJECT_PREFIX)]
        own_bytes = sum([len(name.encode()) + len(content or b"") + 10 for name, content in own])
        if own_bytes <= room:
            # The headers hold most of the command.
            headers += own
            room -= own_bytes
        key, value = key and key[:room], value and value[: max(room - len(key or b""), 0)]
        filling.add(outlet.rejected, record.partition % outlet.rejected_takes.partitions, now_ms, key, value, headers)


async def _all(work: Iterable[Awaitable[Any]]) -> None:
    """Wait for all of *work*, then raise the first error in it."""
    for answer in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(answer, BaseException):
            raise answer
