"""
How far a door has come, where its consumer group does not tell.

Kafka forgets the offsets of a group that had no members for `offsets.retention.minutes`. So each transaction of a door
writes its place to `timer-door` as well, a compacted topic of the service:

    key      NAME/TOPIC/PARTITION
    value    OFFSET/ID/EPOCH: offset of the next record, Kafka's id of the topic, leader epoch of the records before

Without a place, the topic is new to the door, unless `timer-door` was made anew. It then lacks the record `first`,
which workers write only before the first seal of the service. So `timer-request` is searched for requests of the door,
which name the records that they were made of.
"""

import asyncio
import logging
from typing import NamedTuple

from google.protobuf.message import DecodeError

from kafka_timers.adapters import FROM, moment_from
from kafka_timers.adapters.commands import SourceRecord
from kafka_timers.adapters.source import SourceLog, read_through
from kafka_timers.broker.bounds import Bound, LogBounds
from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.producer import Producer
from kafka_timers.broker.reading import TopicLog
from kafka_timers.core.wire import Future, Record, Source, Topics, unframed
from kafka_timers.runtime.priority import PriorityGate

log = logging.getLogger(__name__)

_STRIDE_RECORDS = 250
_LIMIT_S, _BATCH_BYTES = 10.0, 1_000
_FIRST_KEY = b"first"
# Upper bound for the difference between the clocks of brokers, and of the producers of a topic.
_CLOCKS_MS = 600_000


class UnknownPlaceError(Exception):
    """A topic is not new to a door, and nothing tells how far the door has read it."""


class _Request(NamedTuple):
    """A request of a door: offset and key of the record that it was made of, and when it was appended."""

    offset: int
    key: bytes | None
    appended_ms: int


async def begin_places(cluster: Cluster, topic: str) -> None:
    """
    Write to `timer-door` that no door can have read anything without a place there. Call it before the first seal.

    Raises:
        aiokafka.errors.KafkaError: no broker has taken it.
    """
    producer = Producer(cluster, None, _LIMIT_S, _BATCH_BYTES, "places")
    try:
        await producer.start()
        batch = producer.new_batch()
        batch.append(timestamp=None, key=_FIRST_KEY, value=b"")
        await producer.deliver(batch, topic, 0)
    finally:
        await producer.stop()


class Places:
    """
    The places of one door in one topic.

    Args:
        cluster: the cluster to ask. It must have looked up the topic, `timer-door` and `timer-request`.
        served: number of partitions that the service uses.
        gate: holds the search up while the worker of this process sends callbacks.
        begin_from: value of `--door-from`; empty if it is not given.
    """

    def __init__(
        self, cluster: Cluster, topics: Topics, door: str, topic: str, served: int, gate: PriorityGate, begin_from: str
    ) -> None:
        self._cluster = cluster
        self._topics = topics
        self._door = door
        self._topic = topic
        self._title = f"door {door}={topic}"
        self._served = served
        self._gate = gate
        self._from = begin_from
        self._bounds = LogBounds(cluster, topic)
        # Of the search, which all partitions of this process share.
        self._searching = asyncio.Lock()
        self._found: dict[int, _Request] | None = None
        self._is_unsure = False

    def send(self, producer: Producer, number: int, place: Bound, log_id: bytes, now_ms: int) -> None:
        """Send the *place* in a partition, in the open transaction. *log_id* is Kafka's id of the topic."""
        batch = producer.new_batch()
        value = b"%d/%b/%d" % (place.offset, _text_of(log_id), place.epoch)
        batch.append(timestamp=now_ms, key=self._key(number), value=value)
        producer.send(batch, self._topics.doors, number % self._served)

    async def find(self, producer: Producer, number: int, log_id: bytes) -> Bound | None:
        """
        Return from where the door goes on in a partition; None if the topic is new to it.

        Args:
            producer: the partition's, so that nobody else writes its place meanwhile. No transaction is open.

        Raises:
            UnknownPlaceError: only people know.
            aiokafka.errors.KafkaError: no broker answers, or one refuses.
        """
        try:
            at = number % self._served
            [barrier] = await producer.barrier([self._topics.doors], at)
            place = await self._last(at, self._key(number), number, barrier)
            return self._judged(number, place, _text_of(log_id)) if place else await self._asked(number)
        except UnknownPlaceError:
            if not self._from:
                raise
            return await self._given(number)

    async def _last(self, at: int, key: bytes, number: int, above: int | None = None) -> bytes | None:
        """Return the last value of *key* in partition *at* of `timer-door`; *above* is as for `LogBounds.end`."""
        topic, value = self._topics.doors, None
        bounds = LogBounds(self._cluster, topic)
        start, end = (await bounds.starts([at]))[at], await bounds.end(at, above)

        def look_at(record: SourceRecord) -> None:
            nonlocal value
            if record.key == key:
                value = record.value

        await read_through(SourceLog(self._cluster, topic, at, start, f"place {number}"), end, look_at)
        return value

    def _judged(self, number: int, place: bytes, log_id: bytes) -> Bound | None:
        offset, of_log, epoch = place.split(b"/")
        if of_log and log_id:
            return Bound(int(offset), int(epoch)) if of_log == log_id else None
        raise self._unknown(number, f"read up to offset {int(offset)}, unless the topic was made anew since then")

    async def _asked(self, number: int) -> Bound | None:
        """Return what the door's own requests tell, where places may be lost."""
        if await self._last(0, _FIRST_KEY, number) is not None:
            return None
        async with self._searching:
            if self._found is None:
                self._found = await self._search()
            if last := self._found.get(number):
                return await self._behind(number, last)
        start = (await self._bounds.starts([number]))[number]
        if self._is_unsure and await self._bounds.end(number) > start:
            raise self._unknown(number, f"{self._topics.doors} is younger than requests that are deleted by now")
        return None

    async def _behind(self, number: int, last: _Request) -> Bound:
        """Return the place behind the record of the *last* request that is left, if it was the door's last one."""
        is_whole, bounds = True, LogBounds(self._cluster, self._topics.requests)
        for each, start in (await bounds.starts(bounds.numbers)).items():
            is_whole &= not start or await bounds.has_before(each, last.appended_ms - _CLOCKS_MS)
        if not is_whole or not await self._has(number, last):
            raise self._unknown(number, f"its last request that is left is of offset {last.offset}, and may not be all")
        return self._goes_on(number, last.offset + 1, "behind the record of its last request")

    async def _search(self) -> dict[int, _Request]:
        """Return by partition the last request of the door that `timer-request` has."""
        asked, last = TopicLog(self._cluster, self._topics.requests), dict[int, _Request]()
        # Door and topic are the first fields of a source.
        mark = Source(door=self._door, topic=self._topic).SerializeToString()
        starts, ends = await asked.bounds.starts(asked.numbers), await asked.bounds.ends(asked.numbers)
        for number, start in starts.items():
            async for records in asked.pages(number, start, ends[number], skips_deleted=True):
                for count, record in enumerate(records):
                    if count % _STRIDE_RECORDS == 0:
                        await asyncio.sleep(0)
                        await self._gate.over_soon()
                    if mark in (record.value or b"") and (source := self._source_in(record)):
                        key = source.key if source.HasField("key") else None
                        request = _Request(source.offset, key, record.timestamp)
                        before = last.get(source.partition, request)
                        last[source.partition] = before if before.offset >= source.offset else request
        self._is_unsure = any(starts.values())
        return last

    def _source_in(self, record: Record) -> Source | None:
        """Return the source of a request that the door itself has written; None if it is none."""
        try:
            future = Future.FromString(unframed(record.value or b""))
        except DecodeError:
            return None
        # What workers repeat was appended long after the requests around it.
        is_own = not (future.HasField("insteadOf") or future.HasField("kept"))
        source = future.source
        return source if is_own and (source.door, source.topic) == (self._door, self._topic) else None

    async def _has(self, number: int, last: _Request) -> bool:
        """Tell whether the topic has the record of its *last* request, or has deleted it: then none before is left."""
        if (await self._bounds.starts([number]))[number] > last.offset:
            return True
        record = await TopicLog(self._cluster, self._topic).record_at(number, last.offset)
        return record is not None and record.key == last.key and record.timestamp <= last.appended_ms + _CLOCKS_MS

    async def _given(self, number: int) -> Bound:
        """Return the place that `--door-from` says."""
        offset: int | None = None
        if self._from == "earliest":
            offset = (await self._bounds.starts([number]))[number]
        elif self._from != "latest":
            offset = await self._bounds.since(number, moment_from(self._from))
        if offset is None:
            offset = await self._bounds.end(number)
        return self._goes_on(number, offset, "as --door-from says")

    def _goes_on(self, number: int, offset: int, why: str) -> Bound:
        log.warning("%s: partition %d goes on from offset %d, %s", self._title, number, offset, why)
        return Bound(offset, -1)

    def _unknown(self, number: int, why: str) -> UnknownPlaceError:
        return UnknownPlaceError(
            f"{self._title}: nothing tells how far partition {number} was read ({why}), so it is not "
            f"read. Start the workers with --door-from {FROM}"
        )

    def _key(self, number: int) -> bytes:
        return f"{self._door}/{self._topic}/{number}".encode()


def _text_of(log_id: bytes) -> bytes:
    """Return an id of a topic as text; empty if no broker tells one."""
    return log_id.hex().encode() if any(log_id) else b""
