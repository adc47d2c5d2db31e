"""A small HTTP server that a process starts and stops, on one address and port."""

import errno
import socket
import ssl

from aiohttp import web
from aiohttp.typedefs import Middleware

from kafka_timers.errors import SettingsError


class HttpServer:
    """
    Serves the routes that you add to `routes` before `start`.

    Args:
        port: port to listen on; 0 serves nothing.
        tls: context to serve HTTPS with; None serves HTTP.
    """

    def __init__(
        self, host: str, port: int, *, tls: ssl.SSLContext | None = None, middlewares: list[Middleware] | None = None
    ) -> None:
        self.port = port
        self._host, self._tls = host, tls
        self._app = web.Application(middlewares=middlewares or [])
        self._runner: web.AppRunner | None = None
        self.routes = self._app.router

    @property
    def url(self) -> str:
        """URL of the server, such as `http://127.0.0.1:8080`; empty if it serves nothing."""
        return self.url_at(self._host)

    def url_at(self, host: str) -> str:
        """Return `url` with *host* in it, a name or an address by which others reach this server."""
        host = f"[{host}]" if ":" in host else host
        return f"http{'s' if self._tls else ''}://{host}:{self.port}" if self.port else ""

    async def start(self) -> None:
        """
        Serve until `stop`.

        Raises:
            SettingsError: the address cannot be listened on, most often because the port is taken.
        """
        if not self.port:
            return
        # A caller that keeps its connection open must not delay the end of the process.
        runner = web.AppRunner(self._app, access_log=None, shutdown_timeout=0.5)
        await runner.setup()
        try:
            await web.TCPSite(runner, self._host, self.port, ssl_context=self._tls).start()
        except OSError as error:
            await runner.cleanup()
            raise no_listening(self._host, self.port, error) from error
        self._runner = runner

    async def stop(self) -> None:
        """Close the port. Nothing happens if it is not open."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()


def is_free(host: str, port: int) -> bool:
    """
    Tell whether nobody listens on *host* and *port*.

    Raises:
        OSError: nobody can listen there for another reason.
    """
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        # As servers do: lingering connections of an earlier one do not count.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise
    return True


def no_listening(host: str, port: int, error: OSError) -> SettingsError:
    """Return the error for a server that cannot listen on *host* and *port* because of *error*."""
    if error.errno == errno.EADDRINUSE:
        return SettingsError(f"port {port} on {host} is taken; give another one")
    return SettingsError(f"cannot listen on {host} port {port}: {error.strerror}")
