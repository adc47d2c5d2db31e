"""The command line of the lake: `kafka-timers lake …`. Spark is imported by the command that runs on it."""

import dataclasses
import json
import logging
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from kafka_timers.cli import delay_s_of, log_to_stderr, needs, options_of, when_of
from kafka_timers.clock import HostClock
from kafka_timers.settings import LakeSettings

__all__ = ["lake"]


# Exit code of what finds that not all is as it should be.
_WRONG = 3


class _Second(click.ParamType):
    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            when = when_of(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return when if isinstance(when, int) else int(when.timestamp())


class _Delay(click.ParamType):
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return delay_s_of(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _reads(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give *command* the settings of a job that reads the lake and takes horizons from seals."""
    return options_of(LakeSettings, "lake", "bootstrap", "topic_prefix", "master", "packages", "log_level")(command)


def _span(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give *command* the options that say which seconds it is about."""
    last = click.option("--to", "last", type=_Second(), help="end, as --from  [default: the last sealed second]")
    first = click.option(
        "--from",
        "first",
        type=_Second(),
        help="begin: ISO 8601 with a zone, or UNIX seconds  [default: a day before the end]",
    )
    return first(last(command))


_json = click.option("--json", "as_json", is_flag=True, help="print JSON instead of text")


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
def land(once: bool, every_s: float, skip_lost: bool, **given: Any) -> None:
    """
    Copy requests, seals and rejected requests to tables.

    Each record is there exactly once, whatever is killed. Runs until Ctrl-C or
    SIGTERM, and ends behind the batch under way.
    """
    with needs("lake"):
        from kafka_timers.lake.land import land as run
        from kafka_timers.lake.session import open_session
    settings = LakeSettings(**given)
    log_to_stderr(settings.log_level)
    if settings.log_level != "debug":
        # What ends in an error is told by it.
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
    spark, stop = open_session(settings), threading.Event()
    # Behind the start of Spark, which handles Ctrl-C by itself: it cancels the batch under way.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    run(spark, settings, every_s=None if once else every_s, stop=stop, skip_lost=skip_lost)


@lake.command()
@_reads
@_span
@click.option("--callbacks", is_flag=True, help="also read the callback topics and compare each callback")
@click.option("--report", type=click.Path(dir_okay=False, path_type=Path), help="write a page with plots to this file")
@click.option("--show", type=click.IntRange(min=0), default=20, show_default=True, help="findings to show")
@_json
def audit(
    first: int | None,
    last: int | None,
    callbacks: bool,
    report: Path | None,
    show: int,
    as_json: bool,
    **given: Any,
) -> None:
    """
    Compare what was sealed with what should have fired.

    Computes from the requests alone what each second of each partition should
    have fired. What comes of it is appended to the tables audit_seconds and
    audit_findings. Exits with 3 if anything is wrong.
    """
    with needs("lake"):
        from kafka_timers.lake.audit import audit as run
        from kafka_timers.lake.report import printed, write
        from kafka_timers.lake.session import open_session
    settings = LakeSettings(**given)
    log_to_stderr(settings.log_level)
    now_s = int(HostClock().wall_s())
    told = run(open_session(settings), settings, now_s, first=first, last=last, callbacks=callbacks, shown=show)
    if report:
        write(told, report)
    if as_json:
        rows = ("findings", "lateness", "course", "found")
        lists = {name: [row.asDict() for row in getattr(told, name) or ()] for name in rows}
        click.echo(json.dumps({field.name: getattr(told, field.name) for field in dataclasses.fields(told)} | lists))
    else:
        Console().print(printed(told))
    sys.exit(_WRONG if told.kinds else 0)


@lake.command()
@_reads
@_span
@click.option("--horizon-s", type=click.IntRange(min=1), help="dry run: how many of the fires the lake would have held")
@click.option("--ticks-every-s", type=click.IntRange(min=1), help="dry run: how late all fires with fewer ticks")
@_json
def replay(
    first: int | None,
    last: int | None,
    horizon_s: int | None,
    ticks_every_s: int | None,
    as_json: bool,
    **given: Any,
) -> None:
    """
    Fire a span of the past again, on paper.

    Prints what each partition fires, by the requests and the fences in the
    seals, beside what was sealed, and exits with 3 if they differ. With another
    setting it is a dry run, and prints what would have been different.
    """
    if horizon_s and ticks_every_s:
        raise click.UsageError("give one of --horizon-s and --ticks-every-s")
    with needs("lake"):
        from kafka_timers.lake import replay as job
        from kafka_timers.lake.report import printed_rows
        from kafka_timers.lake.session import open_session
    settings = LakeSettings(**given)
    log_to_stderr(settings.log_level)
    spark = open_session(settings)
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
@_reads
@click.option("--ahead", "ahead_s", type=_Delay(), default="7d", show_default=True, help="how far to look")
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
@_json
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
        from kafka_timers.lake.session import open_session
    settings = LakeSettings(**given)
    log_to_stderr(settings.log_level)
    if plot and plot.suffix not in (".png", ".svg"):
        raise click.UsageError(f"--plot {plot}: give a name that ends in .png or .svg")
    spark = open_session(settings)
    told = job.forecast(spark, settings, ahead_s=ahead_s, by=by, topic=topic, shown=show, known_rate=rate)
    if plot:
        job.plot(told, plot)
    if as_json:
        lists = {name: [row.asDict() for row in getattr(told, name)] for name in ("steps", "topics", "hottest")}
        click.echo(json.dumps({field.name: getattr(told, field.name) for field in dataclasses.fields(told)} | lists))
    else:
        Console().print(printed_forecast(told))
