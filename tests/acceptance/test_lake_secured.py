"""The lake's jobs on a Kafka with TLS, SASL and an authorizer, as test_secured.py has it for all others."""

import asyncio
import time
from pathlib import Path

from pyspark.sql import SparkSession
from secured import SecuredKafka, SecuredService

from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.lake_group import closed_second, tell_closed
from kafka_timers.core.wire import Future
from kafka_timers.lake import tables
from kafka_timers.lake.land import land_once
from kafka_timers.lake.live import look, publish
from kafka_timers.lake.schema import REQUESTS
from kafka_timers.settings import LakeSettings


async def test_the_lake_logs_in_too(spark: SparkSession, prefix: str, tmp_path: Path) -> None:
    """It reads through Spark, looks through Python, and publishes through Spark."""
    async with SecuredKafka(tmp_path) as secured:
        secured.allow(prefix, "--allowed-topics", f"{prefix}callbacks*")
        async with SecuredService(secured, prefix, tmp_path) as service:
            await logs_in(spark, service, tmp_path)


async def logs_in(spark: SparkSession, service: SecuredService, tmp_path: Path) -> None:
    secured = service.kafka
    login = {"bootstrap": secured.sasl, "kafka_config": str(secured.config("lake")), "topic_prefix": service.prefix}
    settings = LakeSettings(lake=str(tmp_path / "lake"), **login)
    await service.worker()
    second = int(time.time()) - 100
    await service.requests(second, ["landed"], 1)
    await service.until_sealed(second)
    await asyncio.to_thread(land_once, spark, settings)
    landed = await asyncio.to_thread(tables.read(spark, tables.root_of(settings), REQUESTS).collect)
    assert [(row.partition, row.second) for row in landed] == [(1, second)]
    live = await look(settings.kafka, service.prefix)
    # Behind it lies the marker of a barrier too.
    assert (live.now, live.ends[1] > landed[0].offset) == (second, True)
    future = Future(callBackTopic=service.callbacks, callBack=b"published")
    records = spark.createDataFrame(
        [(1, b"%d" % second, future.SerializeToString())], "partition int, key binary, value binary"
    )
    await asyncio.to_thread(publish, records, settings)
    await tell_closed(settings.kafka, service.prefix, second, {})
    async with Cluster.open(Kafka.of(secured.sasl, str(secured.config("worker")))) as worker:
        assert await closed_second(worker, service.prefix) == second
    await service.tick(second + 1)
    assert sorted(await service.callback_names(["landed", "published"])) == ["landed", "published"]
