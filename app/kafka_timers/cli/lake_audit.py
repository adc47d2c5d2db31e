"""`kafka-timers lake audit` and `lake publish-chain`: whether seals, requests and callbacks fit each other."""

import asyncio
import json
import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from kafka_timers.cli.lake import WRONG, reads, session_of, time_range
from kafka_timers.cli.options import FILE, json_option
from kafka_timers.cli.running import needs
from kafka_timers.cli.terminal import terminal
from kafka_timers.clock import HostClock
from kafka_timers.core.chain import Day, days_in
from kafka_timers.errors import BrokerError, ChainError
from kafka_timers.settings import LakeSettings

if TYPE_CHECKING:
    from kafka_timers.lake.service import Service

log = logging.getLogger(__name__)


@click.command()
@reads
@time_range("as far as is landed, and ten minutes ago if the landing is behind")
@click.option("--callbacks", is_flag=True, help="also read the callback and reply topics, and compare each callback")
@click.option("--batches", is_flag=True, help="also compare callback topics with the SHA-256 of what was sent")
@click.option(
    "--late-ms", type=click.IntRange(min=0), help="report callbacks that are more than this many milliseconds late"
)
@click.option("--rows", is_flag=True, help="also judge each request again by its bytes; takes as long as landing")
@click.option(
    "--chain",
    "chains",
    type=click.File(encoding="utf-8"),
    multiple=True,
    help="also compare the seals with this file of `lake publish-chain`; - is the standard input",
)
@click.option("--report", type=FILE, help="write a page with plots to this file")
@click.option("--show", type=click.IntRange(min=0), default=20, show_default=True, help="most findings to show")
@json_option
def audit(
    first: int | None,
    last: int | None,
    callbacks: bool,
    batches: bool,
    late_ms: int | None,
    rows: bool,
    chains: Sequence[TextIO],
    report: Path | None,
    show: int,
    as_json: bool,
    **given: Any,
) -> None:
    """
    Compare the seals with the requests.

    It computes from the requests alone which timers each second of each
    partition should have fired, and compares the result with the seal. It
    appends the result to the tables audit_seconds and audit_findings.

    Somebody who may write seals can change requests, seals and callbacks so
    that they match. Give --chain with a file that was kept elsewhere, and the
    audit finds that too.

    \b
    Exit codes:
      0  nothing is wrong, and all of the time range was judged
      1  nothing is wrong so far, and not all could be judged
      3  there are findings
    """
    with needs("lake"):
        from kafka_timers.lake.audit import audit as run
        from kafka_timers.lake.report import document, printed, write
    settings = LakeSettings(**given)
    chain = _published_in(*chains) if chains else None
    spark, now_s = session_of(settings), int(HostClock().wall_s())
    result = run(
        spark,
        settings,
        now_s,
        first=first,
        last=last,
        callbacks=callbacks,
        batches=batches,
        late_ms=late_ms,
        rows=rows,
        chain=chain,
        shown=show,
        service=_service_of(settings),
    )
    if report:
        write(result, report)
    if as_json:
        click.echo(json.dumps(document(result)))
    else:
        terminal().print(printed(result))
    sys.exit(WRONG if result.kinds else bool(result.undecided))


@click.command("publish-chain")
@reads
@click.option("--to", "file", type=FILE, required=True, help="file to append to; created if it is missing")
@click.option("--check", is_flag=True, help="also compare the days in the file with the lake")
def publish_chain(file: Path, check: bool, **given: Any) -> None:
    """
    Write a hash of the seals of each past day to a file.

    It appends a line for each partition and each day that the file lacks. Keep
    the file in a place that the writers of seals and of the lake cannot change:
    then nobody can change a past seal unseen, see `lake audit --chain`. With
    --check, it exits with 3 if a day in the lake differs from the file.
    """
    with needs("lake"):
        from kafka_timers.lake.publish import published_days
    settings = LakeSettings(**given)
    session = session_of(settings)
    added, wrong = 0, []
    with file.open("a+", encoding="utf-8") as lines:
        lines.seek(0)
        known = _published_in(lines)
        for each in published_days(session, settings, () if check else known):
            before = known.get((each.partition, each.date))
            if before is None:
                lines.write(each.line() + "\n")
                added += 1
            elif before != each.day:
                wrong.append(f"partition {each.partition}, {each.date}: the seals are not those that were published")
    for line in wrong:
        click.secho(line, fg="red")
    click.echo(f"{added} days published")
    sys.exit(WRONG if wrong else 0)


def _published_in(*files: TextIO) -> Mapping[tuple[int, str], Day]:
    try:
        return days_in(*((file.name, file) for file in files))
    except UnicodeDecodeError as error:
        raise ChainError(f"a file of published seals is no text: {error}") from error


def _service_of(settings: LakeSettings) -> "Service | None":
    """Return the state of the service on Kafka; None if no broker answers, so that you can audit tables alone."""
    from kafka_timers.lake.service import look_at

    try:
        return asyncio.run(look_at(settings.kafka, settings.topic_prefix))
    except BrokerError as error:
        log.warning("%s", error)
        return None


LAKE_AUDIT = (audit, publish_chain)
