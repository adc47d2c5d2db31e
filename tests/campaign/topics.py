"""Topics as a client sees them that is not ours: librdkafka, which reads committed records only."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from campaign.oracle import Answer, Callback, Request
from kafka_timers.v1.future_pb2 import Future
from kafka_timers.v1.reply_pb2 import Reply

__all__ = [
    "Reader",
    "answer_of",
    "callback_of",
    "delete_topic",
    "leader_of",
    "make_cuttable_topic",
    "make_topic",
    "reading",
    "record_of",
    "request_of",
]

_LIMIT_S = 600.0
_T = TypeVar("_T")


def make_topic(bootstrap: str, name: str, partitions: int, replication: int = -1, in_sync_min: int = 0) -> None:
    """Make a topic whose records carry the broker's time, with the broker's default of replicas unless told."""
    config = {"message.timestamp.type": "LogAppendTime"} | (
        {"min.insync.replicas": str(in_sync_min)} if in_sync_min else {}
    )
    topic = NewTopic(name, partitions, replication, config=config)
    # Kept by a name: its questions end with it.
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([topic])[name].result(_LIMIT_S)


def make_cuttable_topic(bootstrap: str, name: str, partitions: int) -> None:
    """Make a topic on the brokers 1 and 2, of which one that is behind may become leader, when the other is away."""
    config = {
        "message.timestamp.type": "LogAppendTime",
        "unclean.leader.election.enable": "true",
        "min.insync.replicas": "1",
        "cleanup.policy": "compact" if name.endswith("timer-sealed") else "delete",
        "retention.ms": "-1",
        "min.compaction.lag.ms": "604800000",
    }
    topic = NewTopic(name, partitions, replica_assignment=[[1, 2]] * partitions, config=config)
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([topic])[name].result(_LIMIT_S)


def delete_topic(bootstrap: str, name: str) -> None:
    """Delete a topic as an operator might."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([name])[name].result(_LIMIT_S)


def leader_of(bootstrap: str, topic: str, partition: int = 0) -> int:
    """Return the broker that leads a partition, as some broker tells."""
    told = AdminClient({"bootstrap.servers": bootstrap}).list_topics(topic, timeout=_LIMIT_S)
    leader: int = told.topics[topic].partitions[partition].leader
    return leader


class Reader:
    """Reads a topic from its beginning on; `more` goes on where it was."""

    def __init__(self, consumer: Consumer, topic: str) -> None:
        told = consumer.list_topics(topic, timeout=_LIMIT_S)
        self._consumer = consumer
        self._partitions = frozenset(told.topics[topic].partitions)
        # Those of whose end we have not been told since their last record: it is told once.
        self._behind = set(self._partitions)
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in self._partitions])

    def more(self, into: Callable[[Message], _T], limit_s: float = _LIMIT_S) -> list[_T]:
        """
        Return the unread records, up to an end that each partition has had meanwhile; somebody may write on.

        Raises:
            TimeoutError: the end was not reached within *limit_s*.
        """
        found: list[_T] = []
        reached: set[int] = set()
        end_s = time.monotonic() + limit_s
        while reached < self._partitions:
            messages = self._consumer.consume(10_000, 0.3)
            if not messages and not self._behind:
                break
            for message in messages:
                error = message.error()
                if error is None:
                    self._behind.add(message.partition())
                    found.append(into(message))
                elif error.code() == KafkaError._PARTITION_EOF:
                    self._behind.discard(message.partition())
                    reached.add(message.partition())
            if time.monotonic() > end_s:
                raise TimeoutError(f"the ends of {sorted(self._behind)} were not reached within {limit_s:g} s")
        return found


@contextmanager
def reading(bootstrap: str, topic: str, *, committed: bool = True) -> Iterator[Reader]:
    """Yield a reader of a topic; without *committed* also of what lies in transactions that were aborted."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "campaign",
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    try:
        yield Reader(consumer, topic)
    finally:
        consumer.close()


def request_of(message: Message) -> Request:
    """Return a record of `timer-request`."""
    future = Future.FromString(_bytes(message.value()))
    second = 0 if future.cancel else int(_bytes(message.key()))
    return Request(message.partition(), message.offset(), message.timestamp()[1], second, future)


def callback_of(message: Message) -> Callback:
    """Return a record of a callback topic."""
    headers: dict[str, Any] = dict(reversed(message.headers() or []))
    name = headers.get("timer-request", b"").decode()
    key, value = _bytes(message.key()).decode(), _bytes(message.value())
    return Callback(name, message.timestamp()[1], key, value, message.partition())


def record_of(message: Message) -> tuple[int, int, bytes]:
    """Return place and value of a record of any topic."""
    return message.partition(), message.offset(), _bytes(message.value())


def answer_of(message: Message) -> Answer:
    """Return a record of the reply topic."""
    reply = Reply.FromString(_bytes(message.value()))
    return Answer(reply.asked, reply.outcome)


def _bytes(data: Any) -> bytes:
    return data or b""
