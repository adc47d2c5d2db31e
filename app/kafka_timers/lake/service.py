"""The brokers' facts about the service of a lake: its cluster, and the ids, ends and settings of its topics."""

from base64 import urlsafe_b64encode
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple

from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.reading import TopicLog
from kafka_timers.broker.requests import settings_of
from kafka_timers.broker.topics import answering, counted
from kafka_timers.core.wire import Topics

_POLICY, _TIMES = "cleanup.policy", "message.timestamp.type"


class Service(NamedTuple):
    """
    The brokers' facts about a service.

    Attributes:
        cluster: id of the Kafka cluster.
        seal_ends: offset behind the last committed record, by partition of `timer-sealed`.
    """

    cluster: str = ""
    seal_ends: Mapping[int, int] = MappingProxyType({})


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
        await cluster.look_up([sealed])
        log = TopicLog(cluster, sealed)
        return Service(cluster.id, await log.bounds.ends(log.numbers))


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


async def topic_settings(cluster: Cluster, topics: Collection[str], *names: str) -> dict[str, dict[str, str]]:
    """
    Return the settings *names* of *topics*, by topic; none of a topic that is gone, or that may not be read.

    Raises:
        aiokafka.errors.KafkaError: no broker answers.
    """
    found = (await cluster.ask_any(settings_of(topics, names))).resources if topics else []
    return {name: {entry[0]: str(entry[1]) for entry in entries} for code, _, _, name, entries in found if not code}


async def topics_of(kafka: Kafka, topics: Collection[str], from_ms: int) -> TopicFacts:
    """
    Return the brokers' facts about those of *topics* that exist.

    Args:
        from_ms: UNIX milliseconds; see `TopicFacts`.

    Raises:
        BrokerError: no broker answers within some 10 s, or a broker refuses.
    """
    async with answering(kafka), Cluster.open(kafka) as cluster:
        partitions = await counted(cluster, topics)
        has = await topic_settings(cluster, partitions, _POLICY, _TIMES)
    # A topic whose settings may not be read may be compacted, and have any times.
    plain = {name for name, values in has.items() if "compact" not in values.get(_POLICY, "compact")}
    by_broker = {name for name, values in has.items() if values.get(_TIMES) == "LogAppendTime"}
    lost: list[str] = []
    async with TopicLog.open(kafka, *sorted(partitions)) as logs:
        for log in logs:
            for number, first in (await log.bounds.starts(log.numbers)).items():
                # No record since then: earlier ones may be gone.
                if first > 0 and (await log.bounds.since(number, from_ms) or 0) <= first:
                    lost.append(log.topic)
                    break
    return TopicFacts(partitions, lost, set(partitions) - plain, by_broker)
