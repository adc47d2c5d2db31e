"""A planner of one partition without brokers: what it writes as time goes by, in the form that `plan_history` takes."""

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from kafka_timers.core.plan_history import Asked, Plan, Version, Written, versions_in
from kafka_timers.core.planning import STEP_BYTES, Plans
from kafka_timers.core.schedules import HOLD_PREFIX, Hold, Planned, Schedule


@dataclass
class PlannerStandIn:
    """
    A planner, and the topics that it reads and writes.

    Attributes:
        step_bytes: so many bytes of a step are those of other schedules.
        begins: the first offset on both topics.
    """

    bytes_max: int = 1_000_000
    step_bytes: int = 0
    begins: int = 0
    schedules: list[Written] = field(default_factory=list)
    planned: list[Written] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    plans: Plans = field(default_factory=Plans)

    def __post_init__(self) -> None:
        self.plans = Plans(self.bytes_max)

    def put(self, key: bytes, message: Schedule | Hold | None, at_ms: int) -> None:
        """Append a record of `timer-schedule`, which the planner reads with its next step."""
        value = None if message is None else message.SerializeToString()
        self.schedules.append(Written(self.begins + len(self.schedules) * 3, at_ms, key, value))
        offset, appended_ms, key, value = self.schedules[-1]
        self.plans.schedule(key, offset, appended_ms, value)

    def hold(self, name: bytes, at_ms: int, **hold: object) -> None:
        """Append what is held back of a schedule."""
        self.put(HOLD_PREFIX + name, Hold(**hold), at_ms)  # type: ignore[arg-type]

    def tick(self, second: int, after_ms: int = 300) -> None:
        """Plan by a tick, and write so long after it."""
        at_ms = second * 1000 + after_ms
        while step := self.plans.step(second * 1000):
            step.size = self.step_bytes
            self.plans.fill(step, 1 << 20)
            for name, key, value in step.requests:
                self.asked.append(Asked(0, len(self.asked), at_ms, name, key, value))
            for key, plan in step.planned.items():
                self.planned.append(Written(self.begins + len(self.planned) * 2, at_ms, key, plan))
            self.refused += [each.offset for each in step.refused]
            self.plans.written(step)

    def ticks(self, first: int, last: int) -> None:
        """Plan by each tick of these seconds."""
        for second in range(first, last + 1):
            self.tick(second)

    def restart(self) -> None:
        """Have another planner take over."""
        self.plans = Plans(self.bytes_max)
        for each in self.planned:
            self.plans.planned(each.key, each.value)
        latest = {each.key: each for each in self.schedules}
        for each in sorted(latest.values()):
            self.plans.schedule(each.key, each.offset, each.appended_ms, each.value)
        self.plans.loaded(self.begins + len(self.schedules) * 3)

    def versions(self) -> dict[bytes, list[Version]]:
        """Return the versions of each schedule."""
        return versions_in(self.schedules)

    def plans_of(self, name: bytes) -> list[Plan]:
        """Return the plans of schedule *name*, each landed as it was written."""
        rows = (each for each in self.planned if each.key == name)
        return [
            Plan(each.offset, each.appended_ms, each.appended_ms, each.value and Planned.FromString(each.value))
            for each in rows
        ]

    def asked_of(self, name: bytes) -> list[Asked]:
        """Return the requests and cancels of its runs."""
        found = defaultdict(list)
        for each in self.asked:
            found[each.timer_id.rpartition(b"@")[0]].append(each)
        return found[name]


def schedule(every_s: int = 10, payload: bytes = b"v", **more: object) -> Schedule:
    message = Schedule(**more)  # type: ignore[arg-type]
    message.interval.every_ms = every_s * 1000
    message.callback.callBackTopic, message.callback.callBack = "t", payload
    return message


def lived(rng: random.Random, start_s: int, names: Sequence[bytes] = (b"a", b"b", b"c")) -> tuple[PlannerStandIn, int]:
    """Return a planner that has lived through changes, outages and takeovers, and its last second."""
    planner = PlannerStandIn(step_bytes=rng.choice((0, 0, STEP_BYTES - 200)))
    paused = dict.fromkeys(names, False)
    second, end = start_s, start_s + rng.randrange(300, 900)
    while second < end:
        dice, name, at_ms = rng.random(), rng.choice(names), second * 1000 - rng.randrange(2_000)
        if dice < 0.02:
            more = {
                "catch_up": rng.randrange(4),
                "catch_up_window_s": rng.choice((0, 30)),
                "jitter_ms": rng.choice((0, 2_000, 30_000)),
                "runs_max": rng.choice((0, 0, 9)),
            }
            message = schedule(rng.choice((1, 3, 7, 60)), **more)
            if rng.random() < 0.3:
                message.cron.expression = rng.choice(("*/5 * * * * *", "* * * * *", "nonsense"))
            planner.put(name, message, at_ms)
        elif dice < 0.025:
            planner.put(name, None, at_ms)
        elif dice < 0.035:
            paused[name] = not paused[name]
            planner.hold(name, at_ms, paused=paused[name], skipped_ms=[second * 1000 + 40_000])
        elif dice < 0.045:
            second += rng.choice((2, 20, 100))
        elif dice < 0.055:
            planner.restart()
        planner.tick(second, rng.randrange(3_000))
        second += 1
    return planner, end
