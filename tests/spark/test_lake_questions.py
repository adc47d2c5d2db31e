"""Questions to the lake, each with the SQL that answers it, on a small lake of real tables."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from lake_rows import RECORD, of, plan_of, seal
from pyspark.sql import Row, SparkSession

import kafka_timers.lake
from kafka_timers.core.routing import partition_of
from kafka_timers.core.wire import Copy, Future, Header
from kafka_timers.errors import LakeError
from kafka_timers.lake import lookup, tables
from kafka_timers.lake.lookup import Only
from kafka_timers.lake.query import named_in, open_views, rows_of, select
from kafka_timers.lake.records import requests_of
from kafka_timers.lake.schema import AUDIT_FINDINGS, AUDIT_SECONDS, BUCKETS, REJECTED, REQUESTS, SEALS, Table
from kafka_timers.settings import LakeSettings

# 2030-01-01; all times here are seconds from there.
DAY = 1_893_456_000


def callback(topic: str, key: str, text: bytes, timer_id: str = "", **more: Any) -> Future:
    return Future(callBackTopic=topic, callBackKey=key, callBack=text, timerId=timer_id, **more)


TENANT = [Header(key="tenant", value=b"acme"), Header(key="tenant", value=b"other"), Header(key="raw", value=b"\xff")]
PARKED = callback("invoices", "customer-9", b"{}", "invoice")
# Append, due time, content, and the headers of the record.
RECORDS: list[tuple[int, str, Future, dict[str, bytes]]] = [
    (10, "100", callback("orders", "customer-7", b'{"order": 1}'), {}),
    (11, "200", callback("orders", "customer-8", b"\xff\0", headers=TENANT), {}),
    (12, "3700", callback("reminders", "", b"call", token="t-1", tombstoneTopic="state"), {}),
    (13, "9000", callback("orders", "customer-7", b"later", "order-7", headers=TENANT[:1]), {}),
    (14, "9100", callback("orders", "customer-8", b"sold", "order-8"), {}),
    (15, "order-8", Future(timerId="order-8", cancel=True), {"timer-asked-by": "Zoë".encode()}),
    (16, "20000", PARKED, {}),
    (17, "300", callback("nowhere", "customer-9", b"lost"), {"trace": b"abc"}),
    (18, "soon", callback("orders", "customer-9", b"no time"), {}),
    (30, "9500", callback("orders", "customer-7", b"moved", "order-7"), {}),
]


@pytest.fixture(scope="module", autouse=True)
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = f"file:{tmp_path_factory.mktemp('lake')}"
    promoted = Future.FromString(PARKED.SerializeToString())
    promoted.copy.CopyFrom(Copy(offset=6, appended=DAY + 16, decidedOffset=9, decided=DAY + 9_900))
    records = [*RECORDS, (9_900, "20000", promoted, {})]
    rows = [
        {
            "key": key.encode() if not key.isdecimal() else b"%d" % (DAY + int(key)),
            "value": asked.SerializeToString(),
            "partition": 0,
            "offset": offset,
            "timestamp": datetime.fromtimestamp(DAY + at, UTC),
            "headers": [{"key": name, "value": value} for name, value in headers.items()] or None,
        }
        for offset, (at, key, asked, headers) in enumerate(records)
    ]
    tables.append(requests_of(spark.createDataFrame(rows, RECORD), 1), root, REQUESTS)
    seals = [
        seal_at(100, [0], late_ms=40),
        seal_at(200, [1], late_ms=900),
        seal_at(300, [], rejected=2, late_ms=20),
        seal_at(3_700, [2], late_ms=70),
    ]
    put(spark, root, SEALS, *seals)
    refused = {"partition": 0, "source_topic": "timer-request", "source_partition": 0, "day": "2030-01-01"}
    put(
        spark,
        root,
        REJECTED,
        Row(**refused, offset=0, appended_ms=(DAY + 18) * 1000, reason="key-malformed", source_offset=8),
        Row(**refused, offset=1, appended_ms=(DAY + 300) * 1000, reason="topic-unknown", source_offset=7),
    )
    closed = {"horizon_s": 10_000, "promoted": 1, "closed_s": DAY + 9_901}
    put(spark, root, BUCKETS, Row(first=DAY + 18_000, last=DAY + 21_599, **closed))
    audit = {"audited_s": DAY + 4_000, "partition": 0, "end_ms": None, "late": 0, "ok": True, "day": "2030-01-01"}
    figures = {name: 1 for name in ("due", "fired", "digest") for name in (name, f"expected_{name}")}
    figures |= {name: 0 for name in ("rejected", "forwarded") for name in (name, f"expected_{name}")}
    figures |= {"fence": 11, "lateness_p99_ms": 9, "lateness_max_ms": 9}
    put(spark, root, AUDIT_SECONDS, Row(**audit | figures, first=DAY + 100, last=DAY + 100))
    put(spark, root, AUDIT_SECONDS, Row(**audit | figures | {"ok": False}, first=DAY + 200, last=DAY + 200))
    found = {"audited_s": DAY + 4_000, "partition": 0, "offset": 1, "second": DAY + 200, "detail": "no callback"}
    put(spark, root, AUDIT_FINDINGS, Row(kind="missing", **found))

    names = kafka_timers.lake.views(spark, root)
    yield root
    for name in names:
        spark.catalog.dropTempView(name)


def seal_at(second: int, fired: list[int], *, late_ms: int, rejected: int = 0) -> Row:
    appended_ms = (DAY + second) * 1000 + late_ms
    told = {"appended_ms": appended_ms, "day": "2030-01-01", "worker": "w"}
    return seal(DAY + second, 10, fired, rejected, horizon_s=10_000, **told)


def put(spark: SparkSession, root: str, table: Table, *rows: Row) -> None:
    tables.append(of(spark, rows, table.columns), root, table)


QUESTIONS: dict[str, tuple[str, list[tuple[Any, ...]]]] = {
    "what waits for an id?": (
        "select offset, text from pending where timer_id = 'order-7'",
        [(9, "moved")],
    ),
    "what fires for customer 7?": (
        "select due_at, text from pending where callback_key = 'customer-7'",
        [("2030-01-01 02:38:20", "moved")],
    ),
    "which topics have most to fire?": (
        "select topic, count(*) as n from pending group by topic order by n desc, topic",
        [("invoices", 1), ("orders", 1)],
    ),
    "what was cancelled, and how long before?": (
        "select timer_id, second - unix_seconds(taken_at) from cancelled where taken_kind = 'cancel'",
        [("order-8", 9_085)],
    ),
    "who cancelled it?": (
        "select taken_asked_by from cancelled where timer_id = 'order-8'",
        [("Zoë",)],
    ),
    "how late were we, hour by hour?": (
        "select hour, sum(callbacks), max(max_ms) from lateness group by hour order by hour",
        [("2030-01-01 00:00:00", 2, 900), ("2030-01-01 01:00:00", 1, 70)],
    ),
    "how late were we for orders that day?": (
        "select sum(callbacks), max(max_ms) from lateness where topic = 'orders' and date(hour) = '2030-01-01'",
        [(2, 900)],
    ),
    "why were requests refused?": (
        "select reason, count(*) from rejected group by reason order by reason",
        [("key-malformed", 1), ("topic-unknown", 1)],
    ),
    "who was refused, and what was in it?": (
        "select r.reason, q.callback_key, q.text, q.record_key from rejected r join requests q "
        "on q.partition = r.source_partition and q.offset = r.source_offset order by q.offset",
        [("topic-unknown", "customer-9", "lost", str(DAY + 300)), ("key-malformed", "customer-9", "no time", "soon")],
    ),
    "how long were timers parked?": (
        "select original - offset, second - original_s from requests where kind = 'copy'",
        [(-4, 19_984)],
    ),
    "what became of one id?": (
        "select offset, kind, second from requests where timer_id = 'order-7' order by offset",
        [(3, "request", DAY + 9_000), (9, "request", DAY + 9_500)],
    ),
    "which callbacks say that?": (
        "select offset, callback_value from fired where text like '%order%' or text is null",
        [(0, b'{"order": 1}'), (1, b"\xff\0")],
    ),
    "which are of a tenant, or have a token?": (
        "select offset, callback_headers['raw'], token, tombstone from fired "
        "where callback_headers['tenant'] = 'acme' or token is not null order by offset",
        [(1, b"\xff", None, None), (2, None, "t-1", "state")],
    ),
    "which seconds did not pass the audit?": (
        "select last_at from audit_seconds where not ok",
        [("2030-01-01 00:03:20",)],
    ),
    "has an audit of this month found anything?": (
        "select kind, count(*) from audit_findings where date_trunc('MONTH', audited_at) = '2030-01-01' group by kind",
        [("missing", 1)],
    ),
    "how far is promotion?": (
        "select max(last_at), sum(promoted) from buckets",
        [("2030-01-01 05:59:59", 1)],
    ),
}


def test_sixteen_questions_are_answered(spark: SparkSession) -> None:
    views = ("pending", "fired", "cancelled")
    # Each question by itself would compute them anew.
    for view in views:
        spark.catalog.cacheTable(view)
    try:
        asked = {question: rows_of(select(spark, query)) for question, (query, _) in QUESTIONS.items()}
    finally:
        for view in views:
            spark.catalog.uncacheTable(view)
    told = {question: [tuple(row.values()) for row in rows] for question, rows in asked.items()}
    assert told == {question: rows for question, (_, rows) in QUESTIONS.items()}
    assert len(told) == 16


def test_callbacks_are_parsed_only_for_queries_that_use_them(spark: SparkSession) -> None:
    def planned(query: str) -> str:
        return plan_of(spark.sql(query))

    for view in ("requests", "pending", "fired", "cancelled"):
        counted = planned(f"select count(*), max(second) from {view} where topic = 'orders'")
        assert "EvalPython" not in counted, view
        assert "value:binary" not in counted, view
        assert "EvalPython" in planned(f"select text from {view}"), view


def test_timers_of_one_id_or_key_are_shown_as_among_all(lake: str, spark: SparkSession) -> None:
    views = ("pending", "fired", "cancelled", "ignored")
    among_all = {view: rows_of(spark.table(view)) for view in views}
    alone = spark.newSession()
    for timer_id, key in [("order-7", None), ("invoice", None), (None, "customer-7"), ("order-7", "customer-8")]:
        assert open_views(alone, LakeSettings(lake=lake), views, Only(timer_id, key)) == [*views]
        shown = {view: rows_of(alone.table(view)) for view in views}
        assert shown == {
            view: [row for row in rows if timer_id in (None, row["timer_id"]) and key in (None, row["callback_key"])]
            for view, rows in among_all.items()
        }
        assert any(shown.values()) == (key != "customer-8")
        # The records are in the plan, so nothing is read from the lake.
        assert not any("Parquet" in plan_of(alone.table(view)) for view in views)


@pytest.mark.parametrize("listed_max", [100, 1])
def test_records_at_the_same_offsets_of_other_partitions_are_not_meant(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, listed_max: int
) -> None:
    monkeypatch.setattr(lookup, "_LISTED_MAX", listed_max)
    ids = ((name, partition_of(name, 2)) for name in map(str, range(99)))
    asked = [
        (number, offset, key, next(name for name, at in ids if at == number))
        for number, offset, key in [
            (0, 5, "customer-7"),
            (1, 7, "customer-7"),
            (0, 7, "customer-8"),
            (1, 5, "customer-8"),
        ]
    ]
    rows = [
        {
            "key": b"%d" % (DAY + 100),
            "value": callback("orders", key, b"", timer_id).SerializeToString(),
            "partition": number,
            "offset": offset,
            "timestamp": datetime.fromtimestamp(DAY, UTC),
            "headers": None,
        }
        for number, offset, key, timer_id in asked
    ]
    requests = requests_of(spark.createDataFrame([Row(**row) for row in rows], RECORD), 2)
    assert {row["kind"] for row in requests.collect()} == {"request"}
    found = lookup.records_of(requests, Only(key="customer-7"))
    assert sorted((row["partition"], row["offset"]) for row in found) == [(0, 5), (1, 7)]


def test_more_records_than_one_process_can_hold_are_refused(
    lake: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup, "_RECORDS_MAX", 1)
    with pytest.raises(LakeError, match="more than 1 records concern these timers: ask for all timers"):
        open_views(spark.newSession(), LakeSettings(lake=lake), ["fired"], Only(key="customer-7"))


def test_a_query_gets_the_views_that_it_names() -> None:
    assert named_in("with a as (SELECT * FROM Pending) select a.* from a, audit_seconds where 'fired_' = ''") == [
        "pending",
        "audit_seconds",
    ]
