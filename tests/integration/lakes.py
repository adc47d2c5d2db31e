"""Topics of a test's own and a lake of its own, on a real broker and real tables."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiokafka import AIOKafkaProducer, ConsumerRecord, TopicPartition
from brokers import consuming, make_topic
from pyspark.sql import SparkSession

from kafka_timers.broker import topics
from kafka_timers.broker.connection import Kafka
from kafka_timers.clock import Clock, HostClock
from kafka_timers.core.routing import partition_of
from kafka_timers.core.wire import Future, Sealed, Topics
from kafka_timers.lake import tables
from kafka_timers.lake.buckets import Closed
from kafka_timers.lake.job_metrics import LakeMetrics
from kafka_timers.lake.land import land_once
from kafka_timers.lake.promote import Promoter
from kafka_timers.lake.schema import BUCKETS
from kafka_timers.settings import LakeSettings

PARTITIONS = 2
HORIZON_S, BUCKET_S = 600, 100
# Far by that horizon, and within it: made long ago.
AGO_S, SOON_S = 5_000, 300
MESSAGE_BYTES_MAX = 20_000


class Lake:
    """Topics of a test's own, a lake of its own, and the test's changes to them."""

    def __init__(self, spark: SparkSession, bootstrap: str, prefix: str, folder: Path) -> None:
        self.spark = spark
        self.topics = Topics.of(prefix)
        self.settings = LakeSettings(
            bootstrap=bootstrap, topic_prefix=prefix, lake=str(folder / "lake"), horizon_s=HORIZON_S
        )
        self.now = int(time.time()) - 1
        self.producer = AIOKafkaProducer(bootstrap_servers=bootstrap)

    @classmethod
    @asynccontextmanager
    async def open(cls, spark: SparkSession, bootstrap: str, prefix: str, folder: Path) -> AsyncIterator["Lake"]:
        """Make the topics, and tick."""
        lake = cls(spark, bootstrap, prefix, folder)
        configs = {"message.timestamp.type": "CreateTime", "max.message.bytes": str(MESSAGE_BYTES_MAX)}
        await make_topic(bootstrap, lake.topics.requests, PARTITIONS, configs)
        await topics.create(Kafka(bootstrap), prefix, PARTITIONS)
        await lake.producer.start()
        try:
            for number in range(PARTITIONS):
                await lake.producer.send_and_wait(lake.topics.oscillator, b"1", key=b"%d" % lake.now, partition=number)
            yield lake
        finally:
            await lake.producer.stop()

    async def request(
        self, second: int, future: Future, *, at_s: float | None = None, producer: AIOKafkaProducer | None = None
    ) -> tuple[int, int]:
        """Publish a request as if it had been made at *at_s*, long ago by default; return its partition and offset."""
        partition = partition_of(future.timerId, PARTITIONS) if future.timerId else 0
        at = await (producer or self.producer).send_and_wait(
            self.topics.requests,
            future.SerializeToString(),
            key=b"%d" % second,
            partition=partition,
            timestamp_ms=int((self.now - AGO_S if at_s is None else at_s) * 1000),
        )
        return at.partition, at.offset

    async def cancel(self, timer_id: str, at_s: float) -> tuple[int, int]:
        return await self.request(0, Future(cancel=True, timerId=timer_id), at_s=at_s)

    async def seal(self, **fields: int) -> None:
        seal = Sealed(**{"partition": 0, "first_ms": 1_000, "end_ms": (self.now + 1) * 1000} | fields)
        await self.producer.send_and_wait(self.topics.sealed, seal.SerializeToString(), key=b"0", partition=0)

    def promoter(
        self,
        kind: type[Promoter] = Promoter,
        *,
        lands: bool = True,
        wait_s: float = 30.0,
        clock: Clock = HostClock(),  # noqa: B008  # it has no state
        metrics: LakeMetrics | None = None,
    ) -> Promoter:
        land = (lambda: land_once(self.spark, self.settings, metrics=metrics)) if lands else None
        return kind(self.spark, self.settings, clock, bucket_s=BUCKET_S, wait_s=wait_s, land=land, metrics=metrics)

    async def records(self) -> list[ConsumerRecord]:
        """Return all there is on the topic of requests."""
        where = [TopicPartition(self.topics.requests, number) for number in range(PARTITIONS)]
        records = []
        async with consuming(self.settings.kafka, isolation_level="read_uncommitted") as consumer:
            consumer.assign(where)
            for partition in where:
                consumer.seek(partition, 0)
            ends = await consumer.end_offsets(where)
            while any([await consumer.position(partition) < ends[partition] for partition in where]):
                for fetched in (await consumer.getmany(timeout_ms=200)).values():
                    records += fetched
        return records

    async def copies(self) -> list[ConsumerRecord]:
        return [record for record in await self.records() if Future.FromString(record.value).HasField("copy")]

    def closed(self) -> list[Closed]:
        rows = tables.read(self.spark, tables.root_of(self.settings), BUCKETS).select(*Closed._fields).collect()
        return sorted(Closed(*row) for row in rows)


def future(timer_id: str = "", value: bytes = b"\0\xff value") -> Future:
    return Future(callBackTopic="callbacks", callBackKey="k", callBack=value, timerId=timer_id, token="t")
