"""Carry a client's records to `timer-request`, and the answers back."""

import asyncio
import itertools
from contextlib import AsyncExitStack
from typing import Any, Protocol

from aiokafka import AIOKafkaProducer

from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.internals import connection_of, transactional_id_of
from kafka_timers.broker.placed import Latest, latest_records, request_at
from kafka_timers.broker.seals import SealLog
from kafka_timers.broker.topics import answering, counted
from kafka_timers.client.answers import AnswerReader
from kafka_timers.client.batching import GivenSender, OwnSender, PartitionAccumulator, RecordHeaders, Sender
from kafka_timers.core.routing import hash_of
from kafka_timers.core.wire import Future, Topics, partitions_in
from kafka_timers.errors import BrokerError, ClientStateError, RequestError, TopicsError

# For so long the number of partitions of timer-schedule counts.
_COUNTED_S = 5.0


class Channel(Protocol):
    """
    The connection of a client to the service: it publishes requests and reads answers.

    Its methods raise what the calls of `TimerClient` raise, and `ClientStateError` where `partitions` does.
    """

    async def start(self) -> None:
        """Connect."""

    async def stop(self) -> None:
        """Wait until all calls under way are accepted or have failed, and disconnect. Nothing is raised."""

    @property
    def partitions(self) -> int:
        """
        Number of partitions that the service runs with.

        Raises:
            ClientStateError: the client is not started, or was started on another event loop.
        """

    async def publish(self, key: bytes, value: bytes, name: bytes, headers: RecordHeaders = ()) -> tuple[int, int]:
        """
        Publish a record and return its partition and offset; *name* chooses the partition, an empty one takes turns.
        """

    async def answers(self) -> AnswerReader:
        """Return a reader of answers that sees all answers from now on."""

    async def read(self, request: str) -> Future | None:
        """Return the Future of the request at partition:offset; None if it does not lie there any more."""

    async def write_schedule(self, name: bytes, key: bytes, value: bytes | None) -> int:
        """Write a record on `timer-schedule`, in the partition of the id *name*, and return its offset."""

    async def schedules(self, name: bytes | None, before: int | None = None) -> dict[bytes, Latest]:
        """
        Return the latest record of each key on `timer-schedule`.

        Args:
            name: an id; keys that are not in its partition are missing. None reads all partitions.
            before: only what lies before this offset.
        """

    async def planned(self, name: bytes | None) -> dict[bytes, Latest]:
        """Return the same of `timer-planned`."""


class KafkaChannel:
    """
    The connection over Kafka.

    Args:
        kafka: brokers; not used if *producer* is given.
        producer: see `TimerClient`.
        timeout_s: longest wait for the broker to accept a batch.
    """

    def __init__(
        self, kafka: Kafka, prefix: str, producer: AIOKafkaProducer | None, reply_topic: str, timeout_s: float
    ) -> None:
        self._prefix = prefix
        self._topics = Topics.of(prefix)
        self._given = producer
        self._kafka = kafka
        # Connection options of the given producer. They override those of the Kafka.
        self._options: dict[str, Any] = {}
        if producer is not None:
            where, self._options = connection_of(producer)
            self._kafka = Kafka(where)
        # The connections, which `start` opens.
        self._opened = AsyncExitStack()
        self._cluster: Cluster
        self._sender: Sender
        self._reply_topic = reply_topic
        self._timeout_s = timeout_s
        self._accumulators: list[PartitionAccumulator] = []
        self._turns = itertools.count()
        # For timer-schedule, and until when their number counts on the loop's clock.
        self._to_schedules: list[PartitionAccumulator] = []
        self._schedules_until_s = 0.0
        self._answers: AnswerReader | None = None
        self._opening = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        """Connect, see `TimerClient.start`."""
        self._loop = asyncio.get_running_loop()
        async with AsyncExitStack() as opened:
            async with answering(self._kafka, timeout_s=self._timeout_s):
                self._cluster = await opened.enter_async_context(Cluster.open(self._kafka, **self._options))
                given = self._given
                self._sender = OwnSender(self._cluster, self._timeout_s) if given is None else GivenSender(given)
                opened.push_async_callback(self._sender.stop)
                await self._sender.start()
            self._accumulators = self._accumulators_of(self._topics.requests, await self._served())
            self._opened = opened.pop_all()

    def _accumulators_of(self, topic: str, partitions: int) -> list[PartitionAccumulator]:
        return [PartitionAccumulator(self._sender, topic, number, self._timeout_s) for number in range(partitions)]

    async def _count(self, topic: str) -> int:
        async with answering(self._kafka, timeout_s=self._timeout_s):
            count = (await counted(self._cluster, [topic])).get(topic)
        if count is None:
            help = "create it with kafka-timers topics create"
            raise TopicsError(f"topic {topic} is missing, or this client may not see it: {help}")
        return count

    async def _served(self) -> int:
        """
        Return the number of partitions of `timer-request` that the service runs with.

        Any last seal tells it, since partitions that were added later are not served. If this client may not read
        `timer-sealed`, or nothing is sealed yet, the number of partitions of the topic is returned.
        """
        count, topic = await self._count(self._topics.requests), self._topics.sealed
        # These connections are not needed any more afterwards.
        async with answering(self._kafka, timeout_s=self._timeout_s), Cluster.open(self._kafka, **self._options) as own:
            await own.look_up([topic])
            log = SealLog(own, topic, self._timeout_s / 2)
            # A silent broker hides the partitions that it leads, and no others.
            asked = [log.seals(numbers[0]) for numbers in own.led(topic, own.partitions(topic)).values()]
            found = await asyncio.gather(*asked, return_exceptions=True)
        counts = [partitions_in(seals) for seals in found if not isinstance(seals, BaseException)]
        for error in found:
            may_not = isinstance(error, BrokerError) and (counts or not error.retriable)
            if isinstance(error, BaseException) and not may_not:
                raise error
        return min(count, max(counts, default=0) or count)

    async def stop(self) -> None:
        """Disconnect, see `Channel`."""
        accumulators, self._accumulators = [*self._accumulators, *self._to_schedules], []
        self._to_schedules = []
        await asyncio.gather(*(accumulator.flush() for accumulator in accumulators))
        async with self._opening:
            if self._answers is not None:
                await self._answers.close()
                self._answers = None
        await self._opened.aclose()

    @property
    def partitions(self) -> int:
        """Number of partitions, see `Channel`."""
        if not self._accumulators:
            raise ClientStateError("the client is not started: use `async with TimerClient(...)`")
        if asyncio.get_running_loop() is not self._loop:
            raise ClientStateError(
                "the client was started on another event loop, and each asyncio.run() makes a new one: start one for "
                "each loop, or use kafka_timers.sync.TimerClient, which has a loop of its own"
            )
        return len(self._accumulators)

    async def publish(self, key: bytes, value: bytes, name: bytes, headers: RecordHeaders = ()) -> tuple[int, int]:
        """Publish a record, see `Channel`."""
        count = self.partitions
        partition = (hash_of(name) if name else next(self._turns)) % count
        return partition, await self._accumulators[partition].append(key, value, headers)

    async def write_schedule(self, name: bytes, key: bytes, value: bytes | None) -> int:
        """Write a record on `timer-schedule`, see `Channel`."""
        # Raises if the client is not started.
        _ = self.partitions
        async with self._opening:
            now_s, topic = asyncio.get_running_loop().time(), self._topics.schedules
            if now_s >= self._schedules_until_s:
                # It may have been made anew with another number, by which the planner and other clients go.
                if len(self._to_schedules) != (count := await self._planned_partitions()):
                    self._to_schedules = self._accumulators_of(topic, count)
                self._schedules_until_s = now_s + _COUNTED_S
            to = self._to_schedules[hash_of(name) % len(self._to_schedules)]
        return await to.append(key, value)

    async def schedules(self, name: bytes | None, before: int | None = None) -> dict[bytes, Latest]:
        """Return the records on `timer-schedule`, see `Channel`."""
        return await self._latest(self._topics.schedules, name, before)

    async def planned(self, name: bytes | None) -> dict[bytes, Latest]:
        """Return the records on `timer-planned`, see `Channel`."""
        return await self._latest(self._topics.planned, name)

    async def _latest(self, topic: str, name: bytes | None, before: int | None = None) -> dict[bytes, Latest]:
        count = await self._planned_partitions()
        numbers = range(count) if name is None else [hash_of(name) % count]
        return await latest_records(self._kafka, topic, numbers, before, **self._options)

    async def _planned_partitions(self) -> int:
        """Return the number of partitions of `timer-schedule`, of which those that were added are not planned."""
        return min(self.partitions, await self._count(self._topics.schedules))

    async def answers(self) -> AnswerReader:
        """
        Return a reader of answers that sees all answers from now on.

        Raises:
            RequestError: the producer is transactional, so no answer can come before its commit.
        """
        async with self._opening:
            # Raises if the client is not started.
            _ = self.partitions
            if self._answers is None or self._answers.failed:
                if self._given is not None and transactional_id_of(self._given) is not None:
                    raise RequestError(
                        "no answer to a cancel or a move comes before the transaction of its producer commits: use a "
                        "client whose producer is not transactional"
                    )
                if self._answers is not None:
                    await self._answers.close()
                    self._answers = None
                await self._count(self._reply_topic)
                self._answers = await AnswerReader.open(self._reply_topic, self._cluster, self._kafka, self._timeout_s)
            return self._answers

    async def read(self, request: str) -> Future | None:
        """Return the Future of a request, see `Channel`."""
        return await request_at(self._kafka, self._prefix, request, **self._options)
