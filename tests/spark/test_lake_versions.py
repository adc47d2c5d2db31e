"""The rules about versions of a timer id, in SQL."""

from pyspark.sql import DataFrame, SparkSession
from pyspark.testing import assertDataFrameEqual

from kafka_timers.lake.marks import marks_of

COLUMNS = (
    "partition int, offset bigint, appended_ms bigint, kind string, second bigint, millis int, timer_id string, "
    "original bigint, decided bigint, decided_s bigint, delay string"
)
MARKS = "partition int, offset bigint, taken_by bigint, copied_at bigint"


def request(offset: int, appended_s: float, due_s: float, timer_id: str | None = "a", partition: int = 0) -> tuple:
    due = divmod(round(due_s * 1000), 1000)
    return (partition, offset, int(appended_s * 1000), "request", *due, timer_id, None, None, None, "1h")


def cancel(offset: int, appended_s: float, timer_id: str = "a", partition: int = 0) -> tuple:
    return (partition, offset, int(appended_s * 1000), "cancel", None, None, timer_id, None, None, None, "none")


def copy(offset: int, original: int, decided: int, *, age_s: int = 0, timer_id: str | None = "a") -> tuple:
    return (0, offset, 10_000_000, "copy", 20_000, 0, timer_id, original, decided, 10_000 - age_s, "copy")


def marks(spark: SparkSession, records: list[tuple]) -> DataFrame:
    return marks_of(spark.createDataFrame(records, COLUMNS))


def test_a_cancel_is_in_time_up_to_the_millisecond_of_its_timer(spark: SparkSession) -> None:
    records = [request(2, 11, 20.5), cancel(3, 20.499), request(4, 21, 30.5), cancel(5, 30.5)]
    assert sorted(map(tuple, marks(spark, records).collect())) == [(0, 2, 3, None)]


def test_a_request_is_withdrawn_by_records_appended_before_it_is_due(spark: SparkSession) -> None:
    records = [
        request(0, 1, 10),
        cancel(1, 10),  # too late: its append is not before second 10
        request(2, 11, 20),  # so is this, and it is a timer of its own
        cancel(3, 20.5),  # too late for #2
        request(4, 21, 30),
        cancel(5, 29.999),
        cancel(6, 29.9995),  # again: the first one counts
        request(7, 40, 90, "b"),
        request(8, 41, 95, "b"),  # moves #7
        request(9, 42, 99, "a", partition=1),  # the same id elsewhere is another one
        request(10, 43, 60, None),
        request(11, 44, 61, None),
    ]
    assertDataFrameEqual(
        marks(spark, records),
        spark.createDataFrame([(0, 4, 5, None), (0, 7, 8, None)], MARKS),
    )


def test_a_cancel_that_came_too_late_leaves_the_request_to_the_next_one(spark: SparkSession) -> None:
    """Append times may go back when a partition gets another leader."""
    records = [request(0, 1, 10), cancel(1, 10.2), cancel(2, 9.9)]
    assert [tuple(row) for row in marks(spark, records).collect()] == [(0, 0, 2, None)]


def test_workers_take_the_first_copy_that_is_neither_stale_nor_overtaken(spark: SparkSession) -> None:
    records = [
        request(0, 1, 20_000),
        copy(10, 0, 5),  # valid
        copy(12, 0, 5),  # again
        request(1, 2, 20_000, "b"),
        cancel(11, 3, "b"),
        copy(13, 1, 11, timer_id="b"),  # the cancel was not known
        request(2, 2, 20_000, "c"),
        copy(14, 2, 5, age_s=1801, timer_id="c"),  # stale
        copy(15, 2, 5, age_s=1800, timer_id="c"),
        copy(16, 3, 5, timer_id=None),
        copy(17, 4, 5, timer_id=None),
    ]
    wanted = [(0, 0, None, 10), (0, 1, 11, None), (0, 2, None, 15), (0, 3, None, 16), (0, 4, None, 17)]
    assertDataFrameEqual(marks(spark, records), spark.createDataFrame(wanted, MARKS))


def test_a_request_may_be_withdrawn_when_workers_have_its_copy(spark: SparkSession) -> None:
    records = [request(0, 1, 20_000), copy(10, 0, 5), cancel(11, 15_000)]
    assert [tuple(row) for row in marks(spark, records).collect()] == [(0, 0, 11, 10)]
