"""
Find the seconds and partitions that an audit has to judge, and those of them that it can judge.

A service that stands still appends nothing, so neither the lake nor ticks can tell the time. The host's clock does. A
second without a seal has one of three causes: nobody serves the partition, which is a finding; the seals are on their
topic, and the landing is behind; or the cause is unknown, because no broker answers.
"""

from collections.abc import Mapping
from typing import NamedTuple

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from kafka_timers.core.wire import Topics
from kafka_timers.errors import LakeError
from kafka_timers.lake.schema import FINDING, SEALS
from kafka_timers.lake.sealed import sound
from kafka_timers.lake.service import Service
from kafka_timers.lake.tables import constant, read, read_positions, root_of
from kafka_timers.settings import LakeSettings

_DAY_S = 86_400
# Seconds; a landing that is further behind is reported.
_GRACE_S = 600
# Seconds. A partition in which nothing is due is sealed every five seconds; a takeover takes some more.
_SETTLES_S = 60


class Coverage(NamedTuple):
    """
    The sealed part of a time range.

    Attributes:
        partitions: number of partitions of the service.
        sealed: first and last second of the time range that can be judged, by partition; only partitions that have any.
        unsealed: partition, second and description for each partition that nobody has sealed up to the end.
        undecided: questions that could not be decided, each as a sentence.
        planned_ends: see `Service`; empty if no broker answers.
    """

    first: int
    last: int
    partitions: int
    sealed: dict[int, tuple[int, int]]
    unsealed: list[tuple[int, int, str]]
    undecided: list[str]
    planned_ends: Mapping[int, int]

    def findings(self, spark: SparkSession) -> DataFrame:
        """Return *unsealed* as kind string, partition int, offset bigint (null), second bigint, detail string."""
        rows = [("unsealed", partition, None, second, words) for partition, second, words in self.unsealed]
        return constant(spark, rows, FINDING)


def coverage_of(
    spark: SparkSession,
    settings: LakeSettings,
    now_s: int,
    first: int | None,
    last: int | None,
    service: Service | None,
) -> Coverage:
    """
    Return the sealed part of the seconds from *first* to *last*, both included.

    Args:
        now_s: UNIX second by the host's clock.
        first: UNIX second; None for a day before the end.
        last: UNIX second; None for the last landed second, if the landing is not far behind.
        service: answer of the brokers; None if no broker answers.

    Raises:
        LakeError: nothing is landed.
    """
    root, topics = root_of(settings), Topics.of(settings.topic_prefix)
    seals, positions = read(spark, root, SEALS), read_positions(spark, root, topics.requests)
    # The tables' statistics answer this without reading the tables.
    [(newest_ms,)] = seals.agg(F.max("appended_ms")).collect()
    if newest_ms is None or not positions:
        raise LakeError(f"no seal is in the lake at {root}: run `kafka-timers lake land` first")
    # The last landed second, unless the landing is far behind.
    reached = max(newest_ms // 1000 - _SETTLES_S, now_s - _GRACE_S)
    last = min(now_s, reached if last is None else last)
    first = last - _DAY_S if first is None else first
    if first > last:
        raise LakeError(
            f"the time range would begin at {first} and end at {last}, up to which seconds are over and landed: give "
            "an earlier --from, or wait"
        )
    [(partitions,)] = seals.where(F.col("appended_ms") == newest_ms).agg(F.max("partitions")).collect()
    partitions = partitions or max(positions) + 1
    landed = constant(spark, positions.items(), "partition int, position bigint")
    complete = seals.where(F.col("through").isNull()).join(F.broadcast(landed), "partition", "left")
    is_landed = F.col("fence") <= F.col("position")
    is_judged = is_landed & F.col("last").between(first, last)

    def ends(since: int) -> dict[int, Row]:
        rows = sound(complete.where(F.col("last") >= since)).groupBy("partition")
        found = rows.agg(
            F.max(F.when(is_landed, F.col("last"))).alias("done"),
            F.max("last").alias("newest"),
            F.min(F.when(is_judged, F.col("first"))).alias("begins"),
            F.max(F.when(is_judged, F.col("last"))).alias("ends"),
        )
        return {row["partition"]: row for row in found.collect()}

    coverage = Coverage(first, last, partitions, {}, [], [], service.planned_ends if service else {})
    known = ends(first)
    if len(known.keys() & set(range(partitions))) < partitions:
        known = ends(0) | known
    seals_landed = read_positions(spark, root, topics.sealed)
    # Timers due within the last minute may not be sealed yet.
    limit = min(last, now_s - _SETTLES_S)
    for number in range(partitions):
        row = known.get(number)
        done: int | None = row["done"] if row else None
        if row and row["ends"] is not None:
            coverage.sealed[number] = max(first, row["begins"]), row["ends"]
        elif done is not None and done >= limit:
            coverage.undecided.append(f"the seal of partition {number} goes beyond the time range: give a later --to")
        if done is None or done < limit:
            is_behind = row is not None and row["newest"] >= limit
            if service:
                is_behind |= seals_landed.get(number, 0) < service.seal_ends.get(number, 0)
            _tell(coverage, number, done, is_behind=is_behind, is_known=service is not None)
    return coverage


def _tell(coverage: Coverage, number: int, done: int | None, *, is_behind: bool, is_known: bool) -> None:
    """Add to *coverage* a sentence or a finding about a partition that is not sealed up to the end."""
    words = "was never sealed" if done is None else f"is sealed up to {done}"
    landed = f"partition {number} {words} as far as is landed"
    if is_behind:
        coverage.undecided.append(f"{landed}, and the landing is behind")
    elif not is_known:
        coverage.undecided.append(f"{landed}; no Kafka answers that may have more")
    else:
        second = max(coverage.first, coverage.first if done is None else done + 1)
        detail = f"the partition {words}, timer-sealed has no more of it, and the time range ends at {coverage.last}"
        coverage.unsealed.append((number, second, detail))
