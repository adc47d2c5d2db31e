"""
What can be set, one frozen dataclass per process.

Each field is at the same time a command line option (`session_timeout_s` is `--session-timeout-s`) and an environment
variable (`KAFKA_TIMERS_SESSION_TIMEOUT_S`). `from_env` is for those who start a process from Python; the command line
builds its options from the same fields.
"""

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from kafka_timers.adapters import DOORS, door_topics
from kafka_timers.broker.connection import Kafka
from kafka_timers.environment import env_name
from kafka_timers.errors import SettingsError

_LOG_LEVELS = ("debug", "info", "warning", "error")


def setting(default: object, help: str, **more: object) -> Any:
    """Declare a field with its default and its line of help; `choices` limits a string, `is_list` means many."""
    return dataclasses.field(default=default, metadata={"help": help, **more})


def _flag(text: str) -> bool:
    # bool("false") is True.
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    try:
        return words[text.strip().lower()]
    except KeyError:
        raise ValueError(text) from None


class _Settings:
    """What all processes share: reading the environment, and checking fields against each other."""

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ, **given: object) -> Self:
        """
        Return settings from *env*, overridden by *given*.

        Raises:
            SettingsError: a variable is not of its field's type, or fields contradict each other.
        """
        values = dict(given)
        for field in dataclasses.fields(cls):  # type: ignore[arg-type]  # every subclass is a dataclass
            text = env.get(env_name(field.name))
            if text is None or field.name in given:
                continue
            kind: Any = type(field.default)
            try:
                values[field.name] = _flag(text) if kind is bool else kind(text)
            except ValueError as error:
                raise SettingsError(f"{env_name(field.name)}={text!r} is not of type {kind.__name__}") from error
        return cls(**values)

    def __post_init__(self) -> None:
        self.validate()

    def validate(self) -> None:
        """
        Check fields against each other.

        Raises:
            SettingsError: names the clash.
        """


@dataclass(frozen=True, kw_only=True)
class KafkaSettings(_Settings):
    """Settings of whatever talks to an instance of the service."""

    bootstrap: str = setting("127.0.0.1:9092", "Kafka brokers, host:port, comma separated")
    kafka_config: str = setting("", "file that says how to connect: TLS, SASL and client id; empty is plain text")
    topic_prefix: str = setting("", "put before the names of the service's own topics, one prefix per instance")

    @cached_property
    def kafka(self) -> Kafka:
        """
        Where Kafka is, and how to log in; read once.

        Raises:
            SettingsError: the file cannot be read, or it or the environment does not fit.
        """
        return Kafka.of(self.bootstrap, self.kafka_config)

    def validate(self) -> None:
        """
        Check fields against each other.

        Raises:
            SettingsError: names the clash.
        """
        self.kafka  # noqa: B018  # tells what is wrong with it


@dataclass(frozen=True, kw_only=True)
class OscillatorSettings(KafkaSettings):
    """Settings of one oscillator replica."""

    replica: int = setting(0, "rank of this replica; replica r waits r x 250 ms for a tick before it emits it")
    host: str = setting("127.0.0.1", "address to serve /metrics, /livez and /readyz on")
    port: int = setting(0, "port to serve /metrics, /livez and /readyz on; 0 serves none")
    catch_up_s: int = setting(3600, "seconds missed while no oscillator ran that are emitted one by one at start")
    max_clock_skew_s: float = setting(2.0, "clocks of host and broker further apart silence and alarm the oscillator")
    log_level: str = setting("info", "least severe messages to log", choices=_LOG_LEVELS)

    def validate(self) -> None:
        """
        Check fields against each other.

        Raises:
            SettingsError: names the clash.
        """
        super().validate()
        if not 0 <= self.replica <= 3:
            raise SettingsError(f"replica {self.replica}: give 0 to 3; a later one could not emit within its second")
        if self.catch_up_s < 1:
            raise SettingsError(f"catch_up_s {self.catch_up_s}: give at least 1 second")
        if self.max_clock_skew_s <= 0:
            raise SettingsError(f"max_clock_skew_s {self.max_clock_skew_s}: give more than 0 seconds")


@dataclass(frozen=True, kw_only=True)
class WorkerSettings(KafkaSettings):
    """Settings of one worker process."""

    group: str = setting("kafka-timers", "consumer group of all workers of this service")
    data_dir: str = setting("kafka-timers-data", "folder of this worker's stores; no two workers share one")
    host: str = setting("127.0.0.1", "address to serve /metrics, /livez and /readyz on")
    port: int = setting(0, "port to serve /metrics, /livez and /readyz on; 0 serves none")
    processes: int = setting(
        1, "workers to run on this host, each with a folder in the data folder and a port: the given one, the next, …"
    )
    guarantee: str = setting(
        "exactly-once",
        "exactly-once needs receivers that read committed; at-least-once saves the transactions and may repeat "
        "callbacks after a crash, a takeover or a pause",
        choices=("exactly-once", "at-least-once"),
    )
    allowed_topics: str = setting("*", "callback topics that requests may name: globs, comma separated")
    door: str = setting(
        "",
        "take in what another scheduler's users write to a topic, as NAME=TOPIC, comma separated; the names are "
        + ", ".join(DOORS),
        is_list=True,
    )
    door_grace_s: int = setting(
        -1, "what a door finds longer past its second is rejected instead of fired; -1 fires it however late it is"
    )
    door_require_caller: bool = setting(False, "the door countdown rejects records without CALLER_SERVICE")
    door_caller_limit: int = setting(
        0, "most countdowns of one caller in a second of one partition of the topic; 0 is no limit"
    )
    horizon_s: int = setting(
        0, "requests due later than this after they were made are left to the lake; 0 leaves none to it"
    )
    session_timeout_s: float = setting(6.0, "silence after which the other workers take over this one's partitions")
    max_clock_skew_s: float = setting(2.0, "ticks further ahead of the broker's clock are refused and alarmed")
    fence_wait_s: float = setting(5.0, "longest wait at a tick for requests accepted before it to be read")
    seal_every_s: int = setting(5, "seconds between seals while nothing is due")
    slice_rows: int = setting(25_000, "most callbacks in one transaction; a larger second is fired in slices")
    slice_bytes: int = setting(64 << 20, "most bytes of requests in one transaction")
    arm_bytes: int = setting(
        64 << 20, "most bytes of requests whose callbacks are built before their tick comes; 0 builds none"
    )
    transaction_timeout_s: float = setting(10.0, "after it the broker aborts the transaction of a dead worker")
    stalled_after_s: float = setting(10.0, "seconds without progress after which a partition turns health red")
    log_level: str = setting("info", "least severe messages to log", choices=_LOG_LEVELS)

    def validate(self) -> None:
        """
        Check fields against each other.

        Raises:
            SettingsError: names the clash.
        """
        super().validate()
        if self.guarantee not in ("exactly-once", "at-least-once"):
            raise SettingsError(f"guarantee {self.guarantee!r}: give exactly-once or at-least-once")
        if not 1 <= self.processes <= 256:
            raise SettingsError(f"processes {self.processes}: give 1 to 256, the number of cores at most")
        if self.slice_rows < 1 or self.slice_bytes < 1:
            raise SettingsError("slice_rows and slice_bytes: give at least 1")
        if self.stalled_after_s <= self.seal_every_s:
            raise SettingsError(
                f"stalled_after_s {self.stalled_after_s} must be longer than seal_every_s {self.seal_every_s}: "
                "a partition in which nothing is due shows progress only that often"
            )
        if self.session_timeout_s < 1:
            raise SettingsError(f"session_timeout_s {self.session_timeout_s}: give at least 1 second")
        if self.horizon_s < 0:
            raise SettingsError(f"horizon_s {self.horizon_s}: give seconds, or 0 to leave nothing to the lake")
        try:
            door_topics(self.door)
        except ValueError as error:
            raise SettingsError(str(error)) from error


@dataclass(frozen=True, kw_only=True)
class LakeSettings(KafkaSettings):
    """Settings of a lake job."""

    lake: str = setting("kafka-timers-lake", "where the tables lie: a folder, or a URI such as s3a://bucket/timers")
    horizon_s: int = setting(86_400, "the --horizon-s of the workers, or less: what is due later is promoted to them")
    master: str = setting(
        "", "Spark master; empty takes that of spark-submit or of spark-defaults.conf, else all cores of this machine"
    )
    packages: str = setting(
        "", "Maven coordinates of the Kafka connector and of Delta, comma separated; empty takes the tested ones"
    )
    log_level: str = setting("info", "least severe messages to log", choices=_LOG_LEVELS)

    def validate(self) -> None:
        """
        Check fields against each other.

        Raises:
            SettingsError: names the clash.
        """
        super().validate()
        if not self.lake:
            raise SettingsError("lake is empty: give a folder or a URI for its tables")
        if self.horizon_s < 1:
            raise SettingsError(f"horizon_s {self.horizon_s}: give at least 1, and no more than the workers have")


@dataclass(frozen=True, kw_only=True)
class DevSettings(KafkaSettings):
    """Settings of `kafka-timers dev`, which runs everything on this machine."""

    bootstrap: str = setting("", "Kafka brokers to use, host:port, comma separated; empty brings a Kafka along")
    folder: str = setting(".kafka-timers", "folder of Kafka's data, the worker's stores and all logs")
    fresh: bool = setting(False, "delete first what earlier runs left in the folder")
    partitions: int = setting(4, "partitions of topics that do not exist yet; existing ones keep theirs")
    port: int = setting(9092, "port of the Kafka that is brought along")
    worker_port: int = setting(8070, "port of the worker's /metrics, /livez and /readyz")
    oscillator_port: int = setting(8071, "the same of the first oscillator; the second has the next port")
    lake: bool = setting(False, "leave timers that are due later than in a minute to a lake, kept in the folder")

    def validate(self) -> None:
        """
        Check fields against each other.

        Raises:
            SettingsError: names the clash.
        """
        if self.bootstrap:
            super().validate()
        elif self.kafka_config:
            raise SettingsError("kafka_config is for a Kafka that is there: give bootstrap too")
        if self.partitions < 1:
            raise SettingsError(f"partitions {self.partitions}: give at least 1")
        ports = {
            "worker_port": self.worker_port,
            "oscillator_port": self.oscillator_port,
            "oscillator_port + 1": self.oscillator_port + 1,
        }
        if not self.bootstrap:
            ports["port"] = self.port
        for name, port in ports.items():
            if not 0 < port < 65_536:
                raise SettingsError(f"{name} is {port}: give 1 to 65535")
        if len(set(ports.values())) < len(ports):
            listed = ", ".join(f"{name} {port}" for name, port in ports.items())
            raise SettingsError(f"two of these ports are the same: {listed}")
