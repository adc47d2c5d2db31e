"""
Records of callback topics as callbacks and tombstones: the request that each names, and its content as one number.
"""

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from kafka_timers.core.routing import hash_of
from kafka_timers.core.wire import EXPIRY_HEADER, REQUEST_HEADER
from kafka_timers.lake.schema import RECORD_KEY

# Columns of `callbacks_of`.
CALLBACKS = (
    "partition int, offset bigint, topic string, second bigint, at_ms bigint, at_partition int, at_offset bigint, "
    "hash bigint, key_hash int, by_worker boolean"
)
_PLACE = "^((?:0|[1-9][0-9]{0,8}):(?:0|[1-9][0-9]{0,17}))$"


def callbacks_of(records: DataFrame) -> DataFrame:
    """
    Return the callbacks among the records of callback topics.

    Args:
        records: topic string, partition int, offset bigint, timestamp timestamp, timestampType int, key binary, value
            binary, headers array<struct<key string, value binary>>, as Spark reads them from Kafka. Records without
            the service's headers are not its callbacks, and are left out.

    Returns:
        partition int and offset bigint of the request, topic string, second bigint from the callback's header, at_ms
        bigint: the record's time, at_partition int and at_offset bigint of the record, hash bigint: its content
        (`core.digests`), key_hash int: murmur2 of its key, null without one, by_worker boolean: whether its time is
        from the clock of its sender.
    """
    named = naming_requests(records).withColumn("second", text_in(EXPIRY_HEADER).cast("bigint"))
    named = named.where(F.col("second").isNotNull())
    return named.select(*_SLIM, "second", hash_of_record().alias("hash"), "key").mapInArrow(_with_key_hash, CALLBACKS)


def tombstones_of(records: DataFrame) -> DataFrame:
    """
    Return the service's tombstones among *records*, which are as in `callbacks_of`. A tombstone names only a request.

    Returns:
        partition int and offset bigint of the request, topic string, at_ms bigint, hash bigint.
    """
    named = naming_requests(records).where(text_in(EXPIRY_HEADER).isNull())
    return named.select(*RECORD_KEY, "topic", "at_ms", hash_of_record().alias("hash"))


def hash_of_record() -> Column:
    """
    Return the hash of the content of a record of a callback topic, as in `core.digests`.

    The record has the columns partition and offset of the request that it names, key, value and headers.
    """
    # The name of the request counts as empty.
    name = F.encode(F.concat_ws(":", "partition", "offset"), "UTF-8")
    nothing = F.lit(b"")

    def text(header: Column) -> Column:
        is_name = (header["key"] == REQUEST_HEADER) & (header["value"] == name)
        value = F.when(is_name, nothing).otherwise(header["value"])
        raw = F.encode(header["key"], "UTF-8")
        size = F.coalesce(F.octet_length(value).cast("string"), F.lit("-"))
        sizes = F.concat(F.octet_length(raw).cast("string"), F.lit(":"), size, F.lit(":"))
        return F.concat(F.encode(sizes, "UTF-8"), raw, F.coalesce(value, nothing))

    parts = [F.when(F.col(part).isNull(), "").otherwise(F.lit(part[0])) for part in ("key", "value")]
    present = F.encode(F.concat(*parts, F.lit(";")), "UTF-8")
    head = F.aggregate(F.transform("headers", text), present, lambda before, each: F.concat(before, each))
    return F.xxhash64(head, "key", "value")


_SLIM = (*RECORD_KEY, "topic", "at_ms", "at_partition", "at_offset", "by_worker")


def text_in(name: str) -> Column:
    """Return as text the value of a record's first header with this *name*; only the first one counts."""
    named = F.filter("headers", lambda each: each["key"] == name)
    return F.get(named, F.lit(0))["value"].cast("string")


def place_in(name: str) -> tuple[Column, Column]:
    """Return partition and offset of the record that the header *name* names; null if it names none."""
    place = F.regexp_extract(text_in(name), _PLACE, 1)
    partition, offset = (F.split_part(place, F.lit(":"), F.lit(part)) for part in (1, 2))
    return partition.try_cast("int"), offset.try_cast("bigint")


def naming_requests(records: DataFrame) -> DataFrame:
    """
    Return the *records* that name a request, with its partition and offset in place of their own.

    Returns:
        the columns of *records*, and at_partition int and at_offset bigint: their own place, at_ms bigint: their time,
        by_worker boolean. All are as in `callbacks_of`.
    """
    partition, offset = place_in(REQUEST_HEADER)
    return (
        records.withColumnsRenamed({"partition": "at_partition", "offset": "at_offset"})
        .withColumns(
            {
                "partition": partition,
                "offset": offset,
                "at_ms": F.unix_millis("timestamp"),
                "by_worker": F.col("timestampType") == 0,
            }
        )
        .where(F.col("offset").isNotNull())
    )


def _with_key_hash(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    names = [column.split()[0] for column in CALLBACKS.split(", ")]
    for batch in batches:
        keys = [None if key is None else hash_of(key) for key in batch["key"].to_pylist()]
        columns = {name: batch[name] for name in names if name != "key_hash"} | {"key_hash": pa.array(keys, pa.int32())}
        yield pa.RecordBatch.from_arrays([columns[name] for name in names], names)
