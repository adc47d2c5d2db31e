"""
The receiver's side of a timer: it recognises the callback that it waits for.

The callback of a timer that was cancelled or replaced may already be on its way, and Kafka may deliver a callback
twice. A receiver that compares tokens can tell these apart by itself: it takes the callback with the token of its
latest request, and no other.
"""

import secrets
from dataclasses import dataclass


@dataclass(slots=True)
class TokenGuard:
    """
    The state that a receiver keeps for one timer that it waits for.

    It is pure state: keep `token` with the rest of the receiver's state and give it back to the constructor.

    Attributes:
        token: token of the callback that it waits for; None if it waits for none.

    Source: "Kafka timers" (2021), section Cancelling a timer.
    """

    token: str | None = None

    def new(self) -> str:
        """Return a fresh token for a request, and wait for its callback alone. An earlier one is cancelled."""
        self.token = secrets.token_hex(16)
        return self.token

    def accept(self, token: str | None) -> bool:
        """
        Tell whether a callback with *token* is the one that the receiver waits for.

        After True it waits for none any more, so a second copy of the same callback is refused.
        """
        if isinstance(token, bytes):
            # Bytes never equal a str, so every callback would be ignored silently.
            raise TypeError("give the token as str, such as Callback.token or token_from(record.headers)")
        accepted = bool(token) and token == self.token
        if accepted:
            self.token = None
        return accepted

    def cancel(self) -> None:
        """Wait for no callback any more."""
        self.token = None
