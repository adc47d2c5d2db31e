"""
The settings that the service's own topics must have, and those that are advised.

Pure. The worker's way of reading decides them; docs/operate.md explains them.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from kafka_timers.broker.requests import IN_SYNC_MIN
from kafka_timers.core.wire import PLANNED_LAG_MS, Topics

_DAY_MS, _HOUR_MS = 86_400_000, 3_600_000
FOR_EVER = -1
# Time that the request log keeps requests beyond the horizon, so that a time without workers or landings loses nothing.
GRACE_S = 7 * 86_400

RETENTION = "retention.ms"
_UNCLEAN = "unclean.leader.election.enable"
# For these settings a larger value is fine too. All others must be equal.
_AT_LEAST = (RETENTION, "retention.bytes")


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


def wanted_of(topics: Topics, horizon_s: int = 0, keep_s: int = 0) -> dict[str, Wanted]:
    """Return the settings of each of *topics*, for workers with a horizon or that keep requests so long, in seconds."""
    kept_ms = (horizon_s + GRACE_S) * 1000 if horizon_s else FOR_EVER
    # Where workers sweep, nothing older is needed: what waits is repeated. Twice of it bears workers that stand still.
    swept = {RETENTION: str(2 * keep_s * 1000)} if keep_s and not horizon_s else {}
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
                RETENTION: (str(kept_ms), "pending requests would expire before they fire"),
                # The broker's default may limit the bytes.
                "retention.bytes": (str(FOR_EVER), "pending requests would be dropped before they fire"),
            },
            also={},
            least=swept,
        ),
        topics.oscillator: Wanted(
            must={
                "cleanup.policy": ("delete", "compaction would keep one record of every second for ever"),
                "message.timestamp.type": append_time,
                RETENTION: (str(7 * _DAY_MS), "ticks must outlast a time without workers"),
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
            also=dated | {RETENTION: (str(30 * _DAY_MS), "refused requests are kept as long as brokers keep records")},
        ),
        topics.replies: Wanted(
            must={"cleanup.policy": ("delete", "compaction would keep an answer for every timer id for ever")},
            # Clients read their answer at once. The rest of the day is for investigations.
            also=dated | {RETENTION: (str(_DAY_MS), "answers are kept as long as brokers keep records")} | daily,
        ),
        topics.schedules: Wanted(
            must={
                "cleanup.policy": ("compact", "a schedule must never expire"),
                "message.timestamp.type": append_time,
            },
            also={"min.compaction.lag.ms": (str(7 * _DAY_MS), "audits may miss schedules of the last seven days")},
        ),
        topics.planned: Wanted(
            must={"cleanup.policy": ("compact", "the planning of a schedule must never expire")},
            also={
                name: (value, "each takeover of a planner reads more, since each run writes a record")
                for name, value in (("segment.ms", str(_HOUR_MS)), ("min.cleanable.dirty.ratio", "0.1"))
            }
            | {"min.compaction.lag.ms": (str(PLANNED_LAG_MS), "audits may miss the planning of the last hour")},
        ),
        topics.doors: Wanted(
            must={
                "cleanup.policy": ("compact", "the place of a door must never expire"),
                "message.timestamp.type": append_time,
            },
            also=daily,
        ),
    }


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
    Return the problems of *topics*, see `topics.check`, from the brokers' answers.

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
    found += count_problems(topics, existing, served)
    for name, wanted in wanted_of(topics, horizon_s, keep_s).items():
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


def count_problems(topics: Topics, existing: Mapping[str, int], served: int) -> list[str]:
    """
    Return the problems of the *existing* numbers of partitions of topics that must have the same; see `aligned_topics`.

    *served* is what the service uses, 0 if unknown.
    """
    aligned = {name: existing[name] for name in aligned_topics(topics) if name in existing}
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


def aligned_topics(topics: Topics) -> tuple[str, ...]:
    """Return the topics that must have the same number of partitions."""
    return topics.requests, topics.oscillator, topics.sealed


def _suffices(key: str, actual: str, wanted: str) -> bool:
    if key not in _AT_LEAST:
        # "compact, delete" and "delete,compact" are the same policy.
        return {part.strip() for part in actual.split(",")} == {wanted}
    try:
        number = int(actual)
    except ValueError:
        return False
    return number == FOR_EVER or (int(wanted) != FOR_EVER and number >= int(wanted))
