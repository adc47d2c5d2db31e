"""The command line of the lake: `kafka-timers lake …`. Spark is imported by the command that runs on it."""

import logging
import signal
import threading
from typing import TYPE_CHECKING, Any

import click

from kafka_timers.cli import log_to_stderr, needs, options_of
from kafka_timers.clock import HostClock
from kafka_timers.settings import LakeSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["lake"]


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
    settings = LakeSettings(**given)
    spark, stop = _started(settings), threading.Event()
    # Behind the start of Spark, which handles Ctrl-C by itself: it cancels the batch under way.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    run(spark, settings, every_s=None if once else every_s, stop=stop, skip_lost=skip_lost)


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


def _started(settings: LakeSettings) -> "SparkSession":
    """Return a session for a command, which logs its own lines only, unless all are asked for."""
    with needs("lake"):
        from kafka_timers.lake.session import open_session
    log_to_stderr(settings.log_level)
    if settings.log_level != "debug":
        # What ends in an error is told by it.
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
    return open_session(settings)
