"""
The lake: everything that is not second-accurate firing, on Spark, in Delta tables.

    session     the Spark session: jars, configuration, clear errors
    schema      the tables: columns, types, units, and how they are partitioned
    tables      where the tables lie; reading and appending to them
    records     records of Kafka → rows
    small_file  a small file on the lake's storage
    land        timer-request, timer-sealed and timer-rejected → tables, exactly once
    maintain    compaction and retention
    versions    which requests were withdrawn, which copies workers have taken (pure)
    outcomes    what fires, and by which seal (pure)
    pending     what waits (pure)
    conditions  which records mean nothing, since their condition did not hold (pure)
    live        how the live topics stand; publishing through Spark
    message     protobuf fields made in SQL (pure)
    buckets     seconds that are promoted together (pure)
    copies      which far requests need a copy, and what it is (pure)
    promote     far requests → timer-request, as copies, before they come due
    contents    what callbacks are to be, for SQL
    query       views for SQL; many cancels or moves at once
    lease       one landing at a time
    forget      the payloads of one person leave the lake
    time_range  what the tables have of a time range, and no more
    proof       what seals tell of what was read, and of each other (pure)
    altered     rows that do not say what their records do (pure)
    coverage    which seconds of which partitions an audit can judge
    service     which cluster it is, and how far its topics go
    findings    what is wrong with the seals of a time range (pure)
    callbacks   what is wrong with callbacks and tombstones (pure)
    answers     what is wrong with answers (pure)
    comparison  callbacks and answers, read from Kafka and compared
    audit       seals against requests, callbacks against both
    publish     the chain of seals, to be kept where nobody can change it
    prove       what became of one timer, as a proof
    replay      a time range fired again on paper, also with other settings
    forecast    how many timers are due when
    report      what audit, replay and forecast tell, for a terminal and as a page
    plots       what is common to their plots

What a job computes is a function DataFrame → DataFrame that knows neither Kafka nor a session; around it lies a thin
shell that reads and writes.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["views"]


def views(spark: "SparkSession", root: str, topic_prefix: str = "") -> list[str]:
    """
    Make the views of docs/lake.md in a session of Spark that has Delta, as a notebook does.

    Args:
        spark: gets them as temporary views, over what is landed when they are asked.
        root: the lake: a folder, or a URI such as s3a://bucket/timers.
        topic_prefix: of the instance whose lake it is.

    Returns:
        their names.

    Raises:
        LakeError: the lake cannot be read.
    """
    # Not above: what does without Spark imports this package too.
    from kafka_timers.lake.query import open_views
    from kafka_timers.lake.tables import translated
    from kafka_timers.settings import LakeSettings

    with translated(root):
        return open_views(spark, LakeSettings(lake=root, topic_prefix=topic_prefix))
