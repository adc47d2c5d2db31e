"""
Query the lake in SQL: all timers that are pending, have fired or were withdrawn; and change many timers at once.

    requests, seals, rejected, positions, buckets, audit_seconds, audit_findings
                the tables, with timestamps of their seconds
    pending     pending requests, as far as has been landed: see `unfired.pending`
    fired       requests whose callbacks are out
    cancelled   requests that were withdrawn in time, and the records that withdrew them
    ignored     requests and cancels whose condition did not hold
    lateness    upper bounds of the lateness of callbacks, by topic and hour

All of them are views of the session. Only `lake cancel` and `lake move` write: they publish records.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from typing import Any, Self

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from kafka_timers.core.wire import ASKED_BY_HEADER, SECOND_LIMIT, Future, Topics
from kafka_timers.errors import LakeError
from kafka_timers.lake.conditions import (
    PLACE,
    has_conditions,
    history_of,
    ignored_in,
    in_force,
    no_condition,
)
from kafka_timers.lake.covering import due_ms, fires, intervals_of, outcomes_of
from kafka_timers.lake.few import Few, few_outcomes
from kafka_timers.lake.live import publish, refuse_other_topic
from kafka_timers.lake.lookup import Only, records_of
from kafka_timers.lake.message import bytes_of, flag, text
from kafka_timers.lake.payloads import CARRIED, CONTENTS, header_of, with_contents
from kafka_timers.lake.schema import (
    AUDIT_FINDINGS,
    AUDIT_SECONDS,
    BUCKETS,
    ID_KEY,
    POSITIONS,
    RECORD_KEY,
    REJECTED,
    REQUEST,
    REQUESTS,
    SEALS,
    Table,
)
from kafka_timers.lake.tables import constant, read, read_rejected, root_of, translated, words_of
from kafka_timers.lake.unfired import pending
from kafka_timers.settings import LakeSettings

_TIMER = (*RECORD_KEY, "appended_at", "second", "due_at", "millis", "topic", "timer_id", "far")

# Columns of `unfired.pending` and `covering.outcomes_of` that the views need.
_PENDING = (
    "partition int, offset bigint, appended_ms bigint, second bigint, millis int, timer_id string, topic string, "
    "far boolean, value binary, key binary"
)
_OUTCOME = (
    f"{_PENDING}, reason string, taken_by bigint, fence bigint, sealed_in bigint, late boolean, seal_appended_ms bigint"
)

# The tables that are views as they are, with timestamps and the seconds that these come from.
_MOMENTS: dict[Table, dict[str, str]] = {
    SEALS: {"last_at": "last"},
    REJECTED: {},
    POSITIONS: {"landed_at": "landed_s"},
    BUCKETS: {"first_at": "first", "last_at": "last", "closed_at": "closed_s"},
    AUDIT_SECONDS: {"audited_at": "audited_s", "last_at": "last"},
    AUDIT_FINDINGS: {"audited_at": "audited_s", "second_at": "second"},
}

# The views that show what became of requests.
_OUTCOMES = ("pending", "fired", "cancelled", "ignored", "lateness")
VIEWS = (
    *(table.name for table in (REQUESTS, SEALS, REJECTED)),
    *_OUTCOMES,
    *(table.name for table in (POSITIONS, BUCKETS, AUDIT_SECONDS, AUDIT_FINDINGS)),
)


def named_in(query: str) -> list[str]:
    """Return those of `VIEWS` that a query may mean."""
    words = set(re.findall(r"\w+", query.lower()))
    return [view for view in VIEWS if view in words]


def open_views(
    spark: SparkSession, settings: LakeSettings, names: Collection[str] = VIEWS, only: Only | None = None
) -> list[str]:
    """
    Create temporary views of *spark*. They show the rows that are landed at the time of each query.

    Args:
        names: the views to create, some of `VIEWS`.
        only: show only these timers in requests, pending, fired, cancelled, ignored and lateness, as they are landed
            now. Outcomes of other timers are not computed.

    Returns:
        names of the views.

    Raises:
        LakeError: the timers of *only* are too many.
    """
    root = root_of(settings)
    views = {
        table.name: read(spark, root, table).withColumns(_added(table)) for table in _MOMENTS if table.name in names
    }
    wanted = {"fired" if name == "lateness" else name for name in names}
    asks_for_outcomes = not wanted.isdisjoint(_OUTCOMES)
    if asks_for_outcomes or REQUESTS.name in names:
        requests = read(spark, root, REQUESTS)
        rows = records_of(requests, only) if only else []
        if only:
            requests = constant(spark, [tuple(row.values()) for row in rows], REQUESTS.columns)
        views[REQUESTS.name] = _timers(with_contents(requests))
        if asks_for_outcomes:
            seals = read(spark, root, SEALS)
            own = read_rejected(spark, root, Topics.of(settings.topic_prefix).requests).drop("appended_ms")
            if only:
                seals = seals.where(F.col("partition").isin({row["partition"] for row in rows}))
                views |= _of_few(wanted, requests, few_outcomes(rows, intervals_of(seals), own), only.key)
            else:
                views |= _of_all(wanted, requests, seals, own)
            if "lateness" in names:
                views["lateness"] = lateness(views["fired"])
    made = [name for name in VIEWS if name in views and name in names]
    for name in made:
        views[name].createOrReplaceTempView(name)
    return made


def _of_all(wanted: Set[str], requests: DataFrame, seals: DataFrame, rejected: DataFrame) -> dict[str, DataFrame]:
    """Return those of the views of outcomes that are *wanted*."""
    counted, intervals, views = requests, intervals_of(seals), dict[str, DataFrame]()
    places = constant(requests.sparkSession, [], PLACE)
    if has_conditions(requests):
        places = ignored_in(history_of(requests, requests), intervals)
        counted = in_force(requests, places)
    # Spark takes some tenths of a second to check each of them, even if nobody reads it.
    if "pending" in wanted:
        views["pending"] = waiting(pending(counted, seals, also=CARRIED))
    if not wanted.isdisjoint(("fired", "cancelled")):
        outcomes = outcomes_of(counted, intervals, rejected, also=CARRIED)
        if "fired" in wanted:
            views["fired"] = fired(outcomes)
        if "cancelled" in wanted:
            views["cancelled"] = cancelled(outcomes, requests)
    if "ignored" in wanted:
        views["ignored"] = ignored(requests, places)
    return views


def _of_few(wanted: Set[str], requests: DataFrame, few: Few, key: str | None) -> dict[str, DataFrame]:
    """Return the same views as constants, of the timers with *key* only if it is given."""
    spark = requests.sparkSession
    made: dict[str, Callable[[], DataFrame]] = {
        "pending": lambda: waiting(_constant(spark, few.pending, _PENDING)),
        "fired": lambda: fired(_constant(spark, few.fired, _OUTCOME)),
        "cancelled": lambda: cancelled(_constant(spark, few.withdrawn, _OUTCOME), requests),
        "ignored": lambda: ignored(requests, constant(spark, few.ignored, PLACE)),
    }
    views = {name: make() for name, make in made.items() if name in wanted}
    # Other requests of the same ids may have another key.
    return views if key is None else {name: view.where(F.col("callback_key") == key) for name, view in views.items()}


def _constant(spark: SparkSession, rows: Iterable[Mapping[str, Any]], columns: str) -> DataFrame:
    names = [column.split()[0] for column in columns.split(", ")]
    return constant(spark, [[row[name] for name in names] for row in rows], columns)


def _added(table: Table) -> dict[str, Column]:
    """Return the columns that the view of *table* has beside those of the table."""
    added = {"appended_at": _appended_at()} if table in (SEALS, REJECTED) else {}
    return added | {name: F.timestamp_seconds(second) for name, second in _MOMENTS[table].items()}


def waiting(pending: DataFrame) -> DataFrame:
    """
    Return the pending requests, from rows of `unfired.pending` with the columns `CARRIED`.

    Returns:
        partition int, offset bigint, appended_at timestamp, second bigint, due_at timestamp, millis int, topic string,
        timer_id string, far boolean: whether it is left to the lake until it is promoted, and the columns that
        `with_contents` adds.
    """
    return with_contents(_timers(pending)).select(*_TIMER, *CONTENTS)


def fired(outcomes: DataFrame) -> DataFrame:
    """
    Return the requests whose callbacks are out, from outcomes with the columns `CARRIED`.

    Returns:
        The columns of `waiting`, and sealed_in bigint: the second in which it fired, sealed_at timestamp: the same,
        late boolean: whether it was read after its own second had been scanned, late_at_most_ms bigint: time from its
        earliest possible firing to the append of its seal, by the broker's clock. The seal is written together with its
        callbacks.
    """
    out = fires(outcomes).where(F.col("reason").isNull())
    sealed_at = F.timestamp_seconds("sealed_in").alias("sealed_at")
    late_ms = (F.col("seal_appended_ms") - due_ms()).alias("late_at_most_ms")
    return with_contents(_timers(out)).select(*_TIMER, "sealed_in", sealed_at, "late", late_ms, *CONTENTS)


def lateness(fired: DataFrame) -> DataFrame:
    """
    Return upper bounds of the lateness of callbacks, from rows of `fired`.

    Returns:
        topic string, hour timestamp (of the second in which they fired), callbacks bigint, and from late_at_most_ms:
        p50_ms bigint, p99_ms bigint, max_ms bigint.
    """
    late = F.col("late_at_most_ms")
    return fired.groupBy("topic", F.date_trunc("HOUR", "sealed_at").alias("hour")).agg(
        F.count(F.lit(1)).alias("callbacks"),
        F.percentile_approx(late, 0.5).alias("p50_ms"),
        F.percentile_approx(late, 0.99).alias("p99_ms"),
        F.max(late).alias("max_ms"),
    )


def cancelled(outcomes: DataFrame, requests: DataFrame) -> DataFrame:
    """
    Return the requests that were withdrawn in time, from outcomes with the columns `CARRIED`.

    Returns:
        The columns of `waiting` except far, and of the record that withdrew it: taken_by bigint, its offset, taken_kind
        string, cancel or request, taken_at timestamp, its append, taken_asked_by string: the requester's name in the
        record's header, which is not verified.
    """
    by = requests.select(
        "partition",
        F.col("offset").alias("taken_by"),
        F.col("kind").alias("taken_kind"),
        _appended_at().alias("taken_at"),
        header_of(ASKED_BY_HEADER).alias("taken_asked_by"),
    )
    taken = with_contents(_timers(outcomes.where(F.col("taken_by").isNotNull())))
    return taken.join(by, ["partition", "taken_by"]).select(
        *_TIMER[:-1], "taken_by", "taken_kind", "taken_at", "taken_asked_by", *CONTENTS
    )


def ignored(requests: DataFrame, places: DataFrame) -> DataFrame:
    """
    Return the requests and cancels whose condition did not hold: those at *places*, rows of `conditions.ignored_in`.

    Returns:
        The columns of `waiting` except far, and kind string: request or cancel, condition string.
    """
    return with_contents(_timers(requests.join(places, [*RECORD_KEY]))).select(
        *_TIMER[:-1], "kind", "condition", *CONTENTS
    )


def select(spark: SparkSession, query: str) -> DataFrame:
    """
    Return the result of a SQL SELECT over the views.

    Raises:
        LakeError: *query* is not a single SELECT, or names a missing table or column.
    """
    try:
        # Only a SELECT may stand in brackets, so nothing else can run. The line break ends a comment.
        return spark.sql(f"SELECT * FROM (\n{query}\n)")  # noqa: S608  # it is the user's own
    except PySparkException as error:
        raise LakeError(
            f"this cannot be asked: {words_of(error)}. Give a single SELECT over {', '.join(VIEWS[:-1])} or {VIEWS[-1]}"
        ) from error


def chosen(timers: DataFrame, requests: DataFrame, where: str) -> DataFrame:
    """
    Return the pending timers that fulfil a condition, each with the reason if it cannot be withdrawn.

    Args:
        timers: rows of `waiting`.
        requests: all except ignored ones.
        where: a SQL condition over the columns of *timers*.

    Returns:
        The columns of `waiting`, value binary and condition string of the request, and against string: the reason that
        it cannot be withdrawn, or null.

    Raises:
        LakeError: *where* is not such a condition.
    """
    try:
        meant = timers.where(where)
    except PySparkException as error:
        raise LakeError(
            f"{where!r} is no condition on pending timers: {words_of(error)}. Their columns are "
            + ", ".join((*_TIMER, *CONTENTS))
        ) from error
    of_id = requests.where((F.col("kind") == REQUEST) & F.col("timer_id").isNotNull())
    last = of_id.groupBy(*ID_KEY).agg(F.max("offset").alias("last"))
    against = F.when(F.col("timer_id").isNull(), "it has no timer id").when(
        # A published record applies to the last request of the id.
        F.col("last") > F.col("offset"),
        "a later request of its id came when it was due already",
    )
    return (
        meant.join(requests.select(*RECORD_KEY, "value", "condition"), [*RECORD_KEY])
        .join(last, [*ID_KEY], "left")
        .withColumn("against", against)
        .drop("last")
        .select(*_TIMER, "value", "condition", "against")
    )


def cancels_of(timers: DataFrame) -> DataFrame:
    """Return the cancels of *timers*, by their partition and timer_id, as `publish` takes them."""
    timer_id = text(Future.TIMERID_FIELD_NUMBER, F.col("timer_id"))
    value = bytes_of(timer_id, flag(Future.CANCEL_FIELD_NUMBER))
    return timers.select("partition", F.encode("timer_id", "UTF-8").alias("key"), value.alias("value"))


def moves_of(timers: DataFrame, second: Column) -> DataFrame:
    """Return requests that replace *timers*, rows of `chosen`, by equal ones of *second*, as `publish` takes them."""
    # The condition of the request was judged when it was read. With IF_ABSENT the move would not count.
    value = F.concat("value", no_condition())
    return timers.select("partition", second.cast("string").cast("binary").alias("key"), value.alias("value"))


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    """
    Return the rows of *frame* as dicts. Times are text, because Python's would be in its own time zone.

    Raises:
        LakeError: Spark cannot compute it.
    """
    names: list[str] = []
    for name in frame.columns:
        names.append(name if name not in names else f"{name}_{len(names) + 1}")
    # Renamed to numbers, which need no quotes and are unique.
    numbered = frame.toDF(*map(str, range(len(names))))
    texts = [F.col(at).cast("string") if kind.startswith("timestamp") else F.col(at) for at, kind in numbered.dtypes]
    try:
        rows = [row.asDict(recursive=True) for row in numbered.select(*texts).collect()]
    except PySparkException as error:
        raise LakeError(f"this cannot be computed: {words_of(error)}") from error
    return [dict(zip(names, row.values(), strict=True)) for row in rows]


class Bulk:
    """
    Many pending timers to change at once, as they are in the lake when this is entered.

    Attributes:
        count: number of timers that can be withdrawn.
        first: time at which the first of these is due, as text.
        last: time at which the last of them is due.
        against: number of timers that cannot be withdrawn, by the reason.
    """

    def __init__(self, spark: SparkSession, settings: LakeSettings, where: str) -> None:
        open_views(spark, settings, ["requests", "pending", "ignored"])
        self._settings = settings
        # Cached, so that the timers that were shown are the ones that change.
        requests = spark.table("requests").join(spark.table("ignored").select(*RECORD_KEY), [*RECORD_KEY], "left_anti")
        self._meant = chosen(spark.table("pending"), requests, where).persist()
        self._timers = self._meant.where(F.col("against").isNull())

    def __enter__(self) -> Self:
        """
        Look the timers up.

        Raises:
            LakeError: the lake cannot be read, or was made from another topic.
        """
        refuse_other_topic(self._meant.sparkSession, self._settings)
        with translated(root_of(self._settings)):
            groups = self._meant.groupBy("against").agg(
                F.count("*"), *(F.date_format(at("due_at"), "yyyy-MM-dd HH:mm:ss") for at in (F.min, F.max))
            )
            found = {row[0]: tuple(row[1:]) for row in groups.collect()}
        self.count, self.first, self.last = found.pop(None, (0, None, None))
        self.against = {why: count for why, (count, _, _) in sorted(found.items())}
        return self

    def __exit__(self, *_: object) -> None:
        self._meant.unpersist()

    def sample(self, rows: int) -> list[dict[str, Any]]:
        """Return the first timers that can be withdrawn."""
        return rows_of(self._timers.select(*_TIMER).orderBy("second", *RECORD_KEY).limit(rows))

    def cancel(self) -> None:
        """Publish cancels of the timers."""
        publish(cancels_of(self._timers), self._settings)

    def move(self, to_s: int | None, by_s: int | None) -> None:
        """
        Publish moves of the timers, to second *to_s* or by *by_s* seconds.

        Raises:
            LakeError: no timer can have one of the new seconds.
        """
        second = F.lit(to_s).cast("bigint") if by_s is None else F.col("second") + F.lit(by_s)
        refused = self._timers.where(~second.between(1, SECOND_LIMIT - 1)).count()
        if refused:
            raise LakeError(f"{refused} of them would be due before the year 1970 or after 5138: nothing is moved")
        publish(moves_of(self._timers, second), self._settings)


def _timers(rows: DataFrame) -> DataFrame:
    return rows.withColumns({"appended_at": _appended_at(), "due_at": F.timestamp_seconds("second")})


def _appended_at() -> Column:
    return F.timestamp_millis("appended_ms")
