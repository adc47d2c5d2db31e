"""
Compare the records that were sent on to the partition of their timer id with the records that were made of them.

A worker adds a field to the value and leaves the rest as it was (docs/design.md, ADR-35). Findings have the columns
`schema.FINDING`.
"""

from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kafka_timers.lake.schema import FOREIGN, FORWARDED, RECORD_KEY, about_records


def sent_on_findings(refused: DataFrame, requests: DataFrame, first: int, last: int, settled_ms: int) -> DataFrame:
    """
    Return the faults (forwarded) of records that were sent on in a time range, and of those that arrived in it.

    Args:
        refused: outcomes of the records that were refused or sent on, sealed in the time range. Of seals that were
            appended later than *settled_ms* the records may not be landed yet that they sent on.
        requests: the table.
        first: UNIX second, like *last*, which is included.
    """
    left = refused.where((F.col("reason") == FORWARDED) & (F.col("seal_appended_ms") <= settled_ms))
    left = left.select(*RECORD_KEY, F.col("sealed_in").alias("second"))
    came = requests.where(F.col("sent_from.offset").isNotNull())
    came = came.select(
        *(F.col(f"sent_from.{name}").alias(name) for name in RECORD_KEY),
        F.struct(*RECORD_KEY, "appended_ms", "key", "value", "forgotten_s").alias("came"),
    )
    # A record arrives after it was appended at first, which lets Delta skip files.
    [(oldest_ms,)] = refused.where(F.col("reason") == FORWARDED).agg(F.min("appended_ms")).collect()
    own = requests.where(F.col("kind") == FOREIGN)
    own = own.select(*RECORD_KEY, "key", "value", "forgotten_s", F.lit(True).alias("is_known"))
    arrived = came.where(F.col("came.appended_ms") >= (last * 1000 if oldest_ms is None else oldest_ms))
    arrived = arrived.groupBy(*RECORD_KEY).agg(F.count(F.lit(1)).alias("times"), F.min("came").alias("came"))
    both = left.join(arrived, [*RECORD_KEY], "left").join(own, [*RECORD_KEY], "left")
    at = F.format_string("%d:%d", "came.partition", "came.offset")
    is_other = ~F.startswith("came.value", "value") | ~F.col("key").eqNullSafe(F.col("came.key"))
    # What `lake forget` has deleted cannot be compared.
    is_other &= F.coalesce("forgotten_s", "came.forgotten_s").isNull()
    wrong = F.coalesce(
        F.when(F.col("times").isNull(), "it was sent on to the partition of its timer id, and no record came of it"),
        F.when(F.col("times") > 1, F.format_string("it was sent on %d times, first as record %s", "times", at)),
        F.when(is_other, F.format_string("it was sent on as record %s, with another key or value", at)),
    )
    in_range = F.col("came.appended_ms").between(first * 1000, last * 1000 + 999)
    unknown = came.where(in_range).join(own, [*RECORD_KEY], "left").where(F.col("is_known").isNull())
    unknown = unknown.withColumn("from", F.format_string("%d:%d", *RECORD_KEY)).select("from", "came.*")
    strange = F.format_string("it says that it was sent on as record %s, and that one was not to be sent on", "from")
    found = (
        about_records(both.withColumn("detail", wrong).where("detail IS NOT NULL"), "forwarded", F.col("detail")),
        about_records(unknown, "forwarded", strange, F.floor(F.col("appended_ms") / 1000)),
    )
    return reduce(DataFrame.unionByName, found)
