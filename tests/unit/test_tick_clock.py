"""The least possible time, by the ticks."""

import random

import pytest

from kafka_timers.core.tick_clock import TickClock, TickRead

NOW_MS = 1_800_000_000_000


def clock_of(*ticks: TickRead) -> TickClock:
    clock = TickClock()
    for tick in ticks:
        clock.read(tick)
    return clock


def test_before_a_tick_was_read_nothing_is_known() -> None:
    assert (TickClock().now_ms(5.0), TickClock().when_s(NOW_MS)) == (None, None)


def test_time_since_a_tick_was_read_is_added_less_a_millisecond_each_second() -> None:
    clock = clock_of(TickRead(NOW_MS, 10.0, 1))
    assert [clock.now_ms(at_s) for at_s in (9.0, 10.0, 10.5, 14.0)] == [NOW_MS, NOW_MS, NOW_MS + 499, NOW_MS + 3_996]


def test_the_tick_that_was_read_with_the_least_delay_counts() -> None:
    clock = clock_of(TickRead(NOW_MS, 10.002, 1), TickRead(NOW_MS + 1_000, 11.03, 1))
    assert clock.now_ms(11.03) == NOW_MS + 1_026


def test_it_is_told_when_a_moment_will_have_come() -> None:
    clock = clock_of(TickRead(NOW_MS, 10.0, 1))
    at_s = clock.when_s(NOW_MS + 250)
    assert at_s is not None
    assert at_s == pytest.approx(10.25025)
    assert clock.now_ms(at_s - 0.002) == NOW_MS + 248
    assert clock.when_s(NOW_MS - 5_000) == 10.0
    for ahead_ms in range(1_000):
        assert clock.now_ms(clock.when_s(NOW_MS + ahead_ms) or 0) == NOW_MS + ahead_ms


def test_ticks_of_another_leader_count_no_more() -> None:
    """Its clock may be ahead of that of the broker that leads by now."""
    clock = clock_of(TickRead(NOW_MS + 30, 10.0, 1), TickRead(NOW_MS + 1_000, 11.0, 2))
    assert clock.now_ms(11.0) == NOW_MS + 1_000


@pytest.mark.parametrize("step_ms", [-500, -60])
def test_ticks_of_before_a_step_of_the_brokers_clock_count_no_more(step_ms: int) -> None:
    clock = clock_of(TickRead(NOW_MS, 10.0, 1), TickRead(NOW_MS + 1_000 + step_ms, 11.0, 1))
    assert clock.now_ms(11.0) == NOW_MS + 1_000 + step_ms


def test_it_is_never_ahead_of_the_brokers_clock() -> None:
    """However late ticks are read, and by a host's clock that is too fast by half a per mille."""
    chance = random.Random(7)
    clock, broker_s = TickClock(), 0.0
    for tick in range(500):
        # A tick is appended at its second, or somewhat later, and read later still.
        appended_s = tick + chance.choice((0.0, 0.0005, 0.3))
        read_s = max(broker_s, appended_s + chance.choice((0.0, 0.001, 0.02, 0.4)))
        clock.read(TickRead(int(appended_s * 1000), 77 + read_s * 1.0005, 1))
        for later_s in sorted(chance.random() * 2 for _ in range(5)):
            broker_s = read_s + later_s * 0.2
            assert (clock.now_ms(77 + broker_s * 1.0005) or 0) <= broker_s * 1000
