"""
The receiver's side of a timer: which callback is the one it waits for.

The callback of a timer that was cancelled or replaced may already be on its way, and Kafka may deliver one twice. A
receiver that compares tokens needs nobody's help to tell these apart: it takes the callback with the token that it put
into its latest request, and no other.
"""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass

from kafka_timers.core.wire import REQUEST_HEADER, TOKEN_HEADER

__all__ = ["TokenGuard", "request_from", "token_from"]


@dataclass(slots=True)
class TokenGuard:
    """
    What a receiver remembers of one timer that it waits for.

    It is pure state: keep `token` with the rest of the receiver's and give it back to the constructor.

    Attributes:
        token: of the callback waited for; None while none is.

    Source: "Kafka timers" (2021), section Cancelling a timer.
    """

    token: str | None = None

    def new(self) -> str:
        """Return a fresh token to put into a request, and wait for its callback alone; an earlier one is cancelled."""
        self.token = secrets.token_hex(16)
        return self.token

    def accept(self, token: str | None) -> bool:
        """
        Tell whether a callback with *token* is the one waited for.

        After True none is waited for any more, so a second copy of the same callback is refused.
        """
        if isinstance(token, bytes):
            # Never equal to a str: each callback would be ignored, and nobody told.
            raise TypeError("give the token as str, such as token_from(record.headers) returns it")
        accepted = bool(token) and token == self.token
        if accepted:
            self.token = None
        return accepted

    def cancel(self) -> None:
        """Wait for no callback any more."""
        self.token = None


def token_from(headers: Iterable[tuple[str, bytes | None]]) -> str | None:
    """Return the token that a callback carries, None when it carries none."""
    return _header_text(headers, TOKEN_HEADER)


def request_from(headers: Iterable[tuple[str, bytes | None]]) -> str | None:
    """
    Return partition:offset of the request that a callback answers, None when the record is no callback.

    It is the same on every copy of a callback, and equal to `Timer.request`.
    """
    return _header_text(headers, REQUEST_HEADER)


def _header_text(headers: Iterable[tuple[str, bytes | None]], name: str) -> str | None:
    # The first: the service's own headers stand before those of the request.
    value = next((value for header, value in headers if header == name), None)
    return None if value is None else value.decode(errors="replace")
