"""A lake that is made up, of requests that are parked for years, and of one bucket that is due."""

from lake_tables import completed, delay_of, due_of
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the usual name

from kafka_timers.lake.schema import POSITIONS, REQUEST, REQUESTS
from kafka_timers.lake.tables import append, constant

DAY_S = 86_400
# One in so many has a timer id.
NAMED = 5
# How long those of the bucket have been waiting, a third of them each.
WAITED_S = (8 * DAY_S, 180 * DAY_S, 700 * DAY_S)
REST_S = 730 * DAY_S
VALUE_BYTES = 150
# Two to the power of this many seconds are two years.
_DOUBLINGS = 26


def parked(spark: SparkSession, count: int, partitions: int, bucket: range, in_bucket: int) -> DataFrame:
    """Return rows of `requests`: the first *in_bucket* due in *bucket*, the others in the two years after it."""
    number, chance = F.col("id"), F.abs(F.xxhash64("id"))
    is_due = number < in_bucket
    waited_s = F.element_at(F.array(*map(F.lit, WAITED_S)), (number % len(WAITED_S) + 1).cast("int"))
    within = F.lit(bucket.start) + F.pmod(chance, F.lit(len(bucket)))
    second = F.when(is_due, within).otherwise(F.lit(bucket.stop) + F.pmod(chance, F.lit(REST_S)))
    # The others have waited from a second to two years, as many for one to two days as for one to two minutes.
    doublings = F.pmod(F.xxhash64("id", F.lit("age")), F.lit(_DOUBLINGS * 1_000)) / 1_000
    age_s = F.pow(F.lit(2.0), doublings).cast("bigint")
    appended_s = F.when(is_due, second - waited_s).otherwise(F.lit(bucket.start) - age_s)
    random = F.concat(*(F.unhex(F.sha2(F.concat("id", F.lit(f" {part}")), 256)) for part in range(5)))
    rows = spark.range(0, count, 1, 16).select(
        (number % partitions).cast("int").alias("partition"),
        F.floor(number / partitions).alias("offset"),
        (appended_s * 1000).alias("appended_ms"),
        F.lit(REQUEST).alias("kind"),
        second.alias("second"),
        F.lit(0).alias("millis"),
        F.lit("callbacks").alias("topic"),
        F.when(number % NAMED == 0, F.concat(F.lit("order-"), number)).alias("timer_id"),
        F.substring(random, 1, VALUE_BYTES).alias("value"),
    )
    rows = rows.withColumn("delay", delay_of(F.col("second"), F.col("appended_ms")))
    return completed(rows, REQUESTS, due=due_of(F.col("second"), F.col("delay")))


def make(spark: SparkSession, root: str, count: int, partitions: int, bucket: range, in_bucket: int) -> None:
    """Make a lake of them."""
    append(parked(spark, count, partitions, bucket, in_bucket), root, REQUESTS)


def landed(spark: SparkSession, root: str, topic: str, count: int, partitions: int) -> None:
    """Let it be of *topic*."""
    rows = [(topic, number, count // partitions, 0, None, None) for number in range(partitions)]
    append(constant(spark, rows, POSITIONS.columns), root, POSITIONS)
