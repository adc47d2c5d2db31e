"""
The history of one schedule, judged: whether each of its plans follows from the one before, and has its requests.

Pure. A planner writes a plan and the requests of its runs in one transaction, and all of it follows from the plan
before, the records of `timer-schedule` up to the one that it names, and the second of a tick. So each plan is planned
again, by the planner's own code. The tick stands nowhere, but a plan tells it in most cases; else all seconds before
its append are tried. All moments are UNIX milliseconds.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from kafka_timers.core.planned_runs import asked_in
from kafka_timers.core.planning import AHEAD_MS, EDGE_MS, STEP_BYTES, Plans, Write, digest_of, stride_ms
from kafka_timers.core.schedules import HOLD_PREFIX, Hold, Planned, Schedule, hold_from, instant_text, run_id
from kafka_timers.core.wire import PLANNED_LAG_MS, SCHEDULE_RUN_HEADER, Future

# A request has about the time of its plan.
NEAR_MS = 60_000
# A planner writes at most so long after the tick that it plans by, if ticks come. Clocks differ by the other.
_TICK_MS, _CLOCKS_MS = 90_000, 5_000
# A planner needs a second or two for a change, and longer if it takes over.
_READ_MS = 60_000
_ALL_RECORDS = 1 << 30
# No request of a run has so many bytes, so a planner refuses each schedule.
_NOTHING_FITS = 0


class Written(NamedTuple):
    """A committed record of `timer-schedule` or of `timer-planned`."""

    offset: int
    appended_ms: int
    key: bytes
    value: bytes | None


class Version(NamedTuple):
    """What a schedule was from a record on: its value, None if there is none, and its hold's."""

    offset: int
    appended_ms: int
    value: bytes | None
    held: bytes | None

    @property
    def schedule(self) -> Schedule | None:
        """The schedule, if there is one."""
        return None if self.value is None else Schedule.FromString(self.value)

    @property
    def hold(self) -> Hold:
        """What is held back of it."""
        return hold_from(self.held)


class Plan(NamedTuple):
    """A record of `timer-planned`, and when it was landed; None for *planned* ends the plan."""

    offset: int
    appended_ms: int
    landed_ms: int
    planned: Planned | None


class Asked(NamedTuple):
    """A record of `timer-request` that is about a run. Key and value are None if they were forgotten."""

    partition: int
    offset: int
    appended_ms: int
    timer_id: bytes
    key: bytes | None
    value: bytes | None


class Fault(NamedTuple):
    """A fault of planning, about a record of `timer-request` if it has one."""

    kind: str
    at_ms: int
    about: Asked | None
    words: str


def versions_in(records: Iterable[Written]) -> dict[bytes, list[Version]]:
    """Return the versions of each schedule in the *records* of a partition of `timer-schedule`, in their order."""
    found: dict[bytes, list[Version]] = defaultdict(list)
    for record in records:
        name = record.key.removeprefix(HOLD_PREFIX)
        _, _, value, held = found[name][-1] if found[name] else Version(-1, 0, None, None)
        value, held = (record.value, held) if record.key == name else (value, record.value)
        found[name].append(Version(record.offset, record.appended_ms, value, held))
    return found


class Planning:
    """
    The planning of schedule *name* between two moments, in which cron expressions were read by the present time zones.

    Args:
        versions: all of it, as far as is known.
        refused: offsets of the records on `timer-schedule` that were rejected.
        asked: the requests and cancels about its runs, of a minute more on both sides.
        from_ms, to_ms: up to *to_ms* all records are known.

    Attributes:
        undecided: number of plans that do not follow from the one before, where compaction may have deleted others in
            between.
    """

    def __init__(
        self,
        name: bytes,
        versions: Sequence[Version],
        refused: Collection[int],
        asked: Iterable[Asked],
        from_ms: int,
        to_ms: int,
    ) -> None:
        self._name = name
        self._versions = versions
        self._at = {version.offset: version for version in versions}
        self._refused = refused
        self._from_ms, self._to_ms = from_ms, to_ms
        self._asked: Mapping[bytes, list[Asked]] = defaultdict(list)
        for each in sorted(asked, key=lambda each: each.appended_ms):
            self._asked[each.timer_id].append(each)
        # Between these moments, plans are missing.
        self._unknown: list[tuple[int, int]] = []
        # By these nobody has planned what is planned by their offsets.
        self._others: list[Version] = []
        self.undecided = 0

    def faults(self, plans: Sequence[Plan]) -> Iterator[Fault]:
        """Yield the faults of *plans*, the last one before `from_ms` and all later ones, in their order."""
        before = Plan(-1, 0, 0, None)
        for plan in plans:
            if plan.appended_ms >= self._from_ms - NEAR_MS:
                yield from (each for each in self._follows(before, plan) if each.at_ms >= self._from_ms)
            before = plan
        yield from self._stands(before)

    def left(self) -> list[Asked]:
        """Return the requests that planners make and that none of the plans has, once all of these are judged."""
        every = (each for some in self._asked.values() for each in some if not self._is_unknown(each))
        return [each for each in every if self._from_ms <= each.appended_ms <= self._to_ms and _is_planned(each)]

    # --- one plan after the other -------------------------------------------------------------------------------------

    def _follows(self, before: Plan, plan: Plan) -> Iterator[Fault]:
        planned, name = plan.planned, self._name
        likely: tuple[list[Asked], list[Write]] | None = None
        should: Planned | None = None
        for writes, result, is_sure in self._steps(before.planned, plan):
            should = should or result
            if result == planned:
                found, lacks = self._matched(writes, plan)
                # At several ticks the plan may be the same: that one counts which has most of the requests.
                if likely is None or (not lacks, len(found)) > (not likely[1], len(likely[0])):
                    likely = found, lacks
                if is_sure and not lacks:
                    break
        taken, lacks = likely or ([], [])
        for asked in taken:
            self._asked[asked.timer_id].remove(asked)
        if likely and not lacks:
            return
        version = self._at.get(planned.schedule) if planned else None
        is_other = bool(planned and version and planned.digest != digest_of(version.value, version.held))
        if is_other or not self._is_next(before, plan) or (planned and not version):
            self._unknown.append((before.appended_ms, plan.appended_ms))
            if not is_other:
                self.undecided += plan.appended_ms >= self._from_ms
            elif version and version not in self._others:
                self._others.append(version)
                words = f"is not planned by its record at offset {version.offset} of timer-schedule"
                yield Fault("schedule", plan.appended_ms, None, f"schedule {name.decode(errors='replace')} {words}")
            return
        for write in lacks:
            near = self._near(write.name, plan)
            words = "is asked for otherwise than its schedule says" if near else "was planned, and not asked for"
            yield Fault("run", plan.appended_ms, next(iter(near), None), f"run {write.name.decode()} {words}")
            for asked in near:
                self._asked[write.name].remove(asked)
        if likely:
            return
        where = f"schedule {name.decode(errors='replace')}: its plan at offset {plan.offset} of timer-planned"
        have, wanted = ({*asked_in(each)} if each else set() for each in (planned, should))
        for run_ms in sorted(wanted - have):
            yield Fault("run", plan.appended_ms, None, f"{where} passes over the run of {instant_text(run_ms)}")
        if not wanted - have:
            words = "does not follow from its schedule and the plan before"
            yield Fault("schedule", plan.appended_ms, None, f"{where} {words}")

    def _matched(self, writes: Sequence[Write], plan: Plan) -> tuple[list[Asked], list[Write]]:
        """Return the requests and cancels that are those of *writes*, and the writes without any."""
        found, lacks = list[Asked](), list[Write]()
        for write in writes:
            same = (
                each
                for each in self._near(write.name, plan)
                if each not in found and (each.value is None or (each.key, each.value) == write[1:])
            )
            one = next(same, None)
            if one is None:
                lacks.append(write)
            else:
                found.append(one)
        return found, lacks

    def _near(self, timer_id: bytes, plan: Plan) -> list[Asked]:
        some = self._asked.get(timer_id, ())
        return [each for each in some if abs(each.appended_ms - plan.appended_ms) <= NEAR_MS]

    def _is_next(self, before: Plan, plan: Plan) -> bool:
        """Tell whether no plan between the two can have been deleted before it was landed."""
        return plan.landed_ms - self._due_ms(before) <= PLANNED_LAG_MS

    def _due_ms(self, plan: Plan) -> int:
        """Return when the plan behind *plan* is due: at its next run or with its next change, or never."""
        planned = plan.planned
        changes = (
            each.appended_ms
            for each in self._versions
            if (each.offset > planned.schedule if planned else each.appended_ms >= plan.appended_ms - _READ_MS)
        )
        wakes_ms = None
        if planned and (version := self._at.get(planned.schedule)):
            wakes_ms = _plans_of(self._name, planned, version).wakes_ms
        return min((each for each in (next(changes, None), wakes_ms) if each is not None), default=self._to_ms)

    def _is_unknown(self, asked: Asked) -> bool:
        return any(since - NEAR_MS <= asked.appended_ms <= to + NEAR_MS for since, to in self._unknown)

    # --- the plan that is the last one --------------------------------------------------------------------------------

    def _stands(self, last: Plan) -> Iterator[Fault]:
        """Yield a fault if more had to follow by now."""
        planned, where = last.planned, f"schedule {self._name.decode(errors='replace')}"
        if planned and planned.next_ms and planned.next_ms + EDGE_MS < self._to_ms:
            words = f"nobody has asked for its run of {instant_text(planned.next_ms)}, or any later one"
            yield Fault("schedule", max(planned.next_ms, self._from_ms), None, f"{where} has stopped: {words}")
            return
        exists = planned is not None
        for version in self._versions:
            is_read = planned is not None and version.offset <= planned.schedule
            if planned is None:
                is_read = version.appended_ms <= last.appended_ms
            # A hold of no schedule, or a delete of none, is no change.
            is_change = version.value is not None or exists
            exists = version.value is not None
            if is_change and not is_read and version.appended_ms + _READ_MS < self._to_ms:
                at_ms = max(version.appended_ms, self._from_ms)
                words = f"its record at offset {version.offset} of timer-schedule was never planned"
                yield Fault("schedule", at_ms, None, f"{where} has stopped: {words}")
                return

    # --- steps that a planner may have made ---------------------------------------------------------------------------

    def _steps(self, before: Planned | None, plan: Plan) -> Iterator[tuple[list[Write], Planned | None, bool]]:
        """
        Yield the requests and the plan that a planner may have written behind *before*, and whether the tick is sure.
        """
        offset = plan.planned.schedule if plan.planned else None
        version = self._at.get(-1 if offset is None else offset)
        if offset is None:
            # The plan of a deleted schedule has ended.
            gone = (each for each in self._versions if each.value is None and each.appended_ms <= plan.appended_ms)
            version = max(gone, default=None)
        if version is None:
            return
        is_refused = version.offset in self._refused
        for now_ms, is_sure in _moments(self._name, plan):
            for limits in ({}, {"bytes_max": _NOTHING_FITS}) if is_refused else ({},):
                for begins in (True, False):
                    plans = _plans_of(self._name, before, version, **limits)
                    # A planner that begins plans anew what is deleted.
                    if not begins or plans.loaded(version.offset + 1):
                        for requests, planned in self._planned_at(plans, now_ms, plan, is_refused=is_refused):
                            yield requests, planned, is_sure

    def _planned_at(
        self, plans: Plans, now_ms: int, plan: Plan, *, is_refused: bool
    ) -> Iterator[tuple[list[Write], Planned | None]]:
        """Yield what a planner writes at a tick; and what if other schedules fill its step as soon as *plan* tells."""
        size = 0
        while step := plans.step(now_ms):
            step.size = size
            plans.fill(step, _ALL_RECORDS)
            if self._name not in step.planned or (step.refused and not is_refused):
                return
            value = step.planned[self._name]
            result = None if value is None else Planned.FromString(value)
            yield step.requests, result
            size = 0 if size or result == plan.planned else _room(self._name, step.requests, plan.planned)
            if not size:
                return


def _room(name: bytes, requests: Iterable[Write], planned: Planned | None) -> int:
    """Return the size at which a step begins that is full once it has the last run of *planned*; 0 if it has none."""
    last, size = run_id(name.decode(), planned.planned_ms).encode() if planned else b"", STEP_BYTES
    for write in requests:
        # A cancel, which has an empty key, does not count.
        size -= len(write.value) if write.key else 0
        if write.name == last:
            return size
    return 0


def unplanned(left: Iterable[Asked]) -> Iterator[Fault]:
    """Yield a fault for each request that is `Planning.left`, whichever partition its schedule lies in."""
    for each in left:
        name = each.timer_id.decode(errors="replace")
        yield Fault("run", each.appended_ms, each, f"run {name} is asked for, and no plan has it")


def _plans_of(name: bytes, before: Planned | None, version: Version, **limits: int) -> Plans:
    plans = Plans(**limits)
    if before is not None:
        plans.planned(name, before.SerializeToString())
    if version.held is not None:
        plans.schedule(HOLD_PREFIX + name, version.offset, version.appended_ms, version.held)
    plans.schedule(name, version.offset, version.appended_ms, version.value)
    return plans


def _moments(name: bytes, plan: Plan) -> Iterator[tuple[int, bool]]:
    """
    Yield the ticks by which *plan* may have been made: those that it tells, then all before its append.

    One that it tells, and that is near its append, is sure.
    """
    second_ms = plan.appended_ms // 1000 * 1000
    near = range(second_ms + _CLOCKS_MS, second_ms - _TICK_MS, -1000)
    told = set[int]()
    if planned := plan.planned:
        ahead_ms = AHEAD_MS + stride_ms(name)
        told = {planned.planned_ms - ahead_ms, planned.planned_ms - EDGE_MS, planned.cancelled_ms - EDGE_MS}
    for now_ms in sorted((each for each in told if not each % 1000 and 0 < each <= near.start), reverse=True):
        yield now_ms, now_ms >= second_ms - _CLOCKS_MS
    yield from ((now_ms, False) for now_ms in near if now_ms > 0 and now_ms not in told)


def _is_planned(asked: Asked) -> bool:
    """Tell whether a request is one that planners make: with the number of its run, and on a condition."""
    if asked.value is None:
        return False
    future = Future.FromString(asked.value)
    return bool(future.condition) and any(each.key == SCHEDULE_RUN_HEADER for each in future.headers)
