"""
The Spark session of all lake jobs: the one place for jars and configuration.

A job brings no master of its own, so that the same one runs locally, by spark-submit and on Kubernetes. Where it starts
Spark itself, it also keeps Spark's own log to itself, unless asked for all with --log-level debug.
"""

import fcntl
import logging
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import BinaryIO

import pyspark
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from kafka_timers.broker.connection import Kafka
from kafka_timers.dev import java
from kafka_timers.dev.jars import caches
from kafka_timers.errors import KafkaSetupError, LakeError
from kafka_timers.settings import LakeSettings

__all__ = ["kafka_options", "open_session", "quiet"]

log = logging.getLogger(__name__)

# Minor of pyspark → connector and Delta that were tested with it. Those of 4.1 and 4.2 did not resolve completely.
PACKAGES = {
    "4.0": ("org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0", "io.delta:delta-spark_2.13:4.0.1"),
}
NO_PACKAGES = "none"

_WORDS_LINES = 15

_PARTITIONS, _PARTITIONS_PER_CORE = "spark.sql.shuffle.partitions", 4

_CONF = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Days and months are those of UTC, wherever a job runs.
    "spark.sql.session.timeZone": "UTC",
    # Digests are sums modulo 2^64.
    "spark.sql.ansi.enabled": "false",
    "spark.sql.parquet.compression.codec": "zstd",
    # Takes 127 bytes for a parked timer of 150, and the first version 130.
    "spark.hadoop.parquet.writer.version": "v2",
    # VACUUM lists a table's folders in so many tasks; with Spark's 10,000 it took minutes for four small tables.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "64",
    # Delta reads the state of a table in this many tasks; with its own 50, a commit took 3 s instead of 1 on two cores.
    "spark.databricks.delta.snapshotPartitions": "4",
    # What `optimize` merges, and what it sorts, into files of this size: a bucket of promote then reads few of them.
    "spark.databricks.delta.optimize.minFileSize": str(32 << 20),
    "spark.databricks.delta.optimize.maxFileSize": str(64 << 20),
    "spark.databricks.io.skipping.mdc.sortWithinFiles": "true",
    # Spark's own, and what carries a password or a key to Kafka: none of it is to be read in plans, logs or its pages.
    "spark.redaction.regex": r"(?i)secret|password|token|access[.]?key|jaas|keystore",
}
# Of a Spark that this process starts; one that spark-submit has started is its operator's.
_OWN = {
    "spark.ui.showConsoleProgress": "false",
    # Nobody looks at it, and two jobs on a machine would want the same port.
    "spark.ui.enabled": "false",
    # Is empty, and would be made wherever a job is started.
    "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / "kafka-timers-spark-warehouse"),
    # A job is there for throughput: an audit of 8 million requests took 42 s with it on two cores, and 48 s with G1.
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
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
        os.environ["JAVA_HOME"] = str(java.find(who="Spark").resolve().parents[1])
    except KafkaSetupError as error:
        raise LakeError(str(error)) from error
    # The Python of the executors is that of the driver, where they share a machine.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder, told, is_submitted = (
        SparkSession.builder.appName("kafka-timers"),
        dict(_CONF),
        "PYSPARK_GATEWAY_PORT" in os.environ,
    )
    if settings.master:
        builder = builder.master(settings.master)
    packages = settings.packages or ",".join(PACKAGES[minor])
    if packages != NO_PACKAGES:
        told["spark.jars.packages"] = packages
    is_quiet = not is_submitted and settings.log_level != "debug"
    if not is_submitted:
        told |= _OWN
    if is_quiet:
        told["spark.log.level"] = "ERROR"
    for key, value in (told | dict(conf or {})).items():
        builder = builder.config(key, value)
    fetches = packages != NO_PACKAGES and not is_submitted
    with (
        alone_in(caches() / "spark-jars.lock") if fetches else nullcontext(),
        _stderr_to_file() if is_quiet else nullcontext() as output,
    ):
        try:
            spark = builder.getOrCreate()
        except PySparkException as error:
            raise LakeError(_no_start(error, packages, output)) from error
    context = spark.sparkContext
    if str(context.master).startswith("local") and _PARTITIONS not in dict(context.getConf().getAll()):
        # With Spark's own 200 a job on one machine spends most of its time on opening files of a few rows.
        spark.conf.set(_PARTITIONS, context.defaultParallelism * _PARTITIONS_PER_CORE)
    _check_jars(spark)
    return spark


def quiet() -> None:
    """Keep what Spark's Python logs of errors, with the traces of Java, from those who are told of them anyhow."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    # By these names it writes each error of a query as one line of JSON, whatever level Spark has.
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)


def kafka_options(kafka: Kafka) -> dict[str, str]:
    """Return what Spark's readers and writers of Kafka need to connect."""
    return {f"kafka.{name}": value for name, value in kafka.java_options().items()}


@contextmanager
def alone_in(lock: Path) -> Iterator[None]:
    """
    Wait until no other process holds the file *lock*, and hold it.

    Where several jobs start at once on a machine that has no jars of Spark yet, Ivy would fetch the same files for each
    of them into one folder, and all but one would fail.
    """
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = lock.open("wb")
    except OSError as error:
        log.info("%s cannot be written (%s): do not start two first jobs at once", lock, error.strerror)
        yield
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.info("waiting for another job on this machine to have Spark's jars")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _stderr_to_file() -> Iterator[BinaryIO]:
    """
    Yield a file that has the standard error of this process while inside, and of those that it starts for ever.

    Spark tells there on some hundred lines what it resolves, binds and misses, before it has read any configuration.
    """
    sys.stderr.flush()
    before = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield file
        finally:
            os.dup2(before, 2)
            os.close(before)


def _no_start(error: Exception, packages: str, output: BinaryIO | None) -> str:
    """Return why Spark did not start, and what to do."""
    if output is None:
        return f"Spark does not start ({error}): its own words are above"
    output.seek(0)
    lines = output.read().decode(errors="replace").splitlines()
    if any("unresolved dependency" in line for line in lines):
        return (
            f"Spark's jars cannot be had: no Maven repository that answers has {packages}. They are fetched once and "
            "kept in ~/.ivy2.5.2; behind a proxy or a mirror, name it with spark.jars.ivySettings in "
            "spark-defaults.conf; where they lie on Spark's classpath already, give --packages none"
        )
    last = "\n".join([line for line in lines if not line.startswith("\tat ")][-_WORDS_LINES:])
    return f"Spark does not start ({error}); its last words:\n{last}"


def _check_jars(spark: SparkSession) -> None:
    # One is looked for when it is used, which is late, and what is said then is of use to nobody.
    for source in ("delta", "kafka"):
        try:
            spark.read.format(source).load()
        except (PySparkException, Py4JError) as error:
            # With any other it is there, and was not told what to read.
            if re.search("Failed to find (the )?data source", str(error)):
                raise LakeError(
                    f"Spark knows no {source}: its jar is not on the classpath. Start spark-submit with --packages "
                    f"{','.join(PACKAGES['4.0'])}, put the jars into Spark's folder jars, or do not give --packages "
                    "none"
                ) from error
