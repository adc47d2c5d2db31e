"""
What stands in for Kafka's clients where the worker reads: the request log, the ends of logs, seals, topics.

Each has the methods of aiokafka, or of the service's own module around it, that the worker calls; what it cannot do is
not there, so a worker that begins to call something else fails with the name of it.
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from aiokafka.errors import (
    KafkaError,
    KafkaTimeoutError,
    NotLeaderForPartitionError,
    OffsetOutOfRangeError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from aiokafka.structs import TopicPartition

from kafka_timers.broker.fetching import Fetched
from kafka_timers.core.wire import Sealed, is_complete
from simulation.faults import Faults
from simulation.kafka import Kafka
from simulation.log import Log
from simulation.network import REQUEST_TIMEOUT_S, Network

_RETRY_S = 0.1


class Leaders:
    """Which broker leads which partition of a topic, as one client has last heard."""

    def __init__(self, kafka: Kafka, network: Network, topic: str) -> None:
        self._kafka, self._network, self._topic = kafka, network, topic
        self._known: dict[int, int] = self._true()

    def _true(self) -> dict[int, int]:
        return {number: log.leader for (topic, number), log in self._kafka.logs.items() if topic == self._topic}

    def of(self, number: int) -> int:
        """Return the broker that leads partition *number*, or has led it."""
        return self._known[number]

    async def refresh(self) -> None:
        """Ask anew."""
        self._known = await self._network.ask(self._network.any_node(), self._true)


class RequestLog:
    """
    Stands in for `broker.fetching.Fetcher`.

    Attributes:
        records_max: that fit into one answer; drawn anew for each in random histories.
    """

    def __init__(self, kafka: Kafka, network: Network, faults: Faults, seed: object = None) -> None:
        self._kafka, self._network, self._faults = kafka, network, faults
        self._rng = None if seed is None else random.Random(f"{seed}/fetches")
        self._leaders = Leaders(kafka, network, kafka.own.requests)
        self.records_max = 1 << 30

    def leaders(self, numbers: Iterable[int]) -> dict[int, list[int]]:
        """Return the partitions by the node that leads them."""
        by_node: dict[int, list[int]] = {}
        for number in numbers:
            by_node.setdefault(self._leaders.of(number), []).append(number)
        return by_node

    async def find_leaders(self) -> None:
        """Ask anew which node leads which partition."""
        await self._leaders.refresh()

    async def fetch(self, node: int, positions: Mapping[int, int], wait_ms: int) -> dict[int, Fetched | KafkaError]:
        """Return what partitions have from their *positions* on, or why they cannot be read."""

        def has_some() -> bool:
            return any(self._has(self._kafka.requests(number), node, at) for number, at in positions.items())

        def answer() -> dict[int, Fetched | KafkaError]:
            return {number: self._part(self._kafka.requests(number), node, at) for number, at in positions.items()}

        self._faults.maybe("fetch_fails")
        return await self._network.ask(node, answer, poll=(self._kafka, has_some, wait_ms / 1000))

    @staticmethod
    def _has(log: Log, node: int, position: int) -> bool:
        try:
            return log.view(node).stable > position
        except KafkaError:
            return True

    def _part(self, log: Log, node: int, position: int) -> Fetched | KafkaError:
        try:
            view = log.view(node)
        except NotLeaderForPartitionError as error:
            return error
        if not view.start <= position <= view.end:
            return OffsetOutOfRangeError(f"partition {log.number} has no offset {position}")
        # A few records, so that a history has many fetches.
        count = self._rng.randint(1, 5) if self._rng else self.records_max
        behind = max(min(view.stable, position + count), position)
        is_large = self._rng is not None and behind < view.stable and self._rng.random() < 0.5
        return Fetched(log.committed(position, behind), behind, is_large, view.stable, view.end)


class Ends:
    """Stands in for the AIOKafkaConsumer that is asked where logs begin and end; retries as that one does."""

    def __init__(self, kafka: Kafka, network: Network, faults: Faults) -> None:
        self._kafka, self._network, self._faults = kafka, network, faults
        self._leaders = Leaders(kafka, network, kafka.own.requests)

    async def end_offsets(self, where: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the last stable offset of each partition."""
        self._faults.maybe("ends_fail")
        ends = {at: (await self._view(at.partition)).stable for at in where}
        await self._faults.delay("ends_are_slow")
        return ends

    async def beginning_offsets(self, where: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first offset of each partition."""
        self._faults.maybe("ends_fail")
        return {at: (await self._view(at.partition)).start for at in where}

    async def _view(self, number: int) -> Any:
        log = self._kafka.requests(number)
        for _ in range(int(REQUEST_TIMEOUT_S / _RETRY_S)):
            node = self._leaders.of(number)
            try:
                return await self._network.ask(node, lambda node=node: log.view(node))  # type: ignore[misc]
            except NotLeaderForPartitionError:
                await self._leaders.refresh()
        raise KafkaTimeoutError(f"Failed to get offsets by times in {REQUEST_TIMEOUT_S} s")


class SealLog:
    """Stands in for `Ledger`: the last seals of a partition, with the latest complete one among them."""

    def __init__(self, kafka: Kafka, network: Network, faults: Faults, seed: object = None) -> None:
        self._kafka, self._network, self._faults = kafka, network, faults
        self._rng = None if seed is None else random.Random(f"{seed}/seals")
        self._leaders = Leaders(kafka, network, kafka.own.sealed)

    async def seals(self, number: int) -> list[Sealed]:
        """Return the last seals of partition *number*."""
        self._faults.maybe("seals_fail")
        log = self._kafka.sealed(number)
        while True:
            node = self._leaders.of(number)
            try:
                return await self._network.ask(node, lambda node=node: self._read(log, node))  # type: ignore[misc]
            except NotLeaderForPartitionError:
                await self._leaders.refresh()

    def _read(self, log: Log, node: int) -> list[Sealed]:
        compacted: dict[bytes | None, None] = {}
        seals = []
        for record in reversed(list(log.committed(before=log.view(node).stable))):
            if record.offset >= log.start or record.key not in compacted:
                seals.insert(0, Sealed.FromString(record.value or b""))
            compacted[record.key] = None
        if self._rng and self._rng.random() < 0.5:
            # No more of them than has to be.
            complete = [at for at, seal in enumerate(seals) if is_complete(seal)]
            return seals[complete[-1] if complete else 0 :]
        return seals


class Admin:
    """Stands in for the AIOKafkaAdminClient that looks topics up."""

    def __init__(self, kafka: Kafka, network: Network, faults: Faults) -> None:
        self._kafka, self._network, self._faults = kafka, network, faults

    async def describe_configs(self, resources: Sequence[Any]) -> list[Any]:
        """Return what topics take."""
        self._faults.maybe("look_up_fails")
        names = sorted(resource.name for resource in resources)
        return await self._network.ask(
            self._network.any_node(), lambda: [SimpleNamespace(resources=[self._config(name) for name in names])]
        )

    def _config(self, name: str) -> tuple[int, str, int, str, list[tuple[Any, ...]]]:
        topic = self._kafka.topics.get(name)
        if topic is None or not topic.exists:
            return UnknownTopicOrPartitionError.errno, "", 2, name, []
        if topic.refuses and topic.is_compacted:
            return TopicAuthorizationFailedError.errno, "", 2, name, []
        policy = "compact" if topic.is_compacted else "delete"
        values = {"max.message.bytes": str(topic.bytes_max), "cleanup.policy": policy}
        return 0, "", 2, name, [(key, value, False, 5, False, []) for key, value in values.items()]

    async def describe_topics(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Return how many partitions topics have."""
        return await self._network.ask(
            self._network.any_node(),
            lambda: [
                {"topic": name, "partitions": [None] * topic.partitions}
                for name in names
                if (topic := self._kafka.topics.get(name)) and topic.exists
            ],
        )
