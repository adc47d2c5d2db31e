"""
Find rows of `requests` that differ from the records that they were made of.

A row keeps the bytes of its record, and its other columns follow from these. A changed column shows when the bytes are
judged again. Changed bytes show by the digest of the record, which is part of the sums in the seals. Findings have the
columns `schema.FINDING`, and the kind altered.
"""

from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from kafka_timers.lake.proof import digest_of_record, has_own_digest
from kafka_timers.lake.records import requests_of
from kafka_timers.lake.schema import COPY, RECORD_KEY, REQUESTS, about_records


def altered_records(requests: DataFrame) -> DataFrame:
    """
    Return a finding for each row of `requests` whose key, value, headers or append time do not match its digest.

    Copies and forgotten rows are skipped: they have no bytes.
    """
    wrong = requests.where(has_own_digest() & (digest_of_record() != F.col("digest")))
    return _findings(wrong, F.lit("its key, value, headers or append time are not those of the record that was landed"))


def altered_rows(requests: DataFrame, partitions: int) -> DataFrame:
    """
    Return a finding for each row of `requests` with a column that does not follow from the bytes of its record.

    This judges each record again as the landing did, and takes as long. Rows with changed bytes are skipped, because
    `altered_records` finds them. *partitions* is the number of partitions of timer-request.
    """
    known = requests.where((F.col("kind") != COPY) & (digest_of_record() == F.col("digest")))
    records = known.withColumn("timestamp", F.timestamp_millis("appended_ms"))
    names = [name for name in REQUESTS.columns.names if name not in (*RECORD_KEY, "appended_ms", "value")]
    anew = requests_of(records, partitions).select(*RECORD_KEY, *(F.col(name).alias(f"anew_{name}") for name in names))
    both = known.join(anew, [*RECORD_KEY])
    differs: dict[str, Column] = {name: ~F.col(name).eqNullSafe(F.col(f"anew_{name}")) for name in names}
    other = F.array_join(F.array(*(F.when(each, F.lit(name)) for name, each in differs.items())), ", ")
    wrong = both.where(reduce(or_, differs.values())).withColumn("names", other)
    return _findings(wrong, F.format_string("its record says something else of %s", "names"))


def _findings(wrong: DataFrame, detail: Column) -> DataFrame:
    second = F.coalesce("second", F.floor(F.col("appended_ms") / 1000))
    return about_records(wrong, "altered", detail, second)
