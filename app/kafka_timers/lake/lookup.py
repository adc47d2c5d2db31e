"""
Look up the records that concern the timers of one id or key, without a pass over the outcomes of all others.

They are read once, and are few. So what became of them is computed from these rows (`few`), and not from the tables.
"""

from typing import Any, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kafka_timers.errors import LakeError
from kafka_timers.lake.payloads import asked_in
from kafka_timers.lake.schema import COPY, RECORD_KEY, REQUEST, REQUESTS
from kafka_timers.lake.tables import constant

# Rows with payloads go through this process, and it takes 0.4 ms for the outcome of each.
_RECORDS_MAX = 10_000
# Spark compares a row with so many offsets, and looks for them by the bounds of its files.
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
    spark = requests.sparkSession
    # Protobuf keeps a key as it is, so few values have to be parsed.
    may = requests.where((F.col("kind") == REQUEST) & F.contains("value", F.lit(key.encode())))
    asked = [row for row in _rows(requests, may) if (asked_in(row["value"]) or (None,))[0] == key]
    ids = sorted({(row["partition"], row["timer_id"]) for row in asked if row["timer_id"] is not None})
    unnamed = [row for row in asked if row["timer_id"] is None]
    found = [*unnamed]
    if ids:
        wanted = constant(spark, ids, "partition int, timer_id string")
        found += _rows(requests, requests.join(F.broadcast(wanted), ["partition", "timer_id"], "left_semi"))
    if unnamed:
        originals = [(row["partition"], row["offset"]) for row in unnamed]
        wanted = constant(spark, originals, "partition int, original bigint")
        copies = requests.where((F.col("kind") == COPY) & F.col("timer_id").isNull())
        found += _rows(requests, copies.join(F.broadcast(wanted), ["partition", "original"], "left_semi"))
    return found


def _rows(requests: DataFrame, found: DataFrame) -> list[dict[str, Any]]:
    """Return the rows *found* of *requests*, with all columns."""
    # The first look reads some columns of all files, and the second one all columns of the files with these rows.
    places = found.select(*_FOLDER, *RECORD_KEY).limit(_RECORDS_MAX + 1).collect()
    if len(places) > _RECORDS_MAX:
        raise LakeError(
            f"more than {_RECORDS_MAX:,} records concern these timers: ask for all timers, with a condition in SQL"
        )
    if not places:
        return []
    names = {tuple(place[2:]) for place in places}
    delays, dues, numbers, offsets = (sorted(set(values)) for values in zip(*places, strict=True))
    near = requests.where(F.col("delay").isin(delays) & F.col("due").isin(dues))
    near = near.where(F.col("partition").isin(numbers) & F.col("offset").between(offsets[0], offsets[-1]))
    if len(offsets) <= _LISTED_MAX:
        near = near.where(F.col("offset").isin(offsets))
    else:
        wanted = constant(requests.sparkSession, names, "partition int, offset bigint")
        near = near.join(F.broadcast(wanted), [*RECORD_KEY], "left_semi")
    rows = near.select(*REQUESTS.columns.names).collect()
    return [row.asDict(recursive=True) for row in rows if (row["partition"], row["offset"]) in names]
