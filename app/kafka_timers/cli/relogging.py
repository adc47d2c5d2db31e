"""`kafka-timers log`: commands that tell what a `timer-request` is that was made anew, restored or mirrored."""

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import click

from kafka_timers.broker.connection import Kafka
from kafka_timers.cli.options import json_option, on_instance
from kafka_timers.cli.running import wait_for
from kafka_timers.errors import KafkaTimersError
from kafka_timers.operate.relog import Content, LogState, checking_log

_GOES_ON = "workers go on with it within seconds"

_yes = click.option("--yes", is_flag=True, help="do not ask before it is written")


class _Fence(click.ParamType):
    """An offset in a partition."""

    name = "partition:offset"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """Return partition and offset."""
        number, _, offset = str(value).partition(":")
        if not (number.isdecimal() and offset.isdecimal()):
            self.fail(f"{value!r}: give a partition, : and an offset, as 0:4711", param, ctx)
        return int(number), int(offset)


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
        for state in states:
            click.echo(_line(state))
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

    async def decide() -> None:
        async with checking_log(kafka, topic_prefix) as found:
            states = _standing(found.states)
            for state in states:
                _tell(state, await found.content(state, 0))
            _confirm(yes, "does it hold requests of which none has fired?")
            await found.is_another(states)

    wait_for(decide())
    click.echo(_GOES_ON)


@log.command()
@on_instance
@click.option(
    "--at",
    "fences",
    type=_Fence(),
    multiple=True,
    help="offset below which all that was due by the last seal has fired; repeatable  [default: the old offsets count]",
)
@_yes
def same(kafka: Kafka, topic_prefix: str, fences: Sequence[tuple[int, int]], yes: bool) -> None:
    """
    Say that it has the records that it had: what has fired stays fired.

    That is so after the topic was restored with its offsets. If it was
    mirrored, its offsets are others: give --at for each partition. A second
    that was under way then fires whole, so some of it may come twice.
    """

    async def decide() -> None:
        async with checking_log(kafka, topic_prefix) as found:
            states, at = _standing(found.states), dict(fences)
            for state in states:
                fence = at.get(state.number, state.fence)
                if fence > state.end:
                    raise KafkaTimersError(
                        f"partition {state.number} ends at offset {state.end}, below {fence}: give --at "
                        f"{state.number}:OFFSET, the offset behind the last request that has fired"
                    )
                _tell(state, await found.content(state, fence))
            _confirm(yes, "does it hold the records that it had?")
            await found.is_same(states, at)

    wait_for(decide())
    click.echo(_GOES_ON)


def _standing(states: Sequence[LogState]) -> list[LogState]:
    if standing := [state for state in states if state.stands]:
        return standing
    raise KafkaTimersError("all partitions are of the topic that their seals are of: there is nothing to decide")


def _confirm(yes: bool, question: str) -> None:
    if not yes:
        click.confirm(question, abort=True, err=True)


def _tell(state: LogState, content: Content) -> None:
    click.echo(_line(state))
    click.echo(
        f"  {content.past:,} requests count as fired, {content.due:,} are due and fire at once, "
        f"{content.waiting:,} wait"
    )


def _line(state: LogState) -> str:
    fired = (
        f"fired up to {datetime.fromtimestamp(state.end_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC" if state.end_ms else ""
    )
    what = f"partition {state.number}: offsets {state.start} to {state.end} of topic {state.now.hex() or '?'}"
    if not state.stands:
        return f"{what}, {fired or 'nothing fired yet'}"
    return f"{what}; {fired}, below offset {state.fence}, from topic {state.was.hex()}: stands still"


def _document(state: LogState) -> dict[str, Any]:
    return {
        "partition": state.number,
        "topic_id": state.now.hex(),
        "sealed_topic_id": state.was.hex(),
        "start": state.start,
        "end": state.end,
        "fence": state.fence,
        "fired_up_to_ms": state.end_ms,
        "stands": state.stands,
    }
