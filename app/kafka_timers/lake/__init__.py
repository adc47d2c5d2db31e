"""
The lake: jobs on Spark and Delta tables, for everything that need not be accurate to the second.

    session     the Spark session: jars, configuration, clear errors
    task_daemon the process from which Spark forks those that run Python functions
    schema      the tables: columns, types, units, and how they are partitioned
    tables      where the tables lie; reading and appending to them
    arrow       rows of Python as batches of Arrow (pure)
    folders     folders of the rows of requests (pure)
    records     records of Kafka → rows
    sealed      seals as rows, and their bytes as columns
    land        timer-request, timer-sealed and timer-rejected → tables, exactly once
    maintain    compaction and retention
    versions    requests that were withdrawn, and copies that workers have taken (pure)
    outcomes    timers that fire, and the seals that they fire by (pure)
    pending     pending timers (pure)
    conditions  records that do not count because their condition did not hold (pure)
    live        state of the live topics; publishing through Spark
    message     protobuf fields made in SQL (pure)
    buckets     seconds that are promoted together (pure)
    copies      far requests that need a copy, and the content of a copy (pure)
    promote     far requests → timer-request, as copies, before they come due
    contents    content of the callbacks, for SQL
    lookup      all records of the timers with one id or key
    few         outcomes of few records
    query       views for SQL; many cancels or moves at once
    fence       one landing at a time
    forget      removes the payloads of one person from the lake
    time_range  rows of the tables that belong to a time range
    proof       checks of the requests that seals have counted, and of links between seals (pure)
    altered     rows of requests that differ from their records (pure)
    coverage    seconds and partitions that an audit can judge
    service     identity of the cluster, and the ends of its topics
    findings    faults of the seals of a time range (pure)
    received    records of callback topics as callbacks and tombstones (pure)
    callbacks   faults of callbacks and tombstones (pure)
    batches     records of callback topics against the batches that seals name (pure)
    answers     faults of answers (pure)
    comparison  callbacks and answers, read from Kafka and compared
    audit       seals against requests, callbacks against both
    publish     the chain of seals, for storage where nobody can change it
    replay      a time range fired again on paper, also with other settings
    forecast    numbers of timers by the time when they are due
    report      results of audit, replay and forecast, for a terminal and as a page
    plots       shared parts of their plots

A job computes with functions DataFrame → DataFrame that know neither Kafka nor a session. A thin shell around them
reads and writes. These names mean the same everywhere, so docstrings do not repeat them:

    requests, seals …       a frame with rows of this table: all of them, or those in question
    intervals, outcomes     a frame with rows of `outcomes.intervals_of` and `outcomes.outcomes_of`
    callbacks               a frame with rows of `received.callbacks_of`
    first, last             UNIX seconds, in which a time range begins and ends
    keep                    computes and caches a frame, see `time_range.TimeRange`
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["views"]


def views(spark: "SparkSession", root: str, topic_prefix: str = "") -> list[str]:
    """
    Create the views of docs/lake.md in a Spark session that has Delta, as a notebook does.

    Args:
        spark: session that gets the temporary views. They show the rows that are landed at the time of each query.
        root: the lake: a folder, or a URI such as s3a://bucket/timers.
        topic_prefix: prefix of the topics of the lake's instance.

    Returns:
        names of the views.

    Raises:
        LakeError: the lake cannot be read.
    """
    # Imported here, because code that works without Spark imports this package too.
    from kafka_timers.lake.query import open_views
    from kafka_timers.lake.tables import translated
    from kafka_timers.settings import LakeSettings

    with translated(root):
        return open_views(spark, LakeSettings(lake=root, topic_prefix=topic_prefix))
