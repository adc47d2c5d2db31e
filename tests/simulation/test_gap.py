"""Requests leave the log before they fire, as after too short a retention: their stores are the only copies."""

from collections import Counter

import pytest

from kafka_timers.core.wire import Sealed
from simulation.assembly import Process
from simulation.promises import found_in
from simulation.told import Story, told

PARTITIONS = 4
EACH = 3


def payloads(story: Story) -> Counter[bytes]:
    """Return how often each request has fired."""
    logs = (story.kafka.logs["calm", number] for number in (0, 1))
    return Counter(record.value for log in logs for record in log.committed() if record.value)


def of(first: int, last: int) -> Counter[bytes]:
    return Counter(b"payload %d" % number for number in range(first, last + 1))


def last_seal(story: Story, number: int = 0) -> Sealed:
    return found_in(story.kafka)[number].seals[-1]


def with_all_waiting(story: Story, second: int) -> Process:
    """Start a worker, have it read timers in all partitions, and delete their requests."""
    worker = story.join("a")
    for number in range(PARTITIONS):
        for _ in range(EACH):
            story.request(second, number=number)
    story.until(5)
    return worker


def delete_all(story: Story) -> None:
    for number in range(PARTITIONS):
        log = story.kafka.requests(number)
        log.start = log.end


@pytest.mark.parametrize("a_is_first", [True, False])
def test_timers_whose_requests_have_left_the_log_fire_though_another_member_joins(a_is_first: bool) -> None:
    with told(partitions=PARTITIONS, stalled_after_s=90) as story:
        story.leave(with_all_waiting(story, 40))
        delete_all(story)
        first = story.join("a" if a_is_first else "b")
        story.until(9)
        if not a_is_first:
            problems = first.problems()
            assert len(problems) == PARTITIONS
            assert all("timers may wait from offset" in problem for problem in problems)
        second = story.join("b" if a_is_first else "a")
        story.until(12)
        holder = first if a_is_first else second
        assert sorted(holder.owners) == [*range(PARTITIONS)]
        assert [f"{EACH} timers have left" in problem for problem in holder.problems()] == [True] * PARTITIONS
        assert {last_seal(story, number).held_alone for number in range(PARTITIONS)} == {EACH}
        story.until(50)
        assert payloads(story) == of(1, PARTITIONS * EACH)
        assert not holder.problems()
        assert not holder.stores.alone
        story.rebalance()
        story.until(51)
        assert {len(process.owners) for process in (first, second)} == {PARTITIONS // 2}


def test_requests_that_leave_the_log_under_a_worker_are_told_and_keep_the_partition_there() -> None:
    with told(partitions=PARTITIONS, stalled_after_s=90) as story:
        a = with_all_waiting(story, 40)
        assert not a.problems()
        # Of partition 0 one is left in the log.
        delete_all(story)
        log = story.kafka.requests(0)
        log.start = max(record.offset for record in log.records if record.about)
        story.until(12)
        told_of = [problem.split(" timers")[0] for problem in a.problems()]
        assert told_of == ["partition 0: 2", *(f"partition {number}: {EACH}" for number in range(1, PARTITIONS))]
        assert last_seal(story).held_alone == 2
        story.join("b")
        story.until(14)
        assert sorted(a.owners) == [*range(PARTITIONS)]
        assert len(a.problems()) == PARTITIONS
        story.until(50)
        assert payloads(story) == of(1, PARTITIONS * EACH)


def test_without_a_member_that_has_them_the_others_fire_a_minute_later(capsys: pytest.CaptureFixture[str]) -> None:
    with told(stalled_after_s=90) as story:
        a = story.start("a", 0)
        story.request(30)
        story.request(30)
        story.until(4)
        story.leave(a)
        story.kafka.requests(0).start = 1
        b = story.start("b", 0)
        sealed = story.sealed()
        story.until(63)
        assert "timers may wait from offset 0 on" in b.problems()[0]
        assert story.sealed() == sealed
        assert payloads(story) == Counter()
        story.until(70)
        assert payloads(story) == of(2, 2)
        assert "timer-request has lost its offsets 0 to 0" in b.problems()[0]
        assert (last_seal(story).lost_from, last_seal(story).lost_to) == (0, 1)
        printed = capsys.readouterr().out
        assert printed.count("timers may wait from offset 0 on") == 1
        assert printed.count("the timers that wait at offsets 0 to 0 of timer-request are lost") == 1
        # The next owner without a store has nothing to wait for.
        story.leave(b)
        story.request(72)
        c = story.start("c", 0)
        story.until(75)
        assert payloads(story) == of(2, 3)
        assert not c.problems()


def test_a_store_that_has_not_read_all_that_has_left_the_log_waits_for_one_that_has() -> None:
    with told(stalled_after_s=90) as story:
        a = story.start("a", 0)
        story.request(40)
        story.until(4)
        story.leave(a)
        b = story.start("b", 0)
        story.request(40)
        story.until(8)
        story.leave(b)
        log = story.kafka.requests(0)
        log.start = log.end
        a = story.join("a")
        story.until(10)
        assert "timers may wait from offset" in a.problems()[0]
        b = story.join("b")
        story.until(12)
        assert (list(a.owners), list(b.owners)) == ([], [0])
        assert "2 timers have left" in b.problems()[0]
        story.until(45)
        assert payloads(story) == of(1, 2)


def test_a_full_disk_does_not_cost_the_only_copy() -> None:
    with told(stalled_after_s=90) as story:
        a = story.start("a", 0)
        story.request(30)
        story.until(4)
        log = story.kafka.requests(0)
        log.start = log.end
        story.until(11)
        a.disk.is_full = True
        story.until(15)
        assert "is full" in a.problems()[0]
        a.disk.is_full = False
        story.until(35)
        assert payloads(story) == of(1, 1)


def test_nobody_waits_for_what_has_fired_though_the_log_starts_above_it() -> None:
    with told(stalled_after_s=90) as story:
        a = story.start("a", 0)
        for second in (3, 3, 3, 40):
            story.request(second)
        story.until(5)
        # The first of these lie in chunks of which the store remembers more than it needs.
        waits = max(record.offset for record in story.kafka.requests(0).records if record.about)
        assert last_seal(story).restore_from < waits
        story.kafka.requests(0).start = waits
        story.until(11)
        assert not a.problems()
        assert last_seal(story).restore_from == waits
        story.leave(a)
        b = story.start("b", 0)
        story.until(14)
        assert not b.problems()
        story.until(45)
        assert payloads(story) == of(1, 4)


def test_a_crash_does_not_cost_the_only_copy() -> None:
    with told(stalled_after_s=90) as story:
        a = story.start("a", 0)
        story.request(30)
        story.until(4)
        log = story.kafka.requests(0)
        log.start = log.end
        story.until(11)
        story.world.group.kill(a, for_s=0.5)
        story.until(12)
        story.rebalance()
        story.until(35)
        assert payloads(story) == of(1, 1)
