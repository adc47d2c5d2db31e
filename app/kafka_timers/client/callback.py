"""A callback as a receiver reads it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from kafka_timers.client.received import RawHeaders, Received, pairs_of
from kafka_timers.core.wire import (
    EXPIRY_HEADER,
    ID_HEADER,
    MILLIS_HEADER,
    REQUEST_HEADER,
    RETRY_ATTEMPT_HEADER,
    RETRY_HEADERS,
    RETRY_ID_HEADER,
    SERVICE_HEADERS,
    TOKEN_HEADER,
    number_in,
)


@dataclass(frozen=True, slots=True)
class Callback:
    """
    A callback that was read: the sender's data, and the data that the service has added.

    Attributes:
        value: None for a tombstone.
        headers: the sender's own headers, in their order, without those of the service.
        due_ms: UNIX millisecond for which the sender asked.
        request: partition:offset of the request, equal to `Timer.request`; the same on every copy of the callback.
        timer_id: the sender's own name for the timer; None without one. A record that `TimerClient.retry` sends again
            keeps the name of its first callback.
        token: token of the request; see `TokenGuard`.
        attempt: how often `TimerClient.retry` has asked for it again; 0 for the first time.
        sent_ms: UNIX millisecond of the record: when the worker built it or, if the topic has log append time, when the
            broker appended it. None if it has no time.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    due_ms: int
    request: str
    timer_id: str | None
    token: str | None
    attempt: int
    sent_ms: int | None

    @classmethod
    def of(cls, record: Any) -> Self | None:
        """
        Return *record* as a callback, None if it is no callback.

        Args:
            record: as a consumer of aiokafka, kafka-python or confluent-kafka returned it, an event or a message of
                Faust, or a message of FastStream; keys and values are bytes.

        Raises:
            RequestError: it is none of these, or holds an error instead of a record.
        """
        received = Received.of(record)
        named = received.named
        second, millis = number_in(named.get(EXPIRY_HEADER)), number_in(named.get(MILLIS_HEADER)) or 0
        request = _text(named.get(REQUEST_HEADER))
        if second is None or not request or millis > 999:
            return None
        return cls(
            topic=received.topic,
            partition=received.partition,
            offset=received.offset,
            key=received.key,
            value=received.value,
            headers=own_headers(received.headers),
            due_ms=second * 1000 + millis,
            request=request,
            timer_id=_text(named.get(RETRY_ID_HEADER) if RETRY_ATTEMPT_HEADER in named else named.get(ID_HEADER)),
            token=_text(named.get(TOKEN_HEADER)),
            attempt=number_in(named.get(RETRY_ATTEMPT_HEADER)) or 0,
            sent_ms=received.timestamp_ms,
        )

    @property
    def second(self) -> int:
        """UNIX second for which the sender asked."""
        return self.due_ms // 1000

    @property
    def late_ms(self) -> int | None:
        """
        Milliseconds from `due_ms` until `sent_ms`; None if `sent_ms` is None.

        It is less than 0 where workers fire all callbacks of a second at its tick.
        """
        return None if self.sent_ms is None else self.sent_ms - self.due_ms


def own_headers(headers: Iterable[tuple[str, bytes | None]]) -> tuple[tuple[str, bytes | None], ...]:
    """Return those of *headers* that are the sender's own."""
    return tuple([each for each in headers if each[0] not in SERVICE_HEADERS and each[0] not in RETRY_HEADERS])


def token_from(headers: RawHeaders) -> str | None:
    """Return the token of a callback, None if it has none; *headers* as any client returns them."""
    return _text(_first(headers, TOKEN_HEADER))


def request_from(headers: RawHeaders) -> str | None:
    """
    Return `Callback.request` by the *headers* of a record, as any client returns them; None if it is no callback.
    """
    return _text(_first(headers, REQUEST_HEADER))


def _first(headers: RawHeaders, name: str) -> bytes | None:
    # Take the first: the service's own headers come before those of the request.
    return next((value for header, value in pairs_of(headers) if header == name), None)


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")
