"""
Read how far the adapters are behind from the offsets of their consumer groups alone. `kafka-timers status` shows it.
"""

from contextlib import AsyncExitStack
from dataclasses import dataclass

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from kafka_timers.adapters import adapter_group
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.consuming import consuming
from kafka_timers.broker.topics import answering

__all__ = ["AdapterLag", "adapter_lags"]


@dataclass(frozen=True, slots=True)
class AdapterLag:
    """How many offsets of a topic an adapter has not read yet."""

    adapter: str
    topic: str
    lag: int


async def adapter_lags(kafka: Kafka, group: str) -> list[AdapterLag]:
    """
    Return how far each adapter that has read anything is behind.

    Args:
        kafka: where the topics are.
        group: consumer group of the workers.

    Raises:
        BrokerError: no broker answers within some 10 s, or it refuses.
    """
    start = adapter_group(group, "")
    async with answering(kafka), AsyncExitStack() as opened:
        admin = AIOKafkaAdminClient(**kafka.client_options())
        opened.push_async_callback(admin.close)
        await admin.start()
        consumer = await opened.enter_async_context(consuming(kafka))
        lags = []
        for name in sorted(name for name, _, *_ in await admin.list_consumer_groups() if name.startswith(start)):
            offsets = await admin.list_consumer_group_offsets(name)
            for described in await admin.describe_topics(sorted({at.topic for at in offsets})) if offsets else ():
                topic = described["topic"]
                where = [TopicPartition(topic, part["partition"]) for part in described["partitions"]]
                starts, ends = await consumer.beginning_offsets(where), await consumer.end_offsets(where)
                read = {at: max(offsets[at].offset if at in offsets else 0, starts[at]) for at in where}
                lag = sum([max(ends[at] - read[at], 0) for at in where])
                lags.append(AdapterLag(name.removeprefix(start), topic, lag))
        return lags
