"""
What the records of a timer id mean for each other, and which copies workers take: the rules of the live path in SQL.

All records of an id lie in one partition and so have one order. Each is about at most one other, the last request of
the id before it, and withdraws that one if the broker appended it before that one is due (docs/design.md, "Cancel and
move"). This is used by everything in the lake that has to know what fires.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from kafka_timers.core.wire import COPY_STALE_S
from kafka_timers.lake.schema import CANCEL, COPY, REQUEST

__all__ = ["NOWHERE", "marks_of", "millis_from_of"]

# Above all offsets.
NOWHERE = (1 << 63) - 1

_ID = ("partition", "timer_id")


def millis_from_of(seals: DataFrame) -> DataFrame:
    """
    Return from which offset on milliseconds count in the partitions of *seals*.

    Args:
        seals: partition int, millis_from bigint.

    Returns:
        the same, a row for each partition; where they do not count it is above all offsets.
    """
    first = F.coalesce(F.min("millis_from"), F.lit(NOWHERE))
    return seals.groupBy("partition").agg(first.alias("millis_from"))


def marks_of(records: DataFrame, millis_from: DataFrame) -> DataFrame:
    """
    Return what other records say of requests: by what one was withdrawn, and which copy of it workers have taken.

    A copy is stale when it was appended later than half an hour after its decision, and overtaken when the log has a
    record of its timer id that the decision could not know. Workers have taken the first one that is neither.

    Args:
        records: rows of `requests` with partition, offset, appended_ms, kind, second, millis, timer_id, original,
            decided and decided_s: the copies that are asked about, and of each timer id all requests and cancels.
        millis_from: rows of `millis_from_of`. What lies below is in time up to the second. A partition that was not
            sealed yet is judged as it will be, by milliseconds.

    Returns:
        partition int, offset bigint of each request of which anything is said; taken_by bigint, offset of the first
        record that withdrew it in time; copied_at bigint, offset of the copy. A worker that could read what withdraws
        a request only after it had scanned its second fires it all the same: compare with the fence of the seal.
    """
    is_copy, is_ask = F.col("kind") == COPY, F.col("kind").isin(REQUEST, CANCEL)
    before = Window.partitionBy(*_ID).orderBy("offset").rowsBetween(Window.unboundedPreceding, -1)
    request = F.when(F.col("kind") == REQUEST, F.struct("offset", "second", "millis"))
    named = (
        records.where(F.col("timer_id").isNotNull() & (is_copy | is_ask))
        .withColumn("about", F.last(request, ignorenulls=True).over(before))
        .withColumn("last_ask", F.max(F.when(is_ask, F.col("offset"))).over(before))
    )
    # No window over those without an id: all of a partition would be one group.
    unnamed = records.where(F.col("timer_id").isNull() & is_copy)
    is_stale = F.floor(F.col("appended_ms") / 1000) - F.col("decided_s") > COPY_STALE_S
    is_overtaken = F.coalesce(F.col("last_ask") >= F.col("decided"), F.lit(False))
    counts_millis = F.col("offset") >= F.coalesce("millis_from", F.lit(0))
    closes_ms = F.col("about.second") * 1000 + F.when(counts_millis, F.col("about.millis")).otherwise(0)
    withdraws = F.when(is_ask & (F.col("appended_ms") < closes_ms), F.col("offset"))
    is_taken = F.when(is_copy & ~is_stale & ~is_overtaken, F.col("offset"))
    return (
        named.join(F.broadcast(millis_from), "partition", "left")
        .unionByName(unnamed, allowMissingColumns=True)
        .select(
            "partition",
            F.when(is_copy, F.col("original")).otherwise(F.col("about.offset")).alias("of"),
            withdraws.alias("taken_by"),
            is_taken.alias("copied_at"),
        )
        .where(F.col("taken_by").isNotNull() | F.col("copied_at").isNotNull())
        .groupBy("partition", F.col("of").alias("offset"))
        .agg(F.min("taken_by").alias("taken_by"), F.min("copied_at").alias("copied_at"))
    )
