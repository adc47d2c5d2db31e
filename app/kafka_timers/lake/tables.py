"""
The tables below the lake's root: their paths, and functions to create, read and append to them.

Any Delta reader finds them at these paths. A catalog may name them, and no job reads it.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from kafka_timers.errors import LakeError
from kafka_timers.lake.schema import POSITIONS, REJECTED, TABLES, Table
from kafka_timers.lake.sealed import opened
from kafka_timers.settings import LakeSettings

# Spark's and Delta's conditions for a table or file that does not exist.
_MISSING = ("PATH_NOT_FOUND", "DELTA_TABLE_NOT_FOUND", "DELTA_MISSING_DELTA_TABLE", "DELTA_PATH_DOES_NOT_EXIST")
_SKIPPED_BY = "delta.dataSkippingStatsColumns"
_AUTO_COMPACT = "delta.autoOptimize.autoCompact"
# As many as the seconds of a day in eleven partitions. A row takes some hundred bytes in the memory of each executor.
_SENT_ROWS_MAX = 1_000_000
# Frames of `keeping` with at most so many rows become constants.
CONSTANT_ROWS_MAX = 10_000


def root_of(settings: LakeSettings) -> str:
    """Return the URI below which the tables lie. A plain folder becomes absolute."""
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:", settings.lake):
        return settings.lake.rstrip("/")
    # Not Path.as_uri: Hadoop takes a URI literally, so %20 would not be a space.
    return f"file:{Path(settings.lake).absolute()}"


def path_of(root: str, table: Table) -> str:
    """Return the URI of *table*."""
    return f"{root}/{table.name}"


def name_of(root: str, table: Table) -> str:
    """Return the name of *table* in SQL."""
    path = path_of(root, table).replace("`", "``")
    return f"delta.`{path}`"


def is_missing(error: AnalysisException) -> bool:
    """Tell whether *error* says that a table or file does not exist."""
    return error.getCondition() in _MISSING


@contextmanager
def translated(root: str) -> Iterator[None]:
    """
    Turn Spark's errors inside the block, which reads or writes below *root*, into one sentence.

    Raises:
        LakeError: with the last of Spark's reasons.
    """
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise LakeError(f"the lake at {root} cannot be read or written: {words_of(error)}") from error


def words_of(error: Exception) -> str:
    """Return the reason that *error* gives, as one line: the root cause of a chain."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    if len(lines) > 1 and lines[0].startswith("An error occurred while calling "):
        # Py4J's own line says nothing; Java's exception is in the next.
        lines = [lines[1].removeprefix(": "), *lines[2:]]
    causes = [line.partition(": ")[2] for line in lines if line.startswith("Caused by: ")]
    return (causes or lines)[-1 if causes else 0]


def create(spark: SparkSession, root: str, table: Table) -> None:
    """Create *table* if it does not exist, with types and comments of its columns."""
    if exists(spark, root, table):
        return
    columns = ", ".join(map(_column, table.columns))
    by = f" PARTITIONED BY ({', '.join(table.partitioned_by)})" if table.partitioned_by else ""
    properties = {_SKIPPED_BY: ",".join(table.skipped_by)} if table.skipped_by else {}
    if table.of_small_rows:
        properties[_AUTO_COMPACT] = "true"
    listed = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
    having = f" TBLPROPERTIES ({listed})" if properties else ""
    spark.sql(f"CREATE TABLE IF NOT EXISTS {name_of(root, table)} ({columns}) USING delta{by}{having}")


def register(spark: SparkSession, root: str, catalog: str) -> None:
    """
    Name all tables below *root* in Spark's catalog, as external ones. Those that do not exist are created.

    Args:
        catalog: a schema, which is created if it does not exist; with a dot, behind the name of its catalog.

    Raises:
        LakeError: Spark keeps no catalog, or the schema has such a table of another lake.
    """
    if "." not in catalog and spark.conf.get("spark.sql.catalogImplementation") == "in-memory":
        raise LakeError(
            f"--catalog {catalog}: this Spark forgets its catalog when the job ends. In spark-defaults.conf, set "
            "spark.sql.catalogImplementation to hive; or configure a catalog there, and give CATALOG.SCHEMA"
        )
    schema = ".".join(f"`{part}`" for part in catalog.split("."))
    spark.sql(f"CREATE SCHEMA IF NOT EXISTS {schema}")
    for table in TABLES:
        create(spark, root, table)
        name, by_path = f"{schema}.{table.name}", name_of(root, table)
        spark.sql(f"CREATE TABLE IF NOT EXISTS {name} USING delta LOCATION {_quoted(path_of(root, table))}")
        if len({spark.sql(f"DESCRIBE DETAIL {each}").collect()[0]["id"] for each in (name, by_path)}) > 1:
            raise LakeError(f"--catalog {catalog} has the table {table.name} of another lake: give another one")


def exists(spark: SparkSession, root: str, table: Table) -> bool:
    """Tell whether *table* exists."""
    return _loaded(spark, root, table) is not None


def read(spark: SparkSession, root: str, table: Table) -> DataFrame:
    """
    Return *table* as it is now; an empty frame if it does not exist yet.

    Columns that are not stored are only computed if they are used, and rows are not skipped by them.
    """
    made = _loaded(spark, root, table)
    loaded = constant(spark, [], table.columns) if made is None else made
    return opened(loaded) if table.in_bytes else loaded


def append(
    frame: DataFrame,
    root: str,
    table: Table,
    app_id: str | None = None,
    version: int | None = None,
    *,
    gather: bool = True,
) -> None:
    """
    Append *frame* to *table* in one commit. The table is created if it does not exist.

    Args:
        frame: rows with the table's columns, in any order.
        app_id: name of the writer. If it has appended *version* or a later one before, this does nothing.
        version: number of this append, ascending.
        gather: bring the rows of a folder together first, which moves all rows once. A folder then gets one file,
            otherwise one from each task that has rows of it.
    """
    create(frame.sparkSession, root, table)
    writer = frame.select(*table.columns.names).write.format("delta").mode("append")
    if table.partitioned_by and gather:
        writer = writer.option("optimizeWrite", "true")
    if app_id is not None:
        writer = writer.option("txnAppId", app_id).option("txnVersion", str(version))
    try:
        writer.save(path_of(root, table))
    except (PySparkException, Py4JError) as error:
        # Another process has appended the version since this one looked for it.
        if app_id is None or "DELTA_CONCURRENT_TRANSACTION" not in str(error):
            raise


def read_positions(spark: SparkSession, root: str, topic: str) -> dict[int, int]:
    """Return by partition of *topic* the offset below which all of its records are in the tables."""
    landed = read(spark, root, POSITIONS).where(F.col("topic") == topic)
    return {row[0]: row[1] for row in landed.groupBy("partition").agg(F.max("position")).collect()}


def read_topic_ids(spark: SparkSession, root: str) -> dict[str, str]:
    """Return the id of each topic that was landed last, by name; none that is not known."""
    landed = read(spark, root, POSITIONS).where(F.col("topic_id").isNotNull())
    return {row[0]: row[1] for row in landed.groupBy("topic").agg(F.max_by("topic_id", "landed_s")).collect()}


def read_epochs(spark: SparkSession, root: str) -> dict[str, dict[int, tuple[int, int]]]:
    """Return by topic and partition the offset below which it was landed, and the leader epoch then, where known."""
    landed = read(spark, root, POSITIONS).where(F.col("leader_epoch").isNotNull())
    last = F.max_by(F.struct("position", "leader_epoch"), "position").alias("last")
    found: dict[str, dict[int, tuple[int, int]]] = {}
    for topic, number, (position, epoch) in landed.groupBy("topic", "partition").agg(last).collect():
        found.setdefault(topic, {})[number] = position, epoch
    return found


def read_rejected(spark: SparkSession, root: str, requests: str) -> DataFrame:
    """
    Return the records of timer-request, the topic *requests*, that went to timer-rejected.

    Returns:
        partition int and offset bigint of the record, reason string, and appended_ms bigint of its reject.
    """
    own = read(spark, root, REJECTED).where(F.col("source_topic") == requests)
    source = {"source_partition": "partition", "source_offset": "offset"}
    return own.select(*(F.col(of).alias(name) for of, name in source.items()), "reason", "appended_ms")


def constant(spark: SparkSession, rows: Iterable[Sequence[Any]], columns: StructType | str) -> DataFrame:
    """
    Return a frame of these rows, which needs no Python: few are a constant of the plan, whose size Spark knows.

    The values of *rows* are in the order of *columns*, which are a schema, or names and types as in SQL.
    """
    schema = columns if isinstance(columns, StructType) else cast("StructType", StructType.fromDDL(columns))
    named = [dict(zip(schema.names, row, strict=True)) for row in rows]
    table: Any = pa.Table.from_pylist(named, to_arrow_schema(schema))
    frame: DataFrame = spark.createDataFrame(table, schema)
    return frame


def sent(frame: DataFrame, rows: int) -> DataFrame:
    """Return *frame*, of so many *rows*; if these are few, Spark sends them to each frame that it is joined with."""
    return F.broadcast(frame) if rows <= _SENT_ROWS_MAX else frame


@contextmanager
def keeping() -> Iterator[Callable[[DataFrame], DataFrame]]:
    """
    Yield a function that computes a frame once, and returns it for use inside the block.

    A frame of few rows becomes one of `constant`, which each later plan takes as it is; Spark would analyze and plan a
    cached frame anew with each of them, which took most of the time of a small audit. Others are cached until the block
    ends. If they are not too large, Spark sends all of them to each frame that they are joined with.
    """
    with ExitStack() as kept:

        def keep(frame: DataFrame) -> DataFrame:
            # PyArrow takes no null for a struct with fields that cannot be null.
            schema = frame.schema.toNullable()
            columns = [F.col(each.name).cast(each.dataType) for each in schema]
            # Of a cached frame, so that a large one is not computed twice.
            rows: Any = frame.persist().select(*columns).limit(CONSTANT_ROWS_MAX + 1).toArrow()
            if rows.num_rows > CONSTANT_ROWS_MAX:
                kept.callback(frame.unpersist)
                return sent(frame, frame.count())
            frame.unpersist()
            return sent(frame.sparkSession.createDataFrame(rows, schema), rows.num_rows)

        yield keep


def _column(column: StructField) -> str:
    null = "" if column.nullable else " NOT NULL"
    return f"`{column.name}` {column.dataType.simpleString()}{null} COMMENT {_quoted(column.metadata['comment'])}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _loaded(spark: SparkSession, root: str, table: Table) -> DataFrame | None:
    try:
        loaded = spark.read.format("delta").load(path_of(root, table))
        # Some versions of Spark look only when they are asked for something.
        _ = loaded.schema
    except AnalysisException as error:
        if not is_missing(error):
            raise
        return None
    return loaded
