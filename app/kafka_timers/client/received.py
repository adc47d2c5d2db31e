"""
One record that a receiver has read, with any Kafka client.

Pure. Clients differ in the shape of records: aiokafka and kafka-python have attributes, confluent-kafka has methods,
Faust and FastStream wrap the record. Headers are pairs, a dict or None, and times are milliseconds or seconds.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from kafka_timers.errors import RequestError

RawHeaders = Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]] | None


@dataclass(frozen=True, slots=True)
class Received:
    """
    A record as it lies on its topic.

    Attributes:
        timestamp_ms: UNIX milliseconds; None if the record has no time.
        value: None for a tombstone.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int | None
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    @property
    def named(self) -> dict[str, bytes | None]:
        """The first header of each name, since the service's own come before those of the request."""
        return dict(reversed(self.headers))

    @classmethod
    def of(cls, record: Any) -> Self:
        """Return the content of *record*, which is of a kind that `Callback.of` takes."""
        # FastStream keeps the client's own record inside its message, Faust inside its event.
        for wrapped in ("raw_message", "message"):
            inside = getattr(record, wrapped, None)
            if inside is not None and not callable(inside):
                return cls.of(inside)
        try:
            if callable(record.headers):
                return cls._of_methods(record)
            return cls(
                record.topic,
                record.partition,
                record.offset,
                _milliseconds(record.timestamp),
                _bytes("key", record.key),
                _bytes("value", record.value),
                pairs_of(record.headers),
            )
        except AttributeError as error:
            raise RequestError(
                f"{type(record).__name__} is not a record: give one as the consumer returned it, with topic, "
                "partition, offset, timestamp, key, value and headers"
            ) from error

    @classmethod
    def _of_methods(cls, message: Any) -> Self:
        if (fault := message.error()) is not None:
            raise RequestError(f"this message holds no record but an error ({fault}): look at error() first")
        kind, timestamp_ms = message.timestamp()
        return cls(
            message.topic(),
            message.partition(),
            message.offset(),
            # Kind 0 says that there is no time.
            timestamp_ms if kind else None,
            _bytes("key", message.key()),
            _bytes("value", message.value()),
            pairs_of(message.headers()),
        )


def pairs_of(headers: RawHeaders) -> tuple[tuple[str, bytes | None], ...]:
    """Return *headers* of any client as pairs."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers or ()
    return tuple([(name, value.encode() if isinstance(value, str) else value) for name, value in pairs])


def _milliseconds(timestamp: float | None) -> int | None:
    # Faust counts in seconds, as a float.
    if isinstance(timestamp, float):
        return round(timestamp * 1000)
    return None if timestamp is None or timestamp < 0 else timestamp


def _bytes(what: str, content: object) -> bytes | None:
    if content is None or isinstance(content, bytes):
        return content
    raise RequestError(
        f"the {what} of this record is of type {type(content).__name__}: give the record as it lies on the topic, "
        "from a consumer without deserializers"
    )
