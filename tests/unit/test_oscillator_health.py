"""The answers of /livez and /readyz of an oscillator."""

import pytest
from prometheus_client import CollectorRegistry

from kafka_timers.testing import ManualClock
from kafka_timers_oscillator.broker_time import BrokersTime
from kafka_timers_oscillator.replica_health import Health, Metrics


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000_000.0)


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def broker_time() -> BrokersTime:
    return BrokersTime()


@pytest.fixture
def health(clock: ManualClock, broker_time: BrokersTime, registry: CollectorRegistry) -> Health:
    return Health(clock, broker_time, Metrics(registry), max_clock_skew_s=2.0)


async def test_it_is_ready_while_ticks_come(health: Health, clock: ManualClock) -> None:
    assert health.ready() == ["no tick was emitted or seen yet"]
    health.progressed(1_000_000)
    assert health.ready() == []
    await clock.advance(2.9)
    assert health.ready() == []
    await clock.advance(1.1)
    assert health.ready() == ["no tick was emitted or seen for 4 s"]


async def test_a_partition_in_trouble_is_named_until_it_takes_ticks_again(health: Health) -> None:
    health.progressed(1_000_000)
    health.trouble("partition 1 does not take ticks", 1)
    health.answered(0)
    assert health.ready() == ["partition 1 does not take ticks"]
    health.answered(1)
    assert health.ready() == []


async def test_a_broker_in_trouble_is_well_again_with_its_first_answer(health: Health) -> None:
    health.progressed(1_000_000)
    health.trouble("no broker answers")
    assert health.ready() == ["no broker answers"]
    health.answered()
    assert health.ready() == []


@pytest.mark.parametrize(
    ("off_s", "words"), [(3600.0, "3600.0 s ahead of"), (-2.5, "2.5 s behind"), (1.9, ""), (-1.9, "")]
)
async def test_clocks_that_disagree_are_said_with_figure_and_direction(
    health: Health, clock: ManualClock, broker_time: BrokersTime, registry: CollectorRegistry, off_s: float, words: str
) -> None:
    health.progressed(1_000_000)
    assert not health.must_keep_silent()
    broker_time.of(0).heard(clock.elapsed_s(), clock.wall_s() - off_s)
    assert registry.get_sample_value("kafka_timers_oscillator_clock_offset_seconds") == pytest.approx(off_s)
    assert health.must_keep_silent() == bool(words)
    assert [words in reason for reason in health.ready()] == ([True] if words else [])
    assert health.live() == []


async def test_a_broker_whose_clock_differs_is_shown_with_the_others_for_an_hour_after_its_last_tick(
    health: Health, clock: ManualClock, broker_time: BrokersTime, registry: CollectorRegistry
) -> None:
    def shown() -> list[float | None]:
        name = "kafka_timers_oscillator_broker_clock_offset_seconds"
        return [registry.get_sample_value(name, {"broker": str(broker)}) for broker in (1, 2, 3)]

    for broker, off_s in ((1, 0.0), (2, 0.0), (3, 3600.0)):
        broker_time.of(broker).heard(clock.elapsed_s(), clock.wall_s() + off_s)
    health.must_keep_silent()
    assert shown() == [0, 0, 3600]
    await clock.advance(3_601)
    health.must_keep_silent()
    assert shown() == [None, None, None]


async def test_a_loop_that_does_not_turn_is_not_alive(health: Health, clock: ManualClock) -> None:
    await clock.advance(59.0)
    assert health.live() == []
    await clock.advance(2.0)
    assert health.live() == ["the loop has been stuck for 61 s"]
    health.turned()
    assert health.live() == []
