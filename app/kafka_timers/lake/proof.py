"""
Check the lake's records by the counts in the seals, and the seals by each other.

A seal counts all records of the request log below its fence, from some offset on, with any outcome. If two seals count
from the same offset, their difference stands for the records between their fences. The lake must have these records, so
a request that the lake has lost is missed long before it is due. Each seal also names the one before it, so no seal can
be removed, moved or rewritten. Findings have the columns `schema.FINDING`.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from kafka_timers.lake.schema import CANCEL, COPY, FINDING, about_seals
from kafka_timers.lake.tables import constant

# What is added to the partition if one is missing.
_LACKS = {"key": 1 << 32, "value": 1 << 33}
_HASHED = ("offset", "appended_ms", "key", "value")
_UNREADABLE = "\ufffd"
_RUN = ("partition", "read_from")
_HAS = ("has", "has_cancels", "has_digest")
# Shown hexadecimal digits of a SHA-256.
_SHOWN = 16


def records_in(requests: DataFrame, spans: DataFrame) -> DataFrame:
    """
    Return the *requests* in *spans*.

    *spans* have partition int, since bigint (the first offset), to bigint (the offset behind the last one), and other
    columns, which the requests get.
    """
    return _between(requests, spans).join(F.broadcast(spans), "partition").where(_lies_in()).drop("since", "to")


def digest_of_record() -> Column:
    """
    Return the digest of a record of `timer-request`, as in `core.sums`.

    The record has the columns partition int, offset bigint, appended_ms bigint, key binary, value binary and headers
    array<struct<key string, value binary>>, null if it has no headers.
    """
    headers = F.transform(
        "headers",
        lambda each: F.struct(
            F.when(each["key"].contains(_UNREADABLE), "").otherwise(each["key"]),
            F.coalesce(each["value"], F.to_binary(F.lit(""), F.lit("utf-8"))),
            each["value"].isNull(),
        ),
    )
    return F.when(F.col("headers").isNull(), digest_without_headers()).otherwise(F.xxhash64(*_hashed(), headers))


def digest_without_headers() -> Column:
    """Return the same for a record without headers, many times faster: Spark compiles no expression over an array."""
    return F.xxhash64(*_hashed())


def _hashed() -> list[Column]:
    lacks = [F.when(F.col(name).isNull(), lack).otherwise(0) for name, lack in _LACKS.items()]
    return [sum(lacks, F.col("partition").cast("bigint")), *map(F.col, _HASHED)]


def has_own_digest() -> Column:
    """Return a column: whether a row of `requests` has its bytes, as copies and forgotten rows have not."""
    has_bytes = F.coalesce("value", "key").isNotNull() | F.col("headers").isNotNull()
    is_forgotten = F.col("forgotten_s").isNotNull() & ~has_bytes
    return (F.col("kind") != COPY) & ~is_forgotten


def counted_between(seals: DataFrame) -> DataFrame:
    """
    Return for each complete seal the count of the records read between the fence of the seal before it and its own.

    Returns:
        partition int, read_from bigint, offset bigint (on timer-sealed), last bigint, since bigint and fence bigint
        (offsets on timer-request, since is included), counted bigint, digest bigint, and the parts of counted: near,
        far and cancels, bigint. If no earlier seal counts from the same offset, since is that offset.
    """
    counting = seals.where(F.col("read_from").isNotNull() & F.col("through").isNull()).withColumns(
        {
            "counted": F.col("near") + F.col("far") + F.col("cancels"),
            "read_digest": F.col("near_digest") + F.col("far_digest") + F.col("cancels_digest"),
        }
    )
    order = Window.partitionBy(*_RUN).orderBy("fence", "offset")

    def news(name: str) -> Column:
        return F.col(name) - F.coalesce(F.lag(name).over(order), F.lit(0))

    return counting.select(
        *_RUN,
        "offset",
        "last",
        F.coalesce(F.lag("fence").over(order), F.col("read_from")).alias("since"),
        "fence",
        news("counted").alias("counted"),
        news("read_digest").alias("digest"),
        *(news(name).alias(name) for name in ("near", "far", "cancels")),
    )


class Tally(NamedTuple):
    """
    The records that seals count, and those that the lake has of them.

    Attributes:
        runs: a row for all seals that count from one offset, which follow each other without a gap: partition int,
            read_from bigint, since bigint, to bigint, counted bigint and digest bigint.
        has: partition int, read_from bigint (null for records that no seal counts), number and digest of the records.
        may_be_altered: whether `altered.altered_records` may find any of the records.
    """

    runs: DataFrame
    has: DataFrame
    may_be_altered: bool


def tallied(
    counted: DataFrame, requests: DataFrame, appended: DataFrame, keep: Callable[[DataFrame], DataFrame]
) -> Tally:
    """
    Count the lake's records, and check their digests, in one pass.

    *counted* are rows of `counted_between`. Digests are also checked of records in the spans *appended*, see
    `records_in`.
    """
    runs = counted.groupBy(*_RUN).agg(
        F.min("since").alias("since"),
        F.max("fence").alias("to"),
        F.sum("counted").alias("counted"),
        F.sum("digest").alias("digest"),
    )
    runs = keep(runs)
    spans = runs.select("partition", "since", "to").unionByName(appended)
    of_run = runs.select(F.col("partition").alias("of"), "read_from", "since", "to")
    near = _between(requests, spans)
    near = near.join(F.broadcast(of_run), (F.col("partition") == F.col("of")) & _lies_in(), "left")
    near = near.drop("of", "since", "to").join(F.broadcast(appended), "partition", "left")
    near = near.where(F.col("read_from").isNotNull() | _lies_in()).withColumn("has_digest", F.col("digest"))
    # Without a look at headers, which takes many times longer.
    may_be_altered = has_own_digest() & (F.col("headers").isNotNull() | (digest_without_headers() != F.col("digest")))
    has = keep(_had(near, _RUN, F.count_if(may_be_altered).alias("suspects")))
    return Tally(runs, has, not has.where("suspects > 0").isEmpty())


def unread(counted: DataFrame, tally: Tally, requests: DataFrame, keep: Callable[[DataFrame], DataFrame]) -> DataFrame:
    """
    Return a finding (unread) for each seal whose count since the seal before it differs from the lake's records.

    *tally* is what `tallied` returns for *counted*, rows of `counted_between`.
    """
    both = tally.runs.join(tally.has, [*_RUN], "left").fillna(0, ["has", "has_digest"])
    wrong = keep(both.where(_differs()).select(*_RUN, "since", "to"))
    if wrong.isEmpty():
        return constant(counted.sparkSession, [], FINDING)
    # Find the seals that differ.
    counted = counted.join(wrong.select(*_RUN), [*_RUN])
    marks = counted.select(*_RUN, (F.col("fence") - 1).alias("offset"), "fence").distinct()
    # A row comes before the seal whose fence lies right behind it.
    order = Window.partitionBy(*_RUN).orderBy("offset", F.asc_nulls_first("fence"))
    behind_it = order.rowsBetween(Window.currentRow, Window.unboundedFollowing)
    near = records_in(requests, wrong.select(*_RUN, "since", "to"))
    rows = near.select(*_RUN, "offset", "kind", F.col("digest").alias("has_digest"), F.lit(True).alias("is_row"))
    rows = rows.unionByName(marks, allowMissingColumns=True)
    rows = rows.withColumn("fence", F.first("fence", ignorenulls=True).over(behind_it)).where("is_row")
    has = _had(rows, (*_RUN, "fence"))
    rows = counted.join(has, [*_RUN, "fence"], "left").fillna(0, [*_HAS])
    # Of several seals with one fence, the first one counts the records below it.
    rows = rows.withColumns({name: F.when(F.col("since") < F.col("fence"), F.col(name)).otherwise(0) for name in _HAS})
    detail = F.format_string(
        "the seal counts %d records at offsets %d to %d (%d near, %d far, %d cancels), digest %016x; the lake has %d "
        "(%d cancels), digest %016x",
        *("counted", "since", F.col("fence") - 1, "near", "far", "cancels", "digest"),
        *_HAS,
    )
    return about_seals(rows.where(_differs()), "unread", detail)


def broken_links(seals: DataFrame) -> DataFrame:
    """Return a finding (chain) for each of *seals* that does not name the seal before it in the lake."""
    order = Window.partitionBy("partition").orderBy("offset")
    before = F.unhex(F.sha2(F.lag("value").over(order), 256))
    named = F.coalesce(F.col("previous"), F.lit(b""))
    detail = F.format_string(
        "the seal at offset %d follows one with SHA-256 %s, and the one before it in the lake has %s",
        *("offset", _hex(named), _hex(F.col("before"))),
    )
    # Nothing comes before the first seal of a partition, and a comparison with that is null.
    return about_seals(seals.withColumn("before", before).where(named != F.col("before")), "chain", detail)


def _between(requests: DataFrame, spans: DataFrame) -> DataFrame:
    # In a form that lets Delta skip files by their offset statistics.
    [(first, behind)] = spans.agg(F.min("since"), F.max("to")).collect()
    return requests.where((F.col("offset") >= F.lit(first)) & (F.col("offset") < F.lit(behind)))


def _lies_in() -> Column:
    return (F.col("offset") >= F.col("since")) & (F.col("offset") < F.col("to"))


def _had(rows: DataFrame, by: Sequence[str], *more: Column) -> DataFrame:
    """Return number and digest of *rows* by the columns *by*."""
    return rows.groupBy(*by).agg(
        *more,
        F.count(F.lit(1)).alias("has"),
        F.count_if(F.col("kind") == CANCEL).alias("has_cancels"),
        # Without ANSI mode a bigint wraps around, which is modulo 2^64.
        F.sum("has_digest").alias("has_digest"),
    )


def _differs() -> Column:
    return (F.col("counted") != F.col("has")) | (F.col("digest") != F.col("has_digest"))


def _hex(digest: Column) -> Column:
    shown = F.concat(F.lower(F.substring(F.hex(digest), 1, _SHOWN)), F.lit("…"))
    return F.when(F.length(digest) == 0, "none").otherwise(shown)
