"""
Read how a service stands from Kafka alone, without asking a worker or a store. `kafka-timers status` shows it.

A partition stands as its last seals say, an adapter where its consumer group does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kafka_timers.adapters.lag import AdapterLag, adapter_lags
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.seals import last_seals, latest
from kafka_timers.clock import Clock
from kafka_timers.core.wire import Sealed

__all__ = ["PartitionStatus", "ServiceStatus", "read_status", "status_of"]


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """How one partition stands; a field is None if no seal tells it."""

    partition: int
    second: int | None
    """Last second that is sealed as a whole, in UNIX seconds."""
    lag_s: int | None
    """Whole seconds from it until now; a partition in which nothing is due is sealed every few seconds only."""
    pending: int | None
    """How many requests wait."""
    lateness_p50_ms: int | None
    lateness_p99_ms: int | None
    lateness_max_ms: int | None
    """From a callback's second to its sending, in the last seal read that fired anything."""
    owner: str | None
    """URL and name of the worker that wrote the last seal."""


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """
    How an instance of the service stands.

    Attributes:
        partitions: status of each partition, in order of their numbers.
        lags: how far each adapter that has read anything is behind.
    """

    partitions: list[PartitionStatus]
    lags: list[AdapterLag]


async def read_status(kafka: Kafka, prefix: str, group: str, clock: Clock) -> ServiceStatus:
    """
    Return how an instance of the service stands.

    Args:
        kafka: where the service runs.
        prefix: put before the names of the service's own topics.
        group: consumer group of the workers.
        clock: tells the time to which `lag_s` is counted.

    Raises:
        TopicsError: `timer-sealed` does not exist.
        BrokerError: no broker answers within some 10 s, or it refuses.
    """
    tails = await last_seals(kafka, prefix)
    return ServiceStatus(status_of(tails, clock.wall_s()), await adapter_lags(kafka, group))


def status_of(tails: Mapping[int, Sequence[Sealed]], now_s: float) -> list[PartitionStatus]:
    """
    Return how each partition stands, in order of their numbers.

    Args:
        tails: the last seals of each partition in the order of its log, as `seals.last_seals` returns them.
        now_s: UNIX time to which `lag_s` is counted.
    """
    return [_partition_status(partition, tails[partition], now_s) for partition in sorted(tails)]


def _partition_status(partition: int, seals: Sequence[Sealed], now_s: float) -> PartitionStatus:
    complete = latest(seals)
    last = seals[-1] if seals else None
    fired = next((seal for seal in reversed(seals) if seal.fired), None)
    return PartitionStatus(
        partition=partition,
        second=complete.last if complete else None,
        lag_s=max(0, int(now_s) - complete.last) if complete else None,
        pending=last.pending if last else None,
        lateness_p50_ms=fired.lateness_p50_ms if fired else None,
        lateness_p99_ms=fired.lateness_p99_ms if fired else None,
        lateness_max_ms=fired.lateness_max_ms if fired else None,
        owner=last.worker or None if last else None,
    )
