"""The commands that make the topics of an instance, show its state, and say what it needs."""

import json
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import click
from aiokafka import ConsumerRecord

from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.environment import env_name
from kafka_timers.cli.asking import EXIT_CODES
from kafka_timers.cli.options import Seconds, count_option, json_option, on_instance, on_kafka, options_of
from kafka_timers.cli.render import callback_lines, found_lines, problem_lines, status_lines
from kafka_timers.cli.running import advised, wait_for
from kafka_timers.cli.terminal import capacity_table, history_table, status_table, terminal
from kafka_timers.client.request import Outcome
from kafka_timers.clock import HostClock
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
from kafka_timers.settings import GroupSettings, WorkerSettings


@click.group()
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
        click.echo(advised(problem))
    sys.exit(1 if problems else 0)


@click.command()
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
    condition that did not hold is ignored. The timer that stands is the last
    request that was neither ignored nor refused as it came.

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
            terminal().print(history_table(found.partition, found.outcomes))
        for line in found_lines(timer_id, found):
            click.echo(line)
        if found.problem:
            click.secho(advised(found.problem), fg="red")
    sys.exit(1 if found.problem else 0 if found.outcomes else EXIT_CODES[Outcome.UNKNOWN])


@click.command()
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
        return "\n".join(callback_lines(record, now_s, terminal().width))

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


@click.command()
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
        terminal().print("", status_table(found.partitions), "", sep="\n")
        for line in problem_lines(problems):
            click.secho(advised(line), fg="red" if problems else "green")
    sys.exit(1 if problems else 0)


@click.command()
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
        terminal().print(capacity_table(found))


@click.command()
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


COMMANDS = (topics, find, watch, status, capacity, acls)
