"""
Send requests to Kafka in batches, one accumulator per partition, and replace a producer that no longer works.

Requests that come while a batch is in flight make up the next batch, so a thousand calls at once cost few round trips
and a single call costs one. The batches are built here, not with the producer's `send()`. `send()` wakes every caller
that waits for room once per batch, so 100,000 calls at once take minutes.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.cluster import ClusterMetadata
from aiokafka.errors import (
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    OutOfOrderSequenceNumber,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from aiokafka.producer.message_accumulator import BatchBuilder

from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.internals import connection_of, hurry, transactional_id_of
from kafka_timers.broker.producing import stop
from kafka_timers.broker.seals import SealLog
from kafka_timers.broker.topics import answering
from kafka_timers.core.wire import Topics, partitions_in
from kafka_timers.errors import BrokerError, PublishError, RequestError, TopicsError

__all__ = ["PartitionAccumulator", "RecordHeaders", "RenewableProducer", "partition_count", "served_count"]

log = logging.getLogger(__name__)

# Some 400 requests of 150 bytes. Larger batches gain little, and a topic may allow less than Kafka's 1 MiB.
_BATCH_BYTES = 64 << 10

_TOPIC_WAIT_S = 5.0

RecordHeaders = Sequence[tuple[str, bytes | None]]


async def partition_count(producer: "RenewableProducer", topic: str) -> int:
    """
    Return the number of partitions of *topic*.

    Args:
        producer: started. If it is renewed meanwhile, the new one is asked.
        topic: name of the topic. It is looked up again for some seconds, since not every broker knows a new topic at
            once.

    Raises:
        TopicsError: the topic does not exist, or this client may not see it.
        BrokerError: no broker answers through *producer*.
    """
    told_s: float | None = None
    # Ask for all topics: some brokers create a missing topic when a client asks for it by name.
    while (ids := (await producer.metadata()).partitions_for_topic(topic)) is None:
        # A silent broker says nothing about the topic, so the time limit begins with the first answer.
        now_s = time.monotonic()
        told_s = told_s or now_s
        if now_s - told_s > _TOPIC_WAIT_S:
            help = "create it with kafka-timers topics create"
            raise TopicsError(f"topic {topic} is missing, or this client may not see it: {help}")
        await asyncio.sleep(0.1)
    return len(ids)


async def served_count(producer: "RenewableProducer", topics: Topics, timeout_s: float) -> int:
    """
    Return the number of partitions of `timer-request` that the service runs with.

    Any last seal tells it, since partitions that were added later are not served. If this client may not read
    `timer-sealed`, or nothing is sealed yet, the number of partitions of the topic is returned.

    Args:
        producer: started.
        topics: names of the service's topics.
        timeout_s: longest wait for the broker.

    Raises:
        TopicsError: `timer-request` does not exist, or this client may not see it.
        BrokerError: no broker answers through *producer*, or the leaders of `timer-sealed` do not answer.
    """
    count = await partition_count(producer, topics.requests)
    # Ask for all topics: some brokers create a missing topic when a client asks for it by name.
    if (await producer.metadata()).partitions_for_topic(topics.sealed) is None:
        return count
    kafka, options = producer.connecting
    async with AsyncExitStack() as opened:
        try:
            async with answering(kafka, timeout_s=timeout_s):
                cluster = await opened.enter_async_context(Cluster.open(kafka, **options))
                await cluster.look_up([topics.sealed])
        except BrokerError as error:
            log.warning(
                "the number of partitions in use is unknown, so all %d partitions of %s are used: %s",
                count,
                topics.requests,
                error,
            )
            return count
        return min(count, await _told_by_seals(cluster, topics.sealed, timeout_s / 2) or count)


async def _told_by_seals(cluster: Cluster, topic: str, limit_s: float) -> int:
    """Return the number in the seals of those brokers that answer; 0 if there is no seal or none may be read."""
    seal_log = SealLog(cluster, topic, limit_s)
    # A silent broker hides the partitions that it leads, and no others.
    asked = [seal_log.seals(numbers[0]) for numbers in cluster.led(topic, cluster.partitions(topic)).values()]
    found = await asyncio.gather(*asked, return_exceptions=True)
    told = [partitions_in(seals) for seals in found if not isinstance(seals, BaseException)]
    for error in found:
        if isinstance(error, BaseException) and not (isinstance(error, BrokerError) and (told or not error.retriable)):
            raise error
    return max(told, default=0)


class RenewableProducer:
    """
    An idempotent producer, replaced by a new one when a batch has failed.

    After the broker has refused a batch, for example as too large, a producer of aiokafka no longer works. The batch
    has used up sequence numbers, so the broker refuses all later batches as out of order.

    Args:
        kafka: brokers to produce to.
        given: the caller's own producer, to use in place of one made here. It is never replaced nor stopped.
        timeout_s: longest wait for the broker.
    """

    def __init__(self, kafka: Kafka, given: AIOKafkaProducer | None, timeout_s: float) -> None:
        self._kafka = kafka
        self._given = given
        self._timeout_s = timeout_s
        self._own: AIOKafkaProducer | None = None
        self._renewing = asyncio.Lock()

    @property
    def current(self) -> AIOKafkaProducer:
        """The producer to publish with now."""
        return self._given or self._own

    @property
    def connection(self) -> tuple[Kafka, dict[str, Any]]:
        """
        The Kafka, and options that override its own, with which a consumer connects as the producer does.

        Raises:
            RequestError: the producer is transactional, so no answer can come before its commit.
        """
        if self._given is not None and transactional_id_of(self._given) is not None:
            raise RequestError(
                "no answer to a cancel or a move comes before the transaction of its producer commits: use a client "
                "whose producer is not transactional"
            )
        return self.connecting

    @property
    def connecting(self) -> tuple[Kafka, dict[str, Any]]:
        """The Kafka of the producer, and options that override its own."""
        if self._given is None:
            return self._kafka, {}
        where, options = connection_of(self._given)
        return Kafka(where), options

    async def metadata(self) -> ClusterMetadata:
        """
        Return the brokers' metadata of all topics.

        Raises:
            BrokerError: no broker answers.
        """
        while True:
            asked = self.current
            try:
                return await asked.client.fetch_all_metadata()
            except KafkaError as error:
                # A producer that is renewed while it asks is stopped, so ask the new one.
                if asked is not self.current:
                    continue
                through = "this client's connections" if self._given is None else "the given producer; was it started?"
                raise BrokerError(f"no broker answers through {through} ({error})", retriable=True) from error

    async def start(self) -> None:
        """
        Connect.

        Raises:
            BrokerError: no broker answers, or it refuses this client.
        """
        if self._given is None:
            self._own = await self._started()

    async def renew(self, spent: AIOKafkaProducer) -> None:
        """Replace *spent*. If no broker answers, it stays, and the next failure tries again."""
        async with self._renewing:
            if spent is not self._own:
                return
            with suppress(BrokerError):
                self._own = await self._started()
                # Stopping also sends the batches that other partitions have in flight.
                await stop(spent)

    async def stop(self) -> None:
        """Disconnect, unless the producer is the caller's own."""
        own, self._own = self._own, None
        if own is not None:
            await stop(own)

    async def _started(self) -> AIOKafkaProducer:
        async with answering(self._kafka, timeout_s=self._timeout_s):
            producer = AIOKafkaProducer(
                **self._kafka.client_options(),
                enable_idempotence=True,
                acks="all",
                max_batch_size=_BATCH_BYTES,
                request_timeout_ms=int(self._timeout_s * 1000),
            )
            hurry(producer.client)
            try:
                await producer.start()
            except BaseException:
                await stop(producer)
                raise
            return producer


class PartitionAccumulator:
    """
    Collects the requests for one partition, in the order of the calls, into the next batch while one is in flight.

    Args:
        producer: sends the batches.
        topic: topic to send to, such as `timer-request`.
        partition: number of the partition.
        timeout_s: longest wait for the broker to accept a batch.
    """

    def __init__(self, producer: RenewableProducer, topic: str, partition: int, timeout_s: float) -> None:
        self._producer = producer
        self._topic = topic
        self._partition = partition
        self._timeout_s = timeout_s
        self._waiting: deque[tuple[bytes, bytes | None, RecordHeaders, asyncio.Future[int]]] = deque()
        self._sending: asyncio.Task[None] | None = None

    def append(self, key: bytes, value: bytes | None, headers: RecordHeaders = ()) -> asyncio.Future[int]:
        """Return a future of the record's offset. Cancelled before its batch is built, it sends nothing."""
        offset: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append((key, value, headers, offset))
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send())
        return offset

    async def flush(self) -> None:
        """Return once every request has been accepted or has failed."""
        if self._sending is not None:
            await self._sending

    async def _send(self) -> None:
        while self._waiting:
            producer = self._producer.current
            batch, offsets = self._next_batch(producer)
            if not offsets:
                continue
            try:
                async with asyncio.timeout(self._timeout_s):
                    sent = await (await producer.send_batch(batch, self._topic, partition=self._partition))
            except Exception as error:  # every caller gets the error, of any kind
                is_away = isinstance(error, TimeoutError | KafkaTimeoutError)
                if is_away:
                    # The broker is away, and requests behind this batch would only wait as long again.
                    offsets += [offset for _, _, _, offset in self._waiting]
                    self._waiting.clear()
                for offset in offsets:
                    if not offset.done():
                        offset.set_exception(_publish_error(error, self._topic, self._timeout_s))
                        offset.exception()  # a caller that was cancelled meanwhile does not ask for it
                if not is_away:
                    await self._producer.renew(producer)
            else:
                for number, offset in enumerate(offsets):
                    if not offset.done():
                        offset.set_result(sent.offset + number if sent.offset >= 0 else -1)

    def _next_batch(self, producer: AIOKafkaProducer) -> tuple[BatchBuilder, list[asyncio.Future[int]]]:
        waiting, batch, offsets = self._waiting, producer.create_batch(), []
        while waiting:
            key, value, headers, offset = waiting[0]
            # The first record is taken at any size, so a record that is too large fails alone.
            fits = (
                offset.done() or batch.append(key=key, value=value, timestamp=None, headers=list(headers)) is not None
            )
            if not fits:
                break
            waiting.popleft()
            if not offset.done():
                offsets.append(offset)
        return batch, offsets


def _publish_error(error: Exception, topic: str, timeout_s: float) -> PublishError:
    match error:
        case TimeoutError() | KafkaTimeoutError():
            text = (
                f"no answer from the broker within {timeout_s:g} s: the request may still be accepted, or be twice if "
            )
            text += "it is published again"
            retriable = True
        case MessageSizeTooLargeError() | RecordListTooLargeError():
            text, retriable = f"the request is larger than topic {topic} takes (max.message.bytes)", False
        case TopicAuthorizationFailedError():
            text, retriable = f"this client may not write to topic {topic}: it needs the ACL", False
        case OutOfOrderSequenceNumber():
            text = "the broker has refused an earlier batch, after which the producer is of no more use: start another"
            retriable = False
        case UnknownTopicOrPartitionError():
            text = (
                f"topic {topic} has gone or has other partitions now: create it again with kafka-timers topics create"
            )
            retriable = False
        case _:
            text, retriable = f"the broker did not take the request: {error!r}", getattr(error, "retriable", False)
    mapped = PublishError(text, retriable=retriable)
    mapped.__cause__ = error
    return mapped
