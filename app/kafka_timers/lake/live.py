"""The lake's access to the live service: its identity, its state by its topics, and the records published to it."""

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.reading import TopicLog
from kafka_timers.broker.seals import last_seals, latest, served_counts
from kafka_timers.broker.ticked import last_tick
from kafka_timers.broker.topics import answering
from kafka_timers.core.wire import Sealed, Topics
from kafka_timers.errors import BrokerError, LakeError, TopicsError
from kafka_timers.lake.service import topic_ids, topic_settings
from kafka_timers.lake.session import kafka_options
from kafka_timers.lake.tables import read_topic_ids, root_of, words_of
from kafka_timers.settings import LakeSettings

_MAX_MESSAGE = "max.message.bytes"
# Kafka's default, assumed if the lake may not read the topic's settings.
_MAX_MESSAGE_BYTES = 1_048_588
# Many records at once, because nobody waits for a single one.
_BATCH_BYTES = 256 << 10
_SINK = {
    "kafka.acks": "all",
    "kafka.linger.ms": "50",
    # A busy broker may take longer than the default of two minutes.
    "kafka.delivery.timeout.ms": "300000",
    "kafka.buffer.memory": str(64 << 20),
    # The topic's own limit decides.
    "kafka.max.request.size": str(64 << 20),
}


class Live(NamedTuple):
    """
    State of the live service.

    Attributes:
        now: UNIX second of the last tick; the smallest of all partitions.
        ends: by partition of `timer-request`, the offset behind all records appended before the question, which came
            after *now* was read. Records in open transactions are included.
        seals: last complete seal by partition, for the partitions that have one.
        message_bytes_max: size of the largest message that `timer-request` accepts.
    """

    now: int
    ends: Mapping[int, int]
    seals: Mapping[int, Sealed]
    message_bytes_max: int


async def look(kafka: Kafka, prefix: str) -> Live:
    """
    Return the present state of the live service.

    Raises:
        BrokerError: a partition has no tick.
        TopicsError: a topic of the service is missing.
    """
    topics = Topics.of(prefix)
    partitions = await served_counts(kafka, prefix)
    for topic in (topics.oscillator, topics.requests):
        if topic not in partitions:
            raise TopicsError(f"topic {topic} is missing: create it with kafka-timers topics create")
    # Ticks are sent outside of transactions. Also, a far request in an open transaction may belong to a bucket that is
    # about to be closed, so the ends are those of the log, not those of its readable part.
    async with TopicLog.open(kafka, topics.oscillator, topics.requests, is_committed=False) as (ticks, requests):
        now = await last_tick(ticks, range(partitions[topics.oscillator]))
        ends = await requests.bounds.ends(range(partitions[topics.requests]))
    tails = await last_seals(kafka, prefix)
    seals = {number: seal for number, tail in tails.items() if (seal := latest(tail))}
    return Live(now, ends, seals, await _message_bytes_max(kafka, topics.requests))


def publish(records: DataFrame, settings: LakeSettings) -> None:
    """
    Publish *records* to `timer-request`, each at least once.

    Args:
        records: partition int, key binary, value binary. The topic must have these partitions: for another one, Spark
            would wait a minute and fail.

    Raises:
        BrokerError: the topic has not accepted all of them.
    """
    topic = Topics.of(settings.topic_prefix).requests
    # A batch that the topic refuses as too large is split by this size, so it would be sent unchanged without end.
    batch_bytes = min(_BATCH_BYTES, asyncio.run(_message_bytes_max(settings.kafka, topic)))
    sink = {**kafka_options(settings.kafka), **_SINK, "topic": topic, "kafka.batch.size": str(batch_bytes)}
    try:
        records.write.format("kafka").options(**sink).save()
    except (PySparkException, Py4JError) as error:
        raise BrokerError(f"not all records could be published to {topic}: {words_of(error)}") from error


def refuse_other_topic(spark: SparkSession, settings: LakeSettings) -> None:
    """
    Refuse a `timer-request` that is not the one that the lake was made from.

    Raises:
        LakeError: the topic is missing or was made anew, or the lake cannot be read.
    """
    topic = Topics.of(settings.topic_prefix).requests
    ids = asyncio.run(topic_ids(settings.kafka, [topic]))
    if topic not in ids:
        raise LakeError(f"topic {topic} is missing: is this the cluster that the lake was made from?")
    refuse_made_anew(read_topic_ids(spark, root_of(settings)), ids)


def refuse_made_anew(landed: Mapping[str, str], ids: Mapping[str, str]) -> None:
    """
    Refuse topics that have another id than when they were landed. Both arguments have ids by name.

    Raises:
        LakeError: a topic has another id.
    """
    for topic, topic_id in ids.items():
        if (before := landed.get(topic, topic_id)) != topic_id:
            raise LakeError(
                f"{topic} was deleted and made anew: the lake has records of the topic with id {before}, and this one "
                f"has id {topic_id}. Give another --lake. If this topic has the same records at the same offsets, as "
                "an exact copy in another cluster has, land once with --same-records"
            )


async def _message_bytes_max(kafka: Kafka, topic: str) -> int:
    async with answering(kafka), Cluster.open(kafka) as cluster:
        settings = (await topic_settings(cluster, [topic], _MAX_MESSAGE)).get(topic, {})
    return int(settings.get(_MAX_MESSAGE, _MAX_MESSAGE_BYTES))
