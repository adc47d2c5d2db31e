"""The settings of `kafka-timers serve`."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, TypeVar

from kafka_timers.console.console_settings import ConsoleSettings
from kafka_timers.errors import SettingsError
from kafka_timers.settings import GroupSettings, OscillatorSettings, WorkerSettings, as_in, setting

_PORT_MAX = 65_535

_Process = TypeVar("_Process", OscillatorSettings, WorkerSettings, ConsoleSettings)


def refuse_same(ports: Mapping[str, int]) -> None:
    """Raise a SettingsError if two of *ports* are the same; 0 is none."""
    used = [port for port in ports.values() if port]
    if len(set(used)) < len(used):
        listed = ", ".join(f"{name} {port}" for name, port in ports.items())
        raise SettingsError(f"two of these ports are the same: {listed}")


@dataclass(frozen=True, kw_only=True)
class ServeSettings(GroupSettings):
    """
    Settings of `kafka-timers serve`. All others of its oscillator, worker and console are those of the environment.

    Attributes:
        oscillator: settings of the oscillator.
        worker: settings of the worker.
        console: settings of the console.
    """

    create_topics: bool = setting(False, "create topics of the service and of its doors that do not exist yet")
    partitions: int = setting(
        8,
        "partitions of topics that do not exist yet; you cannot change it later, and existing topics keep theirs",
        least=1,
    )
    data_dir: str = as_in(WorkerSettings, "data_dir")
    host: str = as_in(WorkerSettings, "host")
    port: int = setting(
        8070,
        "port for /metrics, /livez and /readyz of all processes; oscillator and worker have the next two",
        least=1,
        most=_PORT_MAX - 2,
        why="the processes have the next two",
    )
    query_host: str = as_in(WorkerSettings, "query_host")
    query_port: int = setting(8073, "port for questions about waiting timers; 0 answers none", least=0, most=_PORT_MAX)
    console_host: str = setting("127.0.0.1", "address of the console", if_empty="give an address of this host")
    console_port: int = setting(8074, "port of the console; 0 runs none", least=0, most=_PORT_MAX)
    writable: bool = as_in(ConsoleSettings, "writable")
    token_file: str = as_in(ConsoleSettings, "token_file")
    replica: int = as_in(OscillatorSettings, "replica")
    allowed_topics: str = as_in(WorkerSettings, "allowed_topics")
    door: str = as_in(WorkerSettings, "door")
    log_level: str = as_in(WorkerSettings, "log_level")

    def validate(self) -> None:
        """Check ports against each other, and the settings of each process."""
        super().validate()
        ports = {
            "port": self.port,
            "port + 1": self.port + 1,
            "port + 2": self.port + 2,
            "query_port": self.query_port,
            "console_port": self.console_port,
        }
        refuse_same(ports)
        for process in ("oscillator", "worker", "console"):
            try:
                getattr(self, process)
            except SettingsError as error:
                raise SettingsError(f"{process}: {error}") from error

    @cached_property
    def oscillator(self) -> OscillatorSettings:
        """See above."""
        return self._settings_of(OscillatorSettings, port=self.port + 1)

    @cached_property
    def worker(self) -> WorkerSettings:
        """See above."""
        # The number of partitions is for new topics; a worker takes that of the topics.
        return self._settings_of(WorkerSettings, port=self.port + 2, processes=1, partitions=0)

    @cached_property
    def console(self) -> ConsoleSettings:
        """See above."""
        port = self.console_port or ConsoleSettings.port
        return self._settings_of(ConsoleSettings, host=self.console_host, port=port)

    def _settings_of(self, kind: type[_Process], env: Mapping[str, str] = os.environ, **given: Any) -> _Process:
        shared = {each.name for each in fields(self)} & {each.name for each in fields(kind)}
        return kind.from_env(env, **({name: getattr(self, name) for name in shared} | given))
