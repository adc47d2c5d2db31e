"""Find the timers that are still to fire, by the last seals."""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from kafka_timers.lake.covering import TIMER, by_seal, waits_longer
from kafka_timers.lake.marks import marks_of
from kafka_timers.lake.schema import RECORD_KEY, REQUEST, asked_ms


def pending(requests: DataFrame, seals: DataFrame, also: Sequence[str] = ()) -> DataFrame:
    """
    Return the requests that were not withdrawn and are not done.

    Args:
        requests: the requests in question, all copies of them, all records of their timer ids.
        seals: those in question, including the latest complete one of each partition.
        also: more columns of the requests to return.

    Returns:
        partition int, offset bigint, appended_ms bigint, second bigint, millis int, timer_id string, topic string,
        far bool (whether the lake holds it for the workers), copied_at bigint (offset of the copy that workers took),
        and those of *also*.
    """
    seal = F.max(F.struct("end_ms", "fence", "horizon_s", "horizon_from")).alias("seal")
    latest = seals.where(F.col("through").isNull()).groupBy("partition").agg(seal)
    may_be_far = waits_longer(F.col("seal.horizon_s")) | (F.col("offset") < F.col("seal.horizon_from"))
    far = F.coalesce(by_seal("seal"), F.lit(False))
    at = F.when(F.col("far"), F.col("copied_at")).otherwise(F.col("offset"))
    return (
        requests.where(F.col("kind") == REQUEST)
        .join(F.broadcast(latest), "partition", "left")
        # Nearly all that ever was is left out here, before the rest is moved to be joined.
        .where(F.coalesce(may_be_far, F.lit(False)) | ~_is_done(F.col("offset")))
        .join(marks_of(requests), [*RECORD_KEY], "left")
        .where(F.col("taken_by").isNull())
        .withColumn("far", far)
        .where(~_is_done(at))
        .select(*TIMER, "far", "copied_at", *also)
    )


def _is_done(at: Column) -> Column:
    """Return a column: whether a request that workers got *at* some offset lies before the end of its `seal`."""
    return F.coalesce((asked_ms() < F.col("seal.end_ms")) & (at < F.col("seal.fence")), F.lit(False))
