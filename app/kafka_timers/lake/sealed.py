"""
Seals as rows. The table keeps the bytes of a seal, and the few columns by which queries skip rows.

All other columns are read from the bytes when a query uses them, so no row can say two things.
"""

import logging
from operator import attrgetter
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from kafka_timers.core.digests import signed
from kafka_timers.core.sums import ReadSums
from kafka_timers.core.wire import Sealed, is_complete, last_second_of, sealed_from
from kafka_timers.errors import WireError
from kafka_timers.lake.schema import SEALS, day_of

log = logging.getLogger(__name__)

# The columns that are stored although the bytes tell them, and all that the bytes tell.
_STORED = [each for each in SEALS.columns if each.name not in ("partition", "offset", "appended_ms", "value", "day")]
_FIELDS = StructType([*_STORED, *SEALS.in_bytes])
# Those that are fields of the message, as they are unless `_fields_in` says otherwise.
_COPIED = [name for name in _FIELDS.names if name in Sealed.DESCRIPTOR.fields_by_name]
_copied_of = attrgetter(*_COPIED)


def seals_of(records: DataFrame) -> DataFrame:
    """
    Return the rows of `seals` for records of timer-sealed. Other records are skipped and logged, as workers do.

    *records* are from Spark's Kafka source: value binary, partition int, offset bigint and timestamp.
    """
    appended_ms = F.unix_millis("timestamp").alias("appended_ms")
    rows = records.select("partition", "offset", appended_ms, "value").withColumn("seal", _seal(is_costly=True))
    return (
        rows.where("seal IS NOT NULL")
        .select("*", "seal.*", day_of(F.col("seal.last")).alias("day"))
        .select(*SEALS.columns.names)
    )


def opened(rows: DataFrame) -> DataFrame:
    """Return *rows* of `seals` with all that their bytes tell. The bytes are only read if a query needs it."""
    return _with_fields(rows.withColumn("seal", _seal()))


def sound(seals: DataFrame) -> DataFrame:
    """Return *seals* without those whose columns are not as their bytes tell, as if they had not been landed."""
    # A day of seals may be one file, so one core would parse them all.
    rows = seals.repartition("offset").withColumn("seal", _seal(is_costly=True))
    is_same = F.col("day") == day_of(F.col("seal.last"))
    for each in _STORED:
        is_same &= F.col(each.name).eqNullSafe(F.col(f"seal.{each.name}"))
    return _with_fields(rows.where(is_same))


def _with_fields(rows: DataFrame) -> DataFrame:
    return rows.withColumns({name: F.col(f"seal.{name}") for name in SEALS.in_bytes.names}).drop("seal")


def _seal(*, is_costly: bool = False) -> Column:
    """Return a column: what the bytes of a row say. If it *is_costly*, Spark computes it once, and before filters."""
    parse = F.udf(_fields_in, _FIELDS, useArrow=False)
    return (parse.asNondeterministic() if is_costly else parse)("value", "partition", "offset")


def _fields_in(value: bytes | None, partition: int, offset: int) -> tuple[Any, ...] | None:
    try:
        # An empty value would parse, as a seal of second 0.
        seal = sealed_from(bytes(value or b"\0"), partition=partition, offset=offset)
    except WireError as error:
        log.warning("skipped: %s", error)
        return None
    row = dict(zip(_COPIED, _copied_of(seal), strict=True))
    row["digest"] = signed(seal.fired_digest)
    row["previous"] = seal.previous or None
    read = ReadSums.of(seal)
    row["read_from"] = read and read.since
    for name in ("near", "far", "cancels"):
        records, digest = getattr(read, name) if read else (None, None)
        row[name], row[f"{name}_digest"] = records, digest if digest is None else signed(digest)
    row["through"] = None if is_complete(seal) else seal.through
    row["first"], row["last"] = seal.first_ms // 1000, last_second_of(seal)
    return tuple(row[name] for name in _FIELDS.names)
