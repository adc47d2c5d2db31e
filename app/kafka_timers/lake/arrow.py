"""Rows of Python as Arrow's batches, which Spark takes from functions in Python."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

_KINDS = {"int": pa.int32(), "bigint": pa.int64(), "string": pa.string(), "binary": pa.binary()}


def record_batch(rows: Sequence[Sequence[Any]], columns: str) -> pa.RecordBatch:
    """Return *rows* as a batch. *columns* are their names and types for Spark, as `partition int, detail string`."""
    names, kinds = zip(*(column.split() for column in columns.split(", ")), strict=True)
    values = list(zip(*rows, strict=True)) or [()] * len(names)
    arrays = [pa.array(value, _KINDS[kind]) for value, kind in zip(values, kinds, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, list(names))
