"""
Read how far the adapters are behind from the offsets of their consumer groups alone. `kafka-timers status` shows it.
"""

import asyncio
from dataclasses import dataclass

from aiokafka.client import CoordinationType
from aiokafka.errors import for_code
from aiokafka.protocol.admin import ListGroupsRequest
from aiokafka.protocol.commit import OffsetFetchRequest

from kafka_timers.adapters import adapter_group
from kafka_timers.broker import codes
from kafka_timers.broker.asking import CoordinatorLink
from kafka_timers.broker.bounds import LogBounds
from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.topics import answering

__all__ = ["AdapterLag", "adapter_lags"]

_LANE = "lag of doors"
_LIMIT_S = 5.0


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
    async with answering(kafka), Cluster.open(kafka) as cluster:
        listed = await asyncio.gather(*(_groups_of(cluster, node) for node in cluster.nodes))
        names = sorted({name for groups in listed for name in groups if name.startswith(start)})
        return [lag for name in names for lag in await _lags_of(cluster, name, name.removeprefix(start))]


async def _groups_of(cluster: Cluster, node: int) -> list[str]:
    """Return the groups that broker *node* coordinates."""
    answer = await cluster.send(node, ListGroupsRequest(), lane=_LANE)
    if answer.error_code:
        name = codes.name_of(answer.error_code)
        raise for_code(answer.error_code)(f"{cluster.name_of(node)} does not tell its groups: {name}")
    return [name for name, *_ in answer.groups]


async def _lags_of(cluster: Cluster, group: str, adapter: str) -> list[AdapterLag]:
    """Return the lag of each topic of which *group* has committed an offset."""
    what, link = "tell its offsets", CoordinatorLink(cluster, CoordinationType.GROUP, group, _LIMIT_S, _LANE)
    answer = await link.ask(OffsetFetchRequest(group, None), lambda answer: answer.error_code, to=what)
    if answer.error_code:
        link.refuse(answer.error_code, what)
    read = {(topic, number): offset for topic, numbers in answer.topics for number, offset, *_ in numbers}
    topics = sorted({topic for topic, _ in read})
    await cluster.look_up(topics)
    lags = []
    for topic in topics:
        bounds, numbers = LogBounds(cluster, topic, _LIMIT_S), cluster.partitions(topic)
        starts = await bounds.starts(numbers)
        ends = await asyncio.gather(*(bounds.end(number) for number in numbers))
        left = [
            end - max(read.get((topic, number), 0), starts[number]) for number, end in zip(numbers, ends, strict=True)
        ]
        lags.append(AdapterLag(adapter, topic, sum([max(each, 0) for each in left])))
    return lags
