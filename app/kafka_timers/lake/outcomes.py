"""
What came of requests: the join of seals with requests as a batch.

What fires follows from the request log and the fences in the seals, whoever fired it (promise P12 of docs/design.md).
The complete seals of a partition cut its history into sealed intervals. Once the end of one has passed the moment that
a request asks for, so have those of all later ones, and once its fence has passed the request's offset, too. So a
request fires in the later of two: the first interval that passed its moment, and the first one that passed its offset.

    interval  end     fence      request     by moment   by offset   fires in
    A         12.000     40      #35, 10.5   A           A           A
    B         12.250     40      #40, 12.1   B           C           C: it was read after its moment was scanned
    C         14.000     55      #40, 13.0   C           C           C

Nearly all fire in the interval of their moment, so that one is looked up once per moment, and only of what lies behind
its fence the second interval is looked for.
"""

from collections.abc import Callable, Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from kafka_timers.core.sums import VERSION
from kafka_timers.lake.schema import REFUSED, REQUEST, asked_ms, begins_ms, ends_ms
from kafka_timers.lake.versions import marks_of, millis_from_of

__all__ = [
    "INTERVAL",
    "by_seal",
    "counted_as",
    "due_ms",
    "figures",
    "fires",
    "first_interval",
    "intervals_of",
    "last_second",
    "outcomes_of",
    "totals",
    "waits_longer",
]

_REQUEST = ("partition", "offset")
_SEAL = ("partition", "end_ms", "fence")
INTERVAL = ("end_ms", "fence", "horizon_s", "horizon_from", "conditions_from", "millis_from", "digests", "appended_ms")


def figures(fired: DataFrame, *by: str) -> DataFrame:
    """
    Return what seals would tell of *fired*.

    Args:
        fired: rows of `fires`.
        by: its columns that name a group.

    Returns:
        *by*, due bigint, fired bigint, rejected bigint, digest bigint (as in `seals`), late bigint.
    """
    went_out = F.col("reason").isNull()
    return fired.groupBy(*by).agg(
        F.count(F.lit(1)).alias("due"),
        F.count_if(went_out).alias("fired"),
        F.count_if(~went_out).alias("rejected"),
        # Without ANSI a bigint wraps around, which is modulo 2^64.
        F.coalesce(F.sum(F.when(went_out, counted_as())), F.lit(0)).alias("digest"),
        F.count_if("late").alias("late"),
    )


def counted_as() -> Column:
    """Return what a row of `outcomes_of` counts by in the digest of its seal, whichever version that has."""
    number = F.col("offset") + 1
    hashed = F.xxhash64(F.col("partition").cast("bigint"), "offset")
    return F.when(F.col("digests") == VERSION, hashed).otherwise(number * number * number)


def totals(seals: DataFrame) -> DataFrame:
    """
    Return the figures of each complete seal, with those of its slices added.

    Args:
        seals: rows of `seals`. One that is there twice, as at-least-once may have it, counts once.

    Returns:
        partition int, end_ms bigint, fence bigint, first_ms bigint, due bigint, fired bigint, rejected bigint,
        digest bigint, lateness_p99_ms int, lateness_max_ms int, appended_ms bigint, first bigint, last bigint.
    """
    counts = ("due", "fired", "rejected", "digest")
    lateness = ("lateness_p99_ms", "lateness_max_ms")
    covered = seals.withColumns({"first_ms": begins_ms(), "end_ms": ends_ms()})
    once = covered.select(*_SEAL, "first_ms", "through", *counts, *lateness, "appended_ms")
    return (
        once.groupBy(*_SEAL, "through", *counts)
        .agg(F.min("first_ms").alias("first_ms"), *(F.max(name).alias(name) for name in (*lateness, "appended_ms")))
        .groupBy(*_SEAL)
        .agg(
            F.min("first_ms").alias("first_ms"),
            *(F.sum(name).alias(name) for name in counts),
            *(F.max(name).alias(name) for name in (*lateness, "appended_ms")),
            F.bool_or(F.col("through").isNull()).alias("complete"),
        )
        .where("complete")
        .drop("complete")
        .withColumns({"first": F.floor(F.col("first_ms") / 1000), "last": last_second(F.col("end_ms"))})
    )


def intervals_of(seals: DataFrame) -> DataFrame:
    """
    Return the sealed intervals of each partition, one for each complete seal: fences of later ones are never lower.

    Args:
        seals: rows of `seals`. One with a lower fence than one before it, which a paused owner adds with
            at-least-once, is left out: it tells of nothing that was not done.

    Returns:
        partition int, end_ms bigint, fence bigint, horizon_s bigint, horizon_from bigint, conditions_from bigint (null
        where no condition is judged), millis_from bigint (null where milliseconds do not count), digests int (how it
        counts what fired; null or 0 in an earlier version), appended_ms bigint (of the seal).
    """
    before = Window.partitionBy("partition").orderBy("end_ms", "fence").rowsBetween(Window.unboundedPreceding, -1)
    return (
        seals.where(F.col("through").isNull())
        .withColumn("end_ms", ends_ms())
        .groupBy(*_SEAL)
        .agg(*(F.max(name).alias(name) for name in INTERVAL[2:]))
        .withColumn("passed", F.max("fence").over(before))
        .where(F.col("passed").isNull() | (F.col("fence") >= F.col("passed")))
        .select("partition", *INTERVAL)
    )


def outcomes_of(
    requests: DataFrame,
    intervals: DataFrame,
    rejected: DataFrame,
    horizon_s: int | None = None,
    keep: Callable[[DataFrame], DataFrame] = lambda frame: frame,
    also: Sequence[str] = (),
) -> DataFrame:
    """
    Return what came of requests.

    Args:
        requests: rows of `requests`: those asked about, all copies of them, all records of their timer ids.
        intervals: rows of `intervals_of`, of each partition without a gap. What was due before the first one counts to
            it.
        rejected: partition int, offset bigint and reason string of requests that went to timer-rejected.
        horizon_s: how far ahead workers hold requests; None takes what the seals say.
        keep: is given what the requests are joined with, and may compute and cache it: what is small, as it mostly is,
            can then go to the requests, and none of those is moved.
        also: more columns of the requests to return.

    Returns:
        partition int, offset bigint, appended_ms bigint, second bigint (null of what is refused), millis int,
        timer_id string, topic string, and: reason string, why it was rejected; taken_by bigint, offset of what withdrew
        it; far bool, whether it fires by a copy; sealed_ms bigint and fence bigint, end and fence of the seal that has
        it, null while there is none; sealed_in bigint, the last second of that seal; late bool, whether it was read
        after its moment had been scanned; digests int, how that seal counts what fired; seal_appended_ms bigint, its
        append; callback bigint and asks struct of the request; and those of *also*, null of what is refused.

        It has fired if sealed_in is there and reason and taken_by are not. What is far and has no copy that workers
        took has the seal of its moment, and fence null.
    """
    timers = requests.where(F.col("kind") == REQUEST).select(
        *_REQUEST,
        "appended_ms",
        "second",
        "millis",
        "timer_id",
        "topic",
        "callback",
        "asks",
        asked_ms().alias("asked_ms"),
        *also,
    )
    moments = timers.select("partition", F.col("asked_ms").alias("at")).distinct()
    found = first_interval(moments, intervals, F.col("end_ms") - 1).withColumnRenamed("at", "asked_ms")
    seen = timers.join(keep(_marks(requests, rejected, millis_from_of(intervals))), [*_REQUEST], "left")
    seen = seen.join(keep(found), ["partition", "asked_ms"], "left")
    far = by_seal("interval") if horizon_s is None else waits_longer(F.lit(horizon_s))
    seen = seen.withColumn("far", far).withColumn("at", F.when(far, F.col("copied_at")).otherwise(F.col("offset")))
    behind = F.coalesce(F.col("at") >= F.col("interval.fence"), F.lit(False))
    refused = requests.where(F.col("kind") == REFUSED).select(
        *_REQUEST, "appended_ms", "reason", F.lit(False).alias("far"), F.col("offset").alias("at")
    )
    late = seen.where(behind).drop("interval").withColumn("late", F.lit(True))
    late = late.unionByName(refused.withColumn("late", F.lit(False)), allowMissingColumns=True)
    sealed = seen.where(~behind).withColumn("late", F.lit(False))
    # The fence is the seal's minus one: a request at it is behind.
    sealed = sealed.unionByName(first_interval(late, intervals, F.col("fence") - 1))
    fence = F.when(F.col("at").isNotNull(), F.col("interval.fence"))
    return sealed.select(
        *_REQUEST,
        "appended_ms",
        "second",
        "millis",
        "timer_id",
        "topic",
        "reason",
        # What a seal covers fires by it, whatever is read behind its fence.
        F.when(F.coalesce(F.col("taken_by") < fence, F.lit(True)), F.col("taken_by")).alias("taken_by"),
        "far",
        F.col("interval.end_ms").alias("sealed_ms"),
        last_second(F.col("interval.end_ms")).alias("sealed_in"),
        fence.alias("fence"),
        "late",
        F.col("interval.digests").alias("digests"),
        "callback",
        "asks",
        F.col("interval.appended_ms").alias("seal_appended_ms"),
        *also,
    )


def fires(outcomes: DataFrame) -> DataFrame:
    """Return the rows of `outcomes_of` that a seal counts as due: what fired, and with a reason what was rejected."""
    return outcomes.where(F.col("fence").isNotNull() & F.col("taken_by").isNull())


def by_seal(seal: str) -> Column:
    """Return the column that tells whether a request is far for the worker that wrote *seal*, a struct."""
    # What lies below horizon_from was judged by a horizon of before; what was far by that one has a copy.
    judged = F.col("offset") >= F.col(f"{seal}.horizon_from")
    return F.when(judged, waits_longer(F.col(f"{seal}.horizon_s"))).otherwise(F.col("copied_at").isNotNull())


def waits_longer(horizon_s: Column) -> Column:
    """Return the column that tells whether a request waits for more than *horizon_s* seconds, if that is above 0."""
    return (horizon_s > 0) & (F.col("second") - F.floor(F.col("appended_ms") / 1000) > horizon_s)


def due_ms() -> Column:
    """Return when a row of `outcomes_of` could fire at the earliest: when it is due, or at a later append."""
    return F.greatest(asked_ms(), F.col("appended_ms"))


def last_second(end_ms: Column) -> Column:
    """Return the last UNIX second of which anything lies before *end_ms*."""
    return F.floor((end_ms - 1) / 1000)


def _marks(requests: DataFrame, rejected: DataFrame, millis_from: DataFrame) -> DataFrame:
    return (
        marks_of(requests, millis_from)
        .unionByName(rejected.select(*_REQUEST, "reason"), allowMissingColumns=True)
        .groupBy(*_REQUEST)
        .agg(*(F.max(name).alias(name) for name in ("taken_by", "copied_at", "reason")))
    )


def first_interval(rows: DataFrame, intervals: DataFrame, reaches: Column) -> DataFrame:
    """Return *rows* with the column interval: the first one that *reaches* their `at`, null if none does."""
    found = intervals.select("partition", reaches.alias("at"), F.struct(*INTERVAL).alias("interval"))
    # From the end on: what a row has last seen is the first that comes at or after it. Of intervals that reach as far
    # the earliest comes last, and before the rows, whose interval is null.
    seen = Window.partitionBy("partition").orderBy(F.desc("at"), F.desc_nulls_last("interval.end_ms"))
    seen = seen.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    columns = rows.columns
    return (
        rows.withColumn("is_row", F.lit(True))
        .unionByName(found, allowMissingColumns=True)
        .withColumn("interval", F.last("interval", ignorenulls=True).over(seen))
        .where("is_row")
        .select(*columns, "interval")
    )
