"""
Run oscillator, worker and console in one command, for whoever does not need them apart.

Each stays a process of its own, so that a busy worker delays no tick and a crash of one does not end the others. Two of
these commands, on two hosts, are a redundant instance.
"""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

from kafka_timers.adapters import door_topics
from kafka_timers.broker import topics
from kafka_timers.broker.topic_settings import Wanted
from kafka_timers.console.console_settings import ConsoleSettings
from kafka_timers.core.wire import Topics
from kafka_timers.errors import SettingsError, TopicsError
from kafka_timers.processes.gathered import Gathered
from kafka_timers.processes.kept_worker import worker_part
from kafka_timers.processes.start import tried
from kafka_timers.processes.supervisor import Part, Supervisor, env_of, own_command
from kafka_timers.runtime.http_server import is_free, no_listening
from kafka_timers.runtime.tasks import cancel, stop_asked
from kafka_timers.serve.serve_settings import ServeSettings

log = logging.getLogger(__name__)

_LOOK_S = 0.2
# An address that listens on all addresses of this host, and one at which this host answers then.
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # compared, not bound


def run(settings: ServeSettings) -> int:
    """
    Serve until SIGTERM or SIGINT, then end all processes in order: the worker, which hands over, console, oscillator.

    Returns:
        0; or the exit code of a process that could not start and has told why.

    Raises:
        KafkaTimersError: a topic is missing or cannot be created, or the port is taken.
    """
    return asyncio.run(_run(settings))


async def _run(settings: ServeSettings) -> int:
    stop = stop_asked()
    _refuse_taken_ports(settings)
    instance = Instance(settings.host, settings.port, parts_of(settings))
    await instance.health.start()
    try:
        if await tried(partial(_topics, settings), stop, gives_up=True) is None:
            return 0
        return await instance.run(stop)
    finally:
        await instance.health.stop()


def _refuse_taken_ports(settings: ServeSettings) -> None:
    """Name all ports that are taken, before any process joins a group and disturbs those of another instance."""
    ports = [(settings.host, settings.port + next_one, "--port") for next_one in range(3)]
    ports += [
        (settings.query_host, settings.query_port, "--query-port"),
        (settings.console_host, settings.console_port, "--console-port"),
    ]
    taken = []
    for host, port, option in ports:
        try:
            if port and not is_free(host, port):
                taken.append(f"{port} ({option})")
        except OSError as error:
            raise no_listening(host, port, error) from error
    if taken:
        raise SettingsError(
            f"ports that are taken: {', '.join(taken)}. Give others; beside another instance on this host also another "
            "--data-dir and --replica"
        )


async def _topics(settings: ServeSettings) -> list[str]:
    """Return the names of the service's topics once they exist."""
    if settings.create_topics:
        created = await topics.create(settings.kafka, settings.topic_prefix, settings.partitions)
        if created.topics:
            log.info("created %s with %d partitions", ", ".join(created.topics), settings.partitions)
        for left_out in created.left_out:
            log.warning("%s", left_out)
        # A door reads its topic with any settings.
        if doors := {topic: Wanted({}, {}) for _, topic in door_topics(settings.door)}:
            await topics.make(settings.kafka, doors, settings.partitions)
    found = await topics.counts(settings.kafka, settings.topic_prefix)
    if missing := [name for name in Topics.of(settings.topic_prefix).needed if name not in found]:
        raise TopicsError(
            f"missing: {', '.join(missing)}. Create them with --create-topics, or with kafka-timers topics create"
        )
    return list(found)


def parts_of(settings: ServeSettings) -> list[Part]:
    """Return the processes, in the order of starting."""
    oscillator, worker, console = settings.oscillator, settings.worker, settings.console
    parts = [
        Part(
            name="oscillator",
            command=own_command("oscillator"),
            env=env_of(oscillator),
            turn=2,
            url=_url(oscillator.host, oscillator.port),
        ),
        worker_part("worker", worker, url=_url(worker.host, worker.port)),
    ]
    return [*parts, _console(console)] if settings.console_port else parts


def _console(settings: ConsoleSettings) -> Part:
    return Part(
        name="console",
        command=own_command("console"),
        env=env_of(settings),
        turn=1,
        url=_url(settings.host, settings.port, is_secure=bool(settings.certificate)),
        # It works where Kafka answers, and says so to whoever asks it for something.
        ready="/livez",
        has_metrics=False,
    )


def _url(host: str, port: int, *, is_secure: bool = False) -> str:
    host = _ANY.get(host, host)
    return f"http{'s' if is_secure else ''}://{f'[{host}]' if ':' in host else host}:{port}"


class Instance:
    """
    All *parts*, kept running, and their health on one port.

    Attributes:
        health: to be started and stopped.
    """

    def __init__(self, host: str, port: int, parts: Sequence[Part]) -> None:
        self._supervisor = Supervisor(parts)
        self.health = Gathered(host, port, self._supervisor.kept)
        self.ready = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> int:
        """Run all parts until *stop* is set or one cannot start; see `Supervisor.run`."""
        looking = asyncio.create_task(self._look())
        try:
            return await self._supervisor.run(stop)
        finally:
            await cancel([looking])

    def ended(self) -> list[str]:
        """Return what parts that have ended by themselves had to say."""
        return [f"{kept.part.name} {kept.away}; {kept.last_words}" for kept in self._supervisor.kept if kept.last_words]

    async def _look(self) -> None:
        while await self.health.unready():  # noqa: ASYNC110  # other processes have to be asked
            await asyncio.sleep(_LOOK_S)
        self._supervisor.has_started = True
        self.ready.set()
        console = next((kept.part.url for kept in self._supervisor.kept if kept.part.name == "console"), "none")
        log.info("all is ready; health: %s, console: %s", self.health.url, console)
