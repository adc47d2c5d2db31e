"""A schedule's plans and requests are judged by its records: honest ones are right, and each change is found."""

import random
from collections.abc import Callable
from datetime import datetime

import pytest
from planner_stand_in import PlannerStandIn, lived, schedule

from kafka_timers.core.plan_history import Asked, Fault, Planning, unplanned
from kafka_timers.core.schedules import CatchUp, due_ms
from kafka_timers.core.wire import PLANNED_LAG_MS, Condition, Future

NAME = b"s"
START_S = 1_893_500_000


def faults(
    planner: PlannerStandIn, until_s: int, name: bytes = NAME, *, landed_late_ms: int = 0, from_s: int = 0
) -> tuple[list[Fault], int]:
    """Return the faults of *name* up to a second, and the number of plans that are undecided."""
    asked = planner.asked_of(name)
    planning = Planning(name, planner.versions()[name], planner.refused, asked, from_s * 1000, until_s * 1000)
    plans = [each._replace(landed_ms=each.landed_ms + landed_late_ms) for each in planner.plans_of(name)]
    return [*planning.faults(plans), *unplanned(planning.left())], planning.undecided


@pytest.mark.parametrize("seed", range(30))
def test_an_honest_history_has_no_fault(seed: int) -> None:
    planner, end = lived(random.Random(seed), START_S)
    assert [faults(planner, end, name) for name in planner.versions()] == [([], 0)] * len(planner.versions())


def steady(**more: object) -> PlannerStandIn:
    planner = PlannerStandIn()
    planner.put(NAME, schedule(**more), START_S * 1000)
    planner.ticks(START_S, START_S + 200)
    return planner


def words_of(planner: PlannerStandIn, until_s: int = START_S + 200) -> list[tuple[str, str]]:
    found, undecided = faults(planner, until_s)
    assert not undecided
    return [(each.kind, each.words) for each in found]


def test_a_run_that_was_planned_and_never_asked_for_is_found() -> None:
    planner = steady()
    gone = planner.asked.pop(9)
    assert words_of(planner) == [("run", f"run {gone.timer_id.decode()} was planned, and not asked for")]


def change(asked: Asked, **other: object) -> Asked:
    future = Future.FromString(asked.value or b"")
    future.MergeFrom(Future(**other))  # type: ignore[arg-type]
    return asked._replace(value=future.SerializeToString())


@pytest.mark.parametrize(
    "changed",
    [lambda each: change(each, callBack=b"other"), lambda each: each._replace(key=b"%d" % (int(each.key) + 1))],
    ids=["another value", "another second"],
)
def test_a_run_that_is_asked_for_otherwise_is_found_by_its_request(changed: Callable[[Asked], Asked]) -> None:
    planner = steady()
    planner.asked[9] = changed(planner.asked[9])
    [fault] = faults(planner, START_S + 200)[0]
    run = planner.asked[9].timer_id.decode()
    assert (fault.kind, fault.about, fault.words) == (
        "run", planner.asked[9], f"run {run} is asked for otherwise than its schedule says",
    )  # fmt: skip


def test_a_run_that_is_asked_for_twice_is_found() -> None:
    planner = steady()
    again = planner.asked[9]._replace(offset=99)
    planner.asked.append(again)
    [fault] = faults(planner, START_S + 200)[0]
    assert (fault.kind, fault.words) == ("run", f"run {again.timer_id.decode()} is asked for, and no plan has it")


def test_a_run_that_somebody_asks_for_by_hand_or_moves_is_no_fault() -> None:
    planner = steady()
    moved = Future.FromString(planner.asked[9].value or b"")
    moved.ClearField("condition")
    planner.asked.append(planner.asked[9]._replace(offset=99, value=moved.SerializeToString()))
    by_hand = Future(timerId="s@2030-01-01T00:00:00Z", condition=Condition.IF_ABSENT)
    planner.asked.append(Asked(0, 100, START_S * 1000, by_hand.timerId.encode(), b"9", by_hand.SerializeToString()))
    assert words_of(planner) == []


def test_a_run_whose_request_was_forgotten_is_no_fault() -> None:
    planner = steady()
    planner.asked[9] = planner.asked[9]._replace(key=None, value=None)
    assert words_of(planner) == []


def test_a_plan_that_passes_over_a_run_is_found() -> None:
    planner = steady()
    at, plan = 3, planner.plans_of(NAME)[3]
    assert plan.planned
    assert len(plan.planned.asked_ms) > 1
    del plan.planned.asked_ms[-1]
    planner.planned[at] = planner.planned[at]._replace(value=plan.planned.SerializeToString())
    found = words_of(planner)
    assert found[0][0] == "run"
    assert "its plan at offset 6 of timer-planned passes over the run of 2030" in found[0][1]


def _instant_s(asked: Asked) -> float:
    return datetime.fromisoformat(asked.timer_id.rpartition(b"@")[2].decode()).timestamp()


@pytest.mark.parametrize("jitter_ms", [0, 5_000])
@pytest.mark.parametrize("catch_up", [CatchUp.CATCH_UP_LAST, CatchUp.CATCH_UP_ALL, CatchUp.CATCH_UP_NONE])
def test_missed_runs_are_judged_by_their_policy(catch_up: int, jitter_ms: int) -> None:
    """After an outage of ten minutes a planner asks for the missed runs of its policy, and for no others."""
    planner = PlannerStandIn()
    planner.put(NAME, schedule(catch_up=catch_up, jitter_ms=jitter_ms), START_S * 1000)
    planner.ticks(START_S, START_S + 50)
    before = len(planner.asked)
    planner.ticks(START_S + 650, START_S + 660)
    assert words_of(planner, START_S + 660) == []
    made_up = [each for each in planner.asked[before:] if _instant_s(each) < START_S + 645]
    assert bool(made_up) is (catch_up != CatchUp.CATCH_UP_NONE)
    for gone in made_up:
        planner.asked.remove(gone)
    assert [words for kind, words in words_of(planner, START_S + 660)] == [
        f"run {gone.timer_id.decode()} was planned, and not asked for" for gone in made_up
    ]


def test_a_schedule_that_was_changed_once_it_was_planned_is_found_once() -> None:
    planner = steady(catch_up=CatchUp.CATCH_UP_ALL)
    assert len(planner.planned) > 5
    other = schedule(catch_up=CatchUp.CATCH_UP_NONE).SerializeToString()
    planner.schedules[0] = planner.schedules[0]._replace(value=other)
    assert words_of(planner) == [("schedule", "schedule s is not planned by its record at offset 0 of timer-schedule")]


def test_another_jitter_than_the_schedule_gives_is_found() -> None:
    planner, run_ms = steady(jitter_ms=5_000), (START_S + 100) * 1000
    at = [_instant_s(each) * 1000 for each in planner.asked].index(run_ms)
    due_s = due_ms(NAME, schedule(jitter_ms=5_000), run_ms) // 1000
    assert planner.asked[at].key == b"%d" % due_s
    planner.asked[at] = planner.asked[at]._replace(key=b"%d" % (due_s + 1))
    assert len(words_of(planner)) == 1


def test_a_schedule_that_stopped_is_found() -> None:
    planner = steady()
    found = words_of(planner, START_S + 400)
    assert [kind for kind, _ in found] == ["schedule"]
    assert "schedule s has stopped: nobody has asked for its run of 2030-" in found[0][1]


@pytest.mark.parametrize("what", ["put", "change", "delete", "pause"])
def test_a_record_that_nobody_plans_is_found(what: str) -> None:
    planner = PlannerStandIn() if what == "put" else steady(until_ms=(START_S + 60) * 1000)
    at_ms = (START_S + 201) * 1000
    if what == "delete":
        planner.put(NAME, None, at_ms)
    elif what == "pause":
        planner.hold(NAME, at_ms, paused=True)
    else:
        planner.put(NAME, schedule(), at_ms)
    assert words_of(planner, START_S + 230) == []
    offset = planner.schedules[-1].offset
    words = f"schedule s has stopped: its record at offset {offset} of timer-schedule was never planned"
    assert words_of(planner, START_S + 300) == [("schedule", words)]


@pytest.mark.parametrize("ended", ["paused", "deleted", "over", "refused"])
def test_a_schedule_that_its_records_end_has_no_fault(ended: str) -> None:
    planner = PlannerStandIn()
    planner.put(NAME, schedule(runs_max=3 if ended == "over" else 0), START_S * 1000)
    planner.ticks(START_S, START_S + 50)
    if ended == "paused":
        planner.hold(NAME, (START_S + 50) * 1000, paused=True)
    elif ended == "deleted":
        planner.put(NAME, None, (START_S + 50) * 1000)
        planner.hold(NAME, (START_S + 51) * 1000, paused=True)
    elif ended == "refused":
        planner.bytes_max = 100
        planner.restart()
    planner.ticks(START_S + 51, START_S + 300)
    assert words_of(planner, START_S + 3_000) == []
    if ended == "refused":
        assert planner.refused
        planner.refused.clear()
        assert words_of(planner, START_S + 3_000)


def test_a_plan_that_was_deleted_before_it_was_landed_leaves_those_around_it_undecided() -> None:
    planner = steady()
    del planner.planned[3:9]
    assert faults(planner, START_S + 200, landed_late_ms=PLANNED_LAG_MS) == ([], 1)
    assert words_of(planner)


def test_only_what_was_written_since_a_second_is_judged() -> None:
    planner = steady()
    planner.asked.pop(0)
    assert words_of(planner)
    assert faults(planner, START_S + 200, from_s=START_S + 100) == ([], 0)
