"""
The command line: starts the service's processes, makes and checks its topics, and looks at what it does.

Options of a process are the fields of its settings. A command imports what it runs when it runs, so that help costs
neither Faust nor RocksDB and a machine without them still has the other commands. docs/cli.md is made of the help.
"""

import asyncio
import base64
import dataclasses
import functools
import json
import logging
import math
import re
import shlex
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from kafka_timers import __version__
from kafka_timers.broker.connection import Kafka
from kafka_timers.clock import HostClock
from kafka_timers.core.wire import EXPIRY_HEADER, ID_HEADER, REQUEST_HEADER, SECOND_LIMIT, TOKEN_HEADER
from kafka_timers.environment import env_name
from kafka_timers.errors import KafkaTimersError, TopicsError
from kafka_timers.operate.acls import PROCESSES, acls_of
from kafka_timers.settings import DevSettings, OscillatorSettings, WorkerSettings, bounds_of, objection

if TYPE_CHECKING:
    from aiokafka import ConsumerRecord

    from kafka_timers.client.request import Answer, Timer
    from kafka_timers.core.outcomes import Outcome
    from kafka_timers.operate.status import PartitionStatus

__all__ = ["Delay", "When", "log_to_stderr", "main", "needs", "options_of", "program"]

_Command = TypeVar("_Command", bound=Callable[..., Any])
_T = TypeVar("_T")

# What `cancel`, `move` and `send --if-absent` exit with, by the outcome.
_EXIT_CODES = {"CANCELLED": 0, "MOVED": 0, "ACCEPTED": 0, "TOO_LATE": 3, "UNKNOWN": 4, "IGNORED": 5}

_UNITS_S = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}


class _Program(click.Group):
    """The program; whatever kafka-timers raises on purpose becomes one line and exit code 1."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), "lake"])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "lake":
            # Its module takes from this one what all commands share.
            from kafka_timers.cli.lake import lake

            return lake
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KafkaTimersError as error:
            click.secho(f"Error: {error}", fg="red", err=True)
            ctx.exit(1)


class _Listed(click.ParamType):
    """One item of a comma separated list, which the environment holds as a whole."""

    name = "text"
    envvar_list_splitter = ","


class Delay(click.ParamType):
    """A duration, as 3s or 1h30m; gives seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the seconds that *value* stands for."""
        try:
            return delay_s_of(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class When(click.ParamType):
    """A point in time, in ISO 8601 or UNIX seconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime | int:
        """Return the point in time that *value* names."""
        try:
            return when_of(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class _HeaderPair(click.ParamType):
    name = "name=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, bytes]:
        name, equals, text = value.partition("=")
        if not name or not equals:
            self.fail(f"{value!r} is not name=value", param, ctx)
        return name, _bytes_of(text)


def delay_s_of(text: str) -> int:
    """
    Return the seconds that *text* stands for: days, hours, minutes and seconds in this order, as 3s, 5m or 1h30m.

    Raises:
        ValueError: *text* is not of this form.
    """
    parts = re.fullmatch(r"(?=.)" + "".join(rf"(?:([0-9]{{1,9}}){unit})?" for unit in _UNITS_S), text)
    if parts is None:
        raise ValueError(f"{text!r} is not a duration: give days, hours, minutes, seconds, as 3s, 5m, 1h30m or 2d")
    return sum(int(part or 0) * unit_s for part, unit_s in zip(parts.groups(), _UNITS_S.values(), strict=True))


def when_of(text: str) -> datetime | int:
    """
    Return the point in time that *text* names: an aware datetime from ISO 8601, or UNIX seconds from digits.

    Raises:
        ValueError: *text* is neither, has no zone, or counts milliseconds.
    """
    if re.fullmatch("[0-9]+", text):
        if len(text) > 12 or int(text) >= SECOND_LIMIT:
            raise ValueError(f"{text} is too large for UNIX seconds: are these milliseconds?")
        return int(text)
    try:
        when = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is neither ISO 8601, as 2030-01-31T12:00:00Z, nor UNIX seconds") from error
    if when.tzinfo is None:
        raise ValueError(f"{text!r} has no zone: add Z for UTC, or an offset as +02:00")
    return when


def options_of(settings: type, *only: str) -> Callable[[_Command], _Command]:
    """Return a decorator that gives a command one option per field of *settings*, or per field named in *only*."""

    def decorate(command: _Command) -> _Command:
        for field in reversed(dataclasses.fields(settings)):
            if not only or field.name in only:
                command = _option(field)(command)
        return command

    return decorate


def _option(field: "dataclasses.Field[Any]") -> Callable[[_Command], _Command]:
    choices, is_list = field.metadata["choices"], field.metadata["is_list"]

    def judged(_context: click.Context, _option: click.Parameter, given: Any) -> Any:
        # Here too, since some commands take single options and make no settings of them.
        value = ",".join(given) if is_list else given
        if wrong := objection(field, value):
            raise click.BadParameter(f"{value!r}: {wrong}")
        return value

    bounds = "" if choices else bounds_of(field)
    return click.option(
        f"--{field.name.replace('_', '-')}",
        field.name,
        type=click.Choice(choices) if choices else _Listed() if is_list else type(field.default),
        multiple=is_list,
        callback=judged,
        is_flag=isinstance(field.default, bool),
        default=() if is_list else field.default,
        show_default=True,
        envvar=env_name(field.name),
        show_envvar=True,
        help=field.metadata["help"] + ("; repeatable" if is_list else "") + (f" ({bounds})" if bounds else ""),
    )


def _on_kafka(command: _Command) -> _Command:
    """Give a command the options that say where Kafka is; it takes them as `kafka`."""

    @functools.wraps(command)
    def with_kafka(*, bootstrap: str, kafka_config: str, **given: Any) -> Any:
        return command(kafka=Kafka.of(bootstrap, kafka_config), **given)

    return options_of(WorkerSettings, "bootstrap", "kafka_config")(with_kafka)  # type: ignore[return-value]


def _where(command: _Command) -> _Command:
    return _on_kafka(options_of(WorkerSettings, "topic_prefix")(command))


_json = click.option("--json", "as_json", is_flag=True, help="print JSON instead of text")


@click.group(cls=_Program, context_settings={"max_content_width": 80, "help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kafka-timers")
def program() -> None:
    """
    Durable timers on Kafka: publish a Future, get a callback in its second.

    Start with `kafka-timers dev`, which brings a Kafka along. An option whose
    help names an environment variable may also be set by it; the option wins.
    """


@program.command()
@options_of(DevSettings)
def dev(**given: Any) -> None:
    """
    Run everything here: Kafka, two oscillators and a worker.

    With --lake also `lake land` and `lake promote`, each with a Spark of its
    own, which take a gigabyte of memory each.
    """
    with needs("dev"):
        from kafka_timers.dev.run import run
    settings = DevSettings(**given)
    if settings.lake:
        with needs("lake"):
            import pyspark  # noqa: F401  # its processes would end at once, in a log
    sys.exit(run(settings))


@program.command()
@options_of(WorkerSettings)
def worker(**given: Any) -> None:
    """Run a worker, which fires timers; several share the work."""
    with needs("worker"):
        from kafka_timers.worker.process import run
    settings = WorkerSettings(**given)
    log_to_stderr(settings.log_level)
    sys.exit(run(settings))


@program.command()
@options_of(OscillatorSettings)
def oscillator(**given: Any) -> None:
    """Run an oscillator, which writes one tick per second."""
    with needs("oscillator"):
        from kafka_timers_oscillator.main import run
    settings = OscillatorSettings(**given)
    log_to_stderr(settings.log_level)
    sys.exit(run(settings))


@program.group()
def topics() -> None:
    """Create and check the service's own topics."""


@topics.command("create")
@_where
@click.option(
    "--partitions",
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    envvar=env_name("partitions"),
    show_envvar=True,
    help="partitions of each topic; fixed for life",
)
@_json
def topics_create(kafka: Kafka, topic_prefix: str, partitions: int, as_json: bool) -> None:
    """
    Create the topics that are missing.

    Existing ones stay as they are.
    """
    from kafka_timers.broker.topics import create

    created = _wait_for(create(kafka, topic_prefix, partitions))
    if as_json:
        click.echo(json.dumps({"created": created}))
    for name in () if as_json else created:
        click.echo(f"created {name} with {partitions} partitions")
    if not created and not as_json:
        click.echo("all topics exist and stay as they are")


@topics.command("check")
@_where
@options_of(WorkerSettings, "horizon_s")
@_json
def topics_check(kafka: Kafka, topic_prefix: str, horizon_s: int, as_json: bool) -> None:
    """
    Say what is wrong with the topics.

    Exits with 1 when anything is.
    """
    from kafka_timers.broker.topics import check

    problems = _wait_for(check(kafka, topic_prefix, horizon_s))
    if as_json:
        click.echo(json.dumps({"problems": problems}))
    for problem in () if as_json else problems or ["all topics are as they should be"]:
        click.echo(problem)
    sys.exit(1 if problems else 0)


def _callback(command: _Command) -> _Command:
    """Give *command* the options that say when a callback fires and what it is."""
    for option in reversed(
        [
            click.option("--in", "delay_s", type=Delay(), help="fire after this time, as 3s, 5m, 1h30m or 2d"),
            click.option("--at", "when", type=When(), help="fire at this time: ISO 8601 with a zone, or UNIX seconds"),
            click.option("--topic", required=True, help="topic of the callback; it must exist"),
            click.option("--key", help="key of the callback  [default: no key]"),
            click.option(
                "--value",
                default="",
                show_default=True,
                help="value of the callback; - reads it from standard input",
            ),
            click.option("--token", help="cancellation token, passed on to the receiver  [default: none]"),
            click.option(
                "--header", "headers", type=_HeaderPair(), multiple=True, help="header of the callback; repeatable"
            ),
        ]
    ):
        command = option(command)
    return command


def _callback_of(given: dict[str, Any]) -> tuple[Callable[[], datetime | int], dict[str, Any]]:
    """Return when the callback that `_callback` was *given* for fires, counted from the call, and what it is."""
    from kafka_timers.client.request import second_after

    delay_s, when, value = given.pop("delay_s"), given.pop("when"), given["value"]
    if (delay_s is None) == (when is None):
        raise click.UsageError("give either --in or --at")
    given["value"] = sys.stdin.buffer.read() if value == "-" else _bytes_of(value)
    return (lambda: second_after(delay_s, HostClock().wall_s()) if when is None else when), given


def _conditional(command: _Command) -> _Command:
    """Give *command* the options that say which pending timer it is about."""

    @click.option("--if-pending", is_flag=True, help="do nothing unless a timer of this ID is pending")
    @click.option("--request", metavar="P:O", help="with --if-pending: only the timer of this request  [default: any]")
    @functools.wraps(command)
    def conditional(*, if_pending: bool, request: str | None, **given: Any) -> Any:
        if request is not None and not if_pending:
            raise click.UsageError("--request names the pending timer that is meant: give --if-pending with it")
        return command(if_pending=if_pending, request=request, **given)

    return conditional  # type: ignore[return-value]


@program.command()
@_where
@_callback
@click.option("--timer-id", help="your own name for the timer  [default: none]")
@click.option("--if-absent", is_flag=True, help="with --timer-id: do nothing if that id is known")
@_json
def send(kafka: Kafka, topic_prefix: str, as_json: bool, if_absent: bool, **given: Any) -> None:
    """
    Schedule one callback, by --in or by --at.

    With --timer-id it takes the place of the pending timer of that id.

    Add --if-absent, and the timer stands only if its id is not known: none is
    pending, and an hour has passed since the second of the last one. Where it
    does not, the command exits with 5, and nothing has changed. Repeat the
    command if you are not sure that it was accepted.
    """
    from kafka_timers.client.timer_client import Answer, TimerClient

    when, callback = _callback_of(given)
    if if_absent and callback["timer_id"] is None:
        raise click.UsageError("--if-absent is about the timers of an id: give --timer-id with it")

    async def schedule() -> "Timer | Answer":
        async with TimerClient(kafka, topic_prefix=topic_prefix, timeout_s=10.0) as client:
            return await (client.create if if_absent else client.at)(when=when(), **callback)

    timer = _wait_for(schedule())
    if isinstance(timer, Answer):
        _show_new(callback["timer_id"], timer, as_json)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(timer) | {"request": timer.request}))
    else:
        click.echo(f"fires at {_moment(timer.second)}, request {timer.request}")


@program.command()
@click.argument("timer_id", metavar="ID")
@_where
@_callback
@_conditional
@_json
def move(timer_id: str, kafka: Kafka, topic_prefix: str, as_json: bool, **given: Any) -> None:
    """
    Replace the pending timer ID, by --in or by --at.

    Nothing of it is kept: give topic, key, value and the rest anew. The new
    timer stands in any case. Exits with 0 if the earlier one does not fire any
    more, with 3 if it was too late for that, so that both fire, and with 4 if
    no timer of this id is known. With 1 nothing is known of the earlier one,
    and the line on the standard error says whether the new one stands.

    With --if-pending the new timer stands only where it replaces a pending one.
    Where it does not, the command exits with 5, and nothing has changed.
    """
    from kafka_timers.client.timer_client import TimerClient

    when, callback = _callback_of(given)

    async def ask() -> "Answer":
        async with TimerClient(kafka, topic_prefix=topic_prefix, timeout_s=10.0) as client:
            return await client.move(timer_id, when(), **callback)

    _show_new(timer_id, _wait_for(ask()), as_json)


def _show_new(timer_id: str, answer: "Answer", as_json: bool) -> NoReturn:
    """Show the *answer* to a request, and exit with its code."""
    if as_json:
        click.echo(json.dumps({"timer_id": timer_id} | dataclasses.asdict(answer)))
    else:
        new = "" if answer.outcome == "IGNORED" else f"; the new request is {answer.asked}"
        click.echo(answer_line(timer_id, answer) + new)
    sys.exit(_EXIT_CODES[answer.outcome])


@program.command()
@click.argument("timer_ids", metavar="ID...", nargs=-1, required=True)
@_where
@_conditional
@_json
def cancel(timer_ids: Sequence[str], kafka: Kafka, topic_prefix: str, as_json: bool, **condition: Any) -> None:
    """
    Take back the pending timers with these IDs.

    Exits with 0 if none of them fires any more, with 3 if it is too late for
    one, so that it fires or has fired, with 4 if one is not known: never seen,
    or its second more than an hour ago. With --if-pending it exits with 0 if
    it has taken all of them back itself, and with 5 if one was not pending. Of
    several codes it is the highest, but 1 if an answer is missing; the standard
    error says which.
    """
    from kafka_timers.client.timer_client import TimerClient

    if condition["request"] is not None and len(timer_ids) > 1:
        raise click.UsageError("--request is the request of one timer: give one ID with it")

    async def ask() -> "list[Answer | BaseException]":
        async with TimerClient(kafka, topic_prefix=topic_prefix, timeout_s=10.0) as client:
            calls = [client.cancel(timer_id, **condition) for timer_id in timer_ids]
            return await asyncio.gather(*calls, return_exceptions=True)

    answers = _wait_for(ask())
    shown, codes = [], []
    for timer_id, answer in zip(timer_ids, answers, strict=True):
        if isinstance(answer, KafkaTimersError):
            click.secho(f"Error: {answer}", fg="red", err=True)
            shown.append({"timer_id": timer_id, "error": str(answer)})
        elif isinstance(answer, BaseException):
            raise answer
        else:
            codes.append(_EXIT_CODES[answer.outcome])
            shown.append({"timer_id": timer_id} | dataclasses.asdict(answer))
            if not as_json:
                click.echo(answer_line(timer_id, answer))
    if as_json:
        click.echo(json.dumps(shown))
    sys.exit(max(codes) if len(codes) == len(answers) else 1)


@program.command()
@click.argument("timer_id", metavar="ID")
@_where
@_json
def find(timer_id: str, kafka: Kafka, topic_prefix: str, as_json: bool) -> None:
    """
    Show the requests and cancels of the timer ID, and how they stand.

    All of it is read from `timer-request`, from the oldest request on that may
    still be pending in the partition of the id, and judged by the seals: a
    request is pending, parked (it lies in the lake), fired, cancelled, moved
    (replaced by the next) or refused, with the reason; a cancel is cancelled,
    too late or unknown; ignored is what had a condition that did not hold. A
    request and its copy from the lake are one. Exits with 4 if nothing is
    found.
    """
    from kafka_timers.operate.find import find as found_of

    found = _wait_for(found_of(kafka, topic_prefix, timer_id))
    rows = found.outcomes
    sealed = found.seal.last if found.seal else None
    if as_json:
        head = {"timer_id": timer_id, "partition": found.partition, "start": found.start, "end": found.end}
        records = [dataclasses.asdict(outcome) | {"second": outcome.second} for outcome in rows]
        click.echo(json.dumps(head | {"sealed": sealed, "records": records}))
    else:
        if rows:
            Console().print(history_table(found.partition, rows))
        click.echo(
            f"{len(rows)} records of {printable(_bytes_of(timer_id))} in partition {found.partition} from offset "
            f"{found.start} to {found.end}; {f'sealed up to {_moment(sealed)}' if sealed else 'nothing is sealed'}"
        )
    sys.exit(0 if rows else _EXIT_CODES["UNKNOWN"])


def history_table(partition: int, rows: "Sequence[Outcome]") -> Table:
    """Return what was asked for, and how it stands, as a table that fits 80 columns."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("request", no_wrap=True)
    table.add_column("appended\nUTC", no_wrap=True)
    table.add_column("due\nUTC", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("topic, key", overflow="fold")
    for each in rows:
        callback = each.reason if each.reason else printable(f"{each.topic} {each.key}".encode())
        due = "-" if each.second is None else _utc(each.second, "%Y-%m-%d %H:%M:%S")
        table.add_row(
            f"{partition}:{each.offset}",
            _utc(each.appended_ms // 1000, "%Y-%m-%d %H:%M:%S"),
            "cancel" if each.cancel else due,
            each.state,
            # As Text, or a topic could be taken for markup.
            Text("" if each.cancel and not each.reason else callback),
        )
    return table


def answer_line(timer_id: str, answer: "Answer") -> str:
    """Return *answer* as a line for a terminal."""
    line = f"{printable(_bytes_of(timer_id))}: {answer.outcome.lower().replace('_', ' ')}"
    known = "" if answer.second is None else f"of {_moment(answer.second)}, request {answer.request}"
    if answer.outcome == "IGNORED":
        return f"{line}; known is the timer {known}" if known else f"{line}; no timer of this id is known"
    return f"{line}, {known}" if known else line


@program.command()
@click.argument("topic")
@_on_kafka
@click.option("--from-beginning", is_flag=True, help="also show what the topic holds already")
@click.option("--count", type=click.IntRange(min=1), help="stop after so many  [default: go on until Ctrl-C]")
@_json
def watch(topic: str, kafka: Kafka, from_beginning: bool, count: int | None, as_json: bool) -> None:
    """
    Show callbacks on TOPIC as they come.

    Each with its second (UTC), its lateness, key and value; what would not
    print is spelled out. Reads committed records only, as receivers should.
    Lateness goes by the record's timestamp: on a topic that does not have the
    broker's time (LogAppendTime) that is when the worker built the callback.
    """

    async def show() -> None:
        clock, shown = HostClock(), 0
        async with aclosing(_records(kafka, topic, from_beginning)) as records:
            async for record in records:
                now_s = clock.wall_s()
                click.echo(json.dumps(json_of(record, now_s)) if as_json else line_of(record, now_s, Console().width))
                shown += 1
                if shown == count:
                    return

    # Ctrl-C is how this command ends.
    with suppress(KeyboardInterrupt):
        _wait_for(show())


@program.command()
@_on_kafka
@options_of(WorkerSettings, "topic_prefix", "group")
@_json
def status(kafka: Kafka, topic_prefix: str, group: str, as_json: bool) -> None:
    """
    Show how each partition stands, and each door.

    Partitions are read from the topic `timer-sealed`; lateness is that of the
    last seal that fired anything. A door stands where its consumer group does.
    """
    from kafka_timers.adapters.lag import door_lags
    from kafka_timers.broker.seals import last_seals
    from kafka_timers.operate.status import status_of

    rows = status_of(_wait_for(last_seals(kafka, topic_prefix)), HostClock().wall_s())
    doors = _wait_for(door_lags(kafka, group))
    if as_json:
        click.echo(json.dumps([*map(dataclasses.asdict, rows), *map(dataclasses.asdict, doors)]))
    else:
        Console().print(status_table(rows))
        for door in doors:
            click.echo(f"door {door.door}: {door.lag} records of {door.topic} not read yet")


@program.command()
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), required=True, help="timers a second, at most")
@click.option("--delay", "delay_s", type=Delay(), required=True, help="how long they wait, on average, as 30d")
@click.option("--payload", "payload_bytes", type=click.IntRange(min=0), required=True, help="bytes of a callback")
@click.option("--horizon", "horizon_s", type=Delay(), default="0s", help="what waits longer is left to a lake, as 1d")
@click.option("--replication", type=click.IntRange(min=1), default=3, show_default=True, help="replicas of the topics")
@_json
def capacity(as_json: bool, **given: Any) -> None:
    """
    Tell what a load needs: partitions, workers, disks, bandwidth.

    From figures that were measured on one machine, of which docs/performance.md
    tells; sizes are upper bounds, for payloads that do not compress.
    """
    from kafka_timers.operate.capacity import Load, needs

    found = needs(Load(**given))
    if as_json:
        click.echo(json.dumps({need.name: need.amount for need in found}))
        return
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for need in found:
        table.add_row(need.name.replace("_", " "), _amount(need.amount, need.unit), need.why)
    Console().print(table)


class _Principal(click.ParamType):
    name = "process=principal"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        process, _, principal = value.partition("=")
        if process not in PROCESSES or not principal:
            self.fail(
                f"{value!r}: give one of {', '.join(PROCESSES)}, = and who it is, as worker=User:timers", param, ctx
            )
        return process, principal


@program.command()
@options_of(WorkerSettings, "bootstrap", "topic_prefix", "group", "allowed_topics", "door")
@click.option(
    "--principal",
    "principals",
    type=_Principal(),
    multiple=True,
    help="who runs a process, as worker=User:timers; User:worker and so on without it; repeatable",
)
@_json
def acls(bootstrap: str, principals: Sequence[tuple[str, str]], as_json: bool, **given: str) -> None:
    """
    Tell what each process must be allowed to do, and no more.

    Prints the calls of Kafka's own tool that allow it; asks no broker. Give it
    the topic prefix, group, allowed topics and doors of the workers.
    """
    who = {process: f"User:{process}" for process in PROCESSES} | dict(principals)
    found = acls_of(given["topic_prefix"], given["group"], given["allowed_topics"], given["door"])
    if as_json:
        click.echo(json.dumps([acl._asdict() | {"principal": who[acl.process]} for acl in found]))
        return
    for process, what in PROCESSES.items():
        click.echo(f"# {process}: {what}")
        for acl in (acl for acl in found if acl.process == process):
            click.echo(shlex.join(acl.command(who[process], bootstrap)))


def _amount(amount: float, unit: str) -> str:
    if unit.startswith("bytes"):
        return decimal(math.ceil(amount)) + unit.removeprefix("bytes")
    if unit == "s":
        return str(timedelta(seconds=math.ceil(amount)))
    return f"{math.ceil(amount):,}"


def status_table(rows: "Sequence[PartitionStatus]") -> Table:
    """Return *rows* as a table that fits 80 columns."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("part", justify="right")
    table.add_column("sealed up to\nUTC", no_wrap=True)
    table.add_column("lag\ns", justify="right", no_wrap=True)
    table.add_column("pending", justify="right", no_wrap=True)
    table.add_column("late, ms\np50/p99/max", justify="right", no_wrap=True)
    table.add_column("owner", overflow="fold")
    for row in rows:
        lateness = (row.lateness_p50_ms, row.lateness_p99_ms, row.lateness_max_ms)
        table.add_row(
            str(row.partition),
            "-" if row.second is None else _utc(row.second, "%Y-%m-%d %H:%M:%S"),
            "-" if row.lag_s is None else str(row.lag_s),
            "-" if row.pending is None else str(row.pending),
            "-" if None in lateness else "/".join(map(str, lateness)),
            # As Text, or a worker's name could be taken for markup.
            Text("-" if row.owner is None else printable(row.owner.encode())),
        )
    return table


def printable(data: bytes | None) -> str:
    """
    Return *data* as text that is safe on a terminal: what does not print, such as an escape, is spelled out.

    Bytes that are not UTF-8 show as \\xff, a missing value as null.
    """
    if data is None:
        return "null"
    text = data.decode("utf-8", "backslashreplace")
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def line_of(record: "ConsumerRecord", now_s: float, width: int) -> str:
    """Return *record* as a line of at most *width* cells, for a terminal: second, lateness, key and value."""
    second, lateness_ms = _lateness(record, now_s)
    if second is None or lateness_ms is None:
        head = f"{'no timer':8} {'-':>13} "
    else:
        word = "late" if lateness_ms >= 0 else "early"
        head = f"{_utc(second, '%H:%M:%S')} {f'{abs(lateness_ms)} ms {word}':>13} "
    return head + _fitted(printable(record.key), 16) + " " + _fitted(printable(record.value), max(10, width - 40))


def json_of(record: "ConsumerRecord", now_s: float) -> dict[str, Any]:
    """
    Return *record* for JSON; bytes that are not UTF-8 go to `key_base64` and `value_base64`.

    `second` and `lateness_ms` are null for a record that is no callback.
    """
    headers = dict(record.headers)
    second, lateness_ms = _lateness(record, now_s)
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "second": second,
        "lateness_ms": lateness_ms,
        **_json_of("request", headers.get(REQUEST_HEADER)),
        **_json_of("timer_id", headers.get(ID_HEADER)),
        **_json_of("token", headers.get(TOKEN_HEADER)),
        **_json_of("key", record.key),
        **_json_of("value", record.value),
    }


def _lateness(record: "ConsumerRecord", now_s: float) -> tuple[int | None, int | None]:
    # Milliseconds from the timer's second to the record's own time, or to its arrival when it carries none.
    expiry = dict(record.headers).get(EXPIRY_HEADER) or b""
    if not re.fullmatch(b"[0-9]{1,11}", expiry):
        return None, None
    second = int(expiry)
    at_ms = record.timestamp if record.timestamp >= 0 else int(now_s * 1000)
    return second, at_ms - second * 1000


def _json_of(name: str, data: bytes | None) -> dict[str, str | None]:
    try:
        return {name: None if data is None else data.decode()}
    except UnicodeDecodeError:
        return {name + "_base64": base64.b64encode(data or b"").decode()}


def _fitted(text: str, cells: int) -> str:
    fitted = Text(text)
    fitted.truncate(cells, overflow="ellipsis", pad=True)
    return fitted.plain


def _utc(second: int, form: str) -> str:
    # A seal may hold any number, a calendar may not.
    return datetime.fromtimestamp(second, UTC).strftime(form) if 0 <= second < SECOND_LIMIT else str(second)


def _moment(second: int) -> str:
    return f"{_utc(second, '%Y-%m-%d %H:%M:%S')} UTC (second {second})"


def _bytes_of(text: str) -> bytes:
    # Arguments that are not UTF-8 arrive with their bytes as surrogates, and leave as the bytes they were.
    return text.encode("utf-8", "surrogateescape")


async def _records(kafka: Kafka, topic: str, from_beginning: bool) -> "AsyncGenerator[ConsumerRecord, None]":
    from aiokafka.errors import UnknownTopicOrPartitionError

    from kafka_timers.broker.consuming import consuming
    from kafka_timers.broker.topics import answering

    reset = "earliest" if from_beginning else "latest"
    async with AsyncExitStack() as opened:
        async with answering(kafka):
            try:
                # The timeout is how long a topic that does not exist is waited for: some brokers make it when it is
                # asked for.
                reading = consuming(kafka, topic, auto_offset_reset=reset, request_timeout_ms=5_000)
                consumer = await opened.enter_async_context(reading)
            except UnknownTopicOrPartitionError as error:
                raise TopicsError(f"topic {topic} does not exist: create it first") from error
            for partition in consumer.assignment():
                # "From now on" is from here: until a position is known, records pass unseen. Seeking instead would race
                # with the reset that the consumer begins by itself, and the later of the two would win.
                await consumer.position(partition)
        click.echo(f"watching {topic}; Ctrl-C ends", err=True)
        async for record in consumer:
            yield record


def log_to_stderr(level: str) -> None:
    """Log what is at least as severe as *level*, a line each."""
    logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if level != "debug":
        # What they tell in the course of things is of use to their own developers.
        for library in ("aiokafka", "faust", "mode"):
            logging.getLogger(library).setLevel(logging.WARNING)
    # At debug it writes down each request as it goes out, that with the password too.
    logging.getLogger("aiokafka.conn").setLevel(logging.WARNING)


def _wait_for(work: Coroutine[Any, Any, _T]) -> _T:
    # The client logs each attempt to connect; the error that ends in says the same once.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    return asyncio.run(work)


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Say how to install *extra* when the block imports a library that is not there."""
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "kafka_timers").partition(".")[0]
        if library.startswith("kafka_timers"):
            raise
        raise KafkaTimersError(f"{library} is not installed: pip install 'kafka-timers[{extra}]'") from error


def main() -> None:
    """Run the program on the arguments of this process and exit with its code."""
    program(prog_name="kafka-timers")
