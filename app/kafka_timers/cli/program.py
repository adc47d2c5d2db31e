"""
The command line: starts the service's processes, makes and checks its topics, and looks at what it does.

Options of a process are the fields of its settings. A command imports what it runs when it runs, so that help costs
neither Faust nor RocksDB and a machine without them still has the other commands. docs/cli.md is made of the help.
"""

import json
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Any

import click
from aiokafka import ConsumerRecord
from rich.console import Console

from kafka_timers import __version__
from kafka_timers.broker.connection import Kafka
from kafka_timers.cli.asking import ASKING, EXIT_CODES
from kafka_timers.cli.lake import lake
from kafka_timers.cli.lake_jobs import LAKE_JOBS
from kafka_timers.cli.options import (
    Principal,
    Seconds,
    json_option,
    on_instance,
    on_kafka,
    options_of,
)
from kafka_timers.cli.pending import PENDING
from kafka_timers.cli.proofs import PROOFS
from kafka_timers.cli.rejected import REJECTED
from kafka_timers.cli.render import (
    callback_lines,
    capacity_table,
    found_line,
    history_table,
    problem_lines,
    status_lines,
    status_table,
)
from kafka_timers.cli.running import check_installed, instance_in, log_to_stderr, needs, wait_for, with_instance
from kafka_timers.cli.schedules import schedule
from kafka_timers.client.request import Outcome
from kafka_timers.clock import HostClock
from kafka_timers.console.settings import ConsoleSettings
from kafka_timers.dev.settings import DevSettings
from kafka_timers.environment import env_name
from kafka_timers.errors import KafkaTimersError
from kafka_timers.operate.acls import PROCESSES, acls_of
from kafka_timers.operate.capacity import Load, needs_of
from kafka_timers.operate.documents import (
    acls_document,
    callback_document,
    capacity_document,
    found_document,
    status_document,
)
from kafka_timers.operate.find import find as read_timers
from kafka_timers.operate.health import problems_of
from kafka_timers.operate.status import read_status
from kafka_timers.operate.watch import watching
from kafka_timers.settings import OscillatorSettings, PlannerSettings, WorkerSettings

__all__ = ["main", "program"]


def _advised(text: str) -> str:
    """Return *text* with commands that mean the instance of this one."""
    return with_instance(text, click.get_current_context().find_root().obj)


class _Program(click.Group):
    """The program; every error that kafka-timers raises on purpose becomes one line and exit code 1."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        meant = get_close_matches(args[0], self.list_commands(ctx)) if self.get_command(ctx, args[0]) is None else ()
        if meant and not ctx.resilient_parsing:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {' or '.join(meant)}?")
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.obj = instance_in(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KafkaTimersError as error:
            click.secho(f"Error: {_advised(str(error))}", fg="red", err=True)
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
    # Without them its processes would end at once, each with a line in its log.
    check_installed("dev", "faust", "prometheus_client", "uvicorn")
    if settings.lake:
        check_installed("lake", "pyspark")
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


@program.command()
@options_of(PlannerSettings)
def planner(**given: Any) -> None:
    """
    Plan recurring timers, and do nothing else.

    Each worker has a planner beside it. Start planners of their own if you want
    them apart, and give the workers --no-planner.
    """
    with needs("worker"):
        from kafka_timers.planner.process import run
    settings = PlannerSettings(**given)
    log_to_stderr(settings.log_level)
    run(settings)


@program.command()
@options_of(ConsoleSettings)
def console(**given: Any) -> None:
    """
    Serve timers over HTTP: ask, look, move, cancel, redrive.

    /openapi.json tells how. Without --token-file and --user-header it serves
    this host alone, and changes nothing unless it is --writable.
    """
    with needs("console"):
        from kafka_timers.console.run import run
    settings = ConsoleSettings(**given)
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
        click.echo(_advised(problem))
    sys.exit(1 if problems else 0)


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
    sys.exit(0 if found.outcomes else EXIT_CODES[Outcome.UNKNOWN])


@program.command()
@click.argument("topic")
@on_kafka
@click.option("--from-beginning", is_flag=True, help="also show what the topic holds already")
@click.option("--count", type=click.IntRange(min=1), help="stop after so many  [default: go on until Ctrl-C]")
@json_option
def watch(topic: str, kafka: Kafka, from_beginning: bool, count: int | None, as_json: bool) -> None:
    """
    Show callbacks on TOPIC as they come.

    Each with its second (UTC), its lateness, key and value, and below them its
    headers; what would not print is spelled out. Reads committed records only, as receivers should.
    Lateness goes by the record's timestamp: on a topic that does not have the
    broker's time (LogAppendTime) that is when the worker built the callback.
    """

    def shown(record: ConsumerRecord, now_s: float) -> str:
        if as_json:
            return json.dumps(callback_document(record, now_s))
        return "\n".join(callback_lines(record, now_s, Console().width))

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
    problems = problems_of(found)
    if as_json:
        click.echo(json.dumps(status_document(found)))
    else:
        for line in status_lines(found):
            click.echo(line)
        Console().print("", status_table(found.partitions), "", sep="\n")
        for line in problem_lines(problems):
            click.secho(_advised(line), fg="red" if problems else "green")
    sys.exit(1 if problems else 0)


@program.command()
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), required=True, help="timers a second, at most")
@click.option("--delay", "delay_s", type=Seconds(), required=True, help="how long they wait, on average, as 30d")
@click.option("--payload", "payload_bytes", type=click.IntRange(min=0), required=True, help="bytes of a callback")
@click.option("--horizon", "horizon_s", type=Seconds(), default="0s", help="what waits longer is left to a lake, as 1d")
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
for command in LAKE_JOBS:
    lake.add_command(command)
for command in (schedule, *ASKING, *PENDING, *REJECTED, *PROOFS):
    program.add_command(command)


def main() -> None:
    """Run the program on the arguments of this process and exit with its code."""
    program(prog_name="kafka-timers")
