"""The jobs of the lake that run all the time: `kafka-timers lake land` and `lake promote`."""

import sys
import threading
from typing import Any

import click

from kafka_timers.cli.lake import session_of
from kafka_timers.cli.options import options_of
from kafka_timers.cli.running import needs
from kafka_timers.clock import HostClock
from kafka_timers.lake.settings import RunningSettings

__all__ = ["LAKE_JOBS"]

# What finds that not all is as it should be exits with.
_WRONG = 3


@click.command()
@options_of(RunningSettings)
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
        from kafka_timers.lake.metrics import LakeMetrics
        from kafka_timers.probes import Probes, served_by_thread
    settings, stop, metrics = RunningSettings(**given), threading.Event(), LakeMetrics()
    spark = session_of(settings, stop.set)
    with served_by_thread(Probes(settings.host, 0 if once else settings.port, metrics.registry, list, list)):
        run(
            spark,
            settings,
            every_s=None if once else every_s,
            stop=stop,
            skip_lost=skip_lost,
            wait_s=wait_s,
            batch_records=batch_records,
            metrics=metrics,
        )


@click.command()
@options_of(RunningSettings)
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
        from kafka_timers.lake.metrics import LakeMetrics
        from kafka_timers.lake.promote import Promoter
        from kafka_timers.probes import Probes, served_by_thread
    settings, metrics = RunningSettings(**given), LakeMetrics()
    spark = session_of(settings)
    promoter = Promoter(
        spark,
        settings,
        HostClock(),
        bucket_s=bucket_s or max(1, min(3600, settings.horizon_s // 4)),
        wait_s=wait_s,
        land=(lambda: land_once(spark, settings, wait_s=wait_s, metrics=metrics)) if lands else None,
        metrics=metrics,
    )
    if once:
        sys.exit(_WRONG if promoter.catch_up() else 0)
    with served_by_thread(Probes(settings.host, settings.port, metrics.registry, list, lambda: promoter.problems)):
        promoter.keep_on(every_s)


LAKE_JOBS = (land, promote)
