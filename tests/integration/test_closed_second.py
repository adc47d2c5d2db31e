"""The closed second of a lake, from promote to the workers, on a real broker."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from brokers import make_topic
from patience import LIMIT_S
from prometheus_client import CollectorRegistry

from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.lake_group import closed_second, tell_closed
from kafka_timers.core.wire import Topics
from kafka_timers.errors import BrokerError
from kafka_timers.runtime.gauges import KnownGauge
from kafka_timers.worker.lake_watch import watch_lake

PARTITIONS = 2


@pytest.fixture
async def cluster(bootstrap: str, prefix: str) -> AsyncIterator[Cluster]:
    await make_topic(bootstrap, Topics.of(prefix).requests, PARTITIONS)
    async with Cluster.open(Kafka(bootstrap)) as cluster:
        yield cluster


async def test_workers_read_the_latest_progress_of_promote(cluster: Cluster, bootstrap: str, prefix: str) -> None:
    assert await closed_second(cluster, prefix) is None
    for second, landed in ((1_900_000_000, {}), (1_900_003_600, {0: 7, 1: 9})):
        await tell_closed(Kafka(bootstrap), prefix, second, landed)
        assert await closed_second(cluster, prefix) == second
    assert await closed_second(cluster, prefix + "other-") is None


async def test_a_topic_that_is_gone_is_told(bootstrap: str, prefix: str) -> None:
    with pytest.raises(BrokerError, match="keep the progress of the lake"):
        await tell_closed(Kafka(bootstrap), prefix + "none-", 1_900_000_000, {})


async def test_the_gauge_of_a_worker_follows_it(cluster: Cluster, bootstrap: str, prefix: str) -> None:
    registry = CollectorRegistry()
    shown = KnownGauge("closed", "help", registry)

    async def shows(value: float | None) -> None:
        while registry.get_sample_value("closed") != value:  # noqa: ASYNC110  # a gauge tells nobody
            await asyncio.sleep(0.01)

    watching = asyncio.create_task(watch_lake(cluster, prefix, 1, shown))
    try:
        async with asyncio.timeout(LIMIT_S):
            for second in (1_900_000_000, 1_900_003_600):
                await tell_closed(Kafka(bootstrap), prefix, second, {})
                await shows(second)
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
