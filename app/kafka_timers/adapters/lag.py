"""
Reads the lag of adapters, from nothing but the offsets of their consumer groups, for `kafka-timers status`.
"""

import asyncio
from dataclasses import dataclass
from itertools import chain

from aiokafka.client import CoordinationType
from aiokafka.protocol.commit import OffsetFetchRequest

from kafka_timers.adapters import ADAPTERS, adapter_group
from kafka_timers.broker.asking import CoordinatorLink
from kafka_timers.broker.bounds import LogBounds
from kafka_timers.broker.cluster import Cluster

__all__ = ["AdapterLag", "adapter_lags"]

_LANE = "lag of doors"
_LIMIT_S = 5.0


@dataclass(frozen=True, slots=True)
class AdapterLag:
    """Number of offsets of a topic that an adapter has not read yet."""

    adapter: str
    topic: str
    lag: int


async def adapter_lags(cluster: Cluster, group: str) -> list[AdapterLag]:
    """
    Return the lag of each adapter that has read anything.

    Args:
        cluster: the cluster to ask.
        group: consumer group of the workers.

    Raises:
        aiokafka.errors.KafkaError: a coordinator or a leader does not answer within some seconds, or refuses.
    """
    found = await asyncio.gather(*(_lags_of(cluster, group, name) for name in sorted(ADAPTERS)))
    return list(chain.from_iterable(found))


async def _lags_of(cluster: Cluster, workers: str, adapter: str) -> list[AdapterLag]:
    """Return the lag for each topic with a committed offset of the adapter."""
    group = adapter_group(workers, adapter)
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
