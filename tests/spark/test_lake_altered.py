"""Rows of the lake that somebody has changed."""

from datetime import UTC, datetime
from typing import Any

from lake_rows import RECORD
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, IntegerType, LongType

from kafka_timers.core.wire import Copy, Future, Sealed
from kafka_timers.lake.altered import altered_records, altered_rows, altered_seal_rows
from kafka_timers.lake.records import requests_of, seals_of
from kafka_timers.lake.schema import ASKS, REQUESTS, SEALS
from kafka_timers.v1.sealed_pb2 import Records

NOW_S = 1_800_000_000


def landed(spark: SparkSession, values: list[tuple[bytes | None, bytes | None, Any]], times: int) -> DataFrame:
    """Return the rows of these records, each as often as said and in a partition of its own."""
    appended = datetime.fromtimestamp(NOW_S, UTC).replace(tzinfo=None)
    rows = [
        (key, value, 0, len(values) * number + at, appended, headers)
        for number in range(times)
        for at, (key, value, headers) in enumerate(values)
    ]
    return requests_of(spark.createDataFrame(rows, RECORD), 1)


def future(**more: Any) -> bytes:
    return Future(**({"callBackTopic": "t", "callBack": b"v"} | more)).SerializeToString()


SOME = [
    (b"%d" % (NOW_S + 60), future(timerId="a", millis=7), None),
    (b"%d" % (NOW_S + 90_000), future(headers=[{"key": "h", "value": b"v"}]), [("timer-asked-by", b"x")]),
    (b"a", future(timerId="a", cancel=True), None),
    (b"soon", future(), None),
    (None, None, None),
    (b"%d" % (NOW_S + 60), future(copy=Copy(offset=1, appended=NOW_S, decidedOffset=3, decided=NOW_S)), None),
]


def changed(rows: DataFrame, names: list[str], seed: int) -> DataFrame:
    """Return *rows*, each with another value in one column, which its column `changed` names."""
    at = F.pmod(F.xxhash64("offset", F.lit(seed)), F.lit(len(names))) + 1
    which = F.element_at(F.array(*map(F.lit, names)), at.cast("int"))
    rows = rows.withColumn("changed", which)
    for column in rows.schema:
        if column.name not in names:
            continue
        value = F.col(column.name)
        if isinstance(column.dataType, IntegerType | LongType):
            other = F.coalesce(value + 1, F.lit(0))
        elif isinstance(column.dataType, BinaryType):
            other = F.concat(F.coalesce(value, F.lit(b"")), F.lit(b"x"))
        elif column.name == "headers":
            some, none = (F.expr(each).cast(column.dataType) for each in ("array(('k', X'01'))", "array()"))
            other = F.concat(F.coalesce(value, none), some)
        elif column.name == "asks":
            other = F.when(value.isNull(), F.from_json(F.lit('{"reply_topic": "x"}'), ASKS))
        else:
            other = F.concat(F.coalesce(value, F.lit("")), F.lit("x"))
        rows = rows.withColumn(column.name, F.when(F.col("changed") == column.name, other).otherwise(value))
    return rows


def test_a_row_of_requests_in_which_any_one_column_was_changed_is_found(spark: SparkSession) -> None:
    honest = landed(spark, SOME, 200).persist()
    assert altered_records(honest).isEmpty()
    assert altered_rows(honest, 1).isEmpty()
    # The digest of a record is of its place and append time, too.
    names = [name for name in REQUESTS.columns.names if name != "partition"]
    wrong = changed(honest.where("kind != 'copy'"), names, 1).persist()
    found = altered_records(wrong).unionByName(altered_rows(wrong, 1)).select("offset").distinct()
    missed = wrong.join(found, "offset", "left_anti").groupBy("changed").count().collect()
    assert missed == []
    assert {row[0] for row in wrong.select("changed").distinct().collect()} == set(names)


def test_a_row_of_seals_in_which_any_one_column_was_changed_is_found(spark: SparkSession) -> None:
    seal = Sealed(partition=0, first_ms=NOW_S * 1000, end_ms=(NOW_S + 1) * 1000, due=3, fired=2, rejected=1, fence=11)
    seal.MergeFrom(Sealed(first_ms=NOW_S * 1000, end_ms=(NOW_S + 1) * 1000, read_from=2, previous=b"x" * 32))
    seal.MergeFrom(Sealed(near=Records(count=4, digest=2**63), far=Records(count=2, digest=1), cancels=Records()))
    part = Sealed()
    part.CopyFrom(seal)
    part.through = b"key"
    old = Sealed(partition=0, first_ms=NOW_S * 1000, end_ms=(NOW_S + 1) * 1000, due=1, fired=1, digest=8, fence=3)
    values = [seal.SerializeToString(), part.SerializeToString(), old.SerializeToString()]
    appended = datetime.fromtimestamp(NOW_S, UTC).replace(tzinfo=None)
    rows = [(values[at % 3], 0, at, appended) for at in range(1_500)]
    honest = seals_of(
        spark.createDataFrame(rows, "value binary, partition int, offset bigint, timestamp timestamp")
    ).persist()
    assert altered_seal_rows(honest).isEmpty()
    # Where it lies and when it was appended no bytes tell; that of the seal behind it names it by its value.
    names = [name for name in SEALS.columns.names if name not in ("partition", "offset", "appended_ms", "day", "value")]
    wrong = changed(honest, names, 2).persist()
    found = {row["detail"].split("differs in ")[1] for row in altered_seal_rows(wrong).collect()}
    assert altered_seal_rows(wrong).count() == 1_500
    assert found == set(names)
