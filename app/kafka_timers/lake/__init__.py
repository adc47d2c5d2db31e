"""
The lake: jobs on Spark and Delta tables, for everything that need not be accurate to the second.

A job computes with functions DataFrame → DataFrame that know neither Kafka nor a session. A thin shell around them
reads and writes. The file map in docs/design.md has a line for each module. These names mean the same everywhere, so
docstrings do not repeat them:

    requests, seals …       a frame with rows of this table: all of them, or those in question
    intervals, outcomes     a frame with rows of `covering.intervals_of` and `covering.outcomes_of`
    callbacks               a frame with rows of `callback_records.callbacks_of`
    first, last             UNIX seconds, in which a time range begins and ends
    keep                    computes and keeps a frame, see `tables.keeping`

What asks brokers raises BrokerError if none answers within some 10 s, or one refuses. What reads or writes the lake
raises LakeError if it cannot.
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
