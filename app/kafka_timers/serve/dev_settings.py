"""The settings of `kafka-timers dev`."""

from dataclasses import dataclass

from kafka_timers.adapters import check_doors
from kafka_timers.errors import SettingsError
from kafka_timers.serve.serve_settings import ServeSettings, refuse_same
from kafka_timers.settings import KafkaSettings, WorkerSettings, setting

_PORT_MAX = 65_535
# With three brokers you can lose one.
_REPLICAS = 3


@dataclass(frozen=True, kw_only=True)
class DevSettings(KafkaSettings):
    """Settings of `kafka-timers dev`, which runs everything on this machine."""

    bootstrap: str = setting("", "Kafka brokers to use, host:port, comma separated; empty starts a Kafka")
    folder: str = setting(
        ".kafka-timers", "folder for Kafka's data, the worker's stores and all logs", if_empty="give a folder"
    )
    fresh: bool = setting(False, "delete the data of earlier runs in the folder first")
    partitions: int = setting(4, "partitions of topics that do not exist yet; existing topics keep theirs", least=1)
    brokers: int = setting(
        1, "brokers of the Kafka that it starts: 1, or 3 that replicate to each other", least=1, most=_REPLICAS
    )
    port: int = setting(
        9092,
        "port of the Kafka that it starts; three brokers take this and the next two",
        least=1,
        most=_PORT_MAX,
    )
    metrics_port: int = setting(
        ServeSettings.port,
        "port of /metrics, /livez and /readyz of all processes; oscillator and worker have the next two",
        least=1,
        most=_PORT_MAX - 2,
        why="the processes have the next two",
    )
    query_port: int = setting(8073, "port of the worker for questions about waiting timers", least=1, most=_PORT_MAX)
    console_port: int = setting(8074, "port of the console; open it in a browser", least=1, most=_PORT_MAX)
    lake_port: int = setting(8075, "port of the lake job's /metrics; needs --lake", least=1, most=_PORT_MAX)
    keep_s: int = setting(
        WorkerSettings.keep_s, "seconds for which timer-request keeps each request at least; 0 for ever", least=0
    )
    lake: bool = setting(
        False,
        "leave timers that wait longer than 5 minutes, also recurring ones with such a jitter, to a lake in the folder",
    )
    door: str = setting(
        "headers=timers",
        "read another scheduler's requests from a topic, as NAME=TOPIC, comma separated; missing topics are created",
        is_list=True,
    )

    def validate(self) -> None:
        """Check fields against each other."""
        check_doors(self.door, "", self.topic_prefix)
        if self.bootstrap:
            super().validate()
        elif self.kafka_config:
            raise SettingsError("kafka_config is for a Kafka that is there: give bootstrap too")
        if self.brokers not in (1, _REPLICAS):
            raise SettingsError(f"brokers is {self.brokers}: give 1 or {_REPLICAS}")
        if self.bootstrap and self.brokers > 1:
            raise SettingsError("brokers is for a Kafka that is brought along: leave bootstrap out, or brokers")
        ports = {
            "metrics_port": self.metrics_port,
            "metrics_port + 1": self.metrics_port + 1,
            "metrics_port + 2": self.metrics_port + 2,
            "query_port": self.query_port,
            "console_port": self.console_port,
        } | ({"lake_port": self.lake_port} if self.lake else {})
        if not self.bootstrap:
            ports |= {f"port + {number}" if number else "port": port for number, port in enumerate(self.ports)}
            if max(self.ports) > _PORT_MAX:
                raise SettingsError(
                    f"port is {self.port}, and the others of three brokers have the next two: give less"
                )
        refuse_same(ports)

    @property
    def ports(self) -> list[int]:
        """The ports of the brokers that `kafka-timers dev` starts."""
        return list(range(self.port, self.port + self.brokers))
