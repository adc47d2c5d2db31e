"""
The way of a client's records to `timer-request`, and of the answers back.
"""

import asyncio
import itertools
from typing import Protocol

from aiokafka import AIOKafkaProducer

from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.placed import latest_values, request_at
from kafka_timers.client.answers import AnswerReader
from kafka_timers.client.producer import (
    PartitionAccumulator,
    RecordHeaders,
    RenewableProducer,
    partition_count,
    served_count,
)
from kafka_timers.core.routing import hash_of
from kafka_timers.core.wire import Future, Topics
from kafka_timers.errors import ClientStateError

__all__ = ["Channel", "KafkaChannel"]


class Channel(Protocol):
    """Where a client publishes requests, and is answered."""

    async def start(self) -> None:
        """Connect."""

    async def stop(self) -> None:
        """Wait until what is under way is accepted or has failed, and disconnect; nothing is raised."""

    @property
    def partitions(self) -> int:
        """
        How many partitions the service runs with.

        Raises:
            ClientStateError: nothing can be published here and now.
        """

    async def publish(self, key: bytes, value: bytes, name: bytes, headers: RecordHeaders = ()) -> tuple[int, int]:
        """Return partition and offset of the record; *name* chooses the partition, an empty one takes them by turns."""

    async def answers(self) -> AnswerReader:
        """Return the reader of answers, which sees all answers that come from now on."""

    async def read(self, request: str) -> Future | None:
        """Return what the request at partition:offset asks for; None if it does not lie there any more."""

    async def write_schedule(self, name: bytes, value: bytes | None) -> None:
        """Write a record on `timer-schedule`; None deletes the schedule."""

    async def schedules(self, name: bytes | None) -> dict[bytes, bytes]:
        """Return what lies on `timer-schedule` by id, at least that of *name*."""


class KafkaChannel:
    """
    The way over Kafka.

    Args:
        kafka: brokers; not used when *producer* is given.
        prefix: put before the names of the service's own topics.
        producer: see `TimerClient`.
        reply_topic: where answers are read.
        timeout_s: longest wait for the broker to accept a batch.
    """

    def __init__(
        self, kafka: Kafka, prefix: str, producer: AIOKafkaProducer | None, reply_topic: str, timeout_s: float
    ) -> None:
        self._prefix = prefix
        self._topics = Topics.of(prefix)
        self._producer = RenewableProducer(kafka, producer, timeout_s)
        self._reply_topic = reply_topic
        self._timeout_s = timeout_s
        self._accumulators: list[PartitionAccumulator] = []
        self._turns = itertools.count()
        # Of timer-schedule, made when the first schedule is written.
        self._to_schedules: list[PartitionAccumulator] = []
        self._answers: AnswerReader | None = None
        self._opening = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        """
        Connect and look up how many partitions the service runs with, which is fixed for its life.

        Raises:
            BrokerError: no broker answers at the address, or it refuses this client.
            TopicsError: `timer-request` does not exist, or this client may not see it.
        """
        self._loop = asyncio.get_running_loop()
        await self._producer.start()
        try:
            partitions = await served_count(self._producer, self._topics, self._timeout_s)
        except BaseException:
            await self._producer.stop()
            raise
        self._accumulators = [
            PartitionAccumulator(self._producer, self._topics.requests, partition, self._timeout_s)
            for partition in range(partitions)
        ]

    async def stop(self) -> None:
        """Wait until what is under way is accepted or has failed, and disconnect; nothing is raised."""
        accumulators, self._accumulators = [*self._accumulators, *self._to_schedules], []
        self._to_schedules = []
        await asyncio.gather(*(accumulator.flush() for accumulator in accumulators))
        async with self._opening:
            if self._answers is not None:
                await self._answers.close()
                self._answers = None
        await self._producer.stop()

    @property
    def partitions(self) -> int:
        """
        How many partitions the service runs with.

        Raises:
            ClientStateError: the client is not started, or was started on another event loop.
        """
        if not self._accumulators:
            raise ClientStateError("the client is not started: use `async with TimerClient(...)`")
        if asyncio.get_running_loop() is not self._loop:
            raise ClientStateError(
                "the client was started on another event loop, and each asyncio.run() makes a new one: start one for "
                "each loop, or use kafka_timers.sync.TimerClient, which has a loop of its own"
            )
        return len(self._accumulators)

    async def publish(self, key: bytes, value: bytes, name: bytes, headers: RecordHeaders = ()) -> tuple[int, int]:
        """
        Return partition and offset of the record; *name* chooses the partition, an empty one takes them by turns.

        Raises:
            PublishError: the broker did not accept it; after a time limit it still may.
        """
        count = self.partitions
        partition = (hash_of(name) if name else next(self._turns)) % count
        return partition, await self._accumulators[partition].append(key, value, headers)

    async def write_schedule(self, name: bytes, value: bytes | None) -> None:
        """
        Write a record on `timer-schedule`; None deletes the schedule.

        Raises:
            ClientStateError: see `partitions`.
            PublishError: the broker did not accept it; after a time limit it still may.
            TopicsError: the topic does not exist, or this client may not see it.
        """
        # Raises where the client is not started.
        _ = self.partitions
        if not self._to_schedules:
            topic = self._topics.schedules
            self._to_schedules = [
                PartitionAccumulator(self._producer, topic, partition, self._timeout_s)
                for partition in range(await partition_count(self._producer, topic))
            ]
        await self._to_schedules[hash_of(name) % len(self._to_schedules)].append(name, value)

    async def schedules(self, name: bytes | None) -> dict[bytes, bytes]:
        """
        Return what lies on `timer-schedule` by id, at least that of *name*.

        Raises:
            ClientStateError: see `partitions`.
            BrokerError: it cannot be read.
            TopicsError: it does not exist, or this client may not see it.
        """
        _ = self.partitions
        topic = self._topics.schedules
        count = await partition_count(self._producer, topic)
        numbers = range(count) if name is None else [hash_of(name) % count]
        kafka, options = self._producer.connecting
        return await latest_values(kafka, topic, numbers, **options)

    async def answers(self) -> AnswerReader:
        """
        Return the reader of answers, which sees all answers that come from now on.

        Raises:
            ClientStateError: see `partitions`.
            RequestError: the producer is transactional, so that nothing it sends is answered before its commit.
            BrokerError: the reply topic cannot be read.
            TopicsError: it does not exist.
        """
        async with self._opening:
            # Raises where the client is not started.
            _ = self.partitions
            if self._answers is None or self._answers.failed:
                kafka, options = self._producer.connection
                if self._answers is not None:
                    await self._answers.close()
                    self._answers = None
                partitions = await partition_count(self._producer, self._reply_topic)
                self._answers = await AnswerReader.open(self._reply_topic, partitions, kafka, options, self._timeout_s)
            return self._answers

    async def read(self, request: str) -> Future | None:
        """
        Return what the request at partition:offset asks for; None if it does not lie there any more.

        Raises:
            BrokerError: it cannot be read.
        """
        kafka, options = self._producer.connecting
        return await request_at(kafka, self._prefix, request, **options)
