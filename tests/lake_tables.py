"""Rows of the lake's tables that a test or a benchmark makes up."""

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812  # the usual name
from pyspark.sql.types import StructType

from kafka_timers.lake.schema import SEALS, Table
from kafka_timers.v1.sealed_pb2 import Sealed

# What is stored, and what is read from the bytes.
SEAL_COLUMNS = StructType([*SEALS.columns, *SEALS.told])


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
