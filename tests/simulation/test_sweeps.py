"""What waits far behind on the log is repeated, and the log before it goes."""

from kafka_timers.core.sweep import is_of_a_sweep, sweeps_in
from kafka_timers.core.wire import Sealed
from simulation.assembly import Process
from simulation.loop import EPOCH_S
from simulation.promises import found_in
from simulation.told import Story, told

# A sweep leaves out what is due within a quarter of this.
KEEP_S = 8


def swept(story: Story, count: int, until_s: float) -> Process:
    """Have a worker own the partition, and repeat *count* timers of second 30 and none of those behind them."""
    worker = story.start("a", 0)
    for _ in range(count):
        story.request(30)
    story.request(4)
    story.request(31)
    story.until(2)
    worker.owners[0].sweep(story.kafka.requests(0).end)
    story.until(until_s)
    return worker


def first_told(story: Story) -> Sealed:
    return next(seal for seal in found_in(story.kafka)[0].seals if seal.swept)


def written(story: Story) -> int:
    return sum(map(is_of_a_sweep, story.kafka.requests(0).committed()))


def test_timers_fire_from_a_sweep_where_neither_their_requests_are_left_nor_a_store() -> None:
    with told(keep_s=KEEP_S) as story:
        worker = swept(story, 5, 8)
        log = story.kafka.requests(0)
        log.start = found_in(story.kafka)[0].seals[-1].restore_from
        assert log.start > 5
        story.leave(worker)
        again = story.start("b", 0)
        story.until(12)
        story.leave(again)
        # It has all that it has taken.
        kept = story.start("b", 0)
        story.until(33)
        assert kept.metrics.registry.get_sample_value("kafka_timers_takeovers_total", {"store": "kept"}) == 1
        assert [number for number, _ in story.fired()] == [*range(7)]
        story.finish()


def test_a_sweep_is_told_of_once_it_is_read_and_what_it_leaves_out_has_fired() -> None:
    with told(keep_s=KEEP_S) as story:
        swept(story, 5, 8)
        seal = first_told(story)
        [sweep] = sweeps_in(seal)
        assert seal.fence >= sweep.to > max(r.offset for r in story.kafka.requests(0).committed() if is_of_a_sweep(r))
        assert seal.first_ms >= sweep.from_ms
        story.finish()


def test_a_sweep_that_lies_behind_an_open_transaction_is_not_told_of() -> None:
    with told(keep_s=KEEP_S) as story:
        worker = story.start("a", 0)
        for _ in range(5):
            story.request(30)
        story.until(2)
        transaction = story.kafka.begin("client")
        story.request(30, transaction=transaction)
        worker.owners[0].sweep(5)
        story.until(9)
        seals = found_in(story.kafka)[0].seals
        assert seals[-1].end_ms >= (EPOCH_S + 8) * 1000
        assert not any(seal.swept for seal in seals)
        story.kafka.commit(transaction)
        story.until(12)
        assert first_told(story).swept[0].requests == 4
        story.finish()


def test_nothing_of_a_sweep_counts_that_was_broken_off() -> None:
    with told(keep_s=KEEP_S) as story:
        story.leave(swept(story, 40, 3))
        assert written(story)
        again = story.start("b", 0)
        story.until(6)
        again.owners[0].sweep(story.kafka.requests(0).end)
        story.until(28)
        [sweep] = sweeps_in(found_in(story.kafka)[0].seals[-1])
        assert sweep.requests == 41
        log = story.kafka.requests(0)
        log.start = found_in(story.kafka)[0].seals[-1].restore_from
        story.leave(again)
        story.start("c", 0)
        story.until(33)
        assert [number for number, _ in story.fired()] == [*range(42)]
        story.finish()
