"""Carry a client's records to `timer-request`, and the answers back."""

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
    """The connection of a client to the service: it publishes requests and reads answers."""

    async def start(self) -> None:
        """Connect."""

    async def stop(self) -> None:
        """Wait until all calls under way are accepted or have failed, and disconnect. Nothing is raised."""

    @property
    def partitions(self) -> int:
        """
        Number of partitions that the service runs with.

        Raises:
            ClientStateError: the client cannot publish here and now.
        """

    async def publish(self, key: bytes, value: bytes, name: bytes, headers: RecordHeaders = ()) -> tuple[int, int]:
        """
        Publish a record and return its partition and offset; *name* chooses the partition, an empty one takes turns.
        """

    async def answers(self) -> AnswerReader:
        """Return a reader of answers that sees all answers from now on."""

    async def read(self, request: str) -> Future | None:
        """Return the Future of the request at partition:offset; None if it does not lie there any more."""

    async def write_schedule(self, name: bytes, value: bytes | None) -> None:
        """Write a record on `timer-schedule`. A value of None deletes the schedule."""

    async def schedules(self, name: bytes | None) -> dict[bytes, bytes]:
        """Return the values on `timer-schedule` by id. With a *name*, other ids may be missing."""


class KafkaChannel:
    """
    The connection over Kafka.

    Args:
        kafka: brokers; not used if *producer* is given.
        prefix: prefix of the service's own topics.
        producer: see `TimerClient`.
        reply_topic: topic to read answers from.
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
        # For timer-schedule; created when the first schedule is written.
        self._to_schedules: list[PartitionAccumulator] = []
        self._answers: AnswerReader | None = None
        self._opening = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        """
        Connect, and look up once with how many partitions the service runs.

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
        """Wait until all calls under way are accepted or have failed, and disconnect. Nothing is raised."""
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
        Number of partitions that the service runs with.

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
        Publish a record and return its partition and offset; *name* chooses the partition, an empty one takes turns.

        Raises:
            PublishError: the broker did not accept it; after a time limit it still may.
        """
        count = self.partitions
        partition = (hash_of(name) if name else next(self._turns)) % count
        return partition, await self._accumulators[partition].append(key, value, headers)

    async def write_schedule(self, name: bytes, value: bytes | None) -> None:
        """
        Write a record on `timer-schedule`. A value of None deletes the schedule.

        Raises:
            ClientStateError: see `partitions`.
            PublishError: the broker did not accept it; after a time limit it still may.
            TopicsError: the topic does not exist, or this client may not see it.
        """
        # Raises if the client is not started.
        _ = self.partitions
        async with self._opening:
            if not self._to_schedules:
                topic = self._topics.schedules
                self._to_schedules = [
                    PartitionAccumulator(self._producer, topic, partition, self._timeout_s)
                    for partition in range(await partition_count(self._producer, topic))
                ]
        await self._to_schedules[hash_of(name) % len(self._to_schedules)].append(name, value)

    async def schedules(self, name: bytes | None) -> dict[bytes, bytes]:
        """
        Return the values on `timer-schedule` by id. With a *name*, other ids may be missing.

        Raises:
            ClientStateError: see `partitions`.
            BrokerError: the topic cannot be read.
            TopicsError: the topic does not exist, or this client may not see it.
        """
        _ = self.partitions
        topic = self._topics.schedules
        count = await partition_count(self._producer, topic)
        numbers = range(count) if name is None else [hash_of(name) % count]
        kafka, options = self._producer.connecting
        return await latest_values(kafka, topic, numbers, **options)

    async def answers(self) -> AnswerReader:
        """
        Return a reader of answers that sees all answers from now on.

        Raises:
            ClientStateError: see `partitions`.
            RequestError: the producer is transactional, so no answer can come before its commit.
            BrokerError: the reply topic cannot be read.
            TopicsError: the reply topic does not exist.
        """
        async with self._opening:
            # Raises if the client is not started.
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
        Return the Future of the request at partition:offset; None if it does not lie there any more.

        Raises:
            BrokerError: the request cannot be read.
        """
        kafka, options = self._producer.connecting
        return await request_at(kafka, self._prefix, request, **options)
