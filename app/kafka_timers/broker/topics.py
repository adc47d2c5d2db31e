"""
Creates and checks the service's own topics.

Their settings are in `topic_settings`. Nothing here changes or deletes an existing topic.
"""

import asyncio
import dataclasses
import math
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, NamedTuple

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaConnectionError, KafkaError, KafkaTimeoutError, TopicAlreadyExistsError, for_code

from kafka_timers.broker import codes
from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.requests import IN_SYNC_MIN, Metadata, settings_of
from kafka_timers.broker.topic_settings import (
    FOR_EVER,
    RETENTION,
    Wanted,
    aligned_topics,
    count_problems,
    problems,
    wanted_of,
)
from kafka_timers.core.callbacks import Lack
from kafka_timers.core.wire import Topics
from kafka_timers.errors import BrokerError, TopicsError

# A broker that does not accept a client's protocol or login closes the connection without a message.
_REFUSED = {
    "PLAINTEXT": "or not in plain text: start it, give another address, or say with --kafka-config how to log in",
    "SSL": "or not to this client: check the address and the certificates",
    "SASL_PLAINTEXT": "or not to this user: check the address, the user and its credentials",
    "SASL_SSL": "or not to this user: check the address, the certificates, the user and its credentials",
}

# How brokers refuse settings that they do not know, or have fixed.
_MAY_BE_ADVICE = frozenset((codes.INVALID_CONFIG, codes.POLICY_VIOLATION))


class Created(NamedTuple):
    """
    The result of creating topics.

    Attributes:
        topics: names of those that were created.
        left_out: sentences that each name settings of a topic that the brokers refuse, and what that costs.
    """

    topics: list[str]
    left_out: list[str]


class _Examined(NamedTuple):
    """
    Result of checking the service's topics.

    Attributes:
        problems: sentences that each name one problem and the remedy.
        retention_s: how long `timer-request` keeps a request, in seconds; infinite without a limit.
    """

    problems: list[str]
    retention_s: float


@asynccontextmanager
async def answering(kafka: Kafka, *, timeout_s: float = 10.0) -> AsyncIterator[None]:
    """
    Limit the time of a block that talks to *kafka*, and translate its errors.

    Raises:
        BrokerError: the block took longer than *timeout_s* seconds, or see `_translating`.
    """
    with _translating(kafka):
        try:
            async with asyncio.timeout(timeout_s):
                yield
        except TimeoutError as error:
            raise BrokerError(f"no answer from Kafka at {kafka} within {timeout_s:g} s", retriable=True) from error


@contextmanager
def _translating(kafka: Kafka) -> Iterator[None]:
    """
    Translate the errors of a block that talks to *kafka*.

    Raises:
        BrokerError: Kafka's client raised.
    """
    try:
        yield
    except BrokerError:
        raise
    except KafkaConnectionError as error:
        raise BrokerError(f"no Kafka answers at {kafka}, {_REFUSED[kafka.protocol]}", retriable=True) from error
    except KafkaError as error:
        is_late = isinstance(error, KafkaTimeoutError)
        raise BrokerError(f"Kafka at {kafka}: {error}", retriable=is_late or error.retriable) from error


@asynccontextmanager
async def knowing(
    kafka: Kafka, topics: Collection[str], *, timeout_s: float = 10.0, **options: Any
) -> AsyncIterator[Cluster]:
    """
    Yield a cluster that has looked *topics* up, over connections of its own. *options* override those of *kafka*.

    To connect has a limit of *timeout_s* seconds. Errors are translated as by `_translating`, also those of the block.
    """
    async with AsyncExitStack() as opened:
        opened.enter_context(_translating(kafka))
        async with answering(kafka, timeout_s=timeout_s):
            cluster = await opened.enter_async_context(Cluster.open(kafka, **options))
            await cluster.look_up(topics)
            if not all(map(cluster.partitions, topics)):
                # The broker that was asked may not have heard of a new topic. The next question goes to another.
                await cluster.refresh()
        yield cluster


async def create(kafka: Kafka, prefix: str, partitions: int) -> Created:
    """
    Create the service's topics that do not exist yet. Return once they can be used.

    Existing topics stay unchanged, so a second call creates nothing. Use `check` to see whether they fit.

    Args:
        partitions: number of partitions of each topic. It is fixed for life, because it decides the partition of a
            timer id.

    Raises:
        TopicsError: existing topics have another number of partitions than the missing ones would get; or as in `make`.
    """
    topics, existing = Topics.of(prefix), await counts(kafka, prefix)
    wanted = wanted_of(topics)
    missing = [name for name in wanted if name not in existing]
    if missing and (differ := count_problems(topics, existing, 0)):
        raise TopicsError(f"{differ[0]}. Then create the missing {', '.join(missing)}")
    for name in aligned_topics(topics):
        if missing and existing.get(name, partitions) != partitions:
            raise TopicsError(
                f"{name} has {existing[name]} partitions: create the missing {', '.join(missing)} with as many, "
                f"not with {partitions}"
            )
    if not missing:
        return Created([], [])
    return await make(kafka, {name: wanted[name] for name in missing}, partitions)


async def make(kafka: Kafka, wanted: Mapping[str, Wanted], partitions: int) -> Created:
    """
    Create those of the *wanted* topics that do not exist, and return once all can be used.

    Raises:
        TopicsError: the brokers refuse some, also without advice. The others are created.
    """
    async with answering(kafka):
        admin = AIOKafkaAdminClient(**kafka.client_options(), request_timeout_ms=10_000)
        try:
            await admin.start()
            made, refused = await _ask_for(
                admin, {name: {**each.must, **each.also} for name, each in wanted.items()}, partitions
            )
            again = {name: wanted[name].must for name, (code, _) in refused.items() if code in _MAY_BE_ADVICE}
            barely, lasting = await _ask_for(admin, again, partitions) if again else ([], {})
        finally:
            await admin.close()
        missing = {name: words for name, (_, words) in (refused | lasting).items() if name not in barely}
        async with Cluster.open(kafka) as cluster:
            await _until_known(cluster, wanted.keys() - missing.keys())
    if missing:
        raise TopicsError(
            f"topics that cannot be created: {'; '.join(f'{name}: {words}' for name, words in missing.items())}"
        )
    return Created(made + barely, [_left_out(name, wanted[name], refused[name][1]) for name in barely])


def _left_out(name: str, wanted: Wanted, words: str) -> str:
    settings = ", ".join(f"{key}={value}" for key, (value, _) in wanted.also.items())
    costs = "; ".join(dict.fromkeys(cost for _, cost in wanted.also.values()))
    return f"{name} is created without {settings}, because a broker says {words}. So {costs}"


async def _ask_for(
    admin: AIOKafkaAdminClient, topics: Mapping[str, Mapping[str, tuple[str, str]]], partitions: int
) -> tuple[list[str], dict[str, tuple[int, str]]]:
    """Create *topics* with these settings; return those that are there, and code and words of the refusals."""
    # -1: the broker's default replication. aiokafka accepts -1 only together with the empty assignment.
    new = [
        NewTopic(name, partitions, -1, {}, {key: value for key, (value, _) in settings.items()})
        for name, settings in topics.items()
    ]
    answers = (await admin.create_topics(new)).topic_errors
    # One that exists was made by another at the same time.
    refused = {
        name: (code, f"{codes.name_of(code)} {message or ''}".rstrip())
        for name, code, message in answers
        if code not in (0, TopicAlreadyExistsError.errno)
    }
    return [name for name, code, _ in answers if not code], refused


async def check(kafka: Kafka, prefix: str, horizon_s: int = 0, served: int = 0, keep_s: int = 0) -> list[str]:
    """
    Return the problems of the service's topics as sentences with the remedy; empty if all is well.

    Args:
        horizon_s: horizon of the workers in seconds. Later requests are in the lake, and may expire here. 0: no lake.
        keep_s: see `problems`.
        served: number of partitions that the service uses; 0 if unknown.
    """
    topics = Topics.of(prefix)
    async with answering(kafka), Cluster.open(kafka) as cluster:
        existing = await counted(cluster, dataclasses.astuple(topics))
        return (await examine(cluster, topics, existing, horizon_s, served, keep_s)).problems


async def examine(
    cluster: Cluster,
    topics: Topics,
    existing: Mapping[str, int],
    horizon_s: int = 0,
    served: int = 0,
    keep_s: int = 0,
) -> _Examined:
    """
    Return the findings of `check`, and how long requests are kept.

    Args:
        cluster: the cluster to ask, for the settings of these topics only, because a cluster may have thousands of
            topics.
        existing: number of partitions of each existing topic.
    """
    configs = await _configs(cluster, list(existing))
    answer = await cluster.ask_any(Metadata(list(existing)))
    # The least of a partition.
    replicas = {topic: min([len(each[4]) for each in found]) for _, topic, _, _, found, *_ in answer.topics if found}
    kept_ms = int(configs.get(topics.requests, {}).get(RETENTION, FOR_EVER))
    retention_s = math.inf if kept_ms == FOR_EVER else kept_ms / 1000
    return _Examined(problems(topics, existing, configs, replicas, horizon_s, served, keep_s), retention_s)


async def counts(kafka: Kafka, prefix: str) -> dict[str, int]:
    """Return the number of partitions of each existing topic of the service, by name."""
    async with answering(kafka), Cluster.open(kafka) as cluster:
        return await counted(cluster, dataclasses.astuple(Topics.of(prefix)))


class Standing(NamedTuple):
    """A partition's leader, negative if it has none, and its replicas: all, those in sync, those that are offline."""

    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    offline: tuple[int, ...]

    def lack(self, in_sync_min: int) -> Lack | None:
        """Return why it takes nothing, of a topic that demands so many replicas in sync; None if it does."""
        if self.leader >= 0 and len(self.in_sync) >= in_sync_min:
            return None
        error = codes.LEADER_NOT_AVAILABLE if self.leader < 0 else codes.NOT_ENOUGH_REPLICAS
        # The last one in sync is called in sync also when it is offline.
        behind = (node for node in self.replicas if node in self.offline or node not in self.in_sync)
        return Lack(error, tuple(sorted(behind)))


async def counted(cluster: Cluster, names: Iterable[str]) -> dict[str, int]:
    """Return the number of partitions of each existing topic in *names*, see `standing`."""
    return {topic: len(partitions) for topic, partitions in (await standing(cluster, names)).items()}


async def standing(cluster: Cluster, names: Iterable[str]) -> dict[str, dict[int, Standing]]:
    """
    Return the partitions of each existing topic in *names*, over the connections of *cluster*.

    A topic counts as missing if two brokers do not know it, where there are two. One broker may not have heard of a new
    topic, or may be cut off from the others.
    """
    asked = sorted(names)
    found = _standing_in(await cluster.ask_any(Metadata(asked)))
    if missing := [name for name in asked if name not in found]:
        for answer in await cluster.ask_two(Metadata(missing)):
            found |= _standing_in(answer)
    return found


def _standing_in(answer: Any) -> dict[str, dict[int, Standing]]:
    return {
        topic: {number: Standing(leader, *map(tuple, each[:3])) for _, number, leader, _, *each in partitions}
        for _, topic, _, _, partitions, *_ in answer.topics
        if partitions
    }


def lacking(partitions: Mapping[int, Standing], in_sync_min: int) -> dict[int, Lack]:
    """Return the partitions that take nothing, of a topic that demands so many replicas in sync."""
    return {number: lack for number, each in partitions.items() if (lack := each.lack(in_sync_min))}


async def unavailable(cluster: Cluster) -> dict[str, dict[int, Lack]]:
    """Return the partitions that take nothing of all topics that the user may see."""
    found = _standing_in(await cluster.ask_any(Metadata(None)))
    # Those with a leader and all replicas in sync take everything, whatever they demand.
    short = {
        topic: partitions
        for topic, partitions in found.items()
        if any(each.lack(len(each.replicas)) for each in partitions.values())
    }
    needed = dict[str, int]()
    if short:
        for _, _, _, name, entries in (await cluster.ask_any(settings_of(short, [IN_SYNC_MIN]))).resources:
            needed[name] = next((int(value) for _, value, *_ in entries), 1)
    return {topic: lacks for topic, each in short.items() if (lacks := lacking(each, needed.get(topic, 1)))}


async def _until_known(cluster: Cluster, names: Collection[str]) -> None:
    """Wait until each broker that answers knows leaders for *names*: the caller is about to use them."""
    # The controller answers before the brokers know a topic, and the only way to wait for them is to ask again.
    while not all(_all_led(answer, names) for answer in await cluster.ask_all(Metadata(names))):  # noqa: ASYNC110
        await asyncio.sleep(0.05)


def _all_led(answer: Any, names: Collection[str]) -> bool:
    led = {
        topic
        for code, topic, _, _, partitions, *_ in answer.topics
        if partitions and not any((code, *(part[0] for part in partitions)))
    }
    return led.issuperset(names)


async def _configs(cluster: Cluster, names: list[str]) -> dict[str, dict[str, str]]:
    if not names:
        return {}
    configs: dict[str, dict[str, str]] = {}
    for code, message, _, name, entries in (await cluster.ask_any(settings_of(names))).resources:
        if code:
            raise for_code(code)(f"cannot describe {name}: {message}")
        configs[name] = {entry[0]: entry[1] for entry in entries}
    return configs
