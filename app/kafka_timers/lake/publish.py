"""
The chain of seals, to be kept where no writer of seals may write: one line for each partition and day.

A day of a partition is published when a later one has begun in the lake, so nothing is added to it. The line has a hash
over all seals of the day, so a later change of any of them gives another line.
"""

from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from itertools import groupby

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kafka_timers.core.chain import Day, PublishedDay
from kafka_timers.lake.schema import FINDING, SEALS
from kafka_timers.lake.tables import constant, read, root_of
from kafka_timers.settings import LakeSettings

_DAY_S = 86_400

Published = Mapping[tuple[int, str], Day]


def published_days(
    spark: SparkSession, settings: LakeSettings, known: Collection[tuple[int, str]]
) -> Iterator[PublishedDay]:
    """Yield the lines to publish of the lake, day by day, except for the partitions and days that are *known*."""
    seals = read(spark, root_of(settings), SEALS)
    newest = seals.groupBy("partition").agg(F.max("day").alias("newest"))
    ended = seals.join(F.broadcast(newest), "partition").where(F.col("day") < F.col("newest"))
    there = ended.select("day", "partition").distinct().orderBy("day", "partition").collect()
    # Known days are not read again, because the table may cover years.
    lacking = [(day, number) for day, number in there if (number, day) not in known]
    for day, numbers in groupby(lacking, key=lambda each: each[0]):
        yield from _days_in(ended.where((F.col("day") == day) & F.col("partition").isin([each[1] for each in numbers])))


def changed_days(seals: DataFrame, published: Published, first: int, last: int) -> DataFrame:
    """
    Return a finding (published) for each partition and day whose seals are not those that were published.

    Only days from *first* to *last* are compared. Findings have the columns `schema.FINDING`.
    """
    dates = _dates(first, last)
    wanted = {(number, on): day for (number, on), day in published.items() if on in dates}
    found: dict[tuple[int, str], Day] = {}
    if wanted:
        there = seals.where(F.col("day").isin(sorted({on for _, on in wanted})))
        found = {(each.partition, each.date): each.day for each in _days_in(there)}
    rows = []
    for (number, on), day in sorted(wanted.items()):
        has = found.get((number, on), Day.of([]))
        if has != day:
            detail = f"the {has.seals} seals of {on} are not the {day.seals} that were published"
            rows.append(("published", number, None, min(dates[on], last), detail))
    return constant(seals.sparkSession, rows, FINDING)


def unpublished(published: Published, partitions: int, first: int, last: int) -> list[str]:
    """Return a sentence for each day from *first* to *last* of which not all *partitions* are *published*."""
    sentences = []
    for on in _dates(first, last):
        lacking = [number for number in range(partitions) if (number, on) not in published]
        if lacking:
            which = "all partitions" if len(lacking) == partitions else f"partitions {', '.join(map(str, lacking))}"
            sentences.append(f"the seals of {on} against a published chain, of {which}: the files have no line of them")
    return sentences


def _dates(first: int, last: int) -> dict[str, int]:
    """Return the days from *first* to *last*, each with its last second."""
    begin, end = (datetime.fromtimestamp(second, UTC).date() for second in (first, last))
    days = [begin + timedelta(days=each) for each in range((end - begin).days + 1)]
    epoch = date(1970, 1, 1)
    return {day.isoformat(): ((day - epoch).days + 1) * _DAY_S - 1 for day in days}


def _days_in(seals: DataFrame) -> Iterator[PublishedDay]:
    """Yield the partitions and days of *seals*; a duplicate counts once."""
    hashed = F.unhex(F.sha2(F.coalesce("value", F.lit(b"")), 256)).alias("hash")
    each = seals.select("day", "partition", "offset", hashed).dropDuplicates(["partition", "offset"])
    rows = each.orderBy("day", "partition", "offset").toLocalIterator(prefetchPartitions=True)
    for (on, number), group in groupby(rows, key=lambda row: (str(row["day"]), int(row["partition"]))):
        yield PublishedDay(number, on, Day.of([bytes(row["hash"]) for row in group]))
