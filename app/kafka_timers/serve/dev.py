"""
Run everything on this machine for `kafka-timers dev`, until Ctrl-C: a Kafka of one or three brokers, and the processes
of `kafka-timers serve`. With a lake, its landing and promotion run too.

Each is a process of its own with a log of its own.
"""

import asyncio
import contextlib
import dataclasses
import fcntl
import shlex
import shutil
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Never

from rich.console import Console

from kafka_timers.adapters import door_topics
from kafka_timers.broker import topics
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.environment import env_name
from kafka_timers.broker.topic_settings import Wanted
from kafka_timers.dev import jars, java
from kafka_timers.dev.broker import EmbeddedKafka, refuse_taken_port
from kafka_timers.dev.three_brokers import EmbeddedCluster
from kafka_timers.errors import SettingsError, TopicsError
from kafka_timers.processes.gathered import Gathered
from kafka_timers.processes.supervisor import Part, own_command
from kafka_timers.runtime.tasks import cancel, stop_asked
from kafka_timers.serve.dev_settings import DevSettings
from kafka_timers.serve.serve import Instance, parts_of
from kafka_timers.serve.serve_settings import ServeSettings
from kafka_timers.settings import WorkerSettings

CALLBACK_TOPIC = "callbacks"

_MARKER = "kafka-timers-dev.lock"
_HOST = "127.0.0.1"
_READY_LIMIT_S = 300.0
_LOOK_S = 5.0
_AS_IT_IS: dict[str, Any] = {"markup": False, "highlight": False, "soft_wrap": True}

# Short enough to see a timer go to the lake and come back. Long enough for Spark on two cores to do it, and for runs of
# schedules to stay at the worker.
_HORIZON_S, _BUCKET_S, _EVERY_S = 300, 10, 20


def run(settings: DevSettings) -> int:
    """
    Run everything until Ctrl-C or SIGTERM, then end it in order: the worker, the others, Kafka.

    Blocks and runs an event loop of its own, so call it from the main thread. Messages go to standard output. All data
    stays in the settings' folder, and the next run continues from there.

    Returns:
        0 after Ctrl-C or SIGTERM; 1 if Kafka ended by itself, or a process could not start. One of three brokers may
        end, and a process that dies later is started again.

    Raises:
        KafkaSetupError: no Java, no jars, or a port is taken.
        SettingsError: the folder holds other things, or data of another number of brokers, or another run uses it.
        TopicsError: existing topics do not fit.
        BrokerError: no Kafka answers at the given address.
    """
    folder = Path(settings.folder).absolute()
    with claimed(folder, fresh=settings.fresh):
        if not settings.bootstrap:
            # Before the event loop, so that Ctrl-C ends a download at once.
            java.find()
            jars.classpath()
        return asyncio.run(_until_asked_to_end(_serve(settings, folder, Console())))


@contextlib.contextmanager
def claimed(folder: Path, *, fresh: bool) -> Iterator[None]:
    """
    Lock *folder* for this process while the block runs. The folder is created if it does not exist. With *fresh*, the
    data of earlier runs is deleted.

    Raises:
        SettingsError: the folder holds things but was never used by `kafka-timers dev`, or another run uses it.
    """
    marker = folder / _MARKER
    try:
        if not marker.exists() and folder.exists() and any(folder.iterdir()):
            raise SettingsError(f"{folder} holds things that are not of kafka-timers dev: give another with --folder")
        folder.mkdir(parents=True, exist_ok=True)
        lock = marker.open("w")
    except OSError as error:
        raise SettingsError(f"{folder} cannot be used: {error}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise SettingsError(
                f"kafka-timers dev already runs in {folder}: end that one, or give another with --folder"
            ) from error
        if fresh:
            for path in folder.iterdir():
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                elif path != marker:
                    path.unlink()
        yield


async def _until_asked_to_end(serving: Coroutine[Any, Any, int]) -> int:
    main, end = asyncio.create_task(serving), asyncio.create_task(stop_asked().wait())
    await asyncio.wait((main, end), return_when=asyncio.FIRST_COMPLETED)
    end.cancel()
    if main.done():
        return main.result()
    main.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await main
    return 0


async def _serve(settings: DevSettings, folder: Path, console: Console) -> int:
    _refuse_taken_ports(settings)
    bootstrap = settings.bootstrap
    # The last one entered is left first, also after a cancel: the processes, Kafka.
    async with AsyncExitStack() as stack:

        def meanwhile(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
            task = asyncio.create_task(work)
            stack.push_async_callback(cancel, [task])
            return task

        ends = []
        if not bootstrap:
            with console.status("Starting Kafka"):
                data, ports = data_folder(settings, folder), settings.ports
                kafka = EmbeddedKafka(data, ports[0]) if len(ports) == 1 else EmbeddedCluster(data, ports)
                await stack.enter_async_context(kafka)
            ends.append(meanwhile(kafka.obituary()))
            bootstrap = kafka.bootstrap
        await _prepare_topics(settings, settings.kafka if settings.bootstrap else Kafka(bootstrap))
        instance = Instance(_HOST, settings.metrics_port, parts(settings, bootstrap, folder))
        await instance.health.start()
        stack.push_async_callback(instance.health.stop)
        stop = asyncio.Event()
        running = asyncio.create_task(instance.run(stop))
        # It ends in order.
        stack.push_async_callback(asyncio.wait, [running])
        stack.callback(stop.set)
        ends.append(running)
        stack.callback(console.print, "Ending it all; the next start goes on from here.")

        with console.status("Waiting for the worker"):
            ready = meanwhile(instance.ready.wait())
            await asyncio.wait((ready, *ends), timeout=_READY_LIMIT_S, return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            _print_hints(settings, bootstrap, folder, console)
            meanwhile(tell_notes(instance.health, lambda note: console.print(note, style="red", **_AS_IT_IS)))
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        trouble = [end.result() for end in ends if end.done() and end is not running] or instance.ended()
        if not trouble:
            why = "; ".join(await instance.health.unready())
            trouble = [f"not ready after {_READY_LIMIT_S:g} s: {why}; the logs are in {folder / 'log'}"]
        console.print("\n".join(trouble), style="red", **_AS_IT_IS)
    return 1


async def tell_notes(health: Gathered, tell: Callable[[str], None]) -> Never:
    """Call *tell* with the notes on /readyz each time that there are some again, as when the lake falls behind."""
    is_told = False
    while True:
        _, notes = await health.told()
        if notes and not is_told:
            tell("\n".join(notes))
        is_told = bool(notes)
        await asyncio.sleep(_LOOK_S)


def _refuse_taken_ports(settings: DevSettings) -> None:
    refuse_taken_port(settings.metrics_port, "the metrics of all processes (--metrics-port)")
    refuse_taken_port(settings.metrics_port + 1, "the oscillator (--metrics-port and one more)")
    refuse_taken_port(settings.metrics_port + 2, "the worker (--metrics-port and two more)")
    refuse_taken_port(settings.query_port, "questions to the worker (--query-port)")
    refuse_taken_port(settings.console_port, "the console (--console-port)")
    if settings.lake:
        refuse_taken_port(settings.lake_port, "the lake's job (--lake-port)")
    for port in () if settings.bootstrap else settings.ports:
        refuse_taken_port(port, "Kafka (--port)")


def data_folder(settings: DevSettings, folder: Path) -> Path:
    """
    Return the data folder of the embedded Kafka; it need not exist.

    Raises:
        SettingsError: there is data of another number of brokers, and so the stores of a worker of that Kafka.
    """
    folders = {1: folder / "kafka", 3: folder / "kafka-of-3"}
    for brokers, data in folders.items():
        if brokers != settings.brokers and data.exists():
            raise SettingsError(
                f"{folder} holds data of a run with --brokers {brokers}: give the same, or --fresh, or another --folder"
            )
    return folders[settings.brokers]


def parts(settings: DevSettings, bootstrap: str, folder: Path) -> list[Part]:
    """Return all processes except Kafka, in the order of starting."""
    # Options with defaults are given too: otherwise a variable in the environment of this process would decide.
    served = ServeSettings.from_env(
        bootstrap=bootstrap,
        kafka_config=settings.kafka_config,
        topic_prefix=settings.topic_prefix,
        group="",
        data_dir=str(folder / "worker"),
        host=_HOST,
        port=settings.metrics_port,
        query_host=_HOST,
        query_port=settings.query_port,
        console_host=_HOST,
        console_port=settings.console_port,
        # Reachable from this host only, so everybody here may try it out.
        writable=True,
        token_file="",
        replica=0,
        door=settings.door,
    )
    horizon_s = _HORIZON_S if settings.lake else 0
    more = {env_name("horizon_s"): str(horizon_s), env_name("keep_s"): str(settings.keep_s)}
    # One job lands and promotes: two Sparks that start side by side take twice the time and twice the memory.
    lake = Part(
        name="lake",
        command=own_command(
            *("lake", "promote", "--land", *_instance(settings, bootstrap), *_lake(folder), "--master", "local[2]"),
            *("--every-s", str(_EVERY_S), "--bucket-s", str(_BUCKET_S)),
            *("--host", _HOST, "--port", str(settings.lake_port)),
        ),
        end_s=10.0,
    )
    found = [*parts_of(served), lake] if settings.lake else parts_of(served)
    return [
        dataclasses.replace(part, env={**part.env, **more}, log=folder / "log" / f"{part.name}.log") for part in found
    ]


def _instance(settings: DevSettings, bootstrap: str) -> list[str]:
    where = ["--bootstrap", bootstrap, "--topic-prefix", settings.topic_prefix]
    return [*where, "--kafka-config", str(Path(settings.kafka_config).absolute())] if settings.kafka_config else where


def _lake(folder: Path) -> list[str]:
    return ["--lake", str(folder / "lake"), "--horizon-s", str(_HORIZON_S)]


def hints(settings: DevSettings, bootstrap: str, folder: Path) -> dict[str, list[str]]:
    """Return commands to try next in a second terminal, and addresses to look at: lines by purpose."""
    where = f" --bootstrap {bootstrap}" if bootstrap != WorkerSettings.bootstrap else ""
    if settings.kafka_config:
        where += f" --kafka-config {shlex.quote(settings.kafka_config)}"
    prefixed = f"{where} --topic-prefix {settings.topic_prefix}" if settings.topic_prefix else where
    ports = [settings.metrics_port, settings.lake_port] if settings.lake else [settings.metrics_port]
    send = f"kafka-timers send --in {{}} --topic {CALLBACK_TOPIC} --key order-1 --value hello{prefixed}"
    query = 'kafka-timers lake sql "select * from pending"'
    lake = {
        # A quick user sends it before Spark has started, which takes a minute or two.
        "one to the lake": [send.format(f"{_HORIZON_S + 120}s")],
        "ask the lake": [f"{query} {shlex.join(_lake(folder))}{prefixed}"],
    }
    return {
        "look and try": [f"http://{_HOST}:{settings.console_port}"],
        "watch callbacks": [f"kafka-timers watch {CALLBACK_TOPIC}{where}"],
        "send a timer": [send.format("3s")],
        **(lake if settings.lake else {}),
        "list timers": [f"kafka-timers list{prefixed}"],
        "show the status": [f"kafka-timers status{prefixed}"],
        "metrics": [f"http://{_HOST}:{port}/metrics" for port in ports],
        "logs": [str(folder / "log")],
    }


def _print_hints(settings: DevSettings, bootstrap: str, folder: Path, console: Console) -> None:
    console.print(f"Timers fire on Kafka at {bootstrap}. Ctrl-C ends it all.\n", highlight=False)
    for purpose, lines in hints(settings, bootstrap, folder).items():
        for line in lines:
            # Never wrapped, because users copy the lines.
            console.print(f"  {purpose:<16} {line}", **_AS_IT_IS)
            purpose = ""


async def _prepare_topics(settings: DevSettings, kafka: Kafka) -> None:
    await topics.create(kafka, settings.topic_prefix, settings.partitions)
    if problems := await topics.check(kafka, settings.topic_prefix):
        raise TopicsError("\n".join(problems))
    # The broker sets the timestamp, so that `watch` shows when a callback was written, not when it was built.
    wanted = Wanted({"message.timestamp.type": ("LogAppendTime", "")}, {})
    names = [CALLBACK_TOPIC, *(topic for _, topic in door_topics(settings.door))]
    await topics.make(kafka, dict.fromkeys(names, wanted), settings.partitions)
