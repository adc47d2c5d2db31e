"""The commands that start the processes of the service. A command imports the libraries of its process when it runs."""

import sys
from typing import Any

import click

from kafka_timers.cli.options import options_of
from kafka_timers.cli.running import check_installed, log_to_stderr, needs
from kafka_timers.console.console_settings import ConsoleSettings
from kafka_timers.serve.dev_settings import DevSettings
from kafka_timers.serve.serve_settings import ServeSettings
from kafka_timers.settings import OscillatorSettings, PlannerSettings, WorkerSettings


@click.command()
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


@click.command()
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


@click.command()
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


@click.command()
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


@click.command()
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


@click.command()
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


COMMANDS = (dev, serve, worker, oscillator, planner, console)
