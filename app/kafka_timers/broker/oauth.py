"""
Login tokens, of OAuth for SASL OAUTHBEARER: from a file that something else keeps fresh, or for client id and secret.

The second is the client credentials grant of RFC 6749, section 4.4, as Kafka's own client does it.
"""

import asyncio
import base64
import functools
import json
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

from aiokafka.abc import AbstractTokenProvider

from kafka_timers.errors import BrokerError

__all__ = ["LoginTokens", "login_tokens_of"]

_TIMEOUT_S = 10.0
# Share of a token's life after which another one is asked for, as Kafka's own client has it.
_WORN = 0.8


class LoginTokens(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka has no types
    """
    Gives the token to log in with; one for all clients of a process for as long as it is fresh.

    Args:
        url: https, of the endpoint; or file, of a token.
        client_id: for the endpoint.
        client_secret: for the endpoint.
        scope: for the endpoint; empty for none.
    """

    def __init__(self, url: str, client_id: str, client_secret: str, scope: str) -> None:
        self._url, self._client_id, self._client_secret, self._scope = url, client_id, client_secret, scope
        self._lock = threading.Lock()
        self._token, self._worn_s = "", 0.0

    async def token(self) -> str:
        """
        Return a token.

        Raises:
            BrokerError: it cannot be had.
        """
        return await asyncio.to_thread(self._fresh)

    def _fresh(self) -> str:
        with self._lock:
            if not self._token or time.monotonic() > self._worn_s:
                self._token, life_s = self._fetch()
                self._worn_s = time.monotonic() + _WORN * life_s
            return self._token

    def _fetch(self) -> tuple[str, float]:
        """Return a new token, and for how many seconds it is good."""
        asking = urllib.request.Request(self._url)  # noqa: S310  # the operator's own setting
        if not self._url.startswith("file:"):
            grant = {"grant_type": "client_credentials"} | ({"scope": self._scope} if self._scope else {})
            asking.data = urllib.parse.urlencode(grant).encode()
            pair = f"{urllib.parse.quote_plus(self._client_id)}:{urllib.parse.quote_plus(self._client_secret)}"
            asking.add_header("Authorization", "Basic " + base64.b64encode(pair.encode()).decode())
        try:
            with urllib.request.urlopen(asking, timeout=_TIMEOUT_S) as answer:  # noqa: S310  # as above
                body = answer.read().decode()
            if asking.data is None:
                # Whoever writes it does so in good time, and says nowhere when.
                return body.strip(), 0.0
            told = json.loads(body)
            return str(told["access_token"]), float(told.get("expires_in", 0))
        except (OSError, ValueError, KeyError, TypeError) as error:
            # The answer itself may hold a token.
            raise BrokerError(f"no token from {self._url}: {type(error).__name__}{_code(error)}") from error


def _code(error: Exception) -> str:
    return f" {error.code}" if isinstance(error, urllib.error.HTTPError) else ""


@functools.cache
def login_tokens_of(url: str, client_id: str, client_secret: str, scope: str) -> LoginTokens:
    """Return the tokens of this process; see `LoginTokens`."""
    return LoginTokens(url, client_id, client_secret, scope)
