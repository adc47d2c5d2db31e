"""
The command line: starts the service's processes, makes and checks its topics, and looks at what it does.

Options of a process are the fields of its settings. A command imports what it runs when it runs, so that help costs
neither Faust nor RocksDB and a machine without them still has the other commands. docs/cli.md is made of the help.
"""

import asyncio
import json
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

import click
from aiokafka import ConsumerRecord
from rich.console import Console

from kafka_timers import __version__
from kafka_timers.broker.connection import Kafka
from kafka_timers.cli.lake import lake
from kafka_timers.cli.options import (
    Delay,
    Principal,
    callback_of,
    callback_options,
    condition_options,
    json_option,
    on_instance,
    on_kafka,
    options_of,
)
from kafka_timers.cli.pending import COMMANDS
from kafka_timers.cli.render import (
    answer_line,
    callback_line,
    capacity_table,
    found_line,
    history_table,
    second_text,
    status_lines,
    status_table,
)
from kafka_timers.cli.running import log_to_stderr, needs, wait_for
from kafka_timers.client.request import Answer, Timer
from kafka_timers.client.timer_client import TimerClient
from kafka_timers.clock import HostClock
from kafka_timers.environment import env_name
from kafka_timers.errors import KafkaTimersError
from kafka_timers.operate.acls import PROCESSES, acls_of
from kafka_timers.operate.capacity import Load, needs_of
from kafka_timers.operate.documents import (
    acls_document,
    answer_document,
    callback_document,
    capacity_document,
    found_document,
    status_document,
    timer_document,
)
from kafka_timers.operate.find import find as read_timers
from kafka_timers.operate.health import problems_of
from kafka_timers.operate.status import read_status
from kafka_timers.operate.watch import watching
from kafka_timers.settings import DevSettings, OscillatorSettings, WorkerSettings

__all__ = ["main", "program"]

# What `cancel`, `move` and `send --if-absent` exit with, by the outcome.
_EXIT_CODES = {"CANCELLED": 0, "MOVED": 0, "ACCEPTED": 0, "TOO_LATE": 3, "UNKNOWN": 4, "IGNORED": 5}


class _Program(click.Group):
    """The program; every error that kafka-timers raises on purpose becomes one line and exit code 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KafkaTimersError as error:
            click.secho(f"Error: {error}", fg="red", err=True)
            ctx.exit(1)


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
@on_instance
@click.option(
    "--partitions",
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    envvar=env_name("partitions"),
    show_envvar=True,
    help="partitions of each topic; fixed for life",
)
@json_option
def topics_create(kafka: Kafka, topic_prefix: str, partitions: int, as_json: bool) -> None:
    """
    Create the topics that are missing.

    Existing ones stay as they are.
    """
    from kafka_timers.broker.topics import create

    created = wait_for(create(kafka, topic_prefix, partitions))
    if as_json:
        click.echo(json.dumps({"created": created}))
    for name in () if as_json else created:
        click.echo(f"created {name} with {partitions} partitions")
    if not created and not as_json:
        click.echo("all topics exist and stay as they are")


@topics.command("check")
@on_instance
@options_of(WorkerSettings, "horizon_s")
@json_option
def topics_check(kafka: Kafka, topic_prefix: str, horizon_s: int, as_json: bool) -> None:
    """
    Say what is wrong with the topics.

    Exits with 1 when anything is.
    """
    from kafka_timers.broker.seals import partitions_served
    from kafka_timers.broker.topics import check

    async def found() -> list[str]:
        return await check(kafka, topic_prefix, horizon_s, await partitions_served(kafka, topic_prefix))

    problems = wait_for(found())
    if as_json:
        click.echo(json.dumps({"problems": problems}))
    for problem in () if as_json else problems or ["all topics are as they should be"]:
        click.echo(problem)
    sys.exit(1 if problems else 0)


@program.command()
@on_instance
@callback_options
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
        click.echo(f"fires at {second_text(timer.second)}, request {timer.request}")


@program.command()
@click.argument("timer_id", metavar="ID")
@on_instance
@callback_options
@condition_options
@json_option
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
    sys.exit(_EXIT_CODES[answer.outcome])


@program.command()
@click.argument("timer_ids", metavar="ID...", nargs=-1, required=True)
@on_instance
@condition_options
@json_option
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
    if condition["request"] is not None and len(timer_ids) > 1:
        raise click.UsageError("--request is the request of one timer: give one ID with it")

    async def ask() -> list[Answer | BaseException]:
        async with TimerClient(kafka, topic_prefix=topic_prefix, timeout_s=10.0) as client:
            calls = [client.cancel(timer_id, **condition) for timer_id in timer_ids]
            return await asyncio.gather(*calls, return_exceptions=True)

    answers = wait_for(ask())
    shown, codes = [], []
    for timer_id, answer in zip(timer_ids, answers, strict=True):
        if isinstance(answer, KafkaTimersError):
            click.secho(f"Error: {answer}", fg="red", err=True)
            shown.append({"timer_id": timer_id, "error": str(answer)})
        elif isinstance(answer, BaseException):
            raise answer
        else:
            codes.append(_EXIT_CODES[answer.outcome])
            shown.append(answer_document(timer_id, answer))
            if not as_json:
                click.echo(answer_line(timer_id, answer))
    if as_json:
        click.echo(json.dumps(shown))
    sys.exit(max(codes) if len(codes) == len(answers) else 1)


@program.command()
@click.argument("timer_id", metavar="ID")
@on_instance
@json_option
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
    found = wait_for(read_timers(kafka, topic_prefix, timer_id))
    if as_json:
        click.echo(json.dumps(found_document(timer_id, found)))
    else:
        if found.outcomes:
            Console().print(history_table(found.partition, found.outcomes))
        click.echo(found_line(timer_id, found))
    sys.exit(0 if found.outcomes else _EXIT_CODES["UNKNOWN"])


@program.command()
@click.argument("topic")
@on_kafka
@click.option("--from-beginning", is_flag=True, help="also show what the topic holds already")
@click.option("--count", type=click.IntRange(min=1), help="stop after so many  [default: go on until Ctrl-C]")
@json_option
def watch(topic: str, kafka: Kafka, from_beginning: bool, count: int | None, as_json: bool) -> None:
    """
    Show callbacks on TOPIC as they come.

    Each with its second (UTC), its lateness, key and value; what would not
    print is spelled out. Reads committed records only, as receivers should.
    Lateness goes by the record's timestamp: on a topic that does not have the
    broker's time (LogAppendTime) that is when the worker built the callback.
    """

    def shown(record: ConsumerRecord, now_s: float) -> str:
        if as_json:
            return json.dumps(callback_document(record, now_s))
        return callback_line(record, now_s, Console().width)

    async def show() -> None:
        clock, left = HostClock(), count
        async with watching(kafka, topic, from_beginning=from_beginning) as consumer:
            click.echo(f"watching {topic}; Ctrl-C ends", err=True)
            async for record in consumer:
                click.echo(shown(record, clock.wall_s()))
                left = left and left - 1
                if left == 0:
                    return

    # Ctrl-C is how this command ends.
    with suppress(KeyboardInterrupt):
        wait_for(show())


@program.command()
@on_kafka
@options_of(WorkerSettings, "topic_prefix", "group", "allowed_topics", "seal_every_s")
@json_option
def status(kafka: Kafka, topic_prefix: str, group: str, allowed_topics: str, seal_every_s: int, as_json: bool) -> None:
    """
    Show how the service stands, and what is wrong. Asks Kafka alone.

    Partitions stand as the topic `timer-sealed` tells; lateness is that of the
    last seal that fired anything. Workers and doors stand as their consumer
    groups do. Exits with 1 if anything is wrong, and says what to do.
    """
    found = wait_for(
        read_status(kafka, topic_prefix, group, HostClock(), allowed_topics=allowed_topics, seal_every_s=seal_every_s)
    )
    if as_json:
        click.echo(json.dumps(status_document(found)))
    else:
        Console().print(status_table(found.partitions))
        for line in status_lines(found):
            click.echo(line)
    sys.exit(1 if problems_of(found) else 0)


@program.command()
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), required=True, help="timers a second, at most")
@click.option("--delay", "delay_s", type=Delay(), required=True, help="how long they wait, on average, as 30d")
@click.option("--payload", "payload_bytes", type=click.IntRange(min=0), required=True, help="bytes of a callback")
@click.option("--horizon", "horizon_s", type=Delay(), default="0s", help="what waits longer is left to a lake, as 1d")
@click.option("--replication", type=click.IntRange(min=1), default=3, show_default=True, help="replicas of the topics")
@json_option
def capacity(as_json: bool, **given: Any) -> None:
    """
    Tell what a load needs: partitions, workers, disks, bandwidth.

    From figures that were measured on one machine, of which docs/performance.md
    tells; sizes are upper bounds, for payloads that do not compress.
    """
    found = needs_of(Load(**given))
    if as_json:
        click.echo(json.dumps(capacity_document(found)))
    else:
        Console().print(capacity_table(found))


@program.command()
@options_of(WorkerSettings, "bootstrap", "topic_prefix", "group", "allowed_topics", "door")
@click.option(
    "--principal",
    "principals",
    type=Principal(),
    multiple=True,
    help="who runs a process, as worker=User:timers; User:worker and so on without it; repeatable",
)
@json_option
def acls(bootstrap: str, principals: Sequence[tuple[str, str]], as_json: bool, **given: str) -> None:
    """
    Tell what each process must be allowed to do, and no more.

    Prints the calls of Kafka's own tool that allow it; asks no broker. Give it
    the topic prefix, group, allowed topics and doors of the workers.
    """
    who = {process: f"User:{process}" for process in PROCESSES} | dict(principals)
    found = acls_of(given["topic_prefix"], given["group"], given["allowed_topics"], given["door"])
    if as_json:
        click.echo(json.dumps(acls_document(found, who)))
        return
    for process, what in PROCESSES.items():
        click.echo(f"# {process}: {what}")
        for acl in (acl for acl in found if acl.process == process):
            click.echo(shlex.join(acl.command(who[process], bootstrap)))


program.add_command(lake)
for command in COMMANDS:
    program.add_command(command)


def main() -> None:
    """Run the program on the arguments of this process and exit with its code."""
    program(prog_name="kafka-timers")
