"""The least possible time, by the ticks."""

import random
import time

import pytest

from kafka_timers.clock import HostClock
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
    clock = clock_of(TickRead(NOW_MS, 10.002, 1), TickRead(NOW_MS + 1_000, 11.009, 1))
    assert clock.now_ms(11.009) == NOW_MS + 1_005


def test_a_tick_that_was_read_later_makes_the_clock_slower_until_the_next_one() -> None:
    """For the broker's clock may be slower: nothing shows which."""
    clock = clock_of(TickRead(NOW_MS, 10.002, 1), TickRead(NOW_MS + 1_000, 11.052, 1))
    assert clock.now_ms(11.052) == NOW_MS + 1_000
    assert clock.now_ms(11.952) == NOW_MS + 1_856
    clock.read(TickRead(NOW_MS + 2_000, 12.003, 1))
    assert clock.now_ms(12.003) == NOW_MS + 2_000
    assert clock.now_ms(12.952) == NOW_MS + 2_948


def leads_ms(slewed: float, *, step_ms: float = 0.0, of_host: float = 0.0) -> list[float]:
    """
    Return by how much the clock is ahead of the broker's at most, once so many ticks were read since that is wrong.

    It is slower by *slewed*, or was set back by *step_ms*, and the host's is faster by *of_host*, from any moment
    between two ticks on. Nothing after the ticked second counts, as in a worker.
    """
    worst = [-1e9] * 12
    for phase in range(10):
        clock, ticks, wrong_from_s = TickClock(), 9, 10 + phase / 10
        for step in range(9_000, 22_000, 2):
            after_s = max(step / 1000 - wrong_from_s, 0.0)
            broker_ms = step - after_s * 1000 * slewed - (step_ms if after_s else 0.0)
            host_s = 77 + step / 1000 + after_s * of_host
            if broker_ms >= ticks * 1000 + 3:
                # Read 3 ms after its append.
                clock.read(TickRead(NOW_MS + ticks * 1000, host_s, 1))
                ticks += 1
            if after_s and (since := max(ticks - 11, 0)) < len(worst):
                told_ms = min((clock.now_ms(host_s) or 0) - NOW_MS, ticks * 1000 - 1)
                worst[since] = max(worst[since], told_ms - broker_ms)
    return worst


@pytest.mark.parametrize(
    ("slewed", "of_host", "first_ms", "then_ms"),
    [
        (0.083333, 0.0, 92, 0),
        (0.0, 0.083333, 92, 0),
        (0.03, 0.0, 35, 0),
        (0.01, 0.0, 15, 10),
        (0.005, 0.0, 10, 10),
        (0.0005, 0.0, 0, 0),
    ],
)
def test_a_clock_that_is_slewed_makes_it_early_until_the_second_tick_after_that(
    slewed: float, of_host: float, first_ms: float, then_ms: float
) -> None:
    """chrony slews by 83,333 ppm at most, ntpd by 500. Slower slews are known a little later, and cost no more."""
    worst = leads_ms(slewed, of_host=of_host)
    assert max(worst[:2]) <= first_ms
    assert max(worst[2:]) <= then_ms
    assert first_ms < 20 or max(worst[:2]) > 0.7 * first_ms


def test_a_step_back_of_the_brokers_clock_is_known_with_the_next_tick() -> None:
    for step_ms in (15, 40, 60, 99, 400):
        assert max(leads_ms(0.0, step_ms=step_ms)[1:]) <= 0
    assert max(leads_ms(0.0, step_ms=9)[1:]) < 9


def test_it_is_told_when_a_moment_will_have_come() -> None:
    clock = clock_of(TickRead(NOW_MS, 10.0, 1))
    at_s = clock.when_s(NOW_MS + 250)
    assert at_s is not None
    assert at_s == pytest.approx(10.25025)
    assert clock.now_ms(at_s - 0.002) == NOW_MS + 248
    assert clock.when_s(NOW_MS - 5_000) == 10.0
    for ahead_ms in range(1_000):
        assert clock.now_ms(clock.when_s(NOW_MS + ahead_ms) or 0) == NOW_MS + ahead_ms


@pytest.mark.parametrize("ahead_ms", [5, 30])
def test_ticks_of_another_leader_count_no_more(ahead_ms: int) -> None:
    """Its clock may be ahead of that of the broker that leads by now, by too little to look like one that is slewed."""
    clock = clock_of(TickRead(NOW_MS + ahead_ms, 10.0, 1), TickRead(NOW_MS + 1_000, 11.0, 2))
    assert clock.now_ms(11.0) == NOW_MS + 1_000


@pytest.mark.parametrize("step_ms", [-500, -60, -11])
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


@pytest.mark.skipif(not hasattr(time, "CLOCK_MONOTONIC_RAW"), reason="this host has no such clock")
def test_elapsed_time_is_taken_from_the_clock_that_ntp_does_not_slew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "clock_gettime", {time.CLOCK_MONOTONIC_RAW: 5.0}.__getitem__)
    assert HostClock().elapsed_s() == 5.0
