"""
The audit of a time range: judges what was sealed in it by what was landed, and writes down what comes of it.

Only what is complete is judged: seals whose requests have all been landed.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from kafka_timers.lake.altered import altered_records, altered_seal_rows
from kafka_timers.lake.findings import (
    COUNTS,
    callback_findings,
    callbacks_of,
    checked,
    expected,
    gaps,
    lateness,
    seal_findings,
    unpromoted,
)
from kafka_timers.lake.outcomes import last_second
from kafka_timers.lake.proof import broken_links, counted_between, unread
from kafka_timers.lake.schema import AUDIT_FINDINGS, AUDIT_SECONDS, REQUESTS, due_of
from kafka_timers.lake.session import kafka_options
from kafka_timers.lake.tables import append, constant, read, root_of
from kafka_timers.lake.time_range import TimeRange, time_range_of
from kafka_timers.settings import LakeSettings

__all__ = ["Audit", "audit"]

_LATENESS = ("lateness_p99_ms", "lateness_max_ms")
_CALLBACKS = "partition int, offset bigint, topic string, second bigint, at_ms bigint"
# Each topic is landed by itself, so a seal may be there for a while before its rejects are.
_SETTLED_MS = 600_000
# Callbacks are read from this long before the time range, where an early one may lie, until this long behind its last
# seal.
_AROUND_MS = 3_600_000
# Of the plots over time.
_POINTS_MAX = 720


@dataclass(frozen=True, slots=True)
class Audit:
    """
    What an audit says.

    Attributes:
        audited_s: UNIX second in which it began; names its rows in the tables.
        first: UNIX second in which the time range begins.
        last: UNIX second in which it ends.
        sealed_to: the last second that was judged, by partition.
        seals: how many were judged; slices of one second are one.
        due: timers that were to be judged, as the requests tell: fired + rejected.
        fired: see *due*.
        rejected: see *due*.
        late: of *due*, read after their second had been scanned.
        kinds: how many findings there are of each kind.
        findings: the first of them: kind, partition, offset, second, detail.
        lateness: of each callback topic: topic, callbacks, p50, p99, p999, max; None when callbacks were not read.
        step_s: seconds between the points of *course*.
        course: of each point: at (UNIX second), fired, lateness_p99_ms, lateness_max_ms, as sealed.
        found: of each point that has any: at, findings.
    """

    audited_s: int
    first: int
    last: int
    sealed_to: dict[int, int]
    seals: int
    due: int
    fired: int
    rejected: int
    late: int
    kinds: dict[str, int]
    findings: Sequence[Row]
    lateness: Sequence[Row] | None
    step_s: int
    course: Sequence[Row]
    found: Sequence[Row]


def audit(
    spark: SparkSession,
    settings: LakeSettings,
    now_s: int,
    *,
    first: int | None = None,
    last: int | None = None,
    callbacks: bool = False,
    shown: int = 20,
) -> Audit:
    """
    Judge what was sealed in a time range, and append what comes of it to `audit_seconds` and `audit_findings`.

    Args:
        spark: the session.
        settings: say where lake and brokers are.
        now_s: UNIX seconds; names the audit.
        first: UNIX second in which the time range begins; None is a day before its end.
        last: UNIX second in which it ends; None is the last one that is sealed.
        callbacks: whether to read the callback topics.
        shown: how many of the findings to return.

    Raises:
        LakeError: nothing is sealed in the time range.
    """
    with time_range_of(spark, settings, first, last) as within:
        late_ms = _judge(spark, settings, within, now_s, callbacks=callbacks)
        first, last, sealed_to = within.first, within.last, within.sealed_to
    # What was written is not computed again.
    seconds, findings = (
        read(spark, root_of(settings), table).where(F.col("audited_s") == now_s)
        for table in (AUDIT_SECONDS, AUDIT_FINDINGS)
    )
    sums = seconds.agg(
        F.count(F.lit(1)).alias("seals"),
        *(F.coalesce(F.sum(f"expected_{each}"), F.lit(0)).alias(each) for each in COUNTS),
        F.coalesce(F.sum("late"), F.lit(0)).alias("late"),
    ).collect()[0]
    step_s = max(60, -(-(last - first + 1) // _POINTS_MAX))
    at = (F.floor((F.col("second") - first) / step_s) * step_s + first).alias("at")
    course = seconds.withColumn("second", F.col("last")).groupBy(at)
    return Audit(
        audited_s=now_s,
        first=first,
        last=last,
        sealed_to=sealed_to,
        **sums.asDict(),
        kinds={row["kind"]: row["count"] for row in findings.groupBy("kind").count().orderBy("kind").collect()},
        findings=findings.orderBy("second", "partition", "offset", "kind").limit(shown).collect(),
        lateness=late_ms,
        step_s=step_s,
        course=course.agg(F.sum("fired").alias("fired"), *(F.max(each).alias(each) for each in _LATENESS))
        .orderBy("at")
        .collect(),
        found=findings.groupBy(at).agg(F.count(F.lit(1)).alias("findings")).orderBy("at").collect(),
    )


def _judge(
    spark: SparkSession, settings: LakeSettings, within: TimeRange, now_s: int, *, callbacks: bool
) -> Sequence[Row] | None:
    """Append what is to be said of each seal, and what is wrong; return how late callbacks were, if they are read."""
    root, name = root_of(settings), F.lit(now_s).cast("bigint")
    outcomes = within.outcomes()
    if callbacks:
        outcomes = within.keep(outcomes)
    wanted = within.keep(expected(outcomes))
    newest_ms = within.sealed.agg(F.max("appended_ms")).collect()[0][0]
    seconds = checked(within.sealed.where(F.col("last") >= within.first), wanted, newest_ms - _SETTLED_MS)
    seconds = within.keep(seconds.withColumns({"audited_s": name, "day": due_of(F.col("last"), F.lit("day"))}))
    append(seconds, root, AUDIT_SECONDS)

    findings = gaps(within.sealed).where(F.col("second") >= within.first)
    for more in _proof_of(spark, root, within):
        findings = findings.unionByName(more)
    if not seconds.where(~F.col("ok")).isEmpty():
        findings = findings.unionByName(seal_findings(seconds, outcomes))
    in_range = last_second(F.col("end_ms")).between(within.first, within.last)
    if not wanted.where(F.col("fence").isNull() & in_range).isEmpty():
        findings = findings.unionByName(unpromoted(outcomes.where(F.col("sealed_in") >= within.first)))
    told = None
    if callbacks:
        judged = outcomes.where(F.col("sealed_in") >= within.first)
        received = _received(spark, settings, judged, within.first * 1000 - _AROUND_MS, newest_ms + _AROUND_MS)
        findings = findings.unionByName(
            callback_findings(outcomes, received, within.intervals, within.first, within.last)
        )
        told = lateness(judged, received).orderBy("topic").collect()
    append(findings.withColumn("audited_s", name), root, AUDIT_FINDINGS)
    return told


def _proof_of(spark: SparkSession, root: str, within: TimeRange) -> Iterator[DataFrame]:
    """Yield what is wrong with what seals tell of what was read, and of each other, and with the rows of both."""
    counted = counted_between(within.seals)
    # What was read below the first fence is told by the seal before the time range.
    yield unread(counted.where(F.col("last") >= within.first), read(spark, root, REQUESTS), within.keep)
    yield broken_links(within.seals).where(F.col("second") >= within.first)
    yield altered_seal_rows(within.seals.where(F.col("last") >= within.first))
    yield altered_records(within.appended)


def _received(spark: SparkSession, settings: LakeSettings, outcomes: DataFrame, from_ms: int, to_ms: int) -> DataFrame:
    """Return what lies in the callback topics that *outcomes* name, of a time range."""
    topics = [row[0] for row in outcomes.where(F.col("reason").isNull()).select("topic").distinct().collect()]
    if not topics:
        return constant(spark, [], _CALLBACKS)
    records = spark.read.format("kafka").options(
        **{
            **kafka_options(settings.kafka),
            "kafka.isolation.level": "read_committed",
            # A topic that is named and is not there any more is passed over: its callbacks are missing.
            "subscribePattern": "|".join(re.escape(topic) for topic in topics),
            "startingTimestamp": str(from_ms),
            "startingOffsetsByTimestampStrategy": "latest",
            "endingTimestamp": str(to_ms),
            "includeHeaders": "true",
            # As is what a topic's retention deletes meanwhile.
            "failOnDataLoss": "false",
        }
    )
    return callbacks_of(records.load())
