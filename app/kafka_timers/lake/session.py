"""
The Spark session of all lake jobs: the one place for jars and configuration.

A job brings no master of its own, so that the same one runs locally, by spark-submit and on Kubernetes.
"""

import os
import sys

import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from kafka_timers.dev import java
from kafka_timers.errors import KafkaSetupError, LakeError
from kafka_timers.settings import LakeSettings

__all__ = ["open_session"]

# Minor of pyspark → connector and Delta that were tested with it. Those of 4.1 and 4.2 did not resolve completely.
PACKAGES = {
    "4.0": ("org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0", "io.delta:delta-spark_2.13:4.0.1"),
}


def open_session(settings: LakeSettings, **conf: str) -> SparkSession:
    """
    Return the Spark session of this process, started when there is none.

    Args:
        settings: say where Spark runs and which jars it takes.
        conf: more of Spark's configuration; dots are written as double underscores.

    Raises:
        LakeError: there is no Java, a jar cannot be had, or Spark does not start.
    """
    raise NotImplementedError
