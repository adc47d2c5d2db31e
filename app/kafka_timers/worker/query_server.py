"""
Serves `questions` over HTTP, for the command line and other front ends.

    GET /v1/timers?from&to&topic&key&timer_id&id_prefix&contains&after&limit&values  pending timers, in order
    GET /v1/counts?from&to&unit                                                      timers by second, minute or hour

A client shows a token or a certificate. If neither is set up, the server accepts only this host. It refuses questions
from web pages of another origin.
"""

import hmac
import re
import ssl
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

from aiohttp import web

from kafka_timers.core.pending import END_MS, UNITS_S, Place, Wanted
from kafka_timers.errors import SettingsError
from kafka_timers.runtime.http_server import HttpServer
from kafka_timers.settings import WorkerSettings, host_in, is_loopback
from kafka_timers.worker.questions import Questions, TooManyError

PAGE_MAX = 1_000
_BUCKETS_MAX = 100_000
_TIMERS = frozenset(("from", "to", "topic", "key", "timer_id", "id_prefix", "contains", "after", "limit", "values"))
_COUNTS = frozenset(("from", "to", "unit"))

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class QueryServer(HttpServer):
    """
    Serves the pending timers of a worker.

    Args:
        questions: returns the object that answers; None while there is none.
        lake_problem: returns why far timers may be missing in each answer; empty if none is.

    Raises:
        SettingsError: the token or a certificate cannot be read.
    """

    def __init__(
        self, settings: WorkerSettings, questions: Callable[[], Questions | None], lake_problem: Callable[[], str]
    ) -> None:
        self._token = token_in(settings.query_token_file) if settings.query_port else b""
        tls = _context(settings) if settings.query_port and settings.query_certificate else None
        super().__init__(settings.query_host, settings.query_port, tls=tls, middlewares=[self._guarded])
        self._is_open = not self._token and not settings.query_client_ca
        self._questions = questions
        self._lake_problem = lake_problem
        self._address = settings.query_address
        self.routes.add_get("/v1/timers", self._timers)
        self.routes.add_get("/v1/counts", self._counts)

    @property
    def address(self) -> str:
        """The URL for other hosts; empty if nothing is served."""
        return self.url_at(self._address) if self._address else self.url

    @web.middleware
    async def _guarded(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        if "Origin" in request.headers:
            return _refusal(403, "web pages may not query this worker")
        if self._token:
            # Compared as bytes, since compare_digest accepts only ASCII text.
            shown = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
            if not hmac.compare_digest(shown, b"Bearer " + self._token):
                refusal = _refusal(401, "a token is needed: give --query-token-file")
                refusal.headers["WWW-Authenticate"] = "Bearer"
                return refusal
        elif self._is_open and not is_loopback(host_in(request.host)):
            # A page may resolve its own name to this host.
            return _refusal(403, "without a token this is for localhost alone")
        try:
            return await handler(request)
        except _AskedError as error:
            return _refusal(400, str(error))
        except _NotReadyError:
            return _refusal(503, "this worker is not connected to Kafka yet")
        except TooManyError:
            return _refusal(503, "too many questions at once: ask again")

    async def _timers(self, request: web.Request) -> web.Response:
        asked = _Asked(request, _TIMERS)
        limit = asked.number("limit", 50, 1, PAGE_MAX)
        place = asked.text("after")
        try:
            after = Place.of(place) if place else None
        except ValueError as error:
            raise _AskedError(str(error)) from None
        start_ms, end_ms = asked.range_ms()
        wanted = Wanted(
            start_ms,
            end_ms,
            topic=asked.bytes("topic") or b"",
            key=asked.bytes("key"),
            timer_id=asked.bytes("timer_id") or b"",
            id_prefix=asked.bytes("id_prefix") or b"",
            containing=asked.bytes("contains") or b"",
            after=after,
        )
        page = await self._ready().page(wanted, limit)
        return self._answer(page.document(with_values=asked.number("values", 0, 0, 1) == 1))

    async def _counts(self, request: web.Request) -> web.Response:
        asked = _Asked(request, _COUNTS)
        unit = asked.text("unit") or "second"
        if unit not in UNITS_S:
            raise _AskedError(f"unit {unit!r}: give {', '.join(UNITS_S)}")
        start_ms, end_ms = asked.range_ms()
        if (end_ms - start_ms) // (UNITS_S[unit] * 1000) > _BUCKETS_MAX:
            raise _AskedError(f"more than {_BUCKETS_MAX} buckets: give a shorter time, or a larger unit")
        return self._answer((await self._ready().counts(start_ms, end_ms, UNITS_S[unit])).document())

    def _answer(self, document: dict[str, Any]) -> web.Response:
        return web.json_response(document | {"lake": self._lake_problem()})

    def _ready(self) -> Questions:
        if questions := self._questions():
            return questions
        raise _NotReadyError


class _AskedError(Exception):
    """The question is not understood; the text names a correct one."""


class _NotReadyError(Exception):
    """The worker cannot answer yet."""


class _Asked:
    def __init__(self, request: web.Request, known: Iterable[str]) -> None:
        self._given = request.query
        if unknown := sorted(set(self._given) - set(known)):
            raise _AskedError(f"unknown: {', '.join(map(repr, unknown))}; known are {', '.join(sorted(known))}")

    def text(self, name: str) -> str:
        return self._given.get(name, "")

    def bytes(self, name: str) -> bytes | None:
        return self._given[name].encode("utf-8", "surrogateescape") if name in self._given else None

    def number(self, name: str, default: int, least: int, most: int) -> int:
        text = self.text(name)
        if not text:
            return default
        if not re.fullmatch("[0-9]{1,15}", text) or not least <= int(text) <= most:
            raise _AskedError(f"{name} {text!r}: give a whole number from {least} to {most}")
        return int(text)

    def range_ms(self) -> tuple[int, int]:
        """Return `from` and `to`, which are seconds, as UNIX milliseconds."""
        most = END_MS // 1000
        return self.number("from", 1, 0, most) * 1000, self.number("to", most, 0, most) * 1000


def token_in(file: str) -> bytes:
    """
    Return the token in *file*; empty if *file* is empty.

    Raises:
        SettingsError: the file cannot be read, or is empty.
    """
    if not file:
        return b""
    try:
        token = Path(file).read_bytes().strip()
    except OSError as error:
        raise SettingsError(f"query_token_file {file} cannot be read: {error.strerror}") from error
    if not token:
        raise SettingsError(f"query_token_file {file} is empty: write a token of your own into it")
    return token


def _context(settings: WorkerSettings) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(settings.query_certificate, settings.query_key or None)
        if settings.query_client_ca:
            context.load_verify_locations(settings.query_client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"the certificates to answer questions with cannot be read: {error}") from error
    return context


def _refusal(status: int, why: str) -> web.Response:
    return web.json_response({"error": why}, status=status)
