"""The date of a process, as ticks tell it; the brokers' time is 1000 s ahead of the monotonic one."""

import pytest

from kafka_timers.core.tick_clock import TickRead
from kafka_timers.runtime.ticked_clock import TickedClock
from kafka_timers.testing import ManualClock

HOST_S = 50_000.0


@pytest.fixture
def host() -> ManualClock:
    return ManualClock(HOST_S)


async def read(clock: TickedClock, host: ManualClock, seconds: int, *ahead_s: float) -> None:
    """Read ticks of a partition for each of *ahead_s*, by which its leader's clock is wrong."""
    for _ in range(seconds):
        await host.advance(1.0)
        for number, each_s in enumerate(ahead_s):
            now_s = host.elapsed_s()
            clock.read(number, TickRead(int((1000 + now_s + each_s) * 1000), now_s, 1))


@pytest.mark.parametrize(
    ("ahead_s", "shown_s"),
    [((0,), 0), ((60, 0), 0), ((-60, 0), -60), ((3600, 0, 0.004), 0.004), ((0, 0.004, -3600), 0)],
)
async def test_the_middle_of_the_brokers_clocks_is_shown_of_two_the_slower_one(
    host: ManualClock, ahead_s: tuple[float, ...], shown_s: float
) -> None:
    clock = TickedClock(host, 2.0)
    await read(clock, host, 3, *ahead_s)
    assert clock.wall_s() == pytest.approx(1003 + shown_s, abs=0.002)
    host.set(7.0)
    await host.advance(0.5)
    assert clock.wall_s() == pytest.approx(1003.5 + shown_s, abs=0.002)


async def test_a_partition_that_was_given_up_counts_no_more(host: ManualClock) -> None:
    clock = TickedClock(host, 2.0)
    await read(clock, host, 1, -3600, 0)
    assert clock.wall_s() == pytest.approx(1001 - 3600)
    for _ in range(6):
        await host.advance(1.0)
        now_s = host.elapsed_s()
        clock.read(1, TickRead(int((1000 + now_s) * 1000), now_s, 1))
    assert clock.wall_s() == pytest.approx(1007)


async def test_a_host_whose_clock_is_wrong_is_told_once_until_it_was_right(
    host: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    clock = TickedClock(host, 2.0)
    for off_s in (49_000.0, 1.5, -3.0):
        host.set(1000 + host.elapsed_s() + off_s)
        await read(clock, host, 20, 0)
    [ahead, behind] = [record.message for record in caplog.records]
    assert ahead.startswith("this host's clock is 49000.0 s ahead of the brokers': nothing goes by it")
    assert behind.startswith("this host's clock is 3.0 s behind the brokers'")


async def test_an_old_tick_and_one_that_was_read_late_say_nothing_about_the_host(
    host: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    host.set(1000)
    clock = TickedClock(host, 2.0)
    clock.read(0, TickRead(1_000_000 - 7_200_000, 0.0, 1))
    await read(clock, host, 10, 0)
    assert not caplog.records
    # No ticks for long, and then those that came meanwhile, before a new one.
    for _ in range(8):
        await host.advance(1.0)
    for late_s in (8.0, 7.0, 6.0):
        clock.read(0, TickRead(int((1000 + host.elapsed_s() - late_s) * 1000), host.elapsed_s(), 2))
    await read(clock, host, 10, 0)
    assert not caplog.records
