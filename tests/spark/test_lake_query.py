"""The answers of the lake in SQL, and the published records when many timers are changed at once."""

from datetime import UTC, datetime

import pytest
from lake_rows import REJECTED, cancel, copy, of, refused, request, seal
from lake_tables import SEAL_COLUMNS
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import expr

from kafka_timers.core.wire import Future
from kafka_timers.errors import LakeError
from kafka_timers.lake.covering import intervals_of, outcomes_of
from kafka_timers.lake.payloads import CARRIED, CONTENTS
from kafka_timers.lake.query import cancelled, cancels_of, chosen, fired, moves_of, rows_of, select, waiting
from kafka_timers.lake.schema import REQUESTS
from kafka_timers.lake.unfired import pending
from kafka_timers.operate.documents import row_document

FAR = request(20, 1, 6_000, "far")
RECORDS = [
    request(0, 1, 50),  # fired
    request(1, 2, 51, "cancelled"),
    cancel(2, 3, "cancelled"),
    request(3, 4, 52, "moved"),
    request(4, 5, 200, "moved"),  # waits
    request(5, 6, 53, "too late"),  # fired
    cancel(6, 53, "too late"),
    request(7, 7, 54),  # rejected
    refused(8, 8, "key-missing"),
    request(9, 9, 300, "back"),
    cancel(10, 10, "back"),
    request(11, 11, 55),  # read behind the fence, and waits for another scan
    FAR,  # waits in the lake
    request(21, 2, 5_000, "far too"),
    copy(22, 90, request(21, 2, 5_000, "far too"), 22),  # waits at a worker
    request(23, 3, 5_000, "far and back"),
    cancel(24, 4, "far and back"),
    request(25, 12, 300, partition=1),  # nothing is sealed there
    request(26, 12, 9_000, partition=1),
]
SEALED = [seal(50, 11, [0]), seal(52, 11), seal(60, 11, [5], rejected=1)]


@pytest.fixture(scope="module")
def outcomes(spark: SparkSession) -> DataFrame:
    rejected = of(spark, [(0, 7, "topic-unknown")], REJECTED)
    return outcomes_of(
        requests_of(spark), intervals_of(of(spark, SEALED, SEAL_COLUMNS)), rejected, also=CARRIED
    ).persist()


def requests_of(spark: SparkSession) -> DataFrame:
    return of(spark, RECORDS, REQUESTS.columns)


def at(second: float) -> str:
    """Return a moment as SQL prints it."""
    text = datetime.fromtimestamp(second, UTC).isoformat(" ", "milliseconds").removesuffix("+00:00")
    return text.rstrip("0").rstrip(".") if "." in text else text


def test_pending_timers_are_listed(spark: SparkSession) -> None:
    waits = waiting(pending(requests_of(spark), of(spark, SEALED, SEAL_COLUMNS), CARRIED))
    rows = rows_of(waits.orderBy("partition", "offset"))
    assert [(row["partition"], row["offset"], row["far"]) for row in rows] == [
        (0, 4, False),
        (0, 11, False),
        (0, 20, True),
        (0, 21, True),
        (1, 25, False),
        (1, 26, False),
    ]
    assert {name: rows[2][name] for name in rows[2] if name not in CONTENTS} == {
        "partition": 0,
        "offset": 20,
        "appended_at": at(1),
        "second": 6_000,
        "due_at": at(6_000),
        "millis": 0,
        "topic": "t",
        "timer_id": "far",
        "far": True,
    }


def test_fired_timers_are_listed(outcomes: DataFrame) -> None:
    rows = rows_of(fired(outcomes).orderBy("offset"))
    assert [(row["offset"], row["sealed_in"], row["sealed_at"], row["late"]) for row in rows] == [
        (0, 50, at(50), False),
        (5, 60, at(60), False),
    ]


def test_withdrawn_timers_are_listed_with_the_record_that_withdrew_them(
    spark: SparkSession, outcomes: DataFrame
) -> None:
    rows = rows_of(cancelled(outcomes, requests_of(spark)).orderBy("offset"))
    assert [(row["offset"], row["taken_by"], row["taken_kind"], row["taken_at"]) for row in rows] == [
        (1, 2, "cancel", at(3)),
        (3, 4, "request", at(5)),
        (9, 10, "cancel", at(10)),
        (23, 24, "cancel", at(4)),
    ]


# --- asking for many --------------------------------------------------------------------------------------------------


def test_a_condition_finds_pending_timers_and_names_those_that_it_cannot_reach(spark: SparkSession) -> None:
    """A cancel is about the last request of its id: another one may have come when the first was due already."""
    records = [request(0, 1, 50, "a"), request(1, 51, 500, "a"), request(2, 1, 60), request(3, 1, 70, "b")]
    records += [request(4, 1, 80, "b", partition=1)]
    requests = of(spark, records, REQUESTS.columns)
    waits = waiting(pending(requests, of(spark, [], SEAL_COLUMNS), CARRIED))
    meant = chosen(waits, requests, "second < 100 and topic = 't'")
    assert {(row.partition, row.offset): row.against for row in meant.collect()} == {
        (0, 0): "a later request of its id came when it was due already",
        (0, 2): "it has no timer id",
        (0, 3): None,
        (1, 4): None,
    }
    assert {bytes(row.value) for row in meant.collect()} == {b"v"}


@pytest.mark.parametrize("where", ["nonsense = 1", "second <", "second", "1 = 1; drop table x"])
def test_an_invalid_condition_is_refused(spark: SparkSession, where: str) -> None:
    timers = spark.createDataFrame([(1,)], "second bigint")
    with pytest.raises(LakeError, match="is no condition on pending timers"):
        chosen(timers, timers, where)


TIMERS = [
    Row(partition=3, timer_id=each, second=7, value=b"value", condition=None) for each in ("a", "é" * 100, "x" * 20_000)
]


TIMER = "partition int, timer_id string, second bigint, value binary, condition string"


def test_cancels_are_the_same_as_those_of_the_client(spark: SparkSession) -> None:
    for row, timer in zip(cancels_of(spark.createDataFrame(TIMERS, TIMER)).collect(), TIMERS, strict=True):
        assert (row.partition, bytes(row.key).decode()) == (3, timer.timer_id)
        assert Future.FromString(row.value) == Future(timerId=timer.timer_id, cancel=True)


@pytest.mark.parametrize(("second", "key"), [("20", b"20"), ("second - 2", b"5")])
def test_moves_have_all_but_the_second_of_their_requests(spark: SparkSession, second: str, key: bytes) -> None:
    for row in moves_of(spark.createDataFrame(TIMERS, TIMER), expr(second)).collect():
        assert (row.partition, bytes(row.key), bytes(row.value)) == (3, key, b"value")


def test_a_move_of_a_request_with_a_condition_has_none(spark: SparkSession) -> None:
    """With IF_ABSENT it would mean nothing, since its timer is known."""
    original = Future(callBackTopic="t", timerId="a", condition=Future.IF_ABSENT)
    timer = Row(partition=3, timer_id="a", second=7, value=original.SerializeToString(), condition="IF_ABSENT")
    [row] = moves_of(spark.createDataFrame([timer]), expr("20L")).collect()
    assert Future.FromString(row.value) == Future(callBackTopic="t", timerId="a")


# --- SQL --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "query",
    [
        "select 1 as a, 'x;y' as b",
        "with some as (select 1 as a) select a, 'x;y' as b from some -- the end",
        "values (1, 'x;y') as t(a, b)",
    ],
)
def test_a_select_is_answered(spark: SparkSession, query: str) -> None:
    assert rows_of(select(spark, query)) == [{"a": 1, "b": "x;y"}]


@pytest.mark.parametrize(
    "query",
    [
        "create table made (a int)",
        "drop table made",
        "insert into made values (1)",
        "set spark.sql.ansi.enabled = true",
        "select 1; drop table made",
        "select 1); drop table made; (select 1",
        "select * from nowhere",
        "",
    ],
)
def test_every_other_statement_is_refused(spark: SparkSession, query: str) -> None:
    with pytest.raises(LakeError, match="Give a single SELECT"):
        select(spark, query)


def test_columns_may_have_any_name_and_the_same(spark: SparkSession) -> None:
    assert rows_of(select(spark, "select 1 as `a.b`, 2 as `c``d`")) == [{"a.b": 1, "c`d": 2}]
    frame = spark.createDataFrame([(1, 2)], "a int, b int")
    assert rows_of(frame.select("a", "b", "a")) == [{"a": 1, "b": 2, "a_3": 1}]


def test_times_are_those_of_utc_wherever_it_runs(spark: SparkSession) -> None:
    assert rows_of(select(spark, "select timestamp_seconds(3600) as at")) == [{"at": "1970-01-01 01:00:00"}]


def test_rows_with_any_content_become_json() -> None:
    row = {"text": b"v", "bytes": bytearray(b"\xff"), "none": None, "some": [datetime(2030, 1, 31, tzinfo=UTC)], "n": 1}
    assert row_document(row) == {
        "text": "v",
        "bytes_base64": "/w==",
        "none": None,
        "some": ["2030-01-31 00:00:00+00:00"],
        "n": 1,
    }
