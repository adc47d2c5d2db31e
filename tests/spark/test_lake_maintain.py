"""The rows that the lake may delete, and the folders that it looks at."""

import pytest
from pyspark.sql import SparkSession
from pyspark.testing import assertDataFrameEqual

from kafka_timers.errors import LakeError
from kafka_timers.lake.maintain import (
    ended_by,
    expire,
    merged,
    optimize,
    refuse_blind_commits,
    sealed_by,
    still_needed,
    waiting_by,
)
from kafka_timers.settings import LakeSettings

COLUMNS = (
    "partition int, offset bigint, appended_ms bigint, kind string, second bigint, timer_id string, original bigint, "
    "condition string"
)
SEALED, HORIZON_S = 10_000, 500


def request(
    offset: int, second: int, timer_id: str | None = None, appended_s: int = 0, condition: str | None = None
) -> tuple[object, ...]:
    return 0, offset, appended_s * 1000 + 999, "request", second, timer_id, None, condition


def cancel(offset: int, timer_id: str, appended_s: int = 0) -> tuple[object, ...]:
    return 0, offset, appended_s * 1000, "cancel", None, timer_id, None, None


def copy(offset: int, second: int, original: int, timer_id: str | None = None) -> tuple[object, ...]:
    return 0, offset, 0, "copy", second, timer_id, original, None


def refused(offset: int, appended_s: int) -> tuple[object, ...]:
    return 0, offset, appended_s * 1000, "refused", None, None, None, None


def needed(
    spark: SparkSession, old: list[tuple[object, ...]], live: list[tuple[object, ...]], **more: object
) -> set[int]:
    """Return the offsets of the rows of *old* that stay."""
    known = {"sealed_s": SEALED, "horizon_s": HORIZON_S, "promoted": [(0, 9_000)]} | more
    rows = still_needed(spark.createDataFrame(old, COLUMNS), spark.createDataFrame(live, COLUMNS), **known)
    assert rows.columns == [column.split()[0] for column in COLUMNS.split(", ")]
    return {row.offset for row in rows.collect()}


def test_sealed_requests_are_deleted_and_unsealed_ones_stay(spark: SparkSession) -> None:
    done = [request(0, SEALED, appended_s=SEALED - HORIZON_S), refused(1, SEALED), cancel(2, "a", SEALED)]
    # The last one was asked for when its second had long passed, and is not sealed yet.
    waits = [request(3, SEALED + 1, appended_s=SEALED), refused(4, SEALED + 1), request(5, 7, appended_s=SEALED + 1)]
    assert needed(spark, [*done, *waits], []) == {3, 4, 5}


def test_a_request_left_to_the_lake_stays_until_its_second_is_promoted(spark: SparkSession) -> None:
    far = [request(0, 9_000), request(1, 9_001), request(2, 9_001, appended_s=9_001 - HORIZON_S)]
    assert needed(spark, far, []) == {1}
    assert needed(spark, far, [], promoted=[]) == {0, 1}
    # No worker has ever left any.
    assert needed(spark, far, [], promoted=[], horizon_s=None) == set()


def test_the_record_that_withdrew_a_pending_request_stays_with_it(spark: SparkSession) -> None:
    """Without its cancel, or the move to an earlier second, it would come to life again."""
    old = [
        request(0, 100, "a"),  # before it: means nothing for it
        cancel(11, "a"),
        request(12, 200, "a"),
        copy(13, 200, 12, "a"),
        cancel(14, "b"),
        request(15, 300, "c"),
        copy(16, 300, 15, "c"),
    ]
    live = [
        request(10, 50_000, "a"),
        request(20, 50_000, "c"),
        cancel(5, "b"),
        (1, 1, 0, "request", 50_000, "b", None, None),
    ]
    assert needed(spark, old, live) == {11, 12, 13}
    # As long as it is there, also when it is old itself and only waits to be promoted.
    assert needed(spark, [*old, request(10, 9_500, "a")], live[1:]) == {10, 11, 12, 13}


def test_the_records_that_decide_a_condition_stay_with_the_request(spark: SparkSession) -> None:
    """Without the request that it replaced, a move under a condition would seem to have found nothing to replace."""
    old = [
        request(0, 100, "a"),
        request(1, 200, "a"),  # stands, after any records
        cancel(2, "a"),
        request(3, 300, "a", condition="IF_ABSENT"),
        request(4, 400, "b", condition="IF_PENDING"),
        request(5, 500, "c"),
        request(6, 600, "d"),
    ]
    live = [
        request(10, 50_000, "a", condition="IF_PENDING"),
        request(11, 50_000, "b", condition="IF_PENDING"),
        request(12, 50_000, "c"),
    ]
    assert needed(spark, old, live) == {1, 2, 3, 4}


def test_a_copy_stays_as_long_as_its_request(spark: SparkSession) -> None:
    assert needed(spark, [request(0, 9_500), copy(1, 9_500, 0), copy(2, 9_500, 99)], []) == {0, 1}
    assert needed(spark, [request(0, 9_000), copy(1, 9_000, 0), copy(2, SEALED + 1, 0)], []) == {2}


@pytest.mark.parametrize(
    ("ranges", "wanted"),
    [
        ([], []),
        ([(0, 9), (10, 19), (30, 39)], [(0, 19), (30, 39)]),
        ([(30, 39), (0, 35), (5, 6)], [(0, 39)]),
    ],
)
def test_ranges_that_touch_are_one(ranges: list[tuple[int, int]], wanted: list[tuple[int, int]]) -> None:
    assert merged(ranges) == wanted


def test_all_is_sealed_that_each_partition_has_sealed(spark: SparkSession) -> None:
    columns = "partition int, last bigint, through binary, partitions int, end_ms bigint"
    seals = [
        (0, 50, None, 2, 51_000),
        (0, 40, None, 2, 41_000),
        (0, 90, b"x", 2, 91_000),
        (1, 60, None, 2, 61_000),
    ]
    assert sealed_by(spark.createDataFrame(seals, columns)) == 50
    # Of second 55 something is left.
    assert sealed_by(spark.createDataFrame([*seals, (0, 55, None, 2, 55_999)], columns)) == 54
    assert sealed_by(spark.createDataFrame(seals[:3], columns)) == 0
    assert sealed_by(spark.createDataFrame([], columns)) == 0


FOLDERS = [
    *[
        (delay, due)
        for delay in ("1h", "1d", "32d", "none", "copy")
        for due in ("2027-01-14", "2027-01-15", "2027-01-16")
    ],
    *[("1y", due) for due in ("2026-12", "2027-01", "2027-02")],
    *[("more", due) for due in ("2026", "2027", "2028")],
]
SECOND = 1_800_000_000  # 2027-01-15 08:00:00


def test_folders_that_have_ended_are_all_before_a_second(spark: SparkSession) -> None:
    ended = spark.createDataFrame(FOLDERS, "delay string, due string").where(ended_by(SECOND))
    days = [(delay, "2027-01-14") for delay in ("1h", "1d", "32d", "none")]
    wanted = [*days, ("1y", "2026-12"), ("more", "2026")]
    assertDataFrameEqual(ended, spark.createDataFrame(wanted, "delay string, due string"))


def test_folders_of_pending_requests_begin_by_a_second(spark: SparkSession) -> None:
    begun = spark.createDataFrame(FOLDERS, "delay string, due string").where(waiting_by(SECOND))
    days = [(delay, due) for delay in ("1h", "1d", "32d") for due in ("2027-01-14", "2027-01-15")]
    wanted = [*days, ("1y", "2026-12"), ("1y", "2027-01"), ("more", "2026"), ("more", "2027")]
    assertDataFrameEqual(begun, spark.createDataFrame(wanted, "delay string, due string"))


def test_on_s3_nothing_is_rewritten_until_somebody_says_that_no_landing_can_lose_by_it(spark: SparkSession) -> None:
    lake, setting = "s3a://bucket/timers", "spark.delta.logStore.s3a.impl"
    settings = LakeSettings(lake=lake)
    for work in (lambda: optimize(spark, settings, 0), lambda: expire(spark, settings, 400, 0)):
        with pytest.raises(LakeError, match=f"s3a://bucket/timers is on S3.* {setting}=io.delta.storage.S3Single"):
            work()
    for elsewhere in ("file:/lake", "abfss://container@account/timers", "gs://bucket/timers", "hdfs://name/timers"):
        refuse_blind_commits(spark, elsewhere)
    spark.conf.set(setting, "io.delta.storage.S3SingleDriverLogStore")
    try:
        refuse_blind_commits(spark, lake)
    finally:
        spark.conf.unset(setting)
