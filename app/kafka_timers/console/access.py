"""
Check callers and their permissions before anything is read: an ASGI middleware around the routes.

A caller shows a token, or comes through the proxy, which names the user. Without tokens and proxy, the console serves
this host alone. A page of another origin is refused, with any credentials that the browser sends. Requests must name
the console by a known host name, so no page can point its own host name at this host.
"""

import hashlib
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from enum import IntEnum
from http import HTTPStatus
from pathlib import Path
from typing import Any

from kafka_timers.console.console_settings import ConsoleSettings
from kafka_timers.console.pages import PAGES
from kafka_timers.errors import SettingsError
from kafka_timers.settings import host_in, is_loopback

# A request of 1 MiB, Kafka's default limit, is 1.4 MB in base64.
BODY_BYTES_MAX = 2 << 20

_HEADERS_MAX = 200
_TOKEN_LENGTH = 16
# Pages hold no data themselves: they ask the API for all that they show.
_OPEN_PATHS = frozenset(("/livez", "/liveness", "/", *(f"/static/{name}" for name in PAGES)))
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        b"img-src data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    ),
]

_Scope = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
_App = Callable[[_Scope, _Receive, _Send], Awaitable[None]]


class Role(IntEnum):
    """Permissions of a caller. Each role includes those of the role before it."""

    NONE = 0
    READ = 1
    OPERATE = 2


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request. The name is from the token's line, or from the proxy."""

    name: str
    role: Role


NOBODY = Caller("", Role.NONE)


# The kind of a problem by its status, unless it is told more precisely. Clients compare these: see docs/console.md.
_KINDS = {
    400: "unreadable",
    401: "token-needed",
    403: "not-allowed",
    404: "not-found",
    405: "not-found",
    409: "timer-changed",
    413: "too-large",
    422: "wrong",
    431: "too-large",
    500: "broken",
    502: "refused",
    503: "unavailable",
    504: "unanswered",
}


def problem(status: int, detail: str, kind: str = "") -> tuple[int, dict[str, Any]]:
    """Return *status* and a body that describes the problem, in the form of RFC 9457; the type ends with the *kind*."""
    name = f"urn:kafka-timers:problem:{kind or _KINDS.get(status, 'wrong')}"
    return status, {"type": name, "title": HTTPStatus(status).phrase, "status": status, "detail": detail}


class Access:
    """
    Serves *app* to callers with permission. The app finds the `Caller` in its request's state.

    Raises:
        SettingsError: the token file cannot be read, or one of its lines has another form.
    """

    def __init__(self, app: _App, settings: ConsoleSettings) -> None:
        self._app = app
        self._settings = settings
        self._tokens = _tokens_in(settings.token_file) if settings.token_file else {}
        self._operators = {name.strip() for name in settings.operators.split(",") if name.strip()}
        names = {name.strip().lower() for name in settings.allowed_hosts.split(",") if name.strip()}
        self._hosts = names | {settings.host.lower()}
        self._header = settings.user_header.lower().encode()

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if len(scope["headers"]) > _HEADERS_MAX:
            await _answer(send, *problem(431, f"there are more than {_HEADERS_MAX} headers"))
            return
        headers: dict[bytes, bytes] = dict(reversed(scope["headers"]))
        if refused := self._refused(scope, headers):
            await _answer(send, *refused)
            return
        caller = self._caller(scope, headers)
        if caller.role is Role.NONE and scope["path"] not in _OPEN_PATHS:
            needed = problem(401, "a token is needed: Authorization: Bearer …")
            await _answer(send, *needed, [(b"www-authenticate", b"Bearer")])
            return
        body = await _body(receive)
        if body is None:
            await _answer(send, *_too_large())
            return
        scope.setdefault("state", {})["caller"] = caller
        # A body is JSON, whatever it is called: curl calls it a form.
        others = [each for each in scope["headers"] if each[0] != b"content-type"]
        scope["headers"] = [*others, (b"content-type", b"application/json")]
        await self._app(scope, _given(body, receive), _guarded(send))

    def _refused(self, scope: _Scope, headers: Mapping[bytes, bytes]) -> tuple[int, dict[str, Any]] | None:
        """Return the refusal of a request that no caller may make; None if it may go on."""
        address = headers.get(b"host", b"").decode("latin-1").lower()
        host = host_in(address)
        if host not in self._hosts and not is_loopback(host):
            return problem(403, f"{host!r} is not a name of this console: give it with --allowed-hosts")
        origin = headers.get(b"origin", b"").decode("latin-1").lower()
        if origin and origin.partition("://")[2] != address:
            return problem(403, f"web pages of {origin!r} may not send requests to this console")
        is_from_elsewhere = headers.get(b"sec-fetch-site", b"none") not in (b"same-origin", b"none")
        if is_from_elsewhere and scope["method"] not in _SAFE_METHODS:
            return problem(403, "web pages of another origin may not send requests to this console")
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length[:20]) > BODY_BYTES_MAX:
            return _too_large()
        return None

    def _caller(self, scope: _Scope, headers: Mapping[bytes, bytes]) -> Caller:
        settings = self._settings
        kind, _, token = headers.get(b"authorization", b"").partition(b" ")
        if kind.lower() == b"bearer" and (known := self._tokens.get(_hash(token.strip()))):
            return known
        if self._header and scope["client"] and scope["client"][0] == settings.proxy:
            if name := headers.get(self._header, b"").decode("utf-8", "replace"):
                return Caller(name, Role.OPERATE if name in self._operators else Role.READ)
            return NOBODY
        if self._tokens or self._header:
            return NOBODY
        return Caller("somebody on this host", Role.OPERATE if settings.writable else Role.READ)


def _hash(token: bytes) -> bytes:
    # Looked up by its hash, so that the time of the lookup tells nothing about a token.
    return hashlib.sha256(token).digest()


def _tokens_in(file: str) -> dict[bytes, Caller]:
    roles = {"read": Role.READ, "operate": Role.OPERATE}
    found: dict[bytes, Caller] = {}
    try:
        lines = Path(file).read_text().splitlines()
    except (OSError, ValueError) as error:
        raise SettingsError(f"token_file {file} cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        words = line.split(maxsplit=2)
        if len(words) < 2 or words[0] not in roles or len(words[1]) < _TOKEN_LENGTH:
            # The message leaves the line out, because it may hold a token.
            raise SettingsError(
                f"token_file {file} line {number}: give `read` or `operate`, a token of {_TOKEN_LENGTH} characters or "
                "more, and the name of its user"
            )
        name = words[2].strip() if len(words) > 2 else f"token of line {number}"
        found[_hash(words[1].encode())] = Caller(name, roles[words[0]])
    if not found:
        raise SettingsError(
            f"token_file {file} has no line: give `read` or `operate`, a token, and the name of its user"
        )
    return found


async def _body(receive: _Receive) -> bytes | None:
    """Return the body; None if it is longer than `BODY_BYTES_MAX` bytes."""
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > BODY_BYTES_MAX:
            return None
        if not message.get("more_body", False):
            return bytes(body)


def _given(body: bytes, receive: _Receive) -> _Receive:
    """Return a function that gives *body*, and then the messages of *receive*, such as the caller's disconnect."""
    is_given = False

    async def received() -> MutableMapping[str, Any]:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return received


def _guarded(send: _Send) -> _Send:
    """Return *send* with the headers that every answer carries."""

    async def sent(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            own = {name for name, _ in message.get("headers", ())}
            message["headers"] = [*message.get("headers", ()), *(each for each in _HEADERS if each[0] not in own)]
        await send(message)

    return sent


def _too_large() -> tuple[int, dict[str, Any]]:
    return problem(413, f"the body is larger than {BODY_BYTES_MAX} bytes")


async def _answer(send: _Send, status: int, body: dict[str, Any], more: Iterable[tuple[bytes, bytes]] = ()) -> None:
    headers = [(b"content-type", b"application/problem+json"), *more]
    await _guarded(send)({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(body).encode()})
