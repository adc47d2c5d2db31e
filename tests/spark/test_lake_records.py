"""The records on the topics are the rows of the tables."""

from datetime import UTC, datetime
from types import SimpleNamespace

import pyarrow as pa
from lake_tables import SEAL_COLUMNS, delay_of, due_of
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType
from pyspark.testing import assertDataFrameEqual

from kafka_timers.core.digests import callback_hash_of
from kafka_timers.core.sums import hash_of_record
from kafka_timers.core.wire import FORMAT, SECOND_LIMIT, Condition, Copy, Future, Sealed
from kafka_timers.lake.folders import folders_of
from kafka_timers.lake.records import rejected_of, requests_of
from kafka_timers.lake.schema import COPY, DELAYS_S, REJECTED, REQUEST, REQUESTS
from kafka_timers.lake.sealed import opened, seals_of
from kafka_timers.v1.sealed_pb2 import Records

NOW = 1_800_000_000  # 2027-01-15 08:00:00
DAY_S = 86_400

RECORD = "key binary, value binary, partition int, offset bigint, timestamp timestamp"
HEADERS = "headers array<struct<key string, value binary>>, partition int, offset bigint, timestamp timestamp"

HEADERS_AT: dict[int, list[tuple[str, bytes | None]]] = {
    0: [],
    4: [("timer-asked-by", b"x"), ("none", None)],
    6: [('q"\\\n\u2028\x00', bytes(range(256))), ("", b""), ("same", b"1"), ("same", b"2" * 100_000)],
}


def at(millis: int) -> datetime:
    return datetime.fromtimestamp(millis / 1000, UTC).replace(tzinfo=None)


def future(**more: object) -> bytes:
    return Future(**({"callBackTopic": "t", "callBack": b"v"} | more)).SerializeToString()  # type: ignore[arg-type]


def row(offset: int, kind: str, delay: str, due: str, **more: object) -> tuple[object, ...]:
    told = {"partition": 0, "offset": offset, "appended_ms": NOW * 1000 + 999, "kind": kind, "delay": delay, "due": due}
    if "second" in more:
        told |= {"millis": 0, "topic": "t"}
    if kind == "request":
        told["callback"] = callback_hash_of(Future.FromString(more["value"]), more["second"])  # type: ignore[arg-type]
    return tuple((told | more).get(name) for name in REQUESTS.columns.names)


def test_requests_cancels_copies_and_refused_records_become_rows(spark: SparkSession) -> None:
    plain, cancel, bad = future(), Future(timerId="a", cancel=True).SerializeToString(), b"{}"
    named = future(timerId="a", millis=7, token="x")
    copy = future(timerId="a", copy=Copy(offset=2, appended=NOW - 9, decidedOffset=4, decided=NOW - 1))
    wanted = []
    records = []

    def add(key: bytes | None, value: bytes | None, kind: str, delay: str, due: str, **more: object) -> None:
        offset = len(records) * 2
        headers = HEADERS_AT.get(offset)
        appended_ms = NOW * 1000 + 999
        records.append((key, value, 0, offset, at(appended_ms), headers))
        digest = hash_of_record(
            0, SimpleNamespace(offset=offset, timestamp=appended_ms, key=key, value=value, headers=headers or ())
        )
        digest -= (digest >> 63) << 64
        kept = {"value": None if kind == "copy" else value, "key": key, "headers": headers, "digest": digest}
        wanted.append(row(offset, kind, delay, due, **kept, **more))

    for waits_s, delay, due in [
        (-10, "1h", "2027-01-15"),
        (3_600, "1h", "2027-01-15"),
        (3_601, "1d", "2027-01-15"),
        (DAY_S, "1d", "2027-01-16"),
        (DAY_S + 1, "32d", "2027-01-16"),
        (32 * DAY_S, "32d", "2027-02-16"),
        (32 * DAY_S + 1, "1y", "2027-02"),
        (366 * DAY_S, "1y", "2028-01"),
        (366 * DAY_S + 1, "more", "2028"),
    ]:
        add(b"%d" % (NOW + waits_s), plain, "request", delay, due, second=NOW + waits_s)
    add(b"%d" % (NOW + 5), named, "request", "1h", "2027-01-15", second=NOW + 5, millis=7, timer_id="a")
    move = future(timerId="a", condition=Condition.IF_PENDING, ifRequest="0:41")
    pending = {"timer_id": "a", "condition": "IF_PENDING"}
    add(b"%d" % (NOW + 5), move, "request", "1h", "2027-01-15", second=NOW + 5, expected=41, **pending)
    add(
        b"a",
        Future(timerId="a", cancel=True, condition=2).SerializeToString(),
        "cancel",
        "none",
        "2027-01-15",
        **pending,
    )
    # The key of a cancel is not read.
    add(b"a", cancel, "cancel", "none", "2027-01-15", timer_id="a")
    about = {"original": 2, "original_s": NOW - 9, "decided": 4, "decided_s": NOW - 1}
    add(b"%d" % (NOW + DAY_S), copy, "copy", "copy", "2027-01-16", second=NOW + DAY_S, timer_id="a", **about)
    add(b"soon", plain, "refused", "none", "2027-01-15", reason="key-not-a-second")
    add(b"%d" % NOW, bad, "refused", "none", "2027-01-15", reason="value-not-a-future")
    add(b"%d" % NOW, None, "refused", "none", "2027-01-15", reason="value-missing")
    add(None, plain, "refused", "none", "2027-01-15", reason="key-missing")
    add(b"soon", future(timerId="a", copy=Copy()), "refused", "none", "2027-01-15", reason="key-not-a-second")

    rows = requests_of(spark.createDataFrame(records, f"{RECORD}, headers array<struct<key string, value binary>>"), 1)
    assert rows.columns == REQUESTS.columns.names
    nullable = StructType.fromDDL(
        ", ".join(f"`{each.name}` {each.dataType.simpleString()}" for each in REQUESTS.columns)
    )
    assertDataFrameEqual(rows, spark.createDataFrame(wanted, nullable))


def test_folders_of_a_batch_are_those_that_spark_computes(spark: SparkSession) -> None:
    waits = [-NOW, -1, 0, *(longest_s + more for longest_s in DELAYS_S.values() for more in (-1, 0, 1)), 2**36]
    moments = [0, 999, 1_000, DAY_S * 1_000 - 1, NOW * 1_000 + 500]
    # The least time that Kafka knows, and the last second that a request may ask for.
    moments.append(-1)
    rows = [
        (kind, None if wait is None else max(0, min(ms // 1000 + wait, SECOND_LIMIT - 1)), ms)
        for ms in moments
        for kind, wait in [*(("request", each) for each in waits), ("copy", DAY_S), ("cancel", None), ("refused", None)]
    ]
    told = spark.createDataFrame(rows, "kind string, second bigint, appended_ms bigint")
    delay = F.when(F.col("kind") == REQUEST, delay_of(F.col("second"), F.col("appended_ms")))
    delay = delay.when(F.col("kind") == COPY, COPY).otherwise("none")
    due = due_of(F.coalesce("second", F.floor(F.col("appended_ms") / 1000)), delay)
    columns = zip(*told.withColumns({"delay": delay, "due": due}).collect(), strict=True)
    kind, second, appended_ms, *wanted = (list(column) for column in columns)
    found = folders_of(pa.array(kind), pa.array(second, pa.int64()), pa.array(appended_ms, pa.int64()))
    assert [each.to_pylist() for each in found] == wanted
    assert {len(each) for each in wanted[1]} == {4, 7, 10}


def test_seals_become_rows_and_other_records_are_skipped(spark: SparkSession) -> None:
    whole = Sealed(
        partition=1,
        first_ms=NOW * 1000,
        end_ms=(NOW + 1 + 1) * 1000,
        due=3,
        fired=2,
        rejected=1,
        forwarded=1,
        late_arrivals=4,
        cancelled=5,
    )
    whole.MergeFrom(Sealed(moved=6, pending=7, lateness_p50_ms=8, lateness_p99_ms=9, lateness_max_ms=10, worker="w"))
    whole.MergeFrom(
        Sealed(
            fired_digest=2**64 - 2,
            format=FORMAT,
            fence=11,
            restore_from=12,
            partitions=13,
            horizon_s=14,
            horizon_from=15,
        )
    )
    part = Sealed(partition=1, first_ms=NOW * 1000 + 250, end_ms=(NOW + DAY_S) * 1000, fired_digest=1, through=b"")
    part.MergeFrom(Sealed(read_from=2, previous=b"x" * 32, near=Records(count=4, digest=2**63), cancels=Records()))
    values = [whole.SerializeToString(), b"{}", None, b"", part.SerializeToString()]
    records = [(None, value, 1, offset, at(NOW * 1000)) for offset, value in enumerate(values)]
    rows = opened(seals_of(spark.createDataFrame(records, RECORD)))
    assert rows.columns == SEAL_COLUMNS.names
    first, second = (row.asDict() for row in rows.orderBy("offset").collect())
    nothing = dict.fromkeys(("through", "read_from", "near", "far", "cancels", "previous"))
    nothing |= dict.fromkeys(("near_digest", "far_digest", "cancels_digest"))
    assert first == nothing | {
        "partition": 1,
        "offset": 0,
        "appended_ms": NOW * 1000,
        "first": NOW,
        "last": NOW + 1,
        "first_ms": NOW * 1000,
        "end_ms": (NOW + 2) * 1000,
        "format": FORMAT,
        "day": "2027-01-15",
        "due": 3,
        "fired": 2,
        "rejected": 1,
        "forwarded": 1,
        "late_arrivals": 4,
        "cancelled": 5,
        "moved": 6,
        "pending": 7,
        "lateness_p50_ms": 8,
        "lateness_p99_ms": 9,
        "lateness_max_ms": 10,
        "worker": "w",
        "digest": -2,
        "fence": 11,
        "restore_from": 12,
        "partitions": 13,
        "horizon_s": 14,
        "horizon_from": 15,
        "value": values[0],
    }
    said = {name: value for name, value in second.items() if value not in (0, "")}
    assert said == {
        "partition": 1,
        "offset": 4,
        "appended_ms": NOW * 1000,
        "first": NOW,
        "last": NOW + DAY_S - 1,
        "first_ms": NOW * 1000 + 250,
        "end_ms": (NOW + DAY_S) * 1000,
        "day": "2027-01-16",
        "digest": 1,
        "through": b"",
        "read_from": 2,
        "previous": b"x" * 32,
        "near": 4,
        "near_digest": -(2**63),
        "value": values[4],
    }


def test_rejected_records_become_rows_of_their_headers(spark: SparkSession) -> None:
    told = [("reason", b"topic-unknown"), ("topic", b"timer-request"), ("partition", b"3"), ("offset", b"5000000000")]
    headers = [(f"timer-rejected-{name}", value) for name, value in told]
    odd = [("timer-rejected-partition", b"x"), ("timer-rejected-reason", b"\xff"), ("timer-rejected-topic", None)]
    by_door = [
        *[("timer-rejected-reason", b"topic-unknown"), ("timer-rejected-topic", b"schedules")],
        *[("timer-rejected-partition", b"1"), ("timer-rejected-offset", b"2"), ("timer-rejected-door", b"etf1")],
    ]
    records = [
        ([*headers, ("timer-rejected-reason", b"second"), ("more", None)], 0, 7, at(NOW * 1000)),
        (by_door, 0, 11, at(NOW * 1000)),
        ([*by_door, ("timer-rejected-request", b"5:5000000000")], 0, 12, at(NOW * 1000)),
        (odd, 0, 8, at(NOW * 1000)),
        ([], 0, 9, at(NOW * 1000)),
        (None, 0, 10, at(NOW * 1000)),
    ]
    day = "2027-01-15"
    wanted = [
        (0, 7, NOW * 1000, "topic-unknown", "timer-request", 3, 5_000_000_000, day),
        (0, 11, NOW * 1000, "topic-unknown", "schedules", 1, 2, day),
        (0, 12, NOW * 1000, "topic-unknown", "timer-request", 5, 5_000_000_000, day),
        (0, 8, NOW * 1000, "\N{REPLACEMENT CHARACTER}", None, None, None, day),
        (0, 9, NOW * 1000, None, None, None, None, day),
        (0, 10, NOW * 1000, None, None, None, None, day),
    ]
    rows = rejected_of(spark.createDataFrame(records, HEADERS), "timer-request")
    assert rows.columns == REJECTED.columns.names
    assertDataFrameEqual(rows, spark.createDataFrame(wanted, REJECTED.columns))
