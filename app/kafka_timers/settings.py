"""
The settings of the processes, as one frozen dataclass per process.

Each field is also a command line option (`session_timeout_s` is `--session-timeout-s`) and an environment variable
(`KAFKA_TIMERS_SESSION_TIMEOUT_S`). Use `from_env` to start a process from Python. The command line builds its options
from the same fields.

A field declares its bounds with `setting`. `objection` checks a value against them, wherever the value comes from.
`validate` only checks fields against each other.
"""

import dataclasses
import ipaddress
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

from kafka_timers.adapters import DOORS, check_doors, check_from, check_history
from kafka_timers.adapters.headers import NAMES
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.environment import env_name
from kafka_timers.core.wire import SECOND_LIMIT, instance_name
from kafka_timers.errors import SettingsError

# The least horizon with recurring timers. Planners ask for each run 60 to 80 s ahead, and by a shorter one all are far.
PLANNED_HORIZON_S = 180

_LOG_LEVELS = ("debug", "info", "warning", "error")
_PORT_MAX = 65_535
# By default, brokers refuse a longer transaction timeout and a longer session timeout.
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
        least: the smallest allowed number.
        above: every allowed number is larger than this one.
        most: the largest allowed number.
        choices: the allowed texts; empty allows all.
        is_list: whether the text is a comma separated list. The command line then takes one item at a time.
        if_empty: advice for an empty text; if the advice is empty, an empty text is allowed.
        why: the reason for the bounds, added to the sentence that names them.
    """
    declared = {"least": least, "above": above, "most": most, "choices": choices, "is_list": is_list}
    return dataclasses.field(default=default, metadata={"help": help, "if_empty": if_empty, "why": why, **declared})


def as_in(settings: type, name: str) -> Any:
    """Return the field *name* of *settings*, to be a field of other settings too."""
    field = next(field for field in dataclasses.fields(settings) if field.name == name)
    return dataclasses.field(default=field.default, metadata=field.metadata)


def _session_timeout(others: str) -> Any:
    return setting(
        6.0,
        f"seconds of silence after which other {others} take over the partitions of this one",
        least=1,
        most=_SESSION_MAX_S,
        why="brokers refuse more by default (group.max.session.timeout.ms)",
    )


def _transaction_timeout(process: str) -> Any:
    return setting(
        20.0,
        f"seconds after which the broker aborts the transaction of a dead {process}",
        least=1,
        most=_TRANSACTION_MAX_S,
        why="brokers refuse more by default (transaction.max.timeout.ms)",
    )


def bounds_of(field: "dataclasses.Field[Any]") -> str:
    """Return the numbers or texts that *field* allows, such as `1 to 256`; empty if it allows all."""
    least, above, most, choices = (field.metadata[name] for name in ("least", "above", "most", "choices"))
    if choices:
        return f"{', '.join(choices[:-1])} or {choices[-1]}"
    if least is not None:
        return f"at least {least}" if most is None else f"{least} to {most}"
    if above is not None:
        return f"more than {above}" + ("" if most is None else f", at most {most}")
    return "" if most is None else f"at most {most}"


def objection(field: "dataclasses.Field[Any]", value: object) -> str:
    """Return advice for a *value* that *field* does not allow; empty if it allows the value."""
    kind = type(field.default)
    # An int may stand for a float. A bool may not stand for an int, although Python allows it.
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
    # Infinity and NaN are never a time or a size, even without bounds.
    if isinstance(value, float) and not math.isfinite(value):
        return False
    is_low = (least is not None and value < least) or (above is not None and value <= above)
    return not is_low and (most is None or value <= most)


def is_loopback(host: str) -> bool:
    """Return whether *host* is `localhost` or a loopback address; no resolver is asked."""
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
    """Base of all settings: reads the environment, and checks fields against each other."""

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ, **given: object) -> Self:
        """
        Return settings from *env*, overridden by *given*.

        Raises:
            SettingsError: a value has the wrong type or is out of bounds, or fields contradict each other.
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
        """Check fields against each other. `SettingsError` names those that contradict each other."""


@dataclass(frozen=True, kw_only=True)
class KafkaSettings(_Settings):
    """Settings of every process that talks to an instance of the service."""

    bootstrap: str = setting("127.0.0.1:9092", "Kafka brokers, host:port, comma separated")
    kafka_config: str = setting(
        "", "file with the login settings: TLS, SASL and client id; empty connects in plain text"
    )
    topic_prefix: str = setting("", "prefix of the names of the service's own topics, one per instance")
    # What this process is, in its client id; commands have none.
    _role: ClassVar = ""

    @cached_property
    def kafka(self) -> Kafka:
        """
        The brokers, and how to log in to them; read once.

        Raises:
            SettingsError: the file cannot be read, or the file or the environment has a wrong setting.
        """
        name = f"{instance_name(self.topic_prefix)}.{self._role.format_map(vars(self))}" if self._role else ""
        return Kafka.of(self.bootstrap, self.kafka_config, name=name)

    def validate(self) -> None:
        """Check that the Kafka configuration can be read. It raises what `kafka` raises."""
        self.kafka  # noqa: B018  # raises if it is wrong


@dataclass(frozen=True, kw_only=True)
class GroupSettings(KafkaSettings):
    """Settings of every process that belongs to the workers' group, or looks at it."""

    group: str = setting(
        "", "consumer group of all workers of an instance; empty is the topic prefix and `kafka-timers`"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        # The dataclass is frozen for all others.
        object.__setattr__(self, "group", self.group.strip() or instance_name(self.topic_prefix))


@dataclass(frozen=True, kw_only=True)
class OscillatorSettings(KafkaSettings):
    """Settings of one oscillator replica."""

    _role = "oscillator-{replica}"

    replica: int = setting(
        0,
        "rank of this replica; replica r waits r x 250 ms, then writes the ticks that are still missing",
        least=0,
        most=3,
        why="a later one could not emit within its second",
    )
    host: str = setting("127.0.0.1", "address for /metrics, /livez and /readyz", if_empty=_HOST_MISSING)
    port: int = setting(0, "port for /metrics, /livez and /readyz; 0 serves none", least=0, most=_PORT_MAX)
    catch_up_s: int = setting(
        3600, "most seconds to catch up on after a time without ticks; earlier ones are left out", least=1
    )
    max_clock_skew_s: float = setting(
        2.0, "seconds that the clocks of host and broker may differ; above it, no tick is written", above=0
    )
    log_level: str = setting("info", "lowest level of messages to log", choices=_LOG_LEVELS)


@dataclass(frozen=True, kw_only=True)
class WorkerSettings(GroupSettings):
    """Settings of one worker process."""

    _role = "worker"

    data_dir: str = setting(
        "kafka-timers-data", "folder of this worker's stores; each worker needs its own", if_empty="give a folder"
    )
    host: str = setting("127.0.0.1", "address for /metrics, /livez and /readyz", if_empty=_HOST_MISSING)
    port: int = setting(0, "port for /metrics, /livez and /readyz; 0 serves none", least=0, most=_PORT_MAX)
    processes: int = setting(
        1,
        "workers to run on this host; each has its own folder in the data folder, and takes the next port",
        least=1,
        most=256,
        why="the number of cores of this host at most",
    )
    query_host: str = setting("127.0.0.1", "address for questions about waiting timers", if_empty=_HOST_MISSING)
    query_port: int = setting(
        0,
        "port for questions about waiting timers, such as those of `kafka-timers list`; 0 answers none",
        least=0,
        most=_PORT_MAX,
    )
    query_address: str = setting("", "host name or address at which others ask this worker; empty is --query-host")
    query_token_file: str = setting("", "file with the token that each question must show")
    query_certificate: str = setting("", "PEM file with the certificate for TLS and its chain")
    query_key: str = setting("", "PEM file with the key of that certificate; empty is the same file")
    query_client_ca: str = setting("", "PEM file of the authority that signed the certificates of clients that may ask")
    partitions: int = setting(
        0,
        "number of partitions of timer-request to serve, from the first on; 0 takes the number from the last seals, or "
        "all partitions if nothing is sealed yet",
        least=0,
    )
    guarantee: str = setting(
        "exactly-once",
        "exactly-once needs receivers that read committed records; at-least-once saves the transactions and may repeat "
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
        "read another scheduler's requests from a topic, as NAME=TOPIC, comma separated; the names are "
        + ", ".join(DOORS),
        is_list=True,
    )
    door_grace_s: int = setting(
        -1,
        "seconds past its second after which a door rejects a record; -1 never rejects a record for being late",
        least=-1,
    )
    door_from: str = setting(
        "", "where a door goes on if nothing tells how far it has read: earliest, latest or a time; empty: not at all"
    )
    door_history: str = setting(
        "", "topic for a copy of each schedule that the door etf1 has fired, as etf1's HISTORY_TOPIC; empty is none"
    )
    door_header: str = setting(
        "",
        "header in which the door headers finds a field, as WHAT=HEADER, comma separated; WHAT is one of "
        + ", ".join(NAMES),
        is_list=True,
    )
    door_require_caller: bool = setting(
        False, "let the door countdown reject records without the header CALLER_SERVICE"
    )
    door_caller_limit: int = setting(
        0, "most countdowns of one caller per second and partition of the topic; 0 is no limit", least=0
    )
    horizon_s: int = setting(
        0,
        "timers that wait longer than this many seconds are left to the lake; 180 at least, unless --no-planner; 0 "
        "leaves none to it",
        least=0,
        most=SECOND_LIMIT,
        why="no timer is due later",
    )
    keep_s: int = setting(
        604_800,
        "seconds for which timer-request keeps each request at least; older ones are deleted once nothing waits below "
        "them, and a lake has landed them; 0 deletes none",
        least=0,
    )
    no_planner: bool = setting(False, "leave recurring timers to processes of `kafka-timers planner`")
    session_timeout_s: float = _session_timeout("workers")
    max_clock_skew_s: float = setting(
        2.0, "seconds that a tick may be ahead of the broker's clock; a tick further ahead is refused", above=0
    )
    fence_wait_s: float = setting(5.0, "most seconds to wait at a tick for the requests accepted before it", least=0)
    instant_every_ms: int = setting(
        5, "shortest time between two moments at which timers fire, in milliseconds; 0 fires at ticks alone", least=0
    )
    seal_every_s: int = setting(5, "seconds between seals while nothing is due", least=1)
    slice_rows: int = setting(25_000, "most callbacks in one transaction; a larger second fires in slices", least=1)
    slice_bytes: int = setting(16 << 20, "most bytes of requests in one transaction", least=1)
    arm_bytes: int = setting(
        64 << 20, "most bytes of requests whose callbacks are built before their tick; 0 builds none", least=0
    )
    transaction_timeout_s: float = _transaction_timeout("worker")
    stalled_after_s: float = setting(
        10.0, "seconds without progress after which a partition turns /readyz red", above=0
    )
    log_level: str = setting("info", "lowest level of messages to log", choices=_LOG_LEVELS)

    def validate(self) -> None:
        """Check ports, questions, times and doors, each against the other fields."""
        super().validate()
        self._validate_ports()
        self._validate_questions()
        if 0 < self.horizon_s < PLANNED_HORIZON_S and not self.no_planner:
            raise SettingsError(
                f"horizon_s {self.horizon_s} may leave all recurring timers to the lake, because planners ask for them "
                f"up to 80 s ahead: give {PLANNED_HORIZON_S} or more, or no_planner if there are none"
            )
        if self.stalled_after_s <= self.seal_every_s:
            raise SettingsError(
                f"stalled_after_s {self.stalled_after_s} must be longer than seal_every_s {self.seal_every_s}: "
                "a partition in which nothing is due shows progress only that often"
            )
        check_doors(self.door, self.door_header, self.topic_prefix)
        check_from(self.door_from)
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
class PlannerSettings(GroupSettings):
    """Settings of a process that plans recurring timers and does nothing else."""

    _role = "planner"

    host: str = setting("127.0.0.1", "address for /metrics, /livez and /readyz", if_empty=_HOST_MISSING)
    port: int = setting(0, "port for /metrics, /livez and /readyz; 0 serves none", least=0, most=_PORT_MAX)
    session_timeout_s: float = _session_timeout("planners")
    transaction_timeout_s: float = _transaction_timeout("planner")
    log_level: str = setting("info", "lowest level of messages to log", choices=_LOG_LEVELS)


@dataclass(frozen=True, kw_only=True)
class QuerySettings(KafkaSettings):
    """Settings of every process that asks workers for waiting timers."""

    query_token_file: str = setting("", "file with the token that the workers ask for")
    query_ca: str = setting(
        "", "PEM file of the authority that signed the workers' certificates; empty is the system's"
    )
    query_certificate: str = setting("", "PEM file with your certificate for the workers, and its chain")
    query_key: str = setting("", "PEM file with the key of that certificate; empty is the same file")


@dataclass(frozen=True, kw_only=True)
class LakeSettings(KafkaSettings):
    """Settings of a lake job."""

    lake: str = setting(
        "kafka-timers-lake",
        "location of the tables: a folder, or a URI such as s3a://bucket/timers",
        if_empty="give a folder or a URI for the tables",
    )
    horizon_s: int = setting(
        86_400,
        "how many seconds before they are due far timers go back to the workers; at most their --horizon-s",
        least=1,
        most=SECOND_LIMIT,
        why="no more than the workers have",
    )
    master: str = setting(
        "", "Spark master; empty takes that of spark-submit or spark-defaults.conf, or else all cores of this machine"
    )
    packages: str = setting(
        "", "Maven coordinates of the Kafka connector and of Delta, comma separated; empty takes the tested ones"
    )
    log_level: str = setting("info", "lowest level of messages to log", choices=_LOG_LEVELS)
