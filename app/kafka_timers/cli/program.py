"""
The command line: commands that start the service's processes, manage its topics, and show its state.

The options of a process are the fields of its settings. A command imports its libraries when it runs. So help needs
neither Faust nor RocksDB, and the other commands work on a machine without them. The help is also docs/cli.md.
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
from kafka_timers.broker.environment import env_name
from kafka_timers.cli.asking import ASKING, EXIT_CODES
from kafka_timers.cli.lake import lake
from kafka_timers.cli.lake_audit import LAKE_AUDIT
from kafka_timers.cli.lake_jobs import LAKE_JOBS
from kafka_timers.cli.listing import PENDING
from kafka_timers.cli.options import Seconds, count_option, json_option, on_instance, on_kafka, options_of
from kafka_timers.cli.recurrence import schedule
from kafka_timers.cli.rejects import REJECTED
from kafka_timers.cli.relogging import log as relog
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
from kafka_timers.client.request import Outcome
from kafka_timers.clock import HostClock
from kafka_timers.console.console_settings import ConsoleSettings
from kafka_timers.errors import KafkaTimersError
from kafka_timers.operate.acls import PROCESSES, acls_of
from kafka_timers.operate.capacity import needs_of
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
from kafka_timers.serve.dev_settings import DevSettings
from kafka_timers.serve.serve_settings import ServeSettings
from kafka_timers.settings import GroupSettings, OscillatorSettings, PlannerSettings, WorkerSettings


def _advised(text: str) -> str:
    """Return *text*, with the options that name this instance added to each command in it."""
    return with_instance(text, click.get_current_context().find_root().obj)


class _Program(click.Group):
    """The group of all commands. A `KafkaTimersError` becomes one line and exit code 1."""

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

    To try it, run `kafka-timers dev`: it starts a Kafka for you. You can also
    set an option by the environment variable that its help names. If you give
    both, the option wins.
    """


@program.command()
@options_of(DevSettings)
def dev(**given: Any) -> None:
    """
    Run all processes on this machine, and a Kafka for them.

    It runs those of `kafka-timers serve`, and without --bootstrap also a Kafka.
    With --lake, one more process lands and promotes far timers; its Spark takes
    a gigabyte of memory. Ctrl-C ends all of them.
    """
    with needs("dev"):
        from kafka_timers.serve.dev import run
    settings = DevSettings(**given)
    # A child process without its libraries would end at once, with a line in its own log only.
    check_installed("dev", "faust", "prometheus_client", "uvicorn", "jgo")
    if settings.lake:
        check_installed("lake", "pyspark")
    sys.exit(run(settings))


@program.command()
@options_of(ServeSettings)
def serve(**given: Any) -> None:
    """
    Run oscillator, worker and console together.

    Each is a process of its own inside. One that dies is started again, and the
    others go on. /livez, /readyz and /metrics at --port are those of all. All
    other options of the three count too, by their environment variables.

    Two of these on different hosts are a redundant instance: give the second
    one --replica 1, so that it writes no tick that the first one has written.
    """
    with needs("serve"):
        from kafka_timers.serve.serve import run
    settings = ServeSettings(**given)
    check_installed("serve", "faust", "rocksdict", "prometheus_client", *(["uvicorn"] if settings.console_port else []))
    log_to_stderr(settings.log_level)
    sys.exit(run(settings))


@program.command()
@options_of(WorkerSettings)
def worker(**given: Any) -> None:
    """
    Run a worker, which fires timers.

    Several workers share the partitions. Give each its own --data-dir.
    """
    with needs("worker"):
        from kafka_timers.processes.worker import run
    settings = WorkerSettings(**given)
    log_to_stderr(settings.log_level)
    sys.exit(run(settings))


@program.command()
@options_of(OscillatorSettings)
def oscillator(**given: Any) -> None:
    """
    Run an oscillator, which writes one tick per second.

    Run two, on different hosts, and give each its own --replica.
    """
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
        from kafka_timers.processes.planner_process import run
    settings = PlannerSettings(**given)
    log_to_stderr(settings.log_level)
    run(settings)


@program.command()
@options_of(ConsoleSettings)
def console(**given: Any) -> None:
    """
    Serve timers over HTTP, and to a browser.

    Clients ask for timers, list, move and cancel them, and send refused
    requests again; /openapi.json describes the requests. Without --token-file
    and --user-header, it serves this host alone, and changes nothing unless you
    give --writable.
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
@count_option(
    "--partitions",
    "partitions of each topic; you cannot change it later",
    default=8,
    envvar=env_name("partitions"),
    show_envvar=True,
)
@json_option
def topics_create(kafka: Kafka, topic_prefix: str, partitions: int, as_json: bool) -> None:
    """
    Create the topics that are missing.

    Existing topics stay as they are. If brokers refuse settings that are
    advice, topics are created without these, and you read what that costs.
    """
    from kafka_timers.broker.topics import create

    created = wait_for(create(kafka, topic_prefix, partitions))
    if as_json:
        click.echo(json.dumps({"created": created.topics, "left_out": created.left_out}))
        return
    for name in created.topics:
        click.echo(f"created {name} with {partitions} partitions")
    for left_out in created.left_out:
        click.echo(left_out, err=True)
    if not created.topics:
        click.echo("all topics exist and stay as they are")


@topics.command("check")
@on_instance
@options_of(WorkerSettings, "horizon_s", "keep_s")
@json_option
def topics_check(kafka: Kafka, topic_prefix: str, horizon_s: int, keep_s: int, as_json: bool) -> None:
    """
    Check the topics, and list their problems.

    It exits with 1 if there is a problem.
    """
    from kafka_timers.broker.seals import partitions_served
    from kafka_timers.broker.topics import check

    async def found() -> list[str]:
        return await check(kafka, topic_prefix, horizon_s, await partitions_served(kafka, topic_prefix), keep_s)

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
    Show the history of the timer ID: requests and cancels.

    It reads `timer-request` from the oldest request on that may be pending in
    the partition of the ID, and takes the state of each record from the seals.
    A request and its copy from the lake are shown as one.

    \b
    States of a request:
      pending    waits at a worker
      parked     waits in the lake
      fired      its callback is out
      cancelled  cancelled in time
      moved      replaced by the next request
      refused    with the reason

    A cancel is cancelled, too late or unknown. A request or a cancel with a
    condition that did not hold is ignored.

    \b
    Exit codes:
      0  all is shown
      1  the timer is parked, and is overdue or will be late: the lake is behind
      4  nothing is known of this ID
    """
    found = wait_for(read_timers(kafka, topic_prefix, timer_id))
    if as_json:
        click.echo(json.dumps(found_document(timer_id, found)))
    else:
        if found.outcomes:
            Console().print(history_table(found.partition, found.outcomes))
        click.echo(found_line(timer_id, found))
        if found.problem:
            click.secho(_advised(found.problem), fg="red")
    sys.exit(1 if found.problem else 0 if found.outcomes else EXIT_CODES[Outcome.UNKNOWN])


@program.command()
@click.argument("topic")
@on_kafka
@click.option("--from-beginning", is_flag=True, help="also show the callbacks that the topic already has")
@count_option("--count", "number of callbacks after which to stop  [default: go on until Ctrl-C]")
@json_option
def watch(topic: str, kafka: Kafka, from_beginning: bool, count: int | None, as_json: bool) -> None:
    """
    Show callbacks on TOPIC as they come.

    It shows the due time (UTC), the lateness, key and value of each callback,
    and its headers on the next line. It escapes characters that do not print,
    and reads committed records only, as your receivers should.

    The lateness comes from the record's timestamp. On a topic without
    LogAppendTime, that is the time at which the worker built the callback.
    """

    def shown(record: ConsumerRecord, now_s: float) -> str:
        if as_json:
            return json.dumps(callback_document(record, now_s))
        return "\n".join(callback_lines(record, now_s, Console().width))

    async def show() -> None:
        clock, left = HostClock(), count
        async with watching(kafka, topic, from_beginning=from_beginning) as following:
            click.echo(f"watching {topic}; Ctrl-C ends", err=True)
            while left != 0:
                for record in (await following.poll())[:left]:
                    click.echo(shown(record, clock.wall_s()))
                    left = left and left - 1

    # Ctrl-C is how this command ends.
    with suppress(KeyboardInterrupt):
        wait_for(show())


@program.command()
@options_of(GroupSettings)
@options_of(WorkerSettings, "allowed_topics", "seal_every_s")
@json_option
def status(allowed_topics: str, seal_every_s: int, as_json: bool, **given: Any) -> None:
    """
    Show the state of the service, its problems and their remedies.

    It asks Kafka alone, so it works while no worker runs. The state of the
    partitions comes from `timer-sealed`, with the lateness of the last seal
    that fired a timer. The state of workers and doors comes from their consumer
    groups. It exits with 1 if there is a problem.
    """
    settings = GroupSettings(**given)
    found = wait_for(
        read_status(
            *(settings.kafka, settings.topic_prefix, settings.group, HostClock()),
            allowed_topics=allowed_topics,
            seal_every_s=seal_every_s,
        )
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
@click.option(
    "--rate", type=click.FloatRange(min=0, min_open=True), required=True, help="timers per second, in the busiest hour"
)
@click.option("--delay", "delay_s", type=Seconds(), required=True, help="average wait of a timer, as 30d")
@click.option("--payload", "payload_bytes", type=click.IntRange(min=0), required=True, help="bytes of a callback")
@click.option(
    "--keep",
    "keep_s",
    type=Seconds(),
    default="7d",
    help="--keep-s of the workers; 0s if they trim nothing",
    show_default=True,
)
@click.option(
    "--horizon",
    "horizon_s",
    type=Seconds(),
    default="0s",
    help="longest wait that workers keep, as 1d; a lake has the rest  [default: no lake]",
)
@count_option("--replication", "replicas of the topics", default=3)
@json_option
def capacity(as_json: bool, **given: Any) -> None:
    """
    Compute the partitions, workers, disks and bandwidth for a load.

    The figures behind it were measured on the machine that docs/performance.md
    describes. Sizes are upper bounds, for payloads that do not compress.
    """
    found = needs_of(**given)
    if as_json:
        click.echo(json.dumps(capacity_document(found)))
    else:
        Console().print(capacity_table(found))


@program.command()
@options_of(WorkerSettings, "bootstrap", "topic_prefix", "group", "allowed_topics", "door")
@click.option(
    "--principal",
    "principals",
    type=(click.Choice(list(PROCESSES)), str),
    multiple=True,
    metavar="PROCESS PRINCIPAL",
    help="Kafka user of a process, as worker User:timers; repeatable  [default: User:worker and so on]",
)
@json_option
def acls(bootstrap: str, principals: Sequence[tuple[str, str]], as_json: bool, **given: str) -> None:
    """
    Print the Kafka permissions that each process needs.

    You get calls of `kafka-acls.sh` that give each process these permissions
    and no others. It asks no broker. Give it the topic prefix, group, allowed
    topics and doors of your workers.
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
program.add_command(relog)
for command in (*LAKE_JOBS, *LAKE_AUDIT):
    lake.add_command(command)
for command in (schedule, *ASKING, *PENDING, *REJECTED):
    program.add_command(command)


def main() -> None:
    """Run the program on the arguments of this process and exit with its code."""
    program(prog_name="kafka-timers")
