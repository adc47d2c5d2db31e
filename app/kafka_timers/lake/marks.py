"""
Find withdrawn requests and the copies that workers take: the rules of the live path in SQL.

All records of a timer id lie in one partition, so they have one order. Each record concerns at most one other: the last
request of the id before it. It withdraws that request if the broker appended it before the request is due
(docs/design.md, "Cancel and move"). All modules of the lake that compute the timers that fire use this one.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from kafka_timers.core.wire import COPY_STALE_S
from kafka_timers.lake.schema import CANCEL, COPY, ID_KEY, REQUEST, asked_ms


def marks_of(records: DataFrame) -> DataFrame:
    """
    Return the effects of other records on requests: the record that withdrew one, and the copy that workers have taken.

    A copy is stale if it was appended more than half an hour after its decision. It is overtaken if the log has a
    record of its timer id that the decision could not know. Workers have taken the first copy that is neither.

    Args:
        records: rows of `requests` with partition, offset, appended_ms, kind, second, millis, timer_id, original,
            decided, decided_s and delay: the copies in question, and all requests and cancels of each timer id.

    Returns:
        partition int, offset bigint of each affected request; taken_by bigint, offset of the first record that withdrew
        it in time; copied_at bigint, offset of the copy. If a worker reads the withdrawing record only after it has
        scanned the request's second, the request fires all the same: compare with the fence of the seal.
    """
    is_copy, is_request = F.col("is_copy"), F.col("is_request")
    # With two flags in place of the kind, which takes longer to move.
    rows = records.where(F.col("kind").isin(REQUEST, CANCEL, COPY)).select(
        *(*ID_KEY, "offset", "appended_ms", "original", "decided", "decided_s", "delay"),
        asked_ms().alias("due_ms"),
        (F.col("kind") == COPY).alias("is_copy"),
        (F.col("kind") == REQUEST).alias("is_request"),
    )
    # By a hash first, because Spark sorts numbers faster than names.
    of_id = Window.partitionBy(F.xxhash64(*ID_KEY), *ID_KEY).orderBy("offset")

    def last(name: str, of: Column) -> Column:
        before = of_id.rowsBetween(Window.unboundedPreceding, -1)
        return F.last(F.when(of, F.col(name)), ignorenulls=True).over(before)

    named = rows.where(F.col("timer_id").isNotNull()).withColumns(
        {
            "about": last("offset", is_request),
            "about_due_ms": last("due_ms", is_request),
            "last_ask": last("offset", ~is_copy),
        }
    )
    # No window over records without an id, because they would be one group per partition.
    unnamed = rows.where((F.col("delay") == COPY) & F.col("timer_id").isNull() & is_copy)
    is_stale = F.floor(F.col("appended_ms") / 1000) - F.col("decided_s") > COPY_STALE_S
    is_overtaken = F.coalesce(F.col("last_ask") >= F.col("decided"), F.lit(False))
    withdraws = F.when(~is_copy & (F.col("appended_ms") < F.col("about_due_ms")), F.col("offset"))
    is_taken = F.when(is_copy & ~is_stale & ~is_overtaken, F.col("offset"))
    return (
        named.unionByName(unnamed, allowMissingColumns=True)
        .select(
            "partition",
            F.when(is_copy, F.col("original")).otherwise(F.col("about")).alias("of"),
            withdraws.alias("taken_by"),
            is_taken.alias("copied_at"),
        )
        .where(F.col("taken_by").isNotNull() | F.col("copied_at").isNotNull())
        .groupBy("partition", F.col("of").alias("offset"))
        .agg(F.min("taken_by").alias("taken_by"), F.min("copied_at").alias("copied_at"))
    )
