"""State of the partitions that an adapter reads."""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from kafka_timers.adapters.countdown import Callers
from kafka_timers.adapters.ending import Ending
from kafka_timers.adapters.source import SourceLog
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.producer import Producer
from kafka_timers.runtime.filling import Ready


@dataclass(frozen=True, slots=True)
class DoorSettings:
    """The settings of a worker that its doors need, see `WorkerSettings`."""

    kafka: Kafka
    topic_prefix: str
    group: str
    session_timeout_s: float
    transaction_timeout_s: float
    allowed_topics: str
    door_header: str
    door_require_caller: bool
    door_caller_limit: int
    door_grace_s: int
    door_from: str


@dataclass(slots=True)
class OwnedPartition:
    """
    An owned partition.

    Holds its producer and source, the topic's id, and the offset up to which records were passed on. Up to the offset
    `ahead` the `latest` version of each timer is known. `ending` ends refused schedules.
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
    """Batches of one transaction, with counts of the made and the refused requests."""

    batches: list[Ready] = field(default_factory=list)
    tombstones: list[Ready] = field(default_factory=list)
    made: int = 0
    refused: Counter[StrEnum] = field(default_factory=Counter)
