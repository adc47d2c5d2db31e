"""
Told stories of faults that the first version did not survive: a hiccup, a hostile record, or a full disk each.

Each of them was seen to fail on that version.
"""

from typing import Any
from unittest import mock

import pytest

from kafka_timers.core.routing import hash_of
from kafka_timers.core.wire import Copy
from kafka_timers.worker.owner import Owner
from simulation.assembly import DiskStores
from simulation.clients import COMPACTED, MOODY, Wish, write
from simulation.told import told

# Of two partitions they belong into the first.
_ID_OF_0, _NOBODY = [name for name in (b"%d" % number for number in range(9)) if hash_of(name) % 2 == 0][:2]


def test_a_coordinator_that_is_not_available_once_stops_no_partition() -> None:
    """An answer is outstanding while a second of several slices fires; the question for it fails, once."""
    with told(slice_rows=2) as story:
        story.start("a", 0)
        for _ in range(5):
            story.request(3)
        story.request(60, timer_id=b"a")
        story.until(2.8)
        story.faults.next("coordinator_fails")
        story.coordinator_is_silent(3.5)
        story.cancel(b"a")
        story.until(5)
        story.finish()
        assert [offset for offset, _ in story.fired()] == [0, 1, 2, 3, 4]


def test_a_copy_with_a_negative_offset_is_refused_and_stops_nothing() -> None:
    with told() as story:
        story.start("a", 0)
        story.request(3)
        story.request(0, is_refused=True, more={"copy": Copy(offset=-1, decidedOffset=1)})
        story.request(3)
        story.finish()
        assert [offset for offset, _ in story.fired()] == [0, 2]


def test_a_callback_that_its_topic_does_not_take_stops_no_other() -> None:
    """A compacted topic takes no record without a key, and says so with an error that aiokafka has no name for."""
    with told() as story:
        story.start("a", 0)
        story.request(3)
        story.request(3, topic=COMPACTED)
        story.request(3, topic=COMPACTED, key=b"k")
        story.request(4)
        story.finish()
        assert [offset for offset, _ in story.fired()] == [0, 2, 3]


def test_a_topic_that_its_leader_has_not_heard_of_yet_gets_its_callbacks() -> None:
    """It has been made a moment ago: all other brokers tell that it is there."""
    with told() as story:
        story.start("a", 0)
        story.request(3, topic=MOODY)
        story.request(3)
        story.until(2.5)
        story.kafka.topics[MOODY].is_unheard_of = True
        story.until(4.2)
        story.kafka.topics[MOODY].is_unheard_of = False
        story.finish()
        assert [offset for offset, _ in story.fired()] == [0, 1]


def test_a_topic_that_is_gone_does_not_hold_up_the_others_of_its_second() -> None:
    with told() as story:
        story.start("a", 0)
        story.request(3, topic=MOODY)
        story.request(3)
        story.until(2.9)
        story.kafka.topics[MOODY].exists = False
        story.until(6)
        story.finish()
        [(offset, moment_s)] = story.fired()
        assert offset == 1
        assert moment_s < 4


def test_a_batch_that_is_not_taken_in_mid_second_leaves_no_locked_store() -> None:
    with told(slice_rows=2) as story:
        story.start("a", 0)
        for _ in range(9):
            story.request(3)
        story.until(2.5)
        story.faults.next("write_fails", after=1)
        story.until(4)
        story.finish()
        assert [offset for offset, _ in story.fired()] == [*range(9)]


@pytest.mark.parametrize("version", [1, 2])
def test_a_batch_whose_answer_is_lost_is_sent_again_and_costs_no_takeover(version: int) -> None:
    with told() as story:
        story.kafka.transaction_version = version
        a = story.start("a", 0)
        for _ in range(9):
            story.request(3)
        story.until(2.5)
        story.faults.next("batch_is_not_answered")
        story.until(4)
        story.finish()
        assert [offset for offset, _ in story.fired()] == [*range(9)]
        assert story.faults.happened["batch_is_not_answered"] == 1
        assert a.metrics.failures._value.get() == 0


def test_a_hand_over_that_is_cut_short_in_a_transaction_leaves_no_locked_store() -> None:
    with told(slice_rows=2) as story:
        a = story.start("a", 0)
        for _ in range(9):
            story.request(3)
        story.until(2.5)
        story.coordinator_is_silent(6)
        story.until(3.1)
        a.own([0])
        story.until(8)
        story.finish()
        assert [offset for offset, _ in story.fired()] == [*range(9)]


def test_a_producer_that_is_slow_to_end_leaves_no_locked_store() -> None:
    with told() as story:
        a = story.start("a", 0)
        story.request(5)
        story.until(2)
        story.faults.next("stop_is_slow")
        a.own([0])
        story.until(8)
        story.finish()
        assert [offset for offset, _ in story.fired()] == [0]


def test_a_second_whose_callbacks_are_all_visible_is_sealed_by_the_next_owner() -> None:
    """Its last slice was full to the last row, so nothing of its scan is left but to say that this was all."""
    with told(slice_rows=2, seal_every_s=9) as story:
        story.start("a", 0)
        story.request(3)
        story.request(3)
        story.until(2.5)
        story.faults.next("commit_is_not_answered")
        story.until(3.5)
        assert story.sealed()[1:] == [(3, False), (3, True)]
        story.finish()


def test_a_worker_that_finds_a_store_of_its_own_locked_ends_itself() -> None:
    """No retry mends it, and others can take over its partitions."""
    with told() as story:
        a = story.start("a")
        left_open = a.stores.open(0)
        a.own([0])
        story.until(1)
        assert a.gave_up
        assert a.gave_up[0].startswith("partition 0: its store is still open in this very process")
        left_open.close()
        a.gave_up.clear()
        story.finish()


def test_a_request_that_could_not_be_written_at_first_is_not_lost() -> None:
    """The disk is full for one write, while the end of the log is asked for."""
    with told() as story:
        story.start("a", 0)
        story.request(10)
        story.until(2.5)
        story.faults.next("ends_are_slow")
        story.until(3.1)
        story.faults.next("disk_write_fails")
        story.request(3)
        story.request(4)
        story.until(8)
        story.finish()
        assert [offset for offset, _ in story.fired()] == [0, 1, 2]


def test_a_topic_for_rejects_whose_limit_was_lowered_costs_one_takeover_and_gets_shorter_ones() -> None:
    with told() as story:
        worker = story.start("a", 0)
        story.until(2)
        rejected = story.kafka.topics[story.kafka.own.rejected]
        rejected.bytes_max = 1_500
        write(story.kafka, story.kafka.requests(0), b"9" * 100, b"v" * 5_000, Wish(0, is_refused=True))
        story.request(4)
        story.until(8)
        assert worker.owners[0].problem() is None
        story.finish()
        assert [offset for offset, _ in story.fired()] == [1]


def test_a_topic_for_answers_that_is_there_again_gets_them_within_seconds() -> None:
    with told() as story:
        story.start("a", 0)
        own = story.kafka.own.replies
        story.until(2)
        gone = story.kafka.topics.pop(own)
        story.cancel(b"nobody hears of it")
        story.until(4)
        story.kafka.topics[own] = gone
        story.until(10)
        assert story.answers() == []
        story.cancel(b"answered")
        story.until(12)
        assert story.answers() == ["UNKNOWN"]


def test_a_disk_that_is_full_for_a_while_loses_and_repeats_nothing() -> None:
    """A cancel that could not be saved is not answered before, and a partition on another disk goes on."""
    with told(partitions=2) as story:
        a, b = story.start("a", 0), story.start("b", 1)
        for second in (3, 6, 9):
            story.request(second)
            story.request(second, number=1)
        story.request(9, timer_id=_ID_OF_0)
        story.until(4)
        a.disk.is_full = True
        story.cancel(_ID_OF_0)
        story.until(7.5)
        assert "stands still (the disk of a is full)" in (a.owners[0].problem() or "")
        # Others may need the room of its records.
        assert not [*a.disk.folder.iterdir()]
        assert (b.owners[1].problem(), story.answers()) == (None, [])
        assert [offset for offset, _ in story.fired(0)] == [0]
        assert [offset for offset, _ in story.fired(1)] == [0, 1]
        a.disk.is_full = False
        story.until(10)
        assert a.owners[0].problem() is None
        story.finish()
        assert story.answers() == ["CANCELLED"]
        assert [offset for offset, _ in story.fired(0)] == [0, 1, 2]


@pytest.mark.parametrize("broken", ["make_room", "close"])
def test_a_partition_that_could_not_be_released_says_so_and_is_taken_over_again(
    broken: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A disk that has failed may raise in any call, also in those that tidy up after its fault."""
    with told() as story:
        a = story.start("a", 0)
        story.until(2.5)
        works = getattr(DiskStores, broken)

        def once(*given: Any) -> Any:
            patched.stop()
            if broken == "close":
                given[-1].close()
            raise OSError(5, "Input/output error")

        patched = mock.patch.object(DiskStores, broken, once)
        patched.start()
        a.disk.is_full = True
        story.request(3)
        story.until(3.5)
        a.disk.is_full = False
        assert "Input/output error" in (a.owners[0].problem() or "")
        assert "Input/output error" in capsys.readouterr().out
        assert getattr(DiskStores, broken) is works
        story.request(6)
        story.until(30)
        assert a.owners[0].problem() is None
        story.world.surprises.clear()
        story.finish()
        assert [offset for offset, _ in story.fired()] == [0, 1]


def test_a_worker_whose_owner_ends_by_a_fault_of_its_own_ends_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def unthought(*_: object) -> float:
        raise ValueError("nobody has thought of this")

    monkeypatch.setattr(Owner, "_reckon_with", unthought)
    with told() as story:
        a = story.start("a", 0)
        story.until(2)
        a.disk.is_full = True
        story.request(3)
        story.until(4)
        assert a.gave_up == ["partition 0: its owner ends: ValueError('nobody has thought of this')"]
        a.gave_up.clear()
        monkeypatch.undo()
        a.disk.is_full = False
        a.own([])
        a.own([0])
        story.finish()


def test_a_disk_that_is_full_at_the_start_is_waited_for_before_the_store_is_opened() -> None:
    with told() as story:
        a = story.start("a")
        a.disk.is_full = True
        story.request(3)
        a.own([0])
        story.until(5)
        assert not a.disk.folder.exists()
        a.disk.is_full = False
        story.finish()
        assert [offset for offset, _ in story.fired()] == [0]


def test_a_request_held_back_while_the_reader_begins_anew_fires_once() -> None:
    """
    A cancel becomes readable while its timer fires, and the records behind it are held back.

    Meanwhile another partition waits for much to be read, so reading goes on, and a leader changes.
    """
    with told(partitions=2, transaction_timeout_s=30.0, seal_every_s=5) as story:
        a = story.start("a", 0, 1)
        a.brokers.records_max = 4
        story.request(3, timer_id=_ID_OF_0)
        story.until(2.5)
        transaction = story.kafka.begin("client")
        story.cancel(_ID_OF_0, transaction=transaction)
        for _ in range(40):
            story.request(8)
        story.until(2.9)
        story.coordinator_is_silent(4.45)
        story.until(3.5)
        story.kafka.commit(transaction)
        for _ in range(100):
            story.request(9, number=1)
        with mock.patch.object(story.network, "lag_s", return_value=0.01):
            story.until(4.2)
            log = story.kafka.requests(0)
            log.leader = log.leader % 3 + 1
            story.until(7)
        story.finish()
        assert [offset for offset, _ in story.fired()] == [0, *range(2, 42)]


def test_a_question_that_fails_once_costs_no_takeover_of_all_partitions() -> None:
    with told(partitions=3) as story:
        a = story.start("a", 0, 1, 2)
        for number in range(3):
            story.request(3, number=number)
        story.until(2.5)
        story.faults.next("ends_fail")
        story.until(3.9)
        assert [len(story.fired(number)) for number in range(3)] == [1, 1, 1]
        assert a.metrics.failures._value.get() <= 1
        story.finish()


def test_a_question_that_fails_when_nobody_waits_for_it_any_more_is_no_noise() -> None:
    with told() as story:
        a = story.start("a", 0)
        story.until(2.5)
        story.network.freeze(story.kafka.requests(0).leader)
        story.until(3.5)
        a.give_up()
        story.until(20)


def test_a_worker_that_is_killed_while_it_closes_its_store_knows_the_cancelled_timers() -> None:
    """The rows are on the disk, the cancel is not: both or none have to be."""
    with told() as story:
        a = story.start("a", 0)
        story.request(6, timer_id=b"a")
        story.until(2)
        story.cancel(b"a")
        story.until(3)
        story.faults.next("killed_while_closing")
        a.give_up()
        story.until(4)
        [b] = story.world.group.members
        b.own([0])
        story.finish()
        assert story.fired() == []


def test_a_coordinator_that_moves_costs_no_takeover() -> None:
    with told() as story:
        a = story.start("a", 0)
        story.request(3)
        story.request(4)
        story.until(3.5)
        story.kafka.coordinator = 1
        story.until(5)
        story.finish()
        assert story.fired() == [(0, 3.0), (1, 4.0)]
        assert a.metrics.failures._value.get() == 0


def test_a_takeover_believes_no_leader_of_the_seals_that_is_none_any_more() -> None:
    with told() as story:
        a = story.start("a", 0)
        story.request(3)
        story.until(2.5)
        sealed = story.kafka.sealed(0)
        # A process that has asked it before goes on asking it; one that starts then learns of the new one.
        b = story.start("b")
        sealed.cut_off(sealed.leader, sealed.leader % 3 + 1)
        story.until(4)
        a.give_up()
        b.own([0])
        story.until(6)
        sealed.out_of_date.clear()
        story.finish()
        assert story.fired() == [(0, 3.0)]


def test_a_tick_believes_no_leader_of_the_requests_that_is_none_any_more() -> None:
    with told() as story:
        story.start("a", 0)
        story.until(1.5)
        log = story.kafka.requests(0)
        log.cut_off(log.leader, log.leader % 3 + 1)
        story.request(3)
        story.until(10)
        log.out_of_date.clear()
        story.finish()
        assert story.fired() == [(0, 3.0)]


def test_a_request_for_an_earlier_millisecond_than_what_is_ready_fires_too() -> None:
    """It comes when the callbacks of its second are built, and lies before them."""
    with told(instant_every_ms=0, arm_bytes=1 << 20) as story:
        story.start("a", 0)
        story.until(1.5)
        story.request(5, millis=500)
        story.until(4.5)
        story.request(5, millis=100)
        story.until(8)
        assert sorted(number for number, _ in story.fired()) == [0, 1]


def test_an_answer_that_came_after_the_question_for_the_owner_is_not_confirmed_by_it() -> None:
    """
    The coordinator says late that A was the owner. Meanwhile B has fired the timer whose cancel A has read.

    That one was in a transaction, so B could not read it in time.
    """
    with told() as story:
        a = story.start("a", 0)
        story.request(3, timer_id=b"a")
        story.request(9, timer_id=b"b")
        story.until(2.94)
        node = story.kafka.coordinator
        story.network.freeze(node)
        story.cancel(b"b")
        story.until(2.95)
        transaction = story.kafka.begin("client")
        story.cancel(b"a", transaction=transaction)
        a._ticks.leave([0])
        story.until(2.97)
        story.kafka.coordinator = 1
        story.start("b", 0)
        story.until(3.2)
        assert [number for number, _ in story.fired()] == [0]
        story.kafka.commit(transaction)
        story.until(3.3)
        story.network.thaw(node)
        story.until(3.8)
        story.world.group.members.remove(a)
        a.give_up()
        story.finish()


def test_an_answer_to_a_cancel_that_was_read_while_a_seal_left_outlasts_its_worker() -> None:
    """
    The seal covers what lies below its snapshot. The answer to a later record stays in the store until it is sent.

     1. partition 0 has a seal to write that drops the answers it covers; the leader of its seals is silent
     2. partition 1 waits for a request, so records are read while the slice is open, and among them a cancel
     3. the seal is taken; answers wait, since their topic lacks replicas; the worker ends
    """
    with told(partitions=2) as story:
        for log in story.kafka.logs.values():
            log.leader = 1
        story.kafka.sealed(0).leader = 3
        story.kafka.requests(1).leader = 2
        replies = story.kafka.topics[story.kafka.own.replies]
        a = story.start("a", 0, 1)
        story.request(3)
        story.request(60, timer_id=_ID_OF_0)
        story.until(2.5)
        story.cancel(_NOBODY)
        story.until(2.9)
        story.network.freeze(2)
        story.network.freeze(3)
        story.request(60, number=1)
        story.until(3.1)
        replies.is_short = True
        story.cancel(_ID_OF_0)
        story.until(3.2)
        story.network.thaw(2)
        story.until(3.4)
        story.network.thaw(3)
        story.until(3.7)
        assert [number for number, _ in story.fired()] == [0]
        story.leave(a)
        # Its batch of answers, which waits for replicas, goes with it.
        story.end(a)
        replies.is_short = False
        story.start("a", 0, 1)
        story.until(6)
        assert story.answers() == ["UNKNOWN", "CANCELLED"]
        story.finish()
