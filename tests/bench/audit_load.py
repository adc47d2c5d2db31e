"""How fast audit and queries are: a lake that is made up, of requests that fire and the seals that say so."""

import hashlib
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from lake_tables import completed, delay_of, due_of
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the usual name

from kafka_timers.core.wire import FORMAT, Future, Sealed
from kafka_timers.lake import message
from kafka_timers.lake.audit import audit
from kafka_timers.lake.covering import figures, fires, outcomes_of
from kafka_timers.lake.proof import digest_of_record
from kafka_timers.lake.replay import synthetic_intervals
from kafka_timers.lake.schema import CANCEL, POSITIONS, REQUEST, REQUESTS, SEALS
from kafka_timers.lake.sealed import seals_of
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
                "delay": F.when(is_request, delay_of(F.col("second"), F.col("appended_ms"))).otherwise("none"),
            }
        )
    )
    at = F.coalesce("second", F.floor(F.col("appended_ms") / 1000))
    return completed(rows.drop("id"), REQUESTS, due=due_of(at, F.col("delay")))


def with_bytes(requests: DataFrame) -> DataFrame:
    """Return *requests* with the bytes of records, and their digests: a callback key `key-PARTITION-OFFSET` each."""
    is_request = F.col("kind") == REQUEST
    key = F.concat(F.lit("key-"), "partition", F.lit("-"), "offset")
    value = message.bytes_of(message.text(Future.CALLBACKKEY_FIELD_NUMBER, key))
    rows = requests.withColumns(
        {
            "key": F.coalesce(F.col("second").cast("string"), "timer_id").cast("binary"),
            "value": F.when(is_request, value).otherwise(F.lit(b"")),
        }
    )
    return rows.withColumn("digest", digest_of_record())


def sealed(requests: DataFrame, span_s: int) -> DataFrame:
    """Return rows of `seals` that count the *requests*, with a tick each second, each naming the one before it."""
    spark, last = requests.sparkSession, START_S + span_s
    known = requests.select("partition", "offset", "appended_ms")
    intervals = synthetic_intervals(known, START_S + 1, last, 1)
    none = constant(spark, [], "partition int, offset bigint, reason string")
    fired = figures(fires(outcomes_of(requests, intervals, none)), "partition", F.col("sealed_ms").alias("end_ms"))
    # Each tick reads what was appended in the second before it.
    end_ms = ((F.floor(F.col("appended_ms") / 1000) + 2) * 1000).alias("end_ms")
    is_cancel = F.col("kind") == CANCEL
    counts = {
        "near": F.count_if(~is_cancel),
        "near_digest": F.sum(F.when(~is_cancel, F.col("digest"))),
        "cancels": F.count_if(is_cancel),
        "cancels_digest": F.sum(F.when(is_cancel, F.col("digest"))),
    }
    came = requests.groupBy("partition", end_ms).agg(*(count.alias(name) for name, count in counts.items()))
    seals = intervals.where(F.col("end_ms") <= last * 1000 + 1000)
    seals = seals.join(fired, ["partition", "end_ms"], "left").join(came, ["partition", "end_ms"], "left").fillna(0)
    rows, read, before = [], dict[int, Counter[str]](), dict[int, bytes]()
    for row in seals.orderBy("end_ms").collect():
        read.setdefault(row.partition, Counter()).update({name: row[name] for name in counts})
        value = _seal(row, read[row.partition], before.get(row.partition, b""))
        before[row.partition] = hashlib.sha256(value).digest()
        rows.append((row.partition, row.end_ms // 1000 - START_S, row.end_ms + 50, value))
    made = constant(spark, rows, "partition int, offset bigint, at_ms bigint, value binary").repartition(PARTITIONS)
    return seals_of(made.withColumn("timestamp", F.timestamp_millis("at_ms")))


def _seal(row: Row, read: Mapping[str, int], before: bytes) -> bytes:
    last = row.end_ms // 1000 - 1
    seal = Sealed(partition=row.partition, first_ms=last * 1000, end_ms=(last + 1) * 1000, previous=before)
    seal.first_ms, seal.end_ms, seal.fence = last * 1000, row.end_ms, row.fence
    seal.due, seal.fired, seal.fired_digest = row.due, row.fired, row.digest % 2**64
    seal.worker, seal.partitions = "made up", PARTITIONS
    seal.read_from, seal.format = 0, FORMAT
    seal.near.count, seal.near.digest = read["near"], read["near_digest"] % 2**64
    seal.cancels.count, seal.cancels.digest = read["cancels"], read["cancels_digest"] % 2**64
    seal.far.count = 0
    return seal.SerializeToString()


def make(spark: SparkSession, settings: LakeSettings, records: int, span_s: int) -> None:
    """Make the lake of so many requests, made within *span_s* seconds, and of their seals."""
    root = root_of(settings)
    append(with_bytes(requested(spark, records, span_s)), root, REQUESTS)
    append(sealed(read(spark, root, REQUESTS), span_s), root, SEALS)
    end = -(-records // PARTITIONS)
    positions = [("timer-request", number, end, START_S, None, None) for number in range(PARTITIONS)]
    append(constant(spark, positions, POSITIONS.columns), root, POSITIONS)


class Measured(NamedTuple):
    """Seconds that the first audit took, and of each further one requests and seals a second."""

    first_s: float
    rates: list[float]


def measure(spark: SparkSession, folder: Path, records: int, times: int) -> Measured:
    """Make a lake below *folder*, and audit all of it."""
    settings, span_s = LakeSettings(lake=str(folder)), 10_000
    make(spark, settings, records, span_s)
    count = records + PARTITIONS * span_s
    took_s = []
    for number in range(times + 1):
        start = time.monotonic()
        now_s = START_S + span_s + number
        told = audit(spark, settings, now_s, first=START_S, last=START_S + span_s)
        took_s.append(time.monotonic() - start)
        assert not told.kinds, told.findings
    return Measured(took_s[0], [count / each for each in took_s[1:]])
