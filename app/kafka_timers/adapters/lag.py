"""Reads the lag of adapters, from nothing but the offsets of their consumer groups, for `kafka-timers status`."""

import asyncio
from itertools import chain
from operator import attrgetter

from aiokafka.client import CoordinationType
from aiokafka.protocol.commit import OffsetFetchRequest

from kafka_timers.adapters import ADAPTERS, adapter_group
from kafka_timers.broker.bounds import LogBounds
from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.coordinator_calls import CoordinatorLink

_LANE = "lag of doors"
_LIMIT_S = 5.0


async def adapter_lags(cluster: Cluster, group: str) -> list[tuple[str, str, int]]:
    """Return the adapters that have read anything: name, topic, and the number of offsets that are not read yet."""
    found = await asyncio.gather(*(_lags_of(cluster, group, name) for name in sorted(ADAPTERS)))
    return list(chain.from_iterable(found))


async def _lags_of(cluster: Cluster, workers: str, adapter: str) -> list[tuple[str, str, int]]:
    group = adapter_group(workers, adapter)
    link = CoordinatorLink(cluster, CoordinationType.GROUP, group, _LIMIT_S, _LANE)
    answer = await link.obeyed(OffsetFetchRequest(group, None), attrgetter("error_code"), "tell its offsets")
    read = {(topic, number): offset for topic, numbers in answer.topics for number, offset, *_ in numbers}
    topics = sorted({topic for topic, _ in read})
    await cluster.look_up(topics)
    lags = []
    for topic in topics:
        bounds, numbers = LogBounds(cluster, topic, _LIMIT_S), cluster.partitions(topic)
        starts, ends = await bounds.starts(numbers), await bounds.ends(numbers)
        left = [ends[number] - max(read.get((topic, number), 0), starts[number]) for number in numbers]
        lags.append((adapter, topic, sum([max(each, 0) for each in left])))
    return lags
