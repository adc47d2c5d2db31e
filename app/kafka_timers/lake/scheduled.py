"""
Find faults of recurring timers: compare the plans of schedules, and the requests of their runs, with the schedules.

The planner's own code judges each schedule, see `core.plan_history`. Of a schedule that waits there is nothing but its
record and its last plan, so both are read however old they are. Findings have the columns `schema.FINDING`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from kafka_timers.core.calendar import TZDATA_VERSION
from kafka_timers.core.plan_history import (
    NEAR_MS,
    Asked,
    Fault,
    Plan,
    Planning,
    Version,
    Written,
    unplanned,
    versions_in,
)
from kafka_timers.core.planning import PLANNER_KEY
from kafka_timers.core.schedules import HOLD_PREFIX, Planned, Planner
from kafka_timers.core.wire import Topics
from kafka_timers.lake.arrow import record_batch
from kafka_timers.lake.coverage import Coverage
from kafka_timers.lake.schema import CANCEL, FINDING, PLANNED, POSITIONS, REJECTED, REQUEST, REQUESTS, SCHEDULES
from kafka_timers.lake.tables import constant, read, read_positions, root_of
from kafka_timers.settings import LakeSettings

# Kind of a row that counts plans which nobody can judge. No finding has it.
_UNDECIDED = "undecided"
# More than an id has.
_ID_BYTES = 1 << 20
_HERE = f"and this host has {TZDATA_VERSION}"
_RUN_ID = r"@[0-9]+-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{3})?Z$"
# Kinds of rows: a record of timer-schedule, of timer-planned, or of timer-request.
_SCHEDULE, _PLAN, _ASKED = range(3)


class _Known(NamedTuple):
    """
    What the rows of all schedules are judged by.

    Attributes:
        to_ms: by partition of `timer-schedule`, up to when all records are landed.
        foreign: by partition of it, the time zones by which cron expressions were read, if not by those of this host.
    """

    from_ms: int
    to_ms: Mapping[int, int]
    foreign: Mapping[int, str]


class Scheduled:
    """
    The recurring timers in a time range.

    Args:
        coverage: the time range, and what brokers tell.
        settled_ms: requests that were appended before are landed.

    Attributes:
        unchecked: see `Audit`; complete once the findings are computed.
    """

    def __init__(self, spark: SparkSession, settings: LakeSettings, coverage: Coverage, settled_ms: int) -> None:
        self._root, self._names = root_of(settings), Topics.of(settings.topic_prefix)
        self._schedules, self._planned = (read(spark, self._root, table) for table in (SCHEDULES, PLANNED))
        self._spark = spark
        self.unchecked: list[str] = []
        to_ms = min(coverage.last * 1000 + 999, settled_ms)
        positions = read(spark, self._root, POSITIONS).where(F.col("topic") == self._names.planned)
        [(begun_s,)] = positions.agg(F.min("landed_s")).collect()
        if begun_s is None:
            self.unchecked.append(f"recurring timers: {self._names.planned} is not landed")
        elif begun_s > coverage.first:
            self.unchecked.append(f"recurring timers before {begun_s}: {self._names.planned} was landed from then on")
        from_ms = to_ms + 1 if begun_s is None else max(coverage.first, begun_s) * 1000
        self._known = _Known(from_ms, self._reached(to_ms, coverage.planned_ends), self._foreign(from_ms))
        for number, at_ms in sorted(self._known.to_ms.items()):
            if from_ms <= at_ms < to_ms:
                self.unchecked.append(f"schedules of partition {number} after {at_ms // 1000}: not landed so far")
        for number, tzdata in sorted(self._known.foreign.items()):
            self.unchecked.append(f"cron expressions of partition {number}: read by tzdata {tzdata}, {_HERE}")

    def findings(self, keep: Callable[[DataFrame], DataFrame]) -> DataFrame:
        """Return the findings, of the kinds run and schedule. *keep* is as in `keeping`."""
        if not self._known.to_ms:
            return constant(self._spark, [], FINDING)
        judge = partial(_judged, known=self._known)
        found = keep(self._rows().groupBy("name").applyInArrow(judge, FINDING))
        [(undecided,)] = found.where(F.col("kind") == _UNDECIDED).agg(F.sum("offset")).collect()
        if undecided:
            self.unchecked.append(
                f"{undecided:,} plans of schedules: compaction may have deleted others before they were landed"
            )
        return found.where(F.col("kind") != _UNDECIDED)

    def _reached(self, to_ms: int, ends: Mapping[int, int]) -> dict[int, int]:
        """Return by partition up to when its plans are landed, at most *to_ms*."""
        positions = read_positions(self._spark, self._root, self._names.planned)
        newest = self._planned.groupBy("partition").agg(F.max("appended_ms")).collect()
        reached = {number: min(at_ms, to_ms) for number, at_ms in newest}
        return {
            number: to_ms if position >= ends.get(number, position + 1) else reached.get(number, -1)
            for number, position in positions.items()
        }

    def _foreign(self, from_ms: int) -> dict[int, str]:
        rows = self._planned.where(F.col("key") == F.lit(PLANNER_KEY)).select(
            "partition", "offset", "appended_ms", "value"
        )
        found: dict[int, str] = {}
        for number, _, appended_ms, value in sorted(rows.collect()):
            tzdata = Planner.FromString(value or b"").tzdata
            # A planner plans by its zones from shortly before it signs until the next one signs.
            if appended_ms < from_ms:
                found.pop(number, None)
            if tzdata != TZDATA_VERSION:
                found[number] = tzdata
        return found

    def _rows(self) -> DataFrame:
        """Return the rows to judge, with the id of their schedule."""
        since_ms, to_ms = self._known.from_ms - NEAR_MS, max(self._known.to_ms.values(), default=0)
        earlier = self._planned.where(F.col("appended_ms") < since_ms).groupBy("partition", "key")
        before = earlier.agg(F.max("offset").alias("offset")).drop("key")
        planned = self._planned.where(~_begins_with_zero())
        plans = planned.where(F.col("appended_ms").between(since_ms, to_ms + NEAR_MS))
        plans = plans.unionByName(planned.join(before, ["partition", "offset"], "left_semi"))
        requests = read(self._spark, self._root, REQUESTS).where(F.col("timer_id").rlike(_RUN_ID))
        requests = requests.where(F.col("appended_ms").between(since_ms, to_ms + NEAR_MS))
        requests = requests.where(F.col("kind").isin(REQUEST, CANCEL))
        rejected = read(self._spark, self._root, REJECTED).where(F.col("source_topic") == self._names.schedules)
        rejected = rejected.select(
            F.col("source_partition").alias("partition"),
            F.col("source_offset").alias("offset"),
            F.lit(True).alias("is_refused"),
        )
        schedules = self._schedules.where(F.col("appended_ms") <= to_ms)
        schedules = schedules.join(rejected.distinct(), ["partition", "offset"], "left")
        id_in_key = F.when(_begins_with_zero(), F.substring("key", 2, _ID_BYTES)).otherwise(F.col("key"))
        id_in_run = F.to_binary(F.regexp_replace("timer_id", _RUN_ID, ""), F.lit("utf-8"))
        found = _named(schedules, _SCHEDULE, id_in_key)
        found = found.unionByName(_named(plans, _PLAN, F.col("key")), allowMissingColumns=True)
        return found.unionByName(_named(requests, _ASKED, id_in_run), allowMissingColumns=True)


def _begins_with_zero() -> Column:
    """Return whether a key is that of a hold, or the planner's own."""
    return F.substring("key", 1, 1) == F.lit(HOLD_PREFIX)


def _named(rows: DataFrame, what: int, name: Column) -> DataFrame:
    known = ("partition", "offset", "appended_ms", "key", "value")
    more = [each for each in ("landed_s", "is_refused", "timer_id") if each in rows.columns]
    return rows.select(F.lit(what).alias("what"), name.alias("name"), *known, *more).where(F.col("name").isNotNull())


# --- one schedule ----------------------------------------------------------------------------------------------------


def _judged(rows: pa.Table, known: _Known) -> pa.Table:
    schedules, plans, requests = _by_kind(rows.to_pylist())
    name, left = rows["name"][0].as_py(), [_asked_in(row) for row in requests]
    found: list[tuple[object, ...]] = []
    # Nobody keeps a schedule from lying in several partitions. Without one, no plan has the requests in any of them.
    for number in sorted({row["partition"] for row in (*schedules, *plans)}) or known.to_ms:
        own, written = ([row for row in each if row["partition"] == number] for each in (schedules, plans))
        to_ms = known.to_ms.get(number, -1)
        records = (Written(row["offset"], row["appended_ms"], row["key"], row["value"]) for row in own)
        versions = versions_in(records)[name]
        if number in known.foreign and any(_has_cron(each) for each in versions):
            left = []
            continue
        refused = [row["offset"] for row in own if row["is_refused"]]
        planning = Planning(name, versions, refused, left, known.from_ms, to_ms)
        found += _as_rows(planning.faults([_plan_in(row) for row in written if row["appended_ms"] <= to_ms]), number)
        if planning.undecided:
            found.append((_UNDECIDED, number, planning.undecided, 0, ""))
        left = planning.left()
    found += _as_rows(unplanned(left), 0)
    return pa.Table.from_batches([record_batch(found, FINDING)])


def _as_rows(faults: Iterable[Fault], number: int) -> Iterator[tuple[object, ...]]:
    for each in faults:
        place = (each.about.partition, each.about.offset) if each.about else (number, None)
        yield each.kind, *place, each.at_ms // 1000, each.words


def _by_kind(rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    rows.sort(key=itemgetter("partition", "offset"))
    return [[row for row in rows if row["what"] == what] for what in (_SCHEDULE, _PLAN, _ASKED)]


def _plan_in(row: Mapping[str, Any]) -> Plan:
    planned = None if row["value"] is None else Planned.FromString(row["value"])
    return Plan(row["offset"], row["appended_ms"], row["landed_s"] * 1000, planned)


def _asked_in(row: Mapping[str, Any]) -> Asked:
    place = (row["partition"], row["offset"], row["appended_ms"])
    return Asked(*place, row["timer_id"].encode(), row["key"], row["value"])


def _has_cron(version: Version) -> bool:
    return version.schedule is not None and version.schedule.HasField("cron")
