"""The problems of a service follow from Kafka's answers; one cause is named once, with the steps to take."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from kafka_timers.core.lake_progress import LakeProgress
from kafka_timers.operate.health import (
    Door,
    PartitionStatus,
    Planners,
    ServiceStatus,
    Unavailable,
    Worker,
    overdue_of,
    problems_of,
)

ROWS = [PartitionStatus(number, 1_000, 1, 0, owner="http://w:1", tick_age_s=0.5) for number in range(3)]
WELL = ServiceStatus("g", "timer-request", ROWS, [Worker("http://w:1", "w", (0, 1)), Worker("http://v:1", "v", (2,))])


def but(number: int, **change: object) -> ServiceStatus:
    """Return a status that is well but for one partition."""
    return replace(WELL, partitions=[replace(row, **change) if row.partition == number else row for row in ROWS])


def begins(status: ServiceStatus) -> Sequence[str]:
    return [problem.partition(":")[0] for problem in problems_of(status)]


def test_a_service_that_fires_has_no_problem() -> None:
    assert problems_of(WELL) == []
    # Where nothing is due, it is sealed every few seconds, and a takeover takes some.
    assert problems_of(but(1, lag_s=13)) == []
    assert problems_of(replace(WELL, doors=[Door("etf1", "theirs", 7, 2), Door("headers", "old", 0, 0)])) == []


def test_one_cause_is_told_once() -> None:
    """Partitions that stand still for want of ticks or workers are not named each."""
    late = [replace(row, lag_s=60) for row in ROWS]
    no_ticks = replace(WELL, partitions=[replace(row, tick_age_s=60.4) for row in late])
    (told,) = problems_of(no_ticks)
    assert told.startswith("no tick for 60 s, and without ticks nothing fires: start kafka-timers oscillator")
    (told,) = problems_of(replace(WELL, workers=[], partitions=late))
    assert told == "no worker is a member of group g, so nothing fires: start kafka-timers worker"


def test_unknown_workers_are_not_taken_for_none() -> None:
    assert problems_of(replace(WELL, workers=None, untold=["members of group g: no"])) == ["members of group g: no"]


def test_seals_are_believed_over_a_group_without_members() -> None:
    (told,) = problems_of(replace(WELL, workers=[]))
    assert told == "group g has no members, but http://w:1 fires: workers of another group? Say which one with --group"


def test_timers_that_have_left_the_log_are_told_with_the_store_that_has_them() -> None:
    (told,) = problems_of(but(1, held_alone=15, pending=20, missing=(0, 42)))
    assert told == (
        "partition 1: 15 timers have left timer-request and wait in the store of http://w:1 alone: keep its disk until "
        "they have fired, and look at the topic's retention"
    )


def test_timers_that_have_left_the_log_are_told_while_nobody_fires_there() -> None:
    (told,) = problems_of(but(1, pending=20, missing=(3, 42), lag_s=60))
    assert told == (
        "partition 1: timer-request has lost its offsets 3 to 42 (40), where timers may wait; no member of the group "
        "has them in its store: start the worker that has, with its disk"
    )
    (told,) = problems_of(but(1, pending=20, missing=(3, 42), lag_s=60, kept_by=["http://v:1"]))
    assert told.endswith("; http://v:1 has some of them in its store: keep its disk, and look at its /readyz")
    # An owner that seals has looked.
    assert problems_of(but(1, pending=20, missing=(3, 42))) == []


def test_timers_that_are_lost_are_told() -> None:
    (told,) = problems_of(but(1, lost=(0, 42)))
    assert told == (
        "partition 1: timer-request has lost its offsets 0 to 42 (43), and no store had the timers that waited there: "
        "their senders have to send them again"
    )


def test_a_partition_without_ticks_is_named() -> None:
    assert problems_of(but(1, tick_age_s=9.0, lag_s=60))[0].startswith("no tick in partition 1 for 9 s")
    assert problems_of(but(2, tick_age_s=None))[0].startswith("no tick in partition 2 yet")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"lag_s": 14}, "partition 1 stands still since second 1000, 14 s ago"),
        ({"second": None, "lag_s": None}, "partition 1 was never sealed"),
        ({"blocked_s": 10.0}, "partition 1: requests wait behind an open transaction for 10 s: end the producer"),
        ({"unread_s": 9.0}, "partition 1: requests that timer-request has had for 9 s have not been read"),
        # It is why the partition stands still, too.
        ({"blocked_s": 40.0, "lag_s": 30}, "partition 1: requests wait behind an open transaction for 40 s"),
    ],
)
def test_a_partition_that_stands_still_is_named_with_its_cause(change: dict[str, object], told: str) -> None:
    (problem,) = problems_of(but(1, **change))
    assert problem.startswith(told)


def test_a_transaction_that_is_open_for_a_moment_is_no_problem() -> None:
    assert problems_of(but(1, blocked_s=5.0)) == []


def test_a_partition_that_no_member_has_is_named_once_the_group_has_settled() -> None:
    alone = replace(WELL, workers=WELL.workers[:1])
    assert begins(alone) == ["no worker owns partition 2, though group g has members"]
    assert begins(replace(alone, is_settled=False)) == []


def test_topics_without_leaders_doors_without_readers_and_unanswered_questions_are_named() -> None:
    status = replace(
        WELL,
        unavailable=[Unavailable("calls", [0, 3], [2], is_own=False), Unavailable("b", [1], [], has_leader=True)],
        doors=[Door("etf1", "theirs", 7, 0)],
        untold=["doors: no answer"],
    )
    assert problems_of(status) == [
        "doors: no answer",
        "calls: partitions 0, 3 cannot be written, no broker leads: start broker 2 again. Its callbacks are sent later",
        "b: partition 1 cannot be written, too few replicas are in sync: look at the brokers. Timers there wait",
        "door etf1: no worker reads theirs, and 7 records of it wait: start workers with --door etf1=theirs",
    ]


def test_how_long_something_may_be_overdue_is_since_the_last_seal_or_since_the_transaction() -> None:
    ages_s = [
        overdue_of(replace(ROWS[0], **change), "timer-request", 5.0).age_s
        for change in ({}, {"lag_s": 13}, {"lag_s": 14}, {"blocked_s": 3.0}, {"lag_s": 20, "blocked_s": 30.0})
    ]
    assert ages_s == [0, 0, 14, 2, 29]


def test_schedules_need_a_planner_and_one_version_of_time_zones() -> None:
    assert problems_of(replace(WELL, planners=Planners(0, (), has_schedules=False))) == []
    assert problems_of(replace(WELL, planners=Planners(2, ("2026a",), has_schedules=True))) == []
    (told,) = problems_of(replace(WELL, planners=Planners(0, (), has_schedules=True)))
    assert told.startswith("no planner plans recurring timers: start workers without --no-planner")
    (told,) = problems_of(replace(WELL, planners=Planners(2, ("2026a", "2026b"), has_schedules=True)))
    assert told.startswith("planners have time zones of different versions (2026a, 2026b)")


def test_schedules_need_a_horizon_beyond_the_runs_that_are_asked_for() -> None:
    """Planners that run apart know nothing of it, and workers nothing of them."""
    one = replace(WELL, planners=Planners(1, ("2026a",), has_schedules=True))
    assert problems_of(replace(one, lake=LakeProgress(1_000, 180))) == []
    (told,) = problems_of(replace(one, lake=LakeProgress(1_000, 179)))
    assert "a horizon of 179 s may leave all of them to the lake: give workers a --horizon-s of 180 or more" in told
    assert problems_of(replace(WELL, lake=LakeProgress(1_000, 179))) == []


def test_a_lake_that_is_behind_is_told_unless_there_are_no_ticks_by_which_it_goes() -> None:
    behind = replace(WELL, lake=LakeProgress(now_s=1_000, horizon_s=400, told_s=1_050))
    assert [each.partition(",")[0] for each in problems_of(behind)] == [
        "the lake has promoted timers up to 1970-01-01 00:17:30 UTC"
    ]
    assert problems_of(replace(WELL, lake=LakeProgress(now_s=1_000, horizon_s=400, told_s=1_100))) == []
    silent = replace(behind, partitions=[replace(row, tick_age_s=60.0) for row in ROWS])
    assert [each.partition(" for")[0] for each in problems_of(silent)] == ["no tick"]
