"""The service that a lake is of, as its brokers tell it: which cluster, and how far its topics go."""

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

__all__ = ["Service", "TopicFacts", "look_at", "topics_of"]

_POLICY, _TIMES = "cleanup.policy", "message.timestamp.type"


@dataclass(frozen=True, slots=True)
class Service:
    """
    What the brokers tell of a service.

    Attributes:
        cluster: id of the Kafka cluster.
        seal_ends: of each partition of `timer-sealed` the offset behind its last committed record.
    """

    cluster: str = ""
    seal_ends: Mapping[int, int] = field(default_factory=dict)


class TopicFacts(NamedTuple):
    """
    What the brokers tell of topics that exist.

    Attributes:
        partitions: how many each has.
        trimmed: those that may have lost records since some moment: a partition does not begin at its first offset, and
            no record in it is older.
        compacted: those that are compacted, or may be.
        by_broker: those whose records have the broker's times, which never go back within a partition.
    """

    partitions: dict[str, int]
    trimmed: list[str]
    compacted: set[str]
    by_broker: set[str]


async def look_at(kafka: Kafka, prefix: str) -> Service:
    """
    Return what the brokers tell now.

    Raises:
        BrokerError: no broker answers within some 10 s, or it refuses.
    """
    sealed = Topics.of(prefix).sealed
    async with answering(kafka), Cluster.open(kafka) as cluster:
        partitions = (await counted(cluster, [sealed])).get(sealed, 0)
        found = cluster.id
    async with answering(kafka), consuming(kafka) as consumer:
        return Service(found, await _ends(consumer, sealed, partitions))


async def topics_of(kafka: Kafka, topics: Collection[str], from_ms: int) -> TopicFacts:
    """
    Return what the brokers tell of *topics*, of those that exist.

    Args:
        kafka: to ask.
        topics: names.
        from_ms: UNIX milliseconds: see `TopicFacts`.

    Raises:
        BrokerError: no broker answers within some 10 s, or it refuses.
    """
    async with answering(kafka), Cluster.open(kafka) as cluster:
        partitions = await counted(cluster, topics)
        told = (await cluster.ask_any(settings_of(partitions, [_POLICY, _TIMES]))).resources if partitions else []
    # Of what may not be told all may be compacted, and have any times.
    has = {name: {entry[0]: entry[1] for entry in entries} for code, _, _, name, entries in told if not code}
    plain = {name for name, values in has.items() if "compact" not in values.get(_POLICY, "compact")}
    by_broker = {name for name, values in has.items() if values.get(_TIMES) == "LogAppendTime"}
    lost: list[str] = []
    async with answering(kafka), consuming(kafka) as consumer:
        for topic, count in sorted(partitions.items()):
            where = [TopicPartition(topic, number) for number in range(count)]
            begins = await consumer.beginning_offsets(where)
            later = await consumer.offsets_for_times(dict.fromkeys(where, from_ms))
            # No record at all since then: what there was may be gone.
            if any(begins[tp] > 0 and (later[tp] is None or later[tp].offset <= begins[tp]) for tp in where):
                lost.append(topic)
    return TopicFacts(partitions, lost, set(partitions) - plain, by_broker)


async def _ends(consumer: AIOKafkaConsumer, topic: str, partitions: int) -> dict[int, int]:
    where = [TopicPartition(topic, number) for number in range(partitions)]
    # Asked about nothing, aiokafka's consumer fails.
    ends = await consumer.end_offsets(where) if where else {}
    return {tp.partition: end for tp, end in ends.items()}
