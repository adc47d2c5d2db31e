"""
Find the records that do not count, because the condition that they came with did not hold.

Whether a condition held depends on all earlier records of its timer id. So the workers' own code (`core.outcomes`)
judges it, one id at a time. It also judges requests that were sent on from another partition, which a cancel may have
overtaken. Only ids that have a record with a condition are judged. Where there is none, this costs a look at the
tables' statistics. All other modules of the lake get the remaining records and need not know of conditions.

    offset  request, condition                 record for the other modules
    #10     second 50                          #10
    #11     cancel, IF_PENDING, only of #7     none: ignored
    #12     second 60, IF_ABSENT               none: ignored
    #13     second 70, IF_PENDING              #13, which withdraws #10
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from kafka_timers.core.outcomes import Outcome, State, outcomes_of
from kafka_timers.core.wire import Condition, Copy, Future, Sealed
from kafka_timers.lake.arrow import record_batch
from kafka_timers.lake.covering import covered, newest_of
from kafka_timers.lake.message import bytes_of, number, text
from kafka_timers.lake.schema import CANCEL, COPY, ID_KEY, RECORD_KEY, REQUEST, day_of

# Length of the bytes of `no_condition`, where there are any.
NO_CONDITION_BYTES = 3 + 5

# Columns of `ignored_in`.
PLACE = "partition int, offset bigint"


def has_conditions(requests: DataFrame) -> bool:
    """Tell whether any of *requests* has a condition. If none has, the files' statistics suffice for the answer."""
    return not requests.where(F.col("condition").isNotNull()).isEmpty()


def history_of(requests: DataFrame, among: DataFrame) -> DataFrame:
    """Return all rows of *requests* that share a timer id with one of *among*, some of them, that has a condition."""
    ids = among.where(F.col("condition").isNotNull()).select(*ID_KEY).distinct()
    return requests.where(F.col("timer_id").isNotNull()).join(ids, [*ID_KEY], "left_semi")


def days_about(history: DataFrame) -> list[str]:
    """
    Return the days whose seals cover *history*: the days of each record's append and second, and the day after each.

    A partition where nothing is due is sealed many times a day.
    """
    moments = F.array(F.floor(F.col("appended_ms") / 1000), F.col("second"))
    at = F.explode(F.array_compact(moments))
    days = history.select(at.alias("at")).select(F.explode(F.array(F.col("at"), F.col("at") + 86_400)).alias("at"))
    return sorted(row[0] for row in days.select(day_of(F.col("at"))).distinct().collect())


def no_condition() -> Column:
    """
    Return bytes that remove the condition of a request when they follow its value: binary, mostly empty.

    The condition was judged when the request was read, and a copy must count without it. If a message has a field
    twice, the last one counts.
    """
    condition = number(Future.CONDITION_FIELD_NUMBER, F.lit(0), 2)
    none = bytes_of(condition, text(Future.IFREQUEST_FIELD_NUMBER, F.lit("")))
    return F.when(F.col("condition").isNotNull(), none).otherwise(F.lit(b""))


def ignored_in(history: DataFrame, intervals: DataFrame) -> DataFrame:
    """
    Return the records of *history* whose condition did not hold: the columns `PLACE`.

    Args:
        history: all requests, cancels and copies of each timer id that has a condition.
        intervals: the last one of each partition, and those around each of these records.
    """
    names = (
        *("offset", "appended_ms", "kind", "second", "millis", "condition", "expected"),
        *("original", "original_s", "decided", "decided_s", "sent_from"),
    )
    records = history.where(F.col("kind").isin(REQUEST, CANCEL, COPY)).select(*ID_KEY, *names)
    # Seals that are not needed change nothing.
    both = covered(records, intervals)
    record = F.struct(*names, "read", "reached")
    return (
        both.groupBy(*ID_KEY)
        .agg(F.sort_array(F.collect_list(record)).alias("records"))
        .join(F.broadcast(newest_of(intervals)), "partition", "left")
        .select("partition", "timer_id", "records", "newest")
        .mapInArrow(_ignored_batches, PLACE)
    )


def in_force(requests: DataFrame, ignored: DataFrame) -> DataFrame:
    """Return the *requests* that count. *ignored*, rows of `ignored_in`, must fit the memory of every executor."""
    has_condition = F.col("condition").isNotNull()
    held = requests.where(has_condition).join(F.broadcast(ignored), [*RECORD_KEY], "left_anti")
    return requests.where(~has_condition).unionByName(held.select(requests.columns))


# --- one timer id ----------------------------------------------------------------------------------------------------


def _ignored_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = []
        for row in batch.to_pylist():
            records = row["records"]
            outcomes = outcomes_in(row["timer_id"], records, intervals_about(records, row["newest"]))
            rows += [(row["partition"], each.offset) for each in outcomes if each.state is State.IGNORED]
        yield record_batch(rows, PLACE)


class _Asked:
    """A record as `outcomes_of` takes it, made from its row. Fields without a part in the rules are left out."""

    headers: Sequence[tuple[str, bytes | None]] = ()

    def __init__(self, timer_id: str, row: Mapping[str, Any]) -> None:
        self.offset: int = row["offset"]
        self.timestamp: int = row["appended_ms"]
        self.key: bytes | None = None if row["second"] is None else b"%d" % row["second"]
        # A row that was changed is reported as `altered`. Values that no record can have are left out here.
        condition, millis = row["condition"], row["millis"] or 0
        # The records of an id are judged like those of a topic with one partition.
        future = Future(
            callBackTopic="-",
            timerId=timer_id,
            millis=millis if millis in range(1000) else 0,
            cancel=row["kind"] == CANCEL,
            condition=condition if condition in Condition.DESCRIPTOR.values_by_name else None,
            ifRequest=None if row["expected"] is None else f"0:{row['expected']}",
        )
        if row["sent_from"] is not None:
            future.forwarded.appendedMs = row["sent_from"]["appended_ms"]
        if row["kind"] == COPY:
            copy = (row["original"], row["original_s"], row["decided"], row["decided_s"])
            names = ("offset", "appended", "decidedOffset", "decided")
            future.copy.CopyFrom(Copy(**dict(zip(names, copy, strict=True))))
        self.value: bytes | None = future.SerializeToString()


def outcomes_in(timer_id: str, rows: Sequence[Mapping[str, Any]], seals: Iterable[Mapping[str, Any]]) -> list[Outcome]:
    """
    Return the outcomes of the records of one timer id, or of one request without an id (an empty one) and its copies.

    *rows* have ascending offsets, and *seals* are the intervals about them, see `intervals_about`.
    """
    names = ("end_ms", "fence", "horizon_s", "horizon_from")
    sealed = [Sealed(**{name: seal[name] for name in names}) for seal in seals]
    return outcomes_of([_Asked(timer_id, row) for row in rows], sealed, 0, 1, whole=True)


def intervals_about(rows: Iterable[Mapping[str, Any]], newest: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """
    Return the intervals on which the outcomes of *rows* depend, in their order.

    *rows* have `read` and `reached`, see `covered`. *newest* is the last interval of the partition, or None.
    """
    found = (interval for row in rows for interval in (row["read"], row["reached"], newest) if interval)
    return [seal for _, seal in sorted({(each["end_ms"], each["fence"]): each for each in found}.items())]
