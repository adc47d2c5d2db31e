"""
The Spark session of all lake jobs: the one place for jars and configuration.

A job sets no master of its own, so the same job runs locally, by spark-submit and on Kubernetes. If it starts Spark
itself, it also hides Spark's log, except with --log-level debug.
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

log = logging.getLogger(__name__)

# Minor version of pyspark → connector and Delta tested with it. The connector 4.1.1 fails at a batch that a killed
# landing has begun (SPARK-55271); docs/lake.md has more.
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
    # Parked timers take 2 % less with this version than with the first one.
    "spark.hadoop.parquet.writer.version": "v2",
    # A query for an id reads only the row groups that may have it. Of eight filters of 1 to 128 KB, each gets the one
    # that its ids need. A file that is being written holds all of them: with eleven, landing took 8 % longer.
    "spark.hadoop.parquet.bloom.filter.enabled#timer_id": "true",
    "spark.hadoop.parquet.bloom.filter.adaptive.enabled": "true",
    "spark.hadoop.parquet.bloom.filter.candidates.number#timer_id": "8",
    "spark.hadoop.parquet.bloom.filter.max.bytes": str(128 << 10),
    # Of such a file only row groups of this size are read, a quarter of the default.
    "spark.hadoop.parquet.block.size": str(32 << 20),
    # VACUUM lists a table's folders in this many tasks; with Spark's 10,000 it took minutes for four small tables.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "64",
    # With both, Spark looks at the stack for each column that is made, to name its line in errors: a tenth of an audit.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.dataFrameQueryContext.enabled": "false",
    # Spark writes the text of a plan for its pages, with all frames that the plan has from the cache. A plan that
    # adapts itself is written twice, and so is each cached one within it: an audit of many findings took 5 GB for that.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.maxPlanStringLength": "0",
    # Every rule of the planner walks all rows of a constant: one of 70,000 rows took it 25 s, and 2 s as a scan.
    "spark.sql.execution.arrow.localRelationThreshold": "256k",
    # Delta reads the state of a table in this many tasks; with its 50, a commit took 3 s instead of 1 on two cores.
    "spark.databricks.delta.snapshotPartitions": "4",
    # `optimize` merges and sorts into files of this size, so that a bucket of promote reads few of them.
    "spark.databricks.delta.optimize.minFileSize": str(32 << 20),
    "spark.databricks.delta.optimize.maxFileSize": str(64 << 20),
    "spark.databricks.io.skipping.mdc.sortWithinFiles": "true",
    # Spark's pattern, and the options with a password or key for Kafka: none may show in plans, logs or Spark's pages.
    "spark.redaction.regex": r"(?i)secret|password|token|access[.]?key|jaas|keystore",
}
# For a Spark that this process starts; spark-submit leaves these settings to its operator.
_OWN = {
    "spark.ui.showConsoleProgress": "false",
    # Nobody looks at the page, and two jobs on a machine would want the same port.
    "spark.ui.enabled": "false",
    # The folder is empty, and would be created wherever a job is started.
    "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / "kafka-timers-spark-warehouse"),
    # Jobs need throughput: an audit of 8 million requests took 42 s with it on two cores, and 48 s with G1.
    # Spark's classes fill the default of 21 MB ten times while it starts, each time with a collection of all garbage.
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC -XX:MetaspaceSize=256m",
    "spark.python.daemon.module": "kafka_timers.lake.task_daemon",
}


def open_session(settings: LakeSettings, conf: Mapping[str, str] | None = None) -> SparkSession:
    """
    Return the Spark session of this process; start it if there is none.

    *conf* is more of Spark's configuration.

    Raises:
        LakeError: there is no Java, a jar cannot be fetched, or Spark does not start.
    """
    minor = ".".join(pyspark.__version__.split(".")[:2])
    if not settings.packages and minor not in PACKAGES:
        raise LakeError(
            f"no Kafka connector and no Delta were tested with pyspark {minor}: install one of {', '.join(PACKAGES)}, "
            "or name their Maven coordinates with --packages"
        )
    try:
        # Spark's scripts use JAVA_HOME, else the Java on PATH, and would fail without a message if it is too old.
        os.environ["JAVA_HOME"] = str(java.find(who="Spark").resolve().parents[1])
    except KafkaSetupError as error:
        raise LakeError(str(error)) from error
    # Executors on the same machine use the Python of the driver.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder, is_submitted = SparkSession.builder.appName("kafka-timers"), "PYSPARK_GATEWAY_PORT" in os.environ
    is_quiet = not is_submitted and settings.log_level != "debug"
    if settings.master:
        builder = builder.master(settings.master)
    packages = settings.packages or ",".join(PACKAGES[minor])
    options = _CONF | ({} if is_submitted else _OWN)
    if packages != NO_PACKAGES:
        options["spark.jars.packages"] = packages
    if is_quiet:
        options["spark.log.level"] = "ERROR"
    for key, value in (options | dict(conf or {})).items():
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
        # With Spark's 200, a job on one machine spends most of its time on opening files of a few rows.
        spark.conf.set(_PARTITIONS, context.defaultParallelism * _PARTITIONS_PER_CORE)
    _check_jars(spark)
    return spark


def quiet() -> None:
    """Turn off the error logs of Spark's Python code, which repeat reported errors with Java's stack traces."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    # Under these names it writes each error of a query as one line of JSON, at any log level of Spark.
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)


def kafka_options(kafka: Kafka) -> dict[str, str]:
    """Return the options that Spark's readers and writers of Kafka need to connect."""
    return {f"kafka.{name}": value for name, value in kafka.java_options().items()}


@contextmanager
def alone_in(lock: Path) -> Iterator[None]:
    """
    Wait until no other process holds the file *lock*, and hold it inside the block.

    If several jobs start at once on a machine without Spark's jars, Ivy fetches the same files for each of them into
    one folder, and all but one fail.
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
    Yield a file that receives the standard error of this process inside the block, and of its children for ever.

    Before it has read any configuration, Spark writes some hundred lines there about jars and native libraries.
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
    """Return the reason that Spark did not start, and the step to take."""
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
    # Spark looks for a jar only when it is used. That is late, and its message then helps nobody.
    for source in ("delta", "kafka"):
        try:
            spark.read.format(source).load()
        except (PySparkException, Py4JError) as error:
            # Any other error means that the jar is there, but got no path to read.
            if re.search("Failed to find (the )?data source", str(error)):
                raise LakeError(
                    f"Spark knows no {source}: its jar is not on the classpath. Start spark-submit with --packages "
                    f"{','.join(PACKAGES['4.0'])}, put the jars into Spark's folder jars, or do not give --packages "
                    "none"
                ) from error
