"""
Settings, one frozen dataclass per process.

Each field is also a command line option (`session_timeout_s` is `--session-timeout-s`) and an environment variable
(`KAFKA_TIMERS_SESSION_TIMEOUT_S`). Use `from_env` to start a process from Python; the command line builds its options
from the same fields.

A field declares its bounds with `setting`, and `objection` checks a value against them, wherever the value comes from.
`validate` only checks fields against each other.
"""

import dataclasses
import ipaddress
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from kafka_timers.adapters import DOORS, check_doors, check_history
from kafka_timers.adapters.headers import NAMES
from kafka_timers.broker.connection import Kafka
from kafka_timers.core.wire import SECOND_LIMIT
from kafka_timers.environment import env_name
from kafka_timers.errors import SettingsError

__all__ = [
    "KafkaSettings",
    "LakeSettings",
    "OscillatorSettings",
    "QuerySettings",
    "WorkerSettings",
    "bounds_of",
    "host_in",
    "is_loopback",
    "objection",
    "setting",
]

_LOG_LEVELS = ("debug", "info", "warning", "error")
_PORT_MAX = 65_535
# Brokers refuse a longer transaction or session, unless their own settings have been raised.
_TRANSACTION_MAX_S, _SESSION_MAX_S = 900, 1_800
# Python would take an empty address for all addresses of the host.
_HOST_MISSING = "give an address of this host, or 0.0.0.0 for all of them"

_KINDS = {bool: "True or False", int: "a whole number", float: "a number", str: "text"}


def setting(
    default: object,
    help: str,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    choices: tuple[str, ...] = (),
    is_list: bool = False,
    if_empty: str = "",
    why: str = "",
) -> Any:
    """
    Declare a field.

    Args:
        default: the default; its type is the type of the field.
        help: one line of help, for the command line.
        least: the smallest number that is allowed.
        above: a bound that is itself too small; every larger number is allowed.
        most: the largest number that is allowed.
        choices: the only texts that are allowed; without any, all are.
        is_list: whether the text is a comma separated list; the command line takes one item at a time.
        if_empty: advice when the text is empty; without it an empty text is allowed.
        why: the reason for the bounds, added to the sentence that names them.
    """
    declared = {"least": least, "above": above, "most": most, "choices": choices, "is_list": is_list}
    return dataclasses.field(default=default, metadata={"help": help, "if_empty": if_empty, "why": why, **declared})


def bounds_of(field: "dataclasses.Field[Any]") -> str:
    """Return the numbers that *field* allows, such as `1 to 256`, or its texts; empty if it allows all."""
    least, above, most, choices = (field.metadata[name] for name in ("least", "above", "most", "choices"))
    if choices:
        return f"{', '.join(choices[:-1])} or {choices[-1]}"
    if least is not None:
        return f"at least {least}" if most is None else f"{least} to {most}"
    if above is not None:
        return f"more than {above}" + ("" if most is None else f", at most {most}")
    return "" if most is None else f"at most {most}"


def objection(field: "dataclasses.Field[Any]", value: object) -> str:
    """Return advice if *field* does not allow *value*; empty if it does."""
    kind = type(field.default)
    # A whole number counts as a number. True does too, but only in Python.
    kinds = (int, float) if kind is float else kind
    if not isinstance(value, kinds) or (isinstance(value, bool) and kind is not bool):
        return f"give {_KINDS[kind]}"
    if isinstance(value, str) and field.metadata["if_empty"] and not value.strip(", "):
        return str(field.metadata["if_empty"])
    if _is_within(field, value):
        return ""
    why = field.metadata["why"]
    return f"give {bounds_of(field) or _KINDS[kind]}" + (f"; {why}" if why else "")


def _is_within(field: "dataclasses.Field[Any]", value: object) -> bool:
    least, above, most, choices = (field.metadata[name] for name in ("least", "above", "most", "choices"))
    if not isinstance(value, int | float):
        return not choices or value in choices
    # Infinity and NaN are no time or size, whatever the bounds.
    if isinstance(value, float) and not math.isfinite(value):
        return False
    is_low = (least is not None and value < least) or (above is not None and value <= above)
    return not is_low and (most is None or value <= most)


def is_loopback(host: str) -> bool:
    """Tell whether *host* names this host alone, without asking a resolver."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_in(address: str) -> str:
    """Return the host of `host:port`, or of `[host]:port` for an IPv6 address."""
    return address[1:].partition("]")[0] if address.startswith("[") else address.partition(":")[0]


def _flag(text: str) -> bool:
    # bool("false") is True.
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    try:
        return words[text.strip().lower()]
    except KeyError:
        raise ValueError(text) from None


class _Settings:
    """Common part of all settings: it reads the environment and checks fields against each other."""

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ, **given: object) -> Self:
        """
        Return settings from *env*, overridden by *given*.

        Raises:
            SettingsError: a value is not of its field's type or out of its bounds, or fields contradict each other.
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
        for field in dataclasses.fields(self):  # type: ignore[arg-type]  # every subclass is a dataclass
            value = getattr(self, field.name)
            if wrong := objection(field, value):
                raise SettingsError(f"{field.name} {value!r}: {wrong}")
        self.validate()

    def validate(self) -> None:
        """
        Check fields against each other.

        Raises:
            SettingsError: fields contradict each other; the text names them.
        """


@dataclass(frozen=True, kw_only=True)
class KafkaSettings(_Settings):
    """Settings of any process that talks to an instance of the service."""

    bootstrap: str = setting("127.0.0.1:9092", "Kafka brokers, host:port, comma separated")
    kafka_config: str = setting("", "file that says how to connect: TLS, SASL and client id; empty is plain text")
    topic_prefix: str = setting("", "put before the names of the service's own topics, one prefix per instance")

    @cached_property
    def kafka(self) -> Kafka:
        """
        Address and login of Kafka, read once.

        Raises:
            SettingsError: the file cannot be read, or its lines or the environment do not fit.
        """
        return Kafka.of(self.bootstrap, self.kafka_config)

    def validate(self) -> None:
        """
        Check that the Kafka configuration can be read.

        Raises:
            SettingsError: the file cannot be read, or its lines or the environment do not fit.
        """
        self.kafka  # noqa: B018  # raises if the configuration is wrong


@dataclass(frozen=True, kw_only=True)
class OscillatorSettings(KafkaSettings):
    """Settings of one oscillator replica."""

    replica: int = setting(
        0,
        "rank of this replica; replica r waits r x 250 ms for a tick before it emits it",
        least=0,
        most=3,
        why="a later one could not emit within its second",
    )
    host: str = setting("127.0.0.1", "address to serve /metrics, /livez and /readyz on", if_empty=_HOST_MISSING)
    port: int = setting(0, "port to serve /metrics, /livez and /readyz on; 0 serves none", least=0, most=_PORT_MAX)
    catch_up_s: int = setting(
        3600, "seconds missed while no oscillator ran that are emitted one by one at start", least=1
    )
    max_clock_skew_s: float = setting(
        2.0, "clocks of host and broker further apart silence and alarm the oscillator", above=0
    )
    log_level: str = setting("info", "least severe messages to log", choices=_LOG_LEVELS)


@dataclass(frozen=True, kw_only=True)
class WorkerSettings(KafkaSettings):
    """Settings of one worker process."""

    group: str = setting(
        "kafka-timers", "consumer group of all workers of this service", if_empty="give the name of a consumer group"
    )
    data_dir: str = setting(
        "kafka-timers-data", "folder of this worker's stores; no two workers share one", if_empty="give a folder"
    )
    host: str = setting("127.0.0.1", "address to serve /metrics, /livez and /readyz on", if_empty=_HOST_MISSING)
    port: int = setting(0, "port to serve /metrics, /livez and /readyz on; 0 serves none", least=0, most=_PORT_MAX)
    processes: int = setting(
        1,
        "workers to run on this host, each with a folder in the data folder and a port: the given one, the next, …",
        least=1,
        most=256,
        why="the number of cores of this host at most",
    )
    query_host: str = setting(
        "127.0.0.1", "address to answer questions about waiting timers on", if_empty=_HOST_MISSING
    )
    query_port: int = setting(
        0,
        "port to answer questions about waiting timers on, as `kafka-timers list` asks them; 0 answers none",
        least=0,
        most=_PORT_MAX,
    )
    query_address: str = setting(
        "", "host name or address at which those who ask reach this worker; empty is --query-host"
    )
    query_token_file: str = setting("", "file with the token that whoever asks has to show")
    query_certificate: str = setting("", "PEM file to answer with over TLS, the chain of certificates included")
    query_key: str = setting("", "PEM file of its key; empty is the same file")
    query_client_ca: str = setting("", "PEM file of who has signed the certificates of those who may ask")
    partitions: int = setting(
        0,
        "serve the first so many partitions of timer-request; 0 serves as many as the last seals tell, or all if "
        "nothing is sealed yet",
        least=0,
    )
    guarantee: str = setting(
        "exactly-once",
        "exactly-once needs receivers that read committed; at-least-once saves the transactions and may repeat "
        "callbacks after a crash, a takeover or a pause",
        choices=("exactly-once", "at-least-once"),
    )
    allowed_topics: str = setting(
        "*",
        "callback topics that requests may name: globs, comma separated",
        if_empty="give globs of callback topics, comma separated, or * for all topics: with none every request is "
        "rejected",
    )
    door: str = setting(
        "",
        "take in what another scheduler's users write to a topic, as NAME=TOPIC, comma separated; the names are "
        + ", ".join(DOORS),
        is_list=True,
    )
    door_grace_s: int = setting(
        -1,
        "what a door finds longer past its second is rejected instead of fired; -1 fires it however late it is",
        least=-1,
    )
    door_history: str = setting(
        "", "topic on which what the door etf1 has fired is written once more, as etf1's HISTORY_TOPIC; empty is none"
    )
    door_header: str = setting(
        "",
        "header by which the door headers is told something, as WHAT=HEADER, comma separated; WHAT is one of "
        + ", ".join(NAMES),
        is_list=True,
    )
    door_require_caller: bool = setting(False, "the door countdown rejects records without CALLER_SERVICE")
    door_caller_limit: int = setting(
        0, "most countdowns of one caller in a second of one partition of the topic; 0 is no limit", least=0
    )
    horizon_s: int = setting(
        0,
        "requests due later than this after they were made are left to the lake; 0 leaves none to it",
        least=0,
        most=SECOND_LIMIT,
        why="no timer is due later",
    )
    no_planner: bool = setting(False, "leave recurring timers to processes of `kafka-timers planner`")
    session_timeout_s: float = setting(
        6.0,
        "silence after which the other workers take over this one's partitions",
        least=1,
        most=_SESSION_MAX_S,
        why="brokers refuse more by default (group.max.session.timeout.ms)",
    )
    max_clock_skew_s: float = setting(2.0, "ticks further ahead of the broker's clock are refused and alarmed", above=0)
    fence_wait_s: float = setting(5.0, "longest wait at a tick for requests accepted before it to be read", least=0)
    instant_every_ms: int = setting(
        5, "least milliseconds between two moments of a second at which timers fire; 0 fires at ticks alone", least=0
    )
    seal_every_s: int = setting(5, "seconds between seals while nothing is due", least=1)
    slice_rows: int = setting(25_000, "most callbacks in one transaction; a larger second is fired in slices", least=1)
    slice_bytes: int = setting(16 << 20, "most bytes of requests in one transaction", least=1)
    arm_bytes: int = setting(
        64 << 20, "most bytes of requests whose callbacks are built before their tick comes; 0 builds none", least=0
    )
    transaction_timeout_s: float = setting(
        10.0,
        "after it the broker aborts the transaction of a dead worker",
        least=1,
        most=_TRANSACTION_MAX_S,
        why="brokers refuse more by default (transaction.max.timeout.ms)",
    )
    stalled_after_s: float = setting(10.0, "seconds without progress after which a partition turns health red", above=0)
    log_level: str = setting("info", "least severe messages to log", choices=_LOG_LEVELS)

    def validate(self) -> None:
        """
        Check fields against each other.

        Raises:
            SettingsError: fields contradict each other; the text names them.
        """
        super().validate()
        self._validate_ports()
        self._validate_questions()
        if self.stalled_after_s <= self.seal_every_s:
            raise SettingsError(
                f"stalled_after_s {self.stalled_after_s} must be longer than seal_every_s {self.seal_every_s}: "
                "a partition in which nothing is due shows progress only that often"
            )
        check_doors(self.door, self.door_header, self.topic_prefix)
        check_history(self.door_history, self.door, self.allowed_topics, self.topic_prefix)

    def _validate_ports(self) -> None:
        port_max = _PORT_MAX - self.processes + 1
        for name, port in (("port", self.port), ("query_port", self.query_port)):
            if port > port_max:
                raise SettingsError(
                    f"{name} {port} leaves no port for each of {self.processes} processes: give {port_max} at most"
                )
        if self.port and self.query_port and abs(self.port - self.query_port) < self.processes:
            raise SettingsError(
                f"port {self.port} and query_port {self.query_port}: each of {self.processes} processes needs the next "
                "one of both: give two that are further apart"
            )

    def _validate_questions(self) -> None:
        if not self.query_port:
            return
        if (self.query_key or self.query_client_ca) and not self.query_certificate:
            raise SettingsError("query_key and query_client_ca are for TLS: give query_certificate too")
        if not (self.query_token_file or self.query_client_ca or is_loopback(self.query_host)):
            raise SettingsError(
                f"query_host {self.query_host} can be reached from other hosts: give query_token_file, or "
                "query_client_ca with query_certificate, so that not everybody may ask"
            )
        if self.query_host in ("0.0.0.0", "::") and not self.query_address:  # noqa: S104  # compared, not bound
            raise SettingsError(
                f"query_host {self.query_host} is no address to ask at: give query_address, by which others reach it"
            )


@dataclass(frozen=True, kw_only=True)
class PlannerSettings(KafkaSettings):
    """Settings of a process that plans recurring timers and does nothing else."""

    group: str = setting(
        "kafka-timers", "consumer group of the workers of this service", if_empty="give the name of a consumer group"
    )
    host: str = setting("127.0.0.1", "address to serve /metrics, /livez and /readyz on", if_empty=_HOST_MISSING)
    port: int = setting(0, "port to serve /metrics, /livez and /readyz on; 0 serves none", least=0, most=_PORT_MAX)
    session_timeout_s: float = setting(
        6.0,
        "silence after which other planners take over this one's partitions",
        least=1,
        most=_SESSION_MAX_S,
        why="brokers refuse more by default (group.max.session.timeout.ms)",
    )
    transaction_timeout_s: float = setting(
        10.0,
        "after it the broker aborts the transaction of a dead planner",
        least=1,
        most=_TRANSACTION_MAX_S,
        why="brokers refuse more by default (transaction.max.timeout.ms)",
    )
    log_level: str = setting("info", "least severe messages to log", choices=_LOG_LEVELS)


@dataclass(frozen=True, kw_only=True)
class QuerySettings(KafkaSettings):
    """Settings of a program that asks workers about waiting timers."""

    query_token_file: str = setting("", "file with the token that the workers want to see")
    query_ca: str = setting("", "PEM file of who has signed the certificates of the workers; empty is the system's")
    query_certificate: str = setting("", "PEM file to show to the workers, the chain of certificates included")
    query_key: str = setting("", "PEM file of its key; empty is the same file")


@dataclass(frozen=True, kw_only=True)
class LakeSettings(KafkaSettings):
    """Settings of a lake job."""

    lake: str = setting(
        "kafka-timers-lake",
        "where the tables lie: a folder, or a URI such as s3a://bucket/timers",
        if_empty="give a folder or a URI for the tables",
    )
    horizon_s: int = setting(
        86_400,
        "the --horizon-s of the workers, or less: what is due later is promoted to them",
        least=1,
        most=SECOND_LIMIT,
        why="no more than the workers have",
    )
    master: str = setting(
        "", "Spark master; empty takes that of spark-submit or of spark-defaults.conf, else all cores of this machine"
    )
    packages: str = setting(
        "", "Maven coordinates of the Kafka connector and of Delta, comma separated; empty takes the tested ones"
    )
    log_level: str = setting("info", "least severe messages to log", choices=_LOG_LEVELS)
