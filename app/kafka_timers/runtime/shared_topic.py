"""
Shares the partitions of a topic among the members of a consumer group. Each partition is served by its own task.

An unreadable partition does not delay the others. aiokafka's consumer is a member of the group and reads nothing.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AsyncExitStack, suppress

from aiokafka import ConsumerRebalanceListener, TopicPartition
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata
from aiokafka.errors import KafkaError

from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.groups import joining
from kafka_timers.runtime.tasks import cancel

_POLL_S = 0.2
# A leader that was cut off reports neither news nor an error. Other brokers know the new leader.
_REFRESH_S = 5.0


class SharedTopic(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """
    The partitions of a topic that this process has.

    Args:
        serve: serves a partition until it is cancelled.
        is_served: returns True if a partition is to be served at all.
        user_data: user data of this process in the group, which `group_of` returns.

    Attributes:
        assigned: partitions that the group has assigned to this process and that are to be served.
        is_member: whether the group has taken this process in since the last `run` began.
    """

    def __init__(
        self,
        kafka: Kafka,
        topic: str,
        group: str,
        session_timeout_s: float,
        serve: Callable[[Cluster, TopicPartition], Coroutine[None, None, None]],
        is_served: Callable[[TopicPartition], bool],
        user_data: bytes = b"",
    ) -> None:
        self.assigned: frozenset[TopicPartition] = frozenset()
        self.is_member = False
        self._kafka = kafka
        self._topic = topic
        self._group = group
        self._session_ms = int(session_timeout_s * 1000)
        self._serve = serve
        self._is_served = is_served
        self._assignor = _assignor_with(user_data)
        self._changed = asyncio.Event()
        self._serving: dict[TopicPartition, asyncio.Task[None]] = {}

    async def run(self, cluster: Cluster) -> None:
        """
        Serve the assigned partitions until cancelled.

        Raises:
            aiokafka.errors.KafkaError: no broker answers, or the group refuses this process.
            Exception: `serve` has raised it.
        """
        self.is_member = False
        async with AsyncExitStack() as stack:
            member = await stack.enter_async_context(
                joining(
                    self._kafka,
                    self._group,
                    partition_assignment_strategy=[self._assignor],
                    # New partitions are assigned within this time.
                    metadata_max_age_ms=int(_REFRESH_S * 1000),
                    session_timeout_ms=self._session_ms,
                    heartbeat_interval_ms=self._session_ms // 4,
                )
            )
            self.assigned = frozenset()
            refreshing = asyncio.create_task(_refresh(cluster))
            stack.push_async_callback(cancel, [refreshing])
            stack.push_async_callback(self._release)
            member.subscribe([self._topic], listener=self)
            while True:
                self._changed.clear()
                for at in self.assigned - self._serving.keys():
                    self._serving[at] = asyncio.create_task(self._serve(cluster, at))
                # The member raises the group's errors only when it is polled, and a task its own when it is asked.
                await member.getmany()
                for task in (refreshing, *self._serving.values()):
                    if task.done():
                        task.result()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_POLL_S):
                        await self._changed.wait()

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Release all partitions, after the transactions in progress."""
        self.assigned = frozenset()
        await self._release()

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Serve *assigned*."""
        self.assigned = frozenset(filter(self._is_served, assigned))
        self.is_member = True
        self._changed.set()

    async def _release(self) -> None:
        serving, self._serving = self._serving, {}
        await cancel(serving.values())


def _assignor_with(user_data: bytes) -> type[RoundRobinPartitionAssignor]:
    """Return aiokafka's default assignor, whose members have this *user_data*."""

    class WithUserData(RoundRobinPartitionAssignor):  # type: ignore[misc]  # aiokafka has no types
        @classmethod
        def metadata(cls, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
            return ConsumerProtocolMemberMetadata(cls.version, list(topics), user_data)

    return WithUserData


async def _refresh(cluster: Cluster) -> None:
    while True:
        await asyncio.sleep(_REFRESH_S)
        with suppress(KafkaError):
            await cluster.refresh()
