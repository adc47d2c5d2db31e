"""Which ticks a replica emits and when, without broker and clock; times are the broker's."""

import math

import pytest

from kafka_timers_oscillator.schedule import MARGIN_S, REPLICA_WAIT_S, ROUND_SECONDS, Schedule


def schedule(partitions: int = 1, *, replica: int = 0, catch_up_s: int = 3600) -> Schedule:
    return Schedule(range(partitions), replica=replica, catch_up_s=catch_up_s, max_ahead_s=2.0)


def started(last: int, now_s: float, *, replica: int = 0, catch_up_s: int = 3600) -> Schedule:
    """A schedule of one partition whose last tick is *last*."""
    made = schedule(replica=replica, catch_up_s=catch_up_s)
    made.saw(0, last, last + 0.005, -math.inf)
    made.start(now_s)
    return made


def take(it: Schedule, now_s: float, append_s: float | None = None) -> dict[int, list[int]]:
    """Emit the ticks due at *now_s*, as a broker would that stamps it with *append_s*, else with *now_s*."""
    due = it.due(now_s)
    for partition, seconds in due.items():
        it.take(partition)
        it.sent(partition, seconds)
        it.saw(partition, seconds[-1], now_s if append_s is None else append_s, now_s)
        it.landed(partition)
    return {partition: list(seconds) for partition, seconds in due.items()}


def test_a_second_is_emitted_just_after_its_boundary_and_only_once() -> None:
    it = started(100, 100.4)
    assert it.next_s() == 101 + MARGIN_S
    assert take(it, 101.0) == {}
    assert take(it, 101.002) == {0: [101]}
    assert take(it, 101.5) == {}
    assert it.next_s() == 102 + MARGIN_S


def test_an_empty_topic_starts_with_the_present_second() -> None:
    it = schedule(2)
    it.start(100.7)
    assert take(it, 100.7) == {0: [100], 1: [100]}


def test_second_0_by_which_an_empty_topic_is_asked_for_its_time_starts_nothing() -> None:
    it = schedule(2)
    it.saw(0, 0, 100.6, -math.inf)
    it.start(100.7)
    assert take(it, 100.7) == {0: [100], 1: [100]}


def test_every_second_since_the_last_tick_is_emitted_in_order() -> None:
    it = started(100, 107.3)
    assert take(it, 107.3) == {0: [101, 102, 103, 104, 105, 106, 107]}


def test_a_long_gap_is_caught_up_in_rounds_that_leave_out_nothing() -> None:
    it = started(1, 1001.5)
    emitted: list[int] = []
    while seconds := take(it, 1001.5).get(0):
        assert len(seconds) <= ROUND_SECONDS
        emitted += seconds
    assert emitted == list(range(2, 1002))


def test_seconds_beyond_the_catch_up_limit_are_left_out_and_counted() -> None:
    it = started(100, 1000.5, catch_up_s=10)
    assert it.skip(1000.5) == 889
    assert take(it, 1000.5) == {0: list(range(990, 1001))}
    assert it.skip(1000.6) == 0


def test_a_partition_that_a_crash_left_out_of_a_broadcast_gets_the_tick() -> None:
    it = schedule(3)
    it.saw(0, 100, 100.01, -math.inf)
    it.saw(1, 99, 99.01, -math.inf)
    it.start(100.2)
    assert take(it, 100.2) == {1: [100], 2: [100]}
    assert take(it, 101.1) == {0: [101], 1: [101], 2: [101]}


def test_a_tick_that_landed_early_is_emitted_again() -> None:
    it = started(100, 100.5)
    assert take(it, 101.002, append_s=100.997) == {0: [101]}
    assert take(it, 101.004, append_s=101.001) == {0: [101]}
    assert take(it, 101.5) == {}


def test_an_early_tick_of_another_replica_is_repaired() -> None:
    it = started(100, 100.5, replica=1)
    it.saw(0, 101, 100.997, 100.998)
    assert take(it, 101.26) == {0: [101]}


def test_a_tick_far_ahead_of_its_append_time_does_not_count() -> None:
    """The workers refuse it, so it must not keep anyone from emitting the second in which it came."""
    it = started(100, 100.5)
    it.saw(0, 3700, 101.001, 101.001)
    assert take(it, 101.002) == {0: [101]}


def test_an_old_tick_and_a_repeated_one_change_nothing() -> None:
    it = started(100, 100.5)
    assert it.saw(0, 50, 100.6, 100.6) == 0
    assert it.saw(0, 100, 100.6, 100.6) == 0
    assert it.last == 100


@pytest.mark.parametrize("replica", [1, 2, 3])
def test_a_later_replica_waits_its_turn_and_keeps_silent_if_the_tick_came(replica: int) -> None:
    turn_s = 101 + replica * REPLICA_WAIT_S + MARGIN_S
    alone, second = started(100, 100.0, replica=replica), started(100, 100.0, replica=replica)
    assert alone.next_s() == turn_s
    assert take(alone, turn_s - 0.001) == {}
    assert take(alone, turn_s) == {0: [101]}
    second.saw(0, 101, 101.005, 101.008)
    assert take(second, turn_s) == {}


def test_a_later_replica_emits_only_the_partitions_that_the_first_left_out() -> None:
    it = schedule(2, replica=1)
    it.saw(0, 100, 100.0, -math.inf)
    it.saw(1, 100, 100.0, -math.inf)
    it.start(100.1)
    it.saw(0, 101, 101.005, 101.008)
    assert take(it, 101.26) == {1: [101]}


def test_a_later_replica_leaves_catching_up_to_the_first_while_that_gets_on() -> None:
    it = started(100, 200.0, replica=1)
    assert it.due(200.2) == {}
    it.saw(0, 150, 200.2, 200.2)
    assert it.due(200.4) == {}
    it.saw(0, 180, 200.4, 200.4)
    assert it.due(200.6) == {}
    assert take(it, 200.653) == {0: list(range(181, 201))}


def test_a_later_replica_that_catches_up_does_not_wait_for_itself() -> None:
    it = started(1, 1000.0, replica=1)
    assert take(it, 1000.3) == {0: list(range(2, 202))}
    assert take(it, 1000.301) == {0: list(range(202, 402))}


def test_a_partition_in_flight_has_nothing_due_and_holds_up_no_other() -> None:
    it = schedule(2)
    it.start(100.5)
    it.take(0)
    assert it.due(100.5) == {1: range(100, 101)}
    it.landed(0)
    assert it.due(100.5) == {0: range(100, 101), 1: range(100, 101)}


def test_a_broker_clock_that_steps_back_gets_no_second_again_and_one_that_steps_forward_gets_all() -> None:
    it = started(100, 100.5)
    assert take(it, 101.1) == {0: [101]}
    assert take(it, 50.0) == {}
    assert take(it, 101.9) == {}
    assert take(it, 105.1) == {0: [102, 103, 104, 105]}
