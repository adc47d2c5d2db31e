"""
What a process tells its operator over HTTP: /metrics, /livez and /readyz, and nothing else.

Each process decides for itself what alive and ready mean; this module only answers. It serves text of the process
alone: nothing that a caller sends comes back.
"""

import errno
from collections.abc import Awaitable, Callable

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from kafka_timers.errors import SettingsError


class Probes:
    """
    A small HTTP server for the metrics and the health of one process.

    Args:
        host: address to listen on.
        port: port to listen on; 0 serves nothing.
        registry: what /metrics shows.
        live: reasons, as sentences, why this process should be restarted; none when it is alive.
        ready: reasons, as sentences, why this process does not do its work; none when it does.
    """

    def __init__(
        self,
        host: str,
        port: int,
        registry: CollectorRegistry,
        live: Callable[[], list[str]],
        ready: Callable[[], list[str]],
    ) -> None:
        self._host, self._port = host, port
        self._registry = registry
        self._live, self._ready = live, ready
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        """Where it serves, such as `http://127.0.0.1:8080`; empty when it serves nothing."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}" if self._port else ""

    async def start(self) -> None:
        """
        Serve until `stop`.

        Raises:
            SettingsError: the address cannot be listened on, most often because the port is taken.
        """
        if not self._port:
            return
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/livez", _health(self._live))
        app.router.add_get("/readyz", _health(self._ready))
        # A caller that hangs on to its connection must not hold up the end of the process.
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
        await runner.setup()
        try:
            await web.TCPSite(runner, self._host, self._port).start()
        except OSError as error:
            await runner.cleanup()
            if error.errno == errno.EADDRINUSE:
                raise SettingsError(f"port {self._port} on {self._host} is taken; give another one") from error
            raise SettingsError(f"cannot listen on {self._host} port {self._port}: {error.strerror}") from error
        self._runner = runner

    async def stop(self) -> None:
        """Close the port; nothing happens when it is not open."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


def _health(reasons: Callable[[], list[str]]) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(_: web.Request) -> web.Response:
        found = reasons()
        return web.Response(status=503 if found else 200, text="\n".join(found or ["ok"]))

    return answer
