"""`kafka-timers schedule`: recurring timers. It reads and writes `timer-schedule`; planners do the rest."""

import json
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click
from google.protobuf.json_format import MessageToDict
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kafka_timers.broker.connection import Kafka
from kafka_timers.cli.asking import with_client
from kafka_timers.cli.options import (
    Delay,
    When,
    choice_option,
    content_of,
    content_options,
    count_option,
    given_by,
    json_option,
    on_instance,
)
from kafka_timers.cli.render import printable
from kafka_timers.cli.running import needs
from kafka_timers.client.times import At, Cron, Every, Times

if TYPE_CHECKING:
    from kafka_timers.client.recurring import Recurring, Schedules

_Answer = TypeVar("_Answer")


@click.group()
def schedule() -> None:
    """Put, show, pause and delete recurring timers."""


_on_schedule = given_by(click.argument("schedule_id", metavar="ID"), on_instance)
_note = click.option("--note", default="", help="a note for people  [default: the one that it has]")


def _with_schedules(kafka: Kafka, topic_prefix: str, question: "Callable[[Schedules], Awaitable[_Answer]]") -> _Answer:
    with needs("schedules"):
        import kafka_timers.client.recurring  # noqa: F401  # says which extra is missing
    return with_client(kafka, topic_prefix, lambda client: question(client.schedules))


@schedule.command()
@_on_schedule
@click.option("--cron", help="minute, hour, day of month, month, day of week; or six fields, with the second first")
@click.option("--zone", default="UTC", show_default=True, help="IANA time zone in which --cron is read")
@click.option("--every", "every_ms", type=Delay(), help="time between two runs, as 30s or 6h")
@click.option("--anchor", type=When(), help="a moment at which --every has a run  [default: the UNIX epoch]")
@click.option(
    "--at", "moments", type=When(), multiple=True, help="moment of a run: ISO 8601 or UNIX seconds; repeatable"
)
@click.option("--start", type=When(), help="no run is before it  [default: now]")
@click.option("--end", type=When(), help="no run is at it or later  [default: none]")
@count_option("--runs", "runs at most  [default: no limit]")
@click.option(
    "--jitter", "jitter_ms", type=Delay(), default="0s", show_default=True, help="each run is up to so much later"
)
@choice_option(
    "--catch-up", ("last", "all", "none"), "missed runs to make up for, after a time without a planner", "last"
)
@click.option(
    "--catch-up-window", "window_ms", type=Delay(), default="1d", show_default=True,
    help="runs that were missed longer ago are never made up for",
)  # fmt: skip
@choice_option(
    "--gap",
    ("default", "at-jump", "skip"),
    "a local time that the clocks jump over: run when they jump, or not at all",
    "default",
)
@choice_option(
    "--overlap",
    ("default", "first", "both"),
    "a local time that comes twice: run the first time, or both times",
    "default",
)
@click.option("--paused", is_flag=True, help="have no runs until `schedule resume`")
@click.option("--note", default="", help="a note for people")
@content_options("topic of the callbacks; it must exist")
@json_option
def put(
    schedule_id: str,
    kafka: Kafka,
    topic_prefix: str,
    as_json: bool,
    jitter_ms: int,
    window_ms: int,
    **given: Any,
) -> None:
    """
    Have a callback come again and again, under the name ID.

    Give one of --cron, --every and --at. A schedule of the same ID is
    replaced; that counts for the runs that are more than 5 s ahead.

    Each run is a timer with the id ID@INSTANT, as report@2030-01-31T12:00:00Z,
    which `find`, `cancel` and `move` take.
    """
    times = _times_of(given)
    given["jitter"] = timedelta(milliseconds=jitter_ms)
    given["catch_up_window"] = timedelta(milliseconds=window_ms)
    content = content_of(given)
    found = _with_schedules(kafka, topic_prefix, lambda schedules: schedules.put(schedule_id, times, **content))
    _show(found, as_json)


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
    Console().print(table)


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
@_note
@json_option
def pause(schedule_id: str, kafka: Kafka, topic_prefix: str, note: str, as_json: bool) -> None:
    """
    Have a schedule run no more until you resume it.

    Runs in the pause are never made up for.
    """
    _show(_with_schedules(kafka, topic_prefix, lambda schedules: schedules.pause(schedule_id, note)), as_json)


@schedule.command()
@_on_schedule
@_note
@json_option
def resume(schedule_id: str, kafka: Kafka, topic_prefix: str, note: str, as_json: bool) -> None:
    """Have a paused schedule run again."""
    _show(_with_schedules(kafka, topic_prefix, lambda schedules: schedules.resume(schedule_id, note)), as_json)


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
        click.echo(json.dumps([run.isoformat() for run in runs]))
        return
    if not runs:
        click.echo("no more runs")
    before = None
    for run in runs:
        offset = run.utcoffset()
        if before is not None and offset != before:
            hours = abs((offset or timedelta()) - before)
            click.echo(f"  the clocks go {'forward' if (offset or timedelta()) > before else 'back'} by {hours}")
        before = offset
        click.echo(f"{run.isoformat(sep=' ')}  {run.tzname()}")


def _times_of(given: dict[str, Any]) -> Times:
    """Take the options for the times of a schedule out of *given*, and return the times."""
    zone, gap, overlap, anchor = (given.pop(name) for name in ("zone", "gap", "overlap", "anchor"))
    cron, every_ms, moments = (given.pop(name) for name in ("cron", "every_ms", "moments"))
    if sum((cron is not None, every_ms is not None, bool(moments))) != 1:
        raise click.UsageError("give one of --cron, --every and --at")
    if cron is not None:
        return Cron(cron, zone, gap, overlap)
    return At(moments) if moments else Every(timedelta(milliseconds=every_ms), anchor)


def _next_text(found: "Recurring") -> str:
    if found.paused:
        return "paused"
    runs = found.next(1)
    return f"{runs[0].isoformat(sep=' ')} {runs[0].tzname()}" if runs else "no more runs"


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
    for name, text in facts.items():
        click.echo(f"{name:<9}  {printable(text.encode())}")


def _document(found: "Recurring") -> dict[str, Any]:
    """Return *found* as JSON has it, its message by protobuf's own rules."""
    message = MessageToDict(found.message, preserving_proto_field_name=True)
    return {"schedule_id": found.schedule_id, "times": found.times, "paused": found.paused, "schedule": message}
