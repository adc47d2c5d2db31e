"""
Buckets of seconds that are promoted together: the next bucket, and the requests that are due in it.

Pure. The amount of data read for a bucket depends on the requests due in its days, months and years, and not on all
other parked requests.
"""

import itertools
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from kafka_timers.lake.covering import waits_longer
from kafka_timers.lake.schema import DELAYS_S, REQUEST

# Append times of two brokers may differ by this much: a request may be appended in a second that a tick on another
# broker has already passed.
SKEW_S = 5


class Bucket(NamedTuple):
    """
    Seconds that are promoted together.

    Attributes:
        far_s: seconds; a request that waits longer may have been left to the lake.
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
    """Return the last second up to which nothing is left to promote, by all rows of `buckets`; 0 if there is none."""
    if not closed:
        return 0
    last = max(closed, key=_age)
    # By the smaller horizon, newer requests are far although they are due in a bucket that the larger one closed. None
    # is due before the moment of closing, and that moment came after last - horizon.
    return max(0, last.last - last.horizon_s) if last.horizon_s > horizon_s else last.last


def _age(row: Closed) -> tuple[int, int]:
    return row.closed_s, row.last


def next_bucket(closed: Sequence[Closed], now: int, horizon_s: int, bucket_s: int) -> Bucket | None:
    """
    Return the next seconds to promote; None if there are none yet.

    The bucket follows the closed ones without a gap. All whole buckets that have come within the horizon count as one,
    so a job that was down, or begins, looks at everything once.

    Args:
        closed: all rows of `buckets`.
        now: second of the last tick.
        horizon_s: horizon of the lake.
        bucket_s: length of a bucket.
    """
    rows, done = sorted(closed, key=_age), closed_second(closed, horizon_s)
    whole = (now + horizon_s - SKEW_S - 1 - done) // bucket_s
    if whole < 1:
        return None
    # A smaller horizon was in force until the next one closed its first bucket. The requests that it left to the lake
    # are due within the larger one from then on. Later, all that are still pending are far by the larger one too.
    ends = [row.closed_s for row in rows[1:]]
    before = [
        row.horizon_s
        for row, end_s in itertools.zip_longest(rows, ends)
        if end_s is None or end_s + horizon_s >= done + 1
    ]
    return Bucket(done + 1, done + whole * bucket_s, min([horizon_s, *before]))


def lies_in(bucket: Bucket) -> Column:
    """Tell for a row of `requests` whether its partition of the table may hold far requests of *bucket*."""
    lies = F.lit(False)
    for delay, longest_s in {**DELAYS_S, "more": None}.items():
        if longest_s is None or longest_s > bucket.far_s:
            form = {"more": "%Y", "1y": "%Y-%m"}.get(delay, "%Y-%m-%d")
            lies |= (F.col("delay") == delay) & due_between(bucket, form)
    return lies


def far_requests(requests: DataFrame, bucket: Bucket) -> DataFrame:
    """Return the *requests* that are far and due in *bucket*, with any outcome."""
    return requests.where(
        lies_in(bucket)
        & (F.col("kind") == REQUEST)
        & F.col("second").between(bucket.first, bucket.last)
        & waits_longer(F.lit(bucket.far_s))
    )


def left_to_the_lake(far: DataFrame, seals: DataFrame) -> DataFrame:
    """
    Return the requests of *far* that workers have left to the lake, by their seals.

    Requests that workers held when their horizon changed stayed with them and fired from then on. This matters only for
    requests due before now: the held ones lie below the new horizon_from, and none of those is pending any more.

    *seals* are all seals: partition int, end_ms bigint, horizon_s bigint, horizon_from bigint. In a partition without
    any, workers hold nothing.
    """
    horizons = seals.groupBy("partition", "horizon_from", "horizon_s").agg(F.max("end_ms").alias("end_ms"))
    horizons = horizons.groupBy("partition").agg(
        F.sort_array(F.collect_list(F.struct("horizon_from", "end_ms", "horizon_s"))).alias("horizons")
    )
    # Of several horizons from one offset, the last counts. Below the first there was none: landing came with horizons.
    judged = F.filter("horizons", lambda each: each["horizon_from"] <= F.col("offset"))
    horizon_s = F.coalesce(F.try_element_at(judged, F.lit(-1))["horizon_s"], F.lit(0))
    return (
        far.join(F.broadcast(horizons), "partition", "left")
        .where(F.col("horizons").isNull() | waits_longer(horizon_s))
        .select(far.columns)
    )


def due_between(bucket: Bucket, form: str) -> Column:
    """Return a column: whether a folder `due`, a time in the strftime format *form*, may belong to *bucket*."""
    # As text they sort in the order of time, up to the year 9999.
    first, last = (datetime.fromtimestamp(second, UTC).strftime(form) for second in (bucket.first, bucket.last))
    return F.col("due").between(first, last)
