"""
Promises R1 to R6 of recurring timers, held by the shipped planner through random histories.

Schedules are put, paused, skipped and deleted, while brokers are cut off and freeze, answers are lost, and planners are
killed, paused and replaced. The oracle knows `timer-schedule`, what planners have read of it and committed to
`timer-planned`, and the callbacks.

PYTHONPATH=app:oscillator:tests python -m simulation.test_planner_histories SEED tells a history.
"""

import asyncio
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from recurrence_law import law_of, plans_in

from kafka_timers.core.plan_history import Asked, Plan, Planning, Written, unplanned, versions_in
from kafka_timers.core.planning import EDGE_MS, OWN_KEYS, Plans
from kafka_timers.core.schedules import HOLD_PREFIX, CatchUp, Hold, Planned, Schedule, instant_text, next_runs
from kafka_timers.core.wire import Future
from kafka_timers.planner import schedule_log
from simulation.assembly import Process
from simulation.audit import PromiseError
from simulation.kafka import NODES
from simulation.log import Record
from simulation.loop import EPOCH_S
from simulation.test_planners import Planners
from simulation.told import Story, told

_NAMES = (b"a", b"b", b"c")
_TROUBLED_S, _LIVES_S, _ENDS_S = 90, 110, 230
_EPOCH_MS = int(EPOCH_S) * 1000
# A planner reads a change within a second or two; a takeover may wait for a silent broker, and for the epoch before.
_SETTLES_S = 15
# Runs of the one schedule that nobody changes.
_COUNTED, _RUNS = b"counted", 9


class History:
    """One history: its events by chance, and what was promised of it."""

    def __init__(self, seed: int, story: Story) -> None:
        self._rng, self._story, self._kafka = random.Random(seed), story, story.kafka
        self._planners = Planners(story)
        self._jitter_ms = {name: self._rng.choice((0, 0, 4_000)) for name in _NAMES}
        self._running: tuple[Process, asyncio.Task[None]] | None = None
        self._troubled_s: list[int] = []
        self._hosts = 0
        self._holds: dict[bytes, Hold] = defaultdict(Hold)

    def live(self) -> None:
        """Live through it."""
        story, rng = self._story, self._rng
        story.start("a", 0)
        self._begin_planner()
        story.until(2)
        self._put(_COUNTED, self._schedule(_COUNTED, 3, runs_max=_RUNS))
        for second in range(3, _ENDS_S):
            story.until(second + rng.random() * 0.9)
            if second < _LIVES_S:
                for name in _NAMES:
                    if rng.random() < 0.05:
                        self._change(name)
            if second < _TROUBLED_S and rng.random() < 0.1:
                self._troubled_s.append(second)
                kind = rng.choice((self._kill, self._pause, self._replace, self._cut_off, self._freeze, self._lose))
                story.world.say(f"-- {kind.__name__.strip('_')}")
                kind()
            if second == _TROUBLED_S:
                self._heal()
            if second == _ENDS_S - 60:
                told_ms = _EPOCH_MS + int(story.now_s * 1000)
                told = {name: self._next(name, told_ms) for name in (*_NAMES, _COUNTED)}
        self._check()
        self._check_next(told, told_ms)
        self._check_another()
        self._check_planning()

    # --- what people do ----------------------------------------------------------------------------------------------

    def _schedule(self, name: bytes, every_s: int, **more: Any) -> Schedule:
        schedule = Schedule(catch_up=CatchUp.CATCH_UP_ALL, jitter_ms=self._jitter_ms.get(name, 0), **more)
        if 60 % every_s == 0 and self._rng.random() < 0.3:
            schedule.cron.expression = f"*/{every_s} * * * * *"
        else:
            schedule.interval.every_ms = every_s * 1000
        schedule.callback.callBackTopic = "calm"
        return schedule

    def _put(self, key: bytes, message: Schedule | Hold | None) -> None:
        value = None if message is None else message.SerializeToString()
        self._story.world.say(f"{key!r}: {str(message)[:200]!r}")
        self._planners.log.append(Record(key, value), self._kafka.now_ms)

    def _change(self, name: bytes) -> None:
        dice, hold = self._rng.random(), self._holds[name]
        if dice < 0.25:
            hold.paused = not hold.paused
            self._put(HOLD_PREFIX + name, hold)
        elif dice < 0.35:
            now_ms = _EPOCH_MS + int(self._story.now_s) * 1000
            hold.skipped_ms[:] = sorted({*hold.skipped_ms, now_ms + 1000 * self._rng.randrange(60)})
            self._put(HOLD_PREFIX + name, hold)
        else:
            every_s = self._rng.choice((1, 2, 3, 5, 7, 20))
            self._put(name, None if dice > 0.85 else self._schedule(name, every_s))

    # --- trouble -----------------------------------------------------------------------------------------------------

    def _begin_planner(self) -> None:
        self._hosts += 1
        # One with other time zones plans all expressions anew; these have the same runs.
        schedule_log.TZDATA_VERSION = self._rng.choice(("2025a", "2025b"))
        self._running = self._planners.start_for_good(f"p{self._hosts}")

    def _kill(self) -> None:
        process, _ = self._running or (None, None)
        if process:
            self._story.world.loop.pause(process.name)
            self._begin_planner()

    def _pause(self) -> None:
        """It goes on later without knowing, until the group has it end."""
        process, task = self._running or (None, None)
        if process and task:
            loop, for_s = self._story.world.loop, self._rng.choice((0.5, 3.0, 8.0))
            loop.pause(process.name)
            loop.outside(for_s, loop.resume, process.name)
            loop.outside(for_s + self._rng.random(), task.cancel)
            self._begin_planner()

    def _replace(self) -> None:
        _, task = self._running or (None, None)
        if task:
            self._story.world.loop.outside(self._rng.choice((0.0, 0.0, 0.5)), task.cancel)
            self._begin_planner()

    def _cut_off(self) -> None:
        own = self._kafka.own
        log = self._kafka.logs[self._rng.choice((own.schedules, own.planned, own.requests)), 0]
        if not log.out_of_date and not self._story.network.frozen:
            others = [node for node in NODES if node != log.leader]
            log.cut_off(log.leader, self._rng.choice(others))
            self._story.world.loop.outside(self._rng.choice((1.0, 4.0, 12.0)), log.out_of_date.clear)

    def _freeze(self) -> None:
        network = self._story.network
        if not network.frozen:
            node = self._rng.choice((*NODES, self._kafka.coordinator))
            network.freeze(node)
            self._story.world.loop.outside(self._rng.choice((0.5, 2.0, 6.0)), network.thaw, node)

    def _lose(self) -> None:
        kind = self._rng.choice(("batch_is_not_answered", "commit_is_not_answered", "coordinator_fails"))
        self._story.faults.next(kind, self._rng.randrange(3))

    def _heal(self) -> None:
        self._story.faults.end()
        for node in list(self._story.network.frozen):
            self._story.network.thaw(node)
        for log in self._kafka.logs.values():
            log.out_of_date.clear()

    # --- the promises ------------------------------------------------------------------------------------------------

    def _written(self, topic: str) -> list[Written]:
        log = self._kafka.logs[topic, 0]
        return [Written(each.offset, each.timestamp, each.key or b"", each.value) for each in log.committed()]

    def _fired(self) -> Counter[tuple[bytes, str]]:
        came: Counter[tuple[bytes, str]] = Counter()
        for number in (0, 1):
            for record in self._kafka.logs["calm", number].committed():
                headers = dict(record.headers)
                came[headers["timer-schedule"] or b"", (headers["timer-schedule-instant"] or b"").decode()] += 1
        return came

    def _is_troubled(self, moment_ms: int) -> bool:
        moment_s = (moment_ms - _EPOCH_MS) / 1000
        return any(began_s - 1 < moment_s < began_s + _SETTLES_S + EDGE_MS / 1000 for began_s in self._troubled_s)

    def _check(self) -> None:
        end_ms = _EPOCH_MS + int(self._story.now_s * 1000)
        fired, own = self._fired(), self._kafka.own
        versions, plans = versions_in(self._written(own.schedules)), plans_in(self._written(own.planned))
        if twice := [run for run, count in fired.items() if count > 1]:
            raise PromiseError(f"R1: {twice} came more than once")
        for name in _NAMES:
            law = law_of(name, versions[name], plans[name], end_ms, self._is_troubled, self._planners.is_read)
            must, may = (set(map(instant_text, runs)) for runs in law)
            came = {instant for schedule, instant in fired if schedule == name}
            if lost := sorted(must - came):
                raise PromiseError(f"R1: {name!r} lacks {lost}")
            if wrong := sorted(came - may):
                raise PromiseError(f"R2: {name!r} has no right to {wrong}")
        counted = sum(count for (name, _), count in fired.items() if name == _COUNTED)
        if counted != _RUNS:
            raise PromiseError(f"R4: {counted} runs of {_RUNS}")

    def _next(self, name: bytes, now_ms: int) -> dict[int, int]:
        versions = versions_in(self._written(self._kafka.own.schedules))[name]
        if not versions or versions[-1].schedule is None or versions[-1].hold.paused:
            return {}
        plans = plans_in(self._written(self._kafka.own.planned))[name]
        last = versions[-1]
        planned = plans[-1][1] if plans else None
        return next_runs(name.decode(), last.schedule, now_ms, 999, last.hold, planned)

    def _check_next(self, told: dict[bytes, dict[int, int]], told_ms: int) -> None:
        fired, end_ms = self._fired(), _EPOCH_MS + int(self._story.now_s * 1000)
        for name, runs in told.items():
            came = {instant for schedule, instant in fired if schedule == name}
            soon = {instant_text(run_ms) for run_ms, due in runs.items() if told_ms + 2_000 < due < end_ms - 5_000}
            later = {instant for instant in came if instant > instant_text(told_ms + 2_000)}
            if wrong := sorted((soon - came) | (later - set(map(instant_text, runs)))):
                raise PromiseError(f"R5: {name!r} was told otherwise of {wrong}")

    def _check_another(self) -> None:
        """Another planner, which knows the topics alone, has nothing to ask for that this one has not."""
        plans, now_ms = Plans(), _EPOCH_MS + int(self._story.now_s) * 1000
        for record in self._kafka.logs[self._kafka.own.planned, 0].committed():
            if not (record.key or b"").startswith(b"\0"):
                plans.planned(record.key or b"", record.value)
        for record in self._planners.log.records:
            plans.schedule(record.key or b"", record.offset, record.timestamp, record.value)
        plans.loaded(self._planners.log.end)
        step = plans.step(now_ms - 2_000)
        if step is None:
            return
        plans.fill(step, 1 << 20)
        if step.requests:
            raise PromiseError(f"R6: another planner would write {step.requests[:3]}")

    def _check_planning(self) -> None:
        """Each plan follows from the one before, and has its requests."""
        end_ms, own = _EPOCH_MS + int(self._story.now_s * 1000), self._kafka.own
        versions = versions_in(self._written(own.schedules))
        plans, asked = defaultdict(list), defaultdict(list)
        for each in self._written(own.planned):
            if not each.key.startswith(OWN_KEYS):
                planned = None if each.value is None else Planned.FromString(each.value)
                plans[each.key].append(Plan(each.offset, each.appended_ms, each.appended_ms, planned))
        for record in self._kafka.logs[own.requests, 0].committed():
            timer_id = Future.FromString(record.value or b"").timerId.encode()
            about = Asked(0, record.offset, record.timestamp, timer_id, record.key, record.value)
            asked[timer_id.rpartition(b"@")[0]].append(about)
        for name in versions:
            # With other time zones, a planner plans cron expressions anew.
            if any(each.schedule is not None and each.schedule.HasField("cron") for each in versions[name]):
                continue
            planning = Planning(name, versions[name], (), asked[name], 0, end_ms)
            if found := [*planning.faults(plans[name]), *unplanned(planning.left())]:
                raise PromiseError(f"its planning is not as it was: {found[:3]}")
            if planning.undecided:
                raise PromiseError(f"{planning.undecided} plans are undecided")


def lived(seed: int, trace: Callable[[str], None] | None = None) -> None:
    """Live a history, which is the same for the same *seed*."""
    with mock.patch.object(schedule_log, "TZDATA_VERSION"), told(seal_every_s=5, trace=trace) as story:
        History(seed, story).live()


def _first_failure(seeds: range) -> str | None:
    for seed in seeds:
        try:
            lived(seed)
        except Exception as error:
            return f"history {seed}: {type(error).__name__}: {error}"
    return None


def test_each_run_fires_once_through_random_histories(histories: int | None) -> None:
    # One takes a second.
    assert _first_failure(range(100 if histories is None else histories // 16)) is None


@pytest.mark.chaos
@pytest.mark.parametrize("part", range(8))
def test_each_run_fires_once_through_a_long_campaign_of_the_planner(part: int) -> None:
    assert _first_failure(range(100 + part, 10_000, 8)) is None


if __name__ == "__main__":
    lived(int(sys.argv[1]), print)
