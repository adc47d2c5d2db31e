"""
Audit a time range: judge the seals of the range by the landed requests, and store the result.

Only complete seconds are judged, with seals whose requests have all been landed. Gaps in the time range become findings
or are reported as undecided. The audit lists everything that it does not check.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import pyspark
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import kafka_timers
from kafka_timers.core.chain import Day
from kafka_timers.core.wire import Topics
from kafka_timers.lake.altered import altered_records, altered_rows
from kafka_timers.lake.comparison import Comparison, named_by
from kafka_timers.lake.coverage import Coverage, coverage_of
from kafka_timers.lake.covering import last_second
from kafka_timers.lake.findings import (
    COUNTS,
    checked,
    expected,
    gaps,
    late_seals,
    seal_findings,
    unpromoted,
    unrejected,
    wrong_rejects,
)
from kafka_timers.lake.proof import broken_links, counted_between, records_in, tallied, unread
from kafka_timers.lake.publish import changed_days, unpublished
from kafka_timers.lake.scheduled import Scheduled
from kafka_timers.lake.schema import AUDIT_FINDINGS, AUDIT_SECONDS, REQUESTS, SEALS, day_of
from kafka_timers.lake.sent_on import sent_on_findings
from kafka_timers.lake.service import Service
from kafka_timers.lake.tables import append, read, read_rejected, root_of
from kafka_timers.lake.time_range import TimeRange, time_range_of
from kafka_timers.settings import LakeSettings

_LATENESS = ("lateness_p99_ms", "lateness_max_ms")
# Each topic is landed separately, so rejects may arrive some time after their seal.
_SETTLED_MS = 600_000
# Maximum of points in plots over time.
_POINTS_MAX = 720


@dataclass(frozen=True, slots=True)
class Audit:
    """
    Result of an audit.

    Attributes:
        audited_s: UNIX second in which the audit began; names its rows in the tables.
        first, last: see `Coverage`, like partitions, sealed and undecided.
        unchecked: checks that were left out, each as a sentence.
        seals: number of judged seals; the slices of one second count as one.
        due: number of records to judge, by the requests: *fired* + *rejected*, which includes *forwarded*.
        late: number of timers in *due* whose requests were read after their second had been scanned.
        kinds: number of findings by kind.
        findings: the first findings: kind, partition, offset, second, detail.
        lateness: one row for each callback topic: topic, callbacks, p50, p99, p999, max, by_worker; None if callbacks
            were not read.
        step_s: seconds between the points of *course*.
        course: one row for each point, from the seals: at (UNIX second), fired, lateness_p99_ms, lateness_max_ms.
        found: one row for each point with findings: at, findings.
        prefix: prefix of the service's topics.
        cluster: id of the Kafka cluster; empty if no broker answers.
        lake: root of the tables.
        versions: those of kafka-timers and of Spark.
    """

    audited_s: int
    first: int
    last: int
    partitions: int
    sealed: dict[int, tuple[int, int]]
    undecided: list[str]
    unchecked: list[str]
    seals: int
    due: int
    fired: int
    rejected: int
    forwarded: int
    late: int
    kinds: dict[str, int]
    findings: Sequence[Row]
    lateness: Sequence[Row] | None
    step_s: int
    course: Sequence[Row]
    found: Sequence[Row]
    prefix: str
    cluster: str
    lake: str
    versions: dict[str, str]


class _Wanted(NamedTuple):
    """Checks that take longer or need a limit, see `audit`."""

    callbacks: bool
    batches: bool
    late_ms: int | None
    rows: bool
    chain: Mapping[tuple[int, str], Day] | None


def audit(
    spark: SparkSession,
    settings: LakeSettings,
    now_s: int,
    *,
    first: int | None = None,
    last: int | None = None,
    callbacks: bool = False,
    batches: bool = False,
    late_ms: int | None = None,
    rows: bool = False,
    chain: Mapping[tuple[int, str], Day] | None = None,
    shown: int = 20,
    service: Service | None = None,
) -> Audit:
    """
    Judge the seals of a time range, and append the result to `audit_seconds` and `audit_findings`.

    Args:
        now_s: UNIX seconds by the host's clock; names the audit.
        first: UNIX second in which the time range begins; None for a day before its end.
        last: UNIX second in which it ends; None for the last landed second.
        callbacks: whether to read the callback topics.
        batches: whether to compare the callback topics with the SHA-256 in the seals too, which reads them once more.
        late_ms: most milliseconds that a callback may be late; None for no limit.
        rows: whether to judge each request again, see `altered_rows`.
        chain: published days of the chain of seals, by partition and date; None if there are none to compare with.
        shown: number of findings to return.
        service: answer of the brokers; None if none answers. Then a second without a seal stays undecided, because the
            seal may exist without being landed.

    Raises:
        LakeError: nothing is landed.
    """
    coverage = coverage_of(spark, settings, now_s, first, last, service)
    first, last = coverage.first, coverage.last
    with time_range_of(spark, settings, first, last, may_be_empty=True) as within:
        wanted = _Wanted(callbacks or batches, batches, late_ms, rows, chain)
        seconds, findings, lateness, unchecked = _judge(spark, settings, within, coverage, now_s, wanted)
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
            partitions=coverage.partitions,
            sealed=coverage.sealed,
            undecided=coverage.undecided,
            unchecked=unchecked,
            **sums.asDict(),
            kinds={row["kind"]: row["count"] for row in findings.groupBy("kind").count().orderBy("kind").collect()},
            findings=findings.orderBy("second", "partition", "offset", "kind").limit(shown).collect(),
            lateness=lateness,
            step_s=step_s,
            course=course.agg(F.sum("fired").alias("fired"), *(F.max(each).alias(each) for each in _LATENESS))
            .orderBy("at")
            .collect(),
            found=findings.groupBy(at).agg(F.count(F.lit(1)).alias("findings")).orderBy("at").collect(),
            prefix=settings.topic_prefix,
            cluster=service.cluster if service else "",
            lake=root_of(settings),
            versions={"kafka-timers": kafka_timers.__version__, "spark": pyspark.__version__},
        )


def _judge(
    spark: SparkSession,
    settings: LakeSettings,
    within: TimeRange,
    coverage: Coverage,
    now_s: int,
    wanted: _Wanted,
) -> tuple[DataFrame, DataFrame, Sequence[Row] | None, list[str]]:
    """Append the results for each seal, and the findings; return both, and lateness and unchecked, see `Audit`."""
    root, name = root_of(settings), F.lit(now_s).cast("bigint")
    outcomes = within.outcomes()
    if wanted.callbacks:
        outcomes = within.keep(outcomes)
    figures = within.keep(expected(outcomes))
    settled_ms = (within.sealed.agg(F.max("appended_ms")).collect()[0][0] or 0) - _SETTLED_MS
    in_range = within.sealed.where(F.col("last") >= within.first)
    seconds = checked(in_range, figures, settled_ms)
    seconds = within.keep(seconds.withColumns({"audited_s": name, "day": day_of(F.col("last"))}))
    append(seconds, root, AUDIT_SECONDS)

    lateness, unchecked = None, _unchecked(coverage, wanted)
    rejected = read_rejected(spark, root, Topics.of(settings.topic_prefix).requests)
    requests = read(spark, root, REQUESTS)
    refused = within.keep(within.refused().where(F.col("sealed_in") >= within.first))
    # Partitions that were added to timer-request are not landed.
    in_time = F.col("appended_ms").between(within.first * 1000, min(within.last * 1000 + 999, settled_ms))
    judged = within.keep(rejected.where(in_time & (F.col("partition") < coverage.partitions)))
    findings = [
        gaps(within.sealed).where(F.col("second") >= within.first),
        coverage.findings(spark),
        unrejected(refused, rejected, settled_ms),
        sent_on_findings(refused, requests, within.first, within.last, settled_ms),
        *_proof_of(requests, within, coverage.partitions if wanted.rows else None),
    ]
    if not judged.isEmpty():
        findings.append(wrong_rejects(judged, named_by(requests, judged), outcomes))
    scheduled = Scheduled(spark, settings, coverage, settled_ms)
    findings.append(scheduled.findings(within.keep))
    unchecked += scheduled.unchecked
    if wanted.chain:
        findings.append(changed_days(read(spark, root, SEALS), wanted.chain, coverage.first, coverage.last))
    if wanted.late_ms is not None:
        findings.append(late_seals(in_range, wanted.late_ms))
    if not seconds.where(~F.col("ok")).isEmpty():
        findings.append(seal_findings(seconds, outcomes))
    is_due = last_second(F.col("end_ms")).between(within.first, within.last)
    if not figures.where(F.col("fence").isNull() & is_due).isEmpty():
        findings.append(unpromoted(outcomes.where(F.col("sealed_in") >= within.first)))
    if wanted.callbacks:
        came = Comparison(spark, settings, within, outcomes, coverage)
        findings += came.findings(wanted.late_ms, batches=wanted.batches)
        lateness, unchecked = came.lateness, [*unchecked, *came.unchecked]
    # A changed row may have no second.
    second = F.coalesce("second", F.lit(within.first))
    found = reduce(DataFrame.unionByName, findings)
    found = within.keep(found.withColumns({"audited_s": name, "second": second}))
    append(found, root, AUDIT_FINDINGS)
    return seconds, found, lateness, unchecked


def _proof_of(requests: DataFrame, within: TimeRange, partitions: int | None) -> Iterator[DataFrame]:
    """
    Yield findings about the *requests* that seals have counted, the links between seals, and changed rows of requests.

    If *partitions* is given, each request is judged again, as one of a topic with that many partitions.
    """
    # The seal before the time range counts the requests below the first fence.
    counted = counted_between(within.seals).where(F.col("last") >= within.first)
    appended = within.keep(within.appended)
    tally = tallied(counted, requests, appended, within.keep)
    yield unread(counted, tally, requests, within.keep)
    yield broken_links(within.seals).where(F.col("second") >= within.first)
    if tally.may_be_altered:
        yield altered_records(records_in(requests, appended))
    if partitions is not None:
        yield altered_rows(records_in(requests, appended), partitions)


def _unchecked(coverage: Coverage, wanted: _Wanted) -> list[str]:
    """Return the checks that are left out, for any content of the topics."""
    sentences = [
        f"the seconds of partition {number} before {since}: no seal of them is in the lake"
        for number, (since, _) in sorted(coverage.sealed.items())
        if since > coverage.first
    ]
    if not wanted.callbacks:
        sentences.append("callbacks, tombstones and answers: give --callbacks")
    if not wanted.batches:
        sentences.append("callback topics against the SHA-256 of what was sent: give --batches")
    if not wanted.rows:
        sentences.append("the columns of each request against its bytes: give --rows")
    if wanted.chain is None:
        sentences.append("the seals against a published chain: give --chain")
    else:
        sentences += unpublished(wanted.chain, coverage.partitions, coverage.first, coverage.last)
    return sentences
