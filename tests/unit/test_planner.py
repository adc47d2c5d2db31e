"""When the planner of a process plans, and when it says that it does not."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, ClassVar, cast

import pytest
from aiokafka import TopicPartition
from patience import LIMIT_S
from prometheus_client import CollectorRegistry

from kafka_timers.planner import planner as module
from kafka_timers.planner.plan_metrics import PlannerMetrics
from kafka_timers.planner.planner import SchedulePlanner
from kafka_timers.runtime.priority import PriorityGate
from kafka_timers.runtime.tasks import cancel
from kafka_timers.runtime.ticked_clock import TickedClock
from kafka_timers.settings import PlannerSettings
from kafka_timers.testing import ManualClock

_Serve = Callable[[Any, TopicPartition], Coroutine[None, None, None]]


class Ticks:
    """Stands for the reader of ticks, which only notes which partitions it follows."""

    def __init__(self, *_: object) -> None:
        self.followed: set[int] = set()

    async def run(self) -> None:
        await asyncio.Event().wait()

    def follow(self, numbers: list[int]) -> None:
        self.followed.update(numbers)

    def leave(self, numbers: list[int]) -> None:
        self.followed.difference_update(numbers)


class Partition:
    """Stands for a partition that is planned: a test tells when all is planned, and whether it fails."""

    made: ClassVar[list["Partition"]] = []
    fails_with: ClassVar[Exception | None] = None

    def __init__(self, _: object, number: int, *given: Any) -> None:
        _, _, self.now_ms, self.ticked, _, self.planned, _, _ = given
        self.number = number
        Partition.made.append(self)

    async def run(self) -> None:
        if Partition.fails_with:
            raise Partition.fails_with
        await asyncio.Event().wait()


class Scene:
    """
    A planner, with stand-ins for its group, for the cluster and for the partitions that it plans.

    Attributes:
        fails_with: why the group takes it in no more.
        lacks: topics that do not exist.
        looked_up: how often it has looked for them.
        has_joined: whether the group has taken it in.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = ManualClock(1_000.0)
        self.fails_with: Exception | None = None
        self.lacks: set[str] = set()
        self.looked_up = 0
        self.has_joined = False
        self.assigned: frozenset[TopicPartition] = frozenset()
        self.is_member = False
        self.registry = CollectorRegistry()
        self.ticked_clock = TickedClock(self.clock, 1e9)
        Partition.made, Partition.fails_with = [], None
        for name, stand_in in (
            ("Cluster", self),
            ("SharedTopic", self._group),
            ("TickReader", Ticks),
            ("PlannedPartition", Partition),
            ("TopicLookup", lambda *_: None),
        ):
            monkeypatch.setattr(module, name, stand_in)
        monkeypatch.setattr(module, "_RETRY_S", 0.001)
        self.planner = SchedulePlanner(
            PlannerSettings(bootstrap="nowhere:9092"),
            cast(Any, self),
            PriorityGate(),
            PlannerMetrics(self.registry),
            self.ticked_clock,
        )

    # Stands for the cluster and the outlet.

    @asynccontextmanager
    async def open(self, _: object) -> AsyncIterator["Scene"]:
        yield self

    async def look_up(self, _: object) -> None:
        self.looked_up += 1

    def partitions(self, topic: str) -> list[int]:
        return [] if topic in self.lacks else [0]

    async def renew(self, _: object) -> None:
        pass

    # Stands for the group.

    def _group(self, *given: Any) -> "Scene":
        self.serve: _Serve = given[4]
        return self

    async def run(self, _: object) -> None:
        if self.fails_with:
            raise self.fails_with
        self.has_joined = True
        await asyncio.Event().wait()

    # What a test does.

    @asynccontextmanager
    async def serving(self, number: int = 0) -> AsyncIterator[None]:
        """Have a partition inside the block."""
        self.is_member, self.assigned = True, frozenset((TopicPartition("timer-schedule", number),))
        serving = asyncio.create_task(self.serve(self, TopicPartition("timer-schedule", number)))
        await turns()
        try:
            yield
        finally:
            await cancel([serving])

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        running = asyncio.create_task(self.planner.run())
        await turns()
        try:
            yield
        finally:
            await cancel([running])

    def tick(self, second: int, appended_ms: int | None = None, number: int = 0) -> None:
        self.read(number, b"%d" % second, second * 1000 if appended_ms is None else appended_ms)

    def read(self, number: int, key: bytes | None, appended_ms: int) -> None:
        self.planner._on_tick(number, key, appended_ms, 0)

    def behind_s(self) -> float | None:
        return self.registry.get_sample_value("kafka_timers_planner_behind_seconds")


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def until(holds: Callable[[], bool]) -> None:
    """Return once planning that fails has begun anew often enough."""
    async with asyncio.timeout(LIMIT_S):
        while not holds():  # noqa: ASYNC110  # nothing tells of it
            await asyncio.sleep(0.001)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(monkeypatch)


async def test_planning_goes_by_the_newest_second_that_workers_believe(scene: Scene) -> None:
    async with scene.serving():
        scene.tick(1_000)
        await turns()
        [partition] = Partition.made
        partition.ticked.clear()
        for key, appended_ms in ((None, 1_001_000), (b"x", 1_001_000), (b"1010", 1_001_000)):
            scene.read(0, key, appended_ms)
        scene.tick(1_000, 999_900)
        assert (partition.now_ms(), partition.ticked.is_set()) == (1_000_000, False)
        # Its broker's clock is an hour ahead.
        scene.tick(1_001, 4_601_000)
        assert (partition.now_ms(), partition.ticked.is_set()) == (1_001_000, True)


async def test_nothing_is_planned_before_the_first_tick_since_records_are_dated_by_ticks(scene: Scene) -> None:
    async with scene.serving():
        assert Partition.made == []
        scene.tick(1_000, number=1)
        await turns()
        [partition] = Partition.made
        assert partition.now_ms() is None


async def test_a_partition_that_comes_back_waits_for_a_tick_anew(scene: Scene) -> None:
    for second in (1_000, 2_000):
        async with scene.serving():
            if second == 1_000:
                scene.tick(second)
            await turns()
    first, again = Partition.made
    assert (first.now_ms(), again.now_ms()) == (None, None)


async def test_a_partition_that_always_fails_is_behind_and_says_why_until_it_is_planned(scene: Scene) -> None:
    Partition.fails_with = OSError("no such topic")
    async with scene.serving():
        scene.tick(1_000)
        await until(lambda: len(Partition.made) > 1)
        assert scene.planner.problems() == []
        await scene.clock.advance(16)
        made = len(Partition.made)
        await until(lambda: len(Partition.made) > made + 1)
        assert scene.planner.problems() == ["schedules have not been planned for 16 s: no such topic"]
        Partition.fails_with = None
        made = len(Partition.made)
        await until(lambda: len(Partition.made) > made)
        Partition.made[-1].planned()
        assert (scene.planner.problems(), scene.behind_s()) == ([], 0)
        await scene.clock.advance(16)
        assert scene.planner.problems() == ["schedules have not been planned for 16 s"]
    # Another planner has it now.
    assert (scene.planner.problems(), scene.behind_s()) == ([], 0)


async def test_the_partition_that_waits_longest_counts(scene: Scene) -> None:
    async with scene.serving(0):
        scene.tick(1_000)
        await scene.clock.advance(7)
        async with scene.serving(1):
            await scene.clock.advance(10)
            assert scene.planner.problems() == ["schedules have not been planned for 17 s"]
            assert {each.number for each in Partition.made} == {0, 1}


async def test_a_planner_that_comes_into_no_group_says_why(scene: Scene) -> None:
    assert scene.planner.problems() == ["has not joined the group yet"]
    scene.fails_with = OSError("not allowed")
    async with scene.running():
        assert scene.planner.problems() == ["not allowed"]


async def test_a_planner_that_fails_again_and_again_is_behind_since_the_first_time(scene: Scene) -> None:
    scene.is_member, scene.assigned = True, frozenset((TopicPartition("timer-schedule", 0),))
    scene.fails_with = OSError("the group begins anew")
    async with scene.running():
        await scene.clock.advance(16)
        looked_up = scene.looked_up
        await until(lambda: scene.looked_up > looked_up + 1)
        assert scene.behind_s() == 16
        assert scene.planner.problems() == ["schedules have not been planned for 16 s: the group begins anew"]
        scene.fails_with = None
        await until(lambda: scene.has_joined)
        async with scene.serving():
            scene.tick(1_016)
            await turns()
            Partition.made[-1].planned()
            assert (scene.planner.problems(), scene.behind_s()) == ([], 0)


async def test_a_planner_for_which_its_group_has_no_partition_is_not_behind(scene: Scene) -> None:
    scene.is_member = True
    scene.fails_with = OSError("the group begins anew")
    async with scene.running():
        await scene.clock.advance(16)
        looked_up = scene.looked_up
        await until(lambda: scene.looked_up > looked_up + 1)
        assert (scene.planner.problems(), scene.behind_s()) == ([], 0)
        # From now on it has one.
        scene.assigned = frozenset((TopicPartition("timer-schedule", 0),))
        await scene.clock.advance(5)
        assert scene.behind_s() == 5
        # The group takes it in again, and leaves it none.
        scene.fails_with, scene.assigned = None, frozenset()
        await scene.clock.advance(16)
        assert (scene.planner.problems(), scene.behind_s()) == ([], 0)


async def test_missing_topics_are_told_once_and_looked_for_now_and_then(
    scene: Scene, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.lacks = {"timer-schedule", "timer-planned"}
    async with scene.running():
        await asyncio.sleep(0.02)
        assert scene.looked_up == 1
        why = "no topic timer-schedule and no timer-planned: make them with `kafka-timers topics create`"
        assert scene.planner.problems() == [why]
    monkeypatch.setattr(module, "_MISSING_RETRY_S", 0.001)
    async with scene.running():
        await until(lambda: scene.looked_up > 3)
    assert caplog.messages == [f"recurring timers are off: {why}"]
