"""
How each partition stands, told by its seals alone; asks no worker and no store. `kafka-timers status` shows it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kafka_timers.broker.seals import latest
from kafka_timers.core.wire import Sealed

__all__ = ["PartitionStatus", "status_of"]


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One partition; what no seal tells is None."""

    partition: int
    second: int | None
    """Last second that is sealed as a whole, UNIX seconds."""
    lag_s: int | None
    """Whole seconds from it until now; a partition in which nothing is due is sealed every few seconds only."""
    pending: int | None
    """Requests that wait."""
    lateness_p50_ms: int | None
    lateness_p99_ms: int | None
    lateness_max_ms: int | None
    """From a callback's second to its sending, in the last seal read that fired anything."""
    owner: str | None
    """URL and name of the worker that wrote the last seal."""


def status_of(tails: Mapping[int, Sequence[Sealed]], now_s: float) -> list[PartitionStatus]:
    """
    Return how each partition stands, in order of their numbers.

    Args:
        tails: the last seals of each partition in the order of its log, as `seals.last_seals` returns them.
        now_s: UNIX time to which `lag_s` is counted.
    """
    return [_one(partition, tails[partition], now_s) for partition in sorted(tails)]


def _one(partition: int, seals: Sequence[Sealed], now_s: float) -> PartitionStatus:
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
