"""
Check the lake's records by the counts in the seals, and the seals by each other.

A seal counts all records of the request log below its fence, from some offset on, with any outcome. If two seals count
from the same offset, their difference stands for the records between their fences. The lake must have these records, so
a request that the lake has lost is missed long before it is due. Each seal also names the one before it, so no seal can
be removed, moved or rewritten.
"""

from collections.abc import Callable

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from kafka_timers.core.sums import VERSION
from kafka_timers.lake.schema import CANCEL, FINDING
from kafka_timers.lake.tables import constant

__all__ = ["broken_links", "counted_between", "digest_of_record", "unread"]

_NO_KEY, _NO_VALUE = 1 << 32, 1 << 33
_UNREADABLE = "\ufffd"
_RUN = ("partition", "read_from")
_HAS = ("has", "has_cancels", "has_digest")
# Shown hexadecimal digits of a SHA-256.
_SHOWN = 16


def digest_of_record() -> Column:
    """
    Return the digest of a record of `timer-request`, as in `core.sums`.

    The record has the columns partition int, offset bigint, appended_ms bigint, key binary, value binary and headers
    array<struct<key string, value binary>>, null if it has no headers.
    """
    lacks = F.when(F.col("key").isNull(), _NO_KEY).otherwise(0) + F.when(F.col("value").isNull(), _NO_VALUE).otherwise(
        0
    )
    headers = F.transform(
        "headers",
        lambda each: F.struct(
            F.when(each["key"].contains(_UNREADABLE), "").otherwise(each["key"]),
            F.coalesce(each["value"], F.to_binary(F.lit(""), F.lit("utf-8"))),
            each["value"].isNull(),
        ),
    )
    hashed = (F.col("partition").cast("bigint") + lacks, "offset", "appended_ms", "key", "value")
    # Null adds nothing. Few records have headers, and Spark does not compile what it calls for each element.
    return F.when(F.col("headers").isNull(), F.xxhash64(*hashed)).otherwise(F.xxhash64(*hashed, headers))


def counted_between(seals: DataFrame) -> DataFrame:
    """
    Return for each complete seal the count of the records read between the fence of the seal before it and its own.

    Args:
        seals: rows of `seals`.

    Returns:
        partition int, read_from bigint, offset bigint (on timer-sealed), last bigint, since bigint and fence bigint
        (offsets on timer-request, since is included), counted bigint, digest bigint, and the parts of counted: near,
        far and cancels, bigint. If no earlier seal counts from the same offset, since is that offset.
    """
    told = seals.where(F.col("read_from").isNotNull() & F.col("through").isNull()).withColumns(
        {
            "counted": F.col("near") + F.col("far") + F.col("cancels"),
            "read_digest": F.col("near_digest") + F.col("far_digest") + F.col("cancels_digest"),
        }
    )
    order = Window.partitionBy(*_RUN).orderBy("fence", "offset")

    def news(name: str) -> Column:
        return F.col(name) - F.coalesce(F.lag(name).over(order), F.lit(0))

    return told.select(
        *_RUN,
        "offset",
        "last",
        F.coalesce(F.lag("fence").over(order), F.col("read_from")).alias("since"),
        "fence",
        news("counted").alias("counted"),
        news("read_digest").alias("digest"),
        *(news(name).alias(name) for name in ("near", "far", "cancels")),
    )


def unread(counted: DataFrame, requests: DataFrame, keep: Callable[[DataFrame], DataFrame]) -> DataFrame:
    """
    Return a finding for each seal whose count since the seal before it differs from the lake's records.

    Args:
        counted: rows of `counted_between`.
        requests: partition int, offset bigint, kind string and digest bigint of `requests`. Rows landed by an earlier
            version have no digest, and seals that count any of them are not judged. A row without a digest behind a row
            that has one is judged.
        keep: see `TimeRange`.

    Returns:
        kind string (unread), partition int, offset bigint (null), second bigint, detail string.
    """
    # Seals that count from one offset follow each other without a gap, so one look at the lake covers all of them.
    runs = counted.groupBy("partition", "read_from").agg(
        F.min("since").alias("since"),
        F.max("fence").alias("to"),
        F.sum("counted").alias("counted"),
        F.sum("digest").alias("digest"),
    )
    runs = keep(runs)
    first, behind = runs.agg(F.min("since"), F.max("to")).collect()[0]
    if first is None:
        return _none(counted)
    # In a form that lets Delta skip files by their offset statistics.
    near = requests.where((F.col("offset") >= first) & (F.col("offset") < behind))
    near = near.withColumnsRenamed({"digest": "has_digest"}).join(runs.select(*_RUN, "since", "to"), "partition")
    near = near.where((F.col("offset") >= F.col("since")) & (F.col("offset") < F.col("to")))
    both = runs.join(_had(near, *_RUN), [*_RUN], "left").fillna(0, ["has", "has_digest"])
    is_known = F.col("unknown_to").isNull() | (F.col("known_from") < F.col("unknown_to"))
    # All rows landed by an earlier version lie before the others.
    told_from = F.when(F.col("has_from") < F.col("known_from"), F.col("known_from")).alias("told_from")
    wrong = keep(both.where(_differs() & is_known).select(*_RUN, told_from))
    if wrong.isEmpty():
        return _none(counted)
    # Find the seals that differ.
    counted = counted.join(wrong, [*_RUN]).where(F.col("told_from").isNull() | (F.col("since") >= F.col("told_from")))
    marks = counted.select(*_RUN, (F.col("fence") - 1).alias("offset"), "fence").distinct()
    # A row comes before the seal whose fence lies right behind it.
    order = Window.partitionBy(*_RUN).orderBy("offset", F.asc_nulls_first("fence"))
    behind_it = order.rowsBetween(Window.currentRow, Window.unboundedFollowing)
    rows = near.join(wrong, [*_RUN]).select(*_RUN, "offset", "kind", "has_digest", F.lit(True).alias("is_row"))
    rows = rows.unionByName(marks, allowMissingColumns=True)
    rows = rows.withColumn("fence", F.first("fence", ignorenulls=True).over(behind_it)).where("is_row")
    has = _had(rows, *_RUN, "fence")
    told = counted.join(has, [*_RUN, "fence"], "left").fillna(0, [*_HAS])
    # Of several seals with one fence, the first one counts the records below it.
    told = told.withColumns({name: F.when(F.col("since") < F.col("fence"), F.col(name)).otherwise(0) for name in _HAS})
    detail = F.format_string(
        "the seal counts %d records at offsets %d to %d (%d near, %d far, %d cancels), digest %016x; the lake has %d "
        "(%d cancels), digest %016x",
        *(
            "counted",
            "since",
            F.col("fence") - 1,
            "near",
            "far",
            "cancels",
            "digest",
            "has",
            "has_cancels",
            "has_digest",
        ),
    )
    return told.where(_differs()).select(
        F.lit("unread").alias("kind"),
        "partition",
        F.lit(None).cast("bigint").alias("offset"),
        F.col("last").alias("second"),
        detail.alias("detail"),
    )


def broken_links(seals: DataFrame) -> DataFrame:
    """
    Return a finding for each seal that does not name the seal before it in the lake.

    Args:
        seals: rows of `seals`. Seals written or landed by an earlier version name none, and are skipped.

    Returns:
        kind string (chain), partition int, offset bigint (null), second bigint, detail string.
    """
    order = Window.partitionBy("partition").orderBy("offset")
    before = F.unhex(F.sha2(F.lag("value").over(order), 256))
    other = F.coalesce(F.col("previous"), F.lit(b"")) != F.col("before")
    detail = F.format_string(
        "the seal at offset %d follows one with SHA-256 %s, and the one before it in the lake has %s",
        *("offset", _hex(F.coalesce(F.col("previous"), F.lit(b"")))),
        _hex(F.col("before")),
    )
    return (
        seals.withColumn("before", before)
        .where((F.col("digests") == VERSION) & F.col("before").isNotNull() & other)
        .select(
            F.lit("chain").alias("kind"),
            "partition",
            F.lit(None).cast("bigint").alias("offset"),
            F.col("last").alias("second"),
            detail.alias("detail"),
        )
    )


def _had(rows: DataFrame, *by: str) -> DataFrame:
    """Return number and digest of *rows* by the columns *by*."""
    return rows.groupBy(*by).agg(
        F.count(F.lit(1)).alias("has"),
        F.count_if(F.col("kind") == CANCEL).alias("has_cancels"),
        F.min("offset").alias("has_from"),
        # Without ANSI mode a bigint wraps around, which is modulo 2^64.
        F.sum("has_digest").alias("has_digest"),
        F.min(F.when(F.col("has_digest").isNotNull(), F.col("offset"))).alias("known_from"),
        F.max(F.when(F.col("has_digest").isNull(), F.col("offset"))).alias("unknown_to"),
    )


def _differs() -> Column:
    return (F.col("counted") != F.col("has")) | (F.col("digest") != F.col("has_digest"))


def _hex(digest: Column) -> Column:
    shown = F.concat(F.lower(F.substring(F.hex(digest), 1, _SHOWN)), F.lit("…"))
    return F.when(F.length(digest) == 0, "none").otherwise(shown)


def _none(frame: DataFrame) -> DataFrame:
    return constant(frame.sparkSession, [], FINDING)
