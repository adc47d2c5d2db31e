"""
Find the problems of a service from its state on Kafka, each with the step to take. Pure.

One cause gives one sentence. When no ticks come, or no worker runs, the partitions that stand still for that reason
are not listed as well.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kafka_timers.core.lake_progress import LakeProgress
from kafka_timers.settings import PLANNED_HORIZON_S
from kafka_timers.worker.overdue import LIMIT_S, Overdue, is_unserved, oldest_due

# Oscillators give each other up for dead after less time.
_TICK_LIMIT_S = 3.0


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """State of one partition. A field is None if Kafka does not tell it."""

    partition: int
    second: int | None = None
    """Last second that is completely sealed, in UNIX seconds."""
    lag_s: int | None = None
    """Whole seconds from `second` until now. A partition in which nothing is due is sealed only every few seconds."""
    pending: int | None = None
    """Number of pending requests."""
    lateness_p50_ms: int | None = None
    lateness_p99_ms: int | None = None
    lateness_max_ms: int | None = None
    """Milliseconds from a callback's second to its sending, from the last seal read that fired anything."""
    owner: str | None = None
    """URL and name of the worker that wrote the last seal."""
    tick_age_s: float | None = None
    """Seconds since the last tick of the partition was appended."""
    ticked_by: str | None = None
    """Oscillator that wrote the last tick, as the tick says."""
    blocked_s: float = 0.0
    """Seconds that requests have waited behind an open transaction; 0 where none wait."""
    unread_s: float = 0.0
    """Age in seconds of the first request accepted before the last sealed second and not read for it; 0 if none."""
    fired_per_s: float | None = None
    """Callbacks per second in the last ten seconds of the seals that were read."""
    log_records: int | None = None
    """Number of offsets that `timer-request` keeps."""
    log_start: int | None = None
    """First offset that `timer-request` keeps; all records before it were given back."""
    log_bytes: int | None = None
    """Bytes of `timer-request`, without its other replicas. None if brokers do not tell this user."""
    held_from: int | None = None
    """Offset of the first request that may still be needed; none before it is. None without one."""
    held_since_s: float | None = None
    """UNIX time of its append."""
    swept: int = 0
    """Number of timers that the last sweep has written once more, so that the log before may go."""
    asked_meanwhile: int = 0
    """Number of records that were written in half of `--keep-s` before that sweep, by clients for the most part."""
    is_other_log: bool = False
    """True if its seals are of another topic than the `timer-request` that is there."""
    held_alone: int = 0
    """Of `pending`, requests that have left `timer-request` and wait in the store of `owner` alone."""
    lost: tuple[int, int] | None = None
    """First and last of the offsets that `timer-request` had lost before `owner` could read them."""
    missing: tuple[int, int] | None = None
    """First and last of the offsets at which requests may wait by the last seal, and which `timer-request` has lost."""
    kept_by: Sequence[str] = field(default_factory=list)
    """URLs of members of the group that say that their store has requests which `timer-request` has lost."""


@dataclass(frozen=True, slots=True)
class Worker:
    """A member of the workers' group: the URL that names it in seals, its host, and its partitions."""

    url: str
    host: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Planners:
    """
    The planners of recurring timers.

    Attributes:
        count: number of members of their group.
        tzdata: versions of their time zones, sorted.
        has_schedules: whether anything was ever written to `timer-schedule`.
    """

    count: int
    tzdata: tuple[str, ...]
    has_schedules: bool


@dataclass(frozen=True, slots=True)
class Refused:
    """
    Requests refused in the last hour.

    Attributes:
        is_all: False if there are more than were counted.
        last: topic, partition and offset of the last refused request, as its rejection says; empty if there is none.
    """

    reasons: Mapping[str, int] = field(default_factory=dict)
    is_all: bool = True
    last: str = ""


@dataclass(frozen=True, slots=True)
class Door:
    """A topic of a door: the number of offsets that are not read yet, and the number of workers that read it."""

    door: str
    topic: str
    lag: int
    readers: int


@dataclass(frozen=True, slots=True)
class Unavailable:
    """
    Partitions of a topic that take nothing.

    Attributes:
        away: brokers that hold a replica of them and are away or behind.
        has_leader: whether they lack replicas in sync; else a leader.
        is_own: whether the topic is one of the service's own.
    """

    topic: str
    partitions: Sequence[int]
    away: Sequence[int]
    has_leader: bool = False
    is_own: bool = True


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """
    State of an instance of the service.

    Attributes:
        requests: name of `timer-request`.
        partitions: partitions in the order of their numbers.
        workers: members of the group; None if they are unknown.
        is_settled: whether the group has assigned its partitions to its members.
        refused: refused requests; None if they could not be read.
        doors: doors that have read anything.
        planners: planners of recurring timers; None if they are unknown, or `timer-schedule` does not exist.
        unavailable: topics that the service may write to and that have partitions which take nothing.
        untold: facts that could not be read, each with the reason.
        seal_every_s: longest time between two seals of a partition in which nothing is due.
        lake: progress of the lake; None if it is unknown.
    """

    group: str
    requests: str
    partitions: Sequence[PartitionStatus]
    workers: Sequence[Worker] | None = ()
    is_settled: bool = True
    refused: Refused | None = None
    doors: Sequence[Door] = ()
    planners: Planners | None = None
    unavailable: Sequence[Unavailable] = ()
    untold: Sequence[str] = ()
    seal_every_s: float = 5.0
    lake: LakeProgress | None = None


def _problems_of_planners(planners: Planners | None, horizon_s: int) -> list[str]:
    if planners is None or not planners.has_schedules:
        return []
    if not planners.count:
        return [
            "no planner plans recurring timers: start workers without --no-planner, or processes of "
            "`kafka-timers planner`"
        ]
    if len(planners.tzdata) > 1:
        return [
            f"planners have time zones of different versions ({', '.join(planners.tzdata)}): install the same tzdata "
            "for all"
        ]
    if 0 < horizon_s < PLANNED_HORIZON_S:
        return [
            f"planners ask for recurring timers up to 80 s ahead, and a horizon of {horizon_s} s may leave all of them "
            f"to the lake: give workers a --horizon-s of {PLANNED_HORIZON_S} or more"
        ]
    return []


def overdue_of(row: PartitionStatus, requests: str, seal_every_s: float) -> Overdue:
    """
    Return how long accepted requests of a partition may have been due without firing, and the reason.

    Every request that was read for the last sealed second has fired. A partition that is sealed as often as it should
    be gives 0, unless requests wait behind an open transaction or were not read. A missing seal adds nothing.
    *requests* is the name of `timer-request`.
    """
    lag_s = row.lag_s or 0
    unserved_s = float(lag_s) if is_unserved(lag_s, seal_every_s) else 0.0
    return oldest_due(
        requests,
        row.partition,
        row_s=0.0,
        blocked_s=row.blocked_s,
        unread_s=row.unread_s,
        proof_s=0.0,
        unserved_s=unserved_s,
    )


def problems_of(found: ServiceStatus) -> list[str]:
    """Return the problems, one sentence each with the step to take. A cause comes before its effects."""
    return [
        *found.untold,
        *map(_unavailable, found.unavailable),
        *_of_other_logs(found),
        *_of_gaps(found),
        *_without_ticks(found.partitions),
        *_without_workers(found),
        *_partitions(found),
        *_of_the_lake(found),
        *(
            f"door {door.door}: no worker reads {door.topic}, and {door.lag} records of it wait: start workers with "
            f"--door {door.door}={door.topic}"
            for door in found.doors
            if door.lag and not door.readers
        ),
        *_problems_of_planners(found.planners, found.lake.horizon_s if found.lake else 0),
    ]


def _unavailable(found: Unavailable) -> str:
    away = f"start {_named('broker', found.away)} again" if found.away else "look at the brokers"
    lacks = "too few replicas are in sync" if found.has_leader else "no broker leads"
    waits = "Timers there wait" if found.is_own else "Its callbacks are sent later"
    return f"{found.topic}: {_named('partition', found.partitions)} cannot be written, {lacks}: {away}. {waits}"


def _of_other_logs(found: ServiceStatus) -> Iterator[str]:
    if numbers := [row.partition for row in found.partitions if row.is_other_log]:
        yield (
            f"{found.requests} is not the log that {_named('partition', numbers)} fired from, and nothing fires: it "
            "was made anew, restored or cut by an unclean election. See kafka-timers log show, and say what it is"
        )


def _of_gaps(found: ServiceStatus) -> Iterator[str]:
    for row in found.partitions:
        where = f"partition {row.partition}"
        if row.held_alone:
            yield (
                f"{where}: {row.held_alone} timers have left {found.requests} and wait in the store of {row.owner} "
                "alone: keep its disk until they have fired, and look at the topic's retention"
            )
        elif row.missing and _waits_for_a_store(row, found):
            first, last = row.missing
            who = (
                f"{' and '.join(row.kept_by)} has some of them in its store: keep its disk, and look at its /readyz"
                if row.kept_by
                else "no member of the group has them in its store: start the worker that has, with its disk"
            )
            yield (
                f"{where}: {found.requests} has lost its offsets {first} to {last} ({last - first + 1}), where timers "
                f"may wait; {who}"
            )
        if row.lost:
            first, last = row.lost
            yield (
                f"{where}: {found.requests} has lost its offsets {first} to {last} ({last - first + 1}), and no store "
                "had the timers that waited there: their senders have to send them again"
            )


def _waits_for_a_store(row: PartitionStatus, found: ServiceStatus) -> bool:
    # An owner looks where the log begins every few seconds, and its seals tell then.
    return row.missing is not None and not row.held_alone and not row.is_other_log and _is_late(row, found)


def _has_no_ticks(row: PartitionStatus) -> bool:
    return row.tick_age_s is None or row.tick_age_s > _TICK_LIMIT_S


def _without_ticks(rows: Sequence[PartitionStatus]) -> Iterator[str]:
    silent = [row for row in rows if _has_no_ticks(row)]
    if silent:
        ages_s = [row.tick_age_s for row in silent if row.tick_age_s is not None]
        since = f"for {min(ages_s):.0f} s" if ages_s else "yet"
        which = "" if len(silent) == len(rows) else f" in {_named('partition', [row.partition for row in silent])}"
        yield (
            f"no tick{which} {since}, and without ticks nothing fires: start kafka-timers oscillator; if it runs, its "
            "/readyz says why. A clock of this host that is ahead looks the same"
        )


def _has_no_workers(found: ServiceStatus) -> bool:
    return found.workers is not None and not found.workers


def _without_workers(found: ServiceStatus) -> Iterator[str]:
    if not _has_no_workers(found):
        return
    sealing = sorted({row.owner for row in found.partitions if row.owner and not _is_late(row, found)})
    if sealing:
        yield (
            f"group {found.group} has no members, but {', '.join(sealing)} fires: workers of another group? Say which "
            "one with --group"
        )
    else:
        yield f"no worker is a member of group {found.group}, so nothing fires: start kafka-timers worker"


def _of_the_lake(found: ServiceStatus) -> Iterator[str]:
    # Promote goes by ticks too.
    if found.lake and found.lake.problem and not all(map(_has_no_ticks, found.partitions)):
        yield found.lake.problem


def _is_late(row: PartitionStatus, found: ServiceStatus) -> bool:
    return row.second is None or overdue_of(row, found.requests, found.seal_every_s).age_s > LIMIT_S


def _partitions(found: ServiceStatus) -> Iterator[str]:
    owned = {number for worker in found.workers or () for number in worker.partitions}
    for row in found.partitions:
        overdue, where = overdue_of(row, found.requests, found.seal_every_s), f"partition {row.partition}"
        if row.is_other_log or _waits_for_a_store(row, found):
            continue
        if overdue.age_s > LIMIT_S and overdue.why:
            yield f"{where}: {overdue.why}"
        elif _has_no_ticks(row) or _has_no_workers(found):
            continue
        elif found.workers and found.is_settled and row.partition not in owned:
            yield (
                f"no worker owns {where}, though group {found.group} has members: look for errors of `aiokafka` in "
                "the logs of the workers"
            )
        elif row.second is None:
            yield (
                f"{where} was never sealed, or its seals are gone: /readyz and the log of its worker say why, and "
                "kafka-timers log show whether it waits for you"
            )
        elif overdue.age_s > LIMIT_S:
            last_owner = f"; {row.owner} fired there last" if row.owner else ""
            yield (
                f"{where} stands still since second {row.second}, {row.lag_s} s ago: /readyz and the log of its "
                f"worker say why{last_owner}"
            )


def _named(what: str, numbers: Sequence[int]) -> str:
    return f"{what}{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
