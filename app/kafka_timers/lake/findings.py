"""
Find faults of seals: compare the timers that should have fired, computed from requests, with the seals.

Seals are compared by counts and digest, which costs one pass over the requests. Callbacks are compared one by one, see
`arrivals`. Findings have the columns `schema.FINDING`.
"""

from functools import reduce
from operator import and_, or_

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from kafka_timers.core.refused import WHEN_DUE, Reason
from kafka_timers.lake.covering import counted_as, figures
from kafka_timers.lake.schema import (
    AUDIT_SECONDS,
    FOREIGN,
    FORWARDED,
    RECORD_KEY,
    REFUSED,
    REQUEST,
    SEAL_KEY,
    about_records,
    about_seals,
)

# A sentence for each kind of finding, and the step to take.
ADVICE = {
    "unsealed": "No worker has sealed the partition up to the end of the time range, so its timers do not fire. Run "
    "`kafka-timers status`, and check that workers and oscillators run.",
    "seal-count": "The seal counts other requests than the log has. Do not change timer-request or timer-sealed. Run "
    "the audit with --callbacks: it names each callback that is missing or too many.",
    "seal-digest": "The seal counts as many requests as the log has, but not the same ones. Run the audit with "
    "--callbacks.",
    "unread": "The lake has other records than the workers have read. Check whether `lake land` has given up records "
    "that a topic had dropped, and whether somebody has changed the table requests. Land the records that "
    "timer-request still has into a new lake.",
    "chain": "The seal does not follow the one before it. Check whether timer-sealed has lost records, and whether "
    "somebody has changed the table seals. With at-least-once, a paused owner may cause this.",
    "published": "The seals of this day were changed since they were published. Find out which other program writes to "
    "timer-sealed or to the lake. Whoever wrote seals anew may have changed requests and callbacks to match: trust "
    "nothing that the audit finds right about this day.",
    "altered": "A row of the table requests is not as it was landed. Find out which other program writes to the lake.",
    "gap": "Some seconds are in no seal, or in two. Check whether timer-sealed has lost records. With at-least-once, "
    "a paused owner may cause this.",
    "not-promoted": "The lake has not promoted the request in time. Run `kafka-timers lake promote`: the timer then "
    "fires at once. Promote more often from now on.",
    "not-rejected": "The record was refused, and timer-rejected does not show it. Check whether that topic, or the "
    "table rejected, has lost records.",
    "forwarded": "A record with the timer id of another partition was not sent on there once and as it was. If its "
    "timer has not fired, ask for it again. With at-least-once, a paused owner may have sent it on twice. Else find "
    "out which other program writes to timer-request.",
    "reject": "The reject is none that a worker writes for this record. Find out which other program writes to "
    "timer-rejected, or to the table rejected.",
    "run": "A run of a recurring timer was not asked for as its schedule says. Find out which other program writes to "
    "timer-schedule, timer-planned or timer-request, and whether `lake land` has given up records. If the run is "
    "missing, ask for it with `kafka-timers schedule run`.",
    "schedule": "The schedule is not planned as its records say. Run `kafka-timers status`: it shows whether planners "
    "run. Then put the schedule again.",
    "missing": "The callback is not in its topic. If retention of that topic has not deleted it, schedule the timer "
    "again.",
    "doubled": "Receivers that read committed records have the callback more than once. With at-least-once this may "
    "happen; let the receiver ignore the second one, see docs/receivers.md.",
    "early": "The callback was there before it was due. Compare the clocks of brokers and oscillators, and find out "
    "which other program writes to its topic.",
    "late": "Callbacks came, or were sealed, later than --late-ms allows. See TimersLate in docs/operate.md.",
    "content": "The callback, or its tombstone, is not as the request asked for it. Find out which other program "
    "writes to its topic.",
    "partition": "The callback lies in another partition than the request asked for, or than its key gives. Check "
    "whether partitions were added to its topic within the time range.",
    "order": "Two callbacks of one moment are not in the order of their requests. Find out which other program writes "
    "to their topic.",
    "batches": "Receivers see other records than the worker has sent with this seal. Find out which other program "
    "writes to this topic, or has deleted records of it.",
    "answer": "An answer to a cancel or a move does not match the outcome of the timer, or there is no answer. With "
    "at-least-once, a paused owner may cause this.",
    "stale-version": "The timer was cancelled or moved in time, and fired all the same. Let its receiver compare "
    "tokens, see docs/receivers.md.",
    "unexpected": "The callback belongs to no request that was to fire. Find out which other program writes to this "
    "topic.",
}

# The clocks of brokers and oscillators differ by less.
_CLOCKS_MS = 60_000

# The counts in a seal.
COUNTS = ("due", "fired", "rejected", "forwarded")


def expected(outcomes: DataFrame) -> DataFrame:
    """
    Return the counts and the digest that each seal should have.

    Returns:
        partition int, end_ms bigint, fence bigint (null for requests that were not promoted), and those of `figures`.
    """
    due = outcomes.where(F.col("sealed_in").isNotNull() & F.col("taken_by").isNull())
    return figures(due.withColumnRenamed("sealed_ms", "end_ms"), *SEAL_KEY)


def checked(sealed: DataFrame, wanted: DataFrame, settled_ms: int) -> DataFrame:
    """
    Return each seal's figures beside the expected ones: rows of `totals` beside rows of `expected`.

    The rejects of a seal appended later than *settled_ms* may not be landed yet. Such a seal is left out if it counts
    more rejects than there are.

    Returns:
        The columns of the table `audit_seconds` except audited_s and day.
    """
    wanted = wanted.select(*SEAL_KEY, "late", *(F.col(name).alias(f"expected_{name}") for name in (*COUNTS, "digest")))
    same = {name: F.col(name) == F.col(f"expected_{name}") for name in (*COUNTS, "digest")}
    rejects_more = F.col("rejected") - F.col("forwarded") > F.col("expected_rejected") - F.col("expected_forwarded")
    unsettled = (F.col("appended_ms") > settled_ms) & same["due"] & rejects_more
    return (
        sealed.join(wanted, [*SEAL_KEY], "left")
        .fillna(0, ["late", *(f"expected_{name}" for name in same)])
        .where(~unsettled)
        .withColumn("ok", reduce(and_, same.values()))
        .select(*(name for name in AUDIT_SECONDS.columns.names if name not in ("audited_s", "day")))
    )


def seal_findings(seconds: DataFrame, outcomes: DataFrame) -> DataFrame:
    """
    Return a finding (seal-count or seal-digest) for each seal of *seconds*, rows of `checked`, that is not ok.

    If a single request is missing or too many, the digest identifies it. It is named if it is among *outcomes*, from
    which *seconds* were computed.
    """
    wrong = seconds.where(~F.col("ok")).withColumn("missed", F.col("expected_digest") - F.col("digest"))
    # Fired requests, and withdrawn or rejected ones that may have fired all the same.
    asked = outcomes.where(F.col("fence").isNotNull()).select(
        "partition", F.col("sealed_ms").alias("end_ms"), F.col("offset").alias("named"), counted_as().alias("counts")
    )
    explained = (
        wrong.join(asked, ["partition", "end_ms"])
        .where((F.col("missed") != 0) & F.col("counts").isin(F.col("missed"), -F.col("missed")))
        .groupBy(*SEAL_KEY)
        .agg(
            F.min(F.when(F.col("counts") == F.col("missed"), F.col("named"))).alias("lacks"),
            F.min(F.when(F.col("counts") == -F.col("missed"), F.col("named"))).alias("exceeds"),
        )
    )
    counts_differ = reduce(or_, [F.col(name) != F.col(f"expected_{name}") for name in COUNTS])
    figures = ", ".join((*(f"{name} %d" for name in COUNTS), "digest %016x"))
    both = F.format_string(
        f"sealed {figures}; expected {figures}",
        *(F.col(prefix + name) for prefix in ("", "expected_") for name in (*COUNTS, "digest")),
    )
    named = F.when(
        F.col("lacks").isNotNull(),
        F.format_string("; the difference is request %d:%d, which is not in the seal", "partition", "lacks"),
    ).when(
        F.col("exceeds").isNotNull(),
        F.format_string("; the difference is request %d:%d, which should not be in the seal", "partition", "exceeds"),
    )
    kind = F.when(counts_differ, "seal-count").otherwise("seal-digest")
    rows = wrong.join(explained, [*SEAL_KEY], "left")
    return about_seals(rows, kind, F.concat(both, F.coalesce(named, F.lit(""))))


def gaps(sealed: DataFrame) -> DataFrame:
    """Return a finding (gap) for each seal of `totals` that does not begin where the one before it ended."""
    before = F.lag("end_ms").over(Window.partitionBy("partition").orderBy("end_ms", "fence"))
    seconds = [(at_ms % 1000 == 0) for at_ms in (F.col("first_ms"), F.col("end_ms"), F.col("ended_ms"))]
    covers = [_words(at_ms, seconds[0] & seconds[1]) for at_ms in (F.col("first_ms"), F.col("end_ms") - 1)]
    ended = _words(F.col("ended_ms") - 1, seconds[2])
    detail = F.format_string("the seal of %s to %s follows one that ended at %s", *covers, ended)
    return about_seals(sealed.withColumn("ended_ms", before).where("first_ms != ended_ms"), "gap", detail)


def late_seals(sealed: DataFrame, late_ms: int) -> DataFrame:
    """
    Return a finding (late) for each partition whose seals of `totals` say that callbacks were later than *late_ms*.

    It has the second of the latest callback.
    """
    late = sealed.where(F.col("lateness_max_ms") > late_ms).groupBy("partition")
    worst = late.agg(F.count(F.lit(1)).alias("times"), F.max(F.struct("lateness_max_ms", "last")).alias("worst"))
    detail = F.format_string(
        f"%d seals say that callbacks were more than {late_ms} ms late, the latest by %d ms",
        *("times", "lateness_max_ms"),
    )
    return about_seals(worst.select("partition", "times", "worst.*"), "late", detail)


def unpromoted(outcomes: DataFrame) -> DataFrame:
    """Return a finding (not-promoted) for each far request whose second is sealed although workers have no copy."""
    left = F.col("fence").isNull() & F.col("sealed_in").isNotNull() & F.col("taken_by").isNull()
    detail = F.lit("no worker has it, because the lake has not promoted it")
    return about_records(outcomes.where(left), "not-promoted", detail)


def unrejected(outcomes: DataFrame, rejected: DataFrame, settled_ms: int) -> DataFrame:
    """
    Return a finding (not-rejected) for each refused record that *rejected*, rows of `read_rejected`, lacks.

    *settled_ms* is as in `checked`.
    """
    # A timer that was rejected as it fired gets its reason from timer-rejected.
    refused = outcomes.where(F.col("second").isNull() & (F.col("reason") != FORWARDED))
    refused = refused.where(F.col("sealed_in").isNotNull() & (F.col("seal_appended_ms") <= settled_ms))
    detail = F.format_string("the record was refused (%s), and timer-rejected does not have it", "reason")
    return about_records(refused.join(rejected, [*RECORD_KEY], "left_anti"), "not-rejected", detail, second="sealed_in")


def wrong_rejects(rejected: DataFrame, requests: DataFrame, outcomes: DataFrame) -> DataFrame:
    """
    Return a finding (reject) for each row of *rejected* that no worker can have written.

    Args:
        rejected: rows of `read_rejected`, of records that are landed.
        requests: their records.
        outcomes: those of requests that were due.
    """
    own = requests.select(*RECORD_KEY, "kind", "second", F.col("reason").alias("own_reason"))
    taken = outcomes.where(F.col("taken_by").isNotNull()).select(*RECORD_KEY, "taken_by")
    rows = rejected.join(own, [*RECORD_KEY], "left").join(taken, [*RECORD_KEY], "left")
    kind, says = F.col("kind"), F.coalesce("reason", F.lit("no reason"))
    is_early = F.col("appended_ms") < F.col("second") * 1000 - _CLOCKS_MS
    # Of a record that nobody can read there is no row.
    is_nothing = kind.isNull() & (says != Reason.UNREADABLE)
    detail = F.coalesce(
        F.when(is_nothing, F.format_string("rejected (%s), and timer-request has no such record", says)),
        F.when(
            (kind == REFUSED) & (F.col("own_reason") != says),
            F.format_string("rejected (%s), and the record was refused (%s)", says, "own_reason"),
        ),
        F.when(
            # Also a record that was to be sent on is rejected where the topic does not take it.
            kind.isin(REQUEST, FOREIGN) & ~says.isin(*WHEN_DUE),
            F.format_string("rejected (%s), and the record is a %s", says, kind),
        ),
        F.when((kind == REQUEST) & is_early, F.format_string("rejected (%s) before it was due", says)),
        F.when(
            F.col("taken_by").isNotNull(),
            F.format_string("rejected (%s), and record %d had withdrawn it", says, "taken_by"),
        ),
        F.when(
            ~kind.isin(REFUSED, REQUEST, FOREIGN),
            F.format_string("rejected (%s), and the record is a %s, which was not refused", says, "kind"),
        ),
    )
    wrong = rows.withColumn("detail", detail).where(F.col("detail").isNotNull())
    return about_records(wrong, "reject", F.col("detail"), second=F.floor(F.col("appended_ms") / 1000))


def _words(at_ms: Column, in_seconds: Column) -> Column:
    """Return *at_ms* as text in seconds, without milliseconds where *in_seconds* is true."""
    second = F.floor(at_ms / 1000)
    return F.when(in_seconds, second.cast("string")).otherwise(F.format_string("%d.%03d", second, at_ms % 1000))
