"""Spark's report of a batch, as the landing shows it."""

from typing import Any

from kafka_timers.lake.job_metrics import LakeMetrics
from kafka_timers.lake.progress import Batch, batch_of


def progress(number: int, records: int, **behind: str) -> dict[str, Any]:
    """Return the report of pyspark 4.0, without fields that nobody looks at."""
    source = {"endOffset": "{'t': {'0': 15, '1': 15}}", "latestOffset": "{'t': {'0': 15, '1': 16}}", "metrics": behind}
    return {
        "timestamp": "2030-01-01T00:00:00.250Z",
        "batchId": number,
        "numInputRows": records,
        "durationMs": {"addBatch": 3_940, "triggerExecution": 4_102},
        "sources": [source],
    }


def test_a_batch_tells_its_records_and_how_many_it_has_left() -> None:
    told = progress(1, 30, avgOffsetsBehindLatest="0.5", maxOffsetsBehindLatest="1")
    assert batch_of(told, 2) == Batch(1, 30, 4.102, 1, 1_893_456_000.25)


def test_a_batch_that_tells_no_lag_has_none() -> None:
    assert batch_of(progress(0, 0), 2).behind == 0


def test_records_of_batches_add_up_and_the_last_look_counts() -> None:
    metrics = LakeMetrics()
    first, second, looked = Batch(0, 30, 4.0, 20, 100.0), Batch(1, 20, 2.0, 0, 110.0), Batch(2, 0, 0.1, 3, 120.0)
    for batch in (first, second):
        metrics.count("t", batch)
    metrics.show("t", looked)
    values = [
        metrics.registry.get_sample_value(f"kafka_timers_lake_{name}", {"topic": "t"})
        for name in ("landed_total", "batch_seconds", "landing_lag_records", "position_seconds")
    ]
    assert values == [50, 2.0, 3, 120.0]
