"""The command line of the lake: `kafka-timers lake …`. Spark is imported by the command that runs on it."""

import asyncio
import dataclasses
import json
import logging
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from kafka_timers.cli.options import Seconds, When, json_option, options_of, second_of, when_of
from kafka_timers.cli.rows import kept_lines, print_rows, rows_csv
from kafka_timers.cli.running import log_to_stderr, needs
from kafka_timers.clock import HostClock
from kafka_timers.core.moments import moment_at
from kafka_timers.errors import BrokerError
from kafka_timers.operate.documents import row_document
from kafka_timers.settings import LakeSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kafka_timers.lake.service import Service

__all__ = ["lake", "reads", "session_of"]

log = logging.getLogger(__name__)

# What finds that not all is as it should be exits with.
_WRONG = 3
# What `lake cancel` and `lake move` exit with when there is nothing to ask for.
_NONE = 4

_SAMPLE_ROWS = 10


class _Second(When):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return second_of(super().convert(value, param, ctx))


def reads(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give *command* the settings of a job that reads the lake and takes horizons from seals."""
    return options_of(
        LakeSettings, "lake", "bootstrap", "kafka_config", "topic_prefix", "master", "packages", "log_level"
    )(command)


def _time_range(ends: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return what gives a command the options that say which seconds it is about; without any these go to *ends*."""
    last = click.option("--to", "last", type=_Second(), help=f"end, as --from  [default: {ends}]")
    first = click.option(
        "--from",
        "first",
        type=_Second(),
        help="begin: ISO 8601 with a zone, or UNIX seconds  [default: a day before the end]",
    )
    return lambda command: first(last(command))


@click.group()
def lake() -> None:
    """Far timers, audit and SQL, on Spark."""


@lake.command()
@options_of(LakeSettings)
@click.option("--once", is_flag=True, help="land what the topics hold by now, and end")
@click.option(
    "--every-s",
    type=click.FloatRange(min=0.1),
    default=10.0,
    show_default=True,
    help="seconds from the begin of a batch to that of the next",
)
@click.option("--skip-lost", is_flag=True, help="go on behind records that a topic has dropped before they were landed")
@click.option(
    "--wait-s",
    type=click.FloatRange(min=0),
    default=300.0,
    show_default=True,
    help="longest wait for another landing of this lake to end",
)
@click.option(
    "--batch-records",
    type=click.IntRange(min=1),
    default=2_000_000,
    show_default=True,
    help="most records of a topic that are one batch",
)
def land(once: bool, every_s: float, skip_lost: bool, wait_s: float, batch_records: int, **given: Any) -> None:
    """
    Copy requests, seals and rejected requests to tables.

    Each record is there exactly once, whatever is killed. Runs until Ctrl-C or
    SIGTERM, and ends behind the batch under way. One process lands into a lake
    at a time: another one waits, and ends with 1 when that takes too long.
    """
    with needs("lake"):
        from kafka_timers.lake.land import land as run
    settings = LakeSettings(**given)
    spark, stop = _started(settings), threading.Event()
    # Behind the start of Spark, which handles Ctrl-C by itself: it cancels the batch under way.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    run(
        spark,
        settings,
        every_s=None if once else every_s,
        stop=stop,
        skip_lost=skip_lost,
        wait_s=wait_s,
        batch_records=batch_records,
    )


@lake.command()
@options_of(LakeSettings)
def optimize(**given: Any) -> None:
    """
    Merge small files, and sort what comes due next.

    May run beside land and promote; once a day is enough.
    """
    with needs("lake"):
        from kafka_timers.lake.maintain import optimize as run
    settings = LakeSettings(**given)
    run(_started(settings), settings, int(HostClock().wall_s()))


@lake.command()
@options_of(LakeSettings)
@click.option(
    "--keep-days",
    type=click.IntRange(min=1),
    required=True,
    help="days that requests stay after they were due, seals and rejected ones after they were written",
)
def expire(keep_days: int, **given: Any) -> None:
    """
    Delete what was done long ago.

    Nothing goes that may fire yet, nor what tells that something does not.
    """
    with needs("lake"):
        from kafka_timers.lake.maintain import expire as run
    settings = LakeSettings(**given)
    run(_started(settings), settings, keep_days, int(HostClock().wall_s()))


@lake.command()
@options_of(LakeSettings)
@click.option("--once", is_flag=True, help="promote what has come within the horizon, and end")
@click.option("--land", "lands", is_flag=True, help="land first, as `lake land --once`")
@click.option(
    "--every-s",
    type=click.FloatRange(min=0.1),
    default=60.0,
    show_default=True,
    help="seconds from one look for the next bucket to another",
)
@click.option(
    "--bucket-s",
    type=click.IntRange(min=1),
    help="seconds that are promoted together, half of the horizon at most  [default: a quarter of it, up to 3600]",
)
@click.option(
    "--wait-s",
    type=click.FloatRange(min=0, max=900),
    default=300.0,
    show_default=True,
    help="longest wait for the landing to reach what the topic holds, for another one to end, and for workers to judge "
    "conditions",
)
def promote(once: bool, lands: bool, every_s: float, bucket_s: int | None, wait_s: float, **given: Any) -> None:
    """
    Bring far requests back to the workers.

    They are published bucket by bucket, when the last second of a bucket comes
    within the horizon, as copies that workers tell from new requests. May be
    killed at any time: the next run goes on, and workers drop repeats. Runs
    until Ctrl-C or SIGTERM. With --once exits with 3 when it was late for some,
    which fire at once, or when some cannot be promoted; errors say which.
    """
    with needs("lake"):
        from kafka_timers.lake.land import land_once
        from kafka_timers.lake.promote import Promoter
    settings = LakeSettings(**given)
    spark = session_of(settings)
    promoter = Promoter(
        spark,
        settings,
        HostClock(),
        bucket_s=bucket_s or max(1, min(3600, settings.horizon_s // 4)),
        wait_s=wait_s,
        land=(lambda: land_once(spark, settings, wait_s=wait_s)) if lands else None,
    )
    if once:
        sys.exit(_WRONG if promoter.catch_up() else 0)
    promoter.keep_on(every_s)


@lake.command()
@click.argument("query")
@options_of(LakeSettings)
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="most rows to show")
@click.option("--csv", "as_csv", is_flag=True, help="as CSV with a line of names")
@json_option
def sql(query: str, limit: int, as_csv: bool, as_json: bool, **given: Any) -> None:
    """
    Ask QUERY, a SELECT in Spark's SQL.

    There are all tables of the lake, of the requests those that are pending,
    fired, cancelled or ignored, as far as has been landed, and their lateness
    by topic and hour. docs/lake.md has the columns; times are in UTC. Rows that
    are wider than the terminal are shown a column a line. In JSON and CSV bytes
    that are not UTF-8 go to COLUMN_base64.
    """
    if as_csv and as_json:
        raise click.UsageError("give one of --csv and --json")
    with needs("lake"):
        from kafka_timers.lake.query import open_views, rows_of, select
    settings = LakeSettings(**given)
    spark = session_of(settings)
    open_views(spark, settings)
    found = select(spark, query)
    rows = rows_of(found.limit(limit + 1))
    if as_json:
        click.echo(json.dumps([row_document(row) for row in rows[:limit]]))
    elif as_csv:
        click.echo(rows_csv(found.columns, rows[:limit]), nl=False)
    elif not rows:
        click.echo("no rows")
    else:
        print_rows(Console(), rows[:limit])
    if len(rows) > limit:
        click.echo(f"there are more than these {limit} rows: give a larger --limit", err=True)


_where_option = click.option("--where", required=True, help="condition in SQL over the columns of the view pending")
_yes_option = click.option("--yes", is_flag=True, help="do not ask")


@lake.command()
@_where_option
@_yes_option
@options_of(LakeSettings)
def cancel(where: str, yes: bool, **given: Any) -> None:
    """
    Cancel the pending timers that match a condition.

    Shows how many these are and some of them, and asks. A cancel is about the
    last request of its timer id, as far as has been landed, and comes too late
    for one that is due by then. Exits with 4 if none can be cancelled.
    """
    _ask_of_all(where, yes, LakeSettings(**given), None, None)


def _to_second(_context: click.Context, _option: click.Parameter, given: str | None) -> int | None:
    try:
        return None if given is None else -(moment_at(when_of(given)) // -1000)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@lake.command()
@_where_option
@click.option("--to", "to_s", callback=_to_second, help="when they fire instead: ISO 8601 with a zone, or UNIX seconds")
@click.option("--by", "by_s", type=int, help="seconds by which they fire later; a negative number is earlier")
@_yes_option
@options_of(LakeSettings)
def move(where: str, to_s: int | None, by_s: int | None, yes: bool, **given: Any) -> None:
    """
    Give the pending timers that match a condition another second.

    Shows how many these are and some of them, and asks. Each is published anew
    with all that it had, and takes the place of the last request of its timer
    id, as far as has been landed; of one that is due by then, both fire. Exits
    with 4 if none can be moved.
    """
    if (to_s is None) == (by_s is None):
        raise click.UsageError("give either --to or --by")
    _ask_of_all(where, yes, LakeSettings(**given), to_s, by_s)


def _ask_of_all(where: str, yes: bool, settings: LakeSettings, to_s: int | None, by_s: int | None) -> None:
    """Cancel what *where* means, or move it."""
    with needs("lake"):
        from kafka_timers.lake.query import Bulk
    asked = "moved" if to_s is not None or by_s is not None else "cancelled"
    with Bulk(session_of(settings), settings, where) as bulk:
        for why, count in bulk.against.items():
            click.echo(f"{count} cannot be {asked}: {why}")
        if not bulk.count:
            click.echo(f"no pending timer that can be {asked} is meant")
            sys.exit(_NONE)
        print_rows(Console(), bulk.sample(_SAMPLE_ROWS))
        click.echo(f"{bulk.count} timers due from {bulk.first} to {bulk.last} UTC are to be {asked}")
        if not yes:
            click.confirm("Do you want that?", abort=True)
        if asked == "moved":
            bulk.move(to_s, by_s)
        else:
            bulk.cancel()
    click.echo(f"published {bulk.count} requests to have them {asked}")


@lake.command()
@click.option("--key", help="of all callbacks with this key")
@click.option("--id", "timer_id", help="or of all records with this timer id")
@_yes_option
@options_of(LakeSettings)
def forget(key: str | None, timer_id: str | None, yes: bool, **given: Any) -> None:
    """
    Delete a person's payloads from the lake.

    Shows how many records these are and asks. Their key, value and headers go,
    from older versions of the table too; what the audit needs stays. Names what
    Kafka still has. Refuses while such timers wait. Exits with 4 if there is
    nothing to forget.
    """
    if (key is None) == (timer_id is None):
        raise click.UsageError("give either --key or --id")
    with needs("lake"):
        from kafka_timers.lake.forget import Forgetting
    settings = LakeSettings(**given)
    with Forgetting(session_of(settings), settings, key=key, timer_id=timer_id) as meant:
        if not meant.count:
            click.echo("the lake has nothing of it to forget")
            sys.exit(_NONE)
        due = f", due from {meant.first} to {meant.last} UTC" if meant.timers else ""
        click.echo(f"{meant.count} records are to be forgotten, {meant.timers} of them requests{due}")
        if not yes:
            click.confirm("Do you want that? Nothing brings them back", abort=True)
        meant.forget(int(HostClock().wall_s()))
        click.echo(f"forgotten {meant.count} records")
        for line in kept_lines(meant.kept):
            click.echo(line)


@lake.command()
@reads
@_time_range("up to where the landing has come, and to ten minutes ago if it is behind")
@click.option("--callbacks", is_flag=True, help="also read callback and reply topics, and compare each callback")
@click.option("--late-ms", type=click.IntRange(min=0), help="callbacks that are later than this are a finding")
@click.option("--rows", is_flag=True, help="also judge each request anew by its bytes, as slow as landing")
@click.option("--report", type=click.Path(dir_okay=False, path_type=Path), help="write a page with plots to this file")
@click.option("--show", type=click.IntRange(min=0), default=20, show_default=True, help="findings to show")
@json_option
def audit(
    first: int | None,
    last: int | None,
    callbacks: bool,
    late_ms: int | None,
    rows: bool,
    report: Path | None,
    show: int,
    as_json: bool,
    **given: Any,
) -> None:
    """
    Compare what was sealed with what should have fired.

    Computes from the requests alone what each second of each partition should
    have fired. What comes of it is appended to the tables audit_seconds and
    audit_findings. Exits with 0 if nothing is wrong, and all that should have
    been sealed was judged; with 3 if anything is wrong; and with 1 if nothing
    is, and not all could be judged.
    """
    with needs("lake"):
        from kafka_timers.lake.audit import audit as run
        from kafka_timers.lake.report import document, printed, write
    settings = LakeSettings(**given)
    spark, now_s = session_of(settings), int(HostClock().wall_s())
    told = run(
        spark,
        settings,
        now_s,
        first=first,
        last=last,
        callbacks=callbacks,
        late_ms=late_ms,
        rows=rows,
        shown=show,
        service=_service_of(settings),
    )
    if report:
        write(told, report)
    if as_json:
        click.echo(json.dumps(document(told)))
    else:
        Console().print(printed(told))
    sys.exit(_WRONG if told.kinds else bool(told.undecided))


def _service_of(settings: LakeSettings) -> "Service | None":
    """Return what the brokers tell of the service; None when none answers, as for an audit of tables alone."""
    from kafka_timers.lake.service import look_at

    try:
        return asyncio.run(look_at(settings.kafka, settings.topic_prefix))
    except BrokerError as error:
        log.warning("%s", error)
        return None


@lake.command()
@reads
@_time_range("the last sealed second")
@click.option("--horizon-s", type=click.IntRange(min=1), help="dry run: how many of the fires the lake would have held")
@click.option("--ticks-every-s", type=click.IntRange(min=1), help="dry run: how late all fires with fewer ticks")
@json_option
def replay(
    first: int | None,
    last: int | None,
    horizon_s: int | None,
    ticks_every_s: int | None,
    as_json: bool,
    **given: Any,
) -> None:
    """
    Fire a past time range again, on paper.

    Prints what each partition fires, by the requests and the fences in the
    seals, beside what was sealed, and exits with 3 if they differ. With another
    setting it is a dry run, and prints what would have been different.
    """
    if horizon_s and ticks_every_s:
        raise click.UsageError("give one of --horizon-s and --ticks-every-s")
    with needs("lake"):
        from kafka_timers.lake import replay as job
        from kafka_timers.lake.report import printed_rows
    settings = LakeSettings(**given)
    spark = session_of(settings)
    if ticks_every_s:
        rows = job.with_fewer_ticks(spark, settings, first, last, ticks_every_s)
    elif horizon_s:
        rows = job.with_horizon(spark, settings, first, last, horizon_s)
    else:
        rows = job.replayed(spark, settings, first, last)
    if as_json:
        click.echo(json.dumps([row.asDict() for row in rows]))
    else:
        Console().print(printed_rows(rows))
    sys.exit(0 if all(row.asDict().get("same", True) for row in rows) else _WRONG)


@lake.command()
@options_of(LakeSettings)
@click.option("--ahead", "ahead_s", type=Seconds(), default="7d", show_default=True, help="how far to look")
@click.option(
    "--by",
    type=click.Choice(["second", "minute", "hour", "day"]),
    default="day",
    show_default=True,
    help="what to count timers by",
)
@click.option("--topic", default="*", show_default=True, help="callback topics to count: a glob")
@click.option("--show", type=click.IntRange(min=1), default=10, show_default=True, help="hottest seconds to show")
@click.option(
    "--rate",
    type=click.FloatRange(min=1),
    help="callbacks a second that workers reach  [default: what the hottest sealed seconds of the last day tell]",
)
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="draw it into this .png or .svg")
@json_option
def forecast(
    ahead_s: int, by: str, topic: str, show: int, rate: float | None, plot: Path | None, as_json: bool, **given: Any
) -> None:
    """
    Show how many timers are due when.

    Counts what is pending, near or far, from the last sealed second on.
    """
    with needs("lake"):
        from kafka_timers.lake import forecast as job
        from kafka_timers.lake.report import printed_forecast
    settings = LakeSettings(**given)
    if plot and plot.suffix not in (".png", ".svg"):
        raise click.UsageError(f"--plot {plot}: give a name that ends in .png or .svg")
    spark = session_of(settings)
    told = job.forecast(spark, settings, ahead_s=ahead_s, by=by, topic=topic, shown=show, known_rate=rate)
    if plot:
        job.plot(told, plot)
    if as_json:
        lists = {name: [row.asDict() for row in getattr(told, name)] for name in ("steps", "topics", "hottest")}
        click.echo(json.dumps({field.name: getattr(told, field.name) for field in dataclasses.fields(told)} | lists))
    else:
        Console().print(printed_forecast(told))


def _started(settings: LakeSettings) -> "SparkSession":
    """Return a session for a command, which logs its own lines only, unless all are asked for."""
    with needs("lake"):
        from kafka_timers.lake.session import open_session, quiet
    log_to_stderr(settings.log_level)
    if settings.log_level != "debug":
        # What ends in an error is told by it.
        quiet()
    return open_session(settings)


def session_of(settings: LakeSettings) -> "SparkSession":
    """Return the session of a job that may be ended at any time, and is by Ctrl-C and SIGTERM."""
    spark = _started(settings)
    # Behind the start of Spark, which handles Ctrl-C by itself: it cancels the query under way.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(0))
    return spark
