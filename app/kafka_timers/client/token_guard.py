"""
The receiver's side of a timer: which callback is the one it waits for.

The callback of a timer that was cancelled or replaced may already be on its way, and Kafka may deliver one twice. A
receiver that compares tokens needs nobody's help to tell these apart: it takes the callback with the token that it put
into its latest request, and no other.
"""

import secrets
from dataclasses import dataclass

__all__ = ["TokenGuard"]


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
            raise TypeError("give the token as str, such as Callback.token or token_from(record.headers)")
        accepted = bool(token) and token == self.token
        if accepted:
            self.token = None
        return accepted

    def cancel(self) -> None:
        """Wait for no callback any more."""
        self.token = None
