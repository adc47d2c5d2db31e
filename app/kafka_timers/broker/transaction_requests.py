"""
Requests of Kafka's protocol for transactions, and for the offsets committed in them, that aiokafka lacks.

As in `requests`, the fields are those of Kafka's message with that name and version. The second transaction protocol
(KIP-890, Kafka 4.0) needs `EndTransaction` and `CommitOffsets`. Kafka 3.0 and later know the others.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aiokafka.protocol.api import Request
from aiokafka.protocol.types import Boolean, CompactArray, Int16, Int32, Int64, Schema

from kafka_timers.broker.messages import TAGS, TEXT, by_topic, message

# Values for a client outside the group.
_NO_GENERATION, _NO_MEMBER = -1, ""
_ANY_EPOCH = -1

_IDENTITY = Schema(
    ("throttle_time_ms", Int32),
    ("error_code", Int16),
    ("producer_id", Int64),
    ("producer_epoch", Int16),
    TAGS,
)

_InitProducerIdRequest = message(
    "InitProducerId",
    22,
    4,
    Schema(
        ("transactional_id", TEXT),
        ("transaction_timeout_ms", Int32),
        ("producer_id", Int64),
        ("producer_epoch", Int16),
        TAGS,
    ),
    _IDENTITY,
)


@dataclass(eq=False)
class InitProducerId(Request[_InitProducerIdRequest]):  # type: ignore[misc]  # aiokafka tells no types
    """
    Asks for a producer id, and with *transactional_id* fences the producer that had it before.

    Args:
        transactional_id: None for a producer without transactions.
        producer_id: current id of a producer that asks for a later epoch, which it gets if no other has taken over; -1
            to start.
        epoch: its current epoch; -1 to start.
    """

    API_KEY = 22
    transactional_id: str | None
    timeout_ms: int
    producer_id: int = -1
    epoch: int = -1

    def build(self, kind: Any) -> Any:
        """Return the message in the version *kind*."""
        return kind(self.transactional_id, self.timeout_ms, self.producer_id, self.epoch, {})


_EndTxnRequest = message(
    "EndTxn",
    26,
    5,
    Schema(
        ("transactional_id", TEXT),
        ("producer_id", Int64),
        ("producer_epoch", Int16),
        ("is_commit", Boolean),
        TAGS,
    ),
    _IDENTITY,
)


@dataclass(eq=False)
class EndTransaction(Request[_EndTxnRequest]):  # type: ignore[misc]  # aiokafka tells no types
    """Commits or aborts, and returns the identity for the next transaction: the second transaction protocol."""

    API_KEY = 26
    transactional_id: str
    producer_id: int
    epoch: int
    is_commit: bool

    def build(self, kind: Any) -> Any:
        """Return the message in the version *kind*."""
        return kind(self.transactional_id, self.producer_id, self.epoch, self.is_commit, {})


_TxnOffsetCommitRequest = message(
    "TxnOffsetCommit",
    28,
    5,
    Schema(
        ("transactional_id", TEXT),
        ("group", TEXT),
        ("producer_id", Int64),
        ("producer_epoch", Int16),
        ("generation", Int32),
        ("member_id", TEXT),
        ("instance_id", TEXT),
        by_topic("topics", ("offset", Int64), ("leader_epoch", Int32), ("metadata", TEXT)),
        TAGS,
    ),
    Schema(
        ("throttle_time_ms", Int32),
        by_topic("errors", ("error_code", Int16)),
        TAGS,
    ),
)


@dataclass(eq=False)
class CommitOffsets(Request[_TxnOffsetCommitRequest]):  # type: ignore[misc]  # aiokafka tells no types
    """
    Commits offsets of one topic for a group, and adds the group to the transaction: the second transaction protocol.

    The producer need not be a member of the group. *note* is stored beside each of the *offsets*, which are by
    partition.
    """

    API_KEY = 28
    transactional_id: str
    group: str
    producer_id: int
    epoch: int
    topic: str
    offsets: Mapping[int, int]
    note: str

    def build(self, kind: Any) -> Any:
        """Return the message in the version *kind*."""
        partitions: list[Any] = [(number, offset, _ANY_EPOCH, self.note, {}) for number, offset in self.offsets.items()]
        topics: list[Any] = [(self.topic, partitions, {})]
        producer = self.producer_id, self.epoch
        return kind(self.transactional_id, self.group, *producer, _NO_GENERATION, _NO_MEMBER, None, topics, {})


_OffsetFetchRequest = message(
    "OffsetFetch",
    9,
    7,
    Schema(
        ("group", TEXT),
        ("topics", CompactArray(("topic", TEXT), ("partitions", CompactArray(Int32)), TAGS)),
        ("is_stable", Boolean),
        TAGS,
    ),
    Schema(
        ("throttle_time_ms", Int32),
        by_topic("topics", ("offset", Int64), ("leader_epoch", Int32), ("metadata", TEXT), ("error_code", Int16)),
        ("error_code", Int16),
        TAGS,
    ),
)


@dataclass(eq=False)
class CommittedOffsets(Request[_OffsetFetchRequest]):  # type: ignore[misc]  # aiokafka tells no types
    """
    Asks for a group's committed offset of a partition. The answer is an error while a transaction that commits one is
    open.
    """

    API_KEY = 9
    group: str
    topic: str
    number: int

    def build(self, kind: Any) -> Any:
        """Return the message in the version *kind*."""
        return kind(self.group, [(self.topic, [self.number], {})], True, {})
