"""
Sends the output of a partition, all or nothing: callbacks, rejects, and the seal that names them.

Exactly once needs transactional producers of the owned partition. Their start fences those of the previous owner:
brokers abort its open transaction and refuse its writes. So a paused owner that comes back repeats nothing.

There are two producers, used in turn. A broker accepts no new transaction of an id before the last one is complete, and
checks that only every 20 ms. Where a callback topic lacks replicas in sync, this can take as long as the topic needs to
get well. Such an id is *retired*: a seal that the other id commits says that no owner up to here will use it again, so
that the next owner need not fence it. It comes back once a later seal, of the other id too, does not name it any more.

Everything is in the transaction, even a seal without callbacks. Outside it, the seal of a paused owner could appear
after one of its successor, and declare fewer requests done than the successor has fired.

At least once has no transactions: first the callbacks, then the seal once the broker has them.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import NamedTuple

from aiokafka.errors import KafkaError, KafkaTimeoutError, ProducerFenced

from kafka_timers.broker import codes
from kafka_timers.broker.batches import Batch
from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.producer import Producer
from kafka_timers.broker.refusals import RefusedError
from kafka_timers.core.refused import Reason
from kafka_timers.core.wire import Sealed, Topics, instance_name, key_of_seal
from kafka_timers.runtime.filling import BATCH_BYTES, Ready
from kafka_timers.runtime.tasks import cancel
from kafka_timers.settings import WorkerSettings
from kafka_timers.worker.faults import FencedError, TopicsRefusedError

# All other codes mean `TOPIC_REFUSED`.
_REASONS = {
    codes.UNKNOWN_TOPIC_OR_PARTITION: Reason.TOPIC_UNKNOWN,
    codes.MESSAGE_TOO_LARGE: Reason.TOO_LARGE,
    codes.RECORD_LIST_TOO_LARGE: Reason.TOO_LARGE,
}
# So many pairs of connections are shared, or one by so many partitions where that is more. At a tick all partitions
# send, and the last one waits for the others that share its connections.
_SHARED_BY = 4
# The other topics of a second wait for a missing one. After this time it is looked up whether it exists.
_MISSING_S = 0.3
# If one id is fenced and the other one is not after this time, its last transaction may not end for long.
_FENCED_LATER_S = 5.0


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
        self._limit_s = settings.transaction_timeout_s
        self._partition = partition
        self._names = names
        # Held while a transaction is open, and while asking for a later epoch, which would abort a transaction.
        self._free = asyncio.Lock()
        ids = transactional_ids(settings.topic_prefix, partition)
        partitions = len(cluster.partitions(names.requests))
        lane = f"senders {partition % max(_SHARED_BY, math.ceil(partitions / _SHARED_BY))}"
        self._producers = [
            Producer(
                *(cluster, name, settings.transaction_timeout_s, BATCH_BYTES, lane),
                missing_s=_MISSING_S,
                gives_up_on=lambda topic: topic not in names,
            )
            for name in (ids if self._transactional else (None,))
        ]
        # The producers that may be used, the one whose turn it is first.
        self._usable = deque(range(len(self._producers)))
        # By number, the tasks that end when no owner before can use the id of a producer.
        self._fencing: dict[int, asyncio.Task[None]] = {}

    @property
    def trouble(self) -> str:
        """The reason why sending does not go on, as far as known; empty if it does."""
        return self._producer.trouble

    @property
    def _producer(self) -> Producer:
        return self._producers[self._usable[0]]

    @property
    def retired(self) -> list[int]:
        """
        The numbers of the ids that are retired, for a seal.

        Raises:
            KafkaError: such an id cannot be fenced. This sender cannot be used any more.
        """
        for task in self._fencing.values():
            if task.done():
                task.result()
        return sorted(number for number, task in self._fencing.items() if not task.done())

    async def start(self) -> None:
        """
        Connect, and with exactly-once fence the previous owner of the partition.

        An id whose last transaction cannot end is not waited for: see `agree`.

        Raises:
            SettingsError: the broker refuses the transaction timeout.
            KafkaError: no producer could be started.
        """
        for number in self._usable:
            self._fence(number)
        waiting = self._fencing.values()
        done, _ = await asyncio.wait(waiting, timeout=self._limit_s, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            raise KafkaTimeoutError(f"no owner before could be fenced within {self._limit_s:g} s: {self.trouble}")
        await asyncio.wait(waiting, timeout=_FENCED_LATER_S)
        self._usable = deque(number for number in self._usable if number not in self.retired)

    def agree(self, retired: Collection[int]) -> None:
        """
        Go on without the ids that are not fenced, if the last seal of the partition has *retired* them.

        Raises:
            KafkaError: it has not retired one of them, so an owner before could still use it.
        """
        if unsafe := [number for number in self.retired if number not in retired]:
            raise KafkaError(
                f"a transaction of an owner before does not end ({self._producers[unsafe[0]].trouble}): a topic that "
                "it has written to lacks a leader, or replicas in sync. kafka-transactions.sh describe tells which one"
            )
        # Until a seal of ours says that they are back.
        self._usable = deque(number for number in self._usable if number not in retired)
        if not self._usable:
            raise KafkaError("the last seal has retired all transactional ids that are fenced")

    def _fence(self, number: int) -> None:
        async def until_fenced(producer: Producer) -> None:
            while True:
                with suppress(KafkaTimeoutError):
                    return await producer.start()

        self._fencing[number] = asyncio.create_task(until_fenced(self._producers[number]))

    async def stop(self) -> None:
        """Disconnect. The next owner's start aborts an open transaction."""
        await cancel(self._fencing.values())
        for producer in self._producers:
            await producer.stop()

    def new_batch(self) -> Batch:
        """Return an empty batch of at most `BATCH_BYTES`. This works before `begin`."""
        return self._producer.new_batch()

    async def barrier(self) -> Barrier:
        """
        Write a barrier to the partition in both logs, by each producer: see `Producer.barrier`.

        Raises:
            FencedError: another worker owns the partition.
            KafkaError: the record was not written. This sender cannot be used any more.
        """
        if not self._transactional:
            return Barrier(None, None)
        sealed = requests = -1
        try:
            async with self._free:
                for number in self._usable:
                    topics = (self._names.sealed, self._names.requests)
                    sealed, requests = await self._producers[number].barrier(topics, self._partition)
        except ProducerFenced as error:
            raise FencedError from error
        except RefusedError as error:
            raise KafkaError(f"{error}; a worker needs the right to write there: see kafka-timers acls") from error
        return Barrier(sealed, requests)

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

    async def write(self, batches: Iterable[Batch], topic: str) -> int:
        """
        Write *batches* to the partition of *topic*, in a transaction of their own, and return the last one's offset.

        Raises:
            RefusedError: the topic refuses it; nothing of it is visible.
            FencedError: another worker owns the partition; nothing of it is visible.
            KafkaError: any other error. This sender cannot be used any more.
        """
        await self.begin()
        producer = self._producer
        try:
            self.send_all((batch, topic, self._partition) for batch in batches)
            await producer.flush()
            offset = producer.offset_of(topic, self._partition)
            if offset < 0:
                raise KafkaError(f"brokers have taken a record for {topic} twice, and do not tell where it lies")
            if self._transactional:
                await producer.commit()
        except ProducerFenced as error:
            raise FencedError from error
        except RefusedError:
            await self.abort()
            raise
        self._usable.rotate(-1)
        self._free.release()
        return offset

    async def commit(self, seal: Sealed, on_taken: Callable[[], None] = lambda: None) -> int:
        """
        End the slice with *seal*, and return its offset. Receivers can then see all of it.

        Args:
            on_taken: called once all in-sync replicas have the whole slice.

        Returns:
            The offset of the seal; below 0 if brokers do not tell it.

        Raises:
            FencedError: another worker owns the partition; nothing of the slice is visible.
            TopicsRefusedError: callback topics refuse; nothing of the slice is visible. Call `abort`.
            KafkaError: any other error. The seals tell whether the slice is visible. This sender cannot be used any
                more.
        """
        producer = self._producer
        try:
            if not self._transactional:
                await producer.flush()
            batch = self.new_batch()
            batch.append(timestamp=None, key=key_of_seal(seal), value=seal.SerializeToString())
            self.send_all([(batch, self._names.sealed, self._partition)])
            await producer.flush()
            on_taken()
            offset = producer.offset_of(self._names.sealed, self._partition)
            if self._transactional:
                await producer.commit()
            # An id comes back once a seal that does not name it is committed, by another id.
            self._usable += [number for number in self._fencing if number not in {*seal.retired, *self._usable}]
            self._usable.rotate(-1)
            self._free.release()
            return offset
        except ProducerFenced as error:
            raise FencedError from error
        except RefusedError as error:
            own = [each for each in error.refusals if each.topic in (self._names.sealed, self._names.rejected)]
            if own:
                raise KafkaError(str(RefusedError(own))) from error
            raise TopicsRefusedError(
                {
                    each.topic: (_REASONS.get(each.code, Reason.TOPIC_REFUSED), str(each))
                    for each in error.refusals
                    if each.code not in codes.UNAVAILABLE_AFTER_S
                },
                {
                    (each.topic, each.partition): str(each)
                    for each in error.refusals
                    if each.code in codes.UNAVAILABLE_AFTER_S
                },
            ) from error

    async def abort(self, *, ends: bool = True) -> None:
        """
        Give the slice up after `commit` has raised `TopicsRefusedError`. Another one can begin.

        Args:
            ends: whether the transaction can end. If not, its id is retired.

        Raises:
            FencedError: another worker owns the partition.
            KafkaError: any other error. This sender cannot be used any more.
        """
        try:
            await self._producer.abort()
        except ProducerFenced as error:
            raise FencedError from error
        if self._transactional and not ends:
            if len(self._usable) == 1:
                raise KafkaError("no transactional id is left: callback topics lack replicas in sync")
            self._fence(self._usable.popleft())
        self._free.release()
