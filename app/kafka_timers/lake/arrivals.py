"""
Find faults of callbacks: compare each received callback with the request that it names in a header.

A callback is compared by one number, which is landed with its request (`core.digests`). A callback of the time range
that names no request due to fire in it is looked up in the whole lake: an early one may be due in years. Findings have
the columns `schema.FINDING`.
"""

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from kafka_timers.core.callbacks import Shown
from kafka_timers.core.wire import TOKEN_HEADER, callback_headers, future_from
from kafka_timers.lake.arrow import record_batch
from kafka_timers.lake.callback_records import naming_requests
from kafka_timers.lake.covering import due_ms, fires
from kafka_timers.lake.schema import FINDING, RECORD_KEY, REQUEST, about_records, asked_ms
from kafka_timers.lake.tables import constant

# Callbacks of the last seal before the time range come up to this far into it, and clocks differ.
_EDGE_MS = 60_000


# --- expected callbacks ----------------------------------------------------------------------------------------------


def callback_findings(
    outcomes: DataFrame, callbacks: DataFrame, partitions: Mapping[str, int], first: int, last: int
) -> DataFrame:
    """
    Return the faults of the callbacks that were due to fire in a time range.

    Args:
        outcomes: those of all requests that are due or sealed in the time range.
        callbacks: those of the time range and some time around it.
        partitions: number of partitions by callback topic. For other topics, partitions are not checked.

    Returns:
        findings of the kinds missing, doubled, early, stale-version, unexpected, content and partition.
    """
    received = callbacks.groupBy(*RECORD_KEY).agg(
        F.count(F.lit(1)).alias("times"),
        F.collect_set("hash").alias("hashes"),
        F.min(F.struct("at_ms", "topic", "second", "at_partition", "key_hash", "by_worker")).alias("seen"),
    )
    seen_in, says, at = F.col("seen.topic"), F.col("seen.second"), F.col("seen.at_partition")
    came, back = F.col("times").isNotNull(), F.col("taken_by").isNotNull()
    is_due = F.col("fence").isNotNull() & ~back & F.col("reason").isNull()
    # A worker that fires only at ticks fires a whole second with its tick, and seals whole seconds.
    is_by_millis = F.col("sealed_ms") % 1000 != 0
    early_ms = F.when(is_by_millis, asked_ms()).otherwise(F.col("second") * 1000) - F.col("seen.at_ms")
    why_not = F.coalesce(F.concat(F.lit("it was rejected, "), "reason"), F.lit("no worker had taken a copy of it"))
    other = (says != F.col("second")) | (seen_in != F.col("topic"))
    differs = F.exists("hashes", lambda each: each != F.col("callback"))
    counts = constant(outcomes.sparkSession, partitions.items(), "topic string, partitions int")
    wanted_at = F.coalesce(
        "asks.partition", F.pmod(F.coalesce("asks.hashed", F.col("seen.key_hash")), F.col("partitions"))
    )
    clock = F.when(F.col("seen.by_worker"), " by the worker's clock").otherwise("")
    said = F.format_string
    findings = [
        ("missing", is_due & ~came, said("no callback in %s", "topic")),
        ("doubled", is_due & (F.col("times") > 1), said("%d callbacks, the first in %s", "times", seen_in)),
        ("early", is_due & (early_ms > 0), said("callback in %s %d ms before it was due%s", seen_in, early_ms, clock)),
        ("stale-version", came & back, said("callback in %s, and record %d had withdrawn it", seen_in, "taken_by")),
        ("unexpected", came & ~back & ~is_due, said("callback in %s, and %s", seen_in, why_not)),
        (
            "unexpected",
            came & is_due & other,
            said("callback in %s for second %d; its request names %s and second %d", seen_in, says, "topic", "second"),
        ),
        ("content", is_due & ~other & differs, said("callback in %s differs from its request", seen_in)),
        (
            "partition",
            is_due & ~other & (at != wanted_at),
            said("callback in partition %d of %s, and partition %d was to have it", at, seen_in, wanted_at),
        ),
    ]
    faults = F.array(
        *(
            F.when(is_so, F.struct(F.lit(kind).alias("kind"), detail.alias("detail")))
            for kind, is_so, detail in findings
        )
    )
    return (
        outcomes.where(F.col("sealed_in").between(first, last))
        .join(received, [*RECORD_KEY], "left")
        .join(F.broadcast(counts), "topic", "left")
        .select(*RECORD_KEY, F.coalesce("second", "sealed_in").alias("second"), F.explode(faults).alias("fault"))
        .where(F.col("fault").isNotNull())
        .select("fault.kind", *RECORD_KEY, "second", "fault.detail")
    )


def disordered(outcomes: DataFrame, callbacks: DataFrame) -> DataFrame:
    """
    Return a finding (order) for each of *callbacks* that lies behind one of a later request of the same moment.

    Only callbacks with the same seal, moment, topic and partition are compared. Skipped are doubled callbacks and those
    of far requests, which may come back from the lake when others of their moment are already built.
    """
    once = callbacks.groupBy(*RECORD_KEY).agg(
        F.count(F.lit(1)).alias("times"), F.min(F.struct("topic", "at_partition", "at_offset")).alias("seen")
    )
    due = fires(outcomes).where(F.col("reason").isNull() & ~F.col("far"))
    came = due.drop("topic").join(once.where("times = 1").select(*RECORD_KEY, "seen.*"), [*RECORD_KEY])
    alike = Window.partitionBy("partition", "sealed_ms", "fence", "second", "millis", "topic", "at_partition")
    behind = came.withColumn("before", F.lag("offset").over(alike.orderBy("at_offset"))).where("before > offset")
    detail = F.format_string("callback in %s behind that of request %d:%d", "topic", "partition", "before")
    return about_records(behind, "order", detail)


def differences(findings: DataFrame, records: DataFrame, requests: DataFrame) -> DataFrame:
    """
    Return the *findings*, which are of the kind content, each with the parts that differ.

    *records* are as in `callbacks_of`. The values of *requests* are read.
    """
    parts = F.struct("topic", "key", "value", "headers")
    came = naming_requests(records).select(*RECORD_KEY, parts.alias("came"))
    asked = requests.where(F.col("kind") == REQUEST).select(*RECORD_KEY, F.col("value").alias("asked"))
    return F.broadcast(findings).join(came, [*RECORD_KEY]).join(asked, [*RECORD_KEY]).mapInArrow(_compared, FINDING)


def _compared(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = []
        for row in batch.to_pylist():
            if names := _differing(row):
                detail = f"{', '.join(names)} of the callback in {row['came']['topic']}: not the same as in its request"
                rows.append((row["kind"], row["partition"], row["offset"], row["second"], detail))
        yield record_batch(rows, FINDING)


def _differing(row: Mapping[str, object]) -> list[str]:
    came, asked = row["came"], row["asked"]
    if not isinstance(came, Mapping):
        return []
    if not isinstance(asked, bytes):
        return ["something"]
    future = future_from(asked)
    shown = Shown.of(future)
    name = f"{row['partition']}:{row['offset']}".encode()
    wanted = callback_headers(future, int(str(row["second"])), name)  # type: ignore[arg-type]
    headers = [(key, value.encode() if isinstance(value, str) else value) for key, value in wanted]
    found = [(each["key"], each["value"]) for each in came["headers"]]
    tokens = [[value for key, value in some if key == TOKEN_HEADER] for some in (headers, found)]
    differs = {
        "key": came["key"] != shown.key,
        "value": came["value"] != shown.value,
        "token": tokens[0] != tokens[1],
        "headers": [each for each in headers if each[0] != TOKEN_HEADER]
        != [each for each in found if each[0] != TOKEN_HEADER],
    }
    return [part for part, is_other in differs.items() if is_other]


def tombstone_findings(outcomes: DataFrame, tombstones: DataFrame, kept: Iterable[str]) -> DataFrame:
    """
    Return the faults (content) of the *tombstones* of timers that were due by *outcomes*.

    *kept* are the topics that keep each tombstone. Compaction deletes a tombstone once a later record has its key.
    """
    asked = outcomes.where(F.col("asks.tombstone_topic").isNotNull())
    is_due = F.col("fence").isNotNull() & F.col("taken_by").isNull() & F.col("reason").isNull()
    came = tombstones.groupBy(*RECORD_KEY).agg(F.collect_set(F.struct("topic", "hash")).alias("came"))
    both = asked.withColumn("is_due", is_due).join(came, [*RECORD_KEY], "left")
    topic = F.col("asks.tombstone_topic")
    is_other = F.exists("came", lambda each: (each["topic"] != topic) | (each["hash"] != F.col("asks.tombstone")))
    detail = (
        F.when(~F.col("is_due"), F.when(F.col("came").isNotNull(), "it has a tombstone, and was not to fire"))
        .when(is_other, F.format_string("its tombstone is not the one that was asked for in %s", topic))
        .when(F.col("came").isNull() & topic.isin(list(kept)), F.format_string("no tombstone in %s", topic))
    )
    wrong = both.withColumn("detail", detail).where(F.col("detail").isNotNull())
    return about_records(wrong, "content", F.col("detail"))


# --- unexpected callbacks --------------------------------------------------------------------------------------------


def strange(outcomes: DataFrame, callbacks: DataFrame, first: int, last: int) -> DataFrame:
    """
    Return the callbacks that came in a time range, or name a second in it, but were not due to fire in it.

    Returns:
        the columns of *callbacks*; sealed_in bigint and due_ms bigint of the request, null if it is not in *outcomes*;
        is_known boolean: whether it is in *outcomes*.
    """
    known = outcomes.select(
        *RECORD_KEY, "sealed_in", (F.col("second") * 1000).alias("due_ms"), F.lit(True).alias("is_known")
    )
    came_in = F.col("at_ms").between(first * 1000, last * 1000 + 999)
    # Such a callback belongs to the last seal before the time range.
    at_edge = (F.col("second") < first) & (F.col("at_ms") < first * 1000 + _EDGE_MS)
    of_it = callbacks.where((came_in | F.col("second").between(first, last)) & ~at_edge)
    is_judged = F.coalesce(F.col("sealed_in").between(first, last), F.lit(False))
    return of_it.join(known, [*RECORD_KEY], "left").where(~is_judged)


def stranger_findings(strangers: DataFrame, asked: DataFrame, intervals: DataFrame, first: int, last: int) -> DataFrame:
    """
    Return the faults (early, unexpected) of *strangers*, rows of `strange`.

    *asked* are the requests that *strangers* name.
    """
    row = F.struct("kind", "second", "millis").alias("row")
    passed = intervals.groupBy("partition").agg(F.max("fence").alias("passed"), F.max("end_ms").alias("ended_ms"))
    both = strangers.join(asked.select(*RECORD_KEY, row), [*RECORD_KEY], "left").join(passed, "partition", "left")
    is_request = F.col("row.kind") == REQUEST
    due = F.coalesce("due_ms", F.when(is_request, F.col("row.second") * 1000))
    second = F.floor(due / 1000)
    early_ms = due - F.col("at_ms")
    # Requests appended after the last seal may not be landed yet; those appended long before it are.
    is_landed = F.col("passed").isNull() | (F.col("offset") < F.col("passed"))
    is_landed |= F.col("at_ms") < F.col("ended_ms") - _EDGE_MS
    clock = F.when(F.col("by_worker"), " by the worker's clock").otherwise("")
    is_known = F.coalesce("is_known", F.lit(False))
    said = F.format_string
    is_late = F.col("at_ms") >= first * 1000 + _EDGE_MS
    detail = (
        F.when(early_ms > 0, said("callback in %s %d ms before it was due%s", "topic", early_ms, clock))
        .when(
            is_known & (F.col("sealed_in") < first) & is_late,
            said("callback in %s, and its request was done in second %d", "topic", "sealed_in"),
        )
        .when(is_known, None)
        .when(
            F.col("row").isNotNull() & ~is_request,
            said("callback in %s, and the record that it names is a %s", "topic", "row.kind"),
        )
        .when(
            is_request & second.between(first, last),
            said("callback in %s, and the condition of its request did not hold", "topic"),
        )
        .when(
            is_request & (second < first) & is_late,
            said("callback in %s, and its request was done before, due in second %d", "topic", second),
        )
        .when(F.col("row").isNull() & is_landed, said("callback in %s, and timer-request has no such request", "topic"))
    )
    kind = F.when(early_ms > 0, "early").otherwise("unexpected")
    wrong = both.withColumns({"kind": kind, "detail": detail}).where(F.col("detail").isNotNull())
    return wrong.select("kind", *RECORD_KEY, F.coalesce(second, "second").alias("second"), "detail")


# --- lateness --------------------------------------------------------------------------------------------------------


def lateness(outcomes: DataFrame, callbacks: DataFrame) -> DataFrame:
    """
    Return the lateness of callbacks: from their due time, or from their request's append if that was later.

    A timer that was due within a second and fired with its tick was not late. The first of doubled callbacks counts.

    Returns:
        topic string, callbacks bigint, p50, p99, p999 and max bigint in milliseconds, and by_worker boolean: whether
        the clock of a worker timed any of them.
    """
    shares = F.percentile_approx("late_ms", [0.5, 0.99, 0.999], 10_000)
    return (
        _late(outcomes, callbacks)
        .groupBy("topic")
        .agg(
            F.count(F.lit(1)).alias("callbacks"),
            shares.alias("shares"),
            F.max("late_ms").alias("max"),
            F.bool_or("by_worker").alias("by_worker"),
        )
        .select(
            "topic",
            "callbacks",
            *(F.col("shares")[at].alias(name) for at, name in enumerate(("p50", "p99", "p999"))),
            "max",
            "by_worker",
        )
    )


def late_callbacks(outcomes: DataFrame, callbacks: DataFrame, late_ms: int) -> DataFrame:
    """Return a finding (late) for each topic with callbacks later than *late_ms*, about the latest of them."""
    latest = F.max(F.struct("late_ms", *RECORD_KEY, "second")).alias("latest")
    by_topic = _late(outcomes, callbacks).where(F.col("late_ms") > late_ms).groupBy("topic")
    late = by_topic.agg(F.count(F.lit(1)).alias("times"), latest, F.bool_or("by_worker").alias("by_worker"))
    clock = F.when(F.col("by_worker"), ", by the worker's clock").otherwise("")
    detail = F.format_string(
        f"%d callbacks in %s more than {late_ms} ms late, the latest by %d ms%s", "times", "topic", "late_ms", clock
    )
    return about_records(late.select("times", "topic", "by_worker", "latest.*"), "late", detail)


def _late(outcomes: DataFrame, callbacks: DataFrame) -> DataFrame:
    received = callbacks.groupBy(*RECORD_KEY).agg(F.min(F.struct("at_ms", "by_worker")).alias("seen"))
    late_ms = F.greatest(F.col("seen.at_ms") - due_ms(), F.lit(0))
    return (
        fires(outcomes)
        .where(F.col("reason").isNull())
        .join(received, [*RECORD_KEY])
        .select(*RECORD_KEY, "topic", "second", late_ms.alias("late_ms"), F.col("seen.by_worker").alias("by_worker"))
    )
