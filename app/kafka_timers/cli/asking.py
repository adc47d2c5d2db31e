"""
`kafka-timers send`, `move`, `cancel` and `fire-now`: they ask for timers and change them. Each is a request of the
`TimerClient`, and most are answered by the worker.
"""

import asyncio
import json
import sys
from collections.abc import Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import click
from rich.console import Console

from kafka_timers.broker.connection import Kafka
from kafka_timers.cli.options import (
    Where,
    callback_of,
    callback_options,
    condition_options,
    json_option,
    on_instance,
    options_of,
)
from kafka_timers.cli.pending import asked, say_unknown
from kafka_timers.cli.render import answer_line, found_line, moment_text, pending_table, printable
from kafka_timers.cli.running import wait_for
from kafka_timers.client.request import Answer, Outcome, Timer, only_if_pending
from kafka_timers.client.timer_client import TimerClient
from kafka_timers.clock import HostClock
from kafka_timers.core.moments import moment_after
from kafka_timers.core.text import bytes_in
from kafka_timers.errors import KafkaTimersError
from kafka_timers.operate.documents import answer_document, timer_document
from kafka_timers.operate.find import find
from kafka_timers.settings import QuerySettings

if TYPE_CHECKING:
    from kafka_timers.operate.pending import Workers

__all__ = ["ASKING", "EXIT_CODES", "answers_to", "show_answers"]

# What commands exit with, by the outcome.
EXIT_CODES = {
    Outcome.CANCELLED: 0,
    Outcome.MOVED: 0,
    Outcome.ACCEPTED: 0,
    Outcome.TOO_LATE: 3,
    Outcome.UNKNOWN: 4,
    Outcome.IGNORED: 5,
}
# Of many calls so many are under way at once.
_AT_ONCE = 500
_SHOWN = 10


@click.command()
@on_instance
@callback_options(needs_topic=True)
@click.option("--timer-id", help="your own name for the timer  [default: none]")
@click.option("--if-absent", is_flag=True, help="with --timer-id: do nothing if that id is known")
@json_option
def send(kafka: Kafka, topic_prefix: str, as_json: bool, if_absent: bool, **given: Any) -> None:
    """
    Schedule one callback, by --in or by --at.

    With --timer-id it takes the place of the pending timer of that id.

    Add --if-absent, and the timer stands only if its id is not known: none is
    pending, and an hour has passed since the second of the last one. Where it
    does not, the command exits with 5, and nothing has changed. Repeat the
    command if you are not sure that it was accepted.
    """
    when, callback = callback_of(given)
    if if_absent and callback["timer_id"] is None:
        raise click.UsageError("--if-absent is about the timers of an id: give --timer-id with it")

    async def schedule() -> Timer | Answer:
        async with TimerClient(kafka, topic_prefix=topic_prefix, timeout_s=10.0) as client:
            return await (client.create if if_absent else client.at)(when=when(), **callback)

    timer = wait_for(schedule())
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
    Move the pending timer ID, by --in or by --at.

    Without --topic it keeps its topic, key, value, token and headers. Exits
    with 0 if it was moved, and with 5 if no timer of this id is pending; then
    nothing has changed.

    With --topic nothing of it is kept: give key, value and the rest anew. The
    new timer stands in any case. Exits with 0 if the earlier one does not fire
    any more, with 3 if it was too late for that, so that both fire, and with 4
    if no timer of this id is known. With 1 nothing is known of the earlier one,
    and the line on the standard error says whether the new one stands.

    With --if-pending the new timer stands only where it replaces a pending one.
    Where it does not, the command exits with 5, and nothing has changed.
    """
    when, callback = callback_of(given)

    async def ask() -> Answer:
        async with TimerClient(kafka, topic_prefix=topic_prefix, timeout_s=10.0) as client:
            return await client.move(timer_id, when(), **callback)

    _show_new(timer_id, wait_for(ask()), as_json)


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
    type=Where(),
    multiple=True,
    help="instead of IDs: topic=, key=, id-prefix=, from=, to=; repeatable",
)
@click.option(
    "--limit", type=click.IntRange(min=1), default=1_000, show_default=True, help="with --where: at most so many"
)
@click.option("--dry-run", is_flag=True, help="with --where: show what would be cancelled, and cancel nothing")
@click.option("--yes", is_flag=True, help="with --where: do not ask")
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
    Take back the pending timers with these IDs.

    Exits with 0 if none of them fires any more, with 3 if it is too late for
    one, so that it fires or has fired, with 4 if one is not known: never seen,
    or its second more than an hour ago. With --if-pending it exits with 0 if
    it has taken all of them back itself, and with 5 if one was not pending. Of
    several codes it is the highest, but 1 if an answer is missing; the standard
    error says which.

    With --where it takes back all timers for which that holds, as in

    \b
      kafka-timers cancel --where topic=reminders --where id-prefix=cust-7-

    It asks the workers for them, as `kafka-timers list` does, shows some of
    them, and asks you. Each is taken back only if it still is the one that was
    shown. Those without a timer id cannot be. Where more than --limit match,
    nothing is cancelled.
    """
    if bool(timer_ids) == bool(where):
        raise click.UsageError("give IDs or --where")
    if where and if_pending:
        raise click.UsageError("--if-pending is about IDs: what --where finds is cancelled on that condition anyway")
    if request is not None and len(timer_ids) > 1:
        raise click.UsageError("--request is the request of one timer: give one ID with it")
    settings, unknown = QuerySettings(**given), dict[int, str]()
    wanted: list[tuple[str, dict[str, Any]]]
    wanted = [(timer_id, {"if_pending": if_pending, "request": request}) for timer_id in timer_ids]
    if where:
        waiting, unknown = _matching(given, dict(where), limit)
        named = [timer for timer in waiting if bytes_in(timer, "timer_id")]
        if dry_run or not yes or not named:
            _preview(waiting, len(named))
        if not named or dry_run:
            if as_json:
                click.echo(json.dumps(waiting))
            say_unknown(unknown)
            sys.exit(0 if named else EXIT_CODES[Outcome.UNKNOWN])
        if not yes:
            click.confirm(f"cancel {len(named):,} timers?", abort=True, err=True)
        wanted = [(timer["timer_id"], {"if_pending": True, "request": timer["request"]}) for timer in named]

    async def ask() -> list[Answer | KafkaTimersError]:
        async with TimerClient(settings.kafka, topic_prefix=settings.topic_prefix, timeout_s=10.0) as client:
            return await answers_to([client.cancel(timer_id, **how) for timer_id, how in wanted])

    code = show_answers([timer_id for timer_id, _ in wanted], wait_for(ask()), as_json=as_json)
    say_unknown(unknown)
    sys.exit(code)


def _matching(
    given: Mapping[str, Any], where: Mapping[str, Any], limit: int
) -> tuple[list[Mapping[str, Any]], dict[int, str]]:
    """Return the timers that wait and match, and why nothing is known of a partition."""
    waiting: list[Mapping[str, Any]] = []
    unknown: dict[int, str] = {}

    async def gather(workers: "Workers") -> bool:
        has_more = False
        async for page in workers.pages(limit, **where):
            waiting.extend(page.timers)
            unknown.update(page.unknown)
            has_more = bool(page.after)
        return has_more

    if asked(dict(given), gather):
        raise KafkaTimersError(f"more than {limit:,} timers match, so none was cancelled: narrow it, or give --limit")
    return waiting, unknown


def _preview(waiting: Sequence[Mapping[str, Any]], named: int) -> None:
    """Tell people which timers match, beside what programs read."""
    if waiting:
        Console(stderr=True).print(pending_table(waiting[:_SHOWN]))
    more = len(waiting) - _SHOWN
    click.echo(f"{f'and {more:,} more; ' if more > 0 else ''}{len(waiting):,} timers match", err=True)
    if len(waiting) > named:
        click.echo(f"{len(waiting) - named:,} of them have no timer id, so they cannot be cancelled", err=True)


async def answers_to(calls: Sequence[Coroutine[Any, Any, Answer]]) -> list[Answer | KafkaTimersError]:
    """Return the answers to *calls*, or why there is none, in their order."""
    answers: list[Answer | KafkaTimersError] = []
    for start in range(0, len(calls), _AT_ONCE):
        for answer in await asyncio.gather(*calls[start : start + _AT_ONCE], return_exceptions=True):
            if not isinstance(answer, Answer | KafkaTimersError):
                raise answer
            answers.append(answer)
    return answers


def show_answers(names: Sequence[str], answers: Sequence[Answer | KafkaTimersError], *, as_json: bool) -> int:
    """Show the *answers* to calls about *names*, and return the exit code."""
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


@click.command("fire-now")
@click.argument("timer_id", metavar="ID")
@on_instance
@json_option
def fire_now(timer_id: str, kafka: Kafka, topic_prefix: str, as_json: bool) -> None:
    """
    Have the pending timer ID fire now.

    It is moved there as it is, and only if it still is the one that was found,
    so nothing fires twice. Exits with 0 if it fires now, with 4 if no timer of
    this id waits, and with 5 if the one that did was cancelled or moved or has
    fired meanwhile; then nothing has changed.
    """

    async def ask() -> Answer | None:
        found = await find(kafka, topic_prefix, timer_id)
        if found.waiting is None:
            click.echo(found_line(timer_id, found), err=True)
            return None
        request, _, future = found.waiting
        async with TimerClient(kafka, topic_prefix=topic_prefix, timeout_s=10.0) as client:
            now_ms = moment_after(0, HostClock().wall_s())
            return await client.ask(only_if_pending(future, True, request), now_ms)

    answer = wait_for(ask())
    if answer is None:
        if as_json:
            click.echo("null")
        else:
            click.echo(f"{printable(timer_id.encode('utf-8', 'surrogateescape'))}: no timer of this id waits", err=True)
        sys.exit(EXIT_CODES[Outcome.UNKNOWN])
    _show_new(timer_id, answer, as_json)


ASKING = (send, move, cancel, fire_now)
