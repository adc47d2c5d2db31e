"""Read the progress reports of the landing's streaming queries. Pure."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple


class Batch(NamedTuple):
    """
    A batch of one topic, or a poll that found nothing to land.

    Attributes:
        records: number of records that it has landed.
        took_s: seconds from its begin to its end.
        behind: number of records of the topic, by offsets, left to the next batch.
        at_s: UNIX time at which it began.
    """

    number: int
    records: int
    took_s: float
    behind: int
    at_s: float


def batch_of(progress: Mapping[str, Any], partitions: int) -> Batch:
    """Return the `StreamingQueryProgress` of a query as a batch. It reads one topic, which has so many *partitions*."""
    [source] = progress["sources"]
    # The metric is missing while nothing has been read.
    mean_behind = float(source["metrics"].get("avgOffsetsBehindLatest", 0))
    return Batch(
        progress["batchId"],
        progress["numInputRows"],
        progress["durationMs"]["triggerExecution"] / 1000,
        # pyspark 4.0 gives the offsets themselves only as the text of a Python dict.
        round(mean_behind * partitions),
        datetime.fromisoformat(progress["timestamp"]).timestamp(),
    )
