"""
Compute the outcomes of few records in this process.

The rules are those of `conditions`, `versions`, `outcomes` and `pending`, for lists instead of frames: of some rows,
Spark needs a tenth of a second for each of its twenty joins and windows, and this module a few microseconds. Spark only
looks up the seals, once. test_few_records_have_the_outcomes_that_spark_computes holds both to the same results.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kafka_timers.core.wire import COPY_STALE_S
from kafka_timers.lake import tables
from kafka_timers.lake.conditions import AS_REFUSED, IGNORED, verdicts_in
from kafka_timers.lake.outcomes import covered, newest_of
from kafka_timers.lake.schema import CANCEL, COPY, REFUSED, REQUEST

__all__ = ["Few", "few_outcomes"]

_Row = Mapping[str, Any]
_PLACE = itemgetter("partition", "offset")


class Few(NamedTuple):
    """
    The outcomes of few records.

    Attributes:
        verdicts: partition, offset and verdict as in `conditions.verdicts_of`.
        outcomes: the requests in force and the refused records, with the columns of `requests` and of
            `outcomes.outcomes_of`, except sealed_ms and digests.
        pending: the requests that are to fire, with the columns of `requests` and of `pending.pending`.
    """

    verdicts: list[tuple[int, int, str]]
    outcomes: list[dict[str, Any]]
    pending: list[dict[str, Any]]


class _Marks(NamedTuple):
    """By offset of a request the offset of the first record that withdrew it, and of the copy that workers took."""

    taken_by: dict[int, int]
    copied_at: dict[int, int]


def few_outcomes(rows: Sequence[_Row], intervals: DataFrame, rejected: DataFrame) -> Few:
    """
    Return the outcomes of requests.

    Args:
        rows: rows of `requests`: the requests in question, all copies of them, all records of their timer ids.
        intervals: rows of `intervals_of`, all of these partitions.
        rejected: partition int, offset bigint and reason string of requests that went to timer-rejected.
    """
    few = Few([], [], [])
    if not rows:
        return few
    ordered = sorted(rows, key=_PLACE)
    names = ("partition", "offset", "second", "millis")
    places = tables.constant(
        intervals.sparkSession,
        [[row[name] for name in names] for row in ordered],
        "partition int, offset bigint, second bigint, millis int",
    )
    found, reasons = _found(places, intervals), _reasons(places, rejected)
    for partition, group in groupby(ordered, itemgetter("partition")):
        own = [{**row, **found[_PLACE(row)]} for row in group]
        newest, millis_from = own[0]["newest"], own[0]["millis_from"]
        verdicts = dict(_verdicts(own, newest))
        counted = [
            row | AS_REFUSED if verdicts.get(row["offset"]) == REFUSED else row
            for row in own
            if verdicts.get(row["offset"]) != IGNORED
        ]
        marks = _marks_of(counted, millis_from or 0)
        few.verdicts.extend((partition, *each) for each in verdicts.items())
        few.outcomes.extend(_outcomes_of(counted, marks, reasons))
        few.pending.extend(_pending(counted, marks, newest))
    return few


# --- what Spark looks up ---------------------------------------------------------------------------------------------


def _found(places: DataFrame, intervals: DataFrame) -> dict[tuple[int, int], dict[str, Any]]:
    """Return by partition and offset: read and reached as in `covered`, newest and millis_from as in `newest_of`."""
    found = covered(places, intervals).join(F.broadcast(newest_of(intervals)), "partition", "left")
    return {_PLACE(row): row.asDict(recursive=True) for row in found.drop("second", "millis").collect()}


def _reasons(places: DataFrame, rejected: DataFrame) -> dict[tuple[int, int], str]:
    """Return by partition and offset the reason of each record at *places* that was rejected."""
    name = ["partition", "offset"]
    own = rejected.join(F.broadcast(places.select(*name)), name, "left_semi")
    return {_PLACE(row): row["reason"] for row in own.groupBy(*name).agg(F.max("reason").alias("reason")).collect()}


# --- one partition; rows by ascending offset -------------------------------------------------------------------------


def _verdicts(rows: Sequence[_Row], newest: _Row | None) -> Iterator[tuple[int, str]]:
    histories: defaultdict[str | None, list[_Row]] = defaultdict(list)
    for row in rows:
        if row["kind"] in (REQUEST, CANCEL, COPY):
            histories[row["timer_id"]].append(row)
    for timer_id, history in histories.items():
        if timer_id is not None and any(row["condition"] is not None for row in history):
            yield from verdicts_in(timer_id, history, newest)


def _marks_of(rows: Iterable[_Row], millis_from: int) -> _Marks:
    marks = _Marks({}, {})
    last_request: dict[str, _Row] = {}
    last_ask: dict[str, int] = {}
    for row in rows:
        kind, timer_id, offset = row["kind"], row["timer_id"], row["offset"]
        if kind == COPY:
            is_stale = row["appended_ms"] // 1000 - row["decided_s"] > COPY_STALE_S
            is_overtaken = last_ask.get(timer_id, -1) >= row["decided"]
            if not is_stale and not is_overtaken:
                marks.copied_at.setdefault(row["original"], offset)
        elif kind in (REQUEST, CANCEL) and timer_id is not None:
            about = last_request.get(timer_id)
            if about and row["appended_ms"] < _due_ms(about, counts_millis=offset >= millis_from):
                marks.taken_by.setdefault(about["offset"], offset)
            last_ask[timer_id] = offset
            if kind == REQUEST:
                last_request[timer_id] = row
    return marks


def _outcomes_of(
    rows: Sequence[_Row], marks: _Marks, reasons: Mapping[tuple[int, int], str]
) -> Iterator[dict[str, Any]]:
    read = {row["offset"]: row["read"] for row in rows}
    for row in rows:
        offset, seal = row["offset"], row["reached"]
        taken_by, late, at = None, False, offset
        far: bool | None = False
        if row["kind"] == REQUEST:
            reason = reasons.get(_PLACE(row))
            taken_by, copied_at = marks.taken_by.get(offset), marks.copied_at.get(offset)
            far = _is_far(row, seal, copied_at)
            at = copied_at if far else offset
            late = at is not None and seal is not None and at >= seal["fence"]
            if late:
                seal = read[at]
        elif row["kind"] == REFUSED:
            reason, seal = row["reason"], row["read"]
        else:
            continue
        fence = seal["fence"] if seal and at is not None else None
        yield {
            **row,
            "reason": reason,
            # A request that a seal covers fires by it, in spite of records behind its fence.
            "taken_by": None if taken_by is not None and fence is not None and taken_by >= fence else taken_by,
            "far": far,
            "fence": fence,
            "sealed_in": seal and (seal["end_ms"] - 1) // 1000,
            "late": late,
            "seal_appended_ms": seal and seal["appended_ms"],
        }


def _pending(rows: Iterable[_Row], marks: _Marks, newest: _Row | None) -> Iterator[dict[str, Any]]:
    for row in rows:
        if row["kind"] != REQUEST or row["offset"] in marks.taken_by:
            continue
        copied_at = marks.copied_at.get(row["offset"])
        far = bool(_is_far(row, newest, copied_at))
        at = copied_at if far else row["offset"]
        done = newest and at is not None and at < newest["fence"] and _due_ms(row) < newest["end_ms"]
        if not done:
            yield {**row, "far": far, "copied_at": copied_at}


def _is_far(row: _Row, seal: _Row | None, copied_at: int | None) -> bool | None:
    """Tell whether a request is far for the worker that wrote *seal*, as `outcomes.by_seal` does; None is unknown."""
    if seal is None or seal["horizon_from"] is None or row["offset"] < seal["horizon_from"]:
        return copied_at is not None
    horizon_s = seal["horizon_s"]
    return None if horizon_s is None else 0 < horizon_s < row["second"] - row["appended_ms"] // 1000


def _due_ms(request: _Row, *, counts_millis: bool = True) -> int:
    return int(request["second"] * 1000 + (request["millis"] if counts_millis else 0))
