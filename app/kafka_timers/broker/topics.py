"""
Creates and checks the service's own topics.

The worker's way of reading decides the settings of each topic; docs/operate.md explains them. Nothing here changes or
deletes an existing topic.
"""

import asyncio
import dataclasses
import math
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaConnectionError, KafkaError, KafkaTimeoutError, TopicAlreadyExistsError, for_code

from kafka_timers.broker import codes
from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.requests import IN_SYNC_MIN, Metadata, settings_of
from kafka_timers.core.callbacks import Lack
from kafka_timers.core.wire import Topics
from kafka_timers.errors import BrokerError, TopicsError

_DAY_MS, _HOUR_MS = 86_400_000, 3_600_000
_FOR_EVER = -1
# Time that the request log keeps requests beyond the horizon, so that a time without workers or landings loses nothing.
GRACE_S = 7 * 86_400

# A broker that does not accept a client's protocol or login closes the connection without a message.
_REFUSED = {
    "PLAINTEXT": "or not in plain text: start it, give another address, or say with --kafka-config how to log in",
    "SSL": "or not to this client: check the address and the certificates",
    "SASL_PLAINTEXT": "or not to this user: check the address, the user and its credentials",
    "SASL_SSL": "or not to this user: check the address, the certificates, the user and its credentials",
}

# For these settings a larger value is fine too. All others must be equal.
_RETENTION = "retention.ms"
_UNCLEAN = "unclean.leader.election.enable"
_AT_LEAST = (_RETENTION, "retention.bytes")
# How brokers refuse settings that they do not know, or have fixed.
_MAY_BE_ADVICE = frozenset((codes.INVALID_CONFIG, codes.POLICY_VIOLATION))


@dataclass(frozen=True, slots=True)
class Wanted:
    """
    Settings of one topic.

    Without those in `must`, each with its reason, the service goes wrong. Those in `also`, each with what it costs to
    lack it, are advice: a topic is created without them if a broker refuses one, and they are not checked. `least` has
    what suffices of a setting in `must`, where that is less.
    """

    must: Mapping[str, tuple[str, str]]
    also: Mapping[str, tuple[str, str]]
    least: Mapping[str, str] = field(default_factory=dict)


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


def _wanted(topics: Topics, horizon_s: int = 0, keep_s: int = 0) -> dict[str, Wanted]:
    kept_ms = (horizon_s + GRACE_S) * 1000 if horizon_s else _FOR_EVER
    # Where workers sweep, nothing older is needed: what waits is repeated. Twice of it bears workers that stand still.
    swept = {_RETENTION: str(2 * keep_s * 1000)} if keep_s and not horizon_s else {}
    append_time = ("LogAppendTime", "lateness and order are judged by the broker's clock")
    # One segment for each day, where seven days are kept. The broker drops and compacts closed segments only, so its
    # default of seven days for each segment would double the size.
    daily = {"segment.ms": (str(_DAY_MS), "it may take twice the room")}
    dated = {"message.timestamp.type": (append_time[0], "its records carry the time of their senders")}
    return {
        topics.requests: Wanted(
            must={
                "cleanup.policy": ("delete", "compaction loses all but one request of a second"),
                "message.timestamp.type": append_time,
                _RETENTION: (str(kept_ms), "pending requests would expire before they fire"),
                # The broker's default may limit the bytes.
                "retention.bytes": (str(_FOR_EVER), "pending requests would be dropped before they fire"),
            },
            also={},
            least=swept,
        ),
        topics.oscillator: Wanted(
            must={
                "cleanup.policy": ("delete", "compaction would keep one record of every second for ever"),
                "message.timestamp.type": append_time,
                _RETENTION: (str(7 * _DAY_MS), "ticks must outlast a time without workers"),
            },
            also=daily,
        ),
        topics.sealed: Wanted(
            must={
                "cleanup.policy": ("compact", "the last seal of a partition must never expire"),
                "message.timestamp.type": append_time,
            },
            also={"min.compaction.lag.ms": (str(7 * _DAY_MS), "audits may miss seals of the last seven days")} | daily,
        ),
        topics.rejected: Wanted(
            must={"cleanup.policy": ("delete", "a compacted topic refuses requests without a key")},
            also=dated | {_RETENTION: (str(30 * _DAY_MS), "refused requests are kept as long as brokers keep records")},
        ),
        topics.replies: Wanted(
            must={"cleanup.policy": ("delete", "compaction would keep an answer for every timer id for ever")},
            # Clients read their answer at once. The rest of the day is for investigations.
            also=dated | {_RETENTION: (str(_DAY_MS), "answers are kept as long as brokers keep records")} | daily,
        ),
        topics.schedules: Wanted(
            must={
                "cleanup.policy": ("compact", "a schedule must never expire"),
                "message.timestamp.type": append_time,
            },
            also={},
        ),
        topics.planned: Wanted(
            must={"cleanup.policy": ("compact", "the planning of a schedule must never expire")},
            also={
                name: (value, "each takeover of a planner reads more, since each run writes a record")
                for name, value in (("segment.ms", str(_HOUR_MS)), ("min.cleanable.dirty.ratio", "0.1"))
            },
        ),
    }


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
    wanted = _wanted(topics)
    missing = [name for name in wanted if name not in existing]
    aligned = {name: existing[name] for name in _aligned(topics) if name in existing}
    if missing and (differ := _count_problems(topics, aligned, 0)):
        raise TopicsError(f"{differ[0]}. Then create the missing {', '.join(missing)}")
    for name in _aligned(topics):
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
        if lacking := [f"{name}: {words}" for name, (_, words) in (refused | lasting).items() if name not in barely]:
            raise TopicsError(f"topics that cannot be created: {'; '.join(lacking)}")
        async with Cluster.open(kafka) as cluster:
            await _until_known(cluster, wanted)
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
    kept_ms = int(configs.get(topics.requests, {}).get(_RETENTION, _FOR_EVER))
    retention_s = math.inf if kept_ms == _FOR_EVER else kept_ms / 1000
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


def problems(
    topics: Topics,
    existing: Mapping[str, int],
    configs: Mapping[str, Mapping[str, str]],
    replicas: Mapping[str, int],
    horizon_s: int = 0,
    served: int = 0,
    keep_s: int = 0,
) -> list[str]:
    """
    Return the problems of *topics*, see `check`, from the brokers' answers.

    Args:
        existing: number of partitions of each existing topic.
        replicas: number of replicas of each topic that a broker knows.
        served: number of partitions that the service uses; 0 if unknown.
        keep_s: seconds for which workers keep requests; 0 if they do not sweep.
    """
    found = [
        f"topic {name} is missing: create it with kafka-timers topics create"
        for name in dataclasses.astuple(topics)
        if name not in existing
    ]
    found += _count_problems(topics, {name: existing[name] for name in _aligned(topics) if name in existing}, served)
    for name, wanted in _wanted(topics, horizon_s, keep_s).items():
        if name not in existing:
            continue
        for key, (value, why) in wanted.must.items():
            actual = configs[name].get(key, "")
            if not _suffices(key, actual, wanted.least.get(key, value)):
                found.append(f"topic {name} has {key}={actual}: set it to {value} with kafka-configs, because {why}")
        found += _durability_problems(name, configs[name], replicas.get(name, 0))
    schedules = existing.get(topics.schedules, 0)
    return found + [
        f"topic {topics.schedules} has {schedules} partitions and {name} has {existing[name]}: schedules in those "
        "behind are never planned. Put these schedules again; clients of this project leave such partitions alone"
        for name in (topics.oscillator, topics.planned)
        if existing.get(name, schedules) < schedules
    ]


def _durability_problems(name: str, config: Mapping[str, str], replicas: int) -> Iterator[str]:
    # Brokers that are not Kafka may know neither setting.
    least = int(config.get(IN_SYNC_MIN, 0))
    if config.get(_UNCLEAN) == "true":
        yield f"topic {name} has {_UNCLEAN}=true: set it to false, because it lets acknowledged records be lost"
    if 1 < replicas <= least:
        yield (
            f"topic {name} has {replicas} replicas and {IN_SYNC_MIN}={least}: nothing can be written while one of "
            f"their brokers is away. Set it to {replicas - 1}, or give it more replicas"
        )
    if replicas > 2 and least == 1:
        yield f"topic {name} has {replicas} replicas and {IN_SYNC_MIN}=1: one lost broker may lose records. Set it to 2"


def _count_problems(topics: Topics, aligned: Mapping[str, int], served: int) -> list[str]:
    if not served:
        if len(set(aligned.values())) < 2:
            return []
        listed = ", ".join(f"{name} {count}" for name, count in aligned.items())
        return [
            f"partition counts differ ({listed}): a tick must meet the requests of its partition. Add partitions to "
            "those that have fewer (kafka-topics.sh --alter --partitions); or, if some were added by mistake, start "
            "the workers with --partitions and the number before. Delete none of them"
        ]
    found = []
    for name, count in aligned.items():
        if count < served:
            found.append(
                f"topic {name} has {count} partitions and the service runs with {served}: add partitions with "
                f"kafka-topics.sh --alter --topic {name} --partitions {served}"
            )
        elif count > served:
            found.append(
                f"topic {name} has {count} partitions and the service runs with {served}: timers go on in the first "
                f"{served}; requests in the others are rejected as partition-added. Kafka takes no partitions away, "
                f"and {topics.requests} must not be deleted, since it holds all timers: see Partitions that were added "
                "in docs/operate.md"
            )
    return found


def _aligned(topics: Topics) -> tuple[str, ...]:
    return topics.requests, topics.oscillator, topics.sealed


def _suffices(key: str, actual: str, wanted: str) -> bool:
    if key not in _AT_LEAST:
        # "compact, delete" and "delete,compact" are the same policy.
        return {part.strip() for part in actual.split(",")} == {wanted}
    try:
        number = int(actual)
    except ValueError:
        return False
    return number == _FOR_EVER or (int(wanted) != _FOR_EVER and number >= int(wanted))


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
