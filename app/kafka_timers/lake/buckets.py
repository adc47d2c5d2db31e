"""
Buckets of seconds that are promoted together: which one is next, and which requests are due in it.

Pure. What is read of a bucket depends on what is due in its days, months and years, and not on what else is parked.
"""

import itertools
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from kafka_timers.lake.outcomes import waits_longer
from kafka_timers.lake.schema import DELAYS_S, REQUEST

__all__ = [
    "SKEW_S",
    "Bucket",
    "Closed",
    "closed_second",
    "due_between",
    "far_requests",
    "left_to_the_lake",
    "lies_in",
    "next_bucket",
]

# Append times of two brokers may differ by this much: a request may be appended in a second that a tick on another
# broker has already passed.
SKEW_S = 5


class Bucket(NamedTuple):
    """
    Seconds that are promoted together.

    Attributes:
        first: the first of them.
        last: the last of them.
        far_s: who waits longer than this may have been left to the lake.
    """

    first: int
    last: int
    far_s: int


class Closed(NamedTuple):
    """A row of the table `buckets`."""

    first: int
    last: int
    horizon_s: int
    promoted: int
    closed_s: int


def closed_second(closed: Sequence[Closed], horizon_s: int) -> int:
    """
    Return the last second of which nothing is left to promote, nor of any before it; 0 without one.

    Args:
        closed: all rows of `buckets`.
        horizon_s: of the lake.
    """
    if not closed:
        return 0
    last = max(closed, key=_age)
    # Requests have been appended since that are far by the smaller horizon and due in what was closed by the larger
    # one. None is due before the moment at which it was closed, and that was behind last - horizon.
    return max(0, last.last - last.horizon_s) if last.horizon_s > horizon_s else last.last


def _age(row: Closed) -> tuple[int, int]:
    return row.closed_s, row.last


def next_bucket(closed: Sequence[Closed], now: int, horizon_s: int, bucket_s: int) -> Bucket | None:
    """
    Return the next seconds to promote, None while none may be.

    It follows the closed ones without a gap. All whole buckets that have come within the horizon are one, so that a job
    that was down, or begins, looks at everything once.

    Args:
        closed: all rows of `buckets`.
        now: second of the last tick.
        horizon_s: of the lake.
        bucket_s: length of a bucket.
    """
    rows, done = sorted(closed, key=_age), closed_second(closed, horizon_s)
    whole = (now + horizon_s - SKEW_S - 1 - done) // bucket_s
    if whole < 1:
        return None
    # A smaller horizon was in force until the next one closed its first bucket. What was left to the lake by it is due
    # within the larger one from then on; later nobody waits of whom the larger one does not tell.
    ends = [row.closed_s for row in rows[1:]]
    before = [
        row.horizon_s
        for row, end_s in itertools.zip_longest(rows, ends)
        if end_s is None or end_s + horizon_s >= done + 1
    ]
    return Bucket(done + 1, done + whole * bucket_s, min([horizon_s, *before]))


def lies_in(bucket: Bucket) -> Column:
    """Tell of a row of `requests` whether far requests of *bucket* may lie in its partition of the table."""
    lies = F.lit(False)
    for delay, longest_s in {**DELAYS_S, "more": None}.items():
        if longest_s is None or longest_s > bucket.far_s:
            form = {"more": "%Y", "1y": "%Y-%m"}.get(delay, "%Y-%m-%d")
            lies |= (F.col("delay") == delay) & due_between(bucket, form)
    return lies


def far_requests(requests: DataFrame, bucket: Bucket) -> DataFrame:
    """
    Return the rows of `requests` that are far and due in *bucket*, whatever became of them.

    What is read depends on what is due in the bucket's days, months and years, and not on what else is parked.
    """
    return requests.where(
        lies_in(bucket)
        & (F.col("kind") == REQUEST)
        & F.col("second").between(bucket.first, bucket.last)
        & waits_longer(F.lit(bucket.far_s))
    )


def left_to_the_lake(far: DataFrame, seals: DataFrame) -> DataFrame:
    """
    Return those of *far* that workers have left to the lake, as their seals tell.

    What workers had when their horizon changed is theirs, and has fired from then on. Only of what was due before now
    is it in question: what they had lies below the new horizon_from, and nothing there waits any more.

    Args:
        far: rows of `requests`.
        seals: partition int, end_ms bigint, horizon_s bigint, horizon_from bigint of all seals; of a partition without
            any, nobody has anything.
    """
    horizons = seals.groupBy("partition", "horizon_from", "horizon_s").agg(F.max("end_ms").alias("end_ms"))
    horizons = horizons.groupBy("partition").agg(
        F.sort_array(F.collect_list(F.struct("horizon_from", "end_ms", "horizon_s"))).alias("horizons")
    )
    # Of several from one offset on the last one; who read what lies before the first had none, since land came with it.
    judged = F.filter("horizons", lambda each: each["horizon_from"] <= F.col("offset"))
    horizon_s = F.coalesce(F.try_element_at(judged, F.lit(-1))["horizon_s"], F.lit(0))
    return (
        far.join(F.broadcast(horizons), "partition", "left")
        .where(F.col("horizons").isNull() | waits_longer(horizon_s))
        .select(far.columns)
    )


def due_between(bucket: Bucket, form: str) -> Column:
    """Return the column that tells whether a folder `due`, a time in *form* as strftime has it, may be of *bucket*."""
    # As text they sort as they follow each other, up to the year 9999.
    first, last = (datetime.fromtimestamp(second, UTC).strftime(form) for second in (bucket.first, bucket.last))
    return F.col("due").between(first, last)
