"""
Remove the payloads of one person from the lake, which every person has the right to ask for.

The rows keep their place and the data that the audit needs: due time, topic, id, and the digest of the record. Key,
value and headers of the record become null. The files that still hold them are deleted, with all versions of the table
that use these files. Requests that may still fire are not forgotten, because promote publishes a far request by its
value.
"""

import asyncio
import logging
from collections import defaultdict
from datetime import UTC, datetime
from operator import itemgetter
from typing import Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.reading import TopicLog
from kafka_timers.broker.topics import answering
from kafka_timers.core.callbacks import Shown
from kafka_timers.core.wire import Topics, future_from
from kafka_timers.errors import LakeError, WireError
from kafka_timers.lake import tables
from kafka_timers.lake.live import refuse_other_topic
from kafka_timers.lake.maintain import refuse_blind_commits, until_alone
from kafka_timers.lake.query import open_views
from kafka_timers.lake.schema import CANCEL, COPY, ID_KEY, RECORD_KEY, REQUEST, REQUESTS
from kafka_timers.lake.service import topic_settings
from kafka_timers.settings import LakeSettings

_FOLDER = REQUESTS.partitioned_by
_ABOUT = "timer_id string, callback_key string"
_VIEW = "kafka_timers_forgotten"
# A younger file that belongs to no version of the table may be part of a batch that is being landed.
_BATCH_S = 86_400
_CHECK = "spark.databricks.delta.retentionDurationCheck.enabled"
_RETENTION = ("retention.ms", "cleanup.policy")

log = logging.getLogger(__name__)


class Forgetting:
    """
    The records of one person, as they are in the lake when this is entered.

    Attributes:
        count: number of rows.
        timers: number of requests among them.
        first: time at which the first of these is due, as text; None if there are none.
        last: time at which the last of them is due.
        kept: offsets of those that are still on `timer-request`, by partition.
        topics: retention.ms and cleanup.policy of their callback topics; None for a topic that is gone.
    """

    def __init__(
        self, spark: SparkSession, settings: LakeSettings, *, key: str | None = None, timer_id: str | None = None
    ) -> None:
        """Select all rows of the callback key *key*, or all of *timer_id*."""
        self._spark, self._settings, self._root = spark, settings, tables.root_of(settings)
        self._is_about = (
            f"callback_key = {_quoted(key)}" if key is not None else f"timer_id = {_quoted(timer_id or '')}"
        )
        self._meant = _about(tables.read(spark, self._root, REQUESTS), key, timer_id).persist()

    def __enter__(self) -> Self:
        """
        Look the rows up.

        Raises:
            LakeError: some timers are pending; the lake cannot be read, or is on S3 and others could write to it.
        """
        refuse_blind_commits(self._spark, self._root)
        refuse_other_topic(self._spark, self._settings)
        with tables.translated(self._root):
            is_timer = F.col("kind") == REQUEST
            due = F.when(is_timer, F.timestamp_seconds("second"))
            [(self.count, self.timers, self.first, self.last)] = self._meant.agg(
                F.count(F.lit(1)),
                F.count_if(is_timer),
                *(F.date_format(at(due), "yyyy-MM-dd HH:mm:ss") for at in (F.min, F.max)),
            ).collect()
            open_views(self._spark, self._settings, ["pending"])
            own = self._meant.select(*RECORD_KEY)
            waits = self._spark.table("pending").join(own, [*RECORD_KEY], "left_semi").count()
        if waits:
            raise LakeError(
                f"{waits} of these timers wait, as far as has been landed, and could not fire without their payload: "
                f'cancel them first, as with kafka-timers lake cancel --where "{self._is_about}", land, and ask again'
            )
        self.kept, self.topics = asyncio.run(self._kept())
        return self

    def __exit__(self, *_: object) -> None:
        self._meant.unpersist()

    def forget(self, now_s: int) -> None:
        """Delete the payloads. If it is killed, run it again. It may run beside a landing."""
        with tables.translated(self._root):
            if self.count:
                self._meant.createOrReplaceTempView(_VIEW)
                same = " AND ".join(f"t.`{name}` = s.`{name}`" for name in (*RECORD_KEY, *_FOLDER))
                until_alone(
                    lambda: self._spark.sql(
                        f"MERGE INTO {tables.name_of(self._root, REQUESTS)} AS t USING {_VIEW} AS s ON {same} WHEN "
                        f"MATCHED THEN UPDATE SET value = NULL, key = NULL, headers = NULL, forgotten_s = {now_s}"
                    )
                )
            self._delete_files(now_s)

    def _delete_files(self, now_s: int) -> None:
        """Delete the files that are no longer in the table, except those that a landing may be writing."""
        path, gone = tables.path_of(self._root, REQUESTS), F.substring_index("path", "/", -1)
        # A path is not a pattern.
        files = self._spark.read.format("binaryFile").option("__globPaths__", "false")
        files = files.option("recursiveFileLookup", "true").option("pathGlobFilter", "*.parquet")
        # In the session's time zone, which is UTC. One day more than needed allows for the clock of the storage.
        since = f"{datetime.fromtimestamp(now_s - 2 * _BATCH_S, UTC):%Y-%m-%dT%H:%M:%S}"
        # Commits are JSON, with one line for each action.
        commits = self._spark.read.schema("remove struct<path: string>").option("__globPaths__", "false")
        commits = commits.option("pathGlobFilter", "*.json")
        removed = commits.option("modifiedAfter", since).json(f"{path}/_delta_log").select("remove.path")
        removed = removed.where(F.col("path").isNotNull()).select(gone.alias("name")).distinct()
        columns = {name: F.col(name) for name in ("path", "length")}
        columns |= {"isDir": F.lit(False), "modificationTime": F.col("modificationTime")}
        inventory = (
            files.load(path)
            .select("path", "length", F.unix_millis("modificationTime").alias("modificationTime"), gone.alias("name"))
            .join(F.broadcast(removed.withColumn("is_removed", F.lit(True))), "name", "left")
            .where(F.col("is_removed") | (F.col("modificationTime") < (now_s - _BATCH_S) * 1000))
            # Delta accepts only nullable columns here.
            .select(*(F.when(F.col("path").isNotNull(), each).alias(name) for name, each in columns.items()))
        )
        inventory.createOrReplaceTempView(_VIEW)
        checked = self._spark.conf.get(_CHECK, "true")
        self._spark.conf.set(_CHECK, "false")
        try:
            name = tables.name_of(self._root, REQUESTS)
            listed = f"SELECT * FROM {_VIEW}"  # noqa: S608  # it is a constant
            self._spark.sql(f"VACUUM {name} USING INVENTORY ({listed}) RETAIN 0 HOURS").collect()
        finally:
            self._spark.conf.set(_CHECK, checked or "true")
            self._spark.catalog.dropTempView(_VIEW)

    async def _kept(self) -> tuple[dict[int, list[int]], dict[str, tuple[str, str] | None]]:
        kafka, name = self._settings.kafka, Topics.of(self._settings.topic_prefix).requests
        places = [tuple(row) for row in self._meant.select(*RECORD_KEY).collect()]
        asked = self._meant.where(F.col("topic").isNotNull()).select("topic").distinct()
        callback_topics = sorted(row[0] for row in asked.collect())
        requests: dict[int, list[int]] = defaultdict(list)
        async with TopicLog.open(kafka, name) as (log,):
            starts = await log.bounds.starts(log.numbers)
        for number, offset in sorted(places):
            if offset >= starts.get(number, offset + 1):
                requests[number].append(offset)
        async with answering(kafka), Cluster.open(kafka) as cluster:
            settings = await topic_settings(cluster, callback_topics, *_RETENTION)
        found = {topic: itemgetter(*_RETENTION)(of_topic) for topic, of_topic in settings.items()}
        return dict(requests), {topic: found.get(topic) for topic in callback_topics}


def _about(requests: DataFrame, key: str | None, timer_id: str | None) -> DataFrame:
    """Return the rows about *key* or *timer_id* that are not forgotten: requests, copies, cancels, refused records."""
    known = requests.where(F.col("forgotten_s").isNull())
    wanted = (key if key is not None else timer_id or "").encode()
    # Rows whose bytes do not contain it need no Python.
    has_it = F.contains(F.col("value"), F.lit(wanted)) if wanted else F.lit(True)
    # If not told, Spark 4.1 guesses by the type hints, and warns.
    named = F.udf(_asked_about, _ABOUT, useArrow=False)(F.when(has_it, F.col("value")))
    asked = known.where(F.col("kind") != COPY).withColumn("about", named)
    if key is not None:
        meant = asked.where((F.col("kind") != CANCEL) & (F.col("about.callback_key") == key))
        ids = meant.where(F.col("timer_id").isNotNull()).select(*ID_KEY).distinct()
        meant = meant.unionByName(
            asked.where(F.col("kind") == CANCEL).join(ids, [*ID_KEY], "left_semi").select(asked.columns)
        )
    else:
        is_its = (F.col("timer_id") == timer_id) | (F.col("about.timer_id") == timer_id)
        meant = asked.where(is_its | (F.col("timer_id").isNull() & (F.col("key") == F.lit(wanted))))
    columns = (*RECORD_KEY, *_FOLDER, "kind", "second", "topic")
    originals = meant.select("partition", F.col("offset").alias("original"))
    copies = known.where(F.col("kind") == COPY).join(originals, ["partition", "original"], "left_semi")
    return meant.select(*columns).unionByName(copies.select(*columns))


def _asked_about(value: bytes | None) -> tuple[str | None, str | None] | None:
    """Return timer id and callback key (if it is UTF-8) of the value of a record; None if it does not parse."""
    if value is None:
        return None
    try:
        future = future_from(bytes(value))
    except WireError:
        return None
    try:
        key = (Shown.of(future).key or b"").decode()
    except UnicodeDecodeError:
        key = None
    return future.timerId or None, key or None


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
