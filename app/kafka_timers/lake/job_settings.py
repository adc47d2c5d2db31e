"""The settings of the lake's jobs that run all the time."""

from dataclasses import dataclass

from kafka_timers.settings import LakeSettings, setting

_PORT_MAX = 65_535


@dataclass(frozen=True, kw_only=True)
class RunningSettings(LakeSettings):
    """Settings of a job that lands or promotes."""

    host: str = setting(
        "127.0.0.1",
        "address for /metrics, /livez and /readyz",
        if_empty="give an address of this host, or 0.0.0.0 for all of them",
    )
    port: int = setting(
        0,
        "port for /metrics, /livez and /readyz; 0 serves none, and neither does --once",
        least=0,
        most=_PORT_MAX,
    )
