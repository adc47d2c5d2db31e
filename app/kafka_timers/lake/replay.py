"""
What fires, computed anew: the join of seals with requests as a batch, over any past span.

What fires follows from the request log and the fences in the seals, whoever fired it (promise P12 of docs/design.md).
The complete seals of a partition are the steps of its history. Once a step's second has reached that of a request, so
have all later ones, and once its fence has passed the request's offset, too. So a request fires in the later of two:
the first step that reached its second, and the first one that passed its offset.

    step      last  fence      request          by second   by offset   fires in
    A           11     40      #35, second 10   A           A           A
    B           12     40      #40, second 12   B           C           C: it was read after its second was scanned
    C           13     55      #40, second 13   C           C           C

Nearly all fire in the step of their second, so that one is looked up once per second, and only of what lies behind its
fence the second step is looked for.
"""

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from kafka_timers.errors import LakeError
from kafka_timers.lake.schema import CANCEL, COPY, REFUSED, REJECTED, REQUEST, REQUESTS, SEALS
from kafka_timers.lake.tables import read, read_positions, root_of
from kafka_timers.lake.versions import taken_back, valid_copies
from kafka_timers.settings import LakeSettings
from kafka_timers.wire import Topics

__all__ = ["due_ms", "fates", "figures", "fires", "steps_of", "synthetic_steps", "totals"]

_REQUEST = ("partition", "offset")
_SEAL = ("partition", "last", "fence")
_DAY_S = 86_400
_ID = ("partition", "timer_id")
_STEP = ("last", "fence", "horizon_s", "horizon_from")


def figures(fired: DataFrame, *by: str) -> DataFrame:
    """
    Return what seals would tell of *fired*.

    Args:
        fired: rows of `fires`.
        by: its columns that name a group.

    Returns:
        *by*, due bigint, fired bigint, rejected bigint, digest bigint (as in `seals`), late bigint.
    """
    number = F.col("offset") + 1
    went_out = F.col("reason").isNull()
    return fired.groupBy(*by).agg(
        F.count(F.lit(1)).alias("due"),
        F.count_if(went_out).alias("fired"),
        F.count_if(~went_out).alias("rejected"),
        # Without ANSI a bigint wraps around, which is modulo 2^64.
        F.coalesce(F.sum(F.when(went_out, number * number * number)), F.lit(0)).alias("digest"),
        F.count_if("late").alias("late"),
    )


def totals(seals: DataFrame) -> DataFrame:
    """
    Return the figures of each complete seal, with those of its slices added.

    Args:
        seals: rows of `seals`. One that is there twice, as at-least-once may have it, counts once.

    Returns:
        partition int, last bigint, fence bigint, first bigint, due bigint, fired bigint, rejected bigint,
        digest bigint, lateness_p99_ms int, lateness_max_ms int, appended_ms bigint.
    """
    counts = ("due", "fired", "rejected", "digest")
    lateness = ("lateness_p99_ms", "lateness_max_ms")
    once = seals.select(*_SEAL, "first", "through", *counts, *lateness, "appended_ms")
    return (
        once.groupBy(*_SEAL, "through", *counts)
        .agg(F.min("first").alias("first"), *(F.max(name).alias(name) for name in (*lateness, "appended_ms")))
        .groupBy(*_SEAL)
        .agg(
            F.min("first").alias("first"),
            *(F.sum(name).alias(name) for name in counts),
            *(F.max(name).alias(name) for name in (*lateness, "appended_ms")),
            F.bool_or(F.col("through").isNull()).alias("complete"),
        )
        .where("complete")
        .drop("complete")
    )


def steps_of(seals: DataFrame) -> DataFrame:
    """
    Return the complete seals as steps of their partitions' histories: fences of later ones are never lower.

    Args:
        seals: rows of `seals`. One with a lower fence than one before it, which a paused owner adds with
            at-least-once, is left out: it tells of nothing that was not done.

    Returns:
        partition int, last bigint, fence bigint, horizon_s bigint, horizon_from bigint.
    """
    before = Window.partitionBy("partition").orderBy("last", "fence").rowsBetween(Window.unboundedPreceding, -1)
    return (
        seals.where(F.col("through").isNull())
        .groupBy(*_SEAL)
        .agg(F.max("horizon_s").alias("horizon_s"), F.max("horizon_from").alias("horizon_from"))
        .withColumn("passed", F.max("fence").over(before))
        .where(F.col("passed").isNull() | (F.col("fence") >= F.col("passed")))
        .select("partition", *_STEP)
    )


def fates(requests: DataFrame, steps: DataFrame, rejected: DataFrame, horizon_s: int | None = None) -> DataFrame:
    """
    Return what came of requests.

    Args:
        requests: rows of `requests`: those asked about, all copies of them, all records of their timer ids.
        steps: rows of `steps_of`, of each partition without a gap. What was due before the first one counts to it.
        rejected: partition int, offset bigint and reason string of requests that went to timer-rejected.
        horizon_s: how far ahead workers hold requests; None takes what the seals say.

    Returns:
        partition int, offset bigint, appended_ms bigint, second bigint (null of what is refused), millis int,
        timer_id string, topic string, and: reason string, why it was rejected; taken_by bigint, offset of what took it
        back; far bool, whether it fires by a copy; sealed_in bigint and fence bigint, of the seal that has it, null
        while there is none; late bool, whether it was read after its second had been scanned.

        It has fired if sealed_in is there and reason and taken_by are not. What is far and has no copy that workers
        took has the seal of its second, and fence null.
    """
    timers = requests.where(F.col("kind") == REQUEST).select(
        *_REQUEST, "appended_ms", "second", "millis", "timer_id", "topic"
    )
    seen = timers.join(_marks(requests, rejected), [*_REQUEST], "left").join(
        _first_step(
            timers.select("partition", F.col("second").alias("at")).distinct(), steps, F.col("last")
        ).withColumnRenamed("at", "second"),
        ["partition", "second"],
        "left",
    )
    waits_s = F.col("second") - F.floor(F.col("appended_ms") / 1000)
    if horizon_s is None:
        # What lies below horizon_from was judged by a horizon of before; what was far by that one has a copy.
        by_seal = (F.col("step.horizon_s") > 0) & (waits_s > F.col("step.horizon_s"))
        far = F.when(F.col("offset") >= F.col("step.horizon_from"), by_seal).otherwise(F.col("copied_at").isNotNull())
    else:
        far = F.lit(horizon_s > 0) & (waits_s > horizon_s)
    seen = seen.withColumn("far", far).withColumn("at", F.when(far, F.col("copied_at")).otherwise(F.col("offset")))
    behind = F.coalesce(F.col("at") >= F.col("step.fence"), F.lit(False))
    refused = requests.where(F.col("kind") == REFUSED).select(
        *_REQUEST, "appended_ms", "reason", F.lit(False).alias("far"), F.col("offset").alias("at")
    )
    late = seen.where(behind).drop("step").withColumn("late", F.lit(True))
    late = late.unionByName(refused.withColumn("late", F.lit(False)), allowMissingColumns=True)
    sealed = seen.where(~behind).withColumn("late", F.lit(False))
    # The fence is the seal's minus one: a request at it is behind.
    sealed = sealed.unionByName(_first_step(late, steps, F.col("fence") - 1))
    fence = F.when(F.col("at").isNotNull(), F.col("step.fence"))
    return sealed.select(
        *_REQUEST,
        "appended_ms",
        "second",
        "millis",
        "timer_id",
        "topic",
        "reason",
        # What a seal covers fires by it, whatever is read behind its fence.
        F.when(F.coalesce(F.col("taken_by") < fence, F.lit(True)), F.col("taken_by")).alias("taken_by"),
        "far",
        F.col("step.last").alias("sealed_in"),
        fence.alias("fence"),
        "late",
    )


def fires(fated: DataFrame) -> DataFrame:
    """
    Return of the rows of `fates` those that a seal counts as due: what fired, and with a reason what was rejected.
    """
    return fated.where(F.col("fence").isNotNull() & F.col("taken_by").isNull())


def due_ms() -> Column:
    """Return the column from which on a row of `fates` could fire: its second, or its append if that came later."""
    return F.greatest(F.col("second") * 1000, F.col("appended_ms"))


def synthetic_steps(requests: DataFrame, first: int, last: int, every_s: int) -> DataFrame:
    """
    Return steps as if there had been a tick every *every_s* seconds only, each read at once.

    Args:
        requests: partition, offset and appended_ms of all records of `requests` in a span.
        first: UNIX second in which that span begins.
        last: UNIX second in which it ends.
        every_s: seconds between ticks.

    Returns:
        The columns of `steps_of`: steps at the multiples of *every_s*, whose fences pass what was appended before.
    """
    tick = (F.floor(F.col("appended_ms") / 1000 / every_s) + 1) * every_s
    before = Window.partitionBy("partition").orderBy("last")
    ticks = requests.select("partition").distinct()
    ticks = ticks.select(
        "partition", F.explode(F.sequence(F.lit(-(-first // every_s)), F.lit(last // every_s))).alias("number")
    ).select("partition", (F.col("number") * every_s).cast("bigint").alias("last"))
    passed = requests.groupBy("partition", tick.alias("last")).agg((F.max("offset") + 1).alias("fence"))
    return (
        ticks.unionByName(passed, allowMissingColumns=True)
        .groupBy("partition", "last")
        .agg(F.max("fence").alias("fence"))
        .withColumn("fence", F.coalesce(F.max("fence").over(before), F.lit(0)))
        .select("partition", "last", "fence", F.lit(0).alias("horizon_s"), F.lit(0).alias("horizon_from"))
    )


def _marks(requests: DataFrame, rejected: DataFrame) -> DataFrame:
    # One frame with few rows, so that the requests are joined once.
    marks = taken_back(requests).drop("taken_kind").unionByName(valid_copies(requests), allowMissingColumns=True)
    return (
        marks.unionByName(rejected.select(*_REQUEST, "reason"), allowMissingColumns=True)
        .groupBy(*_REQUEST)
        .agg(*(F.max(name).alias(name) for name in ("taken_by", "copied_at", "reason")))
    )


def _first_step(rows: DataFrame, steps: DataFrame, reaches: Column) -> DataFrame:
    """Return *rows* with the column step: the first of their partition that *reaches* their `at`, null if none does."""
    stepped = steps.select("partition", reaches.alias("at"), F.struct(*_STEP).alias("step"))
    # From the end on: what a row has last seen is the first that comes at or after it. Of steps that reach as far the
    # earliest comes last, and before the rows, whose step is null.
    seen = Window.partitionBy("partition").orderBy(F.desc("at"), F.desc_nulls_last("step.last"))
    seen = seen.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    columns = rows.columns
    return (
        rows.withColumn("is_row", F.lit(True))
        .unionByName(stepped, allowMissingColumns=True)
        .withColumn("step", F.last("step", ignorenulls=True).over(seen))
        .where("is_row")
        .select(*columns, "step")
    )


@dataclass(frozen=True, slots=True)
class Span:
    """
    What was landed of a span of time: all that is needed to tell what fires in it.

    Attributes:
        first: UNIX second in which it begins.
        last: UNIX second in which it ends.
        sealed_to: the last second that is sealed and judged, by partition.
        steps: see `steps_of`; of each partition from the last one before the span on.
        sealed: see `totals`, of the same seals.
        requests: see `fates`.
        rejected: see `fates`.
    """

    first: int
    last: int
    sealed_to: dict[int, int]
    steps: DataFrame
    sealed: DataFrame
    requests: DataFrame
    rejected: DataFrame

    def fates(self, horizon_s: int | None = None) -> DataFrame:
        """Return what came of the requests, see `fates`."""
        return fates(self.requests, self.steps, self.rejected, horizon_s)


def read_span(spark: SparkSession, settings: LakeSettings, first: int | None, last: int | None) -> Span:
    """
    Return what lies in the lake of the seconds from *first* to *last*, both included.

    Seals that count requests which have not been landed are left out, as if they were not there yet.

    Args:
        spark: the session.
        settings: say where the lake is.
        first: UNIX second; None is a day before the end.
        last: UNIX second; None is the last one that is sealed.

    Raises:
        LakeError: nothing is sealed in the span.
    """
    root, topic = root_of(settings), Topics.of(settings.topic_prefix).requests
    seals = read(spark, root, SEALS)
    landed = read_positions(spark, root, topic)
    # Told by the tables' statistics, without reading them.
    newest = seals.agg(F.max("last")).first()
    newest_s = newest[0] if newest else None
    if newest_s is None or not landed:
        raise LakeError(f"no seal is in the lake at {root}: run `kafka-timers lake land` first")
    last = newest_s if last is None else min(last, newest_s)
    first = last - _DAY_S if first is None else first
    positions = spark.createDataFrame(list(landed.items()), "partition int, position bigint")
    seals = seals.where(F.col("last") <= last).join(F.broadcast(positions), "partition")
    seals = seals.where(F.col("fence") <= F.col("position"))
    complete = seals.where(F.col("through").isNull())
    in_span = complete.where(F.col("last") >= first).groupBy("partition").agg(F.max("last"))
    sealed_to: dict[int, int] = dict(map(tuple, in_span.collect()))
    if not sealed_to:
        raise LakeError(
            f"nothing is sealed from {first} to {last} in the lake at {root}, or not all requests of it are landed: "
            "run `kafka-timers lake land`, or give another --from and --to"
        )
    before = _last_before(complete, first, len(landed))
    start = spark.createDataFrame(
        [(partition, *before.get(partition, (0, 0))) for partition in landed],
        "partition int, start bigint, passed bigint",
    )
    seals = seals.join(F.broadcast(start), "partition").where(F.col("last") >= F.col("start"))
    from_second = min(before.get(partition, (0, 0))[0] for partition in landed)
    from_offset = min(before.get(partition, (0, 0))[1] for partition in landed)
    rejects = read(spark, root, REJECTED).where(F.col("source_topic") == topic)
    return Span(
        first,
        last,
        sealed_to,
        steps_of(seals),
        totals(seals),
        requests_of(read(spark, root, REQUESTS), from_second, from_offset, last),
        # Nothing is rejected before its second.
        rejects.where(F.col("appended_ms") >= first * 1000).select(
            F.col("source_partition").alias("partition"), F.col("source_offset").alias("offset"), "reason"
        ),
    )


def requests_of(requests: DataFrame, after: int, offset: int, last: int) -> DataFrame:
    """
    Return the requests that may be due in a span, and all that can have changed them.

    The conditions are such that Delta passes over files by what it knows of their columns.

    Args:
        requests: the table.
        after: UNIX second: all due until then and below *offset* was done before the span.
        offset: see *after*.
        last: UNIX second in which the span ends.
    """
    table = requests.select(
        *_REQUEST, "appended_ms", "kind", "second", "millis", "topic", "timer_id", "reason",
        "original", "original_s", "decided", "decided_s",
    )  # fmt: skip
    in_time = F.col("second").isNull() | (F.col("second") <= last)
    due = table.where(in_time & ((F.col("second") > after) | (F.col("offset") >= offset)))
    named = F.col("timer_id").isNotNull()
    is_copy = F.col("kind") == COPY
    made_ms = F.when(is_copy, F.col("original_s") * 1000).otherwise(F.col("appended_ms"))
    oldest = due.agg(F.min(F.when(is_copy, F.col("second"))), F.min(F.when(named & (F.col("kind") != CANCEL), made_ms)))
    late_copy_s, named_ms = oldest.collect()[0]
    if late_copy_s is not None and late_copy_s <= after:
        # It was promoted too late. Its original, and earlier copies, are due in the same second.
        due = table.where(in_time & ((F.col("second") >= late_copy_s) | (F.col("offset") >= offset)))
    unnamed = due.where(~named)
    if named_ms is None:
        return unnamed
    ids = due.where(named & (F.col("kind") != CANCEL)).select(*_ID)
    return unnamed.unionByName(table.where(named & (F.col("appended_ms") >= named_ms)).join(ids, [*_ID], "semi"))


def _last_before(complete: DataFrame, second: int, partitions: int) -> dict[int, tuple[int, int]]:
    """Return last and fence of the last seal of each partition that ended before *second*; most are of that day."""
    found: dict[int, tuple[int, int]] = {}
    for since in (second - _DAY_S, 0):
        ended = complete.where(F.col("last").between(since, second - 1)).groupBy("partition")
        latest = ended.agg(F.max(F.struct("last", "fence")).alias("latest")).select("partition", "latest.*")
        found |= {row[0]: (row[1], row[2]) for row in latest.collect()}
        if len(found) == partitions:
            break
    return found
