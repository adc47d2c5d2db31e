"""When a lake is behind, and what is said of it."""

import pytest

from kafka_timers.core.lake_progress import LakeProgress

HORIZON_S = 3_600
NOW_S = 1_900_000_000
# The least lead of a lake that keeps up.
LEAD_S = 900


def told(ahead_s: int, **more: int) -> LakeProgress:
    return LakeProgress(NOW_S, HORIZON_S, NOW_S + ahead_s, **more)


@pytest.mark.parametrize(
    ("progress", "behind_s", "overdue_s"),
    [
        (told(HORIZON_S), 0, 0),
        (told(LEAD_S), 0, 0),
        (told(LEAD_S - 1), 1, 0),
        (told(0), LEAD_S, 0),
        (told(-300), LEAD_S + 300, 300),
        # Nothing is left to a lake, whatever one has told before.
        (LakeProgress(NOW_S, 0, NOW_S - 300), 0, 0),
        (LakeProgress(NOW_S, 0), 0, 0),
        # No lake has told anything: nothing is far, then a far timer may be due a horizon after its append.
        (LakeProgress(NOW_S, HORIZON_S), 0, 0),
        (LakeProgress(NOW_S, HORIZON_S, None, 1, NOW_S - HORIZON_S + LEAD_S), 0, 0),
        (LakeProgress(NOW_S, HORIZON_S, None, 1, NOW_S - HORIZON_S + LEAD_S - 1), 1, 0),
        (LakeProgress(NOW_S, HORIZON_S, None, 1, NOW_S - HORIZON_S - 300), LEAD_S + 300, 300),
    ],
)
def test_a_lake_is_behind_below_a_quarter_of_the_horizon_and_overdue_once_it_has_passed(
    progress: LakeProgress, behind_s: int, overdue_s: int
) -> None:
    assert (progress.behind_s, progress.overdue_s) == (behind_s, overdue_s)
    assert bool(progress.problem) == bool(behind_s)


def test_the_sentence_says_how_far_it_has_come_what_is_late_and_what_to_do() -> None:
    step = ": start kafka-timers lake promote; if it runs, its log and /readyz say why it waits"
    assert told(-300, far=1_200).problem == (
        "the lake has promoted timers up to 2030-03-17 17:41:40 UTC, 1,200 s too little, and those due in the last "
        f"300 s have not fired; how many of 1,200 ever left to it is not known here{step}"
    )
    assert told(600).problem == (
        "the lake has promoted timers up to 2030-03-17 17:56:40 UTC, 300 s too little, and those due in more than "
        f"600 s will be late{step}"
    )
    assert LakeProgress(NOW_S, HORIZON_S, None, 7, NOW_S - HORIZON_S - 60).problem.startswith(
        "the lake has promoted nothing yet, 960 s too little, and those due in the last 60 s have not fired"
    )
    # Anybody who may write to the group may write any number.
    assert LakeProgress(99_999_999_999_999, HORIZON_S, 99_999_999_999_000).problem


@pytest.mark.parametrize(
    ("progress", "due_in_s", "begins", "names"),
    [
        (told(-300), -200, "request 0:12 is parked, and overdue by 200 s: ", "start kafka-timers lake promote"),
        (told(600), 700, "request 0:12 is parked, and due in 700 s: ", "start kafka-timers lake promote"),
        (told(HORIZON_S), -200, "request 0:12 is parked, and overdue by 200 s: ", "kafka-timers lake audit"),
        # A horizon that was taken away, with the lake.
        (LakeProgress(NOW_S, 0), -200, "request 0:12 is parked, and overdue by 200 s: ", "no lake tells"),
        (told(-300), 100_000, "", ""),
        (told(HORIZON_S - 1), HORIZON_S, "", ""),
    ],
)
def test_a_parked_timer_is_overdue_or_will_be_late(
    progress: LakeProgress, due_in_s: int, begins: str, names: str
) -> None:
    problem = progress.problem_of("0:12", (NOW_S + due_in_s) * 1000)
    assert bool(problem) == bool(begins)
    assert problem.startswith(begins)
    assert names in problem
