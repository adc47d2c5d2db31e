"""Told stories of an oscillator beside brokers whose clocks are wrong."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from unittest import mock

import pytest
from prometheus_client import CollectorRegistry

from kafka_timers.settings import OscillatorSettings
from kafka_timers_oscillator.replica import Replica
from simulation.assembly import Clock
from simulation.cluster import Brokers
from simulation.kafka import Kafka
from simulation.log import Record
from simulation.loop import EPOCH_S, SeededLoop
from simulation.world import history


class Beside:
    """Brokers, each of which leads one partition of `oscillator`, and one replica after the other."""

    def __init__(self, loop: SeededLoop, kafka: Kafka, brokers: Brokers) -> None:
        self.loop, self.kafka, self._brokers = loop, kafka, brokers

    def set(self, number: int, ahead_s: float) -> None:
        """Have the clock of the leader of partition *number* be wrong by *ahead_s*."""
        self.kafka.ahead_s[self.kafka.ticks(number).leader] = ahead_s

    def run(self, for_s: float, rank: int = 0) -> list[str]:
        """Let a replica run for *for_s* seconds; return what /readyz says at the end."""
        return self.loop.run_until_complete(self._run(for_s, rank))

    async def _run(self, for_s: float, rank: int) -> list[str]:
        with mock.patch.object(OscillatorSettings, "kafka", self._brokers):
            replica = Replica(OscillatorSettings(replica=rank), CollectorRegistry(), Clock(self.loop))
            running = asyncio.create_task(replica.run())
            await asyncio.sleep(for_s)
            said = replica.health.ready()
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
        return said

    def seconds(self, number: int) -> list[int]:
        """Return the seconds since the story began that partition *number* has, each as often as it was ticked."""
        return [_second(tick) for tick in self.kafka.ticks(number).records if _second(tick) > -EPOCH_S]

    def late_s(self, number: int) -> list[float]:
        """Return how long after each of these seconds, by the leader's own clock, its tick was appended."""
        ticks = [tick for tick in self.kafka.ticks(number).records if _second(tick) > -EPOCH_S]
        return [tick.timestamp / 1000 - EPOCH_S - _second(tick) for tick in ticks]


def _second(tick: Record) -> int:
    return int(tick.key or b"0") - EPOCH_S


@contextmanager
def beside(*ahead_s: float) -> Iterator[Beside]:
    """Yield a story of brokers whose clocks are wrong by *ahead_s*."""
    with history(partitions=len(ahead_s)) as (loop, world):
        story = Beside(loop, world.kafka, Brokers(world.kafka, world.network, world.faults))
        for number, each_s in enumerate(ahead_s):
            story.set(number, each_s)
        yield story


@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_started_beside_a_broker_that_is_ahead_it_ticks_by_the_others(wrong: int) -> None:
    """It asks one after the other, and that one may answer first."""
    ahead_s = [0.0, 0.0, 0.0]
    ahead_s[wrong] = 60.0
    with beside(*ahead_s) as story:
        assert story.run(20.5) == []
        for number in range(3):
            assert story.seconds(number)[-15:] == [*range(6, 21)]
            assert ahead_s[number] <= min(story.late_s(number)[-15:]) < ahead_s[number] + 0.1


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("is_running", [True, False])
def test_beside_a_broker_that_is_behind_the_partitions_of_the_others_are_ticked_as_ever(
    rank: int, is_running: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its own partition gets each second when that broker has it: earlier, the tick would not count there."""
    with beside(0.0, 0.0, 0.0) as story:
        if is_running:
            story.loop.call_later(40.0, story.set, 2, -30.0)
        else:
            story.set(2, -30.0)
        assert story.run(99.5, rank) == []
        for number in (0, 1, 2):
            there = [*zip(story.seconds(number), story.late_s(number), strict=True)]
            last = 99 if number < 2 else 69
            assert [second for second, _ in there if 75 - 30 * (number == 2) < second] == [
                *range(76 - 30 * (number == 2), last + 1)
            ]
            assert all(0 <= late_s < rank * 0.25 + 0.1 for second, late_s in there[-20:])


def test_of_two_brokers_the_slower_one_tells_the_time() -> None:
    """So one that is ahead changes nothing, and one that is behind stops the ticks: its host says that it is wrong."""
    with beside(60.0, 0.0) as story:
        assert story.run(20.5) == []
        assert [story.seconds(number)[-15:] for number in (0, 1)] == [[*range(6, 21)]] * 2
    with beside(0.0, 0.0) as story:
        story.run(3.5)
        story.set(0, -60.0)
        assert "this host's clock is 60.0 s ahead of the brokers'" in story.run(17.0)[0]
        assert [max(story.seconds(number)) for number in (0, 1)] == [3, 3]


@pytest.mark.parametrize(("ahead_s", "side"), [(60.0, "behind"), (-60.0, "ahead of")])
def test_one_broker_alone_has_to_agree_with_the_host(ahead_s: float, side: str) -> None:
    with beside(0.0) as story:
        story.run(3.5)
        story.set(0, ahead_s)
        assert f"this host's clock is 60.0 s {side} the brokers'" in story.run(17.0)[0]
        assert max(story.seconds(0)) == 3
        story.set(0, 0.0)
        assert story.run(20.0) == []
        assert story.seconds(0)[-37:] == [*range(4, 41)]
