"""
Copies of far requests: which requests need one, and what a copy is.

Pure. A copy is the bytes of its original with its origin behind them, so nothing that the original had is lost.
"""

import itertools
from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from kafka_timers.core.wire import Copy, Future
from kafka_timers.lake import message
from kafka_timers.lake.buckets import Bucket, due_between
from kafka_timers.lake.conditions import no_condition
from kafka_timers.lake.schema import CANCEL, COPY, REQUEST
from kafka_timers.lake.versions import marks_of

__all__ = ["COPY_BYTES", "asks_about", "copies_in", "copies_of", "is_sure", "need_no_copy"]

# What a copy adds to the value; offsets have up to 56 bits, and seconds up to 42.
_OFFSET_BYTES, _SECOND_BYTES = 8, 6
COPY_BYTES = 5 + 2 * (1 + _OFFSET_BYTES) + 2 * (1 + _SECOND_BYTES)


def asks_about(requests: DataFrame, far: DataFrame, since: int) -> DataFrame:
    """
    Return the requests and cancels that have a timer id of one of *far*.

    Args:
        requests: all rows of `requests`.
        far: rows of it.
        since: the lowest offset of *far*: nothing below it says anything about them.

    Returns:
        partition int, offset bigint, appended_ms bigint, kind string, second bigint, millis int, timer_id string,
        condition string.
    """
    # By a hash of the id, which is smaller: that two ids have the same lets in one too many, which does no harm.
    name = F.xxhash64("partition", "timer_id")
    named = far.where(F.col("timer_id").isNotNull()).select(name.alias("name")).distinct()
    return (
        requests.where(F.col("kind").isin(REQUEST, CANCEL) & F.col("timer_id").isNotNull() & (F.col("offset") >= since))
        .withColumn("name", name)
        .join(named, "name", "left_semi")
        .select("partition", "offset", "appended_ms", "kind", "second", "millis", "timer_id", "condition")
    )


def copies_in(requests: DataFrame, bucket: Bucket) -> DataFrame:
    """Return the rows of `requests` that are copies of requests due in *bucket*."""
    return requests.where(
        (F.col("delay") == COPY)
        & due_between(bucket, "%Y-%m-%d")
        & (F.col("kind") == COPY)
        & F.col("second").between(bucket.first, bucket.last)
    )


def need_no_copy(asks: DataFrame, copies: DataFrame, millis_from: DataFrame) -> DataFrame:
    """
    Return the requests of which no copy is wanted any more.

    Args:
        asks: as `asks_about` returns them.
        copies: as `copies_in` returns them.
        millis_from: as `millis_from_of` returns it.

    Returns:
        partition int, offset bigint, promoted boolean: whether workers have taken a copy, else it was withdrawn.
    """
    return marks_of(asks.unionByName(copies, allowMissingColumns=True), millis_from).select(
        "partition", "offset", F.col("copied_at").isNotNull().alias("promoted")
    )


def is_sure(fences: Mapping[int, int]) -> Column:
    """
    Return the column that tells of a row of `requests` whether workers have judged its condition.

    Whether it holds may depend on what was read before what was scanned, and a seal tells that. Without one a request
    may be copied that means nothing, and would fire.

    Args:
        fences: of each partition that has a seal that of the last one.
    """
    judged = F.lit(False)
    for number, fence in fences.items():
        judged |= (F.col("partition") == number) & (F.col("offset") < fence)
    return F.col("condition").isNull() | judged


def copies_of(requests: DataFrame, decided: Mapping[int, int], decided_s: int) -> DataFrame:
    """
    Return the copies of *requests* as records for `timer-request`.

    Args:
        requests: rows of `requests`.
        decided: of each partition the offset below which everything was known to the decision that they fire.
        decided_s: UNIX second in which that began.

    Returns:
        partition int, key binary, value binary; those of a partition by second and offset. Requests that the decision
        could not know are left out.
    """
    decided_of = F.create_map(
        *itertools.chain.from_iterable(
            (F.lit(number), F.lit(offset).cast("bigint")) for number, offset in decided.items()
        )
    )
    copy = message.nested(
        Future.COPY_FIELD_NUMBER,
        message.number(Copy.OFFSET_FIELD_NUMBER, F.col("offset"), _OFFSET_BYTES),
        message.number(Copy.APPENDED_FIELD_NUMBER, F.floor(F.col("appended_ms") / 1000), _SECOND_BYTES),
        message.number(Copy.DECIDEDOFFSET_FIELD_NUMBER, decided_of[F.col("partition")], _OFFSET_BYTES),
        message.number(Copy.DECIDED_FIELD_NUMBER, F.lit(decided_s), _SECOND_BYTES),
    )
    return (
        # What was landed since the decision waits for the next: a copy that is older than its original is refused.
        requests.where(F.col("offset") < decided_of[F.col("partition")])
        # A worker keeps neighbours that are due together as one row.
        .repartition(len(decided), "partition")
        .sortWithinPartitions("partition", "second", "offset")
        .select(
            "partition",
            F.col("second").cast("string").cast("binary").alias("key"),
            # A Future with the copy alone, behind the original's bytes: to a parser that is one message.
            F.concat("value", message.bytes_of(copy), no_condition()).alias("value"),
        )
    )
