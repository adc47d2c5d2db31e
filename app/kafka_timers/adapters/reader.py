"""
Reads a topic of another system through an adapter into `timer-request`, in whole batches, exactly once.

The consumer group shares the topic's partitions among all workers. Each partition has a transactional producer of its
own. Its start fences the producer of the previous owner and ends that one's open transaction. Only then is the
committed offset read, with a proof (`Producer.committed`). Requests, refused records and the offset are one
transaction, so each record is passed on once, whichever process crashes. Transactions are short, because readers of
`timer-request` wait for open ones.

An overdue schedule fires at once. A topic that is taken over, for example a compacted one, may hold many versions of a
schedule. So the latest version must be known before the first is passed on:

    offset 3  vid1, due yesterday      offset 900,000  vid1, a tombstone: the other scheduler has fired it

A worker that acquires a partition therefore reads ahead to its end, and then skips versions that are replaced there.

After a fault, a partition starts again without delaying others. Only the end of the group membership restarts the whole
door.

The reader `ADDED` is no door: it rejects the records of partitions that were added to `timer-request` after the
service's start. Kafka cannot remove partitions, and the original number of partitions decides the partition of a timer
id. So added partitions are never served, and clients with their own partitioner write there all the same.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from enum import StrEnum

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError, for_code

from kafka_timers.adapters import ADAPTERS, KEEPINGS, WITH_IDS, adapter_group, added_group
from kafka_timers.adapters.ahead import look_ahead
from kafka_timers.adapters.commands import (
    Command,
    Parsed,
    Refusal,
    SourceRecord,
    TooManyHopsError,
    cancel_command,
    source_field,
)
from kafka_timers.adapters.countdown import Callers
from kafka_timers.adapters.ending import Ending
from kafka_timers.adapters.headers import names_of, parser_of
from kafka_timers.adapters.passing import DoorSettings, OwnedPartition, Passing
from kafka_timers.adapters.place import Places, UnknownPlaceError
from kafka_timers.adapters.source import CutError, SourceLog
from kafka_timers.broker import codes
from kafka_timers.broker.bounds import Bound, LogBounds
from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.odd_batches import shown
from kafka_timers.broker.offsets import GroupOffsets
from kafka_timers.broker.producer import Producer
from kafka_timers.broker.refusals import RefusedError
from kafka_timers.clock import Clock
from kafka_timers.core.callbacks import OVERHEAD_BYTES, topics_in
from kafka_timers.core.refused import Reason
from kafka_timers.core.routing import hash_of
from kafka_timers.core.wire import REJECT_PREFIX, Topics, reject_headers
from kafka_timers.errors import TopicsError
from kafka_timers.runtime.filling import Filling, Ready
from kafka_timers.runtime.metrics import WorkerMetrics
from kafka_timers.runtime.outlet import Outlet, transactional_id
from kafka_timers.runtime.priority import PriorityGate
from kafka_timers.runtime.rejecting import Refused, fitted
from kafka_timers.runtime.shared_topic import SharedTopic
from kafka_timers.runtime.targets import TopicLookup
from kafka_timers.runtime.tasks import completed

log = logging.getLogger(__name__)

# Limit of one transaction. A stride is some 5 ms of work between two turns of the event loop.
_RECORDS_MAX = 5_000
_STRIDE_RECORDS = 250
# A transaction costs the same for one record as for a thousand. If few come, wait for more.
_MANY, _LINGER_S = 1_000, 0.1
_RETRY_S = 2.0
_HAND_OVER_S = 2.0
# Only people can help, with a restart.
_REFUSED_RETRY_S = 30.0
# Schedules that fall due while a backlog is passed on are read ahead as well.
_AHEAD_S = 3_600

# The reader of added partitions, in place of the name of an adapter.
ADDED = "added"


class AdapterReader:
    """
    Reads *topic* through an adapter. The clock decides which records are past the grace; no timer fires by it.

    Args:
        name: name of the adapter, or `ADDED`.
        first: the first partition to read.

    Attributes:
        refused: why partitions of this process are not read, since nobody knows how far they were.
    """

    def __init__(
        self,
        settings: DoorSettings,
        name: str,
        topic: str,
        outlet: Outlet,
        gate: PriorityGate,
        metrics: WorkerMetrics,
        clock: Clock,
        first: int = 0,
    ) -> None:
        self._settings = settings
        self._name = name
        self._topic = topic
        self._outlet = outlet
        self._gate = gate
        self._metrics = metrics
        self._clock = clock
        self._is_door = name != ADDED
        self._title = f"door {name}={topic}" if self._is_door else f"added partitions of {topic}"
        self._parse_record = self._parser()
        self._group = adapter_group(settings.group, name) if self._is_door else added_group(settings.group)
        self._keeping = KEEPINGS.get(name)
        # The operator decides which topics workers may write to.
        is_allowed = bool(topics_in(settings.allowed_topics).match(topic))
        self._ended = self._keeping.ended if self._keeping and is_allowed else frozenset()
        self._sharing = SharedTopic(
            *(settings.kafka, topic, self._group, settings.session_timeout_s, self._serve),
            lambda at: bool(at.partition >= first),
        )
        self.refused: dict[TopicPartition, str] = {}
        self._places: Places | None = None
        self._lags: dict[TopicPartition, int] = {}
        self._turn = 0
        if self._keeping:
            # Create the metric now: an alarm on its increase would miss the first increase otherwise.
            metrics.door_unread.labels(name)

    def _parser(self) -> Callable[[SourceRecord], Parsed | StrEnum]:
        if self._name == "headers":
            return parser_of(names_of(self._settings.door_header))
        return ADAPTERS[self._name] if self._is_door else lambda _: Reason.PARTITION_ADDED

    async def run(self) -> None:
        """Read until cancelled. After a fault, start again from the committed offsets."""
        while True:
            try:
                await self._read()
            except TopicsError as error:
                self._metrics.door_failures.labels(self._name).inc()
                log.error("%s", error)
            except Exception as error:
                self._failed("starts anew", error)
            await asyncio.sleep(_RETRY_S)

    def _failed(self, what: str, error: Exception) -> None:
        self._metrics.door_failures.labels(self._name).inc()
        log.warning("%s %s: %s", self._title, what, error or type(error).__name__)

    async def _read(self) -> None:
        async with Cluster.open(self._settings.kafka) as cluster:
            settings, outlet = self._settings, self._outlet
            topics = Topics.of(settings.topic_prefix)
            await cluster.look_up([self._topic, outlet.requests, outlet.rejected, topics.doors])
            self._check_topic(cluster)
            if self._is_door:
                served = outlet.requests_take.partitions
                self._places = Places(cluster, topics, self._name, self._topic, served, self._gate, settings.door_from)
            await self._sharing.run(cluster)

    def _check_topic(self, cluster: Cluster) -> None:
        if cluster.partitions(self._topic):
            return
        code = cluster.why_no_leader(self._topic, 0)
        if code == codes.UNKNOWN_TOPIC_OR_PARTITION:
            raise TopicsError(f"door {self._name}: topic {self._topic} does not exist: create it")
        raise for_code(code)(f"topic {self._topic} cannot be looked up: {codes.name_of(code)}")

    async def _serve(self, cluster: Cluster, at: TopicPartition) -> None:
        """
        Pass on the records of one partition until it is revoked. After a fault, start again from its committed offset.
        """
        try:
            while True:
                try:
                    owned = await self._acquire(cluster, at)
                    try:
                        await self._follow(cluster, at, owned)
                    finally:
                        await owned.source.close()
                        await owned.producer.stop()
                except UnknownPlaceError as error:
                    self._metrics.door_failures.labels(self._name).inc()
                    if str(error) != self.refused.get(at):
                        log.error("%s", error)
                    self.refused[at] = str(error)
                except Exception as error:
                    self._failed(f"starts anew with partition {at.partition}", error)
                # If this fails, the next try shows the reason.
                with suppress(Exception):
                    async with asyncio.timeout(_RETRY_S):
                        await self._count_unread(cluster, at)
                await asyncio.sleep(_REFUSED_RETRY_S if at in self.refused else _RETRY_S)
        finally:
            # Another worker reports these now.
            self._lags.pop(at, None)
            self.refused.pop(at, None)
            self._show_lag()

    async def _acquire(self, cluster: Cluster, at: TopicPartition) -> OwnedPartition:
        """Fence the previous owner of the partition, and return it ready to read from its committed offset."""
        settings, number = self._settings, at.partition
        timeout_s = settings.transaction_timeout_s
        await self._outlet.renew(TopicLookup(cluster, Topics.of(settings.topic_prefix), "*", self._clock))
        if not (topic_id := cluster.topic_id(at.topic)):
            raise TopicsError(f"{self._title}: topic {at.topic} was deleted, or no broker tells its id now")
        ending = Ending(self._ended)
        name = transactional_id(settings.topic_prefix, f"door.{self._name}", at.topic, number)
        lane, bytes_max = f"door {number}", self._outlet.batch_bytes
        producer = Producer(cluster, name, timeout_s, bytes_max, lane, self._group)
        try:
            await producer.start()
            committed = await producer.committed(at.topic, number)
            if committed is None and self._places:
                committed = await self._places.find(producer, number, topic_id)
            self.refused.pop(at, None)
            self._check_id(cluster, at, topic_id)
            bounds = LogBounds(cluster, at.topic)
            read_to = await self._kept(bounds, at, committed) if committed else 0
            beginning = (await bounds.starts([number]))[number]
            # A leader without the records that were read leads no more.
            ahead, latest = await bounds.end(number, above=read_to - 1 if read_to else None), dict[bytes, int]()
            position = max(read_to, beginning)
            if self._name in WITH_IDS and ahead > position:
                latest = await self._latest(cluster, at, position, ahead, ending, is_new=committed is None)
        except BaseException:
            await producer.stop()
            raise
        epoch = committed.epoch if committed else -1
        source = SourceLog(cluster, at.topic, number, position, f"reading {number}", epoch)
        log.info("%s: reads partition %d from offset %d", self._title, number, position)
        callers = Callers(required=settings.door_require_caller, limit=settings.door_caller_limit)
        # What was found in place of an offset of the group is committed at once, and a place that is missing written.
        passed_on = -1 if committed and self._places else position
        return OwnedPartition(producer, source, passed_on, ahead, latest, callers, topic_id, ending)

    async def _kept(self, bounds: LogBounds, at: TopicPartition, committed: Bound) -> int:
        """Return the offset from which the door reads on: the *committed* one, unless the log has lost it."""
        kept_to = await bounds.kept(at.partition, committed.epoch) if committed.epoch >= 0 else committed.offset
        if kept_to < committed.offset:
            lost = CutError(at.topic, at.partition, kept_to, committed.offset)
            log.error("%s: %s. It is read on from there", self._title, lost)
        return min(kept_to, committed.offset)

    def _check_id(self, cluster: Cluster, at: TopicPartition, topic_id: bytes) -> None:
        if cluster.topic_id(at.topic) != topic_id:
            raise TopicsError(f"{self._title}: topic {at.topic} was deleted, or made anew")

    async def _latest(
        self, cluster: Cluster, at: TopicPartition, position: int, end: int, ending: Ending, *, is_new: bool
    ) -> dict[bytes, int]:
        """
        Return the last offset from *position* to *end*, by timer, for timers that may be due before *end* is passed on.
        """
        due_s = self._clock.wall_s() + _AHEAD_S
        past_s = due_s if self._settings.door_grace_s >= 0 else -1

        def parse(record: SourceRecord) -> Parsed | StrEnum:
            parsed = self._parse(record, tell=False)
            ending.look_ahead(record, parsed, past_s)
            return parsed

        backlog, keeping = (position, end), self._keeping
        latest, ending.over, unread = await look_ahead(
            cluster, at.topic, at.partition, backlog, parse, due_s, keeping, is_new=is_new
        )
        if unread:
            self._go_on_without(unread, at, is_new=is_new)
        return latest

    def _go_on_without(self, unread: list[int], at: TopicPartition, *, is_new: bool) -> None:
        """
        Continue although partitions are *unread* that may show which schedules of this one are over; but raise if the
        topic is taken over for the first time, so that most of its schedules may have fired already.
        """
        missing = f"{self._title}: the records in partitions {', '.join(map(str, unread))} cannot be read"
        if is_new:
            raise KafkaError(f"{missing}, and may show that schedules of partition {at.partition} have fired already")
        self._metrics.door_unread.labels(self._name).inc()
        log.error("%s: schedules of partition %d that they end fire all the same", missing, at.partition)

    async def _count_unread(self, cluster: Cluster, at: TopicPartition) -> None:
        """Update the lag of a partition that nobody reads at the moment."""
        number, bounds = at.partition, LogBounds(cluster, at.topic)
        offsets = GroupOffsets(cluster, self._group, _RETRY_S, "unread")
        committed = await offsets.committed(at.topic, number)
        read = committed.offset if committed else (await bounds.starts([number]))[number]
        self._lags[at] = max(await bounds.end(number) - read, 0)
        self._show_lag()

    def _show_lag(self) -> None:
        if self._is_door:
            self._metrics.door_lag.labels(self._name, self._topic).set(sum(self._lags.values()))

    async def _follow(self, cluster: Cluster, at: TopicPartition, owned: OwnedPartition) -> None:
        source = owned.source
        while True:
            records = await source.take(_STRIDE_RECORDS)
            while source.has_more and len(records) < _RECORDS_MAX:
                await asyncio.sleep(0)
                records += await source.take(_STRIDE_RECORDS)
            # Check now, since the topic may have been recreated during the wait.
            self._check_id(cluster, at, owned.topic_id)
            # Markers of transactions count as read too, so that the lag becomes 0.
            position = source.position
            if position > owned.position:
                # If the partition is revoked during a transaction, let the transaction end.
                await completed(self._pass_on(at, owned, records, position), _HAND_OVER_S)
            self._lags[at] = max(source.stable - position, 0)
            self._show_lag()
            if len(records) < _MANY:
                await asyncio.sleep(_LINGER_S)

    async def _pass_on(
        self, at: TopicPartition, owned: OwnedPartition, records: Sequence[SourceRecord], position: int
    ) -> None:
        """Pass *records* on. Afterwards the partition has been read up to *position*."""
        batch = await self._built(owned, records)
        try:
            await self._commit(at, owned, [*batch.batches, *batch.tombstones], position)
        except RefusedError as error:
            refused = [each for each in error.refusals if each.topic == at.topic]
            if not batch.tombstones or not refused:
                raise
            # Tombstones only tidy up, so they must not block requests.
            owned.ending.is_on = False
            log.warning(
                f"{self._title}: {at.topic} partition {at.partition} takes no tombstones ({refused[0]}), so schedules "
                "that are refused stay there. Give workers the rights that `kafka-timers acls` lists, and restart them"
            )
            await owned.producer.abort()
            await self._commit(at, owned, batch.batches, position)
        owned.position = position
        if position >= owned.ahead:
            owned.latest = {}
            owned.ending.forget()
        self._count(owned, len(records), batch)

    async def _commit(self, at: TopicPartition, owned: OwnedPartition, batches: Iterable[Ready], position: int) -> None:
        producer = owned.producer
        producer.begin()
        for ready, topic, to in batches:
            producer.send(ready, topic, to)
        if self._places:
            place, now_ms = Bound(position, owned.source.epoch), int(self._clock.wall_s() * 1000)
            self._places.send(producer, at.partition, place, owned.topic_id, now_ms)
        await producer.send_offsets(at.topic, {at.partition: position}, owned.source.epoch)
        await producer.commit()

    def _count(self, owned: OwnedPartition, records: int, batch: Passing) -> None:
        metrics, name = self._metrics, self._name
        if not self._is_door:
            for reason, count in batch.refused.items():
                metrics.rejected.labels(reason).inc(count)
            return
        metrics.door_records.labels(name).inc(records)
        metrics.door_requests.labels(name).inc(batch.made)
        for reason, count in batch.refused.items():
            metrics.door_rejected.labels(name, reason).inc(count)
        metrics.count_callers(owned.callers.counted)
        owned.callers.counted.clear()

    async def _built(self, owned: OwnedPartition, records: Sequence[SourceRecord]) -> Passing:
        out, filling = Passing(), Filling(owned.producer.new_batch)
        outlet, now_ms = self._outlet, int(self._clock.wall_s() * 1000)
        partitions, bytes_max = outlet.requests_take.partitions, outlet.requests_take.batch_bytes_max - OVERHEAD_BYTES
        grace_s = self._settings.door_grace_s
        oldest_s = -1 if grace_s < 0 else now_ms // 1000 - grace_s
        is_countdown, latest, ahead = self._name == "countdown", owned.latest, owned.ahead
        refused: list[tuple[SourceRecord, StrEnum]] = []
        for number, record in enumerate(records):
            if number % _STRIDE_RECORDS == 0:
                await asyncio.sleep(0)
                await self._gate.over_soon()
            parsed = (owned.callers.refuse(record) if is_countdown else None) or self._parse(record, tell=True)
            if parsed is None:
                continue
            if isinstance(parsed, Command):
                second, name, future = parsed
                if second is not None:
                    future += source_field(self._name, record)
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
            refused.append((record, parsed))
            if self._keeping and (withdrawn := self._keeping.withdrawn(record, parsed)):
                cancel, at = cancel_command(withdrawn), hash_of(withdrawn) % partitions
                filling.add(outlet.requests, at, now_ms, cancel.key, cancel.future)
        out.batches, out.tombstones = filling.all(), owned.ending.tombstones(refused, records, now_ms)
        return out

    def _parse(self, record: SourceRecord, *, tell: bool) -> Parsed | StrEnum:
        try:
            return self._parse_record(record)
        except UnicodeError:
            return Refusal.NOT_UTF8
        except TooManyHopsError:
            return Refusal.TOO_MANY_HOPS
        except Exception:
            # It would fail again, and block everything after it.
            if tell:
                place = f"{record.topic} partition {record.partition} offset {record.offset}"
                log.exception("%s fails on the record at %s, which is refused", self._title, place)
            return Refusal.UNREADABLE

    def _reject(self, filling: Filling, record: SourceRecord, reason: StrEnum, now_ms: int) -> None:
        outlet, own = self._outlet, [(shown(name), content) for name, content in record.headers]
        room = outlet.rejected_takes.batch_bytes_max - OVERHEAD_BYTES
        [about] = reject_headers(reason, record.topic, record.partition, [record.offset])
        if self._is_door:
            about = [*about, (REJECT_PREFIX + "door", self._name.encode())]
        key, value, headers = fitted(Refused(about, record.key, record.value, own), room)
        at = record.partition % outlet.rejected_takes.partitions
        filling.add(outlet.rejected, at, now_ms, key, value, headers)
