"""
The topics of the service → tables, each record once.

Each topic has a streaming query of its own, with its checkpoint below root/_land. A batch is one commit to the topic's
table, then one to `positions`, then one to the checkpoint:

    checkpoint      the batch ends at these offsets
    table           its rows     ┐ each with the name of the checkpoint and the number of the batch;
    positions       its ends     ┘ Delta does nothing if it has that number under that name already
    checkpoint      the batch is done

After a crash, the next run repeats the last batch if it is not done. It has the same records, and Delta skips the parts
that were committed. One query for all topics would read every record from Kafka once per table.

A landing that another one has taken over from may be paused within a batch, and go on later (see `fence`):

    1. the first one asks whether it is held, and is paused
    2. the second one finds that batch in the checkpoint, lands it under the same number, and lands more
    3. the first one wakes up: Delta has that number, and the checkpoint has the next batch, so it ends

If the first one wakes up earlier, the second one may find that its batch has begun or is done already, and starts anew
behind it. Held by test_a_landing_that_was_paused_commits_nothing_behind_its_successor.
"""

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import NamedTuple, cast

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from kafka_timers.broker import topics
from kafka_timers.broker.reading import TopicLog
from kafka_timers.broker.seals import served_counts
from kafka_timers.core.wire import Topics
from kafka_timers.errors import KafkaTimersError, LakeError
from kafka_timers.lake import tables
from kafka_timers.lake.fence import Fence
from kafka_timers.lake.job_metrics import LakeMetrics
from kafka_timers.lake.live import refuse_made_anew
from kafka_timers.lake.progress import batch_of
from kafka_timers.lake.records import kept_of, rejected_of, requests_of
from kafka_timers.lake.schema import PLANNED, POSITIONS, REJECTED, REQUESTS, SCHEDULES, SEALS, Table
from kafka_timers.lake.sealed import seals_of
from kafka_timers.lake.service import Landed, look_at_landed, topic_ids
from kafka_timers.lake.session import kafka_options
from kafka_timers.settings import LakeSettings

# Records of a topic in one batch: neither repeating a batch after a crash nor ending a process should take long.
_BATCH_RECORDS = 2_000_000
# With this many rows, a task fills files of a sensible size without help.
_GATHERED_RECORDS = 250_000
# With Kafka's default of 1 MiB, a broker works three times as long, for 6,000 requests at a time.
_FETCH_BYTES = 8 << 20
_POLL_S = 1
# From an error to the next attempt of a landing beside another job.
_AGAIN_S = 10
# Spark's class of the error that the checkpoint says already that a batch has begun, or is done.
_DONE_BY_ANOTHER = "CONCURRENT_STREAM_LOG_UPDATE"
# The offset that stands for the beginning of a partition in Spark's Kafka source.
_EARLIEST = -2

log = logging.getLogger(__name__)


class TakenOverError(LakeError):
    """Another landing of the instance has taken over, and goes on."""


class _Source(NamedTuple):
    """
    A topic and its id, its table, and the function that turns its records into rows.

    Attributes:
        landed: by partition, up to which offset it was landed, and under which leader epoch.
    """

    topic: str
    topic_id: str
    partitions: int
    table: Table
    rows_of: Callable[[DataFrame], DataFrame]
    landed: dict[int, tuple[int, int]]


class Landing:
    """
    A landing in a thread of its own, beside another job of this process.

    After an error it begins anew; once another landing has taken over, it leaves the landing to that one.

    Attributes:
        problems: reasons why it does not land at the moment; empty if it lands, or if another one does.
    """

    def __init__(self, spark: SparkSession, settings: LakeSettings, every_s: float, metrics: LakeMetrics) -> None:
        self.problems: list[str] = []
        self._spark, self._settings, self._every_s, self._metrics = spark, settings, every_s, metrics

    def start(self) -> None:
        """Land every so many seconds until the process ends, which repeats the batch under way when it runs again."""
        threading.Thread(target=self._run, name="landing", daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                land(self._spark, self._settings, every_s=self._every_s, metrics=self._metrics)
            except TakenOverError as error:
                log.warning("%s", error)
                self.problems = []
                return
            except KafkaTimersError as error:
                log.error("%s", error)
                self.problems = [str(error)]
            time.sleep(_AGAIN_S)


def land_once(spark: SparkSession, settings: LakeSettings, *, metrics: LakeMetrics | None = None) -> None:
    """Land the records that the topics hold now, as `land` does, and return."""
    land(spark, settings, every_s=None, metrics=metrics)


def land(
    spark: SparkSession,
    settings: LakeSettings,
    *,
    every_s: float | None,
    stop: threading.Event | None = None,
    skip_lost: bool = False,
    same_records: bool = False,
    batch_records: int = _BATCH_RECORDS,
    catalog: str = "",
    metrics: LakeMetrics | None = None,
) -> None:
    """
    Land records until told to end, as the only landing of the instance.

    It takes over from a landing that runs. If another one takes over from it, it commits nothing more and ends: with a
    warning if it was to end anyway, because that one lands the rest.

    Args:
        every_s: seconds from the start of one batch to the start of the next; None to end when the records that the
            topics held at the start are landed.
        stop: when it is set, this returns after the batch under way.
        skip_lost: skip records that a topic has dropped before they were landed, instead of raising an error.
        same_records: go on with a topic that was made anew, because it has the same records at the same offsets.
        batch_records: maximum of records of a topic in a batch.
        catalog: schema of Spark's catalog that names the tables, see `tables.register`; empty for none.
        metrics: metrics that count the landed records.

    Raises:
        TakenOverError: another landing has taken over.
        LakeError: a topic is missing, was made anew, or has dropped records before they were landed; the lake cannot be
            written, or has lost tables. No error loses anything: the next run goes on from here.
    """
    root, sources, stop = tables.root_of(settings), _sources(settings), stop or threading.Event()
    fence = Fence(settings.kafka, settings.topic_prefix)
    with tables.translated(root):
        fence.take_over()
        if not same_records:
            refuse_made_anew(tables.read_topic_ids(spark, root), {each.topic: each.topic_id for each in sources})
            epochs = tables.read_epochs(spark, root)
            for source in sources:
                source.landed.update(epochs.get(source.topic, {}))
        _make_tables(spark, root, sources)
        if catalog:
            tables.register(spark, root, catalog)
        options = {"maxOffsetsPerTrigger": str(batch_records), "failOnDataLoss": str(not skip_lost).lower()}
        while not _land(spark, settings, root, sources, fence, every_s, stop, metrics or LakeMetrics(), options):
            log.info("the landing before has written its last batch")
    if fence.is_lost:
        ended = f"landing into {root} has stopped: another landing has taken over, and goes on"
        if every_s is not None:
            raise TakenOverError(ended)
        log.warning("%s", ended)


def _land(
    spark: SparkSession,
    settings: LakeSettings,
    root: str,
    sources: list[_Source],
    fence: Fence,
    every_s: float | None,
    stop: threading.Event,
    metrics: LakeMetrics,
    options: Mapping[str, str],
) -> bool:
    """Return whether landing has ended; False if the landing before was the first to begin or to end a batch."""
    queries: list[StreamingQuery] = []
    try:
        offsets = [_starting_offsets(spark, root, source) for source in sources]
        for source, starting in zip(sources, offsets, strict=True):
            records = _records(spark, settings, source, starting, options)
            queries.append(_start(records, settings, root, source, fence, every_s))
        _wait(sources, queries, stop, metrics)
        return True
    except (StreamingQueryException, Py4JError) as error:
        if stop.is_set():
            # A signal to the whole group of processes ends Spark, too.
            log.info("ended within a batch, which the next run begins anew")
            return True
        # Whoever takes over may also have written to table and checkpoint first.
        if not fence.is_held():
            log.debug("%s", tables.words_of(error))
            return True
        if _DONE_BY_ANOTHER in str(error):
            return False
        _explain_loss(spark, settings, root, sources)
        raise LakeError(f"landing into {root} has stopped: {tables.words_of(error)}") from error
    finally:
        for query in queries:
            with suppress(Py4JError):
                query.stop()


def _sources(settings: LakeSettings) -> list[_Source]:
    names = Topics.of(settings.topic_prefix)
    counts = asyncio.run(topics.counts(settings.kafka, settings.topic_prefix))
    landed = {
        names.requests: REQUESTS,
        names.sealed: SEALS,
        names.rejected: REJECTED,
        names.schedules: SCHEDULES,
        names.planned: PLANNED,
    }
    if missing := [name for name in landed if name not in counts]:
        raise LakeError(f"topic {missing[0]} is missing: create it with kafka-timers topics create")
    served = asyncio.run(served_counts(settings.kafka, settings.topic_prefix))[names.requests]
    ids = asyncio.run(topic_ids(settings.kafka, landed))
    rows_of: dict[str, Callable[[DataFrame], DataFrame]] = {
        names.requests: partial(requests_of, partitions=served),
        names.sealed: seals_of,
        names.rejected: partial(rejected_of, requests=names.requests),
    }
    counts[names.requests] = served
    return [
        _Source(name, ids.get(name, ""), counts[name], table, rows_of.get(name, kept_of), {})
        for name, table in landed.items()
    ]


def _make_tables(spark: SparkSession, root: str, sources: list[_Source]) -> None:
    """Create the tables of *sources* and `positions`, unless one was there before and is gone."""
    for source in sources:
        if _has_begun(spark, root, source) and not tables.exists(spark, root, source.table):
            raise LakeError(
                f"{tables.path_of(root, source.table)} is gone, and {_checkpoint(root, source)} says how far it had "
                "come: bring it back; or delete that folder too, to land all records anew that the topic still has"
            )
    for table in (POSITIONS, *(source.table for source in sources)):
        tables.create(spark, root, table)


def _checkpoint(root: str, source: _Source) -> str:
    return f"{root}/_land/{source.table.name}"


def _has_begun(spark: SparkSession, root: str, source: _Source) -> bool:
    return bool(_texts(spark, f"{_checkpoint(root, source)}/offsets"))


def _starting_offsets(spark: SparkSession, root: str, source: _Source) -> str:
    """Return the offsets at which landing begins without a checkpoint: behind the last landed rows."""
    if _has_begun(spark, root, source):
        # Spark ignores this, because the checkpoint has the offsets.
        return "earliest"
    landed = _landed(spark, root, source)
    if landed:
        log.warning(
            "%s has no checkpoint: landing goes on after the last record that the lake has of %s", root, source.topic
        )
    return json.dumps({source.topic: {number: landed.get(number, _EARLIEST) for number in range(source.partitions)}})


def _landed(spark: SparkSession, root: str, source: _Source) -> dict[int, int]:
    """Return by partition the offset below which all is in the table, even if `positions` lacks it."""
    if not tables.exists(spark, root, source.table):
        return {}
    ends = tables.read(spark, root, source.table).groupBy("partition").agg(F.max("offset") + 1).collect()
    positions = tables.read_positions(spark, root, source.topic)
    return positions | {number: max(end, positions.get(number, 0)) for number, end in ends}


def _records(
    spark: SparkSession, settings: LakeSettings, source: _Source, starting_offsets: str, more: Mapping[str, str]
) -> DataFrame:
    chosen = {"subscribe": source.topic}
    if source.table is REQUESTS:
        # Partitions that were added to it are not served, so they hold no timers.
        chosen = {"assign": json.dumps({source.topic: list(range(source.partitions))})}
    options = {
        **kafka_options(settings.kafka),
        "kafka.isolation.level": "read_committed",
        "kafka.max.partition.fetch.bytes": str(_FETCH_BYTES),
        **chosen,
        "includeHeaders": "true",
        "startingOffsets": starting_offsets,
        **more,
    }
    return spark.readStream.format("kafka").options(**options).load()


def _start(
    records: DataFrame, settings: LakeSettings, root: str, source: _Source, fence: Fence, every_s: float | None
) -> StreamingQuery:
    writer = records.writeStream.queryName(f"land {source.topic} into {root}")
    writer = writer.option("checkpointLocation", _checkpoint(root, source))
    writer = writer.foreachBatch(partial(_append, settings, root, source, fence))
    if every_s is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{round(every_s * 1000)} milliseconds").start()


def _append(settings: LakeSettings, root: str, source: _Source, fence: Fence, batch: DataFrame, number: int) -> None:
    """Commit a batch under the checkpoint's id and *number*; a new checkpoint counts from 0 again."""
    spark = batch.sparkSession
    if not fence.is_held():
        raise LakeError("another landing has taken over")
    # A topic that is made anew or cut meanwhile may have records at the next offsets soon.
    now = _same(settings, source)
    name, before, ends = _named(spark, _checkpoint(root, source), number)
    # A first batch counts from offset 0, so too many for a topic that begins later; it then gets more files.
    records = sum(end - before.get(partition, 0) for partition, end in ends.items())
    tasks = spark.sparkContext.defaultParallelism
    gather = records < tasks * _GATHERED_RECORDS
    landed = source.rows_of(batch)
    # The first batch of an empty topic would be a commit without rows.
    if records:
        tables.append(landed if gather else landed.coalesce(tasks), root, source.table, name, number, gather=gather)
    # Not from the rows: a position also passes records that no reader sees: aborted ones and transaction markers.
    at = {int(partition): (end, now.epochs.get(int(partition))) for partition, end in ends.items()}
    rows = [(source.topic, partition, end, source.topic_id, epoch) for partition, (end, epoch) in at.items()]
    columns = "topic string, partition int, position bigint, topic_id string, leader_epoch int"
    positions = tables.constant(spark, rows, columns)
    tables.append(positions.withColumn("landed_s", F.unix_timestamp()), root, POSITIONS, name, number)
    source.landed.update({partition: (end, epoch) for partition, (end, epoch) in at.items() if epoch is not None})


def _same(settings: LakeSettings, source: _Source) -> Landed:
    """
    Return the present state of the topic of *source*.

    Raises:
        LakeError: it was made anew, or has lost records that were landed.
    """
    now = asyncio.run(look_at_landed(settings.kafka, source.topic, source.topic_id, source.landed))
    refuse_made_anew({source.topic: source.topic_id}, {source.topic: now.topic_id or source.topic_id})
    return now


def _named(spark: SparkSession, checkpoint: str, number: int) -> tuple[str, Mapping[str, int], Mapping[str, int]]:
    """Return the id of a checkpoint, and by partition the begin (batch 0: none) and end of batch *number*."""
    batches = range(max(0, number - 1), number + 1)
    files = _texts(spark, f"{checkpoint}/metadata", *(f"{checkpoint}/offsets/{each}" for each in batches))
    before = _positions_in(files[str(number - 1)]) if number else {}
    return json.loads(files["metadata"])["id"], before, _positions_in(files[str(number)])


def _positions_in(text: str) -> Mapping[str, int]:
    # The version, then Spark's own data, then the offsets of the one topic.
    (positions,) = json.loads(text.splitlines()[-1]).values()
    return cast("Mapping[str, int]", positions)


def _texts(spark: SparkSession, *paths: str) -> dict[str, str]:
    """Return the content of the files at or in *paths*, by name; an empty dict if there is no such path."""
    try:
        # A path is not a pattern.
        files = spark.read.option("__globPaths__", "false").text(list(paths), wholetext=True)
        named = files.select(F.substring_index(F.input_file_name(), "/", -1), "value")
        return dict(map(tuple, named.collect()))
    except AnalysisException as error:
        if not tables.is_missing(error):
            raise
        return {}


def _wait(sources: list[_Source], queries: list[StreamingQuery], stop: threading.Event, metrics: LakeMetrics) -> None:
    """Return when the *queries* of *sources* have ended or, once *stop* is set, after the batches under way."""
    counted: dict[str, int] = {}
    running = queries
    while running:
        if stop.is_set():
            for query in running:
                _end(query)
        # Queries that are running now are read once more, because a query may end at any point below.
        running = [query for query in running if query.isActive]
        for source, query in zip(sources, queries, strict=True):
            # Raises the error that has ended a query.
            query.awaitTermination(_POLL_S)
            batches = [batch_of(progress, source.partitions) for progress in query.recentProgress]
            for batch in batches:
                if batch.records and batch.number > counted.get(source.topic, -1):
                    counted[source.topic] = batch.number
                    metrics.count(source.topic, batch)
                    rate = batch.records / batch.took_s
                    log.info("%s: %d records in %.1f s, %d/s", query.name, batch.records, batch.took_s, rate)
            if batches:
                metrics.show(source.topic, batches[-1])


def _end(query: StreamingQuery) -> None:
    """Stop *query* after its batch. The next run repeats a batch that begins in this moment."""
    before = query.lastProgress
    while query.isActive and query.status["isTriggerActive"] and query.lastProgress == before:
        query.awaitTermination(_POLL_S)
    query.stop()


def _explain_loss(spark: SparkSession, settings: LakeSettings, root: str, sources: list[_Source]) -> None:
    """Raise a `LakeError` if a topic has dropped the records to land next, or is another topic."""
    for source in sources:
        _same(settings, source)
    limits = asyncio.run(_limits(settings, sources))
    for source in sources:
        for number, at in _landed(spark, root, source).items():
            start, end = limits[source.topic, number]
            if start > at:
                raise LakeError(
                    f"{source.topic} partition {number} was landed up to offset {at} and begins at {start}: Kafka has "
                    "deleted the records between, and the lake does not have them. To go on without them, land with "
                    "--skip-lost. Then give the topic a retention that is longer than any pause of the landing"
                )
            if end < at:
                raise LakeError(
                    f"{source.topic} partition {number} was landed up to offset {at} and ends at {end}: this is not "
                    "the topic that the lake was made from, so give another --lake or another --bootstrap"
                )


async def _limits(settings: LakeSettings, sources: list[_Source]) -> dict[tuple[str, int], tuple[int, int]]:
    limits: dict[tuple[str, int], tuple[int, int]] = {}
    async with TopicLog.open(settings.kafka, *(source.topic for source in sources)) as logs:
        for log, source in zip(logs, sources, strict=True):
            numbers = range(source.partitions)
            starts, ends = await log.bounds.starts(numbers), await log.bounds.ends(numbers)
            limits |= {(log.topic, number): (starts[number], ends[number]) for number in numbers}
    return limits
