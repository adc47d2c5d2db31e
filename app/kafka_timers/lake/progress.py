"""What a streaming query of the landing tells of itself. Pure."""

import json
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


def batch_of(progress: Mapping[str, Any]) -> Batch:
    """Return what a `StreamingQueryProgress` tells of a query with one source, which is Kafka."""
    [source] = progress["sources"]
    ends, latest = _offsets(source["endOffset"]), _offsets(source["latestOffset"])
    return Batch(
        progress["batchId"],
        progress["numInputRows"],
        progress["durationMs"]["triggerExecution"] / 1000,
        # Of a partition that is not there yet in the one, nothing was read.
        sum(max(0, end - ends.get(partition, 0)) for partition, end in latest.items()),
        datetime.fromisoformat(progress["timestamp"]).timestamp(),
    )


def _offsets(told: str | Mapping[str, Any] | None) -> dict[tuple[str, str], int]:
    """Return offsets by topic and partition of what a source tells as JSON; nothing if it tells none."""
    topics = json.loads(told) if isinstance(told, str) else told
    return {(topic, number): at for topic, of_topic in (topics or {}).items() for number, at in of_topic.items()}
