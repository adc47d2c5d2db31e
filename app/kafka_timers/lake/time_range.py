"""Read the lake's rows for a time range, and no more than needed, because the tables may cover years."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from kafka_timers.core.wire import Topics
from kafka_timers.errors import LakeError
from kafka_timers.lake.conditions import days_about, has_conditions, history_of, ignored_in, in_force
from kafka_timers.lake.covering import intervals_of, is_refused, outcomes_of, totals
from kafka_timers.lake.schema import CANCEL, COPY, ID_KEY, REQUESTS, SEALS
from kafka_timers.lake.sealed import sound
from kafka_timers.lake.tables import (
    CONSTANT_ROWS_MAX,
    constant,
    keeping,
    read,
    read_positions,
    read_rejected,
    root_of,
)
from kafka_timers.settings import LakeSettings

_DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class TimeRange:
    """
    Landed rows of a time range: all that is needed to compute the timers that fire in it.

    Attributes:
        intervals: see `intervals_of`; from the last one before the time range on, in each partition.
        sealed: see `totals`, from the same seals.
        seals: these seals, as rows of `seals`.
        appended: offsets between the first and the last fence of these seals: partition int, since bigint, to bigint.
        requests: see `outcomes_of`, like changes and rejected.
        keep: see `tables.keeping`; it caches frames until the time range is closed.
    """

    first: int
    last: int
    intervals: DataFrame
    sealed: DataFrame
    seals: DataFrame
    appended: DataFrame
    requests: DataFrame
    changes: DataFrame
    rejected: DataFrame
    keep: Callable[[DataFrame], DataFrame]

    def outcomes(self, horizon_s: int | None = None, intervals: DataFrame | None = None) -> DataFrame:
        """Return the outcomes of the requests, see `outcomes_of`; by other *intervals* than those of the seals."""
        sealed = self.intervals if intervals is None else intervals
        return outcomes_of(self.requests, sealed, self.rejected, horizon_s, changes=self.changes, keep=self.keep)

    def refused(self) -> DataFrame:
        """Return those of `outcomes` that were refused when they were read, without computing the others."""
        refused = self.requests.where(is_refused())
        return outcomes_of(refused, self.intervals, self.rejected)


@contextmanager
def time_range_of(
    spark: SparkSession, settings: LakeSettings, first: int | None, last: int | None, *, may_be_empty: bool = False
) -> Iterator[TimeRange]:
    """
    Yield the lake's rows for the seconds from *first* to *last*, both included.

    Seals that count requests which have not been landed are left out, as if they were not there yet.

    Args:
        first: UNIX second; None for a day before the end.
        last: UNIX second; None for the last sealed one.
        may_be_empty: allow a time range in which nothing is sealed.

    Raises:
        LakeError: nothing is sealed in the time range.
    """
    with keeping() as keep:
        yield _read(spark, settings, first, last, keep, may_be_empty=may_be_empty)


def _read(
    spark: SparkSession,
    settings: LakeSettings,
    first: int | None,
    last: int | None,
    keep: Callable[[DataFrame], DataFrame],
    *,
    may_be_empty: bool,
) -> TimeRange:
    root, topic = root_of(settings), Topics.of(settings.topic_prefix).requests
    seals = read(spark, root, SEALS)
    landed = read_positions(spark, root, topic)
    # The tables' statistics answer this without reading the tables.
    [(newest_s,)] = seals.agg(F.max("last")).collect()
    if newest_s is None or not landed:
        raise LakeError(f"no seal is in the lake at {root}: run `kafka-timers lake land` first")
    last = newest_s if last is None else min(last, newest_s)
    first = last - _DAY_S if first is None else first
    positions = constant(spark, landed.items(), "partition int, position bigint")
    seals = seals.where(F.col("last") <= last).join(F.broadcast(positions), "partition")
    seals = seals.where(F.col("fence") <= F.col("position"))
    complete = seals.where(F.col("through").isNull())
    if not may_be_empty and complete.where(F.col("last") >= first).isEmpty():
        raise LakeError(
            f"nothing is sealed from {first} to {last} in the lake at {root}, or not all requests of it are landed: "
            "run `kafka-timers lake land`, or give another --from and --to"
        )
    before = _last_before(complete, first, len(landed))
    starts = [(partition, *before.get(partition, (0, 0))) for partition in landed]
    start = constant(spark, starts, "partition int, start_ms bigint, since bigint")
    seals = seals.join(F.broadcast(start), "partition").where(F.col("end_ms") >= F.col("start_ms"))
    # The seals beside one that is left out show it.
    seals = keep(sound(seals))
    # The last second in which all partitions are done.
    from_second = min(start_ms for _, start_ms, _ in starts) // 1000 - 1
    from_offset = min(passed for _, _, passed in starts)
    return TimeRange(
        first,
        last,
        keep(intervals_of(seals)),
        keep(totals(seals)),
        seals,
        seals.groupBy("partition").agg(F.min("since").alias("since"), F.max("fence").alias("to")),
        *requests_of(read(spark, root, REQUESTS), complete, from_second, from_offset, last, keep),
        # No request is rejected before its second.
        read_rejected(spark, root, topic).where(F.col("appended_ms") >= first * 1000).drop("appended_ms"),
        keep,
    )


def requests_of(
    requests: DataFrame,
    seals: DataFrame,
    after: int,
    offset: int,
    last: int,
    keep: Callable[[DataFrame], DataFrame] = lambda frame: frame,
) -> tuple[DataFrame, DataFrame]:
    """
    Return the requests that may be due in a time range and were not ignored, with all records that may change them.

    The second frame has those of them that may change a request: see `outcomes_of`. The conditions let Delta skip files
    by their column statistics.

    Args:
        seals: seals to judge by; read for the timer ids that have a condition.
        after: UNIX second; all requests due until then and below *offset* were done before the time range.
        offset: see *after*.
        keep: for few requests, and for the records that share a timer id, which are looked for in all that was landed
            since.
    """
    table = requests.drop("value", "key", "headers", "digest", "forgotten_s", "due")
    named, is_copy, is_cancel = F.col("timer_id").isNotNull(), F.col("kind") == COPY, F.col("kind") == CANCEL

    def due_since(second: Column) -> Column:
        in_time = F.col("second").isNull() | (F.col("second") <= last)
        return in_time & (second | (F.col("offset") >= offset))

    is_due = due_since(F.col("second") > after)
    made_ms = F.when(is_copy, F.col("original_s") * 1000).otherwise(F.col("appended_ms"))
    oldest = (F.min(F.when(is_copy, F.col("second"))), F.min(F.when(named & ~is_cancel, made_ms)))
    [(late_copy_s, named_ms, count)] = table.where(is_due).agg(*oldest, F.count(F.lit(1))).collect()
    if late_copy_s is not None and late_copy_s <= after:
        # It was promoted too late. Its original and earlier copies are due in the same second.
        is_due = due_since(F.col("second") >= late_copy_s)
    # A cancel whose request is not due concerns none of these.
    due = table.where(is_due & (~named | ~is_cancel))
    if count <= CONSTANT_ROWS_MAX:
        # More of them would fill the memory.
        due = keep(due)
    copies = due.where(~named & is_copy)
    if named_ms is None:
        return due, copies
    # Most ids have one record only, which nothing changes. Ids are compared by a hash, which is smaller; if two have
    # the same one, needless rows do no harm.
    # The names of all others differ, because a join may gather the rows of a name.
    name = F.when(named, F.xxhash64(*ID_KEY).bitwiseOR(1)).otherwise(F.col("offset") * 2).alias("name")
    since = table.where(named & (F.col("appended_ms") >= named_ms))
    by_name = since.groupBy(name).agg(
        F.count(F.lit(1)).alias("records"), F.bool_or(is_due & ~is_cancel).alias("is_due")
    )
    shared = keep(by_name.where("is_due AND records > 1").select("name"))
    related = keep(since.withColumn("name", name).join(shared, "name", "semi").drop("name"))
    alone = due.withColumn("name", name).join(shared, "name", "anti").drop("name")
    found = alone.unionByName(related)
    if has_conditions(found):
        # Whether a condition held may depend on requests that were done long before.
        history = keep(history_of(table, found))
        around = seals.where(F.col("day").isin(days_about(history)) | (F.col("last") >= after))
        judged = in_force(history, keep(ignored_in(history, intervals_of(around))))
        ids = keep(history.select(*ID_KEY).distinct())
        alone, related = (rows.join(ids, [*ID_KEY], "anti") for rows in (alone, related))
        related = related.unionByName(judged)
    return alone.unionByName(related), related.unionByName(copies)


def _last_before(complete: DataFrame, second: int, partitions: int) -> dict[int, tuple[int, int]]:
    """Return end_ms and fence of each partition's last seal that ended before *second*, usually from the day before."""
    found: dict[int, tuple[int, int]] = {}
    # A seal with a changed second must not begin a time range in which it ends.
    complete = complete.where(F.col("end_ms") <= second * 1000)
    for since in (second - _DAY_S, 0):
        ended = complete.where(F.col("last").between(since, second - 1)).groupBy("partition")
        latest = ended.agg(F.max(F.struct("end_ms", "fence")).alias("latest")).select("partition", "latest.*")
        found |= {row[0]: (row[1], row[2]) for row in latest.collect()}
        if len(found) == partitions:
            break
    return found
