"""
The audit: what should have fired, computed from requests, against what was sealed and, if asked, what was received.

Seals are compared by counts and digest, which costs a pass over the requests of the span. Callbacks are compared one by
one: each names its request in a header. Only what is complete is judged: seals whose requests have all been landed.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_

from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F

from kafka_timers.lake.replay import due_ms, figures, fires, read_span
from kafka_timers.lake.schema import AUDIT_FINDINGS, AUDIT_SECONDS, due_of
from kafka_timers.lake.tables import append, read, root_of
from kafka_timers.settings import LakeSettings
from kafka_timers.wire import EXPIRY_HEADER, REQUEST_HEADER

__all__ = [
    "ADVICE",
    "Audit",
    "audit",
    "callback_findings",
    "callbacks_of",
    "checked",
    "expected",
    "gaps",
    "lateness",
    "seal_findings",
    "unpromoted",
]

# What to do about a finding of each kind.
ADVICE = {
    "seal-count": "The seal counts other requests than the log has. Keep timer-request and timer-sealed as they are; "
    "an audit with --callbacks shows each callback that is missing or too many.",
    "seal-digest": "The seal counts as many requests as the log has, but not the same. Audit with --callbacks.",
    "gap": "Some seconds are in no seal, or in two. Has timer-sealed lost records? With at-least-once, an owner was "
    "paused.",
    "not-promoted": "Run `kafka-timers lake promote`: it fires at once then. Promote more often from now on.",
    "missing": "The callback is not in its topic. If that topic's retention has not deleted it, make the timer again.",
    "doubled": "Receivers that read committed records have it more than once. With at-least-once this may be.",
    "early": "The callback was there before its second. Compare the clocks of brokers and oscillators.",
    "stale-version": "The timer had been cancelled or moved in time, and fired all the same.",
    "unexpected": "The callback is of no request that was to fire. Who else writes to this topic?",
}

_REQUEST = ("partition", "offset")
_SEAL = ("partition", "last", "fence")
_LATENESS = ("lateness_p99_ms", "lateness_max_ms")
_CALLBACKS = "partition int, offset bigint, topic string, second bigint, at_ms bigint"
_COUNTS = ("due", "fired", "rejected")
# A landing asks for the ends of its topics at about the same time, so it may have a seal and not yet its rejects.
_SETTLED_MS = 10_000
# Callbacks are read from this long before the span, where an early one may lie, until this long behind its last seal.
_AROUND_MS = 3_600_000
# Of the plots over time.
_POINTS_MAX = 720


@dataclass(frozen=True, slots=True)
class Audit:
    """
    What an audit says.

    Attributes:
        audited_s: UNIX second in which it began; names its rows in the tables.
        first: UNIX second in which the span begins.
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
    Judge what was sealed in a span, and append what comes of it to `audit_seconds` and `audit_findings`.

    Args:
        spark: the session.
        settings: say where lake and brokers are.
        now_s: UNIX seconds; names the audit.
        first: UNIX second in which the span begins; None is a day before its end.
        last: UNIX second in which it ends; None is the last one that is sealed.
        callbacks: whether to read the callback topics.
        shown: how many of the findings to return.

    Raises:
        LakeError: nothing is sealed in the span.
    """
    root = root_of(settings)
    span = read_span(spark, settings, first, last)
    first, last = span.first, span.last
    fated, sealed = span.fates(), span.sealed.persist()
    if callbacks:
        fated = fated.persist()
    wanted = expected(fated).persist()

    newest_ms = sealed.agg(F.max("appended_ms")).collect()[0][0]
    seconds = checked(sealed.where(F.col("last") >= first), wanted, newest_ms - _SETTLED_MS)
    seconds = seconds.withColumns({"audited_s": F.lit(now_s), "day": due_of(F.col("last"), F.lit("day"))})
    append(seconds, root, AUDIT_SECONDS)
    # What was written is not computed again.
    seconds = read(spark, root, AUDIT_SECONDS).where(F.col("audited_s") == now_s)
    sums = seconds.agg(
        F.count(F.lit(1)).alias("seals"),
        *(F.coalesce(F.sum(f"expected_{name}"), F.lit(0)).alias(name) for name in _COUNTS),
        F.coalesce(F.sum("late"), F.lit(0)).alias("late"),
        F.count_if(~F.col("ok")).alias("wrong"),
    ).collect()[0]

    findings = gaps(sealed).where(F.col("second") >= first)
    if sums["wrong"]:
        findings = findings.unionByName(seal_findings(seconds, fated))
    in_span = F.col("last").between(first, last)
    if not wanted.where(F.col("fence").isNull() & in_span).isEmpty():
        findings = findings.unionByName(unpromoted(fated.where(F.col("sealed_in") >= first)))
    told = None
    if callbacks:
        judged = fated.where(F.col("sealed_in") >= first)
        received = _received(spark, settings, judged, first * 1000 - _AROUND_MS, newest_ms + _AROUND_MS)
        if received is None:
            received = spark.createDataFrame([], _CALLBACKS)
        findings = findings.unionByName(callback_findings(fated, received, span.steps, first, last))
        told = lateness(judged, received).orderBy("topic").collect()
    append(findings.withColumn("audited_s", F.lit(now_s)), root, AUDIT_FINDINGS)
    findings = read(spark, root, AUDIT_FINDINGS).where(F.col("audited_s") == now_s)
    for frame in (sealed, wanted, fated):
        frame.unpersist()

    step_s = max(60, -(-(last - first + 1) // _POINTS_MAX))
    at = (F.floor((F.col("second") - first) / step_s) * step_s + first).alias("at")
    course = seconds.withColumn("second", F.col("last")).groupBy(at)
    return Audit(
        audited_s=now_s,
        first=first,
        last=last,
        sealed_to=span.sealed_to,
        **{name: sums[name] for name in ("seals", *_COUNTS, "late")},
        kinds={row["kind"]: row["count"] for row in findings.groupBy("kind").count().orderBy("kind").collect()},
        findings=findings.orderBy("second", "partition", "offset", "kind").limit(shown).collect(),
        lateness=told,
        step_s=step_s,
        course=course.agg(F.sum("fired").alias("fired"), *(F.max(name).alias(name) for name in _LATENESS))
        .orderBy("at")
        .collect(),
        found=findings.groupBy(at).agg(F.count(F.lit(1)).alias("findings")).orderBy("at").collect(),
    )


def _received(
    spark: SparkSession, settings: LakeSettings, fated: DataFrame, from_ms: int, to_ms: int
) -> DataFrame | None:
    """Return what lies in the callback topics that *fated* name, of some span of time; None if they name none."""
    topics = [row[0] for row in fated.where(F.col("reason").isNull()).select("topic").distinct().collect()]
    if not topics:
        return None
    records = spark.read.format("kafka").options(
        **{
            "kafka.bootstrap.servers": settings.bootstrap,
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


def expected(fated: DataFrame) -> DataFrame:
    """
    Return what each seal should tell.

    Args:
        fated: rows of `replay.fates`.

    Returns:
        partition int, last bigint, fence bigint (null counts what was not promoted), and those of `replay.figures`.
    """
    due = fated.where(F.col("sealed_in").isNotNull() & F.col("taken_by").isNull())
    return figures(due.withColumnRenamed("sealed_in", "last"), *_SEAL)


def checked(sealed: DataFrame, wanted: DataFrame, settled_ms: int) -> DataFrame:
    """
    Return for each seal what it says beside what was to be expected.

    Args:
        sealed: rows of `replay.totals`.
        wanted: rows of `expected`.
        settled_ms: UNIX milliseconds; of a seal appended later the rejects may not have been landed. One that counts
            more of them than there are is left out.

    Returns:
        The columns of the table `audit_seconds` but audited_s and day.
    """
    wanted = wanted.select(*_SEAL, "late", *(F.col(name).alias(f"expected_{name}") for name in (*_COUNTS, "digest")))
    same = {name: F.col(name) == F.col(f"expected_{name}") for name in (*_COUNTS, "digest")}
    unsettled = (F.col("appended_ms") > settled_ms) & same["due"] & (F.col("rejected") > F.col("expected_rejected"))
    return (
        sealed.join(wanted, [*_SEAL], "left")
        .fillna(0, ["late", *(f"expected_{name}" for name in same)])
        .where(~unsettled)
        .withColumn("ok", reduce(and_, same.values()))
        .select(*(name for name in AUDIT_SECONDS.columns.names if name not in ("audited_s", "day")))
    )


def seal_findings(seconds: DataFrame, fated: DataFrame) -> DataFrame:
    """
    Return a finding for each seal that is not ok.

    One request too few or too many is told by the digest: it is named if it is there to be looked for.

    Args:
        seconds: rows of `checked`.
        fated: the rows of `replay.fates` that it was made of.

    Returns:
        kind string (seal-count or seal-digest), partition int, offset bigint (null), second bigint, detail string.
    """
    wrong = seconds.where(~F.col("ok")).withColumn("missed", F.col("expected_digest") - F.col("digest"))
    number = F.col("offset") + 1
    cube = number * number * number
    # Of what fired, and of what was taken back or rejected and may have fired all the same.
    asked = fated.where(F.col("fence").isNotNull()).select(
        "partition", F.col("sealed_in").alias("last"), F.col("offset").alias("named"), cube.alias("cube")
    )
    explained = (
        wrong.join(asked, ["partition", "last"])
        .where((F.col("missed") != 0) & ((F.col("cube") == F.col("missed")) | (F.col("cube") == -F.col("missed"))))
        .groupBy("partition", "last", "fence")
        .agg(
            F.min(F.when(F.col("cube") == F.col("missed"), F.col("named"))).alias("lacks"),
            F.min(F.when(F.col("cube") == -F.col("missed"), F.col("named"))).alias("exceeds"),
        )
    )
    counts_differ = reduce(or_, [F.col(name) != F.col(f"expected_{name}") for name in _COUNTS])
    figures_told = F.format_string(
        "sealed due %d, fired %d, rejected %d, digest %016x; expected due %d, fired %d, rejected %d, digest %016x",
        *(F.col(prefix + name) for prefix in ("", "expected_") for name in (*_COUNTS, "digest")),
    )
    named = F.when(
        F.col("lacks").isNotNull(),
        F.format_string("; the difference is request %d:%d, which is not in the seal", "partition", "lacks"),
    ).when(
        F.col("exceeds").isNotNull(),
        F.format_string("; the difference is request %d:%d, which should not be in the seal", "partition", "exceeds"),
    )
    return wrong.join(explained, [*_SEAL], "left").select(
        F.when(counts_differ, "seal-count").otherwise("seal-digest").alias("kind"),
        "partition",
        _no_offset(),
        F.col("last").alias("second"),
        F.concat(figures_told, F.coalesce(named, F.lit(""))).alias("detail"),
    )


def gaps(sealed: DataFrame) -> DataFrame:
    """
    Return a finding for each seal that does not begin where the one before it ended.

    Args:
        sealed: rows of `replay.totals`.

    Returns:
        kind string (gap), partition int, offset bigint (null), second bigint, detail string.
    """
    before = F.lag("last").over(Window.partitionBy("partition").orderBy("last", "fence"))
    detail = F.format_string("the seal of %d to %d follows one that ended at %d", "first", "last", "ended")
    return (
        sealed.withColumn("ended", before)
        .where(F.col("first") != F.col("ended") + 1)
        .select(
            F.lit("gap").alias("kind"),
            "partition",
            _no_offset(),
            F.col("last").alias("second"),
            detail.alias("detail"),
        )
    )


def unpromoted(fated: DataFrame) -> DataFrame:
    """
    Return a finding for each far request whose second is sealed, and of which workers have no copy.

    Args:
        fated: rows of `replay.fates`.

    Returns:
        kind string (not-promoted), partition int, offset bigint, second bigint, detail string.
    """
    left = F.col("fence").isNull() & F.col("sealed_in").isNotNull() & F.col("taken_by").isNull()
    return fated.where(left).select(
        F.lit("not-promoted").alias("kind"),
        *_REQUEST,
        "second",
        F.lit("no worker has it: the lake has not promoted it").alias("detail"),
    )


def callbacks_of(records: DataFrame) -> DataFrame:
    """
    Return the callbacks among the records of callback topics.

    Args:
        records: topic string, timestamp timestamp, headers array<struct<key string, value binary>>, as Spark reads them
            from Kafka. What lacks the service's headers is another's, and left out.

    Returns:
        partition int and offset bigint of the request, topic string, second bigint that the callback says it is for,
        at_ms bigint: the record's time.
    """

    def header(name: str) -> Column:
        # The first one counts.
        named = F.filter("headers", lambda each: each["key"] == name)
        return F.get(named, F.lit(0))["value"].cast("string")

    request = F.regexp_extract(header(REQUEST_HEADER), "^([0-9]{1,9}:[0-9]{1,18})$", 1)
    return records.select(
        F.split_part(request, F.lit(":"), F.lit(1)).cast("int").alias("partition"),
        F.split_part(request, F.lit(":"), F.lit(2)).cast("bigint").alias("offset"),
        "topic",
        header(EXPIRY_HEADER).cast("bigint").alias("second"),
        F.unix_millis("timestamp").alias("at_ms"),
    ).where(F.col("offset").isNotNull() & F.col("second").isNotNull())


def callback_findings(fated: DataFrame, callbacks: DataFrame, steps: DataFrame, first: int, last: int) -> DataFrame:
    """
    Return what is wrong with callbacks.

    Args:
        fated: rows of `replay.fates`, of all requests that are due in the span or sealed in it.
        callbacks: rows of `callbacks_of`, of the span and some time around it.
        steps: those that *fated* was made by.
        first: UNIX second in which the span begins.
        last: UNIX second in which it ends.

    Returns:
        kind string (missing, doubled, early, stale-version or unexpected), partition int, offset bigint,
        second bigint, detail string.
    """
    received = callbacks.groupBy(*_REQUEST).agg(
        F.count(F.lit(1)).alias("times"),
        F.min("at_ms").alias("at_ms"),
        F.min_by("topic", "at_ms").alias("seen_in"),
        F.min_by("second", "at_ms").alias("says"),
    )
    came, back = F.col("times").isNotNull(), F.col("taken_by").isNotNull()
    is_due = F.col("fence").isNotNull() & ~back & F.col("reason").isNull()
    early_ms = F.col("second") * 1000 - F.col("at_ms")
    why_not = F.coalesce(F.concat(F.lit("it was rejected, "), "reason"), F.lit("no worker had taken a copy of it"))
    other = (F.col("says") != F.col("second")) | (F.col("seen_in") != F.col("topic"))
    said = F.format_string
    findings = [
        ("missing", is_due & ~came, said("no callback in %s", "topic")),
        ("doubled", is_due & (F.col("times") > 1), said("%d callbacks, the first in %s", "times", "seen_in")),
        ("early", is_due & (early_ms > 0), said("callback in %s %d ms before its second", "seen_in", early_ms)),
        ("stale-version", came & back, said("callback in %s, and record %d had taken it back", "seen_in", "taken_by")),
        ("unexpected", came & ~back & ~is_due, said("callback in %s, and %s", "seen_in", why_not)),
        (
            "unexpected",
            came & is_due & other,
            said("callback in %s for second %d; asked for were %s and second %d", "seen_in", "says", "topic", "second"),
        ),
    ]
    told = F.array(
        *(
            F.when(is_so, F.struct(F.lit(kind).alias("kind"), detail.alias("detail")))
            for kind, is_so, detail in findings
        )
    )
    known = (
        fated.where(F.col("sealed_in").between(first, last))
        .join(received, [*_REQUEST], "left")
        .select(*_REQUEST, F.coalesce("second", "sealed_in").alias("second"), F.explode(told).alias("told"))
        .where(F.col("told").isNotNull())
        .select("told.kind", *_REQUEST, "second", "told.detail")
    )
    # What was made after the last seal may not have been landed.
    passed = steps.groupBy("partition").agg(F.max("fence").alias("passed"))
    strangers = (
        received.where(F.col("says").between(first, last))
        .join(fated.select(*_REQUEST), [*_REQUEST], "anti")
        .join(passed, "partition", "left")
        .where(F.col("passed").isNull() | (F.col("offset") < F.col("passed")))
        .select(
            F.lit("unexpected").alias("kind"),
            *_REQUEST,
            F.col("says").alias("second"),
            F.format_string("callback in %s, and no such request is due in its second", "seen_in").alias("detail"),
        )
    )
    return known.unionByName(strangers)


def lateness(fated: DataFrame, callbacks: DataFrame) -> DataFrame:
    """
    Return how late callbacks were: from their second, or from their request's append if that was later.

    Args:
        fated: rows of `replay.fates`.
        callbacks: rows of `callbacks_of`; of a doubled one the first counts.

    Returns:
        topic string, callbacks bigint, and in milliseconds p50, p99, p999 and max, bigint.
    """
    received = callbacks.groupBy(*_REQUEST).agg(F.min("at_ms").alias("at_ms"))
    shares = F.percentile_approx("late_ms", [0.5, 0.99, 0.999], 10_000)
    return (
        fires(fated)
        .where(F.col("reason").isNull())
        .join(received, [*_REQUEST])
        .select("topic", (F.col("at_ms") - due_ms()).alias("late_ms"))
        .groupBy("topic")
        .agg(F.count(F.lit(1)).alias("callbacks"), shares.alias("shares"), F.max("late_ms").alias("max"))
        .select(
            "topic",
            "callbacks",
            *(F.col("shares")[at].alias(name) for at, name in enumerate(("p50", "p99", "p999"))),
            "max",
        )
    )


def _no_offset() -> Column:
    return F.lit(None).cast("bigint").alias("offset")
