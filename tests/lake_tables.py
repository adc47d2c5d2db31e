"""Rows of the lake's tables that a test or a benchmark makes up."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the usual name

from kafka_timers.lake.schema import Table


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
