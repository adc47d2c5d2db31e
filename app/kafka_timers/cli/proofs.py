"""`kafka-timers prove`, `verify` and `lake publish-chain`: commands that prove the fate of a timer."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from kafka_timers.cli.lake import lake, reads, session_of
from kafka_timers.cli.options import json_option
from kafka_timers.cli.running import needs
from kafka_timers.core.chain import days_in
from kafka_timers.core.proofs import verified
from kafka_timers.errors import ProofError
from kafka_timers.settings import LakeSettings

__all__ = ["PROOFS"]

# Exit code of `verify` and `lake publish-chain` if something does not hold.
_WRONG = 3

_File = click.Path(dir_okay=False, path_type=Path)
_ExistingFile = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.argument("timer_id", metavar="ID")
@reads
@click.option(
    "--offset",
    type=click.IntRange(min=0),
    help="offset of the request, if the ID has had several  [default: the last one]",
)
@click.option("--to", "file", type=_File, help="file to write  [default: standard output]")
def prove(timer_id: str, offset: int | None, file: Path | None, **given: Any) -> None:
    """
    Prove the fate of the timer ID, from the lake.

    It writes a JSON file. Anybody can check it with `kafka-timers verify`,
    without Kafka and without the lake. It proves that the request fired once,
    and with which seal; or that a cancel or another request withdrew it in
    time; or that it still waits.
    """
    with needs("lake"):
        from kafka_timers.lake.prove import proof_of
    settings = LakeSettings(**given)
    document = json.dumps(proof_of(session_of(settings), settings, timer_id, offset))
    if file is None:
        click.echo(document)
        return
    file.write_text(document + "\n", encoding="utf-8")
    for line in verified(json.loads(document)).lines:
        click.echo(line)


@click.command()
@click.argument("file", type=_ExistingFile)
@click.option(
    "--published",
    type=_ExistingFile,
    help="file of `lake publish-chain`, from a place that the writers of seals cannot change",
)
@json_option
def verify(file: Path, published: Path | None, as_json: bool) -> None:
    """
    Check the proof in FILE, and print the facts that it shows.

    It needs neither Kafka nor the lake. Without --published, it checks the
    proof against the seals in it alone: a process that may write seals could
    have made up both. It exits with 3 if the proof does not hold.
    """
    try:
        known = days_in(_text_of(published).splitlines(), str(published)) if published else None
        try:
            document = json.loads(_text_of(file))
        except ValueError as error:
            raise ProofError(f"{file} is no JSON: {error}") from error
        verdict = verified(document, known)
    except ProofError as error:
        if as_json:
            click.echo(json.dumps({"holds": False, "why": str(error)}))
        else:
            click.secho(f"The proof does not hold: {error}", fg="red", err=True)
        sys.exit(_WRONG)
    if as_json:
        told = {"holds": True, "state": verdict.state, "shows": verdict.lines, "published": verdict.is_published}
        click.echo(json.dumps(told))
        return
    for line in verdict.lines:
        click.echo(line)
    if verdict.is_published:
        click.secho("All of its seals are among those that were published.", fg="green")
    else:
        click.secho("Its seals were not compared with any that were published: give --published.", fg="yellow")


@lake.command("publish-chain")
@reads
@click.option("--to", "file", type=_File, required=True, help="file to append to; created if it is missing")
@click.option("--check", is_flag=True, help="also compare the days in the file with the lake")
def publish_chain(file: Path, check: bool, **given: Any) -> None:
    """
    Write a hash of the seals of each past day to a file.

    It appends a line for each partition and each day that the file lacks. Keep
    the file in a place that the writers of seals and of the lake cannot change:
    then nobody can change a past seal unseen. With --check, it exits with 3 if
    a day in the lake differs from the file.
    """
    with needs("lake"):
        from kafka_timers.lake.publish import published_days
    settings = LakeSettings(**given)
    known = days_in(_text_of(file).splitlines(), str(file)) if file.exists() else {}
    session = session_of(settings)
    added, wrong = 0, []
    with file.open("a", encoding="utf-8") as lines:
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
    sys.exit(_WRONG if wrong else 0)


def _text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ProofError(f"{file} is no text: {error}") from error


PROOFS = (prove, verify)
