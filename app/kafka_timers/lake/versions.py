"""
What the records of a timer id mean for each other, and which copies workers take: the rules of the live path in SQL.

All records of an id lie in one partition and so have one order. Each is about at most one other, the last request of
the id before it, and takes that one back if the broker appended it before that one's second (docs/design.md, "Cancel
and move"). These functions are used by everything in the lake that has to know what fires.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from kafka_timers.lake.schema import CANCEL, COPY, REQUEST
from kafka_timers.wire import COPY_STALE_S

__all__ = ["taken_back", "valid_copies"]

_ID = ("partition", "timer_id")


def taken_back(records: DataFrame) -> DataFrame:
    """
    Return the requests that were taken back in time, and by what.

    Args:
        records: rows of `requests` with partition, offset, appended_ms, kind, second and timer_id; of each timer id
            that is asked about, all of them. Those without an id, copies and what is refused are passed over.

    Returns:
        partition int, offset bigint, taken_by bigint, taken_kind string: a request, the offset of the first record that
        took it back, and whether that is a cancel or another request. A worker that could read that record only after
        it had scanned the request's second fires the request all the same: who has the seals compares with the fence.
    """
    before = Window.partitionBy(*_ID).orderBy("offset").rowsBetween(Window.unboundedPreceding, -1)
    asked = F.struct(F.col("offset").alias("of"), F.col("second").alias("due"))
    about = F.last(F.when(F.col("kind") == REQUEST, asked), ignorenulls=True).over(before)
    return (
        records.where(F.col("timer_id").isNotNull() & F.col("kind").isin(REQUEST, CANCEL))
        .select(*_ID, "offset", "appended_ms", "kind", "second")
        .withColumn("about", about)
        .where(F.col("appended_ms") < F.col("about.due") * 1000)
        .groupBy("partition", F.col("about.of").alias("of"))
        .agg(F.min("offset").alias("taken_by"), F.min_by("kind", "offset").alias("taken_kind"))
        .withColumnRenamed("of", "offset")
    )


def valid_copies(records: DataFrame) -> DataFrame:
    """
    Return the copies that workers have taken: of each original the first one that is neither stale nor overtaken.

    A copy is stale when it was appended later than half an hour after its decision, and overtaken when the log has a
    record of its timer id that the decision could not know.

    Args:
        records: rows of `requests` with partition, offset, appended_ms, kind, timer_id, original, decided and
            decided_s: the copies, and of their timer ids all requests and cancels.

    Returns:
        partition int, offset bigint (of the original), copied_at bigint (the copy's own offset).
    """
    before = Window.partitionBy(*_ID).orderBy("offset").rowsBetween(Window.unboundedPreceding, -1)
    last_ask = F.max(F.when(F.col("kind").isin(REQUEST, CANCEL), F.col("offset"))).over(before)
    stale = F.floor(F.col("appended_ms") / 1000) - F.col("decided_s") > COPY_STALE_S
    wanted = records.where(F.col("kind").isin(REQUEST, CANCEL, COPY))
    named = wanted.where(F.col("timer_id").isNotNull()).withColumn("last_ask", last_ask)
    # No window over those without an id: all of a partition would be one group.
    unnamed = wanted.where(F.col("timer_id").isNull()).withColumn("last_ask", F.lit(None).cast("bigint"))
    overtaken = F.coalesce(F.col("last_ask") >= F.col("decided"), F.lit(False))
    return (
        named.unionByName(unnamed)
        .where((F.col("kind") == COPY) & ~stale & ~overtaken)
        .groupBy("partition", F.col("original").alias("offset_of"))
        .agg(F.min("offset").alias("copied_at"))
        .withColumnRenamed("offset_of", "offset")
    )
