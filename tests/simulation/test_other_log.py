"""`timer-request` is deleted and made anew, or restored: nothing of it fires until people have said what it is."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from kafka_timers.core.keys import FIRST_MS
from kafka_timers.core.log_identity import begun_anew, gone_on, unsealed
from kafka_timers.core.wire import Sealed, sealed_from
from simulation.assembly import Process
from simulation.log import Record
from simulation.loop import EPOCH_S
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


def changed(story: Story, worker: Process, change: Callable[[], None], *, runs: bool, keeps_store: bool) -> Process:
    """
    Change the log, let it grow beyond all that was read of it, and return the worker that meets it.

    Args:
        runs: whether *worker* runs on; else it ends before, and another one follows.
        keeps_store: whether that one has its disk.
    """
    if not runs:
        end(story, worker)
        story.until(6)
    change()
    for _ in range(_MANY):
        story.request(12)
    story.until(8)
    return worker if runs else story.start("a" if keeps_store else "b", 0)


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
        b = changed(story, a, lambda: made_anew(story), runs=runs, keeps_store=keeps_store)
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


# --- no broker tells an id -------------------------------------------------------------------------------------------


@contextmanager
def told_without_ids() -> Iterator[Story]:
    with told() as story:
        story.kafka.tells_ids = False
        yield story


@pytest.mark.parametrize("keeps_store", [True, False])
def test_without_ids_a_log_made_anew_with_as_many_records_stands_still_until_it_is_said_to_be_another(
    keeps_store: bool,
) -> None:
    with told_without_ids() as story:
        a = with_five_fired(story, 60)
        story.until(5)
        b = changed(story, a, lambda: made_anew(story), runs=False, keeps_store=keeps_store)
        story.until(20)
        [problem] = b.problems()
        assert "has another batch at offset" in problem
        assert payloads(story) == of(1, 5)
        write(story, begun_anew(last_seals(story)[-3:], b""))
        story.until(70)
        assert not b.problems()
        assert payloads(story) == of(1, 5) + of(7, 6 + _MANY)


@pytest.mark.parametrize("keeps_store", [True, False])
def test_without_ids_the_same_log_goes_on(keeps_store: bool) -> None:
    with told_without_ids() as story:
        a = with_five_fired(story, 30)
        story.until(5)
        b = changed(story, a, lambda: None, runs=False, keeps_store=keeps_store)
        story.until(40)
        assert not b.problems()
        assert payloads(story) == of(1, 6 + _MANY)
        kind = "kept" if keeps_store else "rebuilt"
        assert b.metrics.registry.get_sample_value("kafka_timers_takeovers_total", {"store": kind}) == 1


@pytest.mark.parametrize("keeps_store", [True, False])
def test_without_ids_a_log_whose_known_batch_retention_took_goes_on(keeps_store: bool) -> None:
    with told_without_ids() as story:
        a = with_five_fired(story, 10)
        story.until(12)
        end(story, a)
        log = story.kafka.requests(0)
        log.start = log.end
        for _ in range(_MANY):
            story.request(20)
        b = story.start("a" if keeps_store else "b", 0)
        story.until(30)
        assert not b.problems()
        assert payloads(story) == of(1, 6 + _MANY)


def test_without_ids_a_store_of_another_log_is_not_believed_where_the_seals_are_gone_too() -> None:
    with told_without_ids() as story:
        a = with_five_fired(story, 60)
        story.until(5)

        def all_made_anew() -> None:
            made_anew(story)
            story.kafka.create(story.kafka.own.sealed, 1)

        changed(story, a, all_made_anew, runs=False, keeps_store=True)
        story.until(20)
        assert payloads(story) == of(1, 5) + of(7, 6 + _MANY)


# --- an unclean election cuts it off --------------------------------------------------------------------------------


@pytest.mark.parametrize("keeps_store", [True, False])
@pytest.mark.parametrize("runs", [True, False])
def test_a_log_that_has_lost_what_has_fired_stands_still_however_long_it_grows(runs: bool, keeps_store: bool) -> None:
    with told() as story:
        a = with_five_fired(story, 60)
        story.until(5)
        fired = payloads(story)
        # An owner without a store reads on below it.
        kept_to = last_seals(story)[-1].fence - 1
        assert last_seals(story)[-1].restore_from <= kept_to
        log = story.kafka.requests(0)
        b = changed(story, a, lambda: log.cut(kept_to, successor=2), runs=runs, keeps_store=keeps_store)
        story.until(20)
        [problem] = b.problems()
        assert "partition 0" in problem
        assert f"lost its records from offset {kept_to} on" in problem
        assert payloads(story) == fired == of(1, 5)
        write(story, gone_on(last_seals(story), b"timer-request 0", kept_to, 0))
        story.until(40)
        assert not b.problems()
        assert payloads(story) == of(1, 5) + of(7, 6 + _MANY)


@pytest.mark.parametrize("keeps_store", [True, False])
@pytest.mark.parametrize("runs", [True, False])
def test_a_log_that_has_lost_what_waits_is_read_again_and_nothing_new_is_skipped(
    runs: bool, keeps_store: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    # No seal has read what is lost.
    with told(seal_every_s=60, stalled_after_s=90) as story:
        a = with_five_fired(story, 60)
        story.until(5)
        for _ in range(3):
            story.request(50)
        story.until(5.5)
        log = story.kafka.requests(0)
        b = changed(story, a, lambda: log.cut(log.end - 2, successor=2), runs=runs, keeps_store=keeps_store)
        story.until(55)
        assert not b.problems()
        # Two of the three that waited are gone with the records.
        assert payloads(story) == of(1, 5) + of(7, 7) + of(10, 9 + _MANY)
        if runs or keeps_store:
            words = "from offset 11 on, as in an unclean election, of which 2 had been read"
            assert words in capsys.readouterr().out


# --- its seals are gone ----------------------------------------------------------------------------------------------

_HOUR = 3_600


@pytest.mark.parametrize("keeps_store", [True, False])
def test_a_log_whose_seals_are_gone_stands_still_if_it_was_due_an_hour_ago_until_it_is_said_what_fired(
    keeps_store: bool,
) -> None:
    with told() as story:
        a = with_five_fired(story, 60)
        story.until(5)
        end(story, a)
        story.until(_HOUR + 120)
        story.kafka.create(story.kafka.own.sealed, 1)
        length = story.kafka.requests(0).end
        b = story.start("a" if keeps_store else "b", 0)
        story.until(_HOUR + 140)
        [problem] = b.problems()
        assert "partition 0 stands still" in problem
        assert "has no seals, and requests that were due 1 h ago" in problem
        assert payloads(story) == of(1, 5)
        # It writes a barrier of each producer when it takes over, and none while it stands.
        assert story.kafka.requests(0).end - length <= 4
        until_ms = (EPOCH_S + 30) * 1000
        write(story, gone_on([unsealed(0, 1, until_ms)], b"timer-request 0", length, 0))
        story.until(_HOUR + 150)
        assert not b.problems()
        assert payloads(story) == of(1, 6)


def test_a_log_whose_seals_are_gone_is_due_once_it_is_said_to_be_another() -> None:
    with told() as story:
        for second in (3, _HOUR + 200):
            story.request(second)
        story.until(_HOUR + 120)
        worker = story.start("a", 0)
        story.until(_HOUR + 140)
        assert "has no seals" in worker.problems()[0]
        write(story, begun_anew([unsealed(0, 1, FIRST_MS)], b"timer-request 0"))
        story.until(_HOUR + 150)
        assert not worker.problems()
        assert payloads(story) == of(1, 1)
        story.until(_HOUR + 210)
        assert payloads(story) == of(1, 2)


def test_a_first_request_fires_however_long_it_has_been_due_and_an_old_one_within_the_hour() -> None:
    with told() as story:
        story.request(_HOUR - 60)
        story.until(_HOUR)
        worker = story.start("a", 0)
        story.until(_HOUR + 5)
        assert payloads(story) == of(1, 1)
        story.request(1)
        story.until(_HOUR + 10)
        assert not worker.problems()
        assert payloads(story) == of(1, 2)


@pytest.mark.parametrize("runs", [True, False])
def test_seals_that_an_unclean_election_has_lost_are_told_by_the_worker_whose_store_knows_them(
    runs: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing fires twice, and it is told once: the next seal says again what the lost ones had said."""
    with told() as story:
        a = with_five_fired(story, 12)
        story.until(2.5)
        sealed = story.kafka.sealed(0)
        kept_to = sealed.end
        story.until(6)
        if not runs:
            end(story, a)
            story.until(7)
        sealed.cut(kept_to, sealed.leader % 3 + 1)
        b = a if runs else story.start("a", 0)
        story.until(20)
        assert payloads(story) == of(1, 6)
        assert b.metrics.log_cuts.labels("timer-sealed")._value.get() == 1
    assert capsys.readouterr().out.count("partition 0: timer-sealed has lost its ") == 1


def test_a_worker_that_starts_again_with_its_store_finds_all_of_its_seals() -> None:
    with told() as story:
        a = with_five_fired(story, 12)
        story.until(6)
        end(story, a)
        story.until(7)
        b = story.start("a", 0)
        story.until(20)
        assert payloads(story) == of(1, 6)
        assert b.metrics.log_cuts.labels("timer-sealed")._value.get() == 0
