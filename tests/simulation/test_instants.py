"""Told stories of timers that are due within a second."""

from unittest import mock

import pytest

from kafka_timers.core.routing import hash_of
from kafka_timers.core.wire import Condition
from simulation import faults
from simulation.promises import found_in
from simulation.told import told


def test_a_timer_fires_at_its_millisecond() -> None:
    with told() as story:
        story.start("a", 0)
        story.request(3, millis=250)
        story.request(3)
        story.request(3, millis=999)
        story.finish()
        assert [number for number, _ in story.fired()] == [0, 1, 2]
        assert [at_s for _, at_s in story.fired()] == pytest.approx([3.25, 3.0, 3.999], abs=0.003)
        assert min(at_s - due_s for (_, at_s), due_s in zip(story.fired(), (3.25, 3.0, 3.999), strict=True)) >= 0


def test_a_cancel_in_its_second_is_in_time_before_its_millisecond() -> None:
    with told() as story:
        story.start("a", 0)
        story.request(3, timer_id=b"a", millis=500)
        story.request(3, timer_id=b"b", millis=100)
        story.until(3.499)
        story.cancel(b"a")
        story.cancel(b"b")
        story.finish()
        assert [number for number, _ in story.fired()] == [1]
        assert story.answers() == ["CANCELLED", "TOO_LATE"]


@pytest.mark.parametrize("ahead_s", [7_200.0, -7_200.0])
def test_the_date_of_the_worker_s_host_decides_nothing(ahead_s: float, capsys: pytest.CaptureFixture[str]) -> None:
    """
    Callback topics keep the worker's timestamps, and brokers refuse those that are an hour ahead of their own clock.
    """
    with told() as story:
        process = story.start("a", 0)
        process.clock.ahead_s = ahead_s
        story.request(3, timer_id=b"a", asks=True)
        story.request(3, millis=250)
        story.until(9)
        assert process.problems() == []
        story.finish()
        assert [number for number, _ in story.fired()] == [0, 1]
        [_, *seals] = found_in(story.kafka)[0].seals
        assert max(seal.lateness_max_ms for seal in seals) < 50
    side = "ahead of" if ahead_s > 0 else "behind"
    assert capsys.readouterr().out.count(f"this host's clock is 7200.0 s {side} the brokers'") == 1


def test_where_workers_fire_at_ticks_alone_it_fires_at_the_tick() -> None:
    with told(instant_every_ms=0) as story:
        story.start("a", 0)
        story.request(3, timer_id=b"a", millis=500)
        story.until(3.2)
        story.cancel(b"a")
        story.until(4.5)
        assert (story.fired(), story.answers()) == ([(0, 3.0)], ["TOO_LATE"])


def test_a_request_that_is_due_already_fires_at_once() -> None:
    with told() as story:
        story.start("a", 0)
        story.until(3.3)
        story.request(3)
        story.request(3, millis=200)
        story.until(3.4)
        assert [(number, round(at_s, 1)) for number, at_s in story.fired()] == [(0, 3.3), (1, 3.3)]
        story.finish()


def test_moments_of_a_second_follow_each_other_no_faster_than_the_settings_say() -> None:
    with told(instant_every_ms=100, seal_every_s=9) as story:
        story.start("a", 0)
        for millis in range(300, 500, 5):
            story.request(3, millis=millis)
        story.until(3.95)
        assert [second for second, _ in story.sealed()][1:] == [3, 3, 3]
        assert len(story.fired()) == 40
        story.finish()


def test_a_partition_whose_scan_comes_later_asks_for_the_end_of_that_moment() -> None:
    """The other partition of the worker has asked for both, before the cancel; this one still waits for a commit."""
    timer_id = next(b"%d" % each for each in range(50) if hash_of(b"%d" % each) % 2)
    with mock.patch.object(faults, "_DELAYS_S", (0.5,)), told(partitions=2, arm_bytes=1 << 20) as story:
        story.start("a", 0, 1)
        story.until(1.5)
        story.request(2, number=1, millis=900)
        story.request(3, number=1, millis=350, timer_id=timer_id)
        story.until(2.85)
        story.faults.next("commit_is_slow")
        story.until(3.1)
        story.cancel(timer_id, number=1)
        story.until(3.9)
        assert ([number for number, _ in story.fired(1)], story.answers(1)) == ([0], ["CANCELLED"])
        story.finish()


def test_a_takeover_within_a_second_fires_the_rest_of_it() -> None:
    with told() as story:
        a = story.start("a", 0)
        for millis in (0, 300, 600, 900):
            story.request(3, millis=millis)
        story.until(3.4)
        story.world.group.kill(a)
        story.start("b", 0)
        story.finish()
        assert [number for number, _ in story.fired()] == [0, 1, 2, 3]
        assert story.fired()[1][1] < 3.31


def test_a_second_of_many_moments_says_once_who_fires() -> None:
    with told() as story:
        story.start("a", 0)
        for millis in (0, 300, 350, 400, 900):
            story.request(3, millis=millis)
        story.request(4, millis=100)
        story.finish()
        seals = [seal for seal in found_in(story.kafka)[0].seals if seal.fired]
        assert [bool(seal.worker and seal.log) for seal in seals] == [True, *[False] * 4, True]
        assert max(seal.ByteSize() for seal in seals if not seal.worker) < 160


@pytest.mark.parametrize("is_compacted", [True, False])
def test_what_a_second_has_said_once_outlasts_compaction_and_the_loss_of_the_store(is_compacted: bool) -> None:
    """
    The next owner has no store. Only the whole seal of the second names the request that is to be ignored: the one seal
    of its key that compaction has left, or the last one before many others.
    """
    with told() as story:
        a = story.start("a", 0)
        story.request(3, timer_id=b"a")
        moments = range(200, 600, 10)
        for millis in moments:
            story.request(3, millis=millis)
        story.until(3.1)
        story.request(9, timer_id=b"a", more={"condition": Condition.IF_ABSENT})
        story.until(3.555)
        last = found_in(story.kafka)[0].seals[-1]
        assert (last.fired, last.worker, [*last.ignored]) == (1, "", [])
        story.world.group.kill(a)
        if is_compacted:
            story.world.nemesis.compact()
        story.start("b", 0)
        story.until(12)
        assert [number for number, _ in story.fired()] == [*range(1 + len(moments))]


def test_a_cancel_that_was_appended_before_the_millisecond_is_waited_for() -> None:
    """It is on its way when the moment comes."""
    with told() as story:
        story.start("a", 0)
        story.request(3, timer_id=b"a", millis=500)
        story.until(3.499)
        with mock.patch.object(story.network, "lag_s", return_value=0.05):
            story.cancel(b"a")
            story.until(3.6)
        story.finish()
        assert (story.fired(), story.answers()) == ([], ["CANCELLED"])
