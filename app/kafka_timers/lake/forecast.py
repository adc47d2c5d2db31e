"""
Forecast the load: the number of timers due at each time and for each topic, and how long the hottest seconds will take.

The forecast begins at the last sealed second, so no clock is needed.
"""

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from kafka_timers.errors import LakeError
from kafka_timers.lake import plots
from kafka_timers.lake.covering import totals
from kafka_timers.lake.schema import REQUESTS, SEALS
from kafka_timers.lake.tables import read, root_of
from kafka_timers.lake.time_range import requests_of
from kafka_timers.lake.unfired import pending
from kafka_timers.settings import LakeSettings

# Values of --by, in seconds.
STEPS_S = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400}
# The rate comes from this many of the hottest sealed seconds of the last day, with at least so many callbacks each.
_RATE_SECONDS, _RATE_FIRED_MIN = 10, 1_000
_DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class Forecast:
    """
    The load ahead.

    Attributes:
        since: last sealed second; the earliest of all partitions.
        until: last second of the forecast.
        step_s: length of one of *steps* in seconds.
        timers: number of timers.
        far: number of timers that the lake holds for the workers.
        steps: steps with timers: at (UNIX second in which it begins), timers.
        topics: topic, timers; the topic with the most timers first.
        hottest: second, timers; the second with the most timers first.
        rate: callbacks per second that workers reach; None if it is unknown.
    """

    since: int
    until: int
    step_s: int
    timers: int
    far: int
    steps: Sequence[Row]
    topics: Sequence[Row]
    hottest: Sequence[Row]
    rate: float | None


def counts(waiting: DataFrame) -> DataFrame:
    """
    Return the number of timers of `pending` due in each second, by topic.

    Returns:
        second bigint, topic string, timers bigint, far bigint (number of far ones among them).
    """
    return waiting.groupBy("second", "topic").agg(
        F.count(F.lit(1)).alias("timers"), F.count_if(F.col("far")).alias("far")
    )


def rate(sealed: DataFrame) -> DataFrame:
    """
    Return the rate that all workers together have reached in the hottest seconds of `totals`.

    Returns:
        One row: rate double, in callbacks per second: the median over the ten hottest seconds with 1,000 callbacks or
        more, each divided by the time until its last callback left. Null if there is no such second.
    """
    # When a second is sealed in parts, the later parts begin later in it.
    begins_ms = F.greatest(F.col("first_ms") - F.col("last") * 1000, F.lit(0))
    hot = (
        # Other seals have caught up with several seconds.
        sealed.where(F.col("end_ms") - F.col("first_ms") <= 1000)
        .groupBy("last")
        .agg(F.sum("fired").alias("fired"), F.max(begins_ms + F.col("lateness_max_ms")).alias("took_ms"))
        .where((F.col("fired") >= _RATE_FIRED_MIN) & (F.col("took_ms") > 0))
        .orderBy(F.desc("fired"))
        .limit(_RATE_SECONDS)
    )
    return hot.agg(F.median(F.col("fired") * 1000 / F.col("took_ms")).alias("rate"))


def forecast(
    spark: SparkSession,
    settings: LakeSettings,
    *,
    ahead_s: int,
    by: str,
    topic: str = "*",
    shown: int = 10,
    known_rate: float | None = None,
) -> Forecast:
    """
    Return the load ahead.

    Args:
        ahead_s: length of the forecast, in seconds from the last sealed second on.
        by: a key of `STEPS_S`.
        topic: glob of the callback topics to count.
        shown: number of the hottest seconds, and of the topics, to return.
        known_rate: callbacks per second that workers reach; None for the rate from seals of the last day.

    Raises:
        LakeError: nothing is sealed yet.
    """
    root, step_s = root_of(settings), STEPS_S[by]
    seals = read(spark, root, SEALS)
    newest = seals.agg(F.max("last")).collect()[0][0]
    if newest is None:
        raise LakeError(f"no seal is in the lake at {root}: run `kafka-timers lake land` first")
    # A partition without a seal of the last day is not served: its timers count from here on, too.
    recent = seals.where(F.col("last") >= newest - _DAY_S)
    end = F.max(F.struct("end_ms", "fence")).alias("end")
    ends = recent.where(F.col("through").isNull()).groupBy("partition").agg(end)
    end_ms, fence = ends.agg(F.min("end.end_ms"), F.min("end.fence")).collect()[0]
    # The last second in which all partitions are done.
    since = end_ms // 1000 - 1
    until = since + ahead_s
    requests, _ = requests_of(read(spark, root, REQUESTS), seals, since, fence, until)
    waiting = pending(requests, recent).where(F.col("second").between(since + 1, until))
    waiting = waiting.where(F.col("topic").rlike(fnmatch.translate(topic)))
    # Computed once; everything else follows from it.
    seconds = counts(waiting).persist()
    timers = F.sum("timers").alias("timers")
    at = (F.col("second") - F.pmod("second", F.lit(step_s))).alias("at")
    totalled = seconds.agg(F.coalesce(timers, F.lit(0)), F.coalesce(F.sum("far"), F.lit(0))).collect()[0]
    load = Forecast(
        since=since,
        until=until,
        step_s=step_s,
        timers=totalled[0],
        far=totalled[1],
        steps=seconds.groupBy(at).agg(timers).orderBy("at").collect(),
        topics=seconds.groupBy("topic").agg(timers).orderBy(F.desc("timers"), "topic").limit(shown).collect(),
        hottest=seconds.groupBy("second").agg(timers).orderBy(F.desc("timers"), "second").limit(shown).collect(),
        rate=rate(totals(recent)).collect()[0][0] if known_rate is None else known_rate,
    )
    seconds.unpersist()
    return load


def plot(load: Forecast, file: Path) -> None:
    """Draw *load* into *file*, as .png or .svg by its name."""
    figure, axes = plots.over_time("Timers ahead", f"timers in {load.step_s:,} s")
    plots.bars(axes, [row["at"] for row in load.steps], [row["timers"] for row in load.steps], load.step_s)
    axes.set_xlim(plots.moment(load.since), plots.moment(load.until + 1))
    figure.savefig(file)
