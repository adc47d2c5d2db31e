"""`kafka-timers log`: commands that tell what a `timer-request` is that was made anew, restored or mirrored."""

import json
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import click

from kafka_timers.broker.connection import Kafka
from kafka_timers.cli.options import json_option, on_instance
from kafka_timers.cli.running import wait_for
from kafka_timers.core.log_identity import begun_anew, gone_on
from kafka_timers.core.wire import Sealed
from kafka_timers.errors import KafkaTimersError
from kafka_timers.operate.relog import LogState, checking_log

# The offset below which what was due has fired, and the seals that say it.
_Said = tuple[int, list[Sealed]]

_yes = click.option("--yes", is_flag=True, help="do not ask before it is written")


@click.group("log")
def log() -> None:
    """
    Tell what a timer-request is that was made anew, restored or mirrored.

    Offsets are worth nothing on another topic, so workers leave partitions
    alone whose seals name another one. Only you know what lies there: see
    `kafka-timers log show`, then say `another` or `same`.
    """


@log.command()
@on_instance
@json_option
def show(kafka: Kafka, topic_prefix: str, as_json: bool) -> None:
    """
    Show for each partition the topic that its seals are of, and the one there.

    \b
    Exit codes:
      0  they are the same
      1  partitions stand still, until you say what lies there
    """

    async def read() -> list[LogState]:
        async with checking_log(kafka, topic_prefix) as found:
            return found.states

    states = wait_for(read())
    if as_json:
        click.echo(json.dumps([_document(state) for state in states]))
    else:
        click.echo("\n".join(map(_line, states)))
    sys.exit(any(state.stands for state in states))


@log.command()
@on_instance
@_yes
def another(kafka: Kafka, topic_prefix: str, yes: bool) -> None:
    """
    Say that nothing of it has fired: what lies there is due by its own time.

    That is so after the topic was deleted and made anew. Requests whose time
    is past fire at once. Pending timers of the former topic are gone with it.
    """
    _say(kafka, topic_prefix, yes, lambda state: (0, begun_anew(state.tail.seals, state.now)))


@log.command()
@on_instance
@click.option(
    "--at",
    "fences",
    type=(int, int),
    multiple=True,
    metavar="PARTITION OFFSET",
    help="all below this offset that was due by the last seal has fired; repeatable  [default: the old offsets count]",
)
@_yes
def same(kafka: Kafka, topic_prefix: str, fences: Sequence[tuple[int, int]], yes: bool) -> None:
    """
    Say that it has the records that it had: what has fired stays fired.

    That is so after the topic was restored with its offsets. If it was
    mirrored, its offsets are others: give --at for each partition. A second
    that was under way then fires whole, so some of it may come twice.
    """
    at = dict(fences)

    def said(state: LogState) -> _Said:
        seals = gone_on(state.tail.seals, state.now, at.get(state.number), state.start)
        return at.get(state.number, state.tail.fence), seals

    _say(kafka, topic_prefix, yes, said)


def _say(kafka: Kafka, prefix: str, yes: bool, said: Callable[[LogState], _Said]) -> None:
    """Count what lies in the partitions that stand still, ask, and write what is *said* of each."""

    async def decide() -> None:
        async with checking_log(kafka, prefix) as found:
            states = [state for state in found.states if state.stands]
            if not states:
                raise KafkaTimersError("every partition is of the topic that its seals are of: nothing is to be said")
            decided = [(state, *said(state)) for state in states]
            for state, below, _ in decided:
                if below > state.end:
                    raise KafkaTimersError(
                        f"partition {state.number} ends at offset {state.end}, below {below}: give --at "
                        f"{state.number} OFFSET, the offset behind the last request that has fired"
                    )
                past, due, waiting = await found.content(state, below)
                click.echo(_line(state))
                click.echo(f"  {past:,} requests count as fired, {due:,} are due and fire at once, {waiting:,} wait")
            if not yes:
                click.confirm("is that what lies there?", abort=True, err=True)
            await found.write([(state, seals) for state, _, seals in decided])

    wait_for(decide())
    click.echo("workers go on with it within seconds")


def _line(state: LogState) -> str:
    fired = f"fired up to {datetime.fromtimestamp(state.end_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    what = f"partition {state.number}: offsets {state.start} to {state.end} of topic {state.now.hex() or '?'}"
    if not state.stands:
        return f"{what}, {fired if state.end_ms else 'nothing fired yet'}"
    return f"{what}; {fired}, below offset {state.tail.fence}, from topic {state.tail.log.hex()}: stands still"


def _document(state: LogState) -> dict[str, int | str | bool]:
    return {
        "partition": state.number,
        "topic_id": state.now.hex(),
        "sealed_topic_id": state.tail.log.hex(),
        "start": state.start,
        "end": state.end,
        "fence": state.tail.fence,
        "fired_up_to_ms": state.end_ms,
        "stands": state.stands,
    }
