"""What a streaming query of the landing tells of itself. Pure."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

__all__ = ["Batch", "batch_of"]


class Batch(NamedTuple):
    """
    A batch of one topic, or a look that has found nothing to land.

    Attributes:
        number: of the batch.
        records: that it has landed.
        took_s: seconds from its begin to its end.
        behind: records of the topic, by offsets, that it has left to the next one.
        at_s: UNIX time at which it began.
    """

    number: int
    records: int
    took_s: float
    behind: int
    at_s: float


def batch_of(progress: Mapping[str, Any], partitions: int) -> Batch:
    """
    Return what a `StreamingQueryProgress` tells of a query.

    Args:
        progress: of a query whose one source is a topic.
        partitions: how many of the topic it reads.
    """
    [source] = progress["sources"]
    # Without a word of it where nothing was read yet.
    mean_behind = float(source["metrics"].get("avgOffsetsBehindLatest", 0))
    return Batch(
        progress["batchId"],
        progress["numInputRows"],
        progress["durationMs"]["triggerExecution"] / 1000,
        # The offsets themselves pyspark 4.0 gives as the text of a dict of Python.
        round(mean_behind * partitions),
        datetime.fromisoformat(progress["timestamp"]).timestamp(),
    )
