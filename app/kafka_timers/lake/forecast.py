"""
What is ahead: how many timers are due when and for which topic, and how long the hottest seconds will take.

Counted from the last sealed second on, so no clock is asked.
"""

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from kafka_timers.errors import LakeError
from kafka_timers.lake import plots
from kafka_timers.lake.outcomes import totals
from kafka_timers.lake.pending import pending
from kafka_timers.lake.schema import REQUESTS, SEALS, ends_ms
from kafka_timers.lake.tables import read, root_of
from kafka_timers.lake.time_range import requests_of
from kafka_timers.settings import LakeSettings

__all__ = ["STEPS_S", "Forecast", "counts", "forecast", "plot", "rate"]

# What --by names, in seconds.
STEPS_S = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400}
# The rate is taken from so many of the hottest sealed seconds of the last day, with at least so many callbacks each.
_RATE_SECONDS, _RATE_FIRED_MIN = 10, 1_000
_DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class Forecast:
    """
    What is ahead.

    Attributes:
        since: the last sealed second, of all partitions' the earliest.
        until: the last second that is looked at.
        step_s: seconds of one of *steps*.
        timers: how many there are.
        far: how many of them the lake holds for the workers.
        steps: those with timers: at (UNIX second in which it begins), timers.
        topics: topic, timers; those with most first.
        hottest: second, timers; the one with most first.
        rate: callbacks a second that workers reach; None when nothing tells.
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
    Return how many timers are due in each second, of each topic.

    Args:
        waiting: rows of `pending`.

    Returns:
        second bigint, topic string, timers bigint, far bigint (of them).
    """
    return waiting.groupBy("second", "topic").agg(
        F.count(F.lit(1)).alias("timers"), F.count_if(F.col("far")).alias("far")
    )


def rate(sealed: DataFrame) -> DataFrame:
    """
    Return what workers have reached together in the hottest seconds.

    Args:
        sealed: rows of `totals`.

    Returns:
        One row: rate double, callbacks a second: the median of the ten hottest seconds with 1,000 callbacks or more, of
        each by the time until its last callback left; null when there is no such second.
    """
    # Of a second that is sealed in parts, the later ones begin later in it.
    begins_ms = F.greatest(F.col("first_ms") - F.col("last") * 1000, F.lit(0))
    hot = (
        # Others have caught up with several seconds.
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
    Return what is ahead.

    Args:
        spark: the session.
        settings: say where the lake is.
        ahead_s: how far to look, in seconds from the last sealed one on.
        by: a key of `STEPS_S`.
        topic: glob of the callback topics to count.
        shown: how many of the hottest seconds, and of the topics, to return.
        known_rate: callbacks a second that workers reach; None takes what seals of the last day tell.

    Raises:
        LakeError: nothing is sealed yet.
    """
    root, step_s = root_of(settings), STEPS_S[by]
    seals = read(spark, root, SEALS)
    newest = seals.agg(F.max("last")).collect()[0][0]
    if newest is None:
        raise LakeError(f"no seal is in the lake at {root}: run `kafka-timers lake land` first")
    # A partition that has no seal of the last day is not served: what is due there counts from here on, too.
    recent = seals.where(F.col("last") >= newest - _DAY_S)
    end = F.max(F.struct(ends_ms().alias("end_ms"), "fence")).alias("end")
    ends = recent.where(F.col("through").isNull()).groupBy("partition").agg(end)
    end_ms, fence = ends.agg(F.min("end.end_ms"), F.min("end.fence")).collect()[0]
    # The last second of which nothing is left.
    since = end_ms // 1000 - 1
    until = since + ahead_s
    requests = requests_of(read(spark, root, REQUESTS), seals, since, fence, until)
    waiting = pending(requests, recent).where(F.col("second").between(since + 1, until))
    waiting = waiting.where(F.col("topic").rlike(fnmatch.translate(topic)))
    # Computed once, and all else from that.
    seconds = counts(waiting).persist()
    timers = F.sum("timers").alias("timers")
    at = (F.col("second") - F.pmod("second", F.lit(step_s))).alias("at")
    totalled = seconds.agg(F.coalesce(timers, F.lit(0)), F.coalesce(F.sum("far"), F.lit(0))).collect()[0]
    told = Forecast(
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
    return told


def plot(told: Forecast, file: Path) -> None:
    """Draw *told* into *file*, whose name says whether it becomes a .png or an .svg."""
    figure, axes = plots.over_time("Timers ahead", f"timers in {told.step_s:,} s")
    plots.bars(axes, [row["at"] for row in told.steps], [row["timers"] for row in told.steps], told.step_s)
    axes.set_xlim(plots.moment(told.since), plots.moment(told.until + 1))
    figure.savefig(file)
