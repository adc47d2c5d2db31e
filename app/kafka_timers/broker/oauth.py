"""
OAuth tokens for SASL OAUTHBEARER, from a file that something else keeps fresh, or for a client id and secret.

The second way is the client credentials grant of RFC 6749, section 4.4, as Kafka's own client does it.
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

from kafka_timers.errors import LoginError

_TIMEOUT_S = 10.0
# Share of an OAuth token's life after which a new one is fetched, as in Kafka's own client.
_LIFE_SHARE = 0.8


class _LoginTokens(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka has no types
    """
    Provides the OAuth token for the login, one for all clients of a process as long as it is fresh.

    Args:
        url: https URL of the endpoint that gives out OAuth tokens, or file URL of an OAuth token.
        scope: scope to ask for; empty for none.
    """

    def __init__(self, url: str, client_id: str, client_secret: str, scope: str) -> None:
        self._url, self._client_id, self._client_secret, self._scope = url, client_id, client_secret, scope
        self._lock = threading.Lock()
        self._oauth_token, self._fresh_until_s = "", 0.0

    async def token(self) -> str:
        """
        Return a fresh OAuth token; aiokafka calls this at every login.

        Raises:
            LoginError: the OAuth token cannot be fetched or read.
        """
        return await asyncio.to_thread(self._fresh)

    def _fresh(self) -> str:
        with self._lock:
            if not self._oauth_token or time.monotonic() > self._fresh_until_s:
                self._oauth_token, life_s = self._fetch()
                self._fresh_until_s = time.monotonic() + _LIFE_SHARE * life_s
            return self._oauth_token

    def _fetch(self) -> tuple[str, float]:
        """Return a new OAuth token and its lifetime in seconds."""
        request = urllib.request.Request(self._url)  # noqa: S310  # the operator's own setting
        if not self._url.startswith("file:"):
            grant = {"grant_type": "client_credentials"} | ({"scope": self._scope} if self._scope else {})
            request.data = urllib.parse.urlencode(grant).encode()
            pair = f"{urllib.parse.quote_plus(self._client_id)}:{urllib.parse.quote_plus(self._client_secret)}"
            request.add_header("Authorization", "Basic " + base64.b64encode(pair.encode()).decode())
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310  # as above
                body = answer.read().decode()
            if request.data is None:
                # The file does not say how long its OAuth token is good, so it is read again at the next login.
                return body.strip(), 0.0
            fields = json.loads(body)
            return str(fields["access_token"]), float(fields.get("expires_in", 0))
        except (OSError, ValueError, KeyError, TypeError) as error:
            # The error's own text is left out: it may hold an OAuth token.
            raise LoginError(f"no OAuth token from {self._url}: {type(error).__name__}{_code(error)}") from error


def _code(error: Exception) -> str:
    return f" {error.code}" if isinstance(error, urllib.error.HTTPError) else ""


# The same settings share their OAuth tokens.
login_tokens_of = functools.cache(_LoginTokens)
