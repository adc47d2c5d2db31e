"""`kafka-timers log`: commands that tell what a `timer-request` is that was made anew, restored, mirrored or cut."""

import json
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import click

from kafka_timers.broker.connection import Kafka
from kafka_timers.cli.options import When, json_option, on_instance
from kafka_timers.cli.running import wait_for
from kafka_timers.clock import HostClock
from kafka_timers.core.keys import FIRST_MS
from kafka_timers.core.log_identity import begun_anew, gone_on, marked_in, unsealed
from kafka_timers.core.moments import moment_at
from kafka_timers.core.wire import Sealed
from kafka_timers.errors import KafkaTimersError
from kafka_timers.operate.relog import LogState, checking_log

# The offset below which has fired what was due before a moment, that moment, and the seals that say it.
_Said = tuple[int, int, list[Sealed]]

_yes = click.option("--yes", is_flag=True, help="do not ask before it is written")


@click.group("log")
def log() -> None:
    """
    Tell what a timer-request is that was made anew, restored, mirrored or cut.

    Offsets are worth nothing on another topic, so workers leave partitions
    alone whose seals name another one, or offsets that an unclean election
    has cut off, and those whose seals are gone. Only you know what lies there:
    see `kafka-timers log show`, then say `another` or `same`.
    """


@log.command()
@on_instance
@json_option
def show(kafka: Kafka, topic_prefix: str, as_json: bool) -> None:
    """
    Show for each partition whether it is still the log that its seals are of.

    \b
    Exit codes:
      0  they are
      1  partitions stand still, until you say what lies there
    """

    async def read() -> list[LogState]:
        async with checking_log(kafka, topic_prefix, HostClock()) as found:
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

    def said(state: LogState, partitions: int) -> _Said:
        seals = state.tail.seals or [unsealed(state.number, partitions, FIRST_MS)]
        return 0, state.end_ms or FIRST_MS, begun_anew(seals, state.now)

    _say(kafka, topic_prefix, yes, said)


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
@click.option("--until", type=When(), help="where the seals are gone: all that was due before this moment has fired")
@_yes
def same(
    kafka: Kafka, topic_prefix: str, fences: Sequence[tuple[int, int]], until: datetime | float | None, yes: bool
) -> None:
    """
    Say that it has the records that it had: what has fired stays fired.

    That is so after the topic was restored with its offsets, and after an
    unclean election, for all that it has kept. If it was mirrored, its offsets
    are others: give --at for each partition. A second that was under way then
    fires whole, so some of it may come twice, as it may after an election.
    """
    at = dict(fences)

    def said(state: LogState, partitions: int) -> _Said:
        fence, seals, end_ms = at.get(state.number, None if state.is_other else state.kept_to), state.tail.seals, 0
        if not seals:
            if until is None:
                raise click.UsageError(
                    f"partition {state.number} has no seals: say with --until up to when it has fired"
                )
            end_ms = moment_at(until)
            seals = [unsealed(state.number, partitions, end_ms)]
        seals = gone_on(seals, state.now, fence, state.start)
        return state.tail.fence if fence is None else fence, state.end_ms or end_ms, seals

    _say(kafka, topic_prefix, yes, said)


def _say(kafka: Kafka, prefix: str, yes: bool, said: Callable[[LogState, int], _Said]) -> None:
    """Count what lies in the partitions that stand still, ask, and write what is *said* of each."""

    async def decide() -> None:
        async with checking_log(kafka, prefix, HostClock()) as found:
            states = [state for state in found.states if state.stands]
            if not states:
                raise KafkaTimersError("every partition is of the topic that its seals are of: nothing is to be said")
            decided = [(state, *said(state, len(found.states))) for state in states]
            for state, below, end_ms, _ in decided:
                if below > state.end:
                    raise KafkaTimersError(
                        f"partition {state.number} ends at offset {state.end}, below {below}: give --at "
                        f"{state.number} OFFSET, the offset behind the last request that has fired"
                    )
                past, due, waiting = await found.content(state, below, end_ms)
                click.echo(_line(state))
                click.echo(f"  {past:,} requests count as fired, {due:,} are due and fire at once, {waiting:,} wait")
            if not yes:
                click.confirm("is that what lies there?", abort=True, err=True)
            await found.write([(state, seals) for state, _, _, seals in decided])

    wait_for(decide())
    click.echo("workers go on with it within seconds")


def _line(state: LogState) -> str:
    fired = f"fired up to {_utc(state.end_ms)}"
    what = f"partition {state.number}: offsets {state.start} to {state.end} of topic {state.now.hex() or '?'}"
    if state.unsealed_ms:
        return f"{what}; it has no seals, and requests that were due {_utc(state.unsealed_ms)}: stands still"
    if not state.stands:
        return f"{what}, {fired if state.end_ms else 'nothing fired yet'}"
    below = f"{fired}, below offset {state.tail.fence}"
    if state.is_other:
        offset = marked_in(state.tail.log)
        other = f"topic {state.tail.log.hex()}" if offset is None else f"one with another batch at offset {offset}"
        return f"{what}; {below}, from {other}: stands still"
    return f"{what}; {below}, and it has lost its records from offset {state.kept_to} on: stands still"


def _utc(moment_ms: int) -> str:
    return f"{datetime.fromtimestamp(moment_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _document(state: LogState) -> dict[str, int | str | bool]:
    return {
        "partition": state.number,
        "topic_id": state.now.hex(),
        "sealed_topic_id": state.tail.log.hex(),
        "start": state.start,
        "end": state.end,
        "kept_to": state.kept_to,
        "fence": state.tail.fence,
        "fired_up_to_ms": state.end_ms,
        "has_seals": bool(state.tail.seals),
        "stands": state.stands,
    }


COMMANDS = (log,)
