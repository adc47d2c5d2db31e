"""
The HTTP endpoints for the operator of a process: /metrics, /livez and /readyz, and nothing else.

Each process decides for itself when it is alive and ready; this module only answers. Answers hold text of the process
alone and never repeat anything that a caller has sent.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from kafka_timers.runtime.http_server import HttpServer


class Probes(HttpServer):
    """
    A small HTTP server for the metrics and the health of one process.

    Args:
        port: port to listen on; 0 serves nothing.
        registry: the metrics that /metrics shows.
        live: returns reasons, as sentences, to restart this process; none when it is alive.
        ready: returns reasons, as sentences, why this process does not do its work; none when it does.

    Attributes:
        notes: returns sentences about what others do not do, which /readyz tells too, whether it is ready or not.
    """

    def __init__(
        self,
        host: str,
        port: int,
        registry: CollectorRegistry,
        live: Callable[[], list[str]],
        ready: Callable[[], list[str]],
    ) -> None:
        super().__init__(host, port)
        self._registry = registry
        self.notes: Callable[[], list[str]] = list
        self.routes.add_get("/metrics", self._metrics)
        self.routes.add_get("/livez", _health(live))
        self.routes.add_get("/readyz", _health(ready, lambda: self.notes()))

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


def _health(
    reasons: Callable[[], list[str]], notes: Callable[[], list[str]] = list
) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(_: web.Request) -> web.Response:
        found = reasons()
        return web.Response(status=503 if found else 200, text="\n".join([*(found or ["ok"]), *notes()]))

    return answer


@contextmanager
def served_by_thread(probes: Probes) -> Iterator[None]:
    """
    Serve *probes* while the block runs, for a process whose main thread has no event loop.

    Raises:
        SettingsError: the server cannot listen on the address.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="probes", daemon=True)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(probes.start(), loop).result()
        try:
            yield
        finally:
            asyncio.run_coroutine_threadsafe(probes.stop(), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
