"""The brokers' facts about the service of a lake: its cluster, and the ids, ends and settings of its topics."""

from base64 import urlsafe_b64encode
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition

from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.consuming import consuming
from kafka_timers.broker.requests import settings_of
from kafka_timers.broker.topics import answering, counted
from kafka_timers.core.wire import Topics

__all__ = ["Service", "TopicFacts", "look_at", "topic_ids", "topics_of"]

_POLICY, _TIMES = "cleanup.policy", "message.timestamp.type"


@dataclass(frozen=True, slots=True)
class Service:
    """
    The brokers' facts about a service.

    Attributes:
        cluster: id of the Kafka cluster.
        seal_ends: offset behind the last committed record, by partition of `timer-sealed`.
    """

    cluster: str = ""
    seal_ends: Mapping[int, int] = field(default_factory=dict)


class TopicFacts(NamedTuple):
    """
    The brokers' facts about existing topics.

    Attributes:
        partitions: number of partitions by topic.
        trimmed: topics that may have lost records since some moment: a partition does not begin at its first offset,
            and none of its records is older than that moment.
        compacted: topics that are compacted, or may be.
        by_broker: topics whose records have the broker's times, which never go back within a partition.
    """

    partitions: dict[str, int]
    trimmed: list[str]
    compacted: set[str]
    by_broker: set[str]


async def look_at(kafka: Kafka, prefix: str) -> Service:
    """
    Return the brokers' present facts.

    Raises:
        BrokerError: no broker answers within some 10 s, or a broker refuses.
    """
    sealed = Topics.of(prefix).sealed
    async with answering(kafka), Cluster.open(kafka) as cluster:
        partitions = (await counted(cluster, [sealed])).get(sealed, 0)
        found = cluster.id
    async with answering(kafka), consuming(kafka) as consumer:
        return Service(found, await _ends(consumer, sealed, partitions))


async def topic_ids(kafka: Kafka, topics: Collection[str]) -> dict[str, str]:
    """
    Return the ids of those of *topics* that exist, as Kafka's own tools show them. A recreated topic has another id.

    Raises:
        BrokerError: no broker answers within some 10 s, or a broker refuses.
    """
    async with answering(kafka), Cluster.open(kafka) as cluster:
        await cluster.look_up(topics)
        ids = {topic: cluster.topic_id(topic) for topic in topics}
    return {topic: urlsafe_b64encode(given).decode().rstrip("=") for topic, given in ids.items() if given}


async def topics_of(kafka: Kafka, topics: Collection[str], from_ms: int) -> TopicFacts:
    """
    Return the brokers' facts about those of *topics* that exist.

    Args:
        kafka: cluster to ask.
        topics: names of topics.
        from_ms: UNIX milliseconds; see `TopicFacts`.

    Raises:
        BrokerError: no broker answers within some 10 s, or a broker refuses.
    """
    async with answering(kafka), Cluster.open(kafka) as cluster:
        partitions = await counted(cluster, topics)
        told = (await cluster.ask_any(settings_of(partitions, [_POLICY, _TIMES]))).resources if partitions else []
    # A topic whose settings may not be read may be compacted, and have any times.
    has = {name: {entry[0]: entry[1] for entry in entries} for code, _, _, name, entries in told if not code}
    plain = {name for name, values in has.items() if "compact" not in values.get(_POLICY, "compact")}
    by_broker = {name for name, values in has.items() if values.get(_TIMES) == "LogAppendTime"}
    lost: list[str] = []
    async with answering(kafka), consuming(kafka) as consumer:
        for topic, count in sorted(partitions.items()):
            where = [TopicPartition(topic, number) for number in range(count)]
            begins = await consumer.beginning_offsets(where)
            later = await consumer.offsets_for_times(dict.fromkeys(where, from_ms))
            # No record since then: earlier ones may be gone.
            if any(begins[tp] > 0 and (later[tp] is None or later[tp].offset <= begins[tp]) for tp in where):
                lost.append(topic)
    return TopicFacts(partitions, lost, set(partitions) - plain, by_broker)


async def _ends(consumer: AIOKafkaConsumer, topic: str, partitions: int) -> dict[int, int]:
    where = [TopicPartition(topic, number) for number in range(partitions)]
    # aiokafka's consumer fails if it is asked about no partition.
    ends = await consumer.end_offsets(where) if where else {}
    return {tp.partition: end for tp, end in ends.items()}
