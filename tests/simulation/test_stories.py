"""Told stories: the worker in one situation each, from the first event to the last."""

import asyncio
from unittest import mock

import pytest

from kafka_timers.broker import codes
from kafka_timers.broker.bounds import LogBounds
from kafka_timers.core.wire import Copy
from simulation.assembly import Process
from simulation.clients import MOODY, Wish, write
from simulation.log import Transaction
from simulation.loop import EPOCH_S
from simulation.told import Story, told


def test_a_request_fires_in_its_second() -> None:
    with told() as story:
        story.start("a", 0)
        story.request(3)
        story.until(2.9)
        assert story.fired() == []
        story.until(3.5)
        assert story.fired() == [(0, 3.0)]
        story.finish()


def test_a_cancelled_timer_does_not_fire_and_the_cancel_is_answered() -> None:
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
        # It rests, instead of shutting out the one that owns the partition now.
        assert (a.metrics.fenced._value.get(), a.metrics.failures._value.get()) == (1, 0)


@pytest.mark.parametrize("version", [1, 2])
def test_an_owner_whose_ids_have_expired_fires_on_at_once(version: int) -> None:
    """Nobody else was let in, so it waits for no session."""
    with told() as story:
        story.kafka.transaction_version = version
        a = story.start("a", 0)
        story.request(3)
        story.until(4)
        for name in [*story.kafka.identities]:
            story.kafka.expire(name)
        story.request(6)
        story.until(7)
        assert story.fired() == [(0, 3.0), (1, 6.0)]
        assert (a.metrics.fenced._value.get(), a.metrics.failures._value.get()) == (0, 1)
        story.finish()


def test_an_owner_whose_ids_have_expired_for_the_sake_of_another_rests() -> None:
    """The other has made them anew, so the first one has shut it out once, and does so no more."""
    with told() as story:
        a = story.start("a", 0)
        story.until(3)
        for second in (4, 4.3):
            story.until(second)
            for name in [*story.kafka.identities]:
                story.kafka.expire(name)
            story.request(5)
        story.until(6)
        assert (a.metrics.fenced._value.get(), a.metrics.failures._value.get()) == (1, 1)
        story.finish()
        assert [offset for offset, _ in story.fired()] == [0, 1]


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


def test_a_worker_that_reads_slowly_does_not_repeat_timers_that_it_has_not_read_yet() -> None:
    """Its disk is new, and ticks come while it reads; a seal of its own would say that less was read than before."""
    with told(fence_wait_s=0.1) as story:
        a = story.start("a", 0)
        story.request(12)
        for _ in range(6):
            story.request(3)
        story.until(4)
        story.world.group.kill(a, keeps=False, for_s=0.5)
        story.until(4.6)
        b = story.world.group.members[0]
        b.brokers.records_max = 1
        with mock.patch.object(story.network, "lag_s", return_value=0.1):
            b.own([0])
            story.until(8)
        story.finish()
        assert [offset for offset, _ in story.fired()] == [*range(7)]


def test_a_worker_that_reads_too_slowly_says_so_while_seconds_fire_without_unread_requests() -> None:
    """It fires and seals each second as ever, and has proved where the log ends."""
    with told(fence_wait_s=0.1) as story:
        a = story.start("a", 0)
        story.until(1.5)
        a.brokers.records_max = 1
        with mock.patch.object(story.network, "lag_s", return_value=0.3):
            for _ in range(40):
                story.request(3)
            story.until(6)
            assert not a.problems()
            story.until(13)
            [problem] = a.problems()
            assert "have not been read, and seconds fire without them" in problem
        story.until(16)
        assert not a.problems()
        story.finish()
        assert [offset for offset, _ in story.fired()] == [*range(40)]


def test_a_copy_from_the_lake_has_a_new_worker_read_the_records_since_its_decision() -> None:
    """The new one begins behind the request, which was left to the lake, and behind all that came after it."""
    with told(horizon_s=5, no_planner=True) as story:
        a = story.start("a", 0)
        far = story.request(20)
        for _ in range(6):
            story.request(3)
        story.until(5)
        story.world.group.kill(a, keeps=False, for_s=0.5)
        story.until(6)
        story.world.group.members[0].own([0])
        story.until(7)
        copy = Copy(offset=far.offset, appended=EPOCH_S, decidedOffset=far.offset + 1, decided=EPOCH_S + 6)
        story.request(20, more={"copy": copy})
        # The promises about copies are known to the walk, and not to the simulation.
        story.until(21)
        assert [offset for offset, _ in story.fired()] == [*range(7)]


def _pauses_behind_an_open_cancel(story: Story, owner: Process) -> Transaction:
    """Cancel timer `a` in a transaction that stays open, and is returned; pause *owner*."""
    transaction = story.kafka.begin("client")
    story.cancel(b"a", transaction=transaction)
    story.world.loop.pause(owner.name)
    return transaction


def _a_paused_owner_reads_a_cancel_late(story: Story) -> tuple[Process, Process]:
    """
    Have A, which owns the partition no more, read a cancel that B could not read when it fired.

    1. A is paused, a transaction with a cancel is open    2. B fires the timer of the cancel
    3. the transaction is committed    4. A goes on, reads the cancel, and finds the timer pending
    """
    a = story.start("a", 0)
    story.request(3, timer_id=b"a")
    story.until(2.1)
    transaction = _pauses_behind_an_open_cancel(story, a)
    b = story.start("b", 0)
    story.until(3.2)
    assert story.fired() == [(0, 3.0)]
    b.give_up()
    story.until(3.3)
    story.kafka.commit(transaction)
    story.world.loop.resume(a.name)
    story.until(3.9)
    a.give_up()
    b.own([0])
    return a, b


def test_a_paused_owner_says_of_nothing_that_it_was_cancelled() -> None:
    with told() as story:
        _a_paused_owner_reads_a_cancel_late(story)
        story.finish()
        assert story.answers() == ["TOO_LATE"]


def test_an_owner_that_is_shut_out_before_it_has_read_the_seals_goes_no_further() -> None:
    """
    Compaction has removed the seals below its barrier, since the next owner has replaced them. Without any, it would
    read and answer requests by the rules of a service that has never fired.
    """
    with told() as story:
        first = story.start("first", 0)
        story.until(2.5)
        first.give_up()
        loop, sealed, starts = story.world.loop, story.kafka.sealed(0), LogBounds.starts
        before = len(sealed.records)

        async def pause_first(bounds: LogBounds, numbers: list[int]) -> dict[int, int]:
            # Its barrier is there, and it knows by that where the seals end.
            if len(sealed.records) > before:
                loop.pause(paused.name)
                await asyncio.sleep(0)
            return await starts(bounds, numbers)

        with mock.patch.object(LogBounds, "starts", pause_first):
            paused = story.start("paused", 0)
            story.until(3.5)
        story.start("next", 0)
        story.until(5)
        story.world.nemesis.compact()
        loop.resume(paused.name)
        story.until(8)
        story.world.group.members.remove(paused)
        paused.give_up()
        story.finish()
        takeovers = [paused.metrics.takeovers.labels(kind)._value.get() for kind in ("kept", "rebuilt")]
        assert (paused.metrics.fenced._value.get(), takeovers) == (1, [0, 0])


def test_a_cancel_by_a_paused_owner_is_no_knowledge_for_later() -> None:
    with told() as story:
        a, b = _a_paused_owner_reads_a_cancel_late(story)
        story.until(6)
        b.give_up()
        a.own([0])
        story.until(7)
        story.cancel(b"a")
        story.finish()
        assert story.answers() == ["TOO_LATE", "UNKNOWN"]


def test_a_timer_cancelled_by_a_paused_owner_fires_if_the_open_scan_says_so() -> None:
    """A part of the second is sealed by an owner that could not read the cancel, and is gone."""
    with told(slice_rows=1) as story:
        a = story.start("a", 0)
        story.request(3)
        story.request(4, timer_id=b"a")
        story.until(2.5)
        transaction = _pauses_behind_an_open_cancel(story, a)
        story.until(3.5)
        b = story.start("b", 0)
        with mock.patch.object(story.network, "lag_s", return_value=0.01):
            while not story.fired():
                story.until(story.world.loop.time() + 0.01)
            story.world.group.kill(b, for_s=60)
            story.until(5)
        story.kafka.commit(transaction)
        story.world.loop.resume(a.name)
        story.finish()
        assert ([offset for offset, _ in story.fired()], story.answers()) == ([0, 1], ["TOO_LATE"])


def test_an_answer_of_a_paused_owner_is_corrected_once_it_knows_what_fired_meanwhile() -> None:
    """It reads the cancel before it hears that it was shut out, and is the next owner after the other one's death."""
    with told() as story:
        a = story.start("a", 0)
        story.request(4, timer_id=b"a")
        story.until(2.5)
        transaction = _pauses_behind_an_open_cancel(story, a)
        story.until(3.5)
        b = story.start("b", 0)
        story.until(4.6)
        story.world.group.kill(b, for_s=60)
        story.kafka.commit(transaction)
        story.coordinator_is_silent(7)
        story.world.loop.resume(a.name)
        story.finish()
        assert ([offset for offset, _ in story.fired()], story.answers()) == ([0], ["TOO_LATE"])


def test_records_that_no_worker_may_accept_stop_nothing() -> None:
    with told() as story:
        story.start("a", 0)
        story.request(3)
        for key, value in ((None, b""), (b"soon", b""), (b"3" * 9_000, b"\xff"), (b"%d" % (EPOCH_S + 3), b"\xff\xff")):
            write(story.kafka, story.kafka.requests(0), key, value, Wish(is_refused=True))
        story.finish()
        assert story.fired() == [(0, 3.0)]


def test_a_topic_that_refuses_once_gets_its_callbacks() -> None:
    with told() as story:
        story.start("a", 0)
        story.request(3, topic=MOODY)
        story.request(3)
        story.until(2.5)
        refusals = {MOODY: codes.TOPIC_AUTHORIZATION_FAILED}
        with mock.patch.object(story.kafka, "refusal", side_effect=lambda topic, *_: refusals.pop(topic, 0)):
            story.until(4)
        story.finish()
        assert refusals == {}
        assert sorted(offset for offset, _ in story.fired()) == [0, 1]
