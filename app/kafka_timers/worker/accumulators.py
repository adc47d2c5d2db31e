"""
The open batches of a callback topic, and the partition of each callback.
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
    The open batches of one callback topic, one for each partition, and the number of callbacks so far.

    A request of at most *plain_bytes_max* bytes fits without a check of the topic's limits.
    """

    topic: str
    target: Target
    batches: list[Batch | None]
    plain_bytes_max: int
    fired: int = 0


def partition_in(outgoing: Outgoing, partitions: int, otherwise: int) -> int:
    """
    Return the partition for *outgoing* on a topic that accepts it.

    Raises:
        LookupError: the topic has no such partition.
    """
    at = outgoing.at(partitions, otherwise)
    if at is None:
        raise LookupError(f"there is no partition {outgoing.partition}")
    return at


def place_in(outgoing: Outgoing, request: Request, size: int, target: Target, otherwise: int) -> int | Reason:
    """
    Return the partition of *outgoing*, or the reason why *target* refuses it. *size* is that of *request* in bytes.
    """
    if outgoing.key is None and target.needs_key:
        return Reason.TOPIC_NEEDS_KEY
    if not fits(request, size, target):
        return Reason.TOO_LARGE
    at = outgoing.at(target.partitions, otherwise)
    return Reason.PARTITION_UNKNOWN if at is None else at


def tombstone_in(request: Request, to: Accumulator) -> int:
    """Return the partition for the tombstone that *request* asks for."""
    # A missing field reads as 0, so 0 alone proves nothing.
    at, partitions = request.tombstonePartition, to.target.partitions
    if 0 < at < partitions or (at == 0 and request.HasField("tombstonePartition")):
        return at
    return hash_of(request.tombstoneKey) % partitions


def accumulator_to(topic: str, target: Target) -> Accumulator:
    """Return an accumulator without batches for *topic*, with the limits of *target*."""
    # No batch exceeds the producer's limit. Where the topic's limit is smaller, each batch is checked.
    plain_bytes_max = target.batch_bytes_max - OVERHEAD_BYTES if target.batch_bytes_max >= BATCH_BYTES else -1
    return Accumulator(topic, target, [None] * target.partitions, plain_bytes_max)
