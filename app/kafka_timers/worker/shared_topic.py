"""
A topic whose partitions the members of a consumer group share, each partition served by a task of its own.

One that cannot be read holds back no other. aiokafka's consumer is a member of the group and reads nothing.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AsyncExitStack, suppress

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import KafkaError

from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.consuming import consuming
from kafka_timers.broker.internals import Member
from kafka_timers.worker.tasks import cancel

__all__ = ["SharedTopic"]

_POLL_S = 0.2
# A leader that was cut off tells nothing new and no error; others tell who leads in its place.
_REFRESH_S = 5.0


class SharedTopic(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """
    The partitions of a topic that this process has.

    Args:
        kafka: to connect to.
        topic: name.
        group: whose members share its partitions.
        session_timeout_s: silence after which the others take over.
        serve: serves a partition until it is cancelled.
        is_served: whether a partition is served at all.

    Attributes:
        assigned: the partitions that the group gives to this process, and that are served.
    """

    def __init__(
        self,
        kafka: Kafka,
        topic: str,
        group: str,
        session_timeout_s: float,
        serve: Callable[[Cluster, TopicPartition], Coroutine[None, None, None]],
        is_served: Callable[[TopicPartition], bool],
    ) -> None:
        self.assigned: frozenset[TopicPartition] = frozenset()
        self._kafka = kafka
        self._topic = topic
        self._group = group
        self._session_ms = int(session_timeout_s * 1000)
        self._serve = serve
        self._is_served = is_served
        self._changed = asyncio.Event()
        self._serving: dict[TopicPartition, asyncio.Task[None]] = {}

    async def run(self, cluster: Cluster) -> None:
        """
        Have the partitions served until cancelled.

        Raises:
            aiokafka.errors.KafkaError: no broker answers, or the group refuses this process.
        """
        async with AsyncExitStack() as stack:
            consumer: AIOKafkaConsumer = await stack.enter_async_context(
                consuming(
                    self._kafka,
                    kind=Member,
                    group_id=self._group,
                    # So soon are new partitions shared out.
                    metadata_max_age_ms=int(_REFRESH_S * 1000),
                    session_timeout_ms=self._session_ms,
                    heartbeat_interval_ms=self._session_ms // 4,
                )
            )
            self.assigned = frozenset()
            refreshing = asyncio.create_task(_refresh(cluster))
            stack.push_async_callback(cancel, [refreshing])
            stack.push_async_callback(self._release)
            consumer.subscribe([self._topic], listener=self)
            while True:
                self._changed.clear()
                for at in self.assigned - self._serving.keys():
                    self._serving[at] = asyncio.create_task(self._serve(cluster, at))
                # The consumer wants to be asked, and raises what the group refuses.
                await consumer.getmany()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_POLL_S):
                        await self._changed.wait()

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Release all partitions, after the transactions that are under way."""
        self.assigned = frozenset()
        await self._release()

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Have *assigned* served."""
        self.assigned = frozenset(filter(self._is_served, assigned))
        self._changed.set()

    async def _release(self) -> None:
        serving, self._serving = self._serving, {}
        await cancel(serving.values())


async def _refresh(cluster: Cluster) -> None:
    """Ask now and then who leads what."""
    while True:
        await asyncio.sleep(_REFRESH_S)
        with suppress(KafkaError):
            await cluster.refresh()
