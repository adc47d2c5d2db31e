"""How fast audit and queries are: a lake that is made up, of requests that fire and the seals that say so."""

import time
from pathlib import Path
from typing import NamedTuple

from lake_tables import completed
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the usual name

from kafka_timers.core.wire import Future
from kafka_timers.lake import message
from kafka_timers.lake.audit import audit
from kafka_timers.lake.outcomes import figures, fires, last_second, outcomes_of
from kafka_timers.lake.replay import synthetic_intervals
from kafka_timers.lake.schema import CANCEL, POSITIONS, REQUEST, REQUESTS, SEALS, delay_of, due_of
from kafka_timers.lake.tables import append, constant, read, root_of
from kafka_timers.settings import LakeSettings

PARTITIONS, START_S = 8, 1_900_000_000
# Of a thousand records: with a timer id, and cancels of it.
NAMED, CANCELS = 200, 20
WAIT_S_MAX = 7_200


def requested(spark: SparkSession, records: int, span_s: int) -> DataFrame:
    """Return *records* rows of `requests`, made within *span_s* seconds, due within two hours."""
    number, chance = F.col("id"), F.pmod(F.xxhash64("id"), F.lit(1000))
    offset = F.floor(number / PARTITIONS)
    appended_ms = F.lit(START_S * 1000) + F.floor(number * span_s * 1000 / records)
    kind = F.when(chance < CANCELS, CANCEL).otherwise(REQUEST)
    is_request = F.col("kind") == REQUEST
    # A cancel is of the timer eight hundred records before it in its partition, if that has an id.
    named = F.when(F.col("kind") == CANCEL, offset - 800).when(chance < NAMED, offset)
    second = F.floor(F.col("appended_ms") / 1000) + 1 + F.pmod(F.xxhash64("id", F.lit(1)), F.lit(WAIT_S_MAX))
    rows = (
        spark.range(0, records, 1, 8)
        .select(
            "id",
            (number % PARTITIONS).cast("int").alias("partition"),
            offset.alias("offset"),
            appended_ms.alias("appended_ms"),
            kind.alias("kind"),
        )
        .withColumns(
            {
                "second": F.when(is_request, second),
                "millis": F.when(is_request, F.lit(0)),
                "topic": F.when(is_request, F.concat(F.lit("topic-"), number % 4)),
                "timer_id": F.when(named.isNotNull(), F.concat(F.lit("order-"), "partition", F.lit("-"), named)),
                "value": F.lit(b""),  # is not read
                "delay": F.when(is_request, delay_of(F.col("second"), F.col("appended_ms"))).otherwise("none"),
            }
        )
    )
    at = F.coalesce("second", F.floor(F.col("appended_ms") / 1000))
    return completed(rows.drop("id"), REQUESTS, due=due_of(at, F.col("delay")))


def sealed(requests: DataFrame, span_s: int) -> DataFrame:
    """Return rows of `seals` that count the fired *requests*, with a tick each second."""
    spark, last = requests.sparkSession, START_S + span_s
    known = requests.select("partition", "offset", "appended_ms")
    intervals = synthetic_intervals(known, START_S + 1, last, 1)
    none = constant(spark, [], "partition int, offset bigint, reason string")
    fired = figures(fires(outcomes_of(requests, intervals, none)), "partition", F.col("sealed_ms").alias("end_ms"))
    seals = intervals.withColumn("last", last_second(F.col("end_ms"))).where(F.col("last") <= last)
    seals = seals.join(fired, ["partition", "end_ms"], "left")
    seals = seals.fillna(0, ["due", "fired", "rejected", "digest"]).withColumns(
        {
            "first": F.col("last"),
            "first_ms": F.col("last") * 1000,
            "offset": F.col("last") - START_S,
            "appended_ms": F.col("last") * 1000 + 50,
            "worker": F.lit("made up"),
        }
    )
    return completed(seals, SEALS, day=due_of(F.col("last"), F.lit("day")))


def with_keys(requests: DataFrame) -> DataFrame:
    """Return *requests* with values of which queries read the callback's key, `key-` and the partition and offset."""
    key = F.concat(F.lit("key-"), "partition", F.lit("-"), "offset")
    value = message.bytes_of(message.text(Future.CALLBACKKEY_FIELD_NUMBER, key))
    return requests.withColumn("value", F.when(F.col("kind") == REQUEST, value).otherwise(F.lit(b"")))


def make(spark: SparkSession, settings: LakeSettings, requests: DataFrame, span_s: int) -> None:
    """Make the lake of *requests*, made within *span_s* seconds, and of their seals."""
    root = root_of(settings)
    append(requests, root, REQUESTS)
    append(sealed(read(spark, root, REQUESTS), span_s), root, SEALS)
    ends = read(spark, root, REQUESTS).groupBy("partition").agg(F.max("offset")).collect()
    positions = [("timer-request", number, last + 1, START_S, None) for number, last in ends]
    append(constant(spark, positions, POSITIONS.columns), root, POSITIONS)


class Measured(NamedTuple):
    """Seconds that the first audit took, and of each further one requests and seals a second."""

    first_s: float
    rates: list[float]


def measure(spark: SparkSession, folder: Path, records: int, times: int) -> Measured:
    """Make a lake below *folder*, and audit all of it."""
    settings, span_s = LakeSettings(lake=str(folder)), 10_000
    make(spark, settings, requested(spark, records, span_s), span_s)
    count = records + PARTITIONS * span_s
    took_s = []
    for number in range(times + 1):
        start = time.monotonic()
        now_s = START_S + span_s + number
        told = audit(spark, settings, now_s, first=START_S, last=START_S + span_s)
        took_s.append(time.monotonic() - start)
        assert not told.kinds, told.findings
    return Measured(took_s[0], [count / each for each in took_s[1:]])
