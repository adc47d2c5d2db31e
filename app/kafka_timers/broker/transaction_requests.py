"""
Requests of Kafka's protocol for transactions, and for the offsets committed in them, that aiokafka lacks.

As in `requests`, the fields are those of Kafka's message with that name and version. The second transaction protocol
(KIP-890, Kafka 4.0) needs `EndTransaction` and `CommitOffsets`. Kafka 2.8 and later know the others.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from aiokafka.protocol.types import Boolean, CompactArray, Int16, Int32, Int64

from kafka_timers.broker.messages import TAGS, TEXT, Message, Older, by_topic

# Values for a client outside the group.
_NO_GENERATION, _NO_MEMBER = -1, ""
_ANY_EPOCH = -1

_PRODUCER = (("producer_id", Int64), ("producer_epoch", Int16))
_IDENTITY = (("throttle_time_ms", Int32), ("error_code", Int16), *_PRODUCER)


@dataclass(eq=False)
class InitProducerId(
    Message,
    key=22,
    version=4,
    asks=(("transactional_id", TEXT), ("transaction_timeout_ms", Int32), *_PRODUCER),
    answers=_IDENTITY,
    older=Older(3, is_compact=True),
):
    """
    Asks for a producer id, and with *transactional_id* fences the producer that had it before.

    Args:
        transactional_id: None for a producer without transactions.
        producer_id: current id of a producer that asks for a later epoch, which it gets if no other has taken over; -1
            to start.
        epoch: its current epoch; -1 to start.
    """

    transactional_id: str | None
    timeout_ms: int
    producer_id: int = -1
    epoch: int = -1

    def __iter__(self) -> Iterator[Any]:
        yield from (self.transactional_id, self.timeout_ms, self.producer_id, self.epoch)


@dataclass(eq=False)
class EndTransaction(
    Message,
    key=26,
    version=5,
    asks=(("transactional_id", TEXT), *_PRODUCER, ("is_commit", Boolean)),
    answers=_IDENTITY,
):
    """Commits or aborts, and returns the identity for the next transaction: the second transaction protocol."""

    transactional_id: str
    producer_id: int
    epoch: int
    is_commit: bool

    def __iter__(self) -> Iterator[Any]:
        yield from (self.transactional_id, self.producer_id, self.epoch, self.is_commit)


@dataclass(eq=False)
class CommitOffsets(
    Message,
    key=28,
    version=5,
    asks=(
        ("transactional_id", TEXT),
        ("group", TEXT),
        *_PRODUCER,
        ("generation", Int32),
        ("member_id", TEXT),
        ("instance_id", TEXT),
        by_topic("topics", ("offset", Int64), ("leader_epoch", Int32), ("metadata", TEXT)),
    ),
    answers=(("throttle_time_ms", Int32), by_topic("errors", ("error_code", Int16))),
):
    """
    Commits offsets of one topic for a group, and adds the group to the transaction: the second transaction protocol.

    The producer need not be a member of the group. *note* is stored beside each of the *offsets*, which are by
    partition.
    """

    transactional_id: str
    group: str
    producer_id: int
    epoch: int
    topic: str
    offsets: Mapping[int, int]
    note: str

    def __iter__(self) -> Iterator[Any]:
        yield from (self.transactional_id, self.group, self.producer_id, self.epoch)
        yield from (_NO_GENERATION, _NO_MEMBER, None)
        yield [(self.topic, [(at, offset, _ANY_EPOCH, self.note, {}) for at, offset in self.offsets.items()], {})]


@dataclass(eq=False)
class CommittedOffsets(
    Message,
    key=9,
    version=7,
    asks=(
        ("group", TEXT),
        ("topics", CompactArray(("topic", TEXT), ("partitions", CompactArray(Int32)), TAGS)),
        ("is_stable", Boolean),
    ),
    answers=(
        ("throttle_time_ms", Int32),
        by_topic("topics", ("offset", Int64), ("leader_epoch", Int32), ("metadata", TEXT), ("error_code", Int16)),
        ("error_code", Int16),
    ),
):
    """
    Asks for a group's committed offset of a partition. The answer is an error while a transaction that commits one is
    open.
    """

    group: str
    topic: str
    number: int

    def __iter__(self) -> Iterator[Any]:
        yield from (self.group, [(self.topic, [self.number], {})], True)
