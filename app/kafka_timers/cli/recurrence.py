"""`kafka-timers schedule`: recurring timers. It reads and writes `timer-schedule`; planners do the rest."""

import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource
from google.protobuf.json_format import MessageToDict
from rich.table import Table
from rich.text import Text

from kafka_timers.broker.connection import Kafka
from kafka_timers.cli.asking import with_client
from kafka_timers.cli.options import (
    Delay,
    When,
    content_of,
    content_options,
    count_option,
    given_by,
    json_option,
    on_instance,
)
from kafka_timers.cli.render import printable
from kafka_timers.cli.running import needs
from kafka_timers.cli.terminal import terminal
from kafka_timers.client.times import At, Cron, Every, Times
from kafka_timers.errors import ScheduleError

if TYPE_CHECKING:
    from kafka_timers.client.recurring import Recurring, Schedules

_Answer = TypeVar("_Answer")


@click.group()
def schedule() -> None:
    """Put, show, pause and delete recurring timers."""


_on_schedule = given_by(click.argument("schedule_id", metavar="ID"), on_instance)


def _with_schedules(kafka: Kafka, topic_prefix: str, question: "Callable[[Schedules], Awaitable[_Answer]]") -> _Answer:
    with needs("schedules"):
        import kafka_timers.client.recurring  # noqa: F401  # says which extra is missing
    return with_client(kafka, topic_prefix, lambda client: question(client.schedules))


# Those of times, each with the kind of times that it belongs to.
_OF_TIMES = {"zone": "--cron", "gap": "--cron", "overlap": "--cron", "anchor": "--every"}
_schedule_options = given_by(
    click.option("--cron", help="minute, hour, day of month, month, day of week; or six fields, with the second first"),
    click.option("--zone", help="IANA time zone in which --cron is read  [default: UTC]"),
    click.option(
        "--gap", type=click.Choice(["default", "at-jump", "skip"]),
        help="a local time that the clocks jump over: run when they jump, or not at all",
    ),
    click.option(
        "--overlap", type=click.Choice(["default", "first", "both"]),
        help="a local time that comes twice: run the first time, or both times",
    ),
    click.option("--every", "every_ms", type=Delay(), help="time between two runs, as 30s or 6h"),
    click.option("--anchor", type=When(), help="a moment at which --every has a run  [default: the UNIX epoch]"),
    click.option(
        "--at", "moments", type=When(), multiple=True, help="moment of a run: ISO 8601 or UNIX seconds; repeatable"
    ),
    click.option(
        "--except", "except_dates", multiple=True, help="day without runs, as 2026-12-25, by --zone; repeatable"
    ),
    click.option("--start", type=When(), help="no run is before it"),
    click.option("--end", type=When(), help="no run is at it or later"),
    count_option("--runs", "runs at most"),
    click.option("--jitter", type=Delay(), help="each run is up to so much later"),
    click.option(
        "--catch-up", type=click.Choice(["last", "all", "none"]),
        help="missed runs to make up for, after a time without a planner  [default: last]",
    ),
    click.option(
        "--catch-up-window", type=Delay(),
        help="runs that were missed longer ago are never made up for  [default: 1d]",
    ),
    click.option("--note", help="a note for people"),
)  # fmt: skip


@schedule.command()
@_on_schedule
@_schedule_options
@click.option("--paused/--running", default=None, help="pause or resume it  [default: as it is]")
@content_options("topic of the callbacks; it must exist")
@json_option
def put(schedule_id: str, kafka: Kafka, topic_prefix: str, as_json: bool, paused: bool | None, **given: Any) -> None:
    """
    Have a callback come again and again, under the name ID.

    Give one of --cron, --every and --at. A schedule of the same ID is
    replaced; that counts for the runs that are due in more than 5 s. If it is
    paused, it stays so.

    Each run is a timer with the id ID@INSTANT, as report@2030-01-31T12:00:00Z,
    which `find`, `cancel` and `move` take.
    """
    times = _times_of(given)
    if times is None:
        raise click.UsageError("give one of --cron, --every and --at")
    options = _given(content_of(given))

    async def ask(schedules: "Schedules") -> "Recurring | None":
        await schedules.put(schedule_id, times, paused=paused, **options)
        return await schedules.get(schedule_id)

    if found := _with_schedules(kafka, topic_prefix, ask):
        _show(found, as_json)


@schedule.command()
@_on_schedule
@_schedule_options
@content_options("topic of the callbacks", needs_topic=False)
@json_option
def change(schedule_id: str, kafka: Kafka, topic_prefix: str, as_json: bool, **given: Any) -> None:
    """
    Change what you give of a schedule; all else stays.

    That counts for the runs that are due in more than 5 s.
    """
    times, source = _times_of(given), click.get_current_context().get_parameter_source
    has_value = any(source(name) is ParameterSource.COMMANDLINE for name in ("value", "tombstone"))
    options = _given(content_of(given))
    if not has_value:
        del options["value"]
    if times is None and not options:
        raise click.UsageError("give what is to change")
    _show(
        _with_schedules(kafka, topic_prefix, lambda schedules: schedules.change(schedule_id, times, **options)), as_json
    )


@schedule.command("list")
@on_instance
@click.option("--id-prefix", default="", help="only those whose id begins so")
@json_option
def list_(kafka: Kafka, topic_prefix: str, id_prefix: str, as_json: bool) -> None:
    """Show schedules, by id. Reads all of timer-schedule."""
    found = _with_schedules(kafka, topic_prefix, lambda schedules: schedules.list(id_prefix))
    if as_json:
        click.echo(json.dumps([_document(each) for each in found]))
        return
    if not found:
        click.echo("no schedules")
        return
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for title in ("id", "runs", "topic", "next run", "note"):
        table.add_column(title, overflow="fold")
    for each in found:
        # As Text, or an id could be taken for markup.
        texts = (each.schedule_id, each.times, each.topic, _next_text(each), each.note)
        table.add_row(*(Text(printable(text.encode())) for text in texts))
    terminal().print(table)


@schedule.command()
@_on_schedule
@json_option
def show(schedule_id: str, kafka: Kafka, topic_prefix: str, as_json: bool) -> None:
    """Show a schedule. Exits with 4 if there is none of this ID."""
    found = _with_schedules(kafka, topic_prefix, lambda schedules: schedules.get(schedule_id))
    if found is None:
        click.echo(f"there is no schedule {printable(schedule_id.encode())}", err=True)
        raise click.exceptions.Exit(4)
    _show(found, as_json)


@schedule.command()
@_on_schedule
@click.option("--note", default="", help="why, for people")
@json_option
def pause(schedule_id: str, kafka: Kafka, topic_prefix: str, note: str, as_json: bool) -> None:
    """
    Have a schedule run no more until you resume it.

    Runs in the pause are never made up for.
    """
    _show(_with_schedules(kafka, topic_prefix, lambda schedules: schedules.pause(schedule_id, note)), as_json)


@schedule.command()
@_on_schedule
@json_option
def resume(schedule_id: str, kafka: Kafka, topic_prefix: str, as_json: bool) -> None:
    """Have a paused schedule run again."""
    _show(_with_schedules(kafka, topic_prefix, lambda schedules: schedules.resume(schedule_id)), as_json)


@schedule.command()
@_on_schedule
@click.option("--undo", is_flag=True, help="bring back all runs that were left out")
@json_option
def skip(schedule_id: str, kafka: Kafka, topic_prefix: str, undo: bool, as_json: bool) -> None:
    """Leave out the next run that is due in more than 5 s."""

    async def ask(schedules: "Schedules") -> "Recurring | None":
        if undo:
            return await schedules.unskip(schedule_id)
        run = await schedules.skip(schedule_id)
        if not as_json:
            click.echo(f"leaves out {_moment(run.instant)}")
        return await schedules.get(schedule_id)

    if found := _with_schedules(kafka, topic_prefix, ask):
        _show(found, as_json)


@schedule.command()
@_on_schedule
def run(schedule_id: str, kafka: Kafka, topic_prefix: str) -> None:
    """Have a run fire at once, besides those that the schedule has."""
    timer = _with_schedules(kafka, topic_prefix, lambda schedules: schedules.run_now(schedule_id))
    click.echo(f"fires at once, timer id {printable((timer.timer_id or '').encode())}, request {timer.request}")


@schedule.command()
@_on_schedule
def delete(schedule_id: str, kafka: Kafka, topic_prefix: str) -> None:
    """
    Delete a schedule.

    Its runs that are more than 5 s ahead do not fire.
    """
    _with_schedules(kafka, topic_prefix, lambda schedules: schedules.delete(schedule_id))
    click.echo(f"deleted {printable(schedule_id.encode())}")


@schedule.command("next")
@_on_schedule
@click.option("--count", type=click.IntRange(1, 1000), default=5, show_default=True, help="runs to show")
@json_option
def next_(schedule_id: str, kafka: Kafka, topic_prefix: str, count: int, as_json: bool) -> None:
    """
    Show the next runs of a schedule, by the clocks of its own time zone.

    A line tells where the clocks change between two runs.
    """
    runs = _with_schedules(kafka, topic_prefix, lambda schedules: schedules.next(schedule_id, count))
    if as_json:
        click.echo(
            json.dumps(
                [
                    {"instant": run.instant.isoformat(), "due": run.due.isoformat(), "timer_id": run.timer_id}
                    for run in runs
                ]
            )
        )
        return
    if not runs:
        click.echo("no more runs")
    before = None
    for run in runs:
        offset = run.instant.utcoffset()
        if before is not None and offset != before:
            hours = abs((offset or timedelta()) - before)
            click.echo(f"  the clocks go {'forward' if (offset or timedelta()) > before else 'back'} by {hours}")
        before = offset
        later_s = (run.due - run.instant).total_seconds()
        due = f"  due {later_s:g} s later" if later_s else ""
        click.echo(f"{run.instant.isoformat(sep=' ')}  {run.instant.tzname()}{due}")


def _times_of(given: dict[str, Any]) -> Times | None:
    """Take the options for the times of a schedule out of *given*, and return the times; None if there are none."""
    cron, every_ms, moments = (given.pop(name) for name in ("cron", "every_ms", "moments"))
    has = {"--cron": cron is not None, "--every": every_ms is not None, "--at": bool(moments)}
    if sum(has.values()) > 1:
        raise click.UsageError("give one of --cron, --every and --at")
    options = {name: value for name in _OF_TIMES if (value := given.pop(name)) is not None}
    for name in options:
        if not has[_OF_TIMES[name]]:
            raise click.UsageError(f"--{name} has no effect without {_OF_TIMES[name]}")
    if cron is not None:
        return Cron(cron, **options)
    if every_ms is not None:
        return Every(timedelta(milliseconds=every_ms), **options)
    return At(moments) if moments else None


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """Return those of *options* that were given, with durations as timedeltas."""
    for name in ("jitter", "catch_up_window"):
        if options[name] is not None:
            options[name] = timedelta(milliseconds=options[name])
    return {name: value for name, value in options.items() if value not in (None, ()) or name == "value"}


def _moment(when: datetime) -> str:
    return f"{when.isoformat(sep=' ')} {when.tzname()}"


def _next_text(found: "Recurring") -> str:
    if found.paused:
        return "paused" + (f": {found.hold.note}" if found.hold.note else "")
    try:
        runs = found.next(1)
    except ScheduleError as error:
        return f"cannot be planned: {error}"
    return _moment(runs[0].due) if runs else "no more runs"


def _show(found: "Recurring", as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(_document(found)))
        return
    facts = {
        "schedule": found.schedule_id,
        "runs": found.times,
        "topic": found.topic,
        "key": "-" if found.key is None else found.key.decode(errors="replace"),
        "next run": _next_text(found),
    }
    if found.note:
        facts["note"] = found.note
    with suppress(ScheduleError):
        if skips := found.skips:
            facts["skips"] = ", ".join(map(_moment, skips))
    for name, text in facts.items():
        click.echo(f"{name:<9}  {printable(text.encode())}")


def _document(found: "Recurring") -> dict[str, Any]:
    """Return *found* as JSON has it, its message by protobuf's own rules."""
    message = MessageToDict(found.message, preserving_proto_field_name=True)
    hold = MessageToDict(found.hold, preserving_proto_field_name=True)
    return {
        "schedule_id": found.schedule_id,
        "times": found.times,
        "paused": found.paused,
        "hold": hold,
        "schedule": message,
    }


COMMANDS = (schedule,)
