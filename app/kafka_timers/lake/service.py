"""The brokers' facts about the service of a lake: its cluster, and the ids, ends and settings of its topics."""

from base64 import urlsafe_b64encode
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple

from kafka_timers.broker.bounds import LogBounds
from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.reading import TopicLog
from kafka_timers.broker.requests import settings_of
from kafka_timers.broker.topics import answering, counted
from kafka_timers.core.wire import Topics
from kafka_timers.errors import LakeError

_POLICY, _TIMES = "cleanup.policy", "message.timestamp.type"


class Service(NamedTuple):
    """
    The brokers' facts about a service.

    Attributes:
        cluster: id of the Kafka cluster.
        seal_ends: offset behind the last committed record, by partition of `timer-sealed`.
        planned_ends: the same of `timer-planned`.
    """

    cluster: str = ""
    seal_ends: Mapping[int, int] = MappingProxyType({})
    planned_ends: Mapping[int, int] = MappingProxyType({})


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
    """Return the brokers' present facts."""
    names = Topics.of(prefix)
    async with answering(kafka), Cluster.open(kafka) as cluster:
        await cluster.look_up([names.sealed, names.planned])
        logs = [TopicLog(cluster, name) for name in (names.sealed, names.planned)]
        return Service(cluster.id, *[await log.bounds.ends(log.numbers) for log in logs])


async def topic_ids(kafka: Kafka, topics: Collection[str]) -> dict[str, str]:
    """
    Return the ids of those of *topics* that exist, as Kafka's own tools show them; none where brokers tell none. A
    recreated topic has another id.
    """
    async with answering(kafka), Cluster.open(kafka) as cluster:
        await cluster.look_up(topics)
        ids = {topic: cluster.topic_id(topic) for topic in topics}
    return {topic: shown for topic, given in ids.items() if (shown := _shown(given))}


def _shown(topic_id: bytes) -> str:
    return urlsafe_b64encode(topic_id).decode().rstrip("=") if any(topic_id) else ""


class Landed(NamedTuple):
    """A topic as it is landed: its id, as in `topic_ids`, or empty, and by partition its leader epochs, if known."""

    topic_id: str
    epochs: dict[int, int]


async def look_at_landed(kafka: Kafka, topic: str, topic_id: str, before: Mapping[int, tuple[int, int]]) -> Landed:
    """
    Return the present state of the *topic* that had an id and was landed *before*, by partition: up to an offset, and
    under a leader epoch. With another id it has other records, so these are not looked at.

    Raises:
        LakeError: a partition has lost records that were landed.
    """
    async with answering(kafka), Cluster.open(kafka) as cluster:
        await cluster.look_up([topic])
        if (now_id := _shown(cluster.topic_id(topic))) != topic_id:
            return Landed(now_id, {})
        bounds, numbers = LogBounds(cluster, topic), cluster.partitions(topic)
        leaders = {number: leader for number in numbers if (leader := cluster.leader(topic, number))}
        for number, (position, epoch) in before.items():
            # Only a leader of a later epoch can have cut it.
            is_later = number in leaders and leaders[number].epoch > epoch
            if is_later and (kept_to := await bounds.kept(number, epoch)) < position:
                raise LakeError(
                    f"{topic} partition {number} has lost its records from offset {kept_to} on, as in an unclean "
                    f"election, and the lake has them up to {position}. Other records have their offsets by now, so "
                    "give another --lake. This one stays readable"
                )
        epochs = {number: leader.epoch for number, leader in leaders.items() if leader.epoch >= 0}
        return Landed(now_id, epochs)


async def topic_settings(cluster: Cluster, topics: Collection[str], *names: str) -> dict[str, dict[str, str]]:
    """
    Return the settings *names* of *topics*, by topic; none of a topic that is gone, or that may not be read.
    """
    found = (await cluster.ask_any(settings_of(topics, names))).resources if topics else []
    return {name: {entry[0]: str(entry[1]) for entry in entries} for code, _, _, name, entries in found if not code}


async def topics_of(kafka: Kafka, topics: Collection[str], from_ms: int) -> TopicFacts:
    """
    Return the brokers' facts about those of *topics* that exist.

    Args:
        from_ms: UNIX milliseconds; see `TopicFacts`.
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
