"""Fire a past time range again, on paper: as it was, to compare it with the seals, or with other settings."""

from pyspark.sql import DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F

from kafka_timers.lake.covering import INTERVAL, due_ms, figures, fires, waits_longer
from kafka_timers.lake.schema import RECORD_KEY, REQUEST
from kafka_timers.lake.time_range import time_range_of
from kafka_timers.settings import LakeSettings

_SHARES = {"late_p50_s": 0.5, "late_p99_s": 0.99, "late_max_s": 1.0}


def replayed(spark: SparkSession, settings: LakeSettings, first: int | None, last: int | None) -> list[Row]:
    """
    Return for each partition the timers that fire in a time range (see `time_range_of`), beside the seals.

    Returns:
        partition, fired, rejected, digest (as 16 hex digits), sealed_fired, sealed_rejected, sealed_digest, same.
    """
    names = ("fired", "rejected", "digest")
    with time_range_of(spark, settings, first, last) as within:
        fired = figures(fires(within.outcomes()).where(F.col("sealed_in") >= within.first), "partition")
        sealed = within.sealed.where(F.col("last") >= within.first).groupBy("partition")
        both = sealed.agg(*(F.sum(name).alias(f"sealed_{name}") for name in names)).join(fired, "partition", "left")
        both = both.fillna(0, list(names))
        same = (F.col("digest") == F.col("sealed_digest")) & (F.col("rejected") == F.col("sealed_rejected"))
        both = both.withColumn("same", same & (F.col("fired") == F.col("sealed_fired")))
        for name in ("digest", "sealed_digest"):
            both = both.withColumn(name, F.format_string("%016x", name))
        columns = ("partition", *names, *(f"sealed_{name}" for name in names), "same")
        return both.select(*columns).orderBy("partition").collect()


def with_horizon(
    spark: SparkSession, settings: LakeSettings, first: int | None, last: int | None, horizon_s: int
) -> list[Row]:
    """
    Return the number of timers fired in a time range that another horizon would have left to the lake.

    Returns:
        partition, fired, far (number of these that would have been left to the lake).
    """
    far = F.count_if(waits_longer(F.lit(horizon_s))).alias("far")
    with time_range_of(spark, settings, first, last) as within:
        fired = fires(within.outcomes()).where((F.col("sealed_in") >= within.first) & F.col("reason").isNull())
        return fired.groupBy("partition").agg(F.count(F.lit(1)).alias("fired"), far).orderBy("partition").collect()


def with_fewer_ticks(
    spark: SparkSession, settings: LakeSettings, first: int | None, last: int | None, every_s: int
) -> list[Row]:
    """
    Return the lateness that the timers of a time range would have had with fewer ticks, each read at once.

    Returns:
        partition, ticks, fired, most (in one tick), and late_p50_s, late_p99_s, late_max_s: seconds from a timer's
        second, or its append if that was later, to its tick.
    """
    with time_range_of(spark, settings, first, last) as within:
        known = within.requests.where(F.col("kind") == REQUEST)
        intervals = synthetic_intervals(known.select(*RECORD_KEY, "appended_ms"), within.first, within.last, every_s)
        # Without a horizon: far requests count as promoted in good time.
        fired = fires(within.outcomes(0, intervals))
        fired = fired.where(F.col("second").between(within.first, within.last) & F.col("reason").isNull())
        fired = fired.select("partition", "sealed_in", (F.col("sealed_in") - due_ms() / 1000).alias("late_s"))
        ticks = fired.groupBy("partition", "sealed_in").count()
        late = fired.groupBy("partition").agg(
            F.count(F.lit(1)).alias("fired"),
            *(F.round(F.percentile_approx("late_s", share), 3).alias(name) for name, share in _SHARES.items()),
        )
        ticks = ticks.groupBy("partition").agg(F.count(F.lit(1)).alias("ticks"), F.max("count").alias("most"))
        rows = ticks.join(late, "partition").select("partition", "ticks", "fired", "most", *_SHARES)
        return rows.orderBy("partition").collect()


def synthetic_intervals(requests: DataFrame, first: int, last: int, every_s: int) -> DataFrame:
    """
    Return the sealed intervals that ticks at every *every_s* seconds would give, each read at once.

    Args:
        requests: partition, offset and appended_ms of all records of `requests` in a time range.
        first: UNIX second in which that time range begins.
        last: UNIX second in which it ends.
        every_s: seconds between ticks.

    Returns:
        The columns of `intervals_of`, up to the multiples of *every_s*. Each fence passes all earlier records.
    """
    tick = (F.floor(F.col("appended_ms") / 1000 / every_s) + 1) * every_s
    before = Window.partitionBy("partition").orderBy("end_ms")
    end_ms = ((F.col("tick") + 1) * 1000).alias("end_ms")
    ticks = requests.select("partition").distinct()
    ticks = ticks.select(
        "partition", F.explode(F.sequence(F.lit(-(-first // every_s)), F.lit(last // every_s))).alias("number")
    ).select("partition", (F.col("number") * every_s).cast("bigint").alias("tick"))
    passed = requests.groupBy("partition", tick.alias("tick")).agg((F.max("offset") + 1).alias("fence"))
    return (
        ticks.unionByName(passed, allowMissingColumns=True)
        .groupBy("partition", end_ms)
        .agg(F.max("fence").alias("fence"))
        .withColumn("fence", F.coalesce(F.max("fence").over(before), F.lit(0)))
        .withColumns(dict.fromkeys(("horizon_s", "horizon_from"), F.lit(0).cast("bigint")))
        .withColumn("appended_ms", F.col("end_ms"))
        .select("partition", *INTERVAL)
    )
