"""
Look up the records that concern the timers of one id or key, without a pass over the outcomes of all others.

They are read once, and are few. So what became of them is computed from these rows (`few`), and not from the tables.
"""

from collections.abc import Set
from typing import Any, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kafka_timers.errors import LakeError
from kafka_timers.lake.payloads import asked_in
from kafka_timers.lake.schema import COPY, RECORD_KEY, REQUEST, REQUESTS
from kafka_timers.lake.tables import constant

# Rows with payloads go through this process, and it takes 0.4 ms for the outcome of each.
_RECORDS_MAX = 10_000
# Spark compares a row with so many ids or offsets, and looks for them by the bounds and filters of its files.
_LISTED_MAX = 100

_FOLDER = REQUESTS.partitioned_by


class Only(NamedTuple):
    """
    The timers that a query is about.

    Attributes:
        timer_id: their timer id; None for any.
        key: key of their callbacks; None for any. To find them, all payloads are searched once.
    """

    timer_id: str | None = None
    key: str | None = None


def records_of(requests: DataFrame, only: Only) -> list[dict[str, Any]]:
    """
    Return all records that concern the timers of *only*, an id or a key or both: requests, cancels and copies.

    Returns:
        rows of `requests`, in no order.

    Raises:
        LakeError: there are more than 10,000.
    """
    if only.timer_id is not None:
        # The filters of ids in the files help the second look, too.
        of_id = requests.where(F.col("timer_id") == only.timer_id)
        return _rows(of_id, of_id)
    return _records_of_key(requests, only.key or "")


def _records_of_key(requests: DataFrame, key: str) -> list[dict[str, Any]]:
    # Protobuf keeps a key as it is, so few values have to be parsed.
    may = requests.where((F.col("kind") == REQUEST) & F.contains("value", F.lit(key.encode())))
    asked = [row for row in _rows(requests, may) if (asked_in(row["value"]) or (None,))[0] == key]
    ids = {(row["partition"], row["timer_id"]) for row in asked if row["timer_id"] is not None}
    unnamed = [row for row in asked if row["timer_id"] is None]
    found = [*unnamed]
    if ids:
        found += _rows(requests, _among(requests, ids, "partition int, timer_id string"))
    if unnamed:
        originals = {(row["partition"], row["offset"]) for row in unnamed}
        copies = requests.where((F.col("delay") == COPY) & (F.col("kind") == COPY) & F.col("timer_id").isNull())
        found += _rows(requests, _among(copies, originals, "partition int, original bigint"))
    return found


def _rows(requests: DataFrame, found: DataFrame) -> list[dict[str, Any]]:
    """Return the rows *found* of *requests*, with all columns."""
    # The first look reads some columns of all files, and the second one all columns of the files with these rows. Arrow
    # brings the rows of all files at once, and `collect` would look into one file before the others.
    places = found.select(*_FOLDER, *RECORD_KEY).limit(_RECORDS_MAX + 1).toArrow().to_pylist()
    if len(places) > _RECORDS_MAX:
        raise LakeError(
            f"more than {_RECORDS_MAX:,} records concern these timers: ask for all timers, with a condition in SQL"
        )
    if not places:
        return []
    delays, dues = ({place[name] for place in places} for name in _FOLDER)
    near = requests.where(F.col("delay").isin(delays) & F.col("due").isin(dues))
    offsets = sorted(place["offset"] for place in places)
    near = near.where(F.col("offset").between(offsets[0], offsets[-1]))
    near = _among(near, {(place["partition"], place["offset"]) for place in places}, "partition int, offset bigint")
    return [row.asDict(recursive=True) for row in near.select(*REQUESTS.columns.names).collect()]


def _among(rows: DataFrame, values: Set[tuple[Any, ...]], columns: str) -> DataFrame:
    """Return those of *rows* that have one of *values* in two *columns*, names and types as in SQL."""
    wanted = constant(rows.sparkSession, values, columns)
    if len(values) <= _LISTED_MAX:
        for name, listed in zip(wanted.columns, zip(*values, strict=True), strict=True):
            rows = rows.where(F.col(name).isin(set(listed)))
    return rows.join(F.broadcast(wanted), wanted.columns, "left_semi")
