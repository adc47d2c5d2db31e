"""
How far requests come back to the workers: bucket by bucket of seconds, as copies on `timer-request`.

The log is all the state there is. What a bucket still lacks is computed from the tables: its far requests, less those
that were withdrawn, less those of which workers have a copy. That is published until nothing is left; then the bucket
is closed. Killed anywhere, the next run computes anew, and workers drop what is published twice.

    seconds     … 35,999 │ 36,000 … 39,599 │ 39,600 … 43,199 │ 43,200 …
    bucket        closed │ publish, land,  │ waits until its last second comes within the horizon
                         │ look again      │

A bucket may be closed because nothing that is appended from then on can be far and due in it: time is that of the last
tick, and all that was appended before the question for the log's end must have been landed.
"""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple, Never

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from kafka_timers.clock import Clock, HostClock
from kafka_timers.core.wire import Copy, Future, Topics
from kafka_timers.errors import KafkaTimersError, LakeError
from kafka_timers.lake import message, tables
from kafka_timers.lake.live import Live, look, publish, refuse_other_topic
from kafka_timers.lake.outcomes import waits_longer
from kafka_timers.lake.schema import BUCKETS, CANCEL, COPY, DELAYS_S, REQUEST, REQUESTS, SEALS
from kafka_timers.lake.versions import marks_of
from kafka_timers.settings import LakeSettings

__all__ = [
    "Bucket",
    "Closed",
    "Promoter",
    "Seen",
    "asks_about",
    "copies_in",
    "copies_of",
    "far_requests",
    "keep_promoting",
    "left_to_the_lake",
    "need_no_copy",
    "next_bucket",
]

log = logging.getLogger(__name__)

# Append times of two brokers may differ by this much: a request may be appended in a second that a tick on another
# broker has already passed.
SKEW_S = 5

# How often a bucket is looked at before something must be wrong: once to publish, once to close, and some for copies
# that a cancel overtakes.
_LOOKS = 6
_POLL_S = 0.5

# What a message takes beside value and key, and the key: a batch of its own with nothing else in it.
_AROUND_VALUE_BYTES = 128

# What a copy adds to the value; offsets have up to 56 bits, and seconds up to 42.
_OFFSET_BYTES, _SECOND_BYTES = 8, 6
COPY_BYTES = 5 + 2 * (1 + _OFFSET_BYTES) + 2 * (1 + _SECOND_BYTES)


class Bucket(NamedTuple):
    """
    Seconds that are promoted together.

    Attributes:
        first: the first of them.
        last: the last of them.
        far_s: who waits longer than this may have been left to the lake.
    """

    first: int
    last: int
    far_s: int


class Closed(NamedTuple):
    """A row of the table `buckets`."""

    first: int
    last: int
    horizon_s: int
    promoted: int
    closed_s: int


class Seen(NamedTuple):
    """
    What a look at a bucket found.

    Attributes:
        published: requests of which it has published copies.
        late: of these, due by the time that all were published.
        large: requests too large for a copy.
        promoted: requests of which workers had one; counted when nothing was published.
    """

    published: int = 0
    late: int = 0
    large: int = 0
    promoted: int = 0


def next_bucket(closed: Sequence[Closed], now: int, horizon_s: int, bucket_s: int) -> Bucket | None:
    """
    Return the next seconds to promote, None while none may be.

    It follows the closed ones without a gap. All whole buckets that have come within the horizon are one, so that a job
    that was down, or begins, looks at everything once.

    Args:
        closed: all rows of `buckets`.
        now: second of the last tick.
        horizon_s: of the lake.
        bucket_s: length of a bucket.
    """
    rows = sorted(closed, key=lambda row: (row.closed_s, row.last))
    done = 0
    if rows:
        done = rows[-1].last
        # Requests have been appended since that are far by the smaller horizon and due in what was closed by the
        # larger one. None is due before the moment at which it was closed, and that was behind last - horizon.
        if rows[-1].horizon_s > horizon_s:
            done = max(0, done - rows[-1].horizon_s)
    whole = (now + horizon_s - SKEW_S - 1 - done) // bucket_s
    if whole < 1:
        return None
    # A smaller horizon was in force until the next one closed its first bucket. What was left to the lake by it is due
    # within the larger one from then on; later nobody waits of whom the larger one does not tell.
    ends = [row.closed_s for row in rows[1:]]
    before = [
        row.horizon_s
        for row, end_s in itertools.zip_longest(rows, ends)
        if end_s is None or end_s + horizon_s >= done + 1
    ]
    return Bucket(done + 1, done + whole * bucket_s, min([horizon_s, *before]))


def lies_in(bucket: Bucket) -> Column:
    """Tell of a row of `requests` whether far requests of *bucket* may lie in its partition of the table."""
    lies = F.lit(False)
    for delay, longest_s in {**DELAYS_S, "more": None}.items():
        if longest_s is None or longest_s > bucket.far_s:
            form = {"more": "%Y", "1y": "%Y-%m"}.get(delay, "%Y-%m-%d")
            lies |= (F.col("delay") == delay) & _due_between(bucket, form)
    return lies


def far_requests(requests: DataFrame, bucket: Bucket) -> DataFrame:
    """
    Return the rows of `requests` that are far and due in *bucket*, whatever became of them.

    What is read depends on what is due in the bucket's days, months and years, and not on what else is parked.
    """
    return requests.where(
        lies_in(bucket)
        & (F.col("kind") == REQUEST)
        & F.col("second").between(bucket.first, bucket.last)
        & waits_longer(F.lit(bucket.far_s))
    )


def left_to_the_lake(far: DataFrame, seals: DataFrame) -> DataFrame:
    """
    Return those of *far* that workers have left to the lake, as their seals tell.

    What workers had when their horizon changed is theirs, and has fired from then on. Only of what was due before now
    is it in question: what they had lies below the new horizon_from, and nothing there waits any more.

    Args:
        far: rows of `requests`.
        seals: partition int, last bigint, horizon_s bigint, horizon_from bigint of all seals; of a partition without
            any, nobody has anything.
    """
    horizons = seals.groupBy("partition", "horizon_from", "horizon_s").agg(F.max("last").alias("last"))
    horizons = horizons.groupBy("partition").agg(
        F.sort_array(F.collect_list(F.struct("horizon_from", "last", "horizon_s"))).alias("horizons")
    )
    # Of several from one offset on the last one; who read what lies before the first had none, since land came with it.
    judged = F.filter("horizons", lambda each: each["horizon_from"] <= F.col("offset"))
    horizon_s = F.coalesce(F.try_element_at(judged, F.lit(-1))["horizon_s"], F.lit(0))
    return (
        far.join(F.broadcast(horizons), "partition", "left")
        .where(F.col("horizons").isNull() | waits_longer(horizon_s))
        .select(far.columns)
    )


def copies_in(requests: DataFrame, bucket: Bucket) -> DataFrame:
    """Return the rows of `requests` that are copies of requests due in *bucket*."""
    return requests.where(
        (F.col("delay") == COPY)
        & _due_between(bucket, "%Y-%m-%d")
        & (F.col("kind") == COPY)
        & F.col("second").between(bucket.first, bucket.last)
    )


def asks_about(requests: DataFrame, far: DataFrame, since: int) -> DataFrame:
    """
    Return the requests and cancels that have a timer id of one of *far*.

    Args:
        requests: all rows of `requests`.
        far: rows of it.
        since: the lowest offset of *far*: nothing below it says anything about them.

    Returns:
        partition int, offset bigint, appended_ms bigint, kind string, second bigint, timer_id string.
    """
    # By a hash of the id, which is smaller: that two ids have the same lets in one too many, which does no harm.
    name = F.xxhash64("partition", "timer_id")
    named = far.where(F.col("timer_id").isNotNull()).select(name.alias("name")).distinct()
    return (
        requests.where(F.col("kind").isin(REQUEST, CANCEL) & F.col("timer_id").isNotNull() & (F.col("offset") >= since))
        .withColumn("name", name)
        .join(named, "name", "left_semi")
        .select("partition", "offset", "appended_ms", "kind", "second", "timer_id")
    )


def need_no_copy(asks: DataFrame, copies: DataFrame) -> DataFrame:
    """
    Return the requests of which no copy is wanted any more.

    Args:
        asks: as `asks_about` returns them.
        copies: as `copies_in` returns them.

    Returns:
        partition int, offset bigint, promoted boolean: whether workers have taken a copy, else it was withdrawn.
    """
    return marks_of(asks.unionByName(copies, allowMissingColumns=True)).select(
        "partition", "offset", F.col("copied_at").isNotNull().alias("promoted")
    )


def copies_of(requests: DataFrame, decided: Mapping[int, int], decided_s: int) -> DataFrame:
    """
    Return the copies of *requests* as records for `timer-request`.

    Args:
        requests: rows of `requests`.
        decided: of each partition the offset below which everything was known to the decision that they fire.
        decided_s: UNIX second in which that began.

    Returns:
        partition int, key binary, value binary; those of a partition by second and offset. Requests that the decision
        could not know are left out.
    """
    decided_of = F.create_map(
        *itertools.chain.from_iterable(
            (F.lit(number), F.lit(offset).cast("bigint")) for number, offset in decided.items()
        )
    )
    copy = message.nested(
        Future.COPY_FIELD_NUMBER,
        message.number(Copy.OFFSET_FIELD_NUMBER, F.col("offset"), _OFFSET_BYTES),
        message.number(Copy.APPENDED_FIELD_NUMBER, F.floor(F.col("appended_ms") / 1000), _SECOND_BYTES),
        message.number(Copy.DECIDEDOFFSET_FIELD_NUMBER, decided_of[F.col("partition")], _OFFSET_BYTES),
        message.number(Copy.DECIDED_FIELD_NUMBER, F.lit(decided_s), _SECOND_BYTES),
    )
    return (
        # What was landed since the decision waits for the next: a copy that is older than its original is refused.
        requests.where(F.col("offset") < decided_of[F.col("partition")])
        # A worker keeps neighbours that are due together as one row.
        .repartition(len(decided), "partition")
        .sortWithinPartitions("partition", "second", "offset")
        .select(
            "partition",
            F.col("second").cast("string").cast("binary").alias("key"),
            # A Future with the copy alone, behind the original's bytes: to a parser that is one message.
            F.concat("value", message.bytes_of(copy)).alias("value"),
        )
    )


class Promoter:
    """
    Promotes what has come within the horizon.

    Args:
        spark: the session.
        settings: of the job.
        clock: of this host: how long to wait, and when a decision began, from which workers tell that a copy is stale.
        bucket_s: length of a bucket.
        wait_s: longest wait for the landing.
        land: called to have landed what the topics hold; None when another process does it.
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

    def catch_up(self) -> int:
        """
        Promote and close every bucket that has come within the horizon.

        Returns:
            How many requests went wrong: they were due before they were promoted, or are too large for a copy.

        Raises:
            LakeError: a worker's horizon is smaller than the lake's; the landing stays behind; copies do not help.
            BrokerError: no broker answers, or it refuses.
            TopicsError: a topic is missing.
        """
        wrong = 0
        with tables.translated(self._root):
            if self._land:
                self._land()
            while bucket := next_bucket(self._closed(), self._look().now, self._settings.horizon_s, self._bucket_s):
                wrong += self._promote(bucket)
        return wrong

    def publish_what_is_left(self, bucket: Bucket) -> Seen:
        """
        Publish a copy of each request of *bucket* that waits for one, which is a look at it.

        Raises:
            LakeError: as `catch_up`.
            BrokerError: as `catch_up`.
        """
        decided_s, began_s = int(self._clock.wall_s()), self._clock.elapsed_s()
        live = self._look()
        decided = self._landed(live.ends)
        requests = tables.read(self._spark, self._root, REQUESTS)
        far = far_requests(requests, bucket)
        if bucket.first <= live.now:
            last = [(number, seal.last, seal.horizon_s, seal.horizon_from) for number, seal in live.seals.items()]
            told = tables.constant(
                self._spark, last, "partition int, last bigint, horizon_s bigint, horizon_from bigint"
            )
            # The last ones may not have been landed.
            seals = tables.read(self._spark, self._root, SEALS).where(F.col("through").isNull())
            far = left_to_the_lake(far, seals.select(told.columns).unionByName(told))
        there, named, since = _counts(far, F.count("*"), F.count("timer_id"), F.min("offset"))
        if not there:
            return Seen()
        asks = asks_about(requests, far, since) if named else requests.where(F.lit(False))
        done = need_no_copy(asks, copies_in(requests, bucket)).persist()
        try:
            fits = F.length("value") + F.lit(COPY_BYTES + _AROUND_VALUE_BYTES) <= live.message_bytes_max
            left = far.withColumn("fits", fits).join(done, ["partition", "offset"], "left_anti")
            next_due = F.min(F.when(F.col("fits"), F.col("second")))
            waiting, large, first = _counts(left, F.count_if("fits"), F.count_if(~F.col("fits")), next_due)
            late, now = 0, live.now
            if waiting:
                publish(copies_of(left.where("fits"), decided, decided_s), self._settings)
                # To ask again takes half a second, and nearly always all are due much later.
                if first <= now + self._clock.elapsed_s() - began_s + SKEW_S:
                    now = self._look().now
                    late = left.where(F.col("fits") & (F.col("second") <= now)).count()
            seen = Seen(waiting, late, large, 0 if waiting else done.where("promoted").count())
        finally:
            done.unpersist()
        if seen.published:
            log.info("published copies of %d requests of seconds %d to %d", seen.published, *bucket[:2])
        if seen.late:
            log.error(
                "promoted late: %d requests of seconds %d to %d were due by second %d; they fire at once",
                *(seen.late, *bucket[:2], now),
            )
        return seen

    def _promote(self, bucket: Bucket) -> int:
        wrong = 0
        for _ in range(_LOOKS):
            seen = self.publish_what_is_left(bucket)
            wrong += seen.late
            if not seen.published:
                if seen.large:
                    log.error(
                        "%d requests of seconds %d to %d do not fire: with what a copy adds they are larger than what "
                        "%s takes (max.message.bytes)",
                        *(seen.large, *bucket[:2], self._topic),
                    )
                self._close(bucket, seen.promoted)
                return wrong + seen.large
        raise LakeError(
            f"of the requests due in seconds {bucket.first} to {bucket.last}, {seen.published} still have no copy "
            f"that workers take, after {_LOOKS} looks: are there cancels of them all the time, or does the landing lag "
            "by half an hour? The next run goes on with them"
        )

    def _look(self) -> Live:
        live = asyncio.run(look(self._settings.kafka, self._settings.topic_prefix))
        horizons_s = {number: seal.horizon_s for number, seal in live.seals.items()}
        for number, horizon_s in horizons_s.items():
            if 0 < horizon_s < self._settings.horizon_s:
                raise LakeError(
                    f"the worker of partition {number} has a horizon of {horizon_s} s, less than the lake's "
                    f"{self._settings.horizon_s} s: what is due between the two would be lost. Give the lake "
                    f"--horizon-s {horizon_s}, or the workers more"
                )
        if horizons_s and not any(horizons_s.values()):
            log.warning("workers have no horizon: they keep all requests themselves and drop what is promoted")
        return live

    def _closed(self) -> list[Closed]:
        rows = tables.read(self._spark, self._root, BUCKETS).select(*Closed._fields).collect()
        return [Closed(*row) for row in rows]

    def _landed(self, ends: Mapping[int, int]) -> dict[int, int]:
        """Wait until all below *ends* is in the tables, and return how far they have come."""
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
                time.sleep(_POLL_S)
        refuse_other_topic(positions, self._topic, len(ends))
        return {number: positions.get(number, 0) for number in ends}

    def _close(self, bucket: Bucket, promoted: int) -> None:
        row = Closed(bucket.first, bucket.last, self._settings.horizon_s, promoted, int(self._clock.wall_s()))
        tables.append(tables.constant(self._spark, [row], BUCKETS.columns), self._root, BUCKETS)
        log.info("closed seconds %d to %d: workers have %d requests of them", *bucket[:2], promoted)


def keep_promoting(promoter: Promoter, every_s: float) -> Never:
    """
    Promote until this process is ended, and look every *every_s* seconds.

    What cannot go on is logged and tried again: a broker that is away, a landing that is behind, a worker's horizon.
    """
    clock = HostClock()
    while True:
        next_s = clock.elapsed_s() + every_s
        try:
            promoter.catch_up()
        except KafkaTimersError as error:
            log.error("%s", error)
        time.sleep(max(0.0, next_s - clock.elapsed_s()))


def _counts(frame: DataFrame, *counts: Column) -> Row:
    return frame.agg(*counts).collect()[0]


def _due_between(bucket: Bucket, form: str) -> Column:
    # As text they sort as they follow each other, up to the year 9999.
    first, last = (datetime.fromtimestamp(second, UTC).strftime(form) for second in bucket[:2])
    return F.col("due").between(first, last)
