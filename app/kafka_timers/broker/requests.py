"""
Requests of Kafka's protocol that aiokafka lacks, or has only in old versions.

Send them like aiokafka's own requests. Their fields are those of Kafka's message with that name and version. Kafka 2.8
and later know all of them, except those for the second transaction protocol (KIP-890, Kafka 4.0). The older versions
are for other brokers that speak the protocol. Requests about transactions and offsets are in `transaction_requests`.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from aiokafka.protocol.admin import DescribeConfigsRequest
from aiokafka.protocol.api import ResponseHeader_v0
from aiokafka.protocol.types import Boolean, CompactArray, CompactBytes, Int8, Int16, Int32, Int64

from kafka_timers.broker.messages import TAGS, TEXT, Message, Older, Uuid, by_topic

_ALL_IN_SYNC = -1
# Kafka's number for topics as a kind of resource.
_TOPIC = 2
_READ_COMMITTED = 1
_FINALIZED_FEATURES = 2
_FEATURES = CompactArray(("name", TEXT), ("max_version", Int16), ("min_version", Int16), TAGS)


# --- the cluster -----------------------------------------------------------------------------------------------------


_PARTITIONS = CompactArray(
    ("error_code", Int16),
    ("number", Int32),
    ("leader", Int32),
    ("leader_epoch", Int32),
    ("replicas", CompactArray(Int32)),
    ("in_sync", CompactArray(Int32)),
    ("offline", CompactArray(Int32)),
    TAGS,
)
_TOPICS = CompactArray(
    ("error_code", Int16),
    ("name", TEXT),
    ("topic_id", Uuid),
    ("is_internal", Boolean),
    ("partitions", _PARTITIONS),
    ("operations", Int32),
    TAGS,
)


@dataclass(eq=False)
class Metadata(
    Message,
    key=3,
    version=10,
    asks=(
        ("topics", CompactArray(("topic_id", Uuid), ("name", TEXT), TAGS)),
        ("may_create_topics", Boolean),
        ("with_operations_of_cluster", Boolean),
        ("with_operations_of_topics", Boolean),
    ),
    answers=(
        ("throttle_time_ms", Int32),
        ("brokers", CompactArray(("node", Int32), ("host", TEXT), ("port", Int32), ("rack", TEXT), TAGS)),
        ("cluster_id", TEXT),
        ("controller", Int32),
        ("topics", _TOPICS),
        ("operations", Int32),
    ),
    # It tells no id of a topic.
    older=Older(8, {"topic_id": bytes(16)}),
):
    """
    Asks for the brokers, and for the leader and leader epoch of each partition of *topics*.

    Pass None to ask for all topics that the user may see.
    """

    topics: Collection[str] | None

    def __iter__(self) -> Iterator[Any]:
        yield None if self.topics is None else [(bytes(16), topic, {}) for topic in self.topics]
        yield from (False, False, False)


# How many replicas have to be in sync for a topic to take records.
IN_SYNC_MIN = "min.insync.replicas"


def settings_of(topics: Iterable[str], names: Collection[str] | None = None) -> DescribeConfigsRequest:
    """Return a request for the settings of *topics*: the settings *names*, or all."""
    return DescribeConfigsRequest([(_TOPIC, topic, names) for topic in topics])


class ApiVersions(
    Message,
    key=18,
    version=3,
    asks=(("client", TEXT), ("client_version", TEXT)),
    answers=(
        ("error_code", Int16),
        ("requests", CompactArray(("key", Int16), ("min_version", Int16), ("max_version", Int16), TAGS)),
        ("throttle_time_ms", Int32),
    ),
    # Only the answer to this request keeps the old form of header.
    header=ResponseHeader_v0,
):
    """Asks for the requests that a broker knows, and for the features that the cluster has agreed on."""

    def __iter__(self) -> Iterator[Any]:
        yield from ("kafka-timers", "1")


def transaction_version_in(answer: Any) -> int:
    """Return the transaction version that the cluster has agreed on, from its *answer* to `ApiVersions`."""
    features = answer.tags.get(_FINALIZED_FEATURES)
    levels = {name: level for name, level, *_ in _FEATURES.decode(BytesIO(features))} if features else {}
    return int(levels.get("transaction.version", 0))


# --- records ---------------------------------------------------------------------------------------------------------

_PRODUCED = (
    by_topic(
        "topics",
        ("error_code", Int16),
        ("base_offset", Int64),
        ("append_ms", Int64),
        ("log_start", Int64),
        ("record_errors", CompactArray(("place", Int32), ("message", TEXT), TAGS)),
        ("message", TEXT),
    ),
    ("throttle_time_ms", Int32),
)
_PRODUCE = (
    ("transactional_id", TEXT),
    ("acks", Int16),
    ("timeout_ms", Int32),
    by_topic("topics", ("records", CompactBytes)),
)


@dataclass(eq=False)
class Produce(
    Message,
    key=0,
    version=9,
    asks=_PRODUCE,
    answers=_PRODUCED,
    # It has no words for a refusal.
    older=Older(7, {"record_errors": (), "message": ""}),
):
    """
    Appends batches, at most one for each partition. The answer comes once all in-sync replicas have them. The leader
    waits for the other replicas for *timeout_ms* milliseconds.
    """

    transactional_id: str | None
    timeout_ms: int
    batches: Mapping[tuple[str, int], bytes | bytearray]

    def __iter__(self) -> Iterator[Any]:
        topics: dict[str, list[Any]] = {}
        for (topic, partition), batch in self.batches.items():
            topics.setdefault(topic, []).append((partition, batch, {}))
        yield from (self.transactional_id, _ALL_IN_SYNC, self.timeout_ms)
        yield [(topic, partitions, {}) for topic, partitions in topics.items()]


class ProduceInTransaction(Produce, key=0, version=12, asks=_PRODUCE, answers=_PRODUCED):
    """Like `Produce`, and adds the partitions to the transaction: the second transaction protocol."""


@dataclass(eq=False)
class Fetch(
    Message,
    key=1,
    version=12,
    asks=(
        ("replica", Int32),
        ("wait_ms", Int32),
        ("bytes_min", Int32),
        ("bytes_max", Int32),
        ("isolation", Int8),
        ("session", Int32),
        ("session_epoch", Int32),
        by_topic(
            "topics",
            ("leader_epoch", Int32),
            ("offset", Int64),
            ("last_fetched_epoch", Int32),
            ("log_start", Int64),
            ("bytes_max", Int32),
        ),
        ("forgotten", CompactArray(("topic", TEXT), ("partitions", CompactArray(Int32)), TAGS)),
        ("rack", TEXT),
    ),
    answers=(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        ("session", Int32),
        by_topic(
            "topics",
            ("error_code", Int16),
            ("end", Int64),
            ("stable", Int64),
            ("log_start", Int64),
            ("aborted", CompactArray(("producer_id", Int64), ("first_offset", Int64), TAGS)),
            ("preferred_replica", Int32),
            ("records", CompactBytes),
        ),
    ),
    older=Older(11, {"last_fetched_epoch": -1}),
):
    """
    Asks the leader of some partitions of one topic for records.

    Args:
        positions: the expected leader epoch and the offset to read from, by partition.
        wait_ms: how long the broker waits for a first record, in milliseconds.
        partition_bytes_max: size limit for each partition. The first batch is sent at any size.
        session: id of a fetch session (KIP-227) and number of the fetch in it. With number 0, a session begins and the
            one with the id ends. With number -1, there is no session.
        forgotten: partitions that are no longer part of the session.
    """

    topic: str
    positions: Mapping[int, tuple[int, int]]
    wait_ms: int
    bytes_max: int
    partition_bytes_max: int
    is_committed: bool = True
    session: tuple[int, int] = (0, -1)
    forgotten: Collection[int] = ()

    def __iter__(self) -> Iterator[Any]:
        partitions: list[Any] = [
            (number, epoch, position, -1, -1, self.partition_bytes_max, {})
            for number, (epoch, position) in self.positions.items()
        ]
        isolation = _READ_COMMITTED if self.is_committed else 0
        yield from (-1, self.wait_ms, 1, self.bytes_max, isolation, *self.session)
        yield [(self.topic, partitions, {})] if partitions else []
        yield [(self.topic, [*self.forgotten], {})] if self.forgotten else []
        yield ""


@dataclass(eq=False)
class EpochEnd(
    Message,
    key=23,
    version=4,
    asks=(("replica", Int32), by_topic("topics", ("current_epoch", Int32), ("epoch", Int32))),
    answers=(
        ("throttle_time_ms", Int32),
        (
            "topics",
            CompactArray(
                ("topic", TEXT),
                # Here the number of the partition comes second.
                (
                    "partitions",
                    CompactArray(("error_code", Int16), ("partition", Int32), ("epoch", Int32), ("end", Int64), TAGS),
                ),
                TAGS,
            ),
        ),
    ),
):
    """
    Asks the leader of a partition, in its *current_epoch*, where the records of *epoch* and of earlier ones end.

    Kafka calls it OffsetForLeaderEpoch.
    """

    topic: str
    number: int
    current_epoch: int
    epoch: int

    def __iter__(self) -> Iterator[Any]:
        yield -1
        yield [(self.topic, [(self.number, self.current_epoch, self.epoch, {})], {})]


@dataclass(eq=False)
class LogDirs(
    Message,
    key=35,
    version=2,
    asks=(("topics", CompactArray(("topic", TEXT), ("partitions", CompactArray(Int32)), TAGS)),),
    answers=(
        ("throttle_time_ms", Int32),
        (
            "folders",
            CompactArray(
                ("error_code", Int16),
                ("folder", TEXT),
                by_topic("topics", ("bytes", Int64), ("lag", Int64), ("is_future", Boolean)),
                TAGS,
            ),
        ),
    ),
):
    """
    Asks a broker for the bytes of its replicas of some partitions.

    Kafka calls it DescribeLogDirs. It answers with nothing to a user that may not describe the cluster.
    """

    topic: str
    numbers: Collection[int]

    def __iter__(self) -> Iterator[Any]:
        yield [(self.topic, [*self.numbers], {})]


@dataclass(eq=False)
class ListOffsets(
    Message,
    key=2,
    version=6,
    asks=(("replica", Int32), ("isolation", Int8), by_topic("topics", ("leader_epoch", Int32), ("timestamp", Int64))),
    answers=(
        ("throttle_time_ms", Int32),
        by_topic("topics", ("error_code", Int16), ("timestamp", Int64), ("offset", Int64), ("leader_epoch", Int32)),
    ),
    older=Older(4),
):
    """
    Asks the leader of partitions for their first or last offset, with the leader epoch.

    It can also ask for the first record appended at or after a moment: its offset and leader epoch; -1 for none.

    Args:
        moment: `START`, `END`, or UNIX milliseconds.
        is_committed: whether the end is where readers of committed records stop.
    """

    START, END = -2, -1
    topic: str
    numbers: Collection[int]
    moment: int
    is_committed: bool = True

    def __iter__(self) -> Iterator[Any]:
        yield from (-1, _READ_COMMITTED if self.is_committed else 0)
        yield [(self.topic, [(number, -1, self.moment, {}) for number in self.numbers], {})]
