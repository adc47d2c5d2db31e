"""Rows of the lake's tables, as short as tests can say them; times are UNIX seconds, small ones."""

from collections.abc import Iterable, Sequence
from typing import Any

from lake_tables import SEAL_COLUMNS, with_value
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import StructType

from kafka_timers.core.digests import signed
from kafka_timers.core.sums import fired_digest_of
from kafka_timers.lake.schema import REQUESTS
from kafka_timers.lake.tables import constant

REJECTED = StructType().add("partition", "integer").add("offset", "long").add("reason", "string")
# A record of timer-request, as Spark reads it.
RECORD = (
    "key binary, value binary, partition int, offset bigint, timestamp timestamp, "
    "headers array<struct<key string, value binary>>"
)
# Columns of `seals` that are null, unless a test says otherwise.
COUNTED = ("read_from", "near", "near_digest", "far", "far_digest", "cancels", "cancels_digest", "previous", "value")
# The workers' horizon, if a test says no other.
HORIZON_S = 2000


def request(
    offset: int, appended_s: float, due_s: float, timer_id: str | None = None, partition: int = 0, topic: str = "t"
) -> Row:
    second, millis = divmod(round(due_s * 1000), 1000)
    asked = {"second": second, "millis": millis, "topic": topic, "timer_id": timer_id}
    return _record(partition, offset, appended_s, "request", **asked, value=b"v")


def cancel(offset: int, appended_s: float, timer_id: str, partition: int = 0) -> Row:
    return _record(partition, offset, appended_s, "cancel", timer_id=timer_id)


def refused(offset: int, appended_s: float, reason: str, partition: int = 0) -> Row:
    return _record(partition, offset, appended_s, "refused", reason=reason)


def copy(offset: int, appended_s: float, original: Row, decided: int, decided_s: int | None = None) -> Row:
    told = {name: original[name] for name in ("second", "millis", "topic", "timer_id")}
    return _record(
        original.partition,
        offset,
        appended_s,
        "copy",
        **told,
        original=original.offset,
        original_s=original.appended_ms // 1000,
        decided=decided,
        decided_s=int(appended_s) if decided_s is None else decided_s,
    )


def _record(partition: int, offset: int, appended_s: float, kind: str, **more: object) -> Row:
    known = {"partition": partition, "offset": offset, "appended_ms": int(appended_s * 1000), "kind": kind}
    known |= {"delay": "copy" if known.get("kind") == "copy" else "1h", "due": "2030-01-31"}
    return Row(**(dict.fromkeys(REQUESTS.columns.names) | known | more))


# Of digests in partition 0 the offsets that they are of.
_DIGESTED: dict[int, list[int]] = {}


def digest_of(fired: Iterable[int], partition: int = 0) -> int:
    """Return the digest of fired requests, as a row has it."""
    offsets = list(fired)
    digest = signed(fired_digest_of(partition, offsets))
    if not partition:
        _DIGESTED[digest] = offsets
    return digest


def moved(row: Row, partition: int) -> Row:
    """Return a *row* of partition 0 as one of another *partition*."""
    known = row.asDict() | {"partition": partition}
    if "fired" in known:
        known["digest"] = digest_of(_DIGESTED[row["digest"]], partition)
    return Row(**known)


def seal(
    last: int,
    fence: int,
    fired: Iterable[int] = (),
    rejected: int = 0,
    *,
    first: int | None = None,
    partition: int = 0,
    horizon_s: int = HORIZON_S,
    horizon_from: int = 0,
    through: bytes | None = None,
    **wrong: object,
) -> Row:
    fired = list(fired)
    known = dict.fromkeys(SEAL_COLUMNS.names, 0) | {
        **dict.fromkeys(COUNTED),
        "first_ms": (last if first is None else first) * 1000,
        "end_ms": (last + 1) * 1000,
        "partition": partition,
        "offset": last,
        "appended_ms": last * 1000 + 100,
        "first": last if first is None else first,
        "last": last,
        "due": len(fired) + rejected,
        "fired": len(fired),
        "rejected": rejected,
        "digest": digest_of(fired, partition),
        "fence": fence,
        "through": through,
        "horizon_s": horizon_s,
        "horizon_from": horizon_from,
        "worker": "w",
        "day": "2030-01-31",
    }
    row = Row(**(known | wrong))
    return row if row["value"] else with_value(row)


def part_of(first_s: float, end_s: float, fence: int, fired: Iterable[int] = (), **more: Any) -> Row:
    """Return the seal of a part of a second, or of more than one; *end_s* is not covered."""
    first_ms, end_ms = round(first_s * 1000), round(end_s * 1000)
    more |= {"first": first_ms // 1000, "first_ms": first_ms, "end_ms": end_ms}
    return seal((end_ms - 1) // 1000, fence, fired, **more)


def of(spark: SparkSession, rows: Sequence[Row | tuple], columns: StructType) -> DataFrame:
    """Return *rows*; a Row may name its columns in any order."""
    return constant(
        spark, [[row[name] for name in columns.names] if isinstance(row, Row) else row for row in rows], columns
    )


def once(frame: DataFrame) -> DataFrame:
    """Return the content of *frame*, computed."""
    return frame.sparkSession.createDataFrame(frame.toArrow())


def told(frame: DataFrame, *columns: str) -> list[tuple]:
    return sorted(tuple(row) for row in frame.select(*columns).collect())


def plan_of(frame: DataFrame) -> str:
    """Return how Spark computes *frame*, all of it."""
    spark = frame.sparkSession
    before = spark.conf.get("spark.sql.maxPlanStringLength")
    spark.conf.set("spark.sql.maxPlanStringLength", "10000000")
    try:
        return str(frame._jdf.queryExecution().executedPlan().toString())
    finally:
        spark.conf.set("spark.sql.maxPlanStringLength", before)
