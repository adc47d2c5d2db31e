"""Recurring timers that were landed are judged, and honest ones have no findings."""

import random
from pathlib import Path
from typing import NamedTuple

import pytest
from planner_stand_in import PlannerStandIn, lived, schedule
from pyspark.sql import DataFrame, Row, SparkSession

from kafka_timers.core.calendar import TZDATA_VERSION
from kafka_timers.core.plan_history import Written
from kafka_timers.core.planning import PLANNER_KEY
from kafka_timers.core.schedules import Planner
from kafka_timers.core.wire import Future
from kafka_timers.lake.coverage import Coverage
from kafka_timers.lake.scheduled import Scheduled
from kafka_timers.lake.schema import CANCEL, PLANNED, POSITIONS, REJECTED, REQUEST, REQUESTS, SCHEDULES, Table
from kafka_timers.lake.tables import append, constant, root_of
from kafka_timers.settings import LakeSettings

START_S = 1_893_500_000


class Found(NamedTuple):
    """What an audit tells of recurring timers."""

    findings: list[Row]
    unchecked: list[str]


class Lake:
    """A lake with nothing but recurring timers."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark, self._settings = spark, LakeSettings(lake=str(folder))
        self._rows: dict[str, list[dict[str, object]]] = {}

    def _add(self, table: Table, **row: object) -> None:
        empty = {each.name: None if each.nullable else "1970-01-01" for each in table.columns}
        self._rows.setdefault(table.name, []).append(empty | row)

    def land(self, planner: PlannerStandIn, number: int, tzdata: str = TZDATA_VERSION, late_s: int = 0) -> None:
        signed = Written(10**9, START_S * 1000, PLANNER_KEY, Planner(tzdata=tzdata).SerializeToString())
        for table, rows in ((SCHEDULES, planner.schedules), (PLANNED, [*planner.planned, signed])):
            for offset, at_ms, key, value in rows:
                place = {"partition": number, "offset": offset, "appended_ms": at_ms}
                self._add(table, **place, landed_s=at_ms // 1000 + late_s, key=key, value=value)
        for offset in planner.refused:
            source = {"source_topic": "timer-schedule", "source_partition": number, "source_offset": offset}
            self._add(REJECTED, partition=0, offset=offset, appended_ms=0, reason="schedule-invalid", **source)
        for each in planner.asked:
            place = {"partition": number, "offset": each.offset, "appended_ms": each.appended_ms}
            kind = CANCEL if Future.FromString(each.value or b"").cancel else REQUEST
            self._add(REQUESTS, **place, kind=kind, timer_id=each.timer_id.decode(), key=each.key, value=each.value)
        self._add(POSITIONS, topic="timer-planned", partition=number, position=10**9 + 1, landed_s=START_S - 10)

    def judged(self, last_s: int, *, ends: int = 10**9 + 1) -> Found:
        root = root_of(self._settings)
        for table in (SCHEDULES, PLANNED, REJECTED, REQUESTS, POSITIONS):
            rows = [[row[name] for name in table.columns.names] for row in self._rows.get(table.name, [])]
            if rows:
                append(constant(self._spark, rows, table.columns), root, table)
        coverage = Coverage(START_S - 10, last_s, 2, {}, [], [], {0: ends, 1: ends})
        scheduled = Scheduled(self._spark, self._settings, coverage, last_s * 1000)
        return Found(scheduled.findings(DataFrame.cache).collect(), scheduled.unchecked)


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    return Lake(spark, tmp_path / "lake")


def test_honest_schedules_have_no_findings_and_a_lost_run_is_one(lake: Lake) -> None:
    """With jitter, catch-up, bounds, pauses, changes, deletions, outages and takeovers, in two partitions."""
    planners = [
        lived(random.Random(seed), START_S, [b"%s%d" % (name, number) for name in (b"a", b"b")])[0]
        for number, seed in enumerate((9, 4))
    ]
    assert all(len(each.asked) > 100 and each.refused for each in planners)
    # The key of a cancel is empty.
    gone = next(each for each in planners[1].asked[20:] if each.key)
    planners[1].asked.remove(gone)
    for number, planner in enumerate(planners):
        lake.land(planner, number)
    found = lake.judged(START_S + 600)
    assert [(row.kind, row.partition, row.offset) for row in found.findings] == [("run", 1, None)]
    assert found.findings[0].detail == f"run {gone.timer_id.decode()} was planned, and not asked for"
    assert found.unchecked == []


def test_what_is_not_known_is_told_and_is_no_finding(lake: Lake) -> None:
    """Cron expressions by other time zones, plans that compaction deleted, and what is not landed so far."""
    zoned = PlannerStandIn()
    cron = schedule()
    cron.cron.expression = "* * * * *"
    zoned.put(b"cron", cron, START_S * 1000)
    zoned.ticks(START_S, START_S + 100)
    zoned.asked.clear()
    lake.land(zoned, 0, tzdata="1970a")
    late = PlannerStandIn()
    late.put(b"late", schedule(), START_S * 1000)
    late.ticks(START_S, START_S + 200)
    del late.planned[3:9]
    lake.land(late, 1, late_s=3_600)
    found = lake.judged(START_S + 1_000, ends=2 * 10**9)
    assert found.findings == []
    assert found.unchecked == [
        f"schedules of partition 0 after {zoned.planned[-1].appended_ms // 1000}: not landed so far",
        f"schedules of partition 1 after {late.planned[-1].appended_ms // 1000}: not landed so far",
        f"cron expressions of partition 0: read by tzdata 1970a, and this host has {TZDATA_VERSION}",
        "1 plans of schedules: compaction may have deleted others before they were landed",
    ]


def test_a_lake_in_which_no_plan_is_landed_says_so(lake: Lake) -> None:
    found = lake.judged(START_S)
    assert (found.findings, found.unchecked) == ([], ["recurring timers: timer-planned is not landed"])
