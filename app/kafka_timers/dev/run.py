"""
Everything on this machine, for `kafka-timers dev`: a Kafka, two oscillators and one worker, until Ctrl-C.

All of them are processes of their own, started and stopped as an operator would, with a log each.
"""

import asyncio
import contextlib
import fcntl
import shutil
import signal
import sys
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from kafka_timers import topics
from kafka_timers.dev import jars, java
from kafka_timers.dev.broker import EmbeddedKafka, refuse_taken_port
from kafka_timers.dev.process import Child
from kafka_timers.errors import BrokerError, SettingsError, TopicsError
from kafka_timers.settings import DevSettings, WorkerSettings

__all__ = ["run"]

CALLBACK_TOPIC = "callbacks"

_MARKER = "kafka-timers-dev.lock"
_HOST = "127.0.0.1"
_READY_LIMIT_S = 60.0


def run(settings: DevSettings) -> int:
    """
    Run everything until Ctrl-C or SIGTERM, then end it in order: the worker, the oscillators, Kafka.

    Blocks, and runs an event loop of its own, so it is called from the main thread. What it tells goes to the standard
    output. All data is kept in the settings' folder, and the next run goes on from there.

    Returns:
        0 when it was asked to end, 1 when one of the processes ended by itself or the worker did not become ready.

    Raises:
        KafkaSetupError: no Java, no jars, or a port is taken.
        SettingsError: the folder holds other things, or another run uses it.
        TopicsError: topics exist that do not fit.
        BrokerError: no Kafka answers at the address given.
    """
    folder = Path(settings.folder).absolute()
    with claimed(folder, fresh=settings.fresh):
        if not settings.bootstrap:
            # Before the event loop, where Ctrl-C ends a download at once.
            java.find()
            jars.classpath()
        return asyncio.run(_until_asked_to_end(_serve(settings, folder, Console())))


@contextlib.contextmanager
def claimed(folder: Path, *, fresh: bool) -> Iterator[None]:
    """
    Have *folder* for this process alone as long as the block runs; it is made when it does not exist.

    Args:
        folder: as in the settings.
        fresh: delete what earlier runs left in it.

    Raises:
        SettingsError: the folder holds things but was never used by `kafka-timers dev`, or is in use by another run.
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


async def _until_asked_to_end(serving: Coroutine[None, None, int]) -> int:
    asked = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, asked.set)
    main, end = asyncio.create_task(serving), asyncio.create_task(asked.wait())
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
    for replica in range(2):
        refuse_taken_port(settings.oscillator_port + replica, f"oscillator {replica} (--oscillator-port)")
    # Left in the opposite order, and also when this is cancelled: the worker, the oscillators, Kafka.
    async with AsyncExitStack() as stack:
        stack.callback(console.print, "Everything has ended; the next start goes on from here.")
        bootstrap, obituaries = settings.bootstrap, []
        if not bootstrap:
            with console.status("Starting Kafka"):
                kafka = await stack.enter_async_context(EmbeddedKafka(folder / "kafka", settings.port))
            bootstrap, obituaries = kafka.bootstrap, [kafka.obituary()]
        await _prepare_topics(settings, bootstrap)
        for name, arguments in _commands(settings, bootstrap, folder).items():
            command = [sys.executable, "-m", "kafka_timers", *arguments]
            child = await Child.start(name, command, folder / "log" / f"{name}.log")
            stack.push_async_callback(child.stop)
            obituaries.append(child.obituary())
        with console.status("Waiting for the worker"):
            trouble = await _first(_ready(settings.worker_port, folder), *obituaries)
        ...
    return 1
