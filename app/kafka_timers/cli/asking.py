"""
`kafka-timers send`, `move`, `cancel`, `fire-now` and `ask-again`: commands that ask for timers and change them.

Each command makes a request with `TimerClient`. The worker answers most of them.
"""

import asyncio
import dataclasses
import json
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.ticked import ticked_s
from kafka_timers.broker.topics import knowing
from kafka_timers.cli.listing import asked, say_missing
from kafka_timers.cli.options import (
    Delay,
    When,
    callback_of,
    callback_options,
    condition_options,
    count_option,
    json_option,
    moment_given,
    on_instance,
    options_of,
)
from kafka_timers.cli.render import answer_line, found_lines, moment_text, printable
from kafka_timers.cli.running import argument_bytes, wait_for
from kafka_timers.client.request import Answer, Outcome, Timer, only_if_pending
from kafka_timers.client.timer_client import TimerClient
from kafka_timers.clock import HostClock
from kafka_timers.core.moments import second_of, when_of
from kafka_timers.core.text import bytes_in
from kafka_timers.errors import KafkaTimersError
from kafka_timers.operate.again import callback_again, only_after
from kafka_timers.operate.documents import answer_document, timer_document
from kafka_timers.operate.find import Found, find
from kafka_timers.settings import QuerySettings

if TYPE_CHECKING:
    from kafka_timers.operate.waiting import Workers

_Answer = TypeVar("_Answer")

# Exit code of a command, by the outcome.
EXIT_CODES = {
    Outcome.CANCELLED: 0,
    Outcome.MOVED: 0,
    Outcome.ACCEPTED: 0,
    Outcome.TOO_LATE: 3,
    Outcome.UNKNOWN: 4,
    Outcome.IGNORED: 5,
}
# Most calls that run at once.
_AT_ONCE = 500
_SHOWN = 10


class _Where(click.ParamType):
    """A condition on timers such as topic=reminders, converted to a parameter of a question to workers."""

    name = "name=value"
    _NAMES = ("topic", "key", "timer-id", "id-prefix", "contains", "from", "to")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, object]:
        name, _, wanted = value.partition("=")
        if name not in self._NAMES or not wanted:
            self.fail(f"{value!r}: give one of {', '.join(self._NAMES)}, = and a value, as topic=reminders", param, ctx)
        if name not in ("from", "to"):
            return name.replace("-", "_"), wanted
        try:
            return name, second_of(when_of(wanted))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def with_client(kafka: Kafka, topic_prefix: str, question: Callable[[TimerClient], Awaitable[_Answer]]) -> _Answer:
    """Return the answer to *question*, which is called with a client of the service."""

    async def ask() -> _Answer:
        async with TimerClient(kafka, topic_prefix=topic_prefix, timeout_s=10.0) as client:
            return await question(client)

    return wait_for(ask())


@click.command()
@on_instance
@callback_options(needs_topic=True)
@click.option("--timer-id", help="your own name for the timer  [default: none]")
@click.option("--if-absent", is_flag=True, help="with --timer-id: do nothing if that id is known")
@json_option
def send(kafka: Kafka, topic_prefix: str, as_json: bool, if_absent: bool, **given: Any) -> None:
    """
    Schedule one callback, with --in or --at.

    With --timer-id, the new timer replaces the pending timer of that id.

    With --if-absent, you get a timer only if its id is not known: no timer of
    the id is pending, and the second of its last timer, or its cancel, was more
    than an hour ago. So you can repeat the command if you are not sure that it
    worked.

    \b
    Exit codes:
      0  the timer is accepted
      5  with --if-absent: the id is known, and nothing has changed
    """
    when, callback = callback_of(given)
    if if_absent and callback["timer_id"] is None:
        raise click.UsageError("--if-absent is about the timers of an id: give --timer-id with it")

    async def ask(client: TimerClient) -> Timer | Answer:
        timer = await (client.create if if_absent else client.at)(when=when(), **callback)
        await _say_no_topic(kafka, callback["topic"])
        return timer

    timer = with_client(kafka, topic_prefix, ask)
    if isinstance(timer, Answer):
        _show_new(callback["timer_id"], timer, as_json)
    if as_json:
        click.echo(json.dumps(timer_document(timer)))
    else:
        at = moment_text(timer.due_ms)
        is_past = timer.due_ms < HostClock().wall_s() * 1000
        fires = f"{at} is past: it fires at once" if is_past else f"fires at {at}"
        click.echo(f"{fires}, request {timer.request}")


@click.command()
@click.argument("timer_id", metavar="ID")
@on_instance
@callback_options(needs_topic=False)
@condition_options
@json_option
def move(timer_id: str, kafka: Kafka, topic_prefix: str, as_json: bool, **given: Any) -> None:
    """
    Move the pending timer ID, with --in or --at.

    Without --topic, the timer keeps its topic, key, value, token and headers.
    If no timer of the ID is pending, nothing changes.

    With --topic, the new timer keeps nothing of the earlier one: give its key,
    value and the rest again. You get the new timer in any case. Add
    --if-pending to get it only if it replaces a pending timer.

    \b
    Exit codes:
      0  the timer was moved; the earlier one does not fire
      1  no answer about the earlier timer; the standard error says whether
         the new timer stands
      3  with --topic: too late, so both timers fire
      4  with --topic: no timer of this ID is known; the new timer stands
      5  no timer of this ID is pending, and nothing has changed
    """
    when, callback = callback_of(given)
    answer = with_client(kafka, topic_prefix, lambda client: client.move(timer_id, when(), **callback))
    _show_new(timer_id, answer, as_json)


async def _say_no_topic(kafka: Kafka, topic: str) -> None:
    """Tell the user if *topic* is missing, for which a request is refused when it comes due."""
    async with knowing(kafka, [topic]) as cluster:
        if not cluster.partitions(topic):
            click.secho(
                f"no topic {topic} is there: create it before the timer is due, or it is refused with topic-unknown",
                fg="yellow",
                err=True,
            )


def _show_new(timer_id: str, answer: Answer, as_json: bool) -> NoReturn:
    """Show the *answer* to a request, and exit with its code."""
    if as_json:
        click.echo(json.dumps(answer_document(timer_id, answer)))
    else:
        new = "" if answer.outcome == "IGNORED" else f"; the new request is {answer.asked}"
        click.echo(answer_line(timer_id, answer) + new)
    sys.exit(EXIT_CODES[answer.outcome])


@click.command()
@click.argument("timer_ids", metavar="[ID]...", nargs=-1)
@options_of(QuerySettings)
@condition_options
@click.option(
    "--where",
    type=_Where(),
    multiple=True,
    help="in place of IDs: topic=, key=, id-prefix=, contains=, from=, to=; repeatable",
)
@count_option("--limit", "with --where: most timers to cancel", default=1_000)
@click.option("--dry-run", is_flag=True, help="with --where: show the timers that match, and cancel nothing")
@click.option("--yes", is_flag=True, help="with --where: do not ask before cancelling")
@json_option
def cancel(
    timer_ids: Sequence[str],
    where: Sequence[tuple[str, object]],
    limit: int,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    if_pending: bool,
    request: str | None,
    **given: Any,
) -> None:
    """
    Cancel the pending timers with these IDs.

    With --where, cancel all waiting timers that match every condition:

    \b
      kafka-timers cancel --where topic=reminders --where id-prefix=cust-7-

    It looks them up as `kafka-timers list` does, shows you some of them, and
    asks you before it cancels. It cancels a timer only if it still is the one
    that was found. It cannot cancel timers without a timer id. If more than
    --limit match, it cancels nothing.

    \b
    Exit codes (of several timers, the highest; 1 comes before all others):
      0  no timer fires; with --if-pending: this command cancelled all of them
      1  an answer is missing, or with --where a partition is unknown, or timers
         may be missing since the lake is behind; the standard error says which
      3  too late: a timer fires or has fired
      4  an ID is not known: it was never used, or its second was more than an
         hour ago; or no timer matches --where
      5  with --if-pending or --where: a timer was not pending any more
    """
    if bool(timer_ids) == bool(where):
        raise click.UsageError("give IDs or --where")
    if where and if_pending:
        raise click.UsageError(
            "--if-pending is about IDs: timers that --where finds are cancelled on that condition anyway"
        )
    if request is not None and len(timer_ids) > 1:
        raise click.UsageError("--request is the request of one timer: give one ID with it")
    settings, unknown, lake = QuerySettings(**given), dict[int, str](), ""
    wanted: list[tuple[str, dict[str, Any]]]
    wanted = [(timer_id, {"if_pending": if_pending, "request": request}) for timer_id in timer_ids]
    if where:
        waiting, unknown, lake = _matching(given, dict(where), limit)
        named = [timer for timer in waiting if bytes_in(timer, "timer_id")]
        if dry_run or not yes or not named:
            _preview(waiting, len(named))
        if not named or dry_run:
            if as_json:
                click.echo(json.dumps(waiting))
            say_missing(unknown, lake)
            sys.exit(0 if named else EXIT_CODES[Outcome.UNKNOWN])
        if not yes:
            click.confirm(f"cancel {len(named):,} timers?", abort=True, err=True)
        wanted = [(timer["timer_id"], {"if_pending": True, "request": timer["request"]}) for timer in named]
    answers = with_client(
        settings.kafka,
        settings.topic_prefix,
        lambda client: answers_to([client.cancel(timer_id, **how) for timer_id, how in wanted]),
    )
    code = show_answers([timer_id for timer_id, _ in wanted], answers, as_json=as_json)
    say_missing(unknown, lake)
    sys.exit(code)


def _matching(
    given: Mapping[str, Any], where: Mapping[str, Any], limit: int
) -> tuple[list[Mapping[str, Any]], dict[int, str], str]:
    """Return the waiting timers that match, the reason for each unknown partition, and the problem of the lake."""
    waiting: list[Mapping[str, Any]] = []
    unknown: dict[int, str] = {}
    lake = ""

    async def gather(workers: "Workers") -> bool:
        nonlocal lake
        has_more = False
        async for page in workers.pages(limit, **where):
            lake = page.lake
            waiting.extend(page.timers)
            unknown.update(page.unknown)
            has_more = bool(page.after)
        return has_more

    if asked(dict(given), gather):
        raise KafkaTimersError(f"more than {limit:,} timers match, so none was cancelled: narrow it, or give --limit")
    return waiting, unknown, lake


def _preview(waiting: Sequence[Mapping[str, Any]], named: int) -> None:
    """Show on the standard error, for people, the timers that match."""
    if waiting:
        from kafka_timers.cli.terminal import pending_table, terminal

        terminal(stderr=True).print(pending_table(waiting[:_SHOWN]))
    more = len(waiting) - _SHOWN
    click.echo(f"{f'and {more:,} more; ' if more > 0 else ''}{len(waiting):,} timers match", err=True)
    if len(waiting) > named:
        click.echo(f"{len(waiting) - named:,} of them have no timer id, so they cannot be cancelled", err=True)


async def answers_to(calls: Sequence[Coroutine[Any, Any, Answer]]) -> list[Answer | KafkaTimersError]:
    """Return the answer to each of *calls*, or the error in place of it, in their order."""
    answers: list[Answer | KafkaTimersError] = []
    for start in range(0, len(calls), _AT_ONCE):
        for answer in await asyncio.gather(*calls[start : start + _AT_ONCE], return_exceptions=True):
            if not isinstance(answer, Answer | KafkaTimersError):
                raise answer
            answers.append(answer)
    return answers


def show_answers(names: Sequence[str], answers: Sequence[Answer | KafkaTimersError], *, as_json: bool) -> int:
    """Show the *answers* to calls about the timer ids *names*, and return the exit code."""
    shown, codes = [], []
    for name, answer in zip(names, answers, strict=True):
        if isinstance(answer, KafkaTimersError):
            click.secho(f"Error: {answer}", fg="red", err=True)
            shown.append({"timer_id": name, "error": str(answer)})
            continue
        codes.append(EXIT_CODES[answer.outcome])
        shown.append(answer_document(name, answer))
        if not as_json:
            click.echo(answer_line(name, answer))
    if as_json:
        click.echo(json.dumps(shown))
    return max(codes) if len(codes) == len(answers) else 1


_version_option = click.option(
    "--request", metavar="P:O", help="only the timer of this request, partition:offset  [default: any]"
)


@click.command("fire-now")
@click.argument("timer_id", metavar="ID")
@on_instance
@_version_option
@json_option
def fire_now(timer_id: str, kafka: Kafka, topic_prefix: str, request: str | None, as_json: bool) -> None:
    """
    Fire the pending timer ID now.

    It moves the timer to the last tick, unchanged, and only if the timer still
    is the one that it found. So nothing fires twice.

    \b
    Exit codes:
      0  the timer fires now
      4  no timer of this ID waits
      5  it was cancelled, was moved or has fired meanwhile, or it is not the
         one of --request; nothing has changed
    """

    async def ask() -> Answer | None:
        found = await find(kafka, topic_prefix, timer_id)
        if found.waiting is None:
            _say_found(timer_id, found)
            return None
        waits_at, _, future = found.waiting
        now_ms = await ticked_s(kafka, topic_prefix) * 1000
        async with TimerClient(kafka, topic_prefix=topic_prefix, timeout_s=10.0) as client:
            return await client.ask(only_if_pending(future, True, request or waits_at), now_ms)

    answer = wait_for(ask())
    if answer is None:
        _end_without(timer_id, "no timer of this id waits", Outcome.UNKNOWN, as_json)
    _show_new(timer_id, answer, as_json)


@click.command("ask-again")
@click.argument("timer_id", metavar="ID")
@on_instance
@click.option("--in", "delay_ms", type=Delay(), help="fire after this duration, as 250ms, 3s, 1h30m or 2d")
@click.option("--at", "when", type=When(), help="fire at this time: ISO 8601 with a zone, or UNIX seconds")
@_version_option
@json_option
def ask_again(timer_id: str, kafka: Kafka, topic_prefix: str, request: str | None, as_json: bool, **given: Any) -> None:
    """
    Ask once more for the last timer of ID, with --in or --at.

    You get a new timer with the same callback, byte for byte, unless the ID has
    another timer by then. The last timer must have fired, or have been
    cancelled or refused.

    \b
    Exit codes:
      0  the new timer is accepted
      4  no timer of this ID is known
      5  a timer of this ID waits, or the last one is not that of --request;
         nothing has changed
    """
    due_ms = moment_given(**given)
    if due_ms is None:
        raise click.UsageError("give either --in or --at")

    async def ask() -> Answer | None:
        found = await find(kafka, topic_prefix, timer_id)
        future, last = callback_again(found), found.stands
        if future is None or last is None:
            _say_found(timer_id, found)
            _end_without(timer_id, "no timer of this id is known", Outcome.UNKNOWN, as_json)
        if not only_after(future, found, request or found.place_of(last), int(HostClock().wall_s() * 1000)):
            _say_found(timer_id, found)
            return None
        async with TimerClient(kafka, topic_prefix=topic_prefix, timeout_s=10.0) as client:
            return await client.ask(future, due_ms)

    answer = wait_for(ask())
    if answer is None:
        _end_without(timer_id, "nothing has changed", Outcome.IGNORED, as_json)
    if answer.outcome is Outcome.UNKNOWN:
        # Of one that was cancelled nothing is known that the new timer could have replaced.
        answer = dataclasses.replace(answer, outcome=Outcome.ACCEPTED)
    _show_new(timer_id, answer, as_json)


def _say_found(timer_id: str, found: Found) -> None:
    for line in found_lines(timer_id, found):
        click.echo(line, err=True)


def _end_without(timer_id: str, why: str, outcome: Outcome, as_json: bool) -> NoReturn:
    """Say *why* no request was made, and exit with the code of *outcome*."""
    if as_json:
        click.echo("null")
    else:
        click.echo(f"{printable(argument_bytes(timer_id))}: {why}", err=True)
    sys.exit(EXIT_CODES[outcome])


COMMANDS = (send, move, cancel, fire_now, ask_again)
