"""
Turn records of Kafka into rows of the tables, one row for each record.

The worker's own code judges the records on `timer-request`, so a record that no worker takes for a timer is none here
either. A whole batch is judged at once if all its records are usual; the result is the same. Held by
test_batches_are_judged_as_their_records_are.
"""

import json
from base64 import b64decode
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_type

from kafka_timers.core.callbacks import Shown
from kafka_timers.core.digests import callback_hash_of, plain_hashes, signed, tombstone_hash
from kafka_timers.core.refused import Reason
from kafka_timers.core.routing import hash_of
from kafka_timers.core.rows import futures_in
from kafka_timers.core.sums import hash_of_record
from kafka_timers.core.verdicts import Cancel, Repeats, SendOn, dues_of, expected_in, judged, screened
from kafka_timers.core.wire import Condition, Future
from kafka_timers.lake.folders import folders_of
from kafka_timers.lake.proof import digest_without_headers
from kafka_timers.lake.schema import (
    CANCEL,
    COPY,
    FOREIGN,
    FORWARDED,
    HEADERS,
    KEPT,
    REFUSED,
    REQUEST,
    REQUESTS,
    day_of,
)


def requests_of(records: DataFrame, partitions: int) -> DataFrame:
    """
    Return the rows of `requests` for records of timer-request.

    Args:
        records: records from Spark's Kafka source: key binary, value binary, partition int, offset bigint, timestamp
            and headers array<struct<key string, value binary>>.
        partitions: number of partitions of timer-request, by which workers judge the partition of a timer id.
    """
    own = records.select("partition", "offset", _appended_ms(), "key", "value", "headers")
    # Headers go to Python as JSON: for each row, Spark measures the whole batch of a nested column. Python hashes the
    # records that have some, because Spark compiles nothing beside an expression over an array.
    plain, packed = F.col("headers").isNull(), F.to_json("headers")
    rows = own.withColumns({"digest": F.when(plain, digest_without_headers()), "headers": F.when(~plain, packed)})
    return rows.mapInArrow(partial(_judged_batches, partitions=partitions), REQUESTS.columns)


def rejected_of(records: DataFrame, requests: str) -> DataFrame:
    """
    Return the rows of `rejected` for records of timer-rejected, which are as in `requests_of`.

    A column is null if its header is missing. *requests* is the name of timer-request.
    """

    def header(name: str) -> Column:
        # The first header of a name counts. Another writer to the topic may have written bytes that are not text.
        values = F.filter("headers", lambda each: each["key"] == f"timer-rejected-{name}")
        return F.make_valid_utf8(F.try_element_at(values, F.lit(1))["value"].cast("string"))

    # If a request that a door made was refused when it was due, that request counts as the source.
    made = header("request")

    def place(name: str, part: int) -> Column:
        return F.coalesce(F.split_part(made, F.lit(":"), F.lit(part)), header(name))

    rows = records.select(
        "partition",
        "offset",
        _appended_ms(),
        header("reason").alias("reason"),
        F.when(made.isNull(), header("topic")).otherwise(F.lit(requests)).alias("source_topic"),
        place("partition", 1).try_cast("int").alias("source_partition"),
        place("offset", 2).try_cast("bigint").alias("source_offset"),
    )
    return rows.withColumn("day", day_of(F.floor(F.col("appended_ms") / 1000)))


def kept_of(records: DataFrame) -> DataFrame:
    """Return the rows of `schedules` or `planned` for records of their topic, which are as in `requests_of`."""
    rows = records.select("partition", "offset", _appended_ms(), F.unix_timestamp().alias("landed_s"), "key", "value")
    return rows.withColumn("day", day_of(F.floor(F.col("appended_ms") / 1000)))


def _appended_ms() -> Column:
    return F.unix_millis("timestamp").alias("appended_ms")


# --- timer-request ---------------------------------------------------------------------------------------------------


class _Asked(NamedTuple):
    """A record in the form that `judged` takes."""

    key: bytes | None
    value: bytes | None
    offset: int
    timestamp: int = -1
    headers: Sequence[tuple[str, bytes | None]] = ()


class _Judged(NamedTuple):
    """The columns of `requests` that follow from key and value, in their order."""

    kind: str
    second: int | None = None
    millis: int | None = None
    topic: str | None = None
    timer_id: str | None = None
    reason: str | None = None
    original: int | None = None
    original_s: int | None = None
    decided: int | None = None
    decided_s: int | None = None
    condition: str | None = None
    expected: int | None = None
    sent_from: dict[str, int] | None = None
    callback: int | None = None
    asks: dict[str, Any] | None = None


_HEADERS_TYPE = to_arrow_type(HEADERS)
_JUDGED_TYPES = {name: to_arrow_type(REQUESTS.columns[name].dataType) for name in _Judged._fields}


def _judged_batches(batches: Iterable[pa.RecordBatch], partitions: int) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        columns = judged_at_once(batch, partitions) or judged_one_by_one(batch, partitions)
        value, is_copy = batch["value"], pc.equal(columns[0], COPY)
        if pc.any(is_copy).as_py():
            value = pc.if_else(is_copy, None, value)
        folders = folders_of(columns[0], columns[1], batch["appended_ms"])
        columns = [batch["partition"], batch["offset"], batch["appended_ms"], *columns, value]
        columns += [batch["key"], *_with_headers(batch), pa.nulls(len(batch), pa.int64()), *folders]
        yield pa.RecordBatch.from_arrays(columns, REQUESTS.columns.names)


def _with_headers(batch: pa.RecordBatch) -> tuple[pa.Array, pa.Array]:
    """Return the columns headers and digest of records whose headers are JSON."""
    headers = batch["headers"]
    if headers.null_count == len(batch):
        return pa.nulls(len(batch), _HEADERS_TYPE), batch["digest"]
    unpacked = [None if each is None else _unpacked(each) for each in headers.to_pylist()]
    fields = (batch[name].to_pylist() for name in ("digest", "partition", "key", "value", "offset", "appended_ms"))
    digests = [
        digest if named is None else signed(hash_of_record(number, _Asked(key, value, offset, appended_ms, named)))
        for named, digest, number, key, value, offset, appended_ms in zip(unpacked, *fields, strict=True)
    ]
    return pa.array(unpacked, _HEADERS_TYPE), pa.array(digests, pa.int64())


def _unpacked(headers: str) -> list[tuple[str, bytes | None]]:
    """Return name and value of each header in the JSON of Spark, which has bytes in Base64 and leaves out nulls."""
    pairs = ((each["key"], each.get("value")) for each in json.loads(headers))
    return [(name, None if value is None else b64decode(value)) for name, value in pairs]


def judged_one_by_one(batch: pa.RecordBatch, partitions: int) -> list[pa.Array]:
    """Return the columns of `_Judged` for records of timer-request."""
    fields = (batch[name].to_pylist() for name in ("partition", "key", "value", "offset"))
    rows = [_judged(_Asked(*asked), number, partitions) for number, *asked in zip(*fields, strict=True)]
    columns = zip(*rows, strict=True) if rows else [()] * len(_JUDGED_TYPES)
    return [pa.array(column, kind) for column, kind in zip(columns, _JUDGED_TYPES.values(), strict=True)]


def judged_at_once(batch: pa.RecordBatch, partitions: int) -> list[pa.Array] | None:
    """Return the same as `judged_one_by_one`, more than twice as fast; None if *batch* has an unusual record."""
    key, value, number = (batch[name] for name in ("key", "value", "partition"))
    if key.null_count or value.null_count or len(number.unique()) != 1:
        return None
    # Many requests of a fetch are due in the same seconds.
    keys = key.dictionary_encode()
    dues = dues_of(keys.dictionary.to_pylist())
    passed = screened(value.to_pylist(), number[0].as_py(), partitions)
    if dues is None or passed is None or passed.extras.HasField("cancel"):
        return None
    futures, extras = passed.futures or futures_in(passed.framed), passed.extras
    second = pa.array([due_ms // 1000 for due_ms in dues.values()], pa.int64()).take(keys.indices)
    seconds = second.to_pylist()
    if extras.HasField("callBackRecord") or extras.headers:
        hashes = pa.array(map(callback_hash_of, futures, seconds), pa.int64())
    else:
        plain = plain_hashes(futures, seconds, passed.ids, have_tokens=extras.HasField("token"))
        hashes = pa.array(plain, pa.uint64()).view(pa.int64())
    topics: Iterable[str]
    if extras.HasField("callBackRecord"):
        topics = [Shown.of(future).topic for future in futures]
    elif len(passed.topics) == 1:
        topics = [*passed.topics] * len(futures)
    else:
        topics = map(attrgetter("callBackTopic"), futures)
    columns = {
        "kind": pa.repeat(REQUEST, len(batch)),
        "second": second,
        "callback": hashes,
        "millis": pa.repeat(pa.scalar(0, pa.int32()), len(batch)),
        "topic": pa.array(topics, pa.string()),
    }
    if extras.HasField("timerId"):
        columns["timer_id"] = pa.array([future.timerId or None for future in futures], pa.string())
    if any(map(extras.HasField, ("tombstoneTopic", "replyTopic", "callBackRecord"))):
        columns["asks"] = pa.array(map(_asks_of, futures), _JUDGED_TYPES["asks"])
    return [columns.get(name, pa.nulls(len(batch), kind)) for name, kind in _JUDGED_TYPES.items()]


def _judged(record: _Asked, number: int, partitions: int) -> _Judged:
    verdict = judged(record, number, partitions)
    if isinstance(verdict, SendOn):
        return _Judged(FOREIGN)
    if isinstance(verdict, Reason):
        return _Judged(REFUSED, reason=verdict.value)
    if isinstance(verdict, Repeats):
        return _Judged(KEPT)
    future = verdict.future
    timer_id, on_condition = future.timerId or None, _condition_of(future, number)
    if future.HasField("forwarded"):
        first = future.forwarded
        places = {"partition": first.fromPartition, "offset": first.fromOffset, "appended_ms": first.appendedMs}
        on_condition["sent_from"] = places
    if isinstance(verdict, Cancel):
        return _Judged(CANCEL, timer_id=timer_id, asks=_asks_of(future), **on_condition)
    second, millis = divmod(verdict.due_ms, 1000)
    asked = (second, millis, Shown.of(future).topic, timer_id, None)
    if not future.HasField("copy"):
        made = _Judged(REQUEST, *asked, **on_condition)
        return made._replace(callback=callback_hash_of(future, second), asks=_asks_of(future))
    copy = future.copy
    return _Judged(COPY, *asked, copy.offset, copy.appended, copy.decidedOffset, copy.decided)


def _asks_of(future: Future) -> dict[str, Any] | None:
    asks: dict[str, Any] = {}
    if future.HasField("callBackRecord"):
        record = future.callBackRecord
        if record.HasField("partition"):
            asks["partition"] = record.partition
        elif record.HasField("partitionKey"):
            asks["hashed"] = hash_of(record.partitionKey)
    if future.tombstoneTopic:
        asks["tombstone_topic"] = future.tombstoneTopic
        asks["tombstone"] = tombstone_hash(future.tombstoneKey.encode())
    if future.replyTopic and future.timerId:
        asks["reply_topic"] = future.replyTopic
    return asks or None


def _condition_of(future: Future, number: int) -> dict[str, Any]:
    if not future.condition:
        return {"condition": FORWARDED} if future.HasField("forwarded") and not future.cancel else {}
    expected = expected_in(future, number) if future.ifRequest else None
    return {"condition": Condition.Name(future.condition), "expected": expected}
