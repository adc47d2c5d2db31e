"""A planner of one partition without brokers: what it writes as time goes by, in the form that `plan_history` takes."""

from collections import defaultdict
from dataclasses import dataclass, field

from kafka_timers.core.plan_history import Asked, Plan, Version, Written, versions_in
from kafka_timers.core.planning import Plans
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
