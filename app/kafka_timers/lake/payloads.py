"""
The content of a request's callback, read from the bytes of the record.

Python does this, a row at a time, with the workers' own code, because SQL has no function that parses protobuf. At
landing, each record would be parsed twice and kept twice. Spark skips the work if a query uses none of its columns.
"""

from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, MapType, StringType, StructField, StructType

from kafka_timers.core.callbacks import Shown
from kafka_timers.core.wire import future_from
from kafka_timers.errors import WireError

# Columns of `requests` that the content is read from.
CARRIED = ("value", "key")

_ASKED = StructType(
    [
        StructField("callback_key", StringType()),
        StructField("callback_value", BinaryType()),
        StructField("text", StringType()),
        StructField("callback_headers", MapType(StringType(), BinaryType())),
        StructField("token", StringType()),
        StructField("tombstone", StringType()),
    ]
)
# Columns that `with_contents` adds.
CONTENTS = (*_ASKED.names, "record_key")


def with_contents(requests: DataFrame) -> DataFrame:
    """
    Return *requests*, which have key and value of a record and other columns, with the content of their callbacks.

    Returns:
        the same columns, and callback_key string (null without one, or if it is not UTF-8), callback_value binary
        (null for a tombstone), text string (the value if it is UTF-8), callback_headers map<string,binary> (the first
        of several with one name), token string, tombstone string (topic of the tombstone), record_key string (the
        record's own, if it is UTF-8). For cancels and values that do not parse, all but the last are null.
    """
    # If not told, Spark 4.1 guesses by the type hints, and warns.
    asked = requests.withColumn("asked", F.udf(asked_in, _ASKED, useArrow=False)(F.col("value")))
    fields = {name: F.col(f"asked.{name}") for name in _ASKED.names}
    record_key = F.try_validate_utf8(F.col("key").cast("string"))
    return asked.withColumns(fields | {"record_key": record_key}).drop("asked")


def asked_in(value: bytes | None) -> tuple[Any, ...] | None:
    """Return the columns of `with_contents` that follow from the value of a record; None if there are none."""
    try:
        future = future_from(bytes(value or b""))
    except WireError:
        return None
    if value is None or future.cancel:
        return None
    _, key, callback = Shown.of(future)
    headers = {each.key: each.value if each.HasField("value") else None for each in reversed(future.headers)}
    named = (future.token or None, future.tombstoneTopic or None)
    return _text(key), callback, _text(callback), headers, *named


def header_of(name: str) -> Column:
    """Return as text a record's first header *name*; null without one, or if it is not UTF-8."""
    named = F.filter("headers", lambda each: each["key"] == name)
    return F.try_validate_utf8(F.try_element_at(named, F.lit(1))["value"].cast("string"))


def _text(content: bytes | None) -> str | None:
    try:
        return None if content is None else content.decode()
    except UnicodeDecodeError:
        return None
