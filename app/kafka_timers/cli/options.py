"""Options that several commands share, the types of their values, and options made from settings."""

import base64
import dataclasses
import functools
import sys
from collections.abc import Callable, Collection
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.environment import env_name
from kafka_timers.cli.running import argument_bytes
from kafka_timers.clock import HostClock
from kafka_timers.core.durations import delay_ms_of
from kafka_timers.core.moments import moment_after, moment_at, when_of
from kafka_timers.settings import WorkerSettings, bounds_of, objection

_Function = TypeVar("_Function", bound=Callable[..., Any])

# --- values ----------------------------------------------------------------------------------------------------------


class _Listed(click.ParamType):
    """One item of a list; an environment variable holds the whole list, comma separated."""

    name = "text"
    envvar_list_splitter = ","


class Delay(click.ParamType):
    """A duration such as 250ms, 3s or 1h30m, converted to milliseconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return *value* in milliseconds."""
        try:
            return delay_ms_of(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Seconds(Delay):
    """A duration of whole seconds such as 3s or 1h30m, converted to seconds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return *value* in seconds."""
        seconds, millis = divmod(super().convert(value, param, ctx), 1000)
        if millis:
            self.fail(f"{value!r}: give whole seconds", param, ctx)
        return seconds


class When(click.ParamType):
    """A point in time, in ISO 8601 or UNIX seconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime | float:
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
        return name, argument_bytes(text)


# --- options ---------------------------------------------------------------------------------------------------------


def given_by(*options: Callable[[Any], Any]) -> Callable[[_Function], _Function]:
    """Return a decorator that gives a command *options*, which its help shows in this order."""

    def decorate(command: _Function) -> _Function:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def options_of(settings: type, *only: str) -> Callable[[_Function], _Function]:
    """Return a decorator that gives a command one option per field of *settings*, or per field named in *only*."""
    return given_by(*(_option(field) for field in dataclasses.fields(settings) if not only or field.name in only))


def _option(field: "dataclasses.Field[Any]") -> Callable[[_Function], _Function]:
    choices, is_list = field.metadata["choices"], field.metadata["is_list"]

    def judged(_context: click.Context, _option: click.Parameter, given: Any) -> Any:
        # Checked here too, because some commands take single options and build no settings from them.
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
        default=tuple(filter(None, str(field.default).split(","))) if is_list else field.default,
        show_default=True,
        envvar=env_name(field.name),
        show_envvar=True,
        help=field.metadata["help"] + ("; repeatable" if is_list else "") + (f" ({bounds})" if bounds else ""),
    )


def on_kafka(command: _Function) -> _Function:
    """Give *command* the options for the connection to Kafka; it gets them as one argument `kafka`."""

    @functools.wraps(command)
    def with_kafka(*, bootstrap: str, kafka_config: str, **given: Any) -> Any:
        return command(kafka=Kafka.of(bootstrap, kafka_config), **given)

    return options_of(WorkerSettings, "bootstrap", "kafka_config")(with_kafka)  # type: ignore[return-value]


def on_instance(command: _Function) -> _Function:
    """Give *command* the options that name an instance of the service: it gets `kafka` and `topic_prefix`."""
    return on_kafka(options_of(WorkerSettings, "topic_prefix")(command))


FILE = click.Path(dir_okay=False, path_type=Path)


def count_option(name: str, help: str, **given: Any) -> Callable[[_Function], _Function]:
    """Return an option that takes a whole number from 1 on; *given* are other arguments of `click.option`."""
    return click.option(name, type=click.IntRange(min=1), show_default=True, help=help, **given)


def choice_option(name: str, choices: Collection[str], help: str, default: str) -> Callable[[_Function], _Function]:
    """Return an option that takes one of *choices*."""
    return click.option(name, type=click.Choice([*choices]), default=default, show_default=True, help=help)


json_option = click.option("--json", "as_json", is_flag=True, help="print JSON instead of text")


def callback_options(*, needs_topic: bool) -> Callable[[_Function], _Function]:
    """Return a decorator that gives a command the options for the time and the content of a callback."""
    topic_help = "topic of the callback; it must exist"
    return given_by(
        click.option("--in", "delay_ms", type=Delay(), help="fire after this duration, as 250ms, 3s, 1h30m or 2d"),
        click.option("--at", "when", type=When(), help="fire at this time: ISO 8601 with a zone, or UNIX seconds"),
        content_options(topic_help if needs_topic else f"{topic_help}  [default: change only the time]", needs_topic),
    )


def content_options(topic_help: str, needs_topic: bool = True) -> Callable[[_Function], _Function]:
    """Return a decorator that gives a command the options for the content of a callback; see `content_of`."""
    return given_by(
        click.option("--topic", required=needs_topic, help=topic_help),
        click.option("--key", help="key of the callback  [default: no key]"),
        click.option("--key-base64", help="key of the callback in base64, if it is not text"),
        click.option(
            "--value", default="", show_default=True, help="value of the callback; - reads it from the standard input"
        ),
        click.option("--tombstone", is_flag=True, help="ask for a callback without a value, in place of --value"),
        click.option(
            "--partition", type=click.IntRange(min=0), help="partition of the topic  [default: given by the key]"
        ),
        click.option("--partition-key", help="choose the partition by this, in place of the key  [default: none]"),
        click.option("--token", help="cancellation token for the receiver  [default: none]"),
        click.option(
            "--header", "headers", type=_HeaderPair(), multiple=True, help="header of the callback; repeatable"
        ),
    )


def callback_of(given: dict[str, Any]) -> tuple[Callable[[], datetime | float], dict[str, Any]]:
    """
    Return the time and the content of a callback from the options of `callback_options`.

    Returns:
        A function that returns the time, and keyword arguments for `TimerClient.at`. The function counts --in from its
        call.
    """
    delay_ms, when = given.pop("delay_ms"), given.pop("when")
    if (delay_ms is None) == (when is None):
        raise click.UsageError("give either --in or --at")
    content = content_of(given)
    return (lambda: moment_after(delay_ms / 1000, HostClock().wall_s()) / 1000 if when is None else when), content


def content_of(given: dict[str, Any]) -> dict[str, Any]:
    """Return *given* with the values of `content_options` converted to keyword arguments of `TimerClient.at`."""
    value = given["value"]
    given["value"] = sys.stdin.buffer.read() if value == "-" else argument_bytes(value)
    if given.pop("tombstone"):
        if value:
            raise click.UsageError("give either --value or --tombstone")
        given["value"] = None
    key_base64 = given.pop("key_base64")
    if key_base64 is not None:
        if given["key"] is not None:
            raise click.UsageError("give either --key or --key-base64")
        try:
            given["key"] = base64.b64decode(key_base64, validate=True)
        except ValueError as error:
            raise click.UsageError(f"--key-base64 {key_base64!r} is not base64: {error}") from error
    elif given["key"] is not None:
        given["key"] = argument_bytes(given["key"])
    return given


def moment_given(delay_ms: int | None, when: datetime | float | None) -> int | None:
    """Return the UNIX millisecond of --in, counted from now, or of --at; None if neither is given."""
    if delay_ms is not None and when is not None:
        raise click.UsageError("give either --in or --at")
    if delay_ms is not None:
        return moment_after(delay_ms / 1000, HostClock().wall_s())
    return None if when is None else moment_at(when)


def condition_options(command: _Function) -> _Function:
    """Give *command* the options that make it depend on a pending timer."""

    @click.option("--if-pending", is_flag=True, help="do nothing unless a timer of the ID is pending")
    @click.option(
        "--request", metavar="P:O", help="with --if-pending: partition:offset of the pending request  [default: any]"
    )
    @functools.wraps(command)
    def conditional(*, if_pending: bool, request: str | None, **given: Any) -> Any:
        if request is not None and not if_pending:
            raise click.UsageError("--request names the pending timer that is meant: give --if-pending with it")
        return command(if_pending=if_pending, request=request, **given)

    return conditional  # type: ignore[return-value]
