"""Told stories: what the worker does in one situation each, from the first to the last."""

from simulation.clients import Wish, write
from simulation.loop import EPOCH_S
from simulation.told import told


def test_a_request_fires_in_its_second() -> None:
    with told() as story:
        story.start("a", 0)
        story.request(3)
        story.until(2.9)
        assert story.fired() == []
        story.until(3.5)
        assert story.fired() == [(0, 3.0)]
        story.finish()


def test_a_cancelled_timer_does_not_fire_and_whoever_cancels_is_told() -> None:
    with told() as story:
        story.start("a", 0)
        story.request(3, timer_id=b"a")
        story.until(2.9)
        story.cancel(b"a")
        story.finish()
        assert (story.fired(), story.answers()) == ([], ["CANCELLED"])


def test_a_cancel_in_its_second_is_too_late() -> None:
    with told() as story:
        story.start("a", 0)
        story.request(3, timer_id=b"a")
        story.until(3.1)
        story.cancel(b"a")
        story.finish()
        assert (story.fired(), story.answers()) == ([(0, 3.0)], ["TOO_LATE"])


def test_a_commit_that_nobody_has_heard_of_is_not_repeated() -> None:
    with told() as story:
        story.start("a", 0)
        story.request(3)
        story.until(2.5)
        story.faults.next("commit_is_not_answered")
        story.until(4)
        story.finish()
        assert story.fired() == [(0, 3.0)]


def test_a_paused_owner_that_goes_on_repeats_nothing() -> None:
    with told(slice_rows=1) as story:
        a = story.start("a", 0)
        for _ in range(3):
            story.request(3)
        story.until(2.5)
        story.coordinator_is_silent(3.2)
        story.until(3.1)
        story.world.loop.pause(a.name)
        story.until(3.5)
        story.start("b", 0)
        story.until(5)
        story.world.loop.resume(a.name)
        story.until(8)
        story.world.group.members.remove(a)
        a.give_up()
        story.finish()
        assert [offset for offset, _ in story.fired()] == [0, 1, 2]


def test_a_worker_that_is_killed_with_its_disk_loses_nothing() -> None:
    with told() as story:
        a = story.start("a", 0)
        story.request(5, timer_id=b"a")
        story.request(5)
        story.until(2)
        story.cancel(b"a")
        story.until(3)
        story.world.group.kill(a, keeps=False, for_s=0.5)
        story.until(4)
        story.world.group.members[0].own([0])
        story.finish()
        assert (story.fired(), story.answers()) == ([(1, 5.0)], ["CANCELLED"])


def test_a_paused_owner_says_of_nothing_that_it_was_cancelled() -> None:
    """A cancel of an open transaction can be read only when another owner has fired what it is about."""
    with told() as story:
        a = story.start("a", 0)
        story.request(3, timer_id=b"a")
        story.until(2.1)
        transaction = story.kafka.begin("client")
        story.cancel(b"a", transaction=transaction)
        story.world.loop.pause(a.name)
        b = story.start("b", 0)
        story.until(3.2)
        assert story.fired() == [(0, 3.0)]
        b.give_up()
        story.until(3.3)
        story.kafka.commit(transaction)
        story.world.loop.resume(a.name)
        story.until(3.9)
        story.world.group.members.remove(a)
        a.give_up()
        b.own([0])
        story.finish()
        assert story.answers() == ["TOO_LATE"]


def test_records_that_no_worker_may_accept_stop_nothing() -> None:
    with told() as story:
        story.start("a", 0)
        story.request(3)
        for key, value in ((None, b""), (b"soon", b""), (b"3" * 9_000, b"\xff"), (b"%d" % (EPOCH_S + 3), b"\xff\xff")):
            write(story.kafka, story.kafka.requests(0), key, value, Wish(is_refused=True))
        story.finish()
        assert story.fired() == [(0, 3.0)]
