"""
The bytes on the topics: names, headers, and the only module that touches generated protobuf code.

Everything here is a promise to every client in every language; docs/wire.md tells it in prose.
"""

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Self

from google.protobuf.message import DecodeError

from kafka_timers.errors import WireError
from kafka_timers.v1.future_pb2 import Future, Header
from kafka_timers.v1.sealed_pb2 import Sealed

__all__ = [
    "EXPIRY_HEADER",
    "ID_HEADER",
    "REQUEST_HEADER",
    "SECOND_LIMIT",
    "TICK",
    "TOKEN_HEADER",
    "Future",
    "Header",
    "Sealed",
    "Topics",
    "age_of",
    "callback_headers",
    "future_from",
    "is_complete",
    "latest",
    "plain_fields",
    "sealed_from",
]


@dataclass(frozen=True, slots=True)
class Topics:
    """Names of the service's own topics; those of one instance share a prefix, which is empty by default."""

    requests: str = "timer-request"
    oscillator: str = "oscillator"
    sealed: str = "timer-sealed"
    rejected: str = "timer-rejected"

    @classmethod
    def of(cls, prefix: str) -> Self:
        """Return the names with *prefix* before each."""
        return cls(*(prefix + name for name in dataclasses.astuple(cls())))

    def __contains__(self, topic: object) -> bool:
        return topic in (self.requests, self.oscillator, self.sealed, self.rejected)


TICK = b"1"

TOKEN_HEADER = "timer-token"  # noqa: S105  # a header's name, no secret
ID_HEADER = "timer-id"
EXPIRY_HEADER = "timer-expiry"
REQUEST_HEADER = "timer-request"

_TOPIC_TAG, _KEY_TAG, _VALUE_TAG = 0x0A, 0x12, 0x1A
_ONE_BYTE = 0x7F
# No Future begins with it.
_NOTHING = b"\xff"

# The year 5138. Today's time in milliseconds is above it, so a key in milliseconds is told from one in seconds.
SECOND_LIMIT = 100_000_000_000


def future_from(value: bytes, *, topic: str = "", partition: int = -1, offset: int = -1) -> Future:
    """
    Return the Future that *value* carries.

    Raises:
        WireError: the bytes are not a Future; it names *topic*, *partition* and *offset*.
    """
    try:
        return Future.FromString(value)
    except DecodeError as error:
        raise WireError("bytes are not a Future", topic=topic, partition=partition, offset=offset) from error


def sealed_from(value: bytes, *, topic: str = "", partition: int = -1, offset: int = -1) -> Sealed:
    """
    Return the seal that *value* carries.

    Raises:
        WireError: the bytes are not a Sealed; it names *partition* and *offset*.
    """
    try:
        return Sealed.FromString(value)
    except DecodeError as error:
        raise WireError("bytes are not a seal", topic=topic, partition=partition, offset=offset) from error


def plain_fields(values: Iterable[bytes]) -> Iterator[tuple[bytes, bytes, bytes] | None]:
    """
    Yield callback topic, key and value of each Future in *values* that has no other fields, None for any other one.

    A shortcut around the protobuf runtime, which has a call for each field that it is asked for; fastest while the
    topic stays the same. Only for bytes that `future_from` accepts, or with topic and key checked afterwards: whether
    they are UTF-8 is not looked at. One without a key, with a long topic or key, or a large value, also gives None.
    """
    # Fields 1, 2 and 3: tag, length, bytes. Lengths above 127 take a second byte.
    topic, before_key, at = b"", _NOTHING, 0
    for value in values:
        try:
            if not value.startswith(before_key):
                at = 3 + value[1]
                if value[0] != _TOPIC_TAG or value[1] > _ONE_BYTE or value[at - 1] != _KEY_TAG:
                    before_key = _NOTHING
                    yield None
                    continue
                topic, before_key = value[2 : at - 1], value[:at]
            end = at + 1 + value[at]
            start, size = end + 2, value[end + 1]
            if size > _ONE_BYTE:
                start, size = end + 3, (size & _ONE_BYTE) | (value[start] << 7)
            if start + size == len(value) and value[end] == _VALUE_TAG and value[at] <= _ONE_BYTE:
                yield topic, value[at + 1 : end], value[start:]
            else:
                yield None
        except IndexError:
            yield None


def callback_headers(future: Future, second: int, request: bytes) -> list[tuple[str, bytes | None]]:
    """
    Return the headers of the callback that *future* asks for: the service's own, then the request's, untouched.

    Args:
        future: the request.
        second: UNIX second that the request was made for, also when it fires later.
        request: b"partition:offset" of the request on `timer-request`.
    """
    # Once per callback. Most requests have no token, id or headers, so the list starts with what all have, and each
    # field is read once: reading one is a call into the protobuf runtime.
    headers: list[tuple[str, bytes | None]] = [(EXPIRY_HEADER, b"%d" % second), (REQUEST_HEADER, request)]
    if timer_id := future.timerId:
        headers.insert(0, (ID_HEADER, timer_id.encode()))
    if token := future.token:
        headers.insert(0, (TOKEN_HEADER, token.encode()))
    if own := future.headers:
        for header in own:
            headers.append((header.key, header.value if header.HasField("value") else None))
    return headers


def is_complete(seal: Sealed) -> bool:
    """Tell whether *seal* closes its second; one that does not is a slice of a second that goes on."""
    return not seal.HasField("through")


def age_of(seal: Sealed) -> tuple[int, int]:
    """Return what the seals of one partition are ordered by: (last second, fence), the latest highest."""
    return seal.last, seal.fence


def latest(seals: Iterable[Sealed]) -> Sealed | None:
    """Return the latest of the complete seals, None when no seal is complete."""
    return max(filter(is_complete, seals), key=age_of, default=None)
