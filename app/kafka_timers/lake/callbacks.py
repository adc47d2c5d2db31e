"""
Find faults of callbacks: compare each received callback with the request that it names in a header.

A callback is compared by one number, which is landed with its request (`core.digests`). A callback of the time range
that names no request due to fire in it is looked up in the whole lake: an early one may be due in years.
"""

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from kafka_timers.core.callbacks import Shown
from kafka_timers.core.routing import hash_of
from kafka_timers.core.wire import EXPIRY_HEADER, REQUEST_HEADER, TOKEN_HEADER, callback_headers, future_from
from kafka_timers.lake.arrow import record_batch
from kafka_timers.lake.outcomes import due_ms, fires
from kafka_timers.lake.schema import FINDING, REQUEST, asked_ms
from kafka_timers.lake.tables import constant

__all__ = [
    "CALLBACKS",
    "callback_findings",
    "callbacks_of",
    "differences",
    "disordered",
    "hash_of_record",
    "late_callbacks",
    "lateness",
    "naming_requests",
    "place_in",
    "strange",
    "stranger_findings",
    "text_in",
    "tombstone_findings",
    "tombstones_of",
]

# Columns of `callbacks_of`.
CALLBACKS = (
    "partition int, offset bigint, topic string, second bigint, at_ms bigint, at_partition int, at_offset bigint, "
    "hash bigint, key_hash int, by_worker boolean"
)
_REQUEST = ("partition", "offset")
# Callbacks of the last seal before the time range come up to this far into it, and clocks differ.
_EDGE_MS = 60_000
_PLACE = "^((?:0|[1-9][0-9]{0,8}):(?:0|[1-9][0-9]{0,17}))$"


# --- received callbacks ----------------------------------------------------------------------------------------------


def callbacks_of(records: DataFrame) -> DataFrame:
    """
    Return the callbacks among the records of callback topics.

    Args:
        records: topic string, partition int, offset bigint, timestamp timestamp, timestampType int, key binary, value
            binary, headers array<struct<key string, value binary>>, as Spark reads them from Kafka. Records without
            the service's headers are not its callbacks, and are left out.

    Returns:
        partition int and offset bigint of the request, topic string, second bigint from the callback's header, at_ms
        bigint: the record's time, at_partition int and at_offset bigint of the record, hash bigint: its content
        (`core.digests`), key_hash int: murmur2 of its key, null without one, by_worker boolean: whether its time is
        from the clock of its sender.
    """
    named = naming_requests(records).withColumn("second", text_in(EXPIRY_HEADER).cast("bigint"))
    named = named.where(F.col("second").isNotNull())
    return named.select(*_SLIM, "second", hash_of_record().alias("hash"), "key").mapInArrow(_with_key_hash, CALLBACKS)


def tombstones_of(records: DataFrame) -> DataFrame:
    """
    Return the service's tombstones among *records*, which are as in `callbacks_of`. A tombstone names only a request.

    Returns:
        partition int and offset bigint of the request, topic string, at_ms bigint, hash bigint.
    """
    named = naming_requests(records).where(text_in(EXPIRY_HEADER).isNull())
    return named.select(*_REQUEST, "topic", "at_ms", hash_of_record().alias("hash"))


def hash_of_record() -> Column:
    """
    Return the hash of the content of a record of a callback topic, as in `core.digests`.

    The record has the columns partition and offset of the request that it names, key, value and headers.
    """
    # The name of the request counts as empty.
    name = F.encode(F.concat_ws(":", "partition", "offset"), "UTF-8")
    nothing = F.lit(b"")

    def text(header: Column) -> Column:
        is_name = (header["key"] == REQUEST_HEADER) & (header["value"] == name)
        value = F.when(is_name, nothing).otherwise(header["value"])
        raw = F.encode(header["key"], "UTF-8")
        size = F.coalesce(F.octet_length(value).cast("string"), F.lit("-"))
        sizes = F.concat(F.octet_length(raw).cast("string"), F.lit(":"), size, F.lit(":"))
        return F.concat(F.encode(sizes, "UTF-8"), raw, F.coalesce(value, nothing))

    parts = [F.when(F.col(part).isNull(), "").otherwise(F.lit(part[0])) for part in ("key", "value")]
    present = F.encode(F.concat(*parts, F.lit(";")), "UTF-8")
    head = F.aggregate(F.transform("headers", text), present, lambda before, each: F.concat(before, each))
    return F.xxhash64(head, "key", "value")


_SLIM = (*_REQUEST, "topic", "at_ms", "at_partition", "at_offset", "by_worker")


def text_in(name: str) -> Column:
    """Return as text the value of a record's first header with this *name*; only the first one counts."""
    named = F.filter("headers", lambda each: each["key"] == name)
    return F.get(named, F.lit(0))["value"].cast("string")


def place_in(name: str) -> tuple[Column, Column]:
    """Return partition and offset of the record that the header *name* names; null if it names none."""
    place = F.regexp_extract(text_in(name), _PLACE, 1)
    partition, offset = (F.split_part(place, F.lit(":"), F.lit(part)) for part in (1, 2))
    return partition.try_cast("int"), offset.try_cast("bigint")


def naming_requests(records: DataFrame) -> DataFrame:
    """
    Return the *records* that name a request, with its partition and offset in place of their own.

    Args:
        records: as in `callbacks_of`.

    Returns:
        the columns of *records*, and at_partition int and at_offset bigint: their own place, at_ms bigint: their time,
        by_worker boolean, as in `callbacks_of`.
    """
    partition, offset = place_in(REQUEST_HEADER)
    return (
        records.withColumnsRenamed({"partition": "at_partition", "offset": "at_offset"})
        .withColumns(
            {
                "partition": partition,
                "offset": offset,
                "at_ms": F.unix_millis("timestamp"),
                "by_worker": F.col("timestampType") == 0,
            }
        )
        .where(F.col("offset").isNotNull())
    )


def _with_key_hash(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    names = [column.split()[0] for column in CALLBACKS.split(", ")]
    for batch in batches:
        keys = [None if key is None else hash_of(key) for key in batch["key"].to_pylist()]
        columns = {name: batch[name] for name in names if name != "key_hash"} | {"key_hash": pa.array(keys, pa.int32())}
        yield pa.RecordBatch.from_arrays([columns[name] for name in names], names)


# --- expected callbacks ----------------------------------------------------------------------------------------------


def callback_findings(
    outcomes: DataFrame, callbacks: DataFrame, partitions: Mapping[str, int], first: int, last: int
) -> DataFrame:
    """
    Return the faults of the callbacks that were due to fire in a time range.

    Args:
        outcomes: rows of `outcomes_of` for all requests that are due or sealed in the time range.
        callbacks: rows of `callbacks_of`, of the time range and some time around it.
        partitions: number of partitions by callback topic. For other topics, partitions are not checked.
        first: UNIX second in which the time range begins.
        last: UNIX second in which it ends.

    Returns:
        kind string (missing, doubled, early, stale-version, unexpected, content or partition), partition int, offset
        bigint, second bigint, detail string.
    """
    received = callbacks.groupBy(*_REQUEST).agg(
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
    told = F.array(
        *(
            F.when(is_so, F.struct(F.lit(kind).alias("kind"), detail.alias("detail")))
            for kind, is_so, detail in findings
        )
    )
    return (
        outcomes.where(F.col("sealed_in").between(first, last))
        .join(received, [*_REQUEST], "left")
        .join(F.broadcast(counts), "topic", "left")
        .select(*_REQUEST, F.coalesce("second", "sealed_in").alias("second"), F.explode(told).alias("told"))
        .where(F.col("told").isNotNull())
        .select("told.kind", *_REQUEST, "second", "told.detail")
    )


def disordered(outcomes: DataFrame, callbacks: DataFrame) -> DataFrame:
    """
    Return a finding for each callback that lies behind one of a later request of the same moment.

    Only callbacks with the same seal, moment, topic and partition are compared. Skipped are doubled callbacks and those
    of far requests, which may come back from the lake when others of their moment are already built.

    Args:
        outcomes: rows of `outcomes_of` to judge.
        callbacks: rows of `callbacks_of`.

    Returns:
        kind string (order), partition int, offset bigint, second bigint, detail string.
    """
    once = callbacks.groupBy(*_REQUEST).agg(
        F.count(F.lit(1)).alias("times"), F.min(F.struct("topic", "at_partition", "at_offset")).alias("seen")
    )
    due = fires(outcomes).where(F.col("reason").isNull() & ~F.col("far"))
    came = due.drop("topic").join(once.where("times = 1").select(*_REQUEST, "seen.*"), [*_REQUEST])
    alike = Window.partitionBy("partition", "sealed_ms", "fence", "second", "millis", "topic", "at_partition")
    before = F.lag("offset").over(alike.orderBy("at_offset"))
    return (
        came.withColumn("before", before)
        .where(F.col("before") > F.col("offset"))
        .select(
            F.lit("order").alias("kind"),
            *_REQUEST,
            "second",
            F.format_string("callback in %s behind that of request %d:%d", "topic", "partition", "before").alias(
                "detail"
            ),
        )
    )


def differences(findings: DataFrame, records: DataFrame, requests: DataFrame) -> DataFrame:
    """
    Return the *findings* of the kind content, each with the parts that differ.

    Args:
        findings: rows of `callback_findings`.
        records: as in `callbacks_of`.
        requests: the table; its values are read.
    """
    parts = F.struct("topic", "key", "value", "headers")
    came = naming_requests(records).select(*_REQUEST, parts.alias("came"))
    asked = requests.where(F.col("kind") == REQUEST).select(*_REQUEST, F.col("value").alias("asked"))
    wrong = F.broadcast(findings.where(F.col("kind") == "content"))
    return wrong.join(came, [*_REQUEST]).join(asked, [*_REQUEST]).mapInArrow(_compared, FINDING)


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
    told = {
        "key": came["key"] != shown.key,
        "value": came["value"] != shown.value,
        "token": tokens[0] != tokens[1],
        "headers": [each for each in headers if each[0] != TOKEN_HEADER]
        != [each for each in found if each[0] != TOKEN_HEADER],
    }
    return [part for part, is_other in told.items() if is_other]


def tombstone_findings(outcomes: DataFrame, tombstones: DataFrame, kept: Iterable[str]) -> DataFrame:
    """
    Return the faults of the tombstones of timers that were due to fire.

    Args:
        outcomes: rows of `outcomes_of` to judge.
        tombstones: rows of `tombstones_of`.
        kept: topics that keep each tombstone. Compaction deletes a tombstone once a later record has its key.

    Returns:
        kind string (content), partition int, offset bigint, second bigint, detail string.
    """
    wanted = fires(outcomes).where(F.col("reason").isNull() & F.col("asks.tombstone_topic").isNotNull())
    came = tombstones.groupBy(*_REQUEST).agg(F.collect_set(F.struct("topic", "hash")).alias("came"))
    both = wanted.join(came, [*_REQUEST], "left")
    topic = F.col("asks.tombstone_topic")
    is_other = F.exists("came", lambda each: (each["topic"] != topic) | (each["hash"] != F.col("asks.tombstone")))
    detail = F.when(is_other, F.format_string("its tombstone is not the one that was asked for in %s", topic)).when(
        F.col("came").isNull() & topic.isin(list(kept)), F.format_string("no tombstone in %s", topic)
    )
    return (
        both.withColumn("detail", detail)
        .where(F.col("detail").isNotNull())
        .select(F.lit("content").alias("kind"), *_REQUEST, "second", "detail")
    )


# --- unexpected callbacks --------------------------------------------------------------------------------------------


def strange(outcomes: DataFrame, callbacks: DataFrame, first: int, last: int) -> DataFrame:
    """
    Return the callbacks that came in a time range, or name a second in it, but were not due to fire in it.

    Args:
        outcomes: rows of `outcomes_of`.
        callbacks: rows of `callbacks_of`.
        first: UNIX second in which the time range begins.
        last: UNIX second in which it ends.

    Returns:
        the columns of *callbacks*; sealed_in bigint and due_ms bigint of the request, null if it is not in *outcomes*;
        is_known boolean: whether it is in *outcomes*.
    """
    known = outcomes.select(
        *_REQUEST, "sealed_in", (F.col("second") * 1000).alias("due_ms"), F.lit(True).alias("is_known")
    )
    came_in = F.col("at_ms").between(first * 1000, last * 1000 + 999)
    # Such a callback belongs to the last seal before the time range.
    at_edge = (F.col("second") < first) & (F.col("at_ms") < first * 1000 + _EDGE_MS)
    of_it = callbacks.where((came_in | F.col("second").between(first, last)) & ~at_edge)
    is_judged = F.coalesce(F.col("sealed_in").between(first, last), F.lit(False))
    return of_it.join(known, [*_REQUEST], "left").where(~is_judged)


def stranger_findings(strangers: DataFrame, asked: DataFrame, intervals: DataFrame, first: int, last: int) -> DataFrame:
    """
    Return the faults of callbacks that were not due to fire in a time range.

    Args:
        strangers: rows of `strange`.
        asked: rows of `requests` that *strangers* name.
        intervals: intervals that the outcomes were computed from.
        first: UNIX second in which the time range begins.
        last: UNIX second in which it ends.

    Returns:
        kind string (early or unexpected), partition int, offset bigint, second bigint, detail string.
    """
    row = F.struct("kind", "second", "millis").alias("row")
    passed = intervals.groupBy("partition").agg(F.max("fence").alias("passed"), F.max("end_ms").alias("ended_ms"))
    both = strangers.join(asked.select(*_REQUEST, row), [*_REQUEST], "left").join(passed, "partition", "left")
    is_request = F.col("row.kind") == REQUEST
    due = F.coalesce("due_ms", F.when(is_request, F.col("row.second") * 1000))
    second = F.floor(due / 1000)
    early_ms = due - F.col("at_ms")
    # Requests appended after the last seal may not be landed yet; those appended long before it are.
    is_landed = F.col("passed").isNull() | (F.col("offset") < F.col("passed"))
    is_landed |= F.col("at_ms") < F.col("ended_ms") - _EDGE_MS
    clock = F.when(F.col("by_worker"), " by the worker's clock").otherwise("")
    is_known = F.coalesce("is_known", F.lit(False))
    said, other = F.format_string, F.lit("unexpected")
    is_late = F.col("at_ms") >= first * 1000 + _EDGE_MS

    def told(kind: Column | str, *words: Column) -> Column:
        return F.struct((F.lit(kind) if isinstance(kind, str) else kind).alias("kind"), words[0].alias("detail"))

    finding = (
        F.when(early_ms > 0, told("early", said("callback in %s %d ms before it was due%s", "topic", early_ms, clock)))
        .when(
            is_known & (F.col("sealed_in") < first) & is_late,
            told(other, said("callback in %s, and its request was done in second %d", "topic", "sealed_in")),
        )
        .when(is_known, None)
        .when(
            F.col("row").isNotNull() & ~is_request,
            told(other, said("callback in %s, and the record that it names is a %s", "topic", "row.kind")),
        )
        .when(
            is_request & second.between(first, last),
            told(other, said("callback in %s, and the condition of its request did not hold", "topic")),
        )
        .when(
            is_request & (second < first) & is_late,
            told(other, said("callback in %s, and its request was done before, due in second %d", "topic", second)),
        )
        .when(
            F.col("row").isNull() & is_landed,
            told(other, said("callback in %s, and timer-request has no such request", "topic")),
        )
    )
    return (
        both.withColumn("told", finding)
        .where(F.col("told").isNotNull())
        .select("told.kind", *_REQUEST, F.coalesce(second, "second").alias("second"), "told.detail")
    )


# --- lateness --------------------------------------------------------------------------------------------------------


def lateness(outcomes: DataFrame, callbacks: DataFrame) -> DataFrame:
    """
    Return the lateness of callbacks: from their due time, or from their request's append if that was later.

    A timer that was due within a second and fired with its tick was not late.

    Args:
        outcomes: rows of `outcomes_of`.
        callbacks: rows of `callbacks_of`; the first of doubled ones counts.

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
    """
    Return a finding for each topic with callbacks later than *late_ms*, about the latest of them.

    Args:
        outcomes: as in `lateness`.
        callbacks: as in `lateness`.
        late_ms: most milliseconds that a callback may be late.

    Returns:
        kind string (late), partition int, offset bigint, second bigint, detail string.
    """
    worst = F.max(F.struct("late_ms", *_REQUEST, "second")).alias("worst")
    late = _late(outcomes, callbacks).where(F.col("late_ms") > late_ms)
    told = late.groupBy("topic").agg(F.count(F.lit(1)).alias("times"), worst, F.bool_or("by_worker").alias("by_worker"))
    clock = F.when(F.col("by_worker"), ", by the worker's clock").otherwise("")
    detail = F.format_string(
        f"%d callbacks in %s more than {late_ms} ms late, the latest by %d ms%s",
        *("times", "topic", "worst.late_ms"),
        clock,
    )
    return told.select(
        F.lit("late").alias("kind"), "worst.partition", "worst.offset", "worst.second", detail.alias("detail")
    )


def _late(outcomes: DataFrame, callbacks: DataFrame) -> DataFrame:
    received = callbacks.groupBy(*_REQUEST).agg(F.min(F.struct("at_ms", "by_worker")).alias("seen"))
    late_ms = F.greatest(F.col("seen.at_ms") - due_ms(), F.lit(0))
    return (
        fires(outcomes)
        .where(F.col("reason").isNull())
        .join(received, [*_REQUEST])
        .select(*_REQUEST, "topic", "second", late_ms.alias("late_ms"), F.col("seen.by_worker").alias("by_worker"))
    )
