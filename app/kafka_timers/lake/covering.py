"""
Compute the outcomes of requests: the join of seals with requests as a batch.

The timers that fire follow from the request log and the fences in the seals, independent of the worker that fired them
(promise P12 of docs/design.md). The complete seals of a partition cut its history into sealed intervals. Once the end
of an interval has passed a request's moment, the ends of all later ones have, too. The same goes for fences and the
request's offset. So a request fires in the later of two intervals: the first that passed its moment, and the first that
passed its offset.

    interval  end     fence      request     by moment   by offset   fires in
    A         12.000     40      #35, 10.5   A           A           A
    B         12.250     40      #40, 12.1   B           C           C: it was read after its moment was scanned
    C         14.000     55      #40, 13.0   C           C           C

Nearly all requests fire in the interval of their moment. So that interval is looked up once per moment, and the second
one only for requests behind its fence.
"""

from collections.abc import Callable, Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from kafka_timers.lake.marks import marks_of
from kafka_timers.lake.schema import FOREIGN, FORWARDED, RECORD_KEY, REFUSED, REQUEST, SEAL_KEY, asked_ms

# Columns that `outcomes_of` and `unfired.pending` take from a request.
TIMER = (*RECORD_KEY, "appended_ms", "second", "millis", "timer_id", "topic")
INTERVAL = ("end_ms", "fence", "horizon_s", "horizon_from", "appended_ms")

# Lengths of the stretches, of moments and of offsets, by which requests are joined with the intervals that lie there.
_STRETCH = {"end_ms": 1_000, "fence": 1_000}
# An interval with more of them, as after an outage, is compared with all requests of its partition.
_STRETCHES_MAX = 3_600


def figures(fired: DataFrame, *by: str) -> DataFrame:
    """
    Return the counts and the digest that seals would have for *fired*, rows of `fires`, by group.

    Returns:
        *by*, due bigint, fired bigint, rejected bigint, forwarded bigint, digest bigint (as in `seals`), late bigint.
    """
    went_out = F.col("reason").isNull()
    return fired.groupBy(*by).agg(
        F.count(F.lit(1)).alias("due"),
        F.count_if(went_out).alias("fired"),
        F.count_if(~went_out).alias("rejected"),
        F.count_if(F.col("reason") == FORWARDED).alias("forwarded"),
        # Without ANSI mode a bigint wraps around, which is modulo 2^64.
        F.coalesce(F.sum(F.when(went_out, counted_as())), F.lit(0)).alias("digest"),
        F.count_if("late").alias("late"),
    )


def counted_as() -> Column:
    """Return the number that a row of `outcomes_of` adds to the digest of its seal."""
    return F.xxhash64(F.col("partition").cast("bigint"), "offset")


def totals(seals: DataFrame) -> DataFrame:
    """
    Return the figures of each complete seal, including those of its slices.

    A duplicate, which at-least-once may write, counts once.

    Returns:
        partition int, end_ms bigint, fence bigint, first_ms bigint, due bigint, fired bigint, rejected bigint,
        forwarded bigint, digest bigint, lateness_p99_ms int, lateness_max_ms int, appended_ms bigint, first bigint,
        last bigint.
    """
    counts = ("due", "fired", "rejected", "forwarded", "digest")
    lateness = ("lateness_p99_ms", "lateness_max_ms")
    once = seals.select(*SEAL_KEY, "first_ms", "through", *counts, *lateness, "appended_ms")
    return (
        once.groupBy(*SEAL_KEY, "through", *counts)
        .agg(F.min("first_ms").alias("first_ms"), *(F.max(name).alias(name) for name in (*lateness, "appended_ms")))
        .groupBy(*SEAL_KEY)
        .agg(
            F.min("first_ms").alias("first_ms"),
            *(F.sum(name).alias(name) for name in counts),
            *(F.max(name).alias(name) for name in (*lateness, "appended_ms")),
            F.bool_or(F.col("through").isNull()).alias("complete"),
        )
        .where("complete")
        .drop("complete")
        .withColumns({"first": F.floor(F.col("first_ms") / 1000), "last": last_second(F.col("end_ms"))})
    )


def intervals_of(seals: DataFrame) -> DataFrame:
    """
    Return the sealed intervals of each partition, one for each complete seal. Fences never decrease.

    With at-least-once, a paused owner may add a seal with a lower fence than one before it. Such a seal is left out,
    because it reports nothing new.

    Returns:
        partition int, end_ms bigint, fence bigint, horizon_s bigint, horizon_from bigint, appended_ms bigint (of the
        seal).
    """
    before = Window.partitionBy("partition").orderBy("end_ms", "fence").rowsBetween(Window.unboundedPreceding, -1)
    return (
        seals.where(F.col("through").isNull())
        .groupBy(*SEAL_KEY)
        .agg(*(F.max(name).alias(name) for name in INTERVAL[2:]))
        .withColumn("passed", F.max("fence").over(before))
        .where(F.col("passed").isNull() | (F.col("fence") >= F.col("passed")))
        .select("partition", *INTERVAL)
    )


def outcomes_of(
    requests: DataFrame,
    intervals: DataFrame,
    rejected: DataFrame,
    horizon_s: int | None = None,
    *,
    changes: DataFrame | None = None,
    keep: Callable[[DataFrame], DataFrame] = lambda frame: frame,
    also: Sequence[str] = (),
) -> DataFrame:
    """
    Return the outcomes of requests.

    Args:
        requests: the requests in question, all copies of them, all records of their timer ids.
        intervals: those without a gap in any partition. A request due before the first interval belongs to it.
        rejected: partition int, offset bigint and reason string of requests that went to timer-rejected.
        horizon_s: horizon of the workers in seconds; None for the one in the seals.
        changes: those of *requests* that may change one: all copies, and all records of each timer id that has several;
            None if that is not known.
        keep: called with each frame that the requests are joined with; may compute and cache it. A small frame, as most
            are, can then be sent to the requests, and none of these is moved.
        also: more columns of the requests to return.

    Returns:
        partition int, offset bigint, appended_ms bigint, second bigint (null for a refused record), millis int,
        timer_id string, topic string, and: reason string, for a rejection, `FORWARDED` of a record that was sent on;
        taken_by bigint, offset of the record that
        withdrew it; far bool, whether it fires by a copy; sealed_ms bigint and fence bigint, end and fence of the seal
        that covers it, null while there is none; sealed_in bigint, last second of that seal; late bool, whether it was
        read after its moment had been scanned; seal_appended_ms bigint, the append of that seal; callback bigint and
        asks struct of the request; and those of *also*, null for a refused record.

        A request has fired if sealed_in is set, and reason and taken_by are null. A far request without a copy that
        workers took has the seal of its moment, and fence null.
    """
    timers = requests.where(F.col("kind") == REQUEST)
    timers = timers.select(*TIMER, "callback", "asks", asked_ms().alias("asked_ms"), *also)
    moments = timers.groupBy("partition", F.col("asked_ms").alias("at")).agg(
        *(F.min(name).alias(name) for name in ("offset", "second", "appended_ms")), F.max("offset").alias("last_offset")
    )
    found = keep(_first_interval(moments, intervals, "end_ms").withColumnRenamed("at", "asked_ms"))
    marks = keep(_marks(requests if changes is None else changes, rejected))
    behind = F.coalesce(F.col("at") >= F.col("interval.fence"), F.lit(False))
    sealed = _seen(timers, marks, found, horizon_s).where(~behind).withColumn("late", F.lit(False))
    # Few moments have timers behind their fence, so few timers are joined twice.
    maybe = found.where(_may_lie_behind(horizon_s)).select("partition", "asked_ms")
    late = _seen(timers.join(maybe, ["partition", "asked_ms"], "semi"), marks, found, horizon_s).where(behind)
    refused = requests.where(is_refused()).select(*RECORD_KEY, "appended_ms", F.col("reason").alias("why"))
    # A record that its topic did not take is not sent on, but rejected with another reason.
    why = F.coalesce("why", "reason", F.lit(FORWARDED))
    refused = refused.join(marks.select(*RECORD_KEY, "reason"), [*RECORD_KEY], "left").select(
        *RECORD_KEY, "appended_ms", why.alias("reason"), F.lit(False).alias("far"), F.col("offset").alias("at")
    )
    late = late.drop("interval").withColumn("late", F.lit(True))
    late = late.unionByName(refused.withColumn("late", F.lit(False)), allowMissingColumns=True)
    sealed = sealed.unionByName(_first_interval(late, intervals, "fence"))
    fence = F.when(F.col("at").isNotNull(), F.col("interval.fence"))
    return sealed.select(
        *TIMER,
        "reason",
        # A request that a seal covers fires by it, in spite of records behind its fence.
        F.when(F.coalesce(F.col("taken_by") < fence, F.lit(True)), F.col("taken_by")).alias("taken_by"),
        "far",
        F.col("interval.end_ms").alias("sealed_ms"),
        last_second(F.col("interval.end_ms")).alias("sealed_in"),
        fence.alias("fence"),
        "late",
        "callback",
        "asks",
        F.col("interval.appended_ms").alias("seal_appended_ms"),
        *also,
    )


def covered(rows: DataFrame, intervals: DataFrame) -> DataFrame:
    """
    Return *rows* with the two intervals of which the later one covers a request; each is null while there is none.

    Returns:
        the columns of *rows*, which have partition, offset, second and millis of a request; and with the fields
        `INTERVAL` read struct: the first interval whose fence passes the offset, reached struct: the first one that
        passes the moment, without a meaning if there is no second.
    """
    read = _first_interval(rows.withColumn("at", F.col("offset")), intervals, "fence")
    read = read.withColumnRenamed("interval", "read").withColumn("at", asked_ms())
    return _first_interval(read, intervals, "end_ms").withColumnRenamed("interval", "reached").drop("at")


def about(places: DataFrame, intervals: DataFrame) -> DataFrame:
    """
    Return the same intervals for few requests, in one pass over all.

    Args:
        places: the columns partition, offset, second and millis of the requests.

    Returns:
        partition int, offset bigint, it struct, and the booleans read, reached and newest (the last one of the
        partition): whether it is that interval.
    """
    is_last = F.lead("end_ms").over(Window.partitionBy("partition").orderBy("end_ms", "fence")).isNull()
    reached = F.coalesce(_covers("end_ms", asked_ms()), F.lit(False)).alias("reached")
    return (
        _spans(intervals)
        .withColumn("newest", is_last)
        .join(F.broadcast(places), "partition")
        .select(*RECORD_KEY, "it", _covers("fence", F.col("offset")).alias("read"), reached, "newest")
        .where("read OR reached OR newest")
    )


def newest_of(intervals: DataFrame) -> DataFrame:
    """Return the last interval of each partition: partition int, newest struct with the fields `INTERVAL`."""
    return intervals.groupBy("partition").agg(F.max(F.struct(*INTERVAL)).alias("newest"))


def _seen(timers: DataFrame, marks: DataFrame, found: DataFrame, horizon_s: int | None) -> DataFrame:
    """Return *timers*, each with its marks, with the interval of its moment, and the offset at which workers got it."""
    seen = timers.join(marks, [*RECORD_KEY], "left")
    seen = seen.join(found.select("partition", "asked_ms", "interval"), ["partition", "asked_ms"], "left")
    far = by_seal("interval") if horizon_s is None else waits_longer(F.lit(horizon_s))
    return seen.withColumn("far", far).withColumn("at", F.when(far, F.col("copied_at")).otherwise(F.col("offset")))


def is_refused() -> Column:
    """Return a column: whether a row of `requests` is left out as soon as it is read: refused, or sent on."""
    return F.col("kind").isin(REFUSED, FOREIGN)


def _may_lie_behind(horizon_s: int | None) -> Column:
    """Return a column: whether timers of a moment, which has the least values of all, may lie behind its fence."""
    may_be_far = waits_longer(F.col("interval.horizon_s") if horizon_s is None else F.lit(horizon_s))
    if horizon_s is None:
        may_be_far |= F.col("offset") < F.col("interval.horizon_from")
    return may_be_far | (F.col("last_offset") >= F.col("interval.fence"))


def fires(outcomes: DataFrame) -> DataFrame:
    """Return the rows of `outcomes_of` that a seal counts as due: fired requests, and rejected ones with a reason."""
    return outcomes.where(F.col("fence").isNotNull() & F.col("taken_by").isNull())


def by_seal(seal: str) -> Column:
    """Return a column: whether a request is far for the worker that wrote *seal*, a struct."""
    # Requests below horizon_from were judged by an earlier horizon; those that were far by it have a copy.
    judged = F.col("offset") >= F.col(f"{seal}.horizon_from")
    return F.when(judged, waits_longer(F.col(f"{seal}.horizon_s"))).otherwise(F.col("copied_at").isNotNull())


def waits_longer(horizon_s: Column) -> Column:
    """Return a column: whether a request waits for more than *horizon_s* seconds, if that is above 0."""
    return (horizon_s > 0) & (F.col("second") - F.floor(F.col("appended_ms") / 1000) > horizon_s)


def due_ms() -> Column:
    """Return the earliest time at which a row of `outcomes_of` could fire: its due time, or a later append."""
    return F.greatest(asked_ms(), F.col("appended_ms"))


def last_second(end_ms: Column) -> Column:
    """Return the last UNIX second that begins before *end_ms*."""
    return F.floor((end_ms - 1) / 1000)


def _marks(requests: DataFrame, rejected: DataFrame) -> DataFrame:
    return (
        marks_of(requests)
        .unionByName(rejected.select(*RECORD_KEY, "reason"), allowMissingColumns=True)
        .groupBy(*RECORD_KEY)
        .agg(*(F.max(name).alias(name) for name in ("taken_by", "copied_at", "reason")))
    )


def _first_interval(rows: DataFrame, intervals: DataFrame, reach: str) -> DataFrame:
    """
    Return *rows* with the column interval: the first interval whose *reach* is above their `at`; null if none is.

    *reach* is a key of `_STRETCH`. Equal columns are joined, so Spark spreads the rows of a partition over all cores.
    """
    columns, spans = rows.columns, _spans(intervals).withColumnRenamed("partition", "of")
    first, last = (F.floor(at / _STRETCH[reach]) for at in (F.col(f"{reach}_before"), F.col(reach) - 1))
    is_short = F.coalesce(last - first < _STRETCHES_MAX, F.lit(False))
    covers_some = F.col(f"{reach}_before") < F.col(reach)
    short = spans.where(is_short & covers_some).select("*", F.explode(F.sequence(first, last)).alias("stretch"))
    lies_in = (F.col("partition") == F.col("of")) & _covers(reach, F.col("at"))
    found = rows.join(short, lies_in & (F.floor(F.col("at") / _STRETCH[reach]) == F.col("stretch")), "left")
    found = found.select(*columns, F.col("it").alias("interval"))
    # The first one of a partition, and those after an outage.
    found = found.join(F.broadcast(spans.where(~is_short)), lies_in, "left")
    return found.select(*columns, F.coalesce("interval", "it").alias("interval"))


def _spans(intervals: DataFrame) -> DataFrame:
    """Return *intervals* as partition, it (a struct), end_ms and fence, and these two of the interval before it."""
    before = Window.partitionBy("partition").orderBy("end_ms", "fence")
    earlier = (F.lag(reach).over(before).alias(f"{reach}_before") for reach in _STRETCH)
    return intervals.select("partition", *_STRETCH, *earlier, F.struct(*INTERVAL).alias("it"))


def _covers(reach: str, at: Column) -> Column:
    """Return a column: whether a row of `_spans` is the first one whose *reach* is above *at*."""
    before = F.col(f"{reach}_before")
    return (before.isNull() | (before <= at)) & (at < F.col(reach))
