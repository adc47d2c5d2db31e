"""Topics that are looked up are known, also with other questions at the same time."""

import asyncio

from brokers import make_topic

from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka


async def test_a_topic_is_known_once_it_was_looked_up_though_others_were_asked_for_just_before(
    bootstrap: str, prefix: str
) -> None:
    await make_topic(bootstrap, prefix + "x", 3)
    async with Cluster.open(Kafka(bootstrap)) as cluster:
        before = asyncio.create_task(cluster.refresh())
        # Until the question is on its way.
        for _ in range(5):
            await asyncio.sleep(0)
        await cluster.look_up([prefix + "x"])
        assert cluster.partitions(prefix + "x") == [0, 1, 2]
        await before
