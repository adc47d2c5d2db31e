"""
`kafka-timers list`, `next` and `ahead`: commands that show waiting timers. They ask workers that have a --query-port.
"""

import json
import shutil
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kafka_timers.cli.options import When, choice_option, count_option, given_by, json_option, options_of
from kafka_timers.cli.render import ahead_lines, printable, unknown_lines
from kafka_timers.cli.running import needs, wait_for
from kafka_timers.clock import HostClock
from kafka_timers.core.moments import second_of
from kafka_timers.core.pending import UNITS_S
from kafka_timers.core.wire import SECOND_LIMIT
from kafka_timers.settings import QuerySettings

if TYPE_CHECKING:
    from kafka_timers.operate.waiting import Page, Workers

_Answer = TypeVar("_Answer")

# How far `ahead` looks by default, in units.
_BUCKETS = {"second": 60, "minute": 60, "hour": 24}


_filters = given_by(
    click.option("--topic", help="only timers with this callback topic"),
    click.option("--key", help="only timers with this callback key"),
    click.option("--timer-id", help="only the timer with this id"),
    click.option("--id-prefix", help="only timers with an id that begins so"),
    click.option("--contains", help="only timers with this in their id, topic or key; a and A are the same"),
    click.option("--from", "start", type=When(), help="only timers that fire at this time or later"),
    click.option("--to", "end", type=When(), help="only timers that fire before this time"),
)


def _wanted(given: dict[str, Any]) -> dict[str, object]:
    """Take the options of `_filters` out of *given*, and return them as parameters of a question to workers."""
    wanted = {name: given.pop(name) for name in ("topic", "key", "timer_id", "id_prefix", "contains")}
    times = {"from": given.pop("start"), "to": given.pop("end")}
    return wanted | {name: second_of(when) for name, when in times.items() if when is not None}


def asked(given: Mapping[str, Any], question: "Callable[[Workers], Awaitable[_Answer]]") -> _Answer:
    """Return the answer to *question*, which is called with the workers that the settings *given* name."""
    with needs("cli"):
        from kafka_timers.operate.waiting import asking

    async def ask() -> _Answer:
        async with asking(QuerySettings(**given)) as workers:
            return await question(workers)

    return wait_for(ask())


def _print(timers: Sequence[Mapping[str, Any]]) -> None:
    # Not before it is needed: with rich, a command takes a fifth longer to start.
    from kafka_timers.cli.terminal import pending_table, terminal

    terminal().print(pending_table(timers))


@click.command("list")
@options_of(QuerySettings)
@_filters
@count_option("--limit", "most timers to show", default=50)
@click.option("--values", "with_values", is_flag=True, help="with --json: print values and headers too")
@json_option
def list_(limit: int, with_values: bool, as_json: bool, **given: Any) -> None:
    """
    Show waiting timers, in the order in which they fire.

    It asks the workers: start them with --query-port. They find a range of
    time, a timer id and a prefix of few ids at once. For any other filter they
    look at all their timers, for 1.5 s at a time.

    With --json, it prints each timer on a line as soon as it is known.

    \b
    Exit codes:
      0  all partitions have answered
      1  a partition could not be asked, or timers may be missing since the
         lake is behind; the standard error says which
    """
    wanted = _wanted(given)
    shown: list[Mapping[str, Any]] = []
    unknown: dict[int, str] = {}
    lake = ""

    async def show(workers: "Workers") -> bool:
        nonlocal lake
        has_more = False
        async for page in workers.pages(limit, with_values=with_values, **wanted):
            lake = page.lake
            unknown.update(page.unknown)
            has_more = bool(page.after)
            for timer in page.timers:
                if as_json:
                    click.echo(json.dumps(timer))
                else:
                    shown.append(timer)
        return has_more

    has_more = asked(given, show)
    if not as_json:
        if shown:
            _print(shown)
        elif not unknown:
            click.echo("no such timer waits")
        if has_more:
            click.echo(f"and more: give a --limit above {limit}", err=True)
    say_missing(unknown, lake)


@click.command("next")
@options_of(QuerySettings)
@_filters
@json_option
def next_(as_json: bool, **given: Any) -> None:
    """
    Show the timer that fires next.

    It asks the workers, as `kafka-timers list` does.

    \b
    Exit codes:
      0  a timer waits
      1  a partition could not be asked, or timers may be missing since the
         lake is behind; the standard error says which
      4  no such timer waits
    """
    wanted = _wanted(given)

    async def first(workers: "Workers") -> "Page":
        after = ""
        while True:
            page = await workers.page(1, with_values=as_json, after=after or None, **wanted)
            after = page.after
            if page.timers or not after:
                return page

    page = asked(given, first)
    timer = next(iter(page.timers), None)
    if as_json:
        click.echo(json.dumps(timer))
    elif timer:
        _print([timer])
    elif not page.unknown:
        click.echo("no such timer waits")
    say_missing(page.unknown, page.lake)
    sys.exit(0 if timer else 4)


@click.command()
@options_of(QuerySettings)
@choice_option("--unit", UNITS_S, "length of time that a bar stands for", "minute")
@click.option("--from", "start", type=When(), help="begin of the time to show  [default: now]")
@click.option("--to", "end", type=When(), help="end of the time to show  [default: a minute, an hour or a day later]")
@json_option
def ahead(unit: str, start: datetime | int | None, end: datetime | int | None, as_json: bool, **given: Any) -> None:
    """
    Show how many timers wait, by second, minute or hour.

    It asks the workers: start them with --query-port. A timer that is late
    already counts at the moment from which it may fire. It exits with 1 if a
    partition could not be asked, or timers may be missing since the lake is
    behind.
    """
    unit_s = UNITS_S[unit]
    from_s = int(HostClock().wall_s()) if start is None else second_of(start)
    from_s -= from_s % unit_s
    to_s = min(from_s + _BUCKETS[unit] * unit_s if end is None else second_of(end), SECOND_LIMIT)
    if to_s <= from_s:
        raise click.UsageError("--to is to be later than --from")

    found = asked(given, lambda workers: workers.ahead(from_s, to_s, unit))
    if as_json:
        counts = [{"second": second, "count": count} for second, count in found.counts.items()]
        click.echo(json.dumps({"unit": unit, "from": from_s, "to": to_s, "cut": found.is_cut, "counts": counts}))
    else:
        for line in ahead_lines(found.counts, unit_s, shutil.get_terminal_size().columns):
            click.echo(line)
        if found.is_cut:
            click.echo("there was no time to count all of them: ask for a shorter time", err=True)
    say_missing(found.unknown, found.lake)


def say_missing(unknown: Mapping[int, str], lake: str) -> None:
    """
    Print why timers may be missing in an answer, and exit with 1 if some may.

    Args:
        unknown: the reason by partition, for partitions that could not be asked.
        lake: the problem of the lake; empty without one.
    """
    lines = [*unknown_lines(unknown), *([lake] if lake else [])]
    for line in lines:
        click.secho(printable(line.encode()), fg="red", err=True)
    if lines:
        sys.exit(1)


COMMANDS = (list_, next_, ahead)
