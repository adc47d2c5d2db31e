"""Rows of the lake's tables that a test or a benchmark makes up."""

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812  # the usual name
from pyspark.sql.types import StructType

from kafka_timers.lake.schema import DELAYS_S, SEALS, Table, day_of
from kafka_timers.v1.sealed_pb2 import Sealed

# What is stored, and what is read from the bytes.
SEAL_COLUMNS = StructType([*SEALS.columns, *SEALS.in_bytes])


def delay_of(second: Column, appended_ms: Column) -> Column:
    """Return the column `delay` of a request that is due in *second*."""
    waits_s = second - F.floor(appended_ms / 1000)
    delay = F.lit("more")
    for name, longest_s in reversed(DELAYS_S.items()):
        delay = F.when(waits_s <= longest_s, name).otherwise(delay)
    return delay


def due_of(second: Column, delay: Column) -> Column:
    """Return the column `due` of a row in partition *delay* that is due in *second*; days are those of UTC."""
    day, by_year, by_month = day_of(second), delay == "more", delay == "1y"
    return (
        F.when(by_year, F.substring(day, 1, len("2030")))
        .when(by_month, F.substring(day, 1, len("2030-01")))
        .otherwise(day)
    )


def completed(rows: DataFrame, table: Table, **more: Column) -> DataFrame:
    """Return *rows* with the types that they should have, and with the columns that they lack, null or empty."""
    columns, given = [], set(rows.columns)
    others = given - set(table.columns.names)
    # In one step: Spark would analyze the whole plan anew for each column.
    for column in table.columns:
        empty = F.lit(None) if column.nullable else F.lit("" if column.dataType.simpleString() == "string" else 0)
        value = F.col(column.name) if column.name in given else more.get(column.name, empty)
        columns.append(value.cast(column.dataType).alias(column.name))
    return rows.select(*columns, *sorted(others))


def with_value(row: Row) -> Row:
    """Return a *row* of `seals` with the bytes of a seal that says what its columns say."""
    known = row.asDict()
    seal = Sealed()
    for field in Sealed.DESCRIPTOR.fields:
        told = known.get(field.name)
        if told is not None and field.name not in ("near", "far", "cancels"):
            setattr(seal, field.name, told)
    seal.fired_digest = known["digest"] % 2**64
    for name in ("near", "far", "cancels"):
        if known.get(name) is not None:
            count = getattr(seal, name)
            count.count, count.digest = known[name], known[f"{name}_digest"] % 2**64
    return Row(**(known | {"value": seal.SerializeToString()}))
