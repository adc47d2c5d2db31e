"""Commands about proofs of what became of a timer."""

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

# What `verify` and `lake publish-chain` exit with when something does not hold.
_WRONG = 3

_File = click.Path(dir_okay=False, path_type=Path)
_ExistingFile = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.argument("timer_id", metavar="ID")
@reads
@click.option("--offset", type=click.IntRange(min=0), help="of the request, where the ID has had more than one")
@click.option("--to", "file", type=_File, help="file to write  [default: standard output]")
def prove(timer_id: str, offset: int | None, file: Path | None, **given: Any) -> None:
    """
    Prove what became of the timer ID, from the lake.

    Writes a file of JSON that `kafka-timers verify` checks without Kafka and
    without the lake: that the request fired once, and with which seal; that a
    cancel or another request took it back in time; or that it waits.
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
    help="lines of `lake publish-chain`, from where nobody may write who may write seals",
)
@json_option
def verify(file: Path, published: Path | None, as_json: bool) -> None:
    """
    Check the proof in FILE, and say what it shows.

    Asks nobody. Without --published it shows that the seals in the proof say
    so, and not that these are the seals that were written: whoever could make
    seals could make the proof. Exits with 3 if it does not hold.
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
@click.option("--to", "file", type=_File, required=True, help="file to append to; made when missing")
@click.option("--check", is_flag=True, help="also compare what was published before with what the lake has now")
def publish_chain(file: Path, check: bool, **given: Any) -> None:
    """
    Publish what the seals of each past day are: a line for each partition.

    Appends the days that the file does not have yet. Keep the file where nobody
    may write who may write seals or the lake: then nobody can change the past
    unseen. With --check exits with 3 if a day is not what was published.
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
