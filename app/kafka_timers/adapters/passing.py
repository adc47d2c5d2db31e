"""
What the reader of an adapter has of each partition, and where it passes that on to.
"""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from kafka_timers.adapters.countdown import Callers
from kafka_timers.adapters.ending import Ending
from kafka_timers.adapters.source import SourceLog
from kafka_timers.broker.producer import Producer
from kafka_timers.core.callbacks import Target
from kafka_timers.worker.ports import Ready
from kafka_timers.worker.sender import BATCH_BYTES

__all__ = ["Outlet", "OwnedPartition", "Passing", "transactional_id"]


@dataclass(frozen=True, slots=True)
class Outlet:
    """Names of the topics that requests and refused records go to, and what the two topics take."""

    requests: str
    requests_take: Target
    rejected: str
    rejected_takes: Target

    @property
    def batch_bytes(self) -> int:
        """Return the most bytes of a batch; a larger one has a single record."""
        return min(BATCH_BYTES, self.requests_take.batch_bytes_max, self.rejected_takes.batch_bytes_max)


@dataclass(slots=True)
class OwnedPartition:
    """
    An owned partition: its producer, what it reads and of which topic, the offset up to which that was passed on,
    up to where the latest version of each timer is known, and what ends schedules that are refused.
    """

    producer: Producer
    source: SourceLog
    position: int
    ahead: int
    latest: dict[bytes, int]
    callers: Callers
    topic_id: bytes
    ending: Ending


@dataclass(slots=True)
class Passing:
    """The contents of a transaction."""

    batches: list[Ready] = field(default_factory=list)
    tombstones: list[Ready] = field(default_factory=list)
    made: int = 0
    refused: Counter[StrEnum] = field(default_factory=Counter)


def transactional_id(group: str, prefix: str, topic: str, partition: int) -> str:
    """
    Return the transactional id of who reads *partition* of a door's *topic*; it begins with *group* and a dot.

    No two of (*group*, *prefix*, *topic*, *partition*) have the same one: where it would not tell them apart, as with
    prefix `eu.` and topic `orders` from topic `eu.orders`, it ends with both.
    """
    name = f"{group}.{prefix}{topic}.{partition}"
    return name if not prefix and "." not in topic else f"{name}/{prefix}/{topic}/"
