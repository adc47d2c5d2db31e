"""
Settings of `kafka-timers dev`.
"""

from dataclasses import dataclass

from kafka_timers.adapters import check_doors
from kafka_timers.errors import SettingsError
from kafka_timers.settings import KafkaSettings, setting

__all__ = ["DevSettings"]

_PORT_MAX = 65_535
# The smallest number of brokers that allows the loss of one.
_REPLICAS = 3


@dataclass(frozen=True, kw_only=True)
class DevSettings(KafkaSettings):
    """Settings of `kafka-timers dev`, which runs everything on this machine."""

    bootstrap: str = setting("", "Kafka brokers to use, host:port, comma separated; empty brings a Kafka along")
    folder: str = setting(
        ".kafka-timers", "folder of Kafka's data, the worker's stores and all logs", if_empty="give a folder"
    )
    fresh: bool = setting(False, "delete first what earlier runs left in the folder")
    partitions: int = setting(4, "partitions of topics that do not exist yet; existing ones keep theirs", least=1)
    brokers: int = setting(
        1, "brokers of the Kafka that is brought along: 1, or 3 that replicate to each other", least=1, most=_REPLICAS
    )
    port: int = setting(
        9092,
        "port of the Kafka that is brought along; three brokers have this and the next two",
        least=1,
        most=_PORT_MAX,
    )
    worker_port: int = setting(8070, "port of the worker's /metrics, /livez and /readyz", least=1, most=_PORT_MAX)
    oscillator_port: int = setting(
        8071,
        "the same of the first oscillator; the second has the next port",
        least=1,
        most=_PORT_MAX - 1,
        why="the second oscillator has the next port",
    )
    query_port: int = setting(
        8073, "port at which the worker answers questions about waiting timers", least=1, most=_PORT_MAX
    )
    console_port: int = setting(8074, "port of the console, where a browser shows all of it", least=1, most=_PORT_MAX)
    lake_port: int = setting(8075, "port of /metrics of the lake's job, with lake", least=1, most=_PORT_MAX)
    lake: bool = setting(False, "leave timers that are due later than in a minute to a lake, kept in the folder")
    door: str = setting(
        "headers=timers", "as of the worker; its topics are made if they do not exist yet", is_list=True
    )

    def validate(self) -> None:
        """
        Check fields against each other.

        Raises:
            SettingsError: names the clash.
        """
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
            "worker_port": self.worker_port,
            "query_port": self.query_port,
            "console_port": self.console_port,
            "oscillator_port": self.oscillator_port,
            "oscillator_port + 1": self.oscillator_port + 1,
        } | ({"lake_port": self.lake_port} if self.lake else {})
        if not self.bootstrap:
            ports |= {f"port + {number}" if number else "port": port for number, port in enumerate(self.ports)}
            if max(self.ports) > _PORT_MAX:
                raise SettingsError(
                    f"port is {self.port}, and the others of three brokers have the next two: give less"
                )
        if len(set(ports.values())) < len(ports):
            listed = ", ".join(f"{name} {port}" for name, port in ports.items())
            raise SettingsError(f"two of these ports are the same: {listed}")

    @property
    def ports(self) -> list[int]:
        """Ports of the embedded Kafka's brokers."""
        return list(range(self.port, self.port + self.brokers))
