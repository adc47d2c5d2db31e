"""The tables of the lake: where they lie, and the rows that a reader finds."""

import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from zipimport import zipimporter

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.testing import assertDataFrameEqual

from kafka_timers.lake.schema import BUCKETS, POSITIONS, REJECTED, REQUESTS, SEALS, Table
from kafka_timers.lake.tables import (
    CONSTANT_ROWS_MAX,
    append,
    constant,
    create,
    keeping,
    path_of,
    read,
    read_epochs,
    read_positions,
    read_topic_ids,
    root_of,
)
from kafka_timers.settings import LakeSettings

COLUMNS = "topic string, partition int, position bigint, landed_s bigint, topic_id string, leader_epoch int"


@pytest.fixture
def root(tmp_path: Path) -> str:
    # Each character of a path belongs to it, also one with a meaning to SQL or a pattern.
    return f"file:{tmp_path}/a lake's `root` %20[1]"


@pytest.mark.parametrize(
    ("lake", "root"),
    [
        ("/lake/timers", "file:/lake/timers"),
        ("s3a://bucket/timers/", "s3a://bucket/timers"),
        ("file:/lake", "file:/lake"),
        ("lake 1", f"file:{Path.cwd()}/lake 1"),
        ("a/b:c", f"file:{Path.cwd()}/a/b:c"),
    ],
)
def test_a_root_is_a_uri_wherever_a_job_runs(lake: str, root: str) -> None:
    assert root_of(LakeSettings(lake=lake)) == root
    assert path_of(root, REQUESTS) == f"{root}/requests"


def test_a_table_that_is_not_there_yet_is_empty(spark: SparkSession, root: str) -> None:
    assert read(spark, root, REQUESTS).schema == REQUESTS.columns
    assert read(spark, root, REQUESTS).isEmpty()
    assert read_positions(spark, root, "timer-request") == {}


@pytest.mark.parametrize("table", [REQUESTS, SEALS, REJECTED, POSITIONS, BUCKETS], ids=lambda table: table.name)
def test_a_table_is_made_as_it_is_told_and_stays(spark: SparkSession, root: str, table: Table) -> None:
    for _ in range(2):
        create(spark, root, table)
        made = read(spark, root, table)
        assert made.select(*table.columns.names).schema == table.columns
        found, wanted = (
            [(each.name, each.dataType, each.metadata) for each in columns]
            for columns in (made.schema, [*table.columns, *table.in_bytes])
        )
        assert found == wanted
        [detail] = spark.sql(f"DESCRIBE DETAIL delta.`{path_of(root, table).replace('`', '``')}`").collect()
        assert tuple(detail.partitionColumns) == table.partitioned_by


def test_rows_appended_again_under_their_version_are_there_once(spark: SparkSession, root: str) -> None:
    rows = [
        ("timer-request", 0, 5, 100, "a", 3),
        ("timer-request", 1, 7, 100, "a", None),
        ("timer-sealed", 0, 900, 100, None, None),
    ]
    for at in range(3):
        append(spark.createDataFrame(rows, COLUMNS), root, POSITIONS, "landing", min(at, 1))
    last = ("timer-request", 0, 4, 101, "b", 2)
    append(spark.createDataFrame([last], COLUMNS), root, POSITIONS)
    wanted = spark.createDataFrame([*rows, *rows, last], COLUMNS)
    assertDataFrameEqual(read(spark, root, POSITIONS), wanted)
    assert read_positions(spark, root, "timer-request") == {0: 5, 1: 7}
    assert read_topic_ids(spark, root) == {"timer-request": "b"}
    assert read_epochs(spark, root) == {"timer-request": {0: (5, 3)}}


def test_rows_that_several_append_at_once_under_one_version_are_there_once(spark: SparkSession, root: str) -> None:
    """None of them fails, because the rows are there."""
    create(spark, root, POSITIONS)
    rows = constant(spark, [("t", 0, 5, 0, "a", 0)], COLUMNS)
    with ThreadPoolExecutor(4) as threads:
        for version in range(3):
            list(threads.map(lambda _, version=version: append(rows, root, POSITIONS, "writer", version), range(4)))
            assert read(spark, root, POSITIONS).count() == version + 1


@pytest.mark.parametrize("count", [0, 3, CONSTANT_ROWS_MAX + 1])
def test_few_or_many_rows_that_are_kept_stay_the_same(spark: SparkSession, count: int) -> None:
    """Also where a struct is null whose fields cannot be."""
    seal = "if(id = 1, null, named_struct('end_ms', id, 'fence', 5L)) AS seal"
    rows = spark.range(count).selectExpr("id", seal, "X'00ff' AS value", "map('name', array(id)) AS named")
    with keeping() as keep:
        assert sorted(keep(rows).collect()) == sorted(rows.collect())


def test_functions_in_python_run_without_reading_archives_of_spark(spark: SparkSession) -> None:
    def archives(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        finders = sys.path_importer_cache
        paths = ["any", *(path for path, finder in finders.items() if isinstance(finder, zipimporter))]
        yield from (pa.RecordBatch.from_pydict({"path": paths}) for _ in batches)

    assert [row.path for row in spark.range(1, numPartitions=1).mapInArrow(archives, "path string").collect()] == [
        "any"
    ]
