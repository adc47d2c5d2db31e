"""
Read the state of a service from Kafka alone, without asking a worker or a store. `kafka-timers status` shows it.

The state of a partition comes from its last seals, its ticks and the end of its requests; that of workers and doors
from their consumer groups. All queries run at once, each with a time limit, so a silent broker hides its own data only.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple, TypeVar

from aiokafka.errors import KafkaError

from kafka_timers.adapters import adapter_group
from kafka_timers.adapters.lag import adapter_lags
from kafka_timers.broker import codes
from kafka_timers.broker.bounds import LogBounds
from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.groups import Group, Member, group_of
from kafka_timers.broker.lake_group import lake_progress
from kafka_timers.broker.reading import TopicLog
from kafka_timers.broker.seals import SealLog
from kafka_timers.broker.topics import knowing, unavailable
from kafka_timers.clock import Clock
from kafka_timers.core.callbacks import Lack, topics_in
from kafka_timers.core.takeover import may_wait_below
from kafka_timers.core.wire import (
    OSCILLATOR_HEADER,
    Record,
    Sealed,
    Topics,
    last_second_of,
    latest,
    partitions_in,
    rejection_in,
)
from kafka_timers.errors import BrokerError, TopicsError
from kafka_timers.operate.health import Door, PartitionStatus, Planners, Refused, ServiceStatus, Unavailable, Worker
from kafka_timers.planner import planner_group
from kafka_timers.worker.overdue import LIMIT_S

# Limit of each query; Kafka elects another leader after some 9 s.
_LIMIT_S, _CONNECTING_S = 8.0, 2.0
_LOOK_AGAIN_S = 3.0
_REFUSED_WITHIN_S = 3_600
_REFUSED_MAX = 10_000
_RATE_S = 10

_T = TypeVar("_T")


class _Seen(NamedTuple):
    """State of one partition by its logs; see `PartitionStatus`."""

    seals: list[Sealed]
    tick_age_s: float | None
    ticked_by: str | None
    blocked_s: float
    unread_s: float
    log_records: int
    log_start: int
    held_from: int | None
    held_since_s: float | None
    is_other_log: bool
    missing: tuple[int, int] | None


class _Reading:
    """Queries about one instance of the service."""

    def __init__(self, cluster: Cluster, topics: Topics, clock: Clock) -> None:
        self._cluster = cluster
        self._topics = topics
        self._clock = clock
        self._seals = SealLog(cluster, topics.sealed, _LIMIT_S)

    async def partition(self, number: int) -> _Seen:
        """Return the state of a partition by its logs."""
        seen = await self._look_at(number)
        if seen.unread_s > LIMIT_S:
            # Requests behind a transaction that has just ended are as old, and the next tick reads them.
            await asyncio.sleep(_LOOK_AGAIN_S)
            seen = await self._look_at(number)
        return seen

    async def _look_at(self, number: int) -> _Seen:
        tail, tick = await asyncio.gather(self._seals.tail(number), self._tick(number))
        requests = self._topics.requests
        log = TopicLog(self._cluster, requests, _LIMIT_S)
        start = (await log.bounds.starts([number]))[number]
        stable, end = await log.bounds.end(number), await log.bounds.watermark(number)
        seal, name = latest(tail.seals), None
        blocked_s = await self._blocked_s(number, stable, end)
        unread_s = await self._unread_s(number, seal, start, stable)
        held_from = max(seal.restore_from if seal else 0, start)
        held = await self._record(requests, number, held_from) if held_from < end else None
        if tick is not None:
            name = (dict(tick.headers).get(OSCILLATOR_HEADER) or b"").decode(errors="replace") or None
        return _Seen(
            seals=tail.seals,
            tick_age_s=None if tick is None else self._age_s(tick),
            ticked_by=name,
            blocked_s=blocked_s,
            unread_s=unread_s,
            log_records=end - start,
            log_start=start,
            held_from=held.offset if held else None,
            held_since_s=held.timestamp / 1000 if held else None,
            is_other_log=not await tail.is_of(log, number),
            missing=_missing(tail.seals, start),
        )

    async def _tick(self, number: int) -> Record | None:
        last = await LogBounds(self._cluster, self._topics.oscillator, _LIMIT_S).watermark(number) - 1
        return await self._record(self._topics.oscillator, number, last) if last >= 0 else None

    async def _blocked_s(self, number: int, stable: int, end: int) -> float:
        """
        Return for how long requests of a partition have waited behind an open transaction; 0 where none do.

        Its log can be read up to *stable*, and ends at *end*.
        """
        if end <= stable:
            return 0.0
        # The first record of the transaction, or a newer record if the transaction has ended.
        record = await self._record(self._topics.requests, number, stable)
        return self._age_s(record) if record else 0.0

    async def _unread_s(self, number: int, seal: Sealed | None, start: int, stable: int) -> float:
        """
        Return the age of the first request from *start* on appended before the second of *seal*, not read for it.

        The log can be read up to *stable*.
        """
        if seal is None or stable <= seal.fence:
            return 0.0
        record = await self._record(self._topics.requests, number, max(seal.fence, start), is_committed=True)
        return self._age_s(record) if record and record.timestamp < last_second_of(seal) * 1000 else 0.0

    def _age_s(self, record: Record) -> float:
        return max(self._clock.wall_s() - record.timestamp / 1000, 0.0)

    async def _record(self, topic: str, number: int, offset: int, *, is_committed: bool = False) -> Record | None:
        """Return the first record from *offset* on, where the log goes on; None if only markers follow."""
        log = TopicLog(self._cluster, topic, _LIMIT_S, is_committed=is_committed)
        return next((await log.page(number, offset)).records, None)

    async def refused(self) -> Refused:
        """Return the requests refused within the last hour."""
        log, reasons = TopicLog(self._cluster, self._topics.rejected, _LIMIT_S), Counter[str]()
        last = (0, "")
        from_ms = int((self._clock.wall_s() - _REFUSED_WITHIN_S) * 1000)
        for number in log.numbers:
            offset = await log.bounds.since(number, from_ms)
            if offset is None:
                continue
            end = await log.bounds.end(number)
            while offset < end and reasons.total() < _REFUSED_MAX:
                part = await log.page(number, offset)
                for record in part.records:
                    reason, place = _refusal(record)
                    reasons[reason] += 1
                    last = max(last, (record.timestamp, place))
                offset = part.position
        return Refused(dict(reasons.most_common()), reasons.total() < _REFUSED_MAX, last[1])


def _missing(seals: Sequence[Sealed], start: int) -> tuple[int, int] | None:
    """Return the first and the last offset of those at which requests may wait below *start*, where the log begins."""
    complete = latest(seals)
    if complete is None or start <= complete.restore_from or not may_wait_below(seals, start):
        return None
    return complete.restore_from, start - 1


async def read_status(
    kafka: Kafka, prefix: str, group: str, clock: Clock, *, allowed_topics: str = "*", seal_every_s: float = 5.0
) -> ServiceStatus:
    """
    Return the state of an instance of the service.

    Args:
        clock: gives the time up to which `lag_s` counts. It should agree with the brokers' within a second or two.
        allowed_topics: globs of callback topics, as workers have them. Those topics must have leaders.

    Raises:
        TopicsError: `timer-sealed` does not exist.
    """
    topics, untold = Topics.of(prefix), list[str]()

    async def answer(what: str, question: Awaitable[_T]) -> _T | None:
        try:
            async with asyncio.timeout(_LIMIT_S + _CONNECTING_S):
                return await question
        except TimeoutError:
            untold.append(f"{what}: no answer within {_LIMIT_S + _CONNECTING_S:g} s: look at the brokers")
        except (KafkaError, BrokerError) as error:
            untold.append(f"{what}: {error}")
        return None

    known = [topics.sealed, topics.oscillator, topics.requests, topics.rejected, topics.schedules]
    async with knowing(kafka, known) as cluster:
        numbers = cluster.partitions(topics.sealed)
        if not numbers:
            raise TopicsError(f"topic {topics.sealed} is missing: create it with kafka-timers topics create")
        reading = _Reading(cluster, topics, clock)
        seen, members, lags, refused, lacking, sizes = await asyncio.gather(
            asyncio.gather(*(answer(f"partition {number}", reading.partition(number)) for number in numbers)),
            answer(f"members of group {group}", group_of(cluster, group, _LIMIT_S)),
            answer("doors", adapter_lags(cluster, group)),
            answer(f"refused requests on {topics.rejected}", reading.refused()),
            answer("leaders and replicas of topics", unavailable(cluster)),
            LogBounds(cluster, topics.requests).sizes(),
        )
        planners = await answer("planners of recurring timers", _planners(cluster, topics, group))
        last = {number: latest(each.seals) if each else None for number, each in zip(numbers, seen, strict=True)}
        lake = await answer("progress of the lake", lake_progress(cluster, prefix, last, clock.wall_s()))
        names = sorted({name for name, _, _ in lags or ()})
        readers = await asyncio.gather(
            *(answer(f"door {name}", group_of(cluster, adapter_group(group, name), _LIMIT_S)) for name in names)
        )
    return ServiceStatus(
        group,
        topics.requests,
        _rows(dict(zip(numbers, seen, strict=True)), sizes, members.members if members else (), clock.wall_s()),
        members
        and [
            Worker(_name_of(member), member.host, tuple(sorted(member.partitions.get(topics.oscillator, ()))))
            for member in members.members
        ],
        members is not None and members.is_settled,
        refused,
        _doors(lags or (), dict(zip(names, readers, strict=True))),
        planners,
        _unavailable(lacking or {}, topics, allowed_topics),
        untold,
        seal_every_s,
        lake,
    )


async def _planners(cluster: Cluster, topics: Topics, group: str) -> Planners | None:
    numbers = cluster.partitions(topics.schedules)
    if not numbers:
        return None
    members = (await group_of(cluster, planner_group(group), _LIMIT_S)).members
    bounds = LogBounds(cluster, topics.schedules, _LIMIT_S)
    ends = (await bounds.ends(numbers)).values()
    versions = {member.user_data.decode(errors="replace") for member in members}
    return Planners(len(members), tuple(sorted(versions)), any(ends))


def _name_of(member: Member) -> str:
    """Return the URL that names a worker in seals; for any other member of its group, its client id."""
    try:
        return str(json.loads(member.user_data)["url"])
    except (ValueError, LookupError, TypeError):
        return member.client_id


def _has_alone(member: Member, number: int) -> bool:
    """Tell whether *member* says that its store has requests of partition *number* that have left the log."""
    try:
        return str(number) in json.loads(member.user_data)["alone"]
    except (ValueError, LookupError, TypeError):
        return False


def _rows(
    seen: Mapping[int, _Seen | None], sizes: Mapping[int, int], members: Sequence[Member], now_s: float
) -> list[PartitionStatus]:
    tails = {number: each.seals if each else [] for number, each in seen.items()}
    served = partitions_in(chain.from_iterable(tails.values())) or len(tails)
    rows = status_of({number: tail for number, tail in tails.items() if number < served}, now_s)
    return [
        replace(
            row,
            log_bytes=sizes.get(row.partition),
            kept_by=[_name_of(member) for member in members if _has_alone(member, row.partition)],
            **{name: value for name, value in each._asdict().items() if name != "seals"},
        )
        if (each := seen[row.partition])
        else row
        for row in rows
    ]


def _doors(lags: Sequence[tuple[str, str, int]], readers: Mapping[str, Group | None]) -> list[Door]:
    """Return the state of the doors. A door whose readers are unknown counts as read."""
    counted = {name: 1 if group is None else len(group.members) for name, group in readers.items()}
    return [Door(name, topic, lag, counted[name]) for name, topic, lag in lags]


def _unavailable(found: Mapping[str, Mapping[int, Lack]], topics: Topics, allowed_topics: str) -> list[Unavailable]:
    callbacks, told = topics_in(allowed_topics), []
    for topic in sorted(found):
        is_own = topic in topics
        for has_leader in (False, True):
            lacks = {
                number: lack.away
                for number, lack in found[topic].items()
                if (lack.error != codes.LEADER_NOT_AVAILABLE) is has_leader
            }
            if lacks and (is_own or callbacks.match(topic)):
                away = sorted(set(chain.from_iterable(lacks.values())))
                told.append(Unavailable(topic, sorted(lacks), away, has_leader, is_own))
    return told


def _refusal(record: Record) -> tuple[str, str]:
    """Return the reason for a refusal and the place of the refused record, from the record on `timer-rejected`."""
    rejection = {name: content.decode(errors="replace") for name, content in rejection_in(record.headers).items()}
    topic, partition, offset = (rejection.get(name, "?") for name in ("topic", "partition", "offset"))
    return rejection.get("reason", "no reason is told"), f"{topic} {partition}:{offset}"


def status_of(tails: Mapping[int, Sequence[Sealed]], now_s: float) -> list[PartitionStatus]:
    """
    Return the state of each partition by its seals alone, in the order of their numbers.

    Args:
        tails: last seals of each partition in the order of its log, as `SealLog.seals` returns them.
        now_s: UNIX time up to which `lag_s` counts.
    """
    return [_partition_status(partition, tails[partition], now_s) for partition in sorted(tails)]


def _partition_status(partition: int, seals: Sequence[Sealed], now_s: float) -> PartitionStatus:
    complete = latest(seals)
    last = seals[-1] if seals else None
    fired = next((seal for seal in reversed(seals) if seal.fired), None)
    swept = last.swept[-1] if last and last.swept else None
    return PartitionStatus(
        partition=partition,
        second=last_second_of(complete) if complete else None,
        lag_s=max(0, int(now_s) - last_second_of(complete)) if complete else None,
        pending=last.pending if last else None,
        fired_per_s=_rate(seals),
        lateness_p50_ms=fired.lateness_p50_ms if fired else None,
        lateness_p99_ms=fired.lateness_p99_ms if fired else None,
        lateness_max_ms=fired.lateness_max_ms if fired else None,
        owner=last.worker or None if last else None,
        swept=swept.requests if swept else 0,
        asked_meanwhile=swept.since - swept.below if swept else 0,
        held_alone=last.held_alone if last else 0,
        lost=(last.lost_from, last.lost_to - 1) if last and last.lost_to else None,
    )


def _rate(seals: Sequence[Sealed]) -> float | None:
    """Return the callbacks per second in the last ten seconds of *seals*; None without a seal."""
    if not seals:
        return None
    end_ms = max(seal.end_ms for seal in seals)
    near = [seal for seal in seals if seal.end_ms > end_ms - _RATE_S * 1000]
    # The seals may cover less than ten seconds.
    covered_s = (end_ms - min(seal.first_ms for seal in near)) / 1000
    return sum(seal.fired for seal in near) / min(_RATE_S, max(covered_s, 1))
