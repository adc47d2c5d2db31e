"""
Who may do what, before anything is read: an ASGI middleware around the routes.

Whoever comes shows a token, or comes through the proxy that tells who it is; where there is neither, it serves this
host alone. A page of another origin gets nothing, whatever the browser sends along, and no name but those that are
known leads here, so that no page can have its own name lead to this host.
"""

import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from enum import IntEnum
from http import HTTPStatus
from pathlib import Path
from typing import Any

from kafka_timers.console.pages import PAGES
from kafka_timers.console.settings import ConsoleSettings
from kafka_timers.errors import SettingsError
from kafka_timers.settings import host_in, is_loopback

__all__ = ["BODY_BYTES_MAX", "Access", "Caller", "Role", "problem"]

# A request of 1 MiB, what Kafka takes by default, is 1.4 MB in base64.
BODY_BYTES_MAX = 2 << 20

_HEADERS_MAX = 200
_TOKEN_LENGTH = 16
# Pages hold nothing themselves: what they show they ask for.
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
    """What somebody may do; each one all that the one before may."""

    NONE = 0
    READ = 1
    OPERATE = 2


@dataclass(frozen=True, slots=True)
class Caller:
    """
    Who comes.

    Attributes:
        name: as the token's line or the proxy tells it.
        role: what they may do.
    """

    name: str
    role: Role


NOBODY = Caller("", Role.NONE)


def problem(status: int, detail: str) -> tuple[int, dict[str, Any]]:
    """Return *status* and the body that tells of it, as RFC 9457 has it."""
    return status, {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail}


class Access:
    """
    Serves *app* to those who may.

    Args:
        app: what is served; finds the `Caller` in its request's state.
        settings: of the console.

    Raises:
        SettingsError: the file of tokens cannot be read, or a line of it is none.
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
            await _answer(
                send, *problem(401, "a token is needed: Authorization: Bearer …"), {"WWW-Authenticate": "Bearer"}
            )
            return
        body = await _body(receive)
        if body is None:
            await _answer(send, *_too_large())
            return
        scope.setdefault("state", {})["caller"] = caller
        await self._app(scope, _given(body, receive), _guarded(send))

    def _refused(self, scope: _Scope, headers: Mapping[bytes, bytes]) -> tuple[int, dict[str, Any]] | None:
        """Return what a request is refused with, whoever comes."""
        address = headers.get(b"host", b"").decode("latin-1").lower()
        host = host_in(address)
        if host not in self._hosts and not is_loopback(host):
            return problem(403, f"{host!r} is no name of this: give it with --allowed-hosts")
        origin = headers.get(b"origin", b"").decode("latin-1").lower()
        if origin and origin.partition("://")[2] != address:
            return problem(403, f"this is not for pages of {origin!r}")
        is_from_elsewhere = headers.get(b"sec-fetch-site", b"none") not in (b"same-origin", b"none")
        if is_from_elsewhere and scope["method"] not in _SAFE_METHODS:
            return problem(403, "this is not for pages of another origin")
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
    # Looked up by its hash, so the time that takes tells nothing of a token.
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
            # The line itself may hold a token.
            raise SettingsError(
                f"token_file {file} line {number}: give `read` or `operate`, a token of {_TOKEN_LENGTH} characters or "
                "more, and who has it"
            )
        name = words[2].strip() if len(words) > 2 else f"token of line {number}"
        found[_hash(words[1].encode())] = Caller(name, roles[words[0]])
    if not found:
        raise SettingsError(f"token_file {file} has no line: give `read` or `operate`, a token, and who has it")
    return found


async def _body(receive: _Receive) -> bytes | None:
    """Return the body; None if it has more than `BODY_BYTES_MAX` bytes."""
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > BODY_BYTES_MAX:
            return None
        if not message.get("more_body", False):
            return bytes(body)


def _given(body: bytes, receive: _Receive) -> _Receive:
    """Return what gives *body*, and then what *receive* does: that the caller has gone."""
    is_given = False

    async def received() -> MutableMapping[str, Any]:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return received


def _guarded(send: _Send) -> _Send:
    """Return *send* for answers that have the headers of all."""

    async def sent(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            own = {name for name, _ in message.get("headers", ())}
            message["headers"] = [*message.get("headers", ()), *(each for each in _HEADERS if each[0] not in own)]
        await send(message)

    return sent


def _too_large() -> tuple[int, dict[str, Any]]:
    return problem(413, f"the body is larger than {BODY_BYTES_MAX} bytes")


async def _answer(send: _Send, status: int, body: dict[str, Any], more: Mapping[str, str] | None = None) -> None:
    headers = {"Content-Type": "application/problem+json", **(more or {})}
    told = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await _guarded(send)({"type": "http.response.start", "status": status, "headers": told})
    await send({"type": "http.response.body", "body": json.dumps(body).encode()})
