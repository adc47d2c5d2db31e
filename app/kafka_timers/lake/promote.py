"""
Promote far requests: publish them to `timer-request` as copies, bucket by bucket of seconds.

The log is the only state. The tables show the requests that a bucket still lacks: its far requests, except withdrawn
ones and those with a copy at the workers. They are published until nothing is left, and then the bucket is closed.
After a kill at any point, the next run computes this again, and workers drop duplicates.

    seconds     … 35,999 │ 36,000 … 39,599 │ 39,600 … 43,199 │ 43,200 …
    bucket        closed │ publish, land,  │ waits until its last second comes within the horizon
                         │ look again      │

A bucket may be closed because no request appended from then on can be far and due in it. Time is that of the last tick,
and all records appended before the end of the log was asked for must have been landed.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple, Never

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kafka_timers.broker.lake_group import tell_closed
from kafka_timers.clock import Clock
from kafka_timers.core.wire import Topics
from kafka_timers.errors import BrokerError, KafkaTimersError, LakeError
from kafka_timers.lake import tables
from kafka_timers.lake.buckets import (
    SKEW_S,
    Bucket,
    Closed,
    closed_second,
    far_requests,
    left_to_the_lake,
    next_bucket,
)
from kafka_timers.lake.conditions import (
    NO_CONDITION_BYTES,
    PLACE,
    days_about,
    history_of,
    ignored_in,
    in_force,
)
from kafka_timers.lake.copies import (
    COPY_BYTES,
    Folder,
    asks_about,
    copies_in,
    copies_of,
    folders_about,
    need_no_copy,
    others_in,
    with_sure,
)
from kafka_timers.lake.covering import intervals_of
from kafka_timers.lake.job_metrics import LakeMetrics
from kafka_timers.lake.live import Live, look, publish, refuse_other_topic
from kafka_timers.lake.schema import BUCKETS, RECORD_KEY, REQUEST, REQUESTS, SEALS
from kafka_timers.settings import LakeSettings

log = logging.getLogger(__name__)

# Maximum of looks at a bucket before something must be wrong: one to publish, one to close, and some for copies that a
# cancel overtakes.
_LOOKS = 6
_POLL_S = 0.5
# Brokers keep the message to workers for days only, so it is repeated.
_TELL_AGAIN_S = 3_600

# Bytes of a message in addition to its value: the key, and a record batch of its own.
_AROUND_VALUE_BYTES = 128


class _Seen(NamedTuple):
    """
    Result of a look at a bucket, in numbers of requests.

    Attributes:
        published: requests whose copies it has published.
        late: those of them that were due by the time that all were published.
        large: requests too large for a copy.
        unsure: requests whose condition may not have been judged yet.
        unsure_to: highest offset of such a request, by partition.
        promoted: requests whose copies workers had; counted if nothing was published.
    """

    published: int = 0
    late: int = 0
    large: int = 0
    unsure: int = 0
    unsure_to: Mapping[int, int] = MappingProxyType({})
    promoted: int = 0


class _Decision(NamedTuple):
    """The facts known to the decision which requests of a bucket are to fire, and when it began (monotonic)."""

    live: Live
    # By partition, the offset below which all records are in the tables.
    known: Mapping[int, int]
    elapsed_s: float


class Promoter:
    """
    Promotes the requests that have come within the horizon.

    Args:
        clock: clock of this host, for waits. No decision goes by its date.
        bucket_s: length of a bucket.
        wait_s: longest wait for the landing, and for seals that show that conditions were judged.
        land: lands the records that the topics hold; None if another process does it.
        metrics: metrics that count promoted requests.

    Attributes:
        problems: reasons why the last look failed; empty if it succeeded.
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: LakeSettings,
        clock: Clock,
        *,
        bucket_s: int,
        wait_s: float,
        land: Callable[[], None] | None = None,
        metrics: LakeMetrics | None = None,
    ) -> None:
        if not 1 <= bucket_s <= settings.horizon_s // 2:
            raise LakeError(
                f"buckets of {bucket_s} s do not fit the horizon of {settings.horizon_s} s: give --bucket-s 1 to "
                f"{settings.horizon_s // 2}; the other half of it is the time for landing and publishing"
            )
        self._spark, self._settings, self._clock = spark, settings, clock
        self._bucket_s, self._wait_s, self._land = bucket_s, wait_s, land
        self._root = tables.root_of(settings)
        self._topic = Topics.of(settings.topic_prefix).requests
        self._metrics = metrics or LakeMetrics()
        self.problems: list[str] = []
        # The closed second last announced to workers, and the time of that.
        self._announced = (0, 0.0)
        # Offsets up to which records are known to be landed.
        self._known: dict[int, int] = {}

    def catch_up(self) -> int:
        """
        Promote and close every bucket that has come within the horizon.

        Returns:
            Number of failed requests: they were due before they were promoted, or are too large for a copy.

        Raises:
            LakeError: a worker's horizon is smaller than the lake's; the landing stays behind; copies do not help.
            TopicsError: a topic is missing.
        """
        wrong, horizon_s, begun_s = 0, self._settings.horizon_s, self._clock.elapsed_s()
        with tables.translated(self._root):
            if self._land:
                self._land()
            while True:
                rows = tables.read(self._spark, self._root, BUCKETS).select(*Closed._fields).collect()
                closed = [Closed(*row) for row in rows]
                self._tell(closed_second(closed, horizon_s))
                bucket = next_bucket(closed, self._look().now, horizon_s, self._bucket_s)
                if bucket is None:
                    break
                wrong += self._promote(bucket)
        self._metrics.look.set(self._clock.elapsed_s() - begun_s)
        return wrong

    def keep_on(self, every_s: float) -> Never:
        """
        Promote until this process is ended; look every *every_s* seconds.

        Errors are logged and the look is repeated: a broker is away, a landing is behind, a worker's horizon does not
        fit.
        """
        while True:
            next_s = self._clock.elapsed_s() + every_s
            try:
                self.catch_up()
                self.problems = []
            except KafkaTimersError as error:
                log.error("%s", error)
                self._metrics.failures.inc()
                self.problems = [str(error)]
            self._pause(next_s - self._clock.elapsed_s())

    def publish_missing(self, bucket: Bucket) -> _Seen:
        """
        Publish a copy of each request of *bucket* that needs one. This is one look at the bucket.

        It raises what `catch_up` raises.
        """
        elapsed_s = self._clock.elapsed_s()
        live = self._look()
        decision = _Decision(live, self._landed(live.ends), elapsed_s)
        requests = tables.read(self._spark, self._root, REQUESTS)
        far = self._held_by_nobody(far_requests(requests, bucket), bucket, live)
        counts = (F.count("timer_id").alias("named"), F.min("offset").alias("since"))
        folders = far.groupBy(*REQUESTS.partitioned_by).agg(*counts).collect()
        if not folders:
            return _Seen()
        asks = requests.where(F.lit(False))
        judged_to: Mapping[int, int] = {}
        if any(row.named for row in folders):
            since = min(row.since for row in folders)
            named_in = {(row.delay, row.due): row.named for row in folders}
            far, asks, judged_to = self._in_force(requests, far, since, named_in)
        with tables.keeping() as keep:
            done = keep(need_no_copy(asks, copies_in(requests, bucket)))
            seen = self._publish(far.join(done, [*RECORD_KEY], "left_anti"), bucket, decision, judged_to)
            if not seen.published:
                seen = seen._replace(promoted=done.where("promoted").count())
        return seen

    def _held_by_nobody(self, far: DataFrame, bucket: Bucket, live: Live) -> DataFrame:
        """Return the requests of *far* that workers do not hold themselves."""
        if bucket.first > live.now:
            return far
        last = [(number, seal.end_ms, seal.horizon_s, seal.horizon_from) for number, seal in live.seals.items()]
        columns = "partition int, end_ms bigint, horizon_s bigint, horizon_from bigint"
        # The last seals may not be landed yet.
        newest = tables.constant(self._spark, last, columns)
        return left_to_the_lake(far, self._seals().select(newest.columns).unionByName(newest))

    def _seals(self) -> DataFrame:
        """Return the complete seals that are landed."""
        return tables.read(self._spark, self._root, SEALS).where(F.col("through").isNull())

    def _in_force(
        self, requests: DataFrame, far: DataFrame, since: int, named_in: Mapping[Folder, int]
    ) -> tuple[DataFrame, DataFrame, Mapping[int, int]]:
        """
        Return *far*, and what `asks_about` returns for it, without records whose condition did not hold.

        The third value is, by partition, the offset below which this is known. Seals show the records that a worker had
        read, and all seals up to some moment are needed, so only landed ones count. *named_in* has the number of rows
        of *far* with a timer id, by folder.
        """
        named = sum(named_in.values())
        folders = folders_about(requests, far, since, named).collect()
        if not any(row.conditions for row in folders):
            # Nearly always no other record has an id of the bucket, so of other folders nothing else is read.
            return far, asks_about(requests, far, since, named, others_in(folders, named_in)), {}
        asks = asks_about(requests, far, since, named)
        history = history_of(requests, asks)
        seals = self._seals()
        newest = seals.groupBy("partition").agg(F.max("last").alias("newest"))
        fences = _fences(seals)
        seals = seals.join(F.broadcast(newest), "partition")
        seals = seals.where(F.col("day").isin(days_about(history)) | (F.col("last") == F.col("newest")))
        # Collected, because they are few and part of every later plan, which would judge them again each time.
        places = ignored_in(history, intervals_of(seals)).collect()
        ignored = tables.constant(self._spark, places, PLACE)
        far = in_force(far, ignored).where(F.col("kind") == REQUEST)
        return far, asks_about(in_force(requests, ignored), far, since, named), fences

    def _publish(self, lacking: DataFrame, bucket: Bucket, decision: _Decision, judged_to: Mapping[int, int]) -> _Seen:
        """Publish copies of the requests *lacking* one, and return the counts."""
        live = decision.live
        reset_bytes = F.when(F.col("condition").isNotNull(), NO_CONDITION_BYTES).otherwise(0)
        copy_bytes = F.length("value") + F.lit(COPY_BYTES + _AROUND_VALUE_BYTES) + reset_bytes
        fits, sure = F.col("fits"), F.col("is_sure")
        lacking = with_sure(lacking, judged_to).withColumn("fits", copy_bytes <= live.message_bytes_max)
        ready = lacking.where(fits & sure)
        of_partitions = (
            lacking.groupBy("partition")
            .agg(
                F.count_if(fits & sure).alias("ready"),
                F.min(F.when(fits & sure, F.col("second"))).alias("first_due"),
                F.count_if(~fits).alias("large"),
                F.count_if(fits & ~sure).alias("unsure"),
                F.max(F.when(fits & ~sure, F.col("offset"))).alias("unsure_to"),
            )
            .collect()
        )
        count, large, unsure = (sum(row[name] for row in of_partitions) for name in ("ready", "large", "unsure"))
        unsure_to = {row.partition: row.unsure_to for row in of_partitions if row.unsure}
        late = 0
        if count:
            first_due = min(row.first_due for row in of_partitions if row.ready)
            # The decision began with the last tick, before the question for the ends of the log. Workers judge by that
            # whether a copy is stale.
            publish(copies_of(ready, decision.known, live.now), self._settings)
            log.info("published copies of %d requests of seconds %d to %d", count, bucket.first, bucket.last)
            now, took_s = live.now, self._clock.elapsed_s() - decision.elapsed_s
            # Another question takes half a second, and nearly always all requests are due much later.
            if first_due <= now + took_s + SKEW_S:
                now = self._look().now
                late = ready.where(F.col("second") <= now).count()
            if late:
                log.error(
                    "promoted late: %d requests of seconds %d to %d were due by second %d; they fire at once",
                    *(late, bucket.first, bucket.last, now),
                )
        return _Seen(count, late, large, unsure, unsure_to)

    def _promote(self, bucket: Bucket) -> int:
        wrong, seen = 0, _Seen()
        for _ in range(_LOOKS):
            seen = self.publish_missing(bucket)
            wrong += seen.late
            self._metrics.late.inc(seen.late)
            if not seen.published and not seen.unsure:
                if seen.large:
                    self._metrics.too_large.inc(seen.large)
                    log.error(
                        "%d requests of seconds %d to %d do not fire: with the bytes that a copy adds, they are larger "
                        "than max.message.bytes of %s",
                        *(seen.large, bucket.first, bucket.last, self._topic),
                    )
                self._close(bucket, seen.promoted)
                return wrong + seen.large
            if not seen.published and not self._judged(seen.unsure_to):
                break
        where = f"of the requests due in seconds {bucket.first} to {bucket.last}"
        if seen.unsure:
            raise LakeError(
                f"{where}, {seen.unsure} have a condition, and no seal tells within {self._wait_s:g} s that a worker "
                "has judged it: is each partition owned by a worker, and are its seals landed? The next run goes on "
                "with them"
            )
        raise LakeError(
            f"{where}, {seen.published} still have no copy that workers take, after {_LOOKS} looks: are there cancels "
            "of them all the time, or does the landing lag by half an hour? The next run goes on with them"
        )

    def _look(self) -> Live:
        live = asyncio.run(look(self._settings.kafka, self._settings.topic_prefix))
        horizons_s = {number: seal.horizon_s for number, seal in live.seals.items()}
        for number, horizon_s in horizons_s.items():
            if 0 < horizon_s < self._settings.horizon_s:
                raise LakeError(
                    f"the worker of partition {number} has a horizon of {horizon_s} s, less than the lake's "
                    f"{self._settings.horizon_s} s: timers due between the two would be lost. Give the lake "
                    f"--horizon-s {horizon_s}, or the workers more"
                )
        if horizons_s and not any(horizons_s.values()):
            log.warning("workers have no horizon: they keep all requests themselves and drop the copies from the lake")
        return live

    def _landed(self, ends: Mapping[int, int]) -> dict[int, int]:
        """Wait until all records below *ends* are in the tables, and return the landed offsets."""
        refuse_other_topic(self._spark, self._settings)
        until_s = self._clock.elapsed_s() + self._wait_s
        while True:
            positions = tables.read_positions(self._spark, self._root, self._topic)
            behind = {number: end for number, end in ends.items() if positions.get(number, 0) < end}
            if not behind:
                break
            if self._clock.elapsed_s() > until_s:
                number, end = min(behind.items())
                raise LakeError(
                    f"the landing has come to offset {positions.get(number, 0)} of {self._topic} partition {number} "
                    f"and not to {end} within {self._wait_s:g} s: is kafka-timers lake land running, or does a "
                    "producer keep a transaction open?"
                )
            if self._land:
                self._land()
            else:
                self._pause(_POLL_S)
        self._known = {number: positions.get(number, 0) for number in ends}
        return self._known

    def _judged(self, offsets: Mapping[int, int]) -> bool:
        """Wait until, in each partition, the landed seals pass its one of *offsets*; False if they do not in time."""

        def passed(fences: Mapping[int, int]) -> bool:
            return all(offset < fences.get(number, 0) for number, offset in offsets.items())

        until_s = self._clock.elapsed_s() + self._wait_s
        while not passed(_fences(self._seals())):
            if self._clock.elapsed_s() > until_s:
                return False
            if self._land and passed({number: seal.fence for number, seal in self._look().seals.items()}):
                self._land()
            else:
                self._pause(_POLL_S)
        return True

    def _close(self, bucket: Bucket, promoted: int) -> None:
        row = Closed(bucket.first, bucket.last, self._settings.horizon_s, promoted, int(self._clock.wall_s()))
        tables.append(tables.constant(self._spark, [row], BUCKETS.columns), self._root, BUCKETS)
        self._metrics.promoted.inc(promoted)
        log.info("closed seconds %d to %d: workers have %d requests of them", bucket.first, bucket.last, promoted)

    def _tell(self, second: int) -> None:
        """Tell workers up to which *second* all is promoted. A failure here does not stop promotion."""
        self._metrics.closed.value = second or None
        announced, at_s = self._announced
        now_s = self._clock.elapsed_s()
        if not second or (second == announced and now_s < at_s + _TELL_AGAIN_S):
            return
        landed = self._known or tables.read_positions(self._spark, self._root, self._topic)
        try:
            asyncio.run(tell_closed(self._settings.kafka, self._settings.topic_prefix, second, landed))
            self._announced = (second, now_s)
        except BrokerError as error:
            log.warning("workers do not know that seconds up to %d are promoted: %s", second, error)

    def _pause(self, for_s: float) -> None:
        asyncio.run(self._clock.sleep_until(self._clock.wall_s() + for_s))


def _fences(seals: DataFrame) -> dict[int, int]:
    """Return by partition the highest offset up to which the log had been read, from *seals*."""
    return {row[0]: row[1] for row in seals.groupBy("partition").agg(F.max("fence")).collect()}
