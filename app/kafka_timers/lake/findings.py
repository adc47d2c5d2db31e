"""
What is wrong: what should have fired, computed from requests, against what was sealed and what was received.

Seals are compared by counts and digest, which costs a pass over the requests. Callbacks are compared one by one: each
names its request in a header.
"""

from functools import reduce
from operator import and_, or_

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from kafka_timers.core.wire import EXPIRY_HEADER, REQUEST_HEADER
from kafka_timers.lake.outcomes import counted_as, due_ms, figures, fires
from kafka_timers.lake.schema import AUDIT_SECONDS, asked_ms

__all__ = [
    "ADVICE",
    "COUNTS",
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
    "unread": "The lake has other records than the workers have read. Has `lake land` given up what a topic had "
    "dropped, or has somebody changed the table requests? Land what timer-request still has into a new lake.",
    "chain": "A seal does not follow the one before it. Has timer-sealed lost records, or has somebody changed the "
    "table seals? With at-least-once, an owner was paused.",
    "altered": "A row of requests is not what was landed. Who else writes to the lake?",
    "altered-seal": "A row of seals is not what was landed. Who else writes to the lake?",
    "gap": "Some seconds are in no seal, or in two. Has timer-sealed lost records? With at-least-once, an owner was "
    "paused.",
    "not-promoted": "Run `kafka-timers lake promote`: it fires at once then. Promote more often from now on.",
    "missing": "The callback is not in its topic. If that topic's retention has not deleted it, make the timer again.",
    "doubled": "Receivers that read committed records have it more than once. With at-least-once this may be.",
    "early": "The callback was there before it was due. Compare the clocks of brokers and oscillators.",
    "stale-version": "The timer had been cancelled or moved in time, and fired all the same.",
    "unexpected": "The callback is of no request that was to fire. Who else writes to this topic?",
}

# Of a seal.
COUNTS = ("due", "fired", "rejected")

_REQUEST = ("partition", "offset")
_SEAL = ("partition", "end_ms", "fence")


def expected(outcomes: DataFrame) -> DataFrame:
    """
    Return what each seal should tell.

    Args:
        outcomes: rows of `outcomes_of`.

    Returns:
        partition int, end_ms bigint, fence bigint (null counts what was not promoted), and those of `figures`.
    """
    due = outcomes.where(F.col("sealed_in").isNotNull() & F.col("taken_by").isNull())
    return figures(due.withColumnRenamed("sealed_ms", "end_ms"), *_SEAL)


def checked(sealed: DataFrame, wanted: DataFrame, settled_ms: int) -> DataFrame:
    """
    Return for each seal what it says beside what was to be expected.

    Args:
        sealed: rows of `totals`.
        wanted: rows of `expected`.
        settled_ms: UNIX milliseconds; of a seal appended later the rejects may not have been landed. One that counts
            more of them than there are is left out.

    Returns:
        The columns of the table `audit_seconds` but audited_s and day.
    """
    wanted = wanted.select(*_SEAL, "late", *(F.col(name).alias(f"expected_{name}") for name in (*COUNTS, "digest")))
    same = {name: F.col(name) == F.col(f"expected_{name}") for name in (*COUNTS, "digest")}
    unsettled = (F.col("appended_ms") > settled_ms) & same["due"] & (F.col("rejected") > F.col("expected_rejected"))
    return (
        sealed.join(wanted, [*_SEAL], "left")
        .fillna(0, ["late", *(f"expected_{name}" for name in same)])
        .where(~unsettled)
        .withColumn("ok", reduce(and_, same.values()))
        .select(*(name for name in AUDIT_SECONDS.columns.names if name not in ("audited_s", "day")))
    )


def seal_findings(seconds: DataFrame, outcomes: DataFrame) -> DataFrame:
    """
    Return a finding for each seal that is not ok.

    One request too few or too many is told by the digest: it is named if it is there to be looked for.

    Args:
        seconds: rows of `checked`.
        outcomes: the rows of `outcomes_of` that it was made of.

    Returns:
        kind string (seal-count or seal-digest), partition int, offset bigint (null), second bigint, detail string.
    """
    wrong = seconds.where(~F.col("ok")).withColumn("missed", F.col("expected_digest") - F.col("digest"))
    # Of what fired, and of what was withdrawn or rejected and may have fired all the same.
    asked = outcomes.where(F.col("fence").isNotNull()).select(
        "partition", F.col("sealed_ms").alias("end_ms"), F.col("offset").alias("named"), counted_as().alias("counts")
    )
    explained = (
        wrong.join(asked, ["partition", "end_ms"])
        .where((F.col("missed") != 0) & F.col("counts").isin(F.col("missed"), -F.col("missed")))
        .groupBy(*_SEAL)
        .agg(
            F.min(F.when(F.col("counts") == F.col("missed"), F.col("named"))).alias("lacks"),
            F.min(F.when(F.col("counts") == -F.col("missed"), F.col("named"))).alias("exceeds"),
        )
    )
    counts_differ = reduce(or_, [F.col(name) != F.col(f"expected_{name}") for name in COUNTS])
    figures_told = F.format_string(
        "sealed due %d, fired %d, rejected %d, digest %016x; expected due %d, fired %d, rejected %d, digest %016x",
        *(F.col(prefix + name) for prefix in ("", "expected_") for name in (*COUNTS, "digest")),
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
        sealed: rows of `totals`.

    Returns:
        kind string (gap), partition int, offset bigint (null), second bigint, detail string.
    """
    before = F.lag("end_ms").over(Window.partitionBy("partition").orderBy("end_ms", "fence"))
    seconds = [(at_ms % 1000 == 0) for at_ms in (F.col("first_ms"), F.col("end_ms"), F.col("ended_ms"))]
    covers = [_words(at_ms, seconds[0] & seconds[1]) for at_ms in (F.col("first_ms"), F.col("end_ms") - 1)]
    ended = _words(F.col("ended_ms") - 1, seconds[2])
    detail = F.format_string("the seal of %s to %s follows one that ended at %s", *covers, ended)
    return (
        sealed.withColumn("ended_ms", before)
        .where(F.col("first_ms") != F.col("ended_ms"))
        .select(
            F.lit("gap").alias("kind"),
            "partition",
            _no_offset(),
            F.col("last").alias("second"),
            detail.alias("detail"),
        )
    )


def unpromoted(outcomes: DataFrame) -> DataFrame:
    """
    Return a finding for each far request whose second is sealed, and of which workers have no copy.

    Args:
        outcomes: rows of `outcomes_of`.

    Returns:
        kind string (not-promoted), partition int, offset bigint, second bigint, detail string.
    """
    left = F.col("fence").isNull() & F.col("sealed_in").isNotNull() & F.col("taken_by").isNull()
    return outcomes.where(left).select(
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


def callback_findings(
    outcomes: DataFrame, callbacks: DataFrame, intervals: DataFrame, first: int, last: int
) -> DataFrame:
    """
    Return what is wrong with callbacks.

    Args:
        outcomes: rows of `outcomes_of`, of all requests that are due in the time range or sealed in it.
        callbacks: rows of `callbacks_of`, of the time range and some time around it.
        intervals: those that *outcomes* was made by.
        first: UNIX second in which the time range begins.
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
    # Whoever fires at ticks alone fires all of a second with its tick, and seals whole seconds.
    is_by_millis = F.col("sealed_ms") % 1000 != 0
    early_ms = F.when(is_by_millis, asked_ms()).otherwise(F.col("second") * 1000) - F.col("at_ms")
    why_not = F.coalesce(F.concat(F.lit("it was rejected, "), "reason"), F.lit("no worker had taken a copy of it"))
    other = (F.col("says") != F.col("second")) | (F.col("seen_in") != F.col("topic"))
    said = F.format_string
    findings = [
        ("missing", is_due & ~came, said("no callback in %s", "topic")),
        ("doubled", is_due & (F.col("times") > 1), said("%d callbacks, the first in %s", "times", "seen_in")),
        ("early", is_due & (early_ms > 0), said("callback in %s %d ms before it was due", "seen_in", early_ms)),
        ("stale-version", came & back, said("callback in %s, and record %d had withdrawn it", "seen_in", "taken_by")),
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
        outcomes.where(F.col("sealed_in").between(first, last))
        .join(received, [*_REQUEST], "left")
        .select(*_REQUEST, F.coalesce("second", "sealed_in").alias("second"), F.explode(told).alias("told"))
        .where(F.col("told").isNotNull())
        .select("told.kind", *_REQUEST, "second", "told.detail")
    )
    # What was made after the last seal may not have been landed.
    passed = intervals.groupBy("partition").agg(F.max("fence").alias("passed"))
    strangers = (
        received.where(F.col("says").between(first, last))
        .join(outcomes.select(*_REQUEST), [*_REQUEST], "anti")
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


def lateness(outcomes: DataFrame, callbacks: DataFrame) -> DataFrame:
    """
    Return how late callbacks were: from when they were due, or from their request's append if that was later.

    One that is due within a second, and had fired with its tick, was not late.

    Args:
        outcomes: rows of `outcomes_of`.
        callbacks: rows of `callbacks_of`; of a doubled one the first counts.

    Returns:
        topic string, callbacks bigint, and in milliseconds p50, p99, p999 and max, bigint.
    """
    received = callbacks.groupBy(*_REQUEST).agg(F.min("at_ms").alias("at_ms"))
    shares = F.percentile_approx("late_ms", [0.5, 0.99, 0.999], 10_000)
    return (
        fires(outcomes)
        .where(F.col("reason").isNull())
        .join(received, [*_REQUEST])
        .select("topic", F.greatest(F.col("at_ms") - due_ms(), F.lit(0)).alias("late_ms"))
        .groupBy("topic")
        .agg(F.count(F.lit(1)).alias("callbacks"), shares.alias("shares"), F.max("late_ms").alias("max"))
        .select(
            "topic",
            "callbacks",
            *(F.col("shares")[at].alias(name) for at, name in enumerate(("p50", "p99", "p999"))),
            "max",
        )
    )


def _words(at_ms: Column, in_seconds: Column) -> Column:
    """Return *at_ms* in seconds, without its milliseconds where that is said *in_seconds*."""
    second = F.floor(at_ms / 1000)
    return F.when(in_seconds, second.cast("string")).otherwise(F.format_string("%d.%03d", second, at_ms % 1000))


def _no_offset() -> Column:
    return F.lit(None).cast("bigint").alias("offset")
