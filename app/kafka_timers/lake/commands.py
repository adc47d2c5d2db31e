"""The command line of the lake: `kafka-timers lake …`. Spark is imported by the command that runs on it."""

import logging
import signal
import threading
from typing import Any

import click

from kafka_timers.cli import log_to_stderr, needs, options_of
from kafka_timers.settings import LakeSettings

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
