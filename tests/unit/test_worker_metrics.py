"""The worker's histograms, as Prometheus reads them."""

from prometheus_client import CollectorRegistry, generate_latest

from kafka_timers.core.callbacks import Lack
from kafka_timers.runtime.metrics import BulkHistogram, WorkerMetrics


def lines(registry: CollectorRegistry) -> list[str]:
    return [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]


def test_many_equal_observations_are_as_many_single_ones() -> None:
    registry = CollectorRegistry()
    late = BulkHistogram("late_seconds", "help", registry)
    late.add(0.002, 3)
    late.add(400)
    told = lines(registry)
    assert 'late_seconds_bucket{le="0.001"} 0.0' in told
    assert 'late_seconds_bucket{le="0.002"} 3.0' in told
    assert 'late_seconds_bucket{le="300.0"} 3.0' in told
    assert 'late_seconds_bucket{le="+Inf"} 4.0' in told
    assert told[-2:] == ["late_seconds_count 4.0", "late_seconds_sum 400.006"]


def test_each_stage_has_a_histogram_of_its_own_from_the_start() -> None:
    registry = CollectorRegistry()
    BulkHistogram("stage_seconds", "help", registry, ("build", "commit")).add(0.5, stage="commit")
    told = lines(registry)
    assert 'stage_seconds_count{stage="build"} 0.0' in told
    assert 'stage_seconds_sum{stage="commit"} 0.5' in told
    assert 'stage_seconds_bucket{le="0.2",stage="commit"} 0.0' in told
    assert 'stage_seconds_bucket{le="0.5",stage="commit"} 1.0' in told


def test_each_unavailable_partition_is_shown_with_its_brokers_until_it_is_well() -> None:
    metrics, name = WorkerMetrics(), "kafka_timers_unavailable_partitions{"

    def shown() -> list[str]:
        return [line.removeprefix(name) for line in lines(metrics.registry) if line.startswith(name)]

    metrics.show_unavailable({"orders": {2: Lack(19, (1, 3)), 0: Lack(5, (3,))}})
    assert sorted(shown()) == [
        'brokers="1, 3",partition="2",topic="orders"} 1.0',
        'brokers="3",partition="0",topic="orders"} 1.0',
    ]
    metrics.show_unavailable({"all": {number: Lack(5, (1,)) for number in range(130)}})
    assert len(shown()) == 101
    assert 'brokers="",partition="",topic="other"} 30.0' in shown()
    metrics.show_unavailable({})
    assert not shown()


def test_each_reason_and_each_log_is_shown_before_anything_is_counted() -> None:
    """Prometheus sees no increase where a counter appears with its first value, as after a burst of refusals."""
    told = lines(WorkerMetrics().registry)
    assert 'kafka_timers_rejected_total{reason="topic-unknown"} 0.0' in told
    assert 'kafka_timers_log_cuts_total{log="timer-sealed"} 0.0' in told
