"""
The open batches of a callback topic, and where in it a callback goes.
"""

from dataclasses import dataclass

from kafka_timers.broker.batches import Batch
from kafka_timers.core.callbacks import OVERHEAD_BYTES, Outgoing, Target, fits
from kafka_timers.core.refused import Reason
from kafka_timers.core.routing import hash_of
from kafka_timers.core.wire import Request
from kafka_timers.worker.sender import BATCH_BYTES

__all__ = ["Accumulator", "accumulator_to", "partition_in", "place_in", "tombstone_in"]


@dataclass(slots=True)
class Accumulator:
    """
    The open batches of one callback topic, one per partition, and how many callbacks have gone there.

    A request of at most *plain_bytes_max* needs no look at what the topic takes.
    """

    topic: str
    target: Target
    batches: list[Batch | None]
    plain_bytes_max: int
    fired: int = 0


def partition_in(outgoing: Outgoing, partitions: int, otherwise: int) -> int:
    """
    Return the partition of *outgoing* on a topic that takes it.

    Raises:
        LookupError: it has no such partition.
    """
    at = outgoing.at(partitions, otherwise)
    if at is None:
        raise LookupError(f"there is no partition {outgoing.partition}")
    return at


def place_in(outgoing: Outgoing, request: Request, size: int, target: Target, otherwise: int) -> int | Reason:
    """Return the partition of *outgoing*, or why *target* does not take it; its *request* has *size* bytes."""
    if outgoing.key is None and target.needs_key:
        return Reason.TOPIC_NEEDS_KEY
    if not fits(request, size, target):
        return Reason.TOO_LARGE
    at = outgoing.at(target.partitions, otherwise)
    return Reason.PARTITION_UNKNOWN if at is None else at


def tombstone_in(request: Request, to: Accumulator) -> int:
    """Return the partition of the tombstone that *request* asks for."""
    # An absent one reads as 0, which tells nothing.
    at, partitions = request.tombstonePartition, to.target.partitions
    if 0 < at < partitions or (at == 0 and request.HasField("tombstonePartition")):
        return at
    return hash_of(request.tombstoneKey) % partitions


def accumulator_to(topic: str, target: Target) -> Accumulator:
    """Return one without batches for *topic*, which takes what *target* says."""
    # A batch has at most what the producer takes. Where the topic takes less, each one is looked at.
    plain_bytes_max = target.batch_bytes_max - OVERHEAD_BYTES if target.batch_bytes_max >= BATCH_BYTES else -1
    return Accumulator(topic, target, [None] * target.partitions, plain_bytes_max)
