"""
The Spark session of all lake jobs: the one place for jars and configuration.

A job brings no master of its own, so that the same one runs locally, by spark-submit and on Kubernetes.
"""

import os
import sys
from collections.abc import Mapping

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


_CONF = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Days and months are those of UTC, wherever a job runs.
    "spark.sql.session.timeZone": "UTC",
    # Digests are sums modulo 2^64.
    "spark.sql.ansi.enabled": "false",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.ui.showConsoleProgress": "false",
}


def open_session(settings: LakeSettings, conf: Mapping[str, str] | None = None) -> SparkSession:
    """
    Return the Spark session of this process, started when there is none.

    Args:
        settings: say where Spark runs and which jars it takes.
        conf: more of Spark's configuration.

    Raises:
        LakeError: there is no Java, a jar cannot be had, or Spark does not start.
    """
    minor = ".".join(pyspark.__version__.split(".")[:2])
    if not settings.packages and minor not in PACKAGES:
        raise LakeError(
            f"no Kafka connector and no Delta were tested with pyspark {minor}: install one of {', '.join(PACKAGES)}, "
            "or name their Maven coordinates with --packages"
        )
    try:
        # Spark's scripts take JAVA_HOME, else what is on the path, and would fail on too old a one without a word.
        os.environ["JAVA_HOME"] = str(java.find().resolve().parents[1])
    except KafkaSetupError as error:
        raise LakeError(f"Spark cannot start. {error}") from error
    # The Python of the executors is that of the driver, where they share a machine.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("kafka-timers")
    if settings.master:
        builder = builder.master(settings.master)
    packages = settings.packages or ",".join(PACKAGES[minor])
    for key, value in {**_CONF, "spark.jars.packages": packages, **(conf or {})}.items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except PySparkException as error:
        raise LakeError(
            f"Spark does not start ({error}): its own words are above. Without a way to a Maven repository, give the "
            "jars with spark.jars and --packages none"
        ) from error
