"""`timer-request` is deleted and made anew, or restored: nothing of it fires until people have said what it is."""

from collections import Counter

import pytest

from kafka_timers.core.log_identity import begun_anew, gone_on
from kafka_timers.core.wire import Sealed, sealed_from
from simulation.assembly import Process
from simulation.log import Record
from simulation.told import Story, told

# As many as let the new log grow beyond all that was read of the old one.
_MANY = 12


def with_five_fired(story: Story, waits_until: int) -> Process:
    """Start a worker, and ask for five timers that fire and for one that waits."""
    worker = story.start("a", 0)
    for _ in range(5):
        story.request(3)
    story.request(waits_until)
    return worker


def end(story: Story, worker: Process) -> None:
    worker.give_up()
    story.world.group.members.remove(worker)


def made_anew(story: Story) -> None:
    story.kafka.create(story.kafka.own.requests, 1)


def restored(story: Story) -> None:
    """All records come back at their offsets."""
    old = story.kafka.requests(0)
    made_anew(story)
    story.kafka.requests(0).records[:] = old.records


def payloads(story: Story) -> Counter[bytes]:
    """Return how often each request has fired."""
    logs = (story.kafka.logs["calm", number] for number in (0, 1))
    return Counter(record.value for log in logs for record in log.committed() if record.value)


def of(first: int, last: int) -> Counter[bytes]:
    return Counter(b"payload %d" % number for number in range(first, last + 1))


def last_seals(story: Story) -> list[Sealed]:
    records = [record.value or b"" for record in story.kafka.sealed(0).committed()]
    return [sealed_from(value, topic="", partition=0, offset=0) for value in records if value]


def write(story: Story, seals: list[Sealed]) -> None:
    for seal in seals:
        story.kafka.sealed(0).append(Record(b"", seal.SerializeToString()), story.kafka.now_ms)


@pytest.mark.parametrize("keeps_store", [True, False])
@pytest.mark.parametrize("runs", [True, False])
def test_a_log_made_anew_stands_still_however_long_it_grows_until_it_is_said_to_be_another(
    runs: bool, keeps_store: bool
) -> None:
    with told() as story:
        a = with_five_fired(story, 60)
        story.until(5)
        assert payloads(story) == of(1, 5)
        if not runs:
            end(story, a)
            story.until(6)
        made_anew(story)
        for _ in range(_MANY):
            story.request(12)
        story.until(8)
        b = a if runs else story.start("a" if keeps_store else "b", 0)
        story.until(20)
        [problem] = b.problems()
        assert "partition 0" in problem
        assert "made anew" in problem
        assert payloads(story) == of(1, 5)
        seals = last_seals(story)
        write(story, begun_anew(seals[-3:], b"timer-request 1"))
        story.until(70)
        assert not b.problems()
        # The one that waited is gone with its log.
        assert payloads(story) == of(1, 5) + of(7, 6 + _MANY)


@pytest.mark.parametrize("is_open", [True, False])
def test_a_log_restored_with_its_offsets_goes_on_where_it_was(is_open: bool) -> None:
    with told(slice_rows=2, seal_every_s=1) as story:
        a = with_five_fired(story, 30)
        story.until(2.9)
        if is_open:
            # Nothing follows the first two slices.
            story.coordinator_is_silent(6)
        story.until(5)
        end(story, a)
        story.until(8)
        fired = payloads(story)
        restored(story)
        b = story.start("b", 0)
        story.until(12)
        assert "made anew, restored" in b.problems()[0]
        assert payloads(story) == fired
        write(story, gone_on(last_seals(story), b"timer-request 1", None, 0))
        story.until(40)
        assert payloads(story) == of(1, 6)


def test_a_log_mirrored_with_other_offsets_goes_on_behind_what_has_fired() -> None:
    with told() as story:
        a = with_five_fired(story, 30)
        story.until(6)
        end(story, a)
        story.until(7)
        made_anew(story)
        # The mirror has two of what has fired, and what waits.
        for second in (3, 3, 30):
            story.request(second)
        story.request(9)
        b = story.start("a", 0)
        story.until(12)
        assert payloads(story) == of(1, 5)
        write(story, gone_on(last_seals(story), b"timer-request 1", 3, 0))
        story.until(40)
        assert not b.problems()
        assert payloads(story) == of(1, 5) + of(9, 10)
