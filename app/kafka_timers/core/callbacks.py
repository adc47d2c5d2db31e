"""
The parts of a callback, and whether its topic takes it.

Pure. Checks that need the topic are made in the request's second, not when the request is accepted, since topics
change.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import translate
from typing import Any, NamedTuple

from kafka_timers.core.routing import hash_of
from kafka_timers.core.text import headers_of, json_of
from kafka_timers.core.wire import SECOND_LIMIT, Future, Request, callback_headers

# Of a batch with one record: 61 bytes of batch header, and at most 36 of varints and attributes around key and value.
_BATCH_OVERHEAD = 100
HEADER_OVERHEAD_BYTES = 10
# How much larger than its request a callback's batch can be: the above, and the service's own six headers.
OVERHEAD_BYTES = _BATCH_OVERHEAD + 150


class Lack(NamedTuple):
    """Why a partition takes nothing: Kafka's error number, and the brokers of its replicas that are away or behind."""

    error: int
    away: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Target:
    """
    A topic that may be written to.

    Attributes:
        partitions: number of its partitions.
        batch_bytes_max: the largest batch that it takes.
        needs_key: whether it refuses records without a key, as a compacted topic does.
        unavailable: its partitions without a leader, or without enough replicas in sync.
    """

    partitions: int
    batch_bytes_max: int
    needs_key: bool = False
    unavailable: Mapping[int, Lack] = field(default_factory=dict)


class Outgoing(NamedTuple):
    """
    A callback as it is written.

    Attributes:
        topic: topic in UTF-8.
        key: None for no key.
        value: None for a tombstone.
        partition: partition that was asked for; None lets the key choose.
        hashed: bytes that choose the partition: the partition key, else the key; None if there is neither.
    """

    topic: bytes
    key: bytes | None
    value: bytes | None
    partition: int | None
    hashed: bytes | None

    @classmethod
    def of(cls, request: Request) -> "Outgoing":
        """Return the callback that *request* asks for."""
        if not request.HasField("callBackRecord"):
            plain_key = request.callBackKey or None
            return cls(request.callBackTopic, plain_key, request.callBack, None, plain_key)
        asked = request.callBackRecord
        key, value, partition, partition_key = (
            getattr(asked, name) if asked.HasField(name) else None
            for name in ("key", "value", "partition", "partitionKey")
        )
        return cls(asked.topic, key, value, partition, key if partition_key is None else partition_key)

    def at(self, partitions: int, otherwise: int) -> int | None:
        """
        Return the partition, None if the topic has no partition of that number.

        Args:
            partitions: number of partitions of the topic.
            otherwise: number that chooses the partition if the request does not.
        """
        if self.partition is not None:
            return self.partition if self.partition < partitions else None
        return (otherwise if self.hashed is None else hash_of(self.hashed)) % partitions


class Shown(NamedTuple):
    """The callback of a Future for people and the lake: the fields are as in `Outgoing`, but the topic is text."""

    topic: str
    key: bytes | None
    value: bytes | None

    @classmethod
    def of(cls, future: Future) -> "Shown":
        """Return the callback that *future* asks for."""
        if not future.HasField("callBackRecord"):
            return cls(future.callBackTopic, future.callBackKey.encode() or None, future.callBack)
        asked = future.callBackRecord
        key, value = (getattr(asked, name) if asked.HasField(name) else None for name in ("key", "value"))
        return cls(asked.topic, key, value)


def placing_document(asked: Future | Request) -> dict[str, Any]:
    """Return the partition and the partition key that *asked* names for its callback as JSON; null without one."""
    record = asked.callBackRecord
    return {
        "partition": record.partition if record.HasField("partition") else None,
        **json_of("partition_key", record.partitionKey if record.HasField("partitionKey") else None),
    }


def callback_document(future: Future) -> dict[str, Any]:
    """Return the callback that *future* asks for as JSON; a value that is null asks for a tombstone."""
    topic, key, value = Shown.of(future)
    return {
        "topic": topic,
        **json_of("key", key),
        **placing_document(future),
        "token": future.token or None,
        **json_of("value", value),
        "headers": headers_of(future.headers),
    }


def topics_in(globs: str) -> "re.Pattern[str]":
    """Return a pattern that matches the topics of *globs*, which are comma separated."""
    return re.compile("|".join(translate(glob.strip()) for glob in globs.split(",")))


def fits(request: Request, size: int, target: Target) -> bool:
    """Tell whether a callback fits into its topic; *size* is the size of the serialised *request*."""
    if size + OVERHEAD_BYTES <= target.batch_bytes_max:
        return True
    headers = callback_headers(request, SECOND_LIMIT, b"0123456789:01234567890123456789")
    header_bytes = sum([len(name) + len(value or b"") + HEADER_OVERHEAD_BYTES for name, value in headers])
    outgoing = Outgoing.of(request)
    body_bytes = len(outgoing.key or b"") + len(outgoing.value or b"")
    return _BATCH_OVERHEAD + body_bytes + header_bytes <= target.batch_bytes_max
