"""
Sends the output of a partition, all or nothing: callbacks, rejects, and the seal that names them.

Exactly once needs transactional producers of the owned partition. Their start fences those of the previous owner:
brokers abort its open transaction and refuse its writes. So a paused owner that comes back repeats nothing.

There are two producers, used in turn. A broker accepts no new transaction of an id before the last one is complete, and
checks that only every 20 ms.

Everything is in the transaction, even a seal without callbacks. Outside it, the seal of a paused owner could appear
after one of its successor, and declare fewer requests done than the successor has fired.

At least once has no transactions: first the callbacks, then the seal once the broker has them.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import NamedTuple

from aiokafka.errors import KafkaError, ProducerFenced

from kafka_timers.broker import codes
from kafka_timers.broker.batches import Batch
from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.producer import Producer
from kafka_timers.broker.refusals import RefusedError
from kafka_timers.core.refused import Reason
from kafka_timers.core.wire import Sealed, Topics, instance_name, key_of_seal
from kafka_timers.runtime.filling import BATCH_BYTES, Ready
from kafka_timers.settings import WorkerSettings
from kafka_timers.worker.faults import FencedError, TopicsRefusedError

# All other codes mean `TOPIC_REFUSED`.
_REASONS = {
    codes.UNKNOWN_TOPIC_OR_PARTITION: Reason.TOPIC_UNKNOWN,
    codes.MESSAGE_TOO_LARGE: Reason.TOO_LARGE,
    codes.RECORD_LIST_TOO_LARGE: Reason.TOO_LARGE,
}
# The other topics of a second wait for a missing one. After this time it is looked up whether it exists.
_MISSING_S = 0.3
# A compacted topic refuses records without a key.
_BARRIER_KEY = b"barrier"


class Barrier(NamedTuple):
    """
    Offsets of `timer-sealed` and of `timer-request` above everything that was acknowledged when it was asked for.

    They are None with at-least-once, which fences no owner and believes any broker that claims to lead.
    """

    sealed: int | None
    requests: int | None


def transactional_ids(prefix: str, partition: int) -> tuple[str, str]:
    """
    Return both transactional ids of the owner of *partition*. They begin with the name of the instance and a dot.

    Different arguments give different ids.
    """
    name = f"{instance_name(prefix)}.{partition}"
    return name, f"{name}/2"


class KafkaSender:
    """The producers of one partition."""

    def __init__(self, settings: WorkerSettings, cluster: Cluster, partition: int, names: Topics) -> None:
        self._transactional = settings.guarantee == "exactly-once"
        self._partition = partition
        self._names = names
        # Held while a transaction is open, and while asking for a later epoch, which would abort a transaction.
        self._free = asyncio.Lock()
        ids = transactional_ids(settings.topic_prefix, partition)
        # They share connections: one ends its transaction before the other one begins.
        lane = f"sender {partition}"
        self._producers = [
            Producer(cluster, name, settings.transaction_timeout_s, BATCH_BYTES, lane, missing_s=_MISSING_S)
            for name in (ids if self._transactional else (None,))
        ]
        # The producer whose turn it is.
        self._producer = self._producers[0]

    @property
    def trouble(self) -> str:
        """The reason why sending does not go on, as far as known; empty if it does."""
        return self._producer.trouble

    async def start(self) -> None:
        """
        Connect, and with exactly-once fence the previous owner of the partition.

        Raises:
            SettingsError: the broker refuses the transaction timeout.
            aiokafka.errors.KafkaError: no broker answers, or it refuses the producer.
        """
        for producer in self._producers:
            await producer.start()

    async def stop(self) -> None:
        """Disconnect. The next owner's start aborts an open transaction."""
        for producer in self._producers:
            await producer.stop()

    def new_batch(self) -> Batch:
        """Return an empty batch of at most `BATCH_BYTES`. This works before `begin`."""
        return self._producer.new_batch()

    async def barrier(self) -> Barrier:
        """
        Write a record to the partition in both logs, and abort it, so that no reader of committed records gets it.

        A broker acknowledges it once all in-sync replicas have it, which a cut off broker cannot do. Each producer
        writes a record. If a broker has lost the end of its earlier transaction, as a killed Kafka 4.3 may, this
        transaction ends that one too, so that readers do not wait for ever.

        Raises:
            FencedError: another worker owns the partition.
            KafkaError: the record was not written. This sender cannot be used any more.
        """
        if not self._transactional:
            return Barrier(None, None)
        sealed = requests = -1
        try:
            async with self._free:
                for producer in self._producers:
                    sealed, requests = await self._barrier_of(producer)
        except ProducerFenced as error:
            raise FencedError from error
        except RefusedError as error:
            raise KafkaError(f"{error}; a worker needs the right to write there: see kafka-timers acls") from error
        if min(sealed, requests) < 0:
            raise KafkaError("the brokers have taken records of ours twice, and do not tell where they lie")
        return Barrier(sealed, requests)

    async def _barrier_of(self, producer: Producer) -> tuple[int, int]:
        """
        Write a record to both logs with *producer*, abort it, and return the offsets: `timer-sealed`, `timer-request`.
        """
        producer.begin()
        for topic in (self._names.sealed, self._names.requests):
            batch = producer.new_batch()
            batch.append(timestamp=None, key=_BARRIER_KEY, value=b"")
            producer.send(batch, topic, self._partition)
        await producer.flush()
        offsets = [producer.offset_of(topic, self._partition) for topic in (self._names.sealed, self._names.requests)]
        await producer.abort()
        return offsets[0], offsets[1]

    async def is_held(self) -> bool:
        """
        Tell whether, at some moment after the call, no other worker owned the partition. Waits for an open slice to
        end.

        Always True with at-least-once, which fences no owner.

        Raises:
            KafkaError: the broker does not answer. This sender cannot be used any more.
        """
        if not self._transactional:
            return True
        async with self._free:
            return await self._producer.is_held()

    async def begin(self) -> None:
        """Begin a slice."""
        await self._free.acquire()
        self._producer.begin()

    def send_all(self, batches: Iterable[Ready]) -> None:
        """Send *batches* as part of the slice, in the background."""
        try:
            for batch, topic, partition in batches:
                self._producer.send(batch, topic, partition)
        except ProducerFenced as error:
            raise FencedError from error

    async def commit(self, seal: Sealed, on_taken: Callable[[], None] = lambda: None) -> None:
        """
        End the slice with *seal*. Once this returns, receivers can see all of it.

        Args:
            on_taken: called once all in-sync replicas have the whole slice.

        Raises:
            FencedError: another worker owns the partition; nothing of the slice is visible.
            TopicsRefusedError: callback topics refuse; nothing of the slice is visible. Call `abort`.
            KafkaError: any other error. The seals tell whether the slice is visible. This sender cannot be used any
                more.
        """
        try:
            if not self._transactional:
                await self._producer.flush()
            batch = self.new_batch()
            batch.append(timestamp=None, key=key_of_seal(seal), value=seal.SerializeToString())
            self.send_all([(batch, self._names.sealed, self._partition)])
            await self._producer.flush()
            on_taken()
            if self._transactional:
                await self._producer.commit()
            self._producer = self._producers[-1 if self._producer is self._producers[0] else 0]
            self._free.release()
        except ProducerFenced as error:
            raise FencedError from error
        except RefusedError as error:
            own = [each for each in error.refusals if each.topic in (self._names.sealed, self._names.rejected)]
            if own:
                raise KafkaError(str(RefusedError(own))) from error
            raise TopicsRefusedError(
                {
                    refusal.topic: (_REASONS.get(refusal.code, Reason.TOPIC_REFUSED), str(refusal))
                    for refusal in error.refusals
                }
            ) from error

    async def abort(self) -> None:
        """
        Give the slice up after `commit` has raised `TopicsRefusedError`. Another one can begin.

        Raises:
            FencedError: another worker owns the partition.
            KafkaError: any other error. This sender cannot be used any more.
        """
        try:
            await self._producer.abort()
        except ProducerFenced as error:
            raise FencedError from error
        self._free.release()
