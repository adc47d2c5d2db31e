"""`kafka-timers rejected` and `redrive`: commands that show refused requests and send them again."""

import json
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import click

from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.seals import last_seals
from kafka_timers.broker.ticked import ticked_s
from kafka_timers.cli.asking import answers_to, show_answers, with_client
from kafka_timers.cli.options import (
    Delay,
    Seconds,
    When,
    count_option,
    given_by,
    json_option,
    moment_given,
    on_instance,
)
from kafka_timers.cli.render import printable, rejected_lines
from kafka_timers.cli.running import wait_for
from kafka_timers.core.rejected import Again, Rejected
from kafka_timers.core.wire import Topics
from kafka_timers.errors import KafkaTimersError, RequestError
from kafka_timers.operate.redrive import Which, reading_rejected

_SHOWN = 10


# The first three are the fields of `Which`.
_filters = given_by(
    click.option("--reason", "reasons", multiple=True, help="only requests with this reason; repeatable"),
    click.option("--topic", default="", help="only requests for this callback topic"),
    click.option("--timer-id", default="", help="only requests with this timer id"),
    click.option("--since", "since_s", type=Seconds(), help="how far back to look, as 1h  [default: all]"),
)


@click.command()
@on_instance
@_filters
@count_option("--limit", "most requests to show; the last ones count", default=50)
@click.option("--follow", is_flag=True, help="go on with newly refused requests, until Ctrl-C")
@json_option
def rejected(
    kafka: Kafka, topic_prefix: str, since_s: int | None, limit: int, follow: bool, as_json: bool, **which: Any
) -> None:
    """
    Show refused requests and their reasons, the last one last.

    It shows for each its place on `timer-rejected`, the reason, the request and
    the timer that was asked for. docs/wire.md explains the reasons, and
    docs/migrate.md those of doors. `kafka-timers redrive` sends requests again.

    With --json, each request is a line of its own.
    """
    wanted = Which(**which)

    def show(each: Rejected) -> None:
        if as_json:
            click.echo(json.dumps(each.document()))
        else:
            for line in rejected_lines(each):
                click.echo(line)

    async def read() -> None:
        now_s = 0 if since_s is None else await ticked_s(kafka, topic_prefix)
        async with reading_rejected(kafka, topic_prefix) as log:
            found, count = await log.last(wanted, _from_ms(since_s, now_s), limit)
            if count > len(found):
                click.echo(f"{count - len(found):,} earlier ones are left out: give a --limit above {limit}", err=True)
            for each in found:
                show(each)
            if not found and not as_json:
                click.echo("nothing was refused", err=True)
            if follow:
                async for each in log.after():
                    if wanted.takes(each):
                        show(each)

    # Ctrl-C is how --follow ends.
    with suppress(KeyboardInterrupt):
        wait_for(read())


@click.command()
@click.argument("places", metavar="[PLACE]...", nargs=-1)
@on_instance
@_filters
@click.option(
    "--in", "delay_ms", type=Delay(), help="fire after this duration  [default: at their own time; at once if past]"
)
@click.option("--at", "when", type=When(), help="fire at this time: ISO 8601 with a zone, or UNIX seconds")
@count_option("--limit", "most requests to send", default=1_000)
@click.option("--dry-run", is_flag=True, help="show the requests, and send nothing")
@click.option("--yes", is_flag=True, help="do not ask before sending")
@json_option
def redrive(
    places: Sequence[str],
    kafka: Kafka,
    topic_prefix: str,
    since_s: int | None,
    delay_ms: int | None,
    when: datetime | float | None,
    limit: int,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    **which: Any,
) -> None:
    """
    Send refused requests again, after you have removed the cause.

    Give the PLACEs that `kafka-timers rejected` shows, or filters. It shows you
    the requests, and asks you before it sends them. Timers whose time is past
    fire at once.

    Workers ignore a request that was sent again before, and a request whose
    timer id has a later timer. They do so while the id is known: until an hour
    after the second of its timer. The id rejected-PLACE is given to a request
    without a timer id.

    \b
    Exit codes:
      0  all requests are accepted
      1  one cannot be sent again, or none was found; the standard error says
         why
      5  one was ignored
    """
    wanted = Which(**which)
    if bool(places) == bool(since_s is not None or wanted != Which()):
        raise click.UsageError("give PLACEs, or say which with --reason, --topic, --timer-id or --since")
    due_ms = moment_given(delay_ms, when)
    found, partitions, now_s = wait_for(_chosen(kafka, topic_prefix, places, wanted, since_s, limit))
    again, not_again = dict[str, Again](), list[str]()
    for each in found:
        try:
            again[each.place] = each.again(Topics.of(topic_prefix).requests, partitions, now_s * 1000, due_ms)
        except RequestError as error:
            not_again.append(str(error))

    _preview([each for each in found if each.place in again], not_again)
    if again and not dry_run:
        if not yes:
            click.confirm(f"send {len(again):,} requests again?", abort=True, err=True)
        answers = with_client(
            kafka,
            topic_prefix,
            lambda client: answers_to([client.ask(each.future, each.due_ms) for each in again.values()]),
        )
        code = show_answers([each.future.timerId for each in again.values()], answers, as_json=as_json)
    else:
        code = 0
        if as_json:
            click.echo(json.dumps([each.document() for each in found if each.place in again]))
    sys.exit(1 if not_again or not found else code)


def _from_ms(since_s: int | None, now_s: int) -> int:
    return 0 if since_s is None else (now_s - since_s) * 1000


async def _chosen(
    kafka: Kafka, prefix: str, places: Sequence[str], which: Which, since_s: int | None, limit: int
) -> tuple[list[Rejected], int, int]:
    """Return the requests to send again, the number of partitions that the service serves, and the last tick."""
    partitions, now_s = len(await last_seals(kafka, prefix)), await ticked_s(kafka, prefix)
    async with reading_rejected(kafka, prefix) as log:
        if places:
            found = [await log.at(place) for place in dict.fromkeys(places)]
        else:
            found, count = await log.last(which, _from_ms(since_s, now_s), limit)
            if count > len(found):
                raise KafkaTimersError(f"{count:,} match, so none was sent: narrow it, or give --limit")
        return [await log.whole(each) for each in found], partitions, now_s


def _preview(found: Sequence[Rejected], not_again: Sequence[str]) -> None:
    for each in found[:_SHOWN]:
        for line in rejected_lines(each):
            click.echo(line, err=True)
    if len(found) > _SHOWN:
        reasons = Counter(each.reason for each in found).most_common()
        of_all = ", ".join(f"{count:,} {reason}" for reason, count in reasons)
        click.echo(printable(f"and {len(found) - _SHOWN:,} more; of all {of_all}".encode()), err=True)
    for why in not_again:
        click.secho(printable(why.encode()), fg="red", err=True)
    if not found and not not_again:
        click.echo("nothing of that kind was refused", err=True)


COMMANDS = (rejected, redrive)
