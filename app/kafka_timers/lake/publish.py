"""
Publish the chain of seals: one line for each partition and day. Keep it where no writer of seals may write.

A day of a partition is published when a later one has begun in the lake, so nothing is added to it. The line has the
root of the tree over the day's seals, so a later change of any of them gives another line.
"""

from collections.abc import Collection, Iterator
from itertools import groupby

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kafka_timers.core.chain import Day, PublishedDay
from kafka_timers.core.chain import root_of as root_of_tree
from kafka_timers.errors import LakeError
from kafka_timers.lake.schema import SEALS
from kafka_timers.lake.tables import read, root_of
from kafka_timers.settings import LakeSettings

__all__ = ["hashes_of", "published_days"]


def published_days(
    spark: SparkSession, settings: LakeSettings, known: Collection[tuple[int, str]]
) -> Iterator[PublishedDay]:
    """
    Yield the lines to publish of the lake at *settings*, day by day.

    Args:
        spark: session to use.
        settings: settings with the lake.
        known: partitions and days to leave out.

    Raises:
        LakeError: an earlier version has landed some of the seals, without their bytes.
    """
    seals = read(spark, root_of(settings), SEALS)
    newest = seals.groupBy("partition").agg(F.max("day").alias("newest"))
    ended = seals.join(F.broadcast(newest), "partition").where(F.col("day") < F.col("newest"))
    there = ended.select("day", "partition").distinct().orderBy("day", "partition").collect()
    # Known days are not read again, because the table may cover years.
    lacking = [(day, number) for day, number in there if (number, day) not in known]
    for day, numbers in groupby(lacking, key=lambda each: each[0]):
        is_wanted = (F.col("day") == day) & F.col("partition").isin([number for _, number in numbers])
        rows = hashes_of(ended.where(is_wanted)).toLocalIterator(prefetchPartitions=True)
        for number, each in groupby(rows, key=lambda row: int(row["partition"])):
            hashes = [row["hash"] for row in each]
            if None in hashes:
                raise LakeError(
                    f"partition {number}: seals of {day} were landed by a version that kept no bytes of them"
                )
            tree = root_of_tree([bytes(each) for each in hashes])
            yield PublishedDay(number, day, Day(len(hashes), tree))


def hashes_of(seals: DataFrame) -> DataFrame:
    """
    Return partition, offset and hash (SHA-256 of the value, null if it was not landed) of *seals*, in their order.

    Args:
        seals: rows of `seals`; a duplicate counts once.
    """
    hashed = F.unhex(F.sha2("value", 256)).alias("hash")
    place = ["partition", "offset"]
    return seals.select(*place, hashed).dropDuplicates(place).orderBy(*place)
