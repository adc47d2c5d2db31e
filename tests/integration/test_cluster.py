"""Topics that are looked up are known, also with other questions at the same time."""

import asyncio
import subprocess

import pytest
from brokers import make_topic

from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.producer import Producer
from kafka_timers.dev import jars, java
from kafka_timers.dev.broker import EmbeddedKafka


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


async def test_a_quota_that_holds_a_client_back_is_called_a_quota(
    kafka: EmbeddedKafka, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = prefix + "worker"
    tool = [str(java.find()), "-cp", jars.classpath(), "kafka.admin.ConfigCommand", "--alter"]
    limit = ["--entity-type", "clients", "--entity-name", client, "--add-config", "producer_byte_rate=20000"]
    await asyncio.to_thread(subprocess.check_call, [*tool, "--bootstrap-server", kafka.bootstrap, *limit])
    await make_topic(kafka.bootstrap, prefix + "x")
    async with Cluster.open(Kafka(kafka.bootstrap, {"client.id": client})) as cluster:
        await cluster.look_up([prefix + "x"])
        producer = Producer(cluster, None, 10.0, 1 << 20, "lane")
        await producer.start()
        assert "throttles" not in caplog.text
        batch = producer.new_batch()
        batch.append(timestamp=None, key=b"k", value=b"v" * 500_000)
        await producer.deliver(batch, prefix + "x", 0)
        await producer.stop()
    told = [line for line in caplog.messages if "throttles" in line]
    assert len(told) == 1
    assert told[0].startswith(f"broker {kafka.bootstrap} throttles client {client} by ")
