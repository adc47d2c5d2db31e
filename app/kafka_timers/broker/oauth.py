"""
OAuth tokens for SASL OAUTHBEARER, from where the settings say:

    an endpoint      for a client id and secret: the client credentials grant of RFC 6749, section 4.4
    a file           that something else keeps fresh
    Amazon MSK       signed by Amazon's own package, with the credentials that AWS's tools find
    Google           for Application Default Credentials, by Google's own package
"""

import asyncio
import base64
import functools
import json
import os
import threading
import time
import urllib.parse
from collections.abc import Callable
from datetime import UTC
from typing import Any

from aiokafka.abc import AbstractTokenProvider

from kafka_timers.errors import LoginError

_TIMEOUT_S = 10.0
# Share of an OAuth token's life after which a new one is fetched, as in Kafka's own client.
_LIFE_SHARE = 0.8
_GOOGLE_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
# Google's own clients for Kafka read it too.
_GOOGLE_PRINCIPAL = "GOOGLE_MANAGED_KAFKA_AUTH_PRINCIPAL"


class LoginTokens(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka has no types
    """
    Provides the OAuth token for the login, one for all clients of a process as long as it is fresh.

    Args:
        source: where they come from, for messages.
        fetch: returns a new OAuth token, and its lifetime in seconds.
    """

    def __init__(self, source: str, fetch: Callable[[], tuple[str, float]]) -> None:
        self._source, self._fetch = source, fetch
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
                try:
                    self._oauth_token, life_s = self._fetch()
                except LoginError:
                    raise
                except Exception as error:
                    # The error's own text is left out: it may hold an OAuth token.
                    why = f"{type(error).__name__}{_code(error)}"
                    raise LoginError(f"no OAuth token from {self._source}: {why}") from error
                self._fresh_until_s = time.monotonic() + _LIFE_SHARE * life_s
            return self._oauth_token


def _of_endpoint(url: str, client_id: str, client_secret: str, scope: str) -> tuple[str, float]:
    # Not before it is needed: most commands log in otherwise, and it takes a tenth of their start.
    from urllib.request import Request, urlopen

    request = Request(url)  # noqa: S310  # the operator's own setting
    if not url.startswith("file:"):
        grant = {"grant_type": "client_credentials"} | ({"scope": scope} if scope else {})
        request.data = urllib.parse.urlencode(grant).encode()
        pair = f"{urllib.parse.quote_plus(client_id)}:{urllib.parse.quote_plus(client_secret)}"
        request.add_header("Authorization", "Basic " + base64.b64encode(pair.encode()).decode())
    with urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310  # as above
        body = answer.read().decode()
    if request.data is None:
        # The file does not say how long its OAuth token is good, so it is read again at the next login.
        return body.strip(), 0.0
    fields = json.loads(body)
    return str(fields["access_token"]), float(fields.get("expires_in", 0))


def _of_aws(region: str) -> tuple[str, float]:
    from aws_msk_iam_sasl_signer import MSKAuthTokenProvider

    token, expires_ms = MSKAuthTokenProvider.generate_auth_token(region)
    return token, expires_ms / 1000 - time.time()


def _of_google() -> tuple[str, float]:
    import google.auth
    from google.auth.transport.requests import Request

    credentials: Any = google.auth.default(scopes=[_GOOGLE_SCOPE])[0]
    credentials.refresh(Request())
    principal = os.environ.get(_GOOGLE_PRINCIPAL) or getattr(credentials, "service_account_email", "")
    if not principal:
        raise LoginError(f"Google's credentials name no service account: set {_GOOGLE_PRINCIPAL} to its address")
    # Brokers take an access token of Google in this form alone.
    now_s, ends_s = time.time(), credentials.expiry.replace(tzinfo=UTC).timestamp()
    claims = {"iss": "Google", "scope": "kafka", "sub": principal, "iat": int(now_s), "exp": int(ends_s)}
    header = {"typ": "JWT", "alg": "GOOG_OAUTH2_TOKEN"}
    parts = (json.dumps(header), json.dumps(claims), credentials.token)
    token = ".".join(base64.urlsafe_b64encode(part.encode()).decode().rstrip("=") for part in parts)
    return token, ends_s - now_s


def _code(error: Exception) -> str:
    from urllib.error import HTTPError

    return f" {error.code}" if isinstance(error, HTTPError) else ""


# The same settings share their OAuth tokens.
@functools.cache
def tokens_of_endpoint(url: str, client_id: str, client_secret: str, scope: str) -> LoginTokens:
    """
    Return the OAuth tokens that an endpoint gives out.

    Args:
        url: https URL of the endpoint, or file URL of an OAuth token.
        scope: scope to ask for; empty for none.
    """
    return LoginTokens(url, functools.partial(_of_endpoint, url, client_id, client_secret, scope))


@functools.cache
def tokens_of_aws(region: str) -> LoginTokens:
    """Return the OAuth tokens for Amazon MSK in *region*; needs the extra `msk`."""
    return LoginTokens(f"the AWS credentials of this process, in {region}", functools.partial(_of_aws, region))


@functools.cache
def tokens_of_google() -> LoginTokens:
    """Return the OAuth tokens for Google's managed Kafka; needs the extra `google`."""
    return LoginTokens("Google's Application Default Credentials", _of_google)
