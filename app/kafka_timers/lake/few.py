"""
Compute the outcomes of few records in this process, with `core.outcomes`.

Of some rows, Spark needs a tenth of a second for each of its twenty joins and windows, and the core 0.4 ms for a
record. Spark only looks up the seals, once. test_few_records_have_the_outcomes_that_spark_computes holds both to the
same results.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kafka_timers.core.outcomes import State
from kafka_timers.core.wire import last_second_of
from kafka_timers.lake.conditions import intervals_about, outcomes_in
from kafka_timers.lake.covering import about
from kafka_timers.lake.schema import CANCEL, COPY, RECORD_KEY, REQUEST
from kafka_timers.lake.tables import constant

_Row = Mapping[str, Any]
_PLACE = itemgetter(*RECORD_KEY)
_UNSEEN = dict.fromkeys(("read", "reached", "newest"))
_UNSEALED = dict.fromkeys(("reason", "far", "fence", "sealed_in", "late", "seal_appended_ms"))


class Few(NamedTuple):
    """
    The outcomes of few records.

    Attributes:
        ignored: partition and offset of the records whose condition did not hold.
        fired: the requests that a seal counts as due, with the columns of `requests` and these of
            `covering.outcomes_of`: reason, taken_by, far, fence, sealed_in, late and seal_appended_ms.
        withdrawn: the requests that were withdrawn in time, with the same columns; those of a seal are null.
        pending: the requests that are to fire, with the columns of `requests` and of `unfired.pending`.
    """

    ignored: list[tuple[int, int]]
    fired: list[dict[str, Any]]
    withdrawn: list[dict[str, Any]]
    pending: list[dict[str, Any]]


def few_outcomes(rows: Sequence[_Row], intervals: DataFrame, rejected: DataFrame) -> Few:
    """
    Return the outcomes of requests.

    Args:
        rows: the requests in question, all copies of them, all records of their timer ids.
        intervals: all of these partitions.
        rejected: see `covering.outcomes_of`.
    """
    few = Few([], [], [], [])
    records = sorted((row for row in rows if row["kind"] in (REQUEST, CANCEL, COPY)), key=_history_of)
    if not records:
        return few
    names = (*RECORD_KEY, "second", "millis")
    places = constant(
        intervals.sparkSession,
        [[row[name] for name in names] for row in records],
        "partition int, offset bigint, second bigint, millis int",
    )
    found, reasons = _found(places, intervals), _reasons(places, rejected)
    for _, group in groupby(records, lambda row: _history_of(row)[:-1]):
        _judge([{**row, **found.get(_PLACE(row), _UNSEEN)} for row in group], reasons, few)
    return few


def _history_of(row: _Row) -> tuple[int, str, int, int]:
    """Return a key that sorts the records of one timer id together, and a request without one with its copies."""
    timer_id, offset = row["timer_id"] or "", row["offset"]
    of = 0 if timer_id else row["original"] if row["kind"] == COPY else offset
    return row["partition"], timer_id, of, offset


# --- what Spark looks up ---------------------------------------------------------------------------------------------


def _found(places: DataFrame, intervals: DataFrame) -> dict[tuple[int, int], dict[str, Any]]:
    """Return by partition and offset the intervals read, reached and newest, see `covering.about`."""
    found: dict[tuple[int, int], dict[str, Any]] = {}
    for row in about(places, intervals).collect():
        found.setdefault(_PLACE(row), {**_UNSEEN}).update({name: row.it for name in _UNSEEN if row[name]})
    return found


def _reasons(places: DataFrame, rejected: DataFrame) -> dict[tuple[int, int], str]:
    """Return by partition and offset the reason of each record at *places* that was rejected."""
    own = rejected.join(F.broadcast(places.select(*RECORD_KEY)), [*RECORD_KEY], "left_semi")
    rows = own.groupBy(*RECORD_KEY).agg(F.max("reason").alias("reason")).collect()
    return {_PLACE(row): row["reason"] for row in rows}


# --- one timer id; rows by ascending offset --------------------------------------------------------------------------


def _judge(rows: Sequence[_Row], reasons: Mapping[tuple[int, int], str], few: Few) -> None:
    partition, timer_id, newest = (rows[0][name] for name in ("partition", "timer_id", "newest"))
    seals = intervals_about(rows, newest)
    outcomes = outcomes_in(timer_id or "", rows, seals)
    few.ignored.extend((partition, each.offset) for each in outcomes if each.state is State.IGNORED)
    appended_ms = {(seal["end_ms"], seal["fence"]): seal["appended_ms"] for seal in seals}
    requests = {row["offset"]: row for row in rows if row["kind"] == REQUEST}
    for outcome in outcomes:
        row = requests.get(outcome.offset)
        if row is None:
            continue
        if outcome.state in (State.PENDING, State.PARKED):
            far = outcome.state is State.PARKED or outcome.copied_at is not None
            few.pending.append({**row, "far": far, "copied_at": outcome.copied_at})
        elif outcome.by is not None:
            few.withdrawn.append({**row, **_UNSEALED, "taken_by": outcome.by})
        elif (seal := outcome.seal) is not None:
            few.fired.append(
                {
                    **row,
                    "reason": reasons.get(_PLACE(row)),
                    "taken_by": None,
                    "far": outcome.copied_at is not None,
                    "fence": seal.fence,
                    "sealed_in": last_second_of(seal),
                    "late": seal.end_ms > row["reached"]["end_ms"],
                    "seal_appended_ms": appended_ms[seal.end_ms, seal.fence],
                }
            )
