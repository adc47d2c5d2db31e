"""
Copies of far requests: which requests need one, and what a copy is.

Pure. A copy is the bytes of its original with its origin behind them, so nothing that the original had is lost.
"""

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kafka_timers.core.wire import Copy, Future
from kafka_timers.lake import message
from kafka_timers.lake.buckets import Bucket, due_between
from kafka_timers.lake.conditions import no_condition
from kafka_timers.lake.schema import CANCEL, COPY, REQUEST
from kafka_timers.lake.tables import constant
from kafka_timers.lake.versions import marks_of

__all__ = ["COPY_BYTES", "asks_about", "copies_in", "copies_of", "need_no_copy", "with_sure"]

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


def with_sure(requests: DataFrame, fences: Mapping[int, int]) -> DataFrame:
    """
    Return *requests* with the column is_sure, a boolean: whether workers have judged the condition of each.

    Whether it holds may depend on what was read before what was scanned, and a seal tells that. Without one a request
    may be copied that means nothing, and would fire.

    Args:
        requests: rows of `requests`.
        fences: of each partition that has a seal that of the last one.
    """
    unconditional = F.col("condition").isNull()
    if not fences:
        return requests.withColumn("is_sure", unconditional)
    judged_to = constant(requests.sparkSession, fences.items(), "partition int, judged_to bigint")
    is_judged = F.coalesce(F.col("offset") < F.col("judged_to"), F.lit(False))
    # Not by a condition that names each partition: that would be tried partition by partition for each row.
    joined = requests.join(F.broadcast(judged_to), "partition", "left")
    return joined.withColumn("is_sure", unconditional | is_judged).select(*requests.columns, "is_sure")


def copies_of(requests: DataFrame, decided: Mapping[int, int], decided_s: int) -> DataFrame:
    """
    Return the copies of *requests* as records for `timer-request`.

    Args:
        requests: rows of `requests`.
        decided: of each partition the offset below which everything was known to the decision that they fire.
        decided_s: UNIX second in which that began.

    Returns:
        partition int, key binary, value binary; those of a partition in one task, by second and offset. Requests that
        the decision could not know are left out.
    """
    copy = message.nested(
        Future.COPY_FIELD_NUMBER,
        message.number(Copy.OFFSET_FIELD_NUMBER, F.col("offset"), _OFFSET_BYTES),
        message.number(Copy.APPENDED_FIELD_NUMBER, F.floor(F.col("appended_ms") / 1000), _SECOND_BYTES),
        message.number(Copy.DECIDEDOFFSET_FIELD_NUMBER, F.col("known"), _OFFSET_BYTES),
        message.number(Copy.DECIDED_FIELD_NUMBER, F.lit(decided_s), _SECOND_BYTES),
    )
    spark = requests.sparkSession
    # As many as Spark is set to have, or one for each partition where these are fewer.
    tasks = min(len(decided), int(spark.conf.get("spark.sql.shuffle.partitions") or 1))
    places = _places(spark, tasks)
    known = [(number, offset, places[at % tasks]) for at, (number, offset) in enumerate(sorted(decided.items()))]
    return (
        requests.join(F.broadcast(constant(spark, known, "partition int, known bigint, place bigint")), "partition")
        # What was landed since the decision waits for the next: a copy that is older than its original is refused.
        .where(F.col("offset") < F.col("known"))
        .repartition(tasks, "place")
        # A worker keeps neighbours that are due together as one row.
        .sortWithinPartitions("partition", "second", "offset")
        .select(
            "partition",
            F.col("second").cast("string").cast("binary").alias("key"),
            # A Future with the copy alone, behind the original's bytes: to a parser that is one message.
            F.concat("value", message.bytes_of(copy), no_condition()).alias("value"),
        )
    )


def _places(spark: SparkSession, tasks: int) -> list[int]:
    """
    Return for each of *tasks* a number that Spark repartitions to it.

    Repartitioned by their own numbers, four partitions of a topic shared two tasks of four. By ranges they would share
    none, but what these are is sampled: all that is repartitioned would be computed once more.
    """
    # A constant, of which the hash is computed without a job; of so many, some go to each task.
    numbers = constant(spark, [(number,) for number in range(32 * tasks)], "place bigint")
    hashed = numbers.select(F.pmod(F.hash("place"), F.lit(tasks)), "place").collect()
    by_task = dict(map(tuple, hashed))
    # Should none go there, two share a task.
    return [by_task.get(task, task) for task in range(tasks)]
