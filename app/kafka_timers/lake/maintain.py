"""
Keep the tables small in files and in rows: `optimize` and `expire`.

Both may run beside a landing and never disturb it, because it only appends. If they meet it in one folder, they start
again. On S3 they may not run beside it, see `refuse_blind_commits`.

Promote reads requests second after second, and only those that are due soon. `optimize` follows from that: while a
folder is far off, it is merged, cheaply and many times; when it begins soon, it is sorted by second. By then it has
almost all its rows, because a request that waits for more than 32 days was appended 32 days before.
"""

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kafka_timers.errors import LakeError
from kafka_timers.lake import tables
from kafka_timers.lake.conditions import has_conditions
from kafka_timers.lake.schema import (
    AUDIT_SECONDS,
    BUCKETS,
    COPY,
    DELAYS_S,
    ID_KEY,
    PLANNED,
    POSITIONS,
    REJECTED,
    REQUEST,
    REQUESTS,
    SCHEDULES,
    SEALS,
    TABLES,
    Table,
)
from kafka_timers.settings import LakeSettings

_DAY_S = 86_400
# Folders that begin within the horizon plus this time are sorted, so a failed run does no harm.
_AHEAD_S = 2 * _DAY_S
# Commits in a table's history that are searched for a sort: some two days of batches at one every 10 s.
_COMMITS = 20_000
_ATTEMPTS = 5

_BY_YEAR, _BY_MONTH = "more", "1y"
_BY_DAY = [delay for delay in DELAYS_S if delay != _BY_MONTH]


_S3 = ("s3", "s3a", "s3n")
_ONE_DRIVER = "io.delta.storage.S3SingleDriverLogStore"

log = logging.getLogger(__name__)


def refuse_blind_commits(spark: SparkSession, root: str) -> None:
    """
    Check that a commit here cannot replace one that a landing makes at the same moment.

    Delta numbers its commits and relies on the storage to refuse a number that exists. S3 does not refuse it when
    Hadoop's client writes. Delta's own log store for S3 keeps only the writers of one process apart
    (https://docs.delta.io/latest/delta-storage.html), so the rows of a landing could vanish.

    Raises:
        LakeError: the lake is on S3, and Spark's configuration names no log store for it.
    """
    scheme = root.partition(":")[0].lower()
    setting = f"spark.delta.logStore.{scheme}.impl"
    if scheme in _S3 and not spark.conf.get(setting, None):
        raise LakeError(
            f"{root} is on S3, where Delta protects the commits of one process only: a landing that runs at the same "
            "time could lose records. Run this command while nothing else writes to the lake, and confirm that with "
            f"{setting}={_ONE_DRIVER} in Spark's configuration; or name a log store there that protects all processes"
        )


# --- optimize --------------------------------------------------------------------------------------------------------


def optimize(spark: SparkSession, settings: LakeSettings, now_s: int) -> None:
    """
    Merge small files, and sort by second the requests that come due next.

    Raises:
        LakeError: the lake cannot be read or written, or a landing could lose rows.
    """
    root = tables.root_of(settings)
    refuse_blind_commits(spark, root)
    with tables.translated(root):
        for table in TABLES:
            if table is not REQUESTS and tables.exists(spark, root, table):
                _log_files(f"merged {table.name}", spark.sql(f"OPTIMIZE {tables.name_of(root, table)}"))
        if tables.exists(spark, root, REQUESTS):
            _optimize_requests(spark, root, now_s + settings.horizon_s + _AHEAD_S, settings.horizon_s + _AHEAD_S)


def _optimize_requests(spark: SparkSession, root: str, until: int, ahead_s: int) -> None:
    name, soon = tables.name_of(root, REQUESTS), waiting_by(until)
    _log_files("merged requests", spark.sql(f"OPTIMIZE {name} WHERE NOT ({soon})"))
    unsorted = _files(tables.read(spark, root, REQUESTS), soon) - _sorted_files(spark, root, ahead_s)
    folders = sorted({folder for file in unsorted if (folder := _folder(file))})
    if folders:
        where = " OR ".join(f"(delay = '{delay}' AND due = '{due}')" for delay, due in folders)
        _log_files(
            f"sorted {len(folders)} folders of requests", spark.sql(f"OPTIMIZE {name} WHERE {where} ZORDER BY (second)")
        )


def waiting_by(second: int) -> str:
    """Return in SQL the folders of `requests` with pending timers that begin by *second*."""
    at = datetime.fromtimestamp(second, UTC)
    days = ", ".join(f"'{delay}'" for delay in _BY_DAY)
    return (
        f"(delay = '{_BY_YEAR}' AND due <= '{at:%Y}') OR (delay = '{_BY_MONTH}' AND due <= '{at:%Y-%m}')"
        f" OR (delay IN ({days}) AND due <= '{at:%Y-%m-%d}')"
    )


def _sorted_files(spark: SparkSession, root: str, ahead_s: int) -> set[str]:
    """Return the files of folders that began soon, as they were after the last sort."""
    history = spark.sql(f"DESCRIBE HISTORY {tables.name_of(root, REQUESTS)} LIMIT {_COMMITS}")
    sorts = history.where("operation = 'OPTIMIZE' AND operationParameters['zOrderBy'] LIKE '%second%'")
    [last] = sorts.agg(F.max(F.struct("version", F.unix_timestamp("timestamp").alias("at_s"))).alias("at")).collect()
    if last.at is None:
        return set()
    path = tables.path_of(root, REQUESTS)
    try:
        then = spark.read.format("delta").option("versionAsOf", last.at.version).load(path)
        return _files(then, waiting_by(last.at.at_s + ahead_s))
    except AnalysisException:
        # The log keeps versions for a month only.
        return set()


def _files(requests: DataFrame, where: str) -> set[str]:
    return set(requests.where(where).inputFiles())


def _folder(file: str) -> tuple[str, ...] | None:
    found = re.search(r"/delay=([0-9a-z]+)/due=([0-9-]+)/[^/]*$", file)
    return found.groups() if found else None


def _log_files(what: str, result: DataFrame) -> None:
    [metrics] = result.select("metrics.numFilesRemoved", "metrics.numFilesAdded").collect()
    log.info("%s: %d files became %d", what, *metrics)


# --- expire ----------------------------------------------------------------------------------------------------------


def expire(spark: SparkSession, settings: LakeSettings, keep_days: int, now_s: int) -> None:
    """
    Delete rows that were done longer than *keep_days* ago, folder by folder, and files that no table uses any more.

    A folder stays for so many days after its day, month or year.

    Raises:
        LakeError: the lake cannot be read or written, or a landing could lose rows.
    """
    root, cutoff_s = tables.root_of(settings), now_s - now_s % _DAY_S - keep_days * _DAY_S
    refuse_blind_commits(spark, root)
    with tables.translated(root):
        for expire_rows in (_expire_requests, _expire_seals, _expire_schedules, _expire_days, _expire_positions):
            until_alone(partial(expire_rows, spark, root, cutoff_s))
        for table in TABLES:
            if tables.exists(spark, root, table):
                spark.sql(f"VACUUM {tables.name_of(root, table)}").collect()


def _expire_requests(spark: SparkSession, root: str, cutoff_s: int) -> None:
    seals, buckets = tables.read(spark, root, SEALS), tables.read(spark, root, BUCKETS)
    requests, ended = tables.read(spark, root, REQUESTS), ended_by(cutoff_s)
    closed = [(row["first"], row["last"]) for row in buckets.select("first", "last").collect()]
    horizons = seals.where("horizon_s > 0").select("horizon_s").unionByName(buckets.select("horizon_s"))
    [horizon] = horizons.agg(F.min("horizon_s")).collect()
    needed = still_needed(
        requests.where(ended),
        requests.where(f"NOT ({ended})"),
        sealed_s=sealed_by(seals),
        horizon_s=horizon[0],
        promoted=merged(closed),
    )
    _keep_only(spark, root, REQUESTS, ended, needed)


def _expire_seals(spark: SparkSession, root: str, cutoff_s: int) -> None:
    seals = tables.read(spark, root, SEALS)
    # The last seal of a partition shows how far it is, even if it has stood still since.
    last = seals.where("through IS NULL").groupBy("partition").agg(F.max_by("offset", "end_ms").alias("offset"))
    ended = f"day < '{_day(cutoff_s)}'"
    _keep_only(spark, root, SEALS, ended, seals.where(ended).join(last, ["partition", "offset"], "left_semi"))


def _expire_schedules(spark: SparkSession, root: str, cutoff_s: int) -> None:
    ended = f"day < '{_day(cutoff_s)}'"
    for table in (SCHEDULES, PLANNED):
        rows = tables.read(spark, root, table)
        # The last one of a key counts, unless that is a deletion.
        last = rows.groupBy("partition", "key").agg(F.max("offset").alias("offset")).drop("key")
        needed = rows.where(ended).where("value IS NOT NULL").join(last, ["partition", "offset"], "left_semi")
        _keep_only(spark, root, table, ended, needed)


def _expire_days(spark: SparkSession, root: str, cutoff_s: int) -> None:
    # Findings of audits stay, and so do buckets: both are few.
    for table in (REJECTED, AUDIT_SECONDS):
        rows = tables.read(spark, root, table)
        _keep_only(spark, root, table, f"day < '{_day(cutoff_s)}'", rows.where("false"))


def _expire_positions(spark: SparkSession, root: str, cutoff_s: int) -> None:
    if tables.exists(spark, root, POSITIONS):
        tops = tables.read(spark, root, POSITIONS).groupBy("topic", "partition").agg(F.max("position").alias("top"))
        tops.createOrReplaceTempView("kafka_timers_tops")
        spark.sql(
            f"MERGE INTO {tables.name_of(root, POSITIONS)} AS t USING kafka_timers_tops AS s ON t.topic = s.topic AND "
            f"t.partition = s.partition AND t.position < s.top AND t.landed_s < {cutoff_s} WHEN MATCHED THEN DELETE"
        )


def ended_by(second: int) -> str:
    """
    Return in SQL the folders of `requests` that lie completely before *second*.

    Copies are judged year by year, so that none goes before its original: promote would take that one for not promoted.
    """
    at = datetime.fromtimestamp(second, UTC)
    return (
        f"(delay IN ('{_BY_YEAR}', 'copy') AND due < '{at:%Y}') OR (delay = '{_BY_MONTH}' AND due < '{at:%Y-%m}')"
        f" OR (delay NOT IN ('{_BY_YEAR}', 'copy', '{_BY_MONTH}') AND due < '{at:%Y-%m-%d}')"
    )


def sealed_by(seals: DataFrame) -> int:
    """Return the second up to which all partitions are sealed; 0 if one of them has no complete seal."""
    ends = seals.where("through IS NULL").groupBy("partition").agg(F.max("end_ms").alias("end_ms"))
    [row] = ends.agg(F.min("end_ms"), F.count("*")).collect()
    [partitions] = seals.agg(F.max("partitions")).collect()
    return row[0] // 1000 - 1 if row[0] is not None and row[1] >= partitions[0] else 0


def merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the same seconds in the smallest number of ranges; both ends of a range belong to it."""
    out: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if out and first <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(last, out[-1][1]))
        else:
            out.append((first, last))
    return out


def still_needed(
    old: DataFrame, live: DataFrame, *, sealed_s: int, horizon_s: int | None, promoted: Sequence[tuple[int, int]]
) -> DataFrame:
    """
    Return the rows of *old* that must stay, although their folders have ended.

    Requests that may still fire are open: those that no seal covers, and those that a worker's horizon left to the
    lake, in a second that is not promoted. These rows also stay:

    - all records of a timer id behind a request that is open or live: they may have withdrawn it, and without them it
      would come to life again;
    - copies of rows that stay, or these would be promoted again;
    - records by which the conditions of such rows are judged.

    Args:
        old: rows of `requests` that may go.
        live: all other rows.
        sealed_s: UNIX second up to which all partitions are sealed.
        horizon_s: smallest horizon that workers and promote ever had; None if there was none.
        promoted: ranges of seconds in which no far request is left to promote.
    """
    columns, kind, appended_s = live.columns, F.col("kind"), F.floor(F.col("appended_ms") / 1000)
    # A request for a past second is sealed with a second after its append.
    is_open = F.greatest("second", appended_s) > sealed_s
    if horizon_s is not None:
        is_promoted = F.lit(False)
        for first, last in promoted:
            is_promoted |= F.col("second").between(first, last)
        is_open |= (kind == REQUEST) & (F.col("second") - appended_s > horizon_s) & ~is_promoted
    judged = old.withColumn("is_open", is_open)
    asked, copies = judged.where(kind != COPY), judged.where(kind == COPY)

    open_requests = asked.where("is_open").select(columns).unionByName(live).where(kind == REQUEST)
    ids = asked.where(F.col("timer_id").isNotNull()).select(*ID_KEY).distinct()
    behind = open_requests.join(ids, [*ID_KEY], "left_semi").groupBy(*ID_KEY).agg(F.min("offset").alias("open_from"))
    if has_conditions(old) or has_conditions(live):
        behind = _judged_by(asked.where("is_open").select(columns).unionByName(live), asked, behind)
    stays = F.col("is_open") | F.coalesce(F.col("offset") > F.col("open_from"), F.lit(False))
    asked = asked.join(behind, [*ID_KEY], "left").where(stays)
    originals = asked.select("partition", F.col("offset").alias("original"), F.lit(True).alias("has_original"))
    copies = copies.join(originals, ["partition", "original"], "left").where("is_open OR has_original")
    return asked.select(columns).unionByName(copies.select(columns))


def _judged_by(stays: DataFrame, asked: DataFrame, behind: DataFrame) -> DataFrame:
    """Return *behind*, extended by the records that the conditions of *stays* are judged by."""
    # Those are all back to the last request without a condition, which counts independently of earlier records.
    first = stays.where(F.col("condition").isNotNull()).groupBy(*ID_KEY).agg(F.min("offset").alias("first"))
    plain = asked.where((F.col("kind") == REQUEST) & F.col("condition").isNull())
    plain = plain.join(first, [*ID_KEY]).where(F.col("offset") < F.col("first"))
    since = plain.groupBy(*ID_KEY).agg((F.max("offset") - 1).alias("open_from"))
    since = first.join(since, [*ID_KEY], "left").select(*ID_KEY, F.coalesce("open_from", F.lit(-1)).alias("open_from"))
    return behind.unionByName(since).groupBy(*ID_KEY).agg(F.min("open_from").alias("open_from"))


def _keep_only(spark: SparkSession, root: str, table: Table, where: str, needed: DataFrame) -> None:
    """Replace the rows of *table* that fulfil *where* by those among them that are *needed*."""
    if not tables.exists(spark, root, table):
        return
    before, needed = tables.read(spark, root, table).where(where).count(), needed.persist()
    try:
        kept = needed.count()
        if kept < before:
            writer = needed.select(*table.columns.names).write.format("delta").mode("overwrite")
            writer.option("replaceWhere", where).save(tables.path_of(root, table))
        log.info("%s: %d rows have gone, and %d of their folders are still needed", table.name, before - kept, kept)
    finally:
        needed.unpersist()


def until_alone(work: Callable[[], object]) -> None:
    """Do *work*, and repeat it some times if a landing has appended to the rows that it read."""
    for attempt in range(_ATTEMPTS):
        try:
            work()
            return
        except (PySparkException, Py4JError) as error:
            if "DELTA_CONCURRENT" not in str(error) or attempt == _ATTEMPTS - 1:
                raise


def _day(second: int) -> str:
    return f"{datetime.fromtimestamp(second, UTC):%Y-%m-%d}"
