"""
The outcomes of requests, worked out by Spark from Kafka's records: the table that `core.outcomes` runs through.

A Spark job takes seconds, however little there is, so all cases are judged at once, each in a partition of its own.
"""

import random
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import product
from operator import itemgetter
from typing import Any, NamedTuple

import pytest
from histories import history
from lake_rows import REJECTED, of
from law_cases import CASES, CONDITIONS, Case, Record
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kafka_timers.core.wire import Sealed, last_second_of
from kafka_timers.lake.conditions import history_of, ignored_in, in_force
from kafka_timers.lake.covering import intervals_of, outcomes_of
from kafka_timers.lake.few import few_outcomes
from kafka_timers.lake.records import requests_of
from kafka_timers.lake.schema import HEADERS
from kafka_timers.lake.sealed import opened, seals_of
from kafka_timers.lake.unfired import pending

ALL = [*CASES, *CONDITIONS]
HISTORIES = [history(seed) for seed in range(400)]
TOLD = [*(case for case in ALL if not case.only_live), *HISTORIES]
RECORD = "key binary, value binary, partition int, offset bigint, timestamp timestamp"
# All records are judged as those of partition 0, where an id of one partition belongs, and then put into their own.
APART = 1_000_000


class Outcome(NamedTuple):
    """Spark's result for a record: its kind, and of a request the rest; of one that was ignored nothing."""

    kind: str | None
    reason: str | None
    taken_by: int | None
    fence: int | None
    # None of one that does not wait; else whether the lake holds it for the workers.
    parked: bool | None


class Frames(NamedTuple):
    """The tables that are made of some cases, each in a partition of its own, and what Spark computes from them."""

    asked: DataFrame
    intervals: DataFrame
    rejected: DataFrame
    ignored: DataFrame
    counted: DataFrame
    outcomes: DataFrame
    pending: DataFrame


@contextmanager
def frames_of(spark: SparkSession, cases: Sequence[Case]) -> Iterator[Frames]:
    """Yield what `Frames` tells."""
    records = spark.createDataFrame(list(_records(cases)), RECORD)
    asked = requests_of(records.withColumn("headers", F.lit(None).cast(HEADERS)), 1)
    number = F.floor(F.col("offset") / APART).cast("int")
    asked = asked.withColumns({"partition": number, "offset": F.col("offset") % APART}).persist()
    sealed = [(None, seal.SerializeToString(), *at) for at, seal in _seals(cases)]
    seals = opened(seals_of(spark.createDataFrame(sealed, RECORD)))
    named = [(partition, *each) for partition, case in enumerate(cases) for each in case.rejected]
    rejected = of(spark, named, REJECTED)
    intervals = intervals_of(seals).persist()
    ignored = ignored_in(history_of(asked, asked), intervals)
    counted = in_force(asked, ignored).persist()
    outcomes = outcomes_of(counted, intervals, rejected)
    yield Frames(asked, intervals, rejected, ignored, counted, outcomes, pending(counted, seals))
    for frame in (asked, intervals, counted):
        frame.unpersist()


def _records(cases: Sequence[Case]) -> Iterator[tuple]:
    for partition, case in enumerate(cases):
        for record in case.records:
            yield record.key, record.value, 0, partition * APART + record.offset, _moment(record)


def _seals(cases: Sequence[Case]) -> Iterator[tuple[tuple[int, int, datetime], Sealed]]:
    for partition, case in enumerate(cases):
        for offset, seal in enumerate(case.seals):
            yield (partition, offset, datetime.fromtimestamp(last_second_of(seal), UTC).replace(tzinfo=None)), seal


def _moment(record: Record) -> datetime:
    return datetime.fromtimestamp(record.timestamp / 1000, UTC).replace(tzinfo=None)


def told_of(frames: Frames) -> dict[tuple[int, int], Outcome]:
    """Return the result for each record but copies, by partition and offset."""
    name = ["partition", "offset"]
    waits = frames.pending.select(*name, (F.col("far") & F.col("copied_at").isNull()).alias("parked"))
    rows = (
        frames.asked.where("kind <> 'copy'")
        .select(*name)
        .join(frames.counted.select(*name, "kind"), name, "left")
        .join(frames.outcomes.select(*name, "reason", "taken_by", "fence"), name, "left")
        .join(waits, name, "left")
        .select(*name, *Outcome._fields)
    )
    return {(row[0], row[1]): Outcome(*row[2:]) for row in rows.collect()}


def states_of(found: Mapping[int, Outcome]) -> str:
    """Return the states of records of one id."""
    letters, about = "", None
    for offset, outcome in sorted(found.items()):
        if outcome.kind is None:
            letters += "I"
            continue
        if outcome.kind == "cancel":
            # The outcome of a cancel is that of the request before it by then.
            taken_by = found[about].taken_by if about is not None else None
            letters += "U" if about is None else "L" if taken_by is None or taken_by > offset else "C"
            continue
        letters += state_of(outcome, found)
        about = offset if outcome.kind == "request" else about
    return letters


def state_of(outcome: Outcome, found: Mapping[int, Outcome]) -> str:
    """Return the state of a request."""
    if outcome.reason is not None:
        return "R"
    if outcome.taken_by is not None:
        assert outcome.parked is None
        return "C" if found[outcome.taken_by].kind == "cancel" else "M"
    if outcome.fence is not None:
        assert outcome.parked is None
        return "F"
    assert outcome.parked is not None
    return "K" if outcome.parked else "P"


@pytest.fixture(scope="module")
def frames(spark: SparkSession) -> Iterator[Frames]:
    with frames_of(spark, TOLD) as made:
        yield made


@pytest.fixture(scope="module")
def told(frames: Frames) -> dict[str, str]:
    """The states of the records of each case, but of copies."""
    found = told_of(frames)
    return {
        case.name: states_of({at: outcome for (n, at), outcome in found.items() if n == number})
        for number, case in enumerate(TOLD)
    }


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_spark_comes_to_the_same_states(case: Case, request: pytest.FixtureRequest) -> None:
    if case.only_live:
        pytest.skip(case.only_live)
    assert request.getfixturevalue("told")[case.name] == case.states


def test_spark_comes_to_the_same_states_of_random_histories(told: dict[str, str]) -> None:
    """Horizons, copies and conditions in any order."""
    assert {case.name: told[case.name] for case in HISTORIES} == {case.name: case.states for case in HISTORIES}
    assert set("".join(case.states for case in HISTORIES)) == set("PKFCMLUIR")


def test_few_records_have_the_outcomes_that_spark_computes(frames: Frames) -> None:
    rows = [row.asDict(recursive=True) for row in frames.asked.collect()]
    random.Random(1).shuffle(rows)
    few = few_outcomes(rows, frames.intervals, frames.rejected)
    assert few.ignored
    assert sorted(few.ignored) == sorted(map(tuple, frames.ignored.collect()))
    is_due = F.col("fence").isNotNull() & F.col("taken_by").isNull()
    fired, withdrawn = frames.outcomes.where(is_due), frames.outcomes.where(F.col("taken_by").isNotNull())
    lacks = {"sealed_ms", "callback", "asks"}
    of_a_seal = {"reason", "far", "fence", "sealed_in", "late", "seal_appended_ms"}
    _assert_same(few.fired, fired.where(F.col("second").isNotNull()), lacks)
    _assert_same(few.withdrawn, withdrawn, lacks | of_a_seal)
    _assert_same(few.pending, frames.pending, set())
    assert {row["reason"] is None for row in few.fired} == {True, False}
    assert {(row["late"], row["far"]) for row in few.fired} == set(product((True, False), repeat=2))
    assert {(row["far"], row["copied_at"] is None) for row in few.pending} == {
        (True, True),
        (True, False),
        (False, True),
    }


def _assert_same(mine: Sequence[Mapping[str, Any]], theirs: DataFrame, lacks: Set[str]) -> None:
    names = [name for name in theirs.columns if name not in lacks]
    found = [tuple(row) for row in theirs.select(*names).collect()]
    assert found
    assert _by_place([tuple(row[name] for name in names) for row in mine]) == _by_place(found)


def _by_place(rows: list[tuple]) -> list[tuple]:
    return sorted(rows, key=itemgetter(0, 1))
