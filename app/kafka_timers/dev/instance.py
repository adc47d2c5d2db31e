"""
Run everything on this machine for `kafka-timers dev`, until Ctrl-C: a Kafka of one or three brokers, two oscillators,
one worker and a console. With a lake, its landing and promotion run too.

Each is a process of its own with a log of its own, started and stopped as an operator would do it.
"""

import asyncio
import contextlib
import fcntl
import shlex
import shutil
import sys
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
from rich.console import Console

from kafka_timers.adapters import door_topics
from kafka_timers.broker import topics
from kafka_timers.broker.connection import Kafka
from kafka_timers.core.wire import instance_name
from kafka_timers.dev import jars, java
from kafka_timers.dev.broker import EmbeddedKafka, refuse_taken_port
from kafka_timers.dev.dev_settings import DevSettings
from kafka_timers.dev.three_brokers import EmbeddedCluster
from kafka_timers.errors import SettingsError, TopicsError
from kafka_timers.runtime.child import Child
from kafka_timers.runtime.tasks import stop_asked
from kafka_timers.settings import WorkerSettings

CALLBACK_TOPIC = "callbacks"

_MARKER = "kafka-timers-dev.lock"
_HOST = "127.0.0.1"
_OSCILLATORS = 2
_READY_LIMIT_S = 300.0

# Short enough to see a timer go to the lake and come back, long enough for Spark on two cores to do it.
_HORIZON_S, _BUCKET_S, _EVERY_S = 60, 10, 20


def run(settings: DevSettings) -> int:
    """
    Run everything until Ctrl-C or SIGTERM, then end it in order: the worker, the oscillators, Kafka.

    Blocks and runs an event loop of its own, so call it from the main thread. Messages go to standard output. All data
    stays in the settings' folder, and the next run continues from there.

    Returns:
        0 after Ctrl-C or SIGTERM; 1 if a process ended by itself or the worker did not become ready. One of three
        brokers may end.

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
    refuse_taken_port(settings.worker_port, "the worker (--worker-port)")
    refuse_taken_port(settings.query_port, "questions to the worker (--query-port)")
    refuse_taken_port(settings.console_port, "the console (--console-port)")
    for replica in range(_OSCILLATORS):
        refuse_taken_port(settings.oscillator_port + replica, f"oscillator {replica} (--oscillator-port)")
    if settings.lake:
        refuse_taken_port(settings.lake_port, "the lake's job (--lake-port)")
    bootstrap = settings.bootstrap
    if not bootstrap:
        for port in settings.ports:
            refuse_taken_port(port, "Kafka (--port)")
    deaths: list[asyncio.Task[str]] = []
    # The last one entered is left first, also after a cancel: the worker, the oscillators, Kafka.
    async with AsyncExitStack() as stack:

        def watch(obituary: Coroutine[Any, Any, str]) -> None:
            deaths.append(asyncio.create_task(obituary))
            stack.callback(deaths[-1].cancel)

        if not bootstrap:
            with console.status("Starting Kafka"):
                data, ports = data_folder(settings, folder), settings.ports
                kafka = EmbeddedKafka(data, ports[0]) if len(ports) == 1 else EmbeddedCluster(data, ports)
                await stack.enter_async_context(kafka)
            watch(kafka.obituary())
            bootstrap = kafka.bootstrap
        await _prepare_topics(settings, settings.kafka if settings.bootstrap else Kafka(bootstrap))
        for name, command in commands(settings, bootstrap, folder).items():
            child = await Child.start(name, command, folder / "log" / f"{name}.log")
            stack.push_async_callback(child.stop)
            watch(child.obituary())
        stack.callback(console.print, "Ending it all; the next start goes on from here.")

        with console.status("Waiting for the worker"):
            ready = asyncio.create_task(_until_ready(settings.worker_port))
            stack.callback(ready.cancel)
            await asyncio.wait((ready, *deaths), timeout=_READY_LIMIT_S, return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            _print_hints(settings, bootstrap, folder, console)
            await asyncio.wait(deaths, return_when=asyncio.FIRST_COMPLETED)
        trouble = [death.result() for death in deaths if death.done()] or [
            f"the worker is not ready after {_READY_LIMIT_S:g} s: {await _why_not_ready(settings.worker_port)}; "
            f"its log is in {folder / 'log'}"
        ]
        console.print("\n".join(trouble), style="red", markup=False, highlight=False, soft_wrap=True)
    return 1


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


def commands(settings: DevSettings, bootstrap: str, folder: Path) -> dict[str, list[str]]:
    """Return the command of each process except Kafka, by the name of the process, in the order of starting."""
    program = [sys.executable, "-m", "kafka_timers"]
    # Options with defaults are given too: otherwise a variable in the environment of this process would decide.
    instance = _instance(settings, bootstrap)
    common = [*instance, "--host", _HOST]
    oscillators = {
        f"oscillator-{replica}": [
            *(*program, "oscillator", *common, "--replica", str(replica)),
            *("--port", str(settings.oscillator_port + replica)),
        ]
        for replica in range(_OSCILLATORS)
    }
    group = ["--group", instance_name(settings.topic_prefix)]
    worker = [
        *(*program, "worker", *common, *group, "--data-dir", str(folder / "worker")),
        *("--port", str(settings.worker_port)),
        *("--query-host", _HOST, "--query-port", str(settings.query_port)),
        # The variable sets the number for new topics, and existing topics may have another.
        *("--partitions", "0"),
        *("--horizon-s", str(_HORIZON_S if settings.lake else 0)),
        *("--keep-s", str(settings.keep_s)),
        *("--door", settings.door),
    ]
    # Reachable from this host only, so everybody here may try it out.
    console = [*program, "console", *common, *group, "--port", str(settings.console_port), "--writable"]
    where = [*instance, *_lake(folder), "--master", "local[2]"]
    # One job lands and promotes: two Sparks that start side by side take twice the time and twice the memory.
    lake = [
        *(*program, "lake", "promote", "--land", *where),
        *("--every-s", str(_EVERY_S), "--bucket-s", str(_BUCKET_S)),
        *("--host", _HOST, "--port", str(settings.lake_port)),
    ]
    return {**oscillators, "worker": worker, "console": console} | ({"lake": lake} if settings.lake else {})


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
    ports = [settings.worker_port, *(settings.oscillator_port + replica for replica in range(_OSCILLATORS))]
    ports += [settings.lake_port] if settings.lake else []
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
            console.print(f"  {purpose:<16} {line}", markup=False, highlight=False, soft_wrap=True)
            purpose = ""


async def _prepare_topics(settings: DevSettings, kafka: Kafka) -> None:
    await topics.create(kafka, settings.topic_prefix, settings.partitions)
    if problems := await topics.check(kafka, settings.topic_prefix):
        raise TopicsError("\n".join(problems))
    # The broker sets the timestamp, so that `watch` shows when a callback was written, not when it was built.
    wanted = topics.Wanted({"message.timestamp.type": ("LogAppendTime", "")}, {})
    names = [CALLBACK_TOPIC, *(topic for _, topic in door_topics(settings.door))]
    await topics.make(kafka, dict.fromkeys(names, wanted), settings.partitions)


async def _until_ready(port: int) -> None:
    while await _why_not_ready(port):  # noqa: ASYNC110  # another process has to be asked
        await asyncio.sleep(0.1)


async def _why_not_ready(port: int) -> str:
    """Return the reason that /readyz at *port* gives; empty when the worker is ready."""
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session,
            session.get(f"http://{_HOST}:{port}/readyz") as response,
        ):
            return "" if response.status == 200 else (await response.text()).strip() or f"HTTP {response.status}"
    except (aiohttp.ClientError, TimeoutError) as error:
        return str(error) or "no answer"
