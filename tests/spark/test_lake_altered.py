"""Rows of the lake that somebody has changed."""

from datetime import UTC, datetime
from typing import Any

from lake_rows import RECORD
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, IntegerType, LongType

from kafka_timers.core.wire import Copy, Future
from kafka_timers.lake.altered import altered_records, altered_rows
from kafka_timers.lake.records import requests_of
from kafka_timers.lake.schema import ASKS, REQUESTS, SENT_FROM

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
        elif column.name == "sent_from":
            other = F.when(value.isNull(), F.from_json(F.lit('{"offset": 7}'), SENT_FROM))
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
