"""Read the callback, tombstone and reply topics of a time range from Kafka, and compare them with the requests."""

import asyncio
import re
from collections.abc import Collection, Iterator, Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from kafka_timers.lake.arrivals import (
    callback_findings,
    differences,
    disordered,
    late_callbacks,
    lateness,
    strange,
    stranger_findings,
    tombstone_findings,
)
from kafka_timers.lake.batch_check import batch_findings, sent_with
from kafka_timers.lake.callback_records import callbacks_of, tombstones_of
from kafka_timers.lake.coverage import Coverage
from kafka_timers.lake.covering import last_second
from kafka_timers.lake.replied import answer_findings, answers_of
from kafka_timers.lake.schema import CANCEL, RECORD_KEY, REQUEST, REQUESTS
from kafka_timers.lake.service import TopicFacts, topics_of
from kafka_timers.lake.session import kafka_options
from kafka_timers.lake.tables import read, root_of
from kafka_timers.lake.time_range import TimeRange
from kafka_timers.settings import LakeSettings

# Callbacks are read from this long before the time range, because an early one may lie there, until this long after its
# end or its last seal.
_AROUND_MS = 3_600_000
# Topics are taken from requests that are due up to this long after the time range.
_SOON_S = 86_400
# Maximum of requests that are looked up by offset; more are looked up between the lowest and the highest offset.
_NAMED_MAX = 1_000


class Comparison:
    """
    Records of the topics in a time range, compared with the expected ones.

    Attributes:
        lateness: see `Audit`; set once `findings` is exhausted.
        unchecked: see `Audit`.
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: LakeSettings,
        within: TimeRange,
        outcomes: DataFrame,
        coverage: Coverage,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._requests = read(spark, root_of(settings), REQUESTS)
        self._within = within
        self._outcomes = outcomes
        self._judged = outcomes.where(F.col("sealed_in") >= within.first)
        self.lateness: Sequence[Row] = []
        self.unchecked: list[str] = []
        self._by_broker: set[str] = set()
        self._first, self._last = coverage.first, coverage.last
        # A late callback comes with its seal, however late that is.
        sealed_ms = within.sealed.agg(F.max("appended_ms")).collect()[0][0] or 0
        self._from_ms = self._first * 1000 - _AROUND_MS
        self._to_ms = max(self._last * 1000 + 999, sealed_ms) + _AROUND_MS

    def findings(self, late_ms: int | None, *, batches: bool) -> Iterator[DataFrame]:
        """
        Yield the faults, with the columns `schema.FINDING`.

        *late_ms* and *batches* are as in `audit`.
        """
        # An early callback may go to a topic in which nothing was due.
        soon = self._requests.where(F.col("second").between(self._first, self._last + _SOON_S))
        due = self._outcomes.where(F.col("reason").isNull()).select("topic")
        topics = _names(due.unionByName(soon.select("topic")), F.col("topic"))
        tombstones = _names(self._judged, F.col("asks.tombstone_topic"))
        replies = _names(self._within.requests.where(F.col("kind").isin(REQUEST, CANCEL)), F.col("asks.reply_topic"))
        every = topics | tombstones | replies
        if not every:
            return
        facts = self.facts(every)
        self._by_broker = facts.by_broker
        if unseen := every - facts.partitions.keys():
            self.unchecked.append(f"{', '.join(sorted(unseen))}: there is no such topic, or this user may not read it")
        if facts.trimmed:
            self.unchecked.append(
                f"records that retention may have deleted since the time range began, of {', '.join(facts.trimmed)}"
            )
        if topics:
            yield from self._compared(topics, facts.partitions, late_ms)
        if tombstones:
            came = self._within.keep(tombstones_of(self.records(tombstones)))
            yield tombstone_findings(self._judged, came, tombstones & facts.partitions.keys() - facts.compacted)
            if compacted := tombstones & facts.compacted:
                self.unchecked.append(
                    f"missing tombstones in {', '.join(sorted(compacted))}: compaction may have deleted them"
                )
        if batches:
            whole = (topics | tombstones) & facts.partitions.keys() - facts.compacted - set(facts.trimmed)
            yield from self._batches(whole)
            if partial := (topics | tombstones) & facts.partitions.keys() - whole:
                self.unchecked.append(
                    f"the batches in {', '.join(sorted(partial))}: compaction or retention may have deleted records"
                )
        if replies:
            answers = self._within.keep(answers_of(self.records(replies)))
            within = self._within
            yield answer_findings(answers, within.requests, self._outcomes, within.intervals, within.first, within.last)

    def _compared(
        self, topics: Collection[str], partitions: dict[str, int], late_ms: int | None
    ) -> Iterator[DataFrame]:
        within, outcomes = self._within, self._outcomes
        records = self.records(topics)
        received = within.keep(callbacks_of(records))
        wrong = within.keep(callback_findings(outcomes, received, partitions, within.first, within.last))
        content = wrong.where("kind = 'content'")
        if content.isEmpty():
            yield wrong
        else:
            yield wrong.where("kind != 'content'")
            yield differences(content, records, named_by(self._requests, content))
        yield disordered(self._judged, received)
        strangers = within.keep(strange(outcomes, received, self._first, self._last))
        if not strangers.isEmpty():
            asked = named_by(self._requests, strangers)
            yield stranger_findings(strangers, asked, within.intervals, self._first, self._last)
        if late_ms is not None:
            yield late_callbacks(self._judged, received, late_ms)
        self.lateness = lateness(self._judged, received).orderBy("topic").collect()
        if timed := [row["topic"] for row in self.lateness if row["by_worker"]]:
            self.unchecked.append(
                f"arrival of callbacks in {', '.join(timed)} by a broker's clock: their times are those of the workers"
            )

    def _batches(self, topics: Collection[str]) -> Iterator[DataFrame]:
        within = self._within
        sent = within.keep(sent_with(within.seals.where(last_second(F.col("end_ms")) >= within.first)))
        complete = within.sealed.where(F.col("last") >= within.first)
        if topics:
            yield batch_findings(sent, self._judged, self.records(topics), complete, topics)
        if unnamed := sent.where(F.col("topic").isNull()).count():
            self.unchecked.append(
                f"the batches of {unnamed:,} seals that name none: with at-least-once, or with too many"
            )

    def facts(self, topics: Collection[str]) -> TopicFacts:
        """Return the brokers' facts about *topics*."""
        return asyncio.run(topics_of(self._settings.kafka, topics, self._first * 1000))

    def records(self, topics: Collection[str]) -> DataFrame:
        """Return the records of *topics* around the time range."""
        timed = self._by_broker.intersection(topics)
        # Kafka finds the first record of a time. As an end, that works only in topics whose times never go back, so
        # the other topics are read to their end.
        ends = [(timed, {"endingTimestamp": str(self._to_ms)}), (set(topics) - timed, {})]
        read = [self._read(names, options) for names, options in ends if names]
        at_ms = F.unix_millis("timestamp")
        return reduce(DataFrame.unionAll, read).where(at_ms.between(self._from_ms, self._to_ms))

    def _read(self, topics: Collection[str], ends: dict[str, str]) -> DataFrame:
        options = {
            **kafka_options(self._settings.kafka),
            "kafka.isolation.level": "read_committed",
            # A topic that no longer exists is skipped: its callbacks are missing.
            "subscribePattern": "|".join(re.escape(topic) for topic in sorted(topics)),
            "startingTimestamp": str(self._from_ms),
            "startingOffsetsByTimestampStrategy": "latest",
            "includeHeaders": "true",
            # The same goes for records that retention deletes meanwhile.
            "failOnDataLoss": "false",
            **ends,
        }
        return self._spark.read.format("kafka").options(**options).load()


def _names(rows: DataFrame, name: Column) -> set[str]:
    return {row[0] for row in rows.where(name.isNotNull()).select(name).distinct().collect()}


def named_by(requests: DataFrame, rows: DataFrame) -> DataFrame:
    """Return the *requests* that *rows* name, selected so that Delta skips files by their offset statistics."""
    named = rows.select(*RECORD_KEY).distinct()
    offsets = sorted({row[0] for row in named.select("offset").distinct().limit(_NAMED_MAX + 1).collect()})
    if len(offsets) > _NAMED_MAX:
        low, high = named.agg(F.min("offset"), F.max("offset")).collect()[0]
        near = requests.where(F.col("offset").between(low, high))
    else:
        near = requests.where(F.col("offset").isin(offsets))
    return near.join(F.broadcast(named), [*RECORD_KEY], "semi")
