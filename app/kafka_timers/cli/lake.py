"""The commands `kafka-timers lake …`. A command imports Spark when it runs."""

import asyncio
import dataclasses
import json
import logging
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kafka_timers.broker.ticked import ticked_s
from kafka_timers.cli.lake_rows import kept_lines, print_rows, rows_csv
from kafka_timers.cli.options import FILE, Seconds, When, choice_option, count_option, json_option, options_of
from kafka_timers.cli.running import log_to_stderr, needs
from kafka_timers.cli.terminal import terminal
from kafka_timers.core.moments import moment_at, second_of, when_of
from kafka_timers.operate.documents import row_document
from kafka_timers.settings import LakeSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


log = logging.getLogger(__name__)

# Exit code of a command that finds a problem.
WRONG = 3
# Exit code of `lake cancel`, `lake move` and `lake forget` if no record matches.
_NONE = 4

_SAMPLE_ROWS = 10


class _Second(When):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return second_of(super().convert(value, param, ctx))


def reads(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give *command* the settings of a job that reads the lake. It needs no horizon, since the seals have it."""
    return options_of(
        LakeSettings, "lake", "bootstrap", "kafka_config", "topic_prefix", "master", "packages", "log_level"
    )(command)


def time_range(ends: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that gives a command a time range; *ends* is the help on the default end."""
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
    """Keep far timers, audit all timers, and ask in SQL, on Spark."""


@lake.command()
@options_of(LakeSettings)
def optimize(**given: Any) -> None:
    """
    Merge small files, and sort the requests that come due next.

    Run it once a day. It may run beside land and promote.
    """
    with needs("lake"):
        from kafka_timers.lake.maintain import optimize as run
    settings = LakeSettings(**given)
    run(_started(settings), settings, _ticked_s(settings))


@lake.command()
@options_of(LakeSettings)
@count_option(
    "--keep-days",
    "days to keep requests after they were due, and seals, rejected requests and plans after they were written",
    required=True,
)
def expire(keep_days: int, **given: Any) -> None:
    """
    Delete timers that were done long ago.

    It keeps every timer that may still fire, and every record that shows that a
    timer does not fire.
    """
    with needs("lake"):
        from kafka_timers.lake.maintain import expire as run
    settings = LakeSettings(**given)
    run(_started(settings), settings, keep_days, _ticked_s(settings))


@lake.command()
@click.argument("query")
@options_of(LakeSettings)
@count_option("--limit", "most rows to show", default=100)
@click.option("--csv", "as_csv", is_flag=True, help="print CSV with a line of names instead of a table")
@click.option("--id", "timer_id", help="look only at timers with this timer id, which is much faster")
@click.option("--key", help="look only at timers whose callbacks have this key, which is faster")
@json_option
def sql(
    query: str, limit: int, as_csv: bool, as_json: bool, timer_id: str | None, key: str | None, **given: Any
) -> None:
    """
    Run QUERY, a SELECT in Spark's SQL, and show its rows.

    You can query all tables of the lake, and the views pending, fired,
    cancelled, ignored and lateness. They know the landed records and nothing
    newer. docs/lake.md lists the columns. Times are in UTC.

    If rows are wider than your terminal, each column is a line. In JSON and
    CSV, bytes that are not UTF-8 are in COLUMN_base64.
    """
    if as_csv and as_json:
        raise click.UsageError("give one of --csv and --json")
    with needs("lake"):
        from kafka_timers.lake.lookup import Only
        from kafka_timers.lake.query import named_in, open_views, rows_of, select
    settings = LakeSettings(**given)
    spark = session_of(settings)
    only = None if timer_id is None and key is None else Only(timer_id, key)
    open_views(spark, settings, named_in(query), only)
    found = select(spark, query)
    rows = rows_of(found.limit(limit + 1))
    if as_json:
        click.echo(json.dumps([row_document(row) for row in rows[:limit]]))
    elif as_csv:
        click.echo(rows_csv(found.columns, rows[:limit]), nl=False)
    elif not rows:
        click.echo("no rows")
    else:
        print_rows(terminal(), rows[:limit])
    if len(rows) > limit:
        click.echo(f"there are more than these {limit} rows: give a larger --limit", err=True)


_where_option = click.option("--where", required=True, help="condition in SQL on the columns of the view pending")
_yes_option = click.option("--yes", is_flag=True, help="do not ask before acting")


@lake.command()
@_where_option
@_yes_option
@options_of(LakeSettings)
def cancel(where: str, yes: bool, **given: Any) -> None:
    """
    Cancel the pending timers that match a condition.

    It shows you how many match and some of them, and asks before it cancels. It
    knows the landed requests, and cancels the last request of each timer id. A
    cancel is too late for a timer that is due by then. It exits with 4 if no
    timer can be cancelled.
    """
    _ask_of_all(where, yes, LakeSettings(**given), None, None)


def _to_second(_context: click.Context, _option: click.Parameter, given: str | None) -> int | None:
    try:
        return None if given is None else -(moment_at(when_of(given)) // -1000)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@lake.command()
@_where_option
@click.option("--to", "to_s", callback=_to_second, help="new time of the timers: ISO 8601 with a zone, or UNIX seconds")
@click.option("--by", "by_s", type=int, help="seconds to move the timers by; a negative number is earlier")
@_yes_option
@options_of(LakeSettings)
def move(where: str, to_s: int | None, by_s: int | None, yes: bool, **given: Any) -> None:
    """
    Move the pending timers that match a condition.

    Give --to or --by. It shows you how many match and some of them, and asks before it moves them.
    It knows the landed requests. It publishes each timer again, unchanged but
    for the time, and this replaces the last request of its timer id. If a timer
    is due by then, both fire. It exits with 4 if no timer can be moved.
    """
    if (to_s is None) == (by_s is None):
        raise click.UsageError("give either --to or --by")
    _ask_of_all(where, yes, LakeSettings(**given), to_s, by_s)


def _ask_of_all(where: str, yes: bool, settings: LakeSettings, to_s: int | None, by_s: int | None) -> None:
    """Cancel the timers that match *where*, or move them to *to_s* or by *by_s*."""
    with needs("lake"):
        from kafka_timers.lake.query import Bulk
    asked = "moved" if to_s is not None or by_s is not None else "cancelled"
    with Bulk(session_of(settings), settings, where) as bulk:
        for why, count in bulk.against.items():
            click.echo(f"{count} cannot be {asked}: {why}")
        if not bulk.count:
            click.echo(f"no pending timer that can be {asked} is meant")
            sys.exit(_NONE)
        print_rows(terminal(), bulk.sample(_SAMPLE_ROWS))
        click.echo(f"{bulk.count} timers due from {bulk.first} to {bulk.last} UTC are to be {asked}")
        if not yes:
            click.confirm("Do you want that?", abort=True)
        if asked == "moved":
            bulk.move(to_s, by_s)
        else:
            bulk.cancel()
    click.echo(f"published {bulk.count} requests to have them {asked}")


@lake.command()
@click.option("--key", help="forget all callbacks with this key")
@click.option("--id", "timer_id", help="forget all records with this timer id")
@_yes_option
@options_of(LakeSettings)
def forget(key: str | None, timer_id: str | None, yes: bool, **given: Any) -> None:
    """
    Delete a person's payloads from the lake, by --key or --id.

    It shows you how many records match, and asks before it deletes. Key, value
    and headers of these records go, from older versions of the table too. The
    columns that the audit needs stay. It lists the records that Kafka still
    has. It refuses while one of the timers waits.

    \b
    Exit codes:
      0  the payloads are deleted
      1  such a timer waits: cancel it first
      4  the lake has nothing to forget
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
        meant.forget(_ticked_s(settings))
        click.echo(f"forgotten {meant.count} records")
        for line in kept_lines(meant):
            click.echo(line)


@lake.command()
@reads
@time_range("the last sealed second")
@count_option("--horizon-s", "dry run: count the fired timers that a lake with this horizon would have held")
@count_option("--ticks-every-s", "dry run: compute how late all timers fire with one tick every so many seconds")
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

    It computes the timers that each partition fires, from the requests and the
    snapshots in the seals, and prints counts and digest beside the sealed ones.
    It exits with 3 if they differ. With --horizon-s or --ticks-every-s, it is a
    dry run: it prints the figures for that setting.
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
        terminal().print(printed_rows(rows))
    sys.exit(0 if all(row.asDict().get("same", True) for row in rows) else WRONG)


@lake.command()
@options_of(LakeSettings)
@click.option("--ahead", "ahead_s", type=Seconds(), default="7d", show_default=True, help="how far ahead to look")
@choice_option("--by", ["second", "minute", "hour", "day"], "length of time to count timers by", "day")
@click.option("--topic", default="*", show_default=True, help="callback topics to count: a glob")
@count_option("--show", "number of hottest seconds to show", default=10)
@click.option(
    "--rate",
    type=click.FloatRange(min=1),
    help="callbacks per second that your workers reach  [default: from the hottest sealed seconds of the last day]",
)
@click.option("--plot", type=FILE, help="draw the forecast into this .png or .svg file")
@json_option
def forecast(
    ahead_s: int, by: str, topic: str, show: int, rate: float | None, plot: Path | None, as_json: bool, **given: Any
) -> None:
    """
    Show how many timers are due, by second, minute, hour or day.

    It counts the timers that wait, near or far, from the last sealed second on.
    """
    with needs("lake"):
        from kafka_timers.lake import forecast as job
        from kafka_timers.lake.report import printed_forecast
    settings = LakeSettings(**given)
    if plot and plot.suffix not in (".png", ".svg"):
        raise click.UsageError(f"--plot {plot}: give a name that ends in .png or .svg")
    spark = session_of(settings)
    load = job.forecast(spark, settings, ahead_s=ahead_s, by=by, topic=topic, shown=show, known_rate=rate)
    if plot:
        job.plot(load, plot)
    if as_json:
        lists = {name: [row.asDict() for row in getattr(load, name)] for name in ("steps", "topics", "hottest")}
        click.echo(json.dumps({field.name: getattr(load, field.name) for field in dataclasses.fields(load)} | lists))
    else:
        terminal().print(printed_forecast(load))


def _started(settings: LakeSettings) -> "SparkSession":
    """Return a session for a command. Spark's own log is shown only at log level debug."""
    with needs("lake"):
        from kafka_timers.lake.session import open_session, quiet
    log_to_stderr(settings.log_level)
    if settings.log_level != "debug":
        # An error that ends the command has a message of its own.
        quiet()
    return open_session(settings)


def _ticked_s(settings: LakeSettings) -> int:
    return asyncio.run(ticked_s(settings.kafka, settings.topic_prefix))


def session_of(settings: LakeSettings, end: Callable[[], object] = lambda: sys.exit(0)) -> "SparkSession":
    """Return the session of a job. Ctrl-C and SIGTERM call *end*; by default they end the process with 0."""
    spark = _started(settings)
    # After the start of Spark, because Spark sets a handler of its own for Ctrl-C, which cancels the running query.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: end())
    return spark
