"""The knowledge of the broker's clock; in these tests it is 1000 s ahead of the monotonic one unless said otherwise."""

import random
from typing import Any

import pytest

from kafka_timers_oscillator.broker_time import KEPT_S, SAMPLES, SAMPLES_MIN, BrokersTime


def exchange(it: Any, sent_s: float, *, there_s: float = 0.002, back_s: float = 0.002, ahead_s: float = 1000.0):
    """Send a record at *sent_s* that the broker stamps after *there_s* and acknowledges after another *back_s*."""
    it.heard(sent_s + there_s + back_s, sent_s + there_s + ahead_s, sent_s)


def learnt(**how: float) -> Any:
    it = BrokersTime().of(0)
    for second in range(SAMPLES):
        exchange(it, float(second), **how)
    return it


def told(*ahead_s: float) -> BrokersTime:
    """What is known once each of some brokers, whose clocks are wrong by *ahead_s*, has told its time."""
    it = BrokersTime()
    for broker, each_s in enumerate(ahead_s):
        it.of(broker).heard(5.0, 1005.0 + each_s)
    return it


@pytest.mark.parametrize(
    ("ahead_s", "time_s"),
    [((60,), 60), ((60, 0), 0), ((-60, 0), -60), ((60, 0, 0), 0), ((0, -60, 0), 0), ((1, 2, -60, 3600), 1)],
)
def test_the_middle_of_the_brokers_clocks_is_the_time_of_two_the_slower_one(
    ahead_s: tuple[float, ...], time_s: float
) -> None:
    it = told(*ahead_s)
    assert it.at(6.0) == pytest.approx(1006.0 + time_s)
    assert it.off_s(6.0) == pytest.approx({broker: each_s - time_s for broker, each_s in enumerate(ahead_s)})


def test_a_broker_that_was_not_heard_for_an_hour_counts_no_more() -> None:
    it = told(-60, 0)
    it.of(1).heard(10.0, 1010.0)
    assert it.at(5.0 + KEPT_S) == pytest.approx(945.0 + KEPT_S)
    assert it.at(6.0 + KEPT_S) == pytest.approx(1006.0 + KEPT_S)
    assert (it.at(11.0 + KEPT_S), it.age_s(20.0)) == (None, 10.0)


def test_nothing_is_known_before_the_first_answer() -> None:
    it = BrokersTime().of(0)
    assert it.at(5.0) is None
    assert it.age_s(5.0) == float("inf")


def test_the_broker_s_time_is_found_between_its_bounds() -> None:
    it = learnt()
    assert it.at(50.0) == pytest.approx(1050.0, abs=1e-6)
    assert it.age_s(50.0) == pytest.approx(50.0 - (SAMPLES - 1 + 0.004))


def test_a_slow_exchange_changes_nothing() -> None:
    it = learnt()
    exchange(it, 40.0, there_s=0.3, back_s=0.4)
    assert it.at(50.0) == pytest.approx(1050.0, abs=1e-6)


def test_noise_never_puts_a_tick_before_its_second_and_costs_little() -> None:
    dice, it = random.Random(7), BrokersTime().of(0)
    for second in range(500):
        there_s, back_s = 0.001 + dice.expovariate(300), 0.001 + dice.expovariate(300)
        if (broker_s := it.at(float(second))) is not None:
            lands_s = second + there_s - (broker_s - 1000.0 - second)
            assert second < lands_s + 0.002 < second + there_s + 0.02
        exchange(it, float(second), there_s=there_s, back_s=back_s)


def test_the_first_answers_of_a_slow_connection_place_no_tick_early() -> None:
    it = BrokersTime().of(0)
    for sample in range(SAMPLES_MIN - 1):
        exchange(it, float(sample), there_s=0.2, back_s=0.002)
        assert it.at(10.0) <= 1010.0


def test_ticks_of_others_tell_the_time_too_and_never_too_high() -> None:
    it = BrokersTime().of(0)
    for second, reading_s in enumerate([0.004, 0.120, 0.003, 0.050]):
        it.heard(second + reading_s, second + 1000.0)
    assert it.at(10.0) == pytest.approx(1009.997)


@pytest.mark.parametrize("step_s", [-3600.0, -0.5, 0.5, 3600.0])
def test_a_step_of_the_broker_s_clock_or_a_suspended_host_is_followed_at_once(step_s: float) -> None:
    it = learnt()
    exchange(it, 40.0, ahead_s=1000.0 + step_s)
    assert it.at(41.0) == pytest.approx(1041.0 + step_s, abs=0.01)


def test_a_drift_is_followed() -> None:
    it = BrokersTime().of(0)
    for second in range(1000):
        exchange(it, float(second), ahead_s=1000.0 - second * 1e-4)
    assert it.at(1000.0) == pytest.approx(2000.0 - 0.1, abs=0.005)
