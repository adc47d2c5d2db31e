"""`kafka-timers lake land` and `lake promote`: the jobs of the lake that run all the time."""

import sys
import threading
from collections.abc import Callable
from typing import Any

import click

from kafka_timers.cli.lake import WRONG, session_of
from kafka_timers.cli.options import count_option, options_of
from kafka_timers.cli.running import needs
from kafka_timers.clock import HostClock
from kafka_timers.lake.job_settings import RunningSettings

# A batch is six commits: three million in a year.
LAND_EVERY_S = 60.0


def _every(default_s: float, text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option for the time from one round to the next."""
    kind = click.FloatRange(min=0.1)
    return click.option("--every-s", type=kind, default=default_s, show_default=True, help=text)


@click.command()
@options_of(RunningSettings)
@click.option("--once", is_flag=True, help="land the records that the topics have now, and end")
@_every(LAND_EVERY_S, "seconds from the start of one batch to the start of the next")
@click.option("--skip-lost", is_flag=True, help="give up records that a topic has dropped before they were landed")
@click.option(
    "--same-records",
    is_flag=True,
    help="go on though a topic was made anew, as it has the same records at the same offsets",
)
@count_option("--batch-records", "most records of a topic in one batch", default=2_000_000)
@click.option("--catalog", default="", help="name the tables in this schema of Spark's catalog, for other readers")
def land(
    once: bool,
    every_s: float,
    skip_lost: bool,
    same_records: bool,
    batch_records: int,
    catalog: str,
    **given: Any,
) -> None:
    """
    Copy requests, seals, rejected requests and schedules to tables.

    Each record is in its table exactly once, even if you kill the job. It runs
    until Ctrl-C or SIGTERM, and finishes the batch under way first. One process
    lands at a time: it takes over from one that runs, which then ends with 1,
    or with 0 if it was started with --once.
    """
    with needs("lake"):
        from kafka_timers.lake.job_metrics import LakeMetrics
        from kafka_timers.lake.land import land as run
        from kafka_timers.runtime.probes import Probes, served_by_thread
    settings, stop, metrics = RunningSettings(**given), threading.Event(), LakeMetrics()
    spark = session_of(settings, stop.set)
    with served_by_thread(Probes(settings.host, 0 if once else settings.port, metrics.registry, list, list)):
        run(
            spark,
            settings,
            every_s=None if once else every_s,
            stop=stop,
            skip_lost=skip_lost,
            same_records=same_records,
            batch_records=batch_records,
            catalog=catalog,
            metrics=metrics,
        )


@click.command()
@options_of(RunningSettings)
@click.option("--once", is_flag=True, help="promote the buckets that have come within the horizon, and end")
@click.option("--land", "lands", is_flag=True, help="land too, as `lake land` does")
@_every(60.0, "seconds from one look for the next bucket to the one after it")
@count_option(
    "--bucket-s",
    "length of a bucket in seconds, half of the horizon at most  [default: a quarter of it, up to 3600]",
)
@click.option(
    "--wait-s",
    type=click.FloatRange(min=0, max=900),
    default=300.0,
    show_default=True,
    help="most seconds to wait until the topic is landed, or workers have judged conditions",
)
def promote(once: bool, lands: bool, every_s: float, bucket_s: int | None, wait_s: float, **given: Any) -> None:
    """
    Bring far requests back to the workers before they are due.

    It publishes them in buckets of seconds, as copies that workers can tell
    from new requests. A bucket is promoted when its last second comes within
    the horizon. You may kill the job at any time: the next run goes on, and
    workers drop repeated copies. It runs until Ctrl-C or SIGTERM.

    With --once, it exits with 3 if some requests came back late, so that they
    fire at once, or if some cannot be promoted. Error messages name them.
    """
    with needs("lake"):
        from kafka_timers.lake.job_metrics import LakeMetrics
        from kafka_timers.lake.land import Landing, land_once
        from kafka_timers.lake.promote import Promoter
        from kafka_timers.runtime.probes import Probes, served_by_thread
    settings, metrics = RunningSettings(**given), LakeMetrics()
    spark = session_of(settings)
    promoter = Promoter(
        spark,
        settings,
        HostClock(),
        bucket_s=bucket_s or max(1, min(3600, settings.horizon_s // 4)),
        wait_s=wait_s,
        land=(lambda: land_once(spark, settings, metrics=metrics)) if lands and once else None,
        metrics=metrics,
    )
    if once:
        sys.exit(WRONG if promoter.catch_up() else 0)
    # A bucket is looked at twice at least, each time once all is landed.
    landing = Landing(spark, settings, min(LAND_EVERY_S, settings.horizon_s / 30), metrics)
    problems = lambda: [*landing.problems, *promoter.problems]  # noqa: E731
    with served_by_thread(Probes(settings.host, settings.port, metrics.registry, list, problems)):
        if lands:
            landing.start()
        promoter.keep_on(every_s)


LAKE_JOBS = (land, promote)
