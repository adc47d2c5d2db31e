"""Merging, sorting and forgetting, on real tables beside a landing."""

from functools import reduce
from pathlib import Path

import pytest
from lake_tables import completed, delay_of, due_of
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kafka_timers.lake.maintain import expire, optimize
from kafka_timers.lake.schema import (
    AUDIT_SECONDS,
    BUCKETS,
    PLANNED,
    POSITIONS,
    REJECTED,
    REQUESTS,
    SCHEDULES,
    SEALS,
)
from kafka_timers.lake.tables import append, path_of, read
from kafka_timers.settings import LakeSettings

NOW = 1_800_000_000  # 2027-01-15 08:00:00
DAY_S = 86_400


@pytest.fixture
def settings(tmp_path: Path) -> LakeSettings:
    return LakeSettings(lake=str(tmp_path / "lake"))


@pytest.fixture
def root(settings: LakeSettings) -> str:
    return f"file:{settings.lake}"


def requests(spark: SparkSession, first: int, count: int, second: str, appended_s: int) -> DataFrame:
    """Return requests with consecutive offsets; *second* is SQL on `id`, the number of each."""
    rows = spark.range(count).selectExpr(
        "0 AS partition", f"id + {first} AS offset", f"{appended_s} * 1000L AS appended_ms", "'request' AS kind",
        f"{second} AS second", "0 AS millis", "'t' AS topic",
    )  # fmt: skip
    return completed(rows, REQUESTS, delay=delay_of(F.col("second"), F.col("appended_ms"))).withColumn(
        "due", due_of(F.col("second"), F.col("delay"))
    )


def files(spark: SparkSession, root: str, where: str) -> list[str]:
    return read(spark, root, REQUESTS).where(where).inputFiles()


def test_small_files_become_few_and_requests_due_soon_are_sorted(
    spark: SparkSession, settings: LakeSettings, root: str
) -> None:
    soon, far = "due = '2027-01'", "due = '2027-09'"
    # A month that has begun, and one that is far off; seconds come as they like.
    for first in (0, 20_000, 40_000):
        for count, start, appended_s in ((20_000, NOW - 14 * DAY_S, NOW - 60 * DAY_S), (1_000, NOW + 240 * DAY_S, NOW)):
            spread = f"{start} + pmod(xxhash64(id), 10 * {DAY_S})"
            append(requests(spark, first, count, spread, appended_s), root, REQUESTS)
    before = read(spark, root, REQUESTS).count()
    assert (len(files(spark, root, soon)), len(files(spark, root, far))) == (3, 3)

    spark.conf.set("spark.databricks.delta.optimize.maxFileSize", 40_000)
    try:
        optimize(spark, settings, NOW)
        sorted_files, merged_files = files(spark, root, soon), files(spark, root, far)
        assert len(sorted_files) > 3
        assert len(merged_files) == 1
        assert read(spark, root, REQUESTS).count() == before
        # Of a bucket, few are read.
        first = NOW - 10 * DAY_S
        assert len(files(spark, root, f"{soon} AND second BETWEEN {first} AND {first + 3_600}")) <= 2
    finally:
        spark.conf.set("spark.databricks.delta.optimize.maxFileSize", 64 << 20)


def test_fired_requests_are_deleted_after_their_days_and_the_others_stay(
    spark: SparkSession, settings: LakeSettings, root: str
) -> None:
    asked = (
        (NOW - 40 * DAY_S, NOW - 40 * DAY_S - 60),  # done
        (NOW - 40 * DAY_S, NOW - 50 * DAY_S),  # far, promoted
        (NOW - 39 * DAY_S, NOW - 50 * DAY_S),  # far, and not promoted
        (NOW - 29 * DAY_S, NOW - 29 * DAY_S - 60),  # done, not long ago
        (NOW + 40 * DAY_S, NOW),
    )
    each = (requests(spark, 10 * n, 10, f"{second}", appended_s) for n, (second, appended_s) in enumerate(asked))
    append(reduce(DataFrame.unionByName, each), root, REQUESTS)
    lasts = [(offset, last) for offset, last in enumerate((NOW - 41 * DAY_S, NOW - 40 * DAY_S, NOW))]
    seals = spark.createDataFrame(lasts, "offset long, last long").selectExpr(
        "*", "(last + 1) * 1000 AS end_ms", "0 AS partition", "1 AS partitions", "600 AS horizon_s"
    )
    append(completed(seals, SEALS, day=due_of(F.col("last"), F.lit("day"))), root, SEALS)
    closed = spark.range(1).selectExpr(
        f"{NOW - 40 * DAY_S} AS first", f"{NOW - 40 * DAY_S} AS last", "600 AS horizon_s"
    )
    append(completed(closed, BUCKETS), root, BUCKETS)
    days = spark.createDataFrame([("2026-12-01",), ("2027-01-01",)], "day string")
    append(completed(days.selectExpr("*", "0L AS offset"), REJECTED), root, REJECTED)
    append(completed(days.selectExpr("*", "0 AS partition"), AUDIT_SECONDS), root, AUDIT_SECONDS)
    old, new = "2026-12-01", "2027-01-01"
    kept = [(0, "a", "v", old), (1, "a", "v", old), (2, "b", "v", old), (3, "b", "v", new), (4, "c", None, old)]
    for table in (SCHEDULES, PLANNED):
        rows = spark.createDataFrame(kept, "offset long, key string, value string, day string")
        binary = {name: F.col(name).cast("binary") for name in ("key", "value")}
        append(completed(rows.withColumns(binary).withColumn("partition", F.lit(0)), table), root, table)
    landed = [("t", 0, 5, NOW - 50 * DAY_S), ("t", 0, 9, NOW - 40 * DAY_S), ("t", 0, 4, NOW)]
    columns = "topic string, partition int, position long, landed_s long"
    append(completed(spark.createDataFrame(landed, columns), POSITIONS), root, POSITIONS)

    expire(spark, settings, 30, NOW)
    assert {row.offset // 10 for row in read(spark, root, REQUESTS).collect()} == {2, 3, 4}
    assert [row.day for row in read(spark, root, AUDIT_SECONDS).collect()] == ["2027-01-01"]
    assert read(spark, root, REQUESTS).count() == 30
    assert [row.last for row in read(spark, root, SEALS).collect()] == [NOW]
    assert [row.day for row in read(spark, root, REJECTED).collect()] == ["2027-01-01"]
    for table in (SCHEDULES, PLANNED):
        # Of what is not deleted, the last record.
        assert sorted(row.offset for row in read(spark, root, table).collect()) == [1, 3]
    assert sorted(row.position for row in read(spark, root, POSITIONS).collect()) == [4, 9]

    # However long nothing was sealed, the last seal stays: without it, pending requests would be taken for done.
    expire(spark, settings, 30, NOW + 4_000 * DAY_S)
    assert [row.last for row in read(spark, root, SEALS).collect()] == [NOW]
    assert {row.offset // 10 for row in read(spark, root, REQUESTS).collect()} == {2, 4}


def test_tables_of_small_rows_do_not_grow_by_a_file_with_each_commit(spark: SparkSession, root: str) -> None:
    # The table asks for it, and the session of all other tests forbids it.
    spark.conf.unset("spark.databricks.delta.autoCompact.enabled")
    # Delta merges once there are 50, which takes as many commits.
    spark.conf.set("spark.databricks.delta.autoCompact.minNumFiles", 10)
    try:
        for position in range(14):
            rows = spark.range(1).selectExpr("'t' AS topic", f"{position}L AS position")
            append(completed(rows, POSITIONS), root, POSITIONS)
    finally:
        spark.conf.unset("spark.databricks.delta.autoCompact.minNumFiles")
        spark.conf.set("spark.databricks.delta.autoCompact.enabled", "false")
    rows = read(spark, root, POSITIONS)
    assert len(rows.inputFiles()) < 10
    assert rows.count() == 14


def test_a_lake_without_tables_has_nothing_to_maintain(spark: SparkSession, settings: LakeSettings, root: str) -> None:
    optimize(spark, settings, NOW)
    expire(spark, settings, 30, NOW)
    assert read(spark, root, REQUESTS).isEmpty()
    assert not Path(path_of(root, SEALS).removeprefix("file:")).exists()
