"""Topics that are looked up are known, also with other questions at the same time."""

import asyncio
from unittest import mock

import pytest
from aiokafka import AIOKafkaProducer
from brokers import delete_records, kafka_configs, make_topic

from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.producer import Producer
from kafka_timers.broker.reading import TopicLog
from kafka_timers.core.log_identity import marked_in
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
    limit = ("--entity-type", "clients", "--entity-name", client, "--add-config", "producer_byte_rate=20000")
    await kafka_configs("--alter", "--bootstrap-server", kafka.bootstrap, *limit)
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


async def test_without_topic_ids_a_log_is_known_by_a_batch_of_it_until_retention_takes_that(
    bootstrap: str, prefix: str
) -> None:
    """Another one has as many records with the same contents."""
    one, other = prefix + "one", prefix + "other"
    async with (
        Cluster.open(Kafka(bootstrap)) as cluster,
        AIOKafkaProducer(bootstrap_servers=bootstrap) as producer,
    ):
        for name in (one, other):
            await make_topic(bootstrap, name)
            for value in (b"a", b"b", b"c"):
                await producer.send_and_wait(name, value)
        await cluster.look_up([one, other])
        with mock.patch.object(Cluster, "topic_id", return_value=bytes(16)):
            log = TopicLog(cluster, one)
            known = await log.mark(0, 1)
            assert marked_in(known) == 1
            assert await log.mark(0, -1) == await log.mark(0, 3) == b""
            assert not await log.is_other(0, known)
            assert await TopicLog(cluster, other).is_other(0, known)
            await delete_records(bootstrap, other, 0, 2)
            assert not await TopicLog(cluster, other).is_other(0, known)
