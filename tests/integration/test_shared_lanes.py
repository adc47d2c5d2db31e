"""Partitions share connections, and none waits long for another one's requests."""

import asyncio
import time
from pathlib import Path
from statistics import quantiles

from brokers import make_topic
from limited import ANY, limited

from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.producer import Producer

# Twice and a half as long as a broker has for an answer.
_HELD_S = 10.0


async def test_a_produce_that_is_held_delays_none_of_those_that_share_its_connection(
    needs_java: None, tmp_path: Path
) -> None:
    async with limited(tmp_path, ANY) as (address, relay, broker):
        for topic in ("quick", "slow"):
            await make_topic(broker.bootstrap, topic)
        async with Cluster.open(Kafka(address)) as cluster:
            await cluster.look_up(["quick", "slow"])
            producers = [Producer(cluster, None, 20.0, 1_000, "shared") for _ in range(4)]
            for producer in producers:
                await producer.start()

            async def deliver(producer: Producer, topic: str) -> float:
                batch, began_s = producer.new_batch(), time.monotonic()
                batch.append(timestamp=None, key=b"k", value=b"v")
                await producer.deliver(batch, topic, 0)
                return time.monotonic() - began_s

            async def p99_s(seconds: float) -> float:
                async def one_after_the_other(producer: Producer) -> None:
                    while time.monotonic() < end_s:
                        took_s.append(await deliver(producer, "quick"))
                        await asyncio.sleep(0.02)

                end_s, took_s = time.monotonic() + seconds, list[float]()
                await asyncio.gather(*map(one_after_the_other, producers[1:]))
                return quantiles(took_s, n=100)[-1]

            before_s = await p99_s(3)
            relay.held = b"slow"
            held = asyncio.create_task(deliver(producers[0], "slow"))
            while_held_s = await p99_s(_HELD_S)
            assert not held.done()
            # Behind it they would wait until it is answered.
            assert while_held_s < before_s + _HELD_S / 4
            relay.held = b""
            assert await held > _HELD_S
            for producer in producers:
                await producer.stop()
