"""
Send requests to Kafka in batches, one accumulator per partition.

Requests that come while a batch is in flight make up the next batch, so a thousand calls at once cost few round trips
and a single call costs one.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, KafkaTimeoutError, OutOfOrderSequenceNumber

from kafka_timers.broker import codes
from kafka_timers.broker.batches import Batch
from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.producer import Producer
from kafka_timers.broker.refusals import RefusedError
from kafka_timers.errors import BrokerError, PublishError

# Some 400 requests of 150 bytes. Larger batches gain little, and a topic may allow less than Kafka's 1 MiB.
_BATCH_BYTES = 64 << 10
# A broker may not know a new topic at once.
_MISSING_S = 5.0

RecordHeaders = Sequence[tuple[str, bytes | None]]


class OwnSender:
    """
    Sends with the project's own producer.

    A batch whose caller has given up may be on its way. It is sent until the broker answers, and later batches for its
    partition come after it, so requests are accepted in the order of the calls.
    """

    def __init__(self, cluster: Cluster, timeout_s: float) -> None:
        self._cluster = cluster
        self._timeout_s = timeout_s
        self._producer: Producer | None = None
        self._starting = asyncio.Lock()

    async def start(self) -> None:
        """Get a producer id."""
        await self._started()

    async def stop(self) -> None:
        """Disconnect."""
        producer, self._producer = self._producer, None
        if producer:
            await producer.stop()

    @property
    def trouble(self) -> str:
        """The reason why sending does not go on, as far as known."""
        return self._producer.trouble if self._producer else ""

    def new_batch(self) -> Batch:
        """Return an empty batch."""
        return Batch(_BATCH_BYTES, is_transactional=False)

    async def deliver(self, batch: Batch, topic: str, partition: int) -> int:
        """
        Send *batch* however long that takes, and return the offset of its first record; -1 if it was not told.

        Raises:
            RefusedError: the topic refuses the batch.
            aiokafka.errors.KafkaError: sending failed.
        """
        producer = await self._started()
        try:
            await producer.deliver(batch, topic, partition)
        except RefusedError:
            raise
        except KafkaError:
            if self._producer is producer:
                # The producer cannot be used any more.
                await self.stop()
            raise
        return producer.offset_of(topic, partition)

    async def _started(self) -> Producer:
        async with self._starting:
            if self._producer is None:
                producer = Producer(
                    self._cluster, None, self._timeout_s, _BATCH_BYTES, "requests", missing_s=_MISSING_S
                )
                await producer.start()
                self._producer = producer
            return self._producer


class GivenSender:
    """
    Sends with a user's producer of aiokafka, perhaps in its transaction. The producer is never replaced nor stopped.

    Attributes:
        trouble: empty, since this producer does not tell why sending does not go on.
    """

    trouble = ""

    def __init__(self, producer: AIOKafkaProducer) -> None:
        self._producer = producer

    async def start(self) -> None:
        """
        Try whether the producer reaches a broker.

        Raises:
            BrokerError: it does not.
        """
        try:
            await self._producer.client.fetch_all_metadata()
        except KafkaError as error:
            raise BrokerError(
                f"no broker answers through the given producer; was it started? ({error})", retriable=True
            ) from error

    async def stop(self) -> None:
        """Do nothing: the producer is the user's."""

    def new_batch(self) -> Any:
        """Return an empty batch."""
        # Not the producer's `send`: it wakes every caller that waits for room once per batch, so 100,000 calls at once
        # take minutes.
        return self._producer.create_batch()

    async def deliver(self, batch: Any, topic: str, partition: int) -> int:
        """
        Send *batch*, as `OwnSender.deliver`.

        Raises:
            PublishError: the producer cannot be used any more.
        """
        try:
            sent = await (await self._producer.send_batch(batch, topic, partition=partition))
        except OutOfOrderSequenceNumber as error:
            raise PublishError(
                "the broker has refused an earlier batch, after which the producer is of no more use: start another",
                retriable=False,
            ) from error
        return int(sent.offset)


Sender = OwnSender | GivenSender


class PartitionAccumulator:
    """
    Collects the requests for one partition, in the order of the calls, into the next batch while one is in flight.

    Args:
        topic: topic to send to, such as `timer-request`.
        timeout_s: longest wait for the broker to accept a batch.
    """

    def __init__(self, sender: Sender, topic: str, partition: int, timeout_s: float) -> None:
        self._sender = sender
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
            batch, offsets = self._next_batch()
            if not offsets:
                continue
            try:
                async with asyncio.timeout(self._timeout_s):
                    first = await self._sender.deliver(batch, self._topic, self._partition)
            except Exception as error:  # every caller gets the error, of any kind
                if isinstance(error, TimeoutError | KafkaTimeoutError):
                    # The broker is away, and requests behind this batch would only wait as long again.
                    offsets += [offset for _, _, _, offset in self._waiting]
                    self._waiting.clear()
                for offset in offsets:
                    self._fail(offset, error)
            else:
                for number, offset in enumerate(offsets):
                    if not offset.done():
                        offset.set_result(first + number if first >= 0 else -1)

    def _next_batch(self) -> tuple[Any, list[asyncio.Future[int]]]:
        waiting, batch, offsets = self._waiting, self._sender.new_batch(), []
        while waiting:
            key, value, headers, offset = waiting[0]
            # The first record is taken at any size, so a record that is too large fails alone.
            try:
                if not offset.done():
                    if batch.append(key=key, value=value, timestamp=None, headers=list(headers)) is None:
                        break
                    offsets.append(offset)
            except Exception as error:  # a serializer of the user's producer may raise any
                self._fail(offset, error)
            waiting.popleft()
        return batch, offsets

    def _fail(self, offset: asyncio.Future[int], error: Exception) -> None:
        if not offset.done():
            offset.set_exception(_publish_error(error, self._topic, self._timeout_s, self._sender.trouble))
            offset.exception()  # a caller that was cancelled meanwhile does not ask for it


def _publish_error(error: Exception, topic: str, timeout_s: float, trouble: str) -> PublishError:
    retriable = False
    # Each producer has a form of its own for what the topic refuses.
    refused = error.refusals[0].code if isinstance(error, RefusedError) else getattr(error, "errno", 0)
    if isinstance(error, PublishError):
        text = str(error)
    elif isinstance(error, TimeoutError | KafkaTimeoutError):
        text = f"no answer from the broker within {timeout_s:g} s: the request may still be accepted, or be twice if "
        text += "it is published again" + (trouble and f" ({trouble})")
        retriable = True
    elif refused in (codes.MESSAGE_TOO_LARGE, codes.RECORD_LIST_TOO_LARGE):
        text = f"the request is larger than topic {topic} takes (max.message.bytes)"
    elif refused == codes.TOPIC_AUTHORIZATION_FAILED:
        text = f"this client may not write to topic {topic}: it needs the ACL"
    elif refused == codes.UNKNOWN_TOPIC_OR_PARTITION:
        text = f"topic {topic} has gone or has other partitions now: create it again with kafka-timers topics create"
    else:
        text = f"the broker did not take the request: {error!r}"
        retriable = getattr(error, "retriable", False)
    mapped = PublishError(text, retriable=retriable)
    mapped.__cause__ = error
    return mapped
