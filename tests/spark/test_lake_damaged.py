"""Tables that somebody has damaged by hand: each job that reads them tells it, or nothing is lost."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from honest_lake import START_S, HonestLake, honest_lake
from pyspark.sql import Row, SparkSession

from kafka_timers.errors import LakeError
from kafka_timers.lake.audit import Audit, audit
from kafka_timers.lake.schema import POSITIONS, REJECTED, REQUESTS, SEALS, Table
from kafka_timers.lake.service import Service
from kafka_timers.lake.tables import append, constant, name_of, read, root_of, translated
from kafka_timers.settings import LakeSettings

# Nine audits, each of a copy of the lake.
pytestmark = pytest.mark.chaos

PARTITIONS, SECONDS = 2, 120


@pytest.fixture(scope="module")
def honest(spark: SparkSession) -> HonestLake:
    return honest_lake(spark, PARTITIONS, SECONDS, 3)


@pytest.fixture(scope="module")
def landed(spark: SparkSession, honest: HonestLake, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake that was landed in two batches. Do not damage this one."""
    folder = tmp_path_factory.mktemp("landed")
    root = root_of(LakeSettings(lake=str(folder)))
    half = START_S + SECONDS // 2

    def put(rows: list[Row], table: Table) -> None:
        values = [[row[name] for name in table.columns.names] for row in rows]
        append(constant(spark, values, table.columns), root, table)

    for is_late in (False, True):
        put([row for row in honest.requests if (row["appended_ms"] >= half * 1000) is is_late], REQUESTS)
        put([row for row in honest.seals if (row["last"] >= half) is is_late], SEALS)
    rejected = [
        (0, number, row["appended_ms"], row["reason"], "timer-request", row["partition"], row["offset"], "2030-01-01")
        for number, row in enumerate(row for row in honest.requests if row["reason"])
    ]
    append(constant(spark, rejected, REJECTED.columns), root, REJECTED)
    positions = [("timer-request", number, SECONDS, 1, None, None) for number in range(PARTITIONS)]
    append(constant(spark, positions, POSITIONS.columns), root, POSITIONS)
    return folder


@pytest.fixture
def lake(spark: SparkSession, landed: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy of it to damage."""
    folder = tmp_path / "lake"
    shutil.copytree(landed, folder)
    yield folder
    spark.catalog.clearCache()


def audited(spark: SparkSession, lake: Path) -> Audit:
    settings, end_s = LakeSettings(lake=str(lake)), START_S + SECONDS - 1
    ends = dict.fromkeys(range(PARTITIONS), SECONDS)
    with translated(root_of(settings)):
        return audit(spark, settings, end_s + 100, first=START_S, last=end_s, service=Service("cluster", ends))


def test_nothing_is_found_in_the_lake_as_it_was_landed(spark: SparkSession, lake: Path) -> None:
    told = audited(spark, lake)
    assert (told.kinds, told.undecided) == ({}, [])
    assert told.fired > 0


@pytest.mark.parametrize("table", [REQUESTS, SEALS], ids=lambda table: table.name)
def test_a_data_file_that_is_gone_is_named(spark: SparkSession, lake: Path, table: Table) -> None:
    gone = max((lake / table.name).rglob("*.parquet"), key=lambda file: file.stat().st_size)
    gone.unlink()
    with pytest.raises(LakeError, match=gone.name):
        audited(spark, lake)


def test_an_entry_of_a_tables_log_that_is_gone_is_told(spark: SparkSession, lake: Path) -> None:
    for name in ("00000000000000000001.json", ".00000000000000000001.json.crc", "00000000000000000001.crc"):
        (lake / "requests" / "_delta_log" / name).unlink(missing_ok=True)
    with pytest.raises(LakeError, match=r"(?i)version"):
        audited(spark, lake)


@pytest.mark.parametrize(("table", "kind"), [(REQUESTS, "unread"), (SEALS, "unsealed")], ids=["requests", "seals"])
def test_a_table_that_was_set_back_is_found(spark: SparkSession, lake: Path, table: Table, kind: str) -> None:
    name = name_of(root_of(LakeSettings(lake=str(lake))), table)
    # Version 0 made the table, and 1 is the first batch.
    spark.sql(f"RESTORE TABLE {name} TO VERSION AS OF 1")
    told = audited(spark, lake)
    assert kind in told.kinds or any("behind" in each for each in told.undecided), (told.kinds, told.undecided)


def test_a_column_that_was_added_changes_nothing(spark: SparkSession, lake: Path, honest: HonestLake) -> None:
    root = root_of(LakeSettings(lake=str(lake)))
    spark.sql(f"ALTER TABLE {name_of(root, REQUESTS)} ADD COLUMN note string")
    assert audited(spark, lake).kinds == {}
    row = honest.requests[0].asDict() | {"offset": 10**6}
    append(constant(spark, [[row[each] for each in REQUESTS.columns.names]], REQUESTS.columns), root, REQUESTS)
    assert read(spark, root, REQUESTS).count() == len(honest.requests) + 1


def test_a_session_in_another_time_zone_finds_the_same(spark: SparkSession, lake: Path) -> None:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Pacific/Kiritimati")
    try:
        assert audited(spark, lake).kinds == {}
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
