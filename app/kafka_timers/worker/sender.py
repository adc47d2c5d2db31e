"""
What leaves a partition: callbacks, rejects and the seal that names them, all or nothing.

Exactly once means: one transactional producer per owned partition, whose `start()` shuts out the one before. What that
one had begun is aborted, what it still sends is refused, so a paused owner that comes back can repeat nothing.
Everything goes through the transaction, a seal with nothing due as well: the plain seal of a paused owner could appear
after one of its successor and declare less as done than the successor had fired.

At least once has no transactions: callbacks first, the seal once the broker has them.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    IllegalOperation,
    InvalidTopicError,
    KafkaError,
    MessageSizeTooLargeError,
    ProducerFenced,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from aiokafka.producer.message_accumulator import BatchBuilder

from kafka_timers.broker.epoch import EpochCheck
from kafka_timers.broker.producing import start, stop
from kafka_timers.core.verdicts import Reason
from kafka_timers.core.wire import Sealed, is_complete
from kafka_timers.settings import WorkerSettings
from kafka_timers.worker.faults import FencedError, TopicsRefusedError
from kafka_timers.worker.ports import Ready

_REFUSALS: dict[type[Exception], Reason] = {
    TopicAuthorizationFailedError: Reason.TOPIC_REFUSED,
    InvalidTopicError: Reason.TOPIC_UNKNOWN,
    UnknownTopicOrPartitionError: Reason.TOPIC_UNKNOWN,
    MessageSizeTooLargeError: Reason.TOO_LARGE,
    RecordListTooLargeError: Reason.TOO_LARGE,
}
BATCH_BYTES = 512 << 10


class KafkaSender:
    """
    The producer of one partition.

    Args:
        settings: of the worker.
        partition: number of the partition, part of the transactional id.
        sealed_topic: where seals go.
    """

    def __init__(self, settings: WorkerSettings, partition: int, sealed_topic: str) -> None:
        self._transactional = settings.guarantee == "exactly-once"
        self._transaction_timeout_s = settings.transaction_timeout_s
        self._partition = partition
        self._sealed_topic = sealed_topic
        self._acks: list[tuple[str, asyncio.Future[Any]]] = []
        more: dict[str, Any] = {"enable_idempotence": True}
        if self._transactional:
            more = {
                "transactional_id": f"{settings.group}.{settings.topic_prefix}{partition}",
                "transaction_timeout_ms": int(settings.transaction_timeout_s * 1000),
            }
        self._producer = AIOKafkaProducer(
            **settings.kafka.client_options(),
            acks="all",
            max_batch_size=BATCH_BYTES,
            request_timeout_ms=int(settings.transaction_timeout_s * 1000),
            **more,
        )

    @property
    def epoch_check(self) -> EpochCheck | None:
        """The check whether another owner has shut this one out; None with at-least-once, where none does."""
        return EpochCheck(self._producer) if self._transactional else None

    async def start(self) -> None:
        """
        Connect, and with exactly-once shut out whoever owned the partition before.

        Raises:
            SettingsError: the broker refuses the transaction timeout.
            aiokafka.errors.KafkaError: no broker answers, or it refuses the producer.
        """
        await start(self._producer, self._transaction_timeout_s)

    async def stop(self) -> None:
        """Disconnect; what was not committed is aborted by the next owner's start."""
        for _, ack in self._acks:
            # Nobody asks for its outcome any more; one that has failed would be logged for that.
            if not ack.cancel() and not ack.cancelled():
                ack.exception()
        await stop(self._producer)

    def new_batch(self) -> BatchBuilder:
        """Return an empty batch of at most `BATCH_BYTES`; may be called before `begin`."""
        return self._producer.create_batch()

    async def begin(self) -> None:
        """Begin a slice."""
        self._acks = []
        if self._transactional:
            try:
                await self._producer.begin_transaction()
            except ProducerFenced as error:
                raise FencedError from error

    async def send_all(self, batches: Iterable[Ready]) -> None:
        """Send *batches* as part of the slice; waits only while an earlier one for the same partition is queued."""
        try:
            for batch, topic, partition in batches:
                self._acks.append((topic, await self._producer.send_batch(batch, topic, partition=partition)))
        except ProducerFenced as error:
            raise FencedError from error
        except (AssertionError, IllegalOperation) as error:
            # The transaction has failed meanwhile; an ack tells why.
            await self._gather()
            raise KafkaError("the transaction failed without a reason") from error

    async def commit(self, seal: Sealed) -> None:
        """
        End the slice with *seal*; all of it is visible once this returns.

        Raises:
            FencedError: another worker owns the partition; nothing of the slice is visible.
            TopicsRefusedError: callback topics refuse; nothing of the slice is visible.
            KafkaError: anything else. The slice may be visible or not: the seals tell. This sender is of no more use.
        """
        if not self._transactional:
            await self._gather()
        batch = self.new_batch()
        # A key of its own for slices: compaction must never leave a slice without the complete seal that it stands on.
        key = b"%d" % self._partition if is_complete(seal) else b"%d slice" % self._partition
        batch.append(timestamp=None, key=key, value=seal.SerializeToString())
        await self.send_all([(batch, self._sealed_topic, self._partition)])
        # commit_transaction() returns normally when a batch has failed, so every ack is looked at before.
        await self._gather()
        if self._transactional:
            try:
                await self._producer.commit_transaction()
            except ProducerFenced as error:
                raise FencedError from error

    async def _gather(self) -> None:
        answers = await asyncio.gather(*[ack for _, ack in self._acks], return_exceptions=True)
        acks = zip(self._acks, answers, strict=True)
        failed = [(topic, error) for (topic, _), error in acks if isinstance(error, Exception)]
        if not failed:
            return
        for _, error in failed:
            if isinstance(error, ProducerFenced):
                raise FencedError from error
        reasons = {topic: _REFUSALS[type(error)] for topic, error in failed if type(error) in _REFUSALS}
        if reasons:
            raise TopicsRefusedError(reasons)
        raise failed[0][1]


class Filling:
    """
    Batches that are being filled, one per topic and partition.

    Args:
        new_batch: returns an empty one.
    """

    def __init__(self, new_batch: Callable[[], BatchBuilder]) -> None:
        self._new_batch = new_batch
        self._open: dict[tuple[str, int], BatchBuilder] = {}
        self._full: list[Ready] = []

    def add(
        self,
        topic: str,
        partition: int,
        now_ms: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]] = [],  # noqa: B006  # read only, once per record
    ) -> None:
        """Add a record, which the topic takes; *now_ms* is its timestamp, None that of the moment."""
        at = (topic, partition)
        batch = self._open.get(at)
        if batch is None or batch.append(timestamp=now_ms, key=key, value=value, headers=headers) is None:
            if batch is not None:
                self._full.append((batch, *at))
            # The first record is taken whatever its size; that the topic takes it too was checked before.
            batch = self._open[at] = self._new_batch()
            batch.append(timestamp=now_ms, key=key, value=value, headers=headers)

    def all(self) -> list[Ready]:
        """Return all batches, in the order in which they must be sent."""
        return [*self._full, *[(batch, *at) for at, batch in self._open.items()]]
