"""
One /livez, /readyz and /metrics for all processes that a supervisor keeps running.

Each answer is put together from those of the processes at that moment. A process that is away is not ready. It is no
reason for a restart of all, because the supervisor starts it again. One that hangs is.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

import aiohttp
from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from kafka_timers.processes.supervisor import Kept
from kafka_timers.runtime.http_server import HttpServer

# Less than the time that a scrape or a probe has.
_ANSWER_S = 2.5
_NO_ANSWER = 0
_OK = 200


class _Answer(NamedTuple):
    """Status and text of a process's answer; status `_NO_ANSWER` if it does not listen."""

    status: int
    text: str

    @property
    def notes(self) -> list[str]:
        """The lines behind the first one."""
        return self.text.strip().splitlines()[1:]


class Gathered(HttpServer):
    """Serves the health and the metrics of all of *kept* on one port."""

    def __init__(self, host: str, port: int, kept: Sequence[Kept]) -> None:
        super().__init__(host, port)
        self._kept = kept
        self.routes.add_get("/livez", self._livez)
        self.routes.add_get("/readyz", self._readyz)
        self.routes.add_get("/metrics", self._metrics)

    async def unready(self) -> list[str]:
        """Return the reasons why a process does not do its work, each with its name; empty if all do."""
        return (await self.told())[0]

    async def told(self) -> tuple[list[str], list[str]]:
        """Return what `unready` does, and the notes on /readyz of processes that do their work; see `Probes`."""
        answers = await self._ask([each for each in self._kept if not each.away], lambda each: each.part.ready)
        reasons = [f"{each.part.name} {each.away}" for each in self._kept if each.away]
        reasons += [line for each, answer in answers.items() for line in _reasons(each, answer)]
        ready = {each: answer for each, answer in answers.items() if answer.status == _OK}
        return reasons, [f"{each.part.name}: {line}" for each, answer in ready.items() for line in answer.notes]

    async def dead(self) -> list[str]:
        """Return the reasons to restart all: processes that hang, each with its name; empty if none does."""
        answers = await self._ask([each for each in self._kept if not each.away], lambda _: "/livez")
        # One that does not listen has just been started, or just died.
        return [line for each, answer in answers.items() if answer.status for line in _reasons(each, answer)]

    async def _livez(self, _: web.Request) -> web.Response:
        return _health(await self.dead())

    async def _readyz(self, _: web.Request) -> web.Response:
        return _health(*await self.told())

    async def _metrics(self, _: web.Request) -> web.Response:
        # No two of them have a metric in common.
        kept = [each for each in self._kept if each.part.has_metrics and not each.away]
        answers = await self._ask(kept, lambda _: "/metrics")
        text = "".join(answer.text for answer in answers.values() if answer.status == _OK)
        return web.Response(body=text.encode(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _ask(self, kept: Sequence[Kept], path: Callable[[Kept], str]) -> dict[Kept, _Answer]:
        asked = [each for each in kept if each.part.url]
        # To a console with TLS, this host is none of the names in its certificate.
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False)) as session:
            answers = await asyncio.gather(*(_answer(session, each.part.url + path(each)) for each in asked))
        return dict(zip(asked, answers, strict=True))


async def _answer(session: aiohttp.ClientSession, url: str) -> _Answer:
    try:
        async with asyncio.timeout(_ANSWER_S), session.get(url) as response:
            return _Answer(response.status, await response.text())
    except TimeoutError:
        return _Answer(504, f"does not answer within {_ANSWER_S:g} s")
    except aiohttp.ClientError as error:
        return _Answer(_NO_ANSWER, f"does not listen: {str(error) or type(error).__name__}")


def _reasons(each: Kept, answer: _Answer) -> list[str]:
    lines = answer.text.strip().splitlines() or [f"HTTP {answer.status}"]
    return [] if answer.status == _OK else [f"{each.part.name}: {line}" for line in lines]


def _health(reasons: Sequence[str], notes: Sequence[str] = ()) -> web.Response:
    return web.Response(status=503 if reasons else 200, text="\n".join([*(reasons or ["ok"]), *notes]))
