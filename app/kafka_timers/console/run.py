"""The process `kafka-timers console`."""

import asyncio
import logging
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from kafka_timers.clock import HostClock
from kafka_timers.console.access import Access
from kafka_timers.console.actions import Service
from kafka_timers.console.console_settings import ConsoleSettings
from kafka_timers.console.routes import app_of
from kafka_timers.runtime.http_server import no_listening

log = logging.getLogger(__name__)

_END_S = 3


def run(settings: ConsoleSettings) -> int:
    """
    Serve until SIGTERM or SIGINT, and return the exit code.

    Raises:
        SettingsError: a file cannot be read, or the console cannot listen on the address.
    """
    app = Access(app_of(Service(settings, HostClock())), settings)
    config = uvicorn.Config(
        app,
        # httptools accepts any number of headers.
        http="h11",
        ws="none",
        access_log=False,
        log_config=None,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=_END_S,
        ssl_certfile=settings.certificate or None,
        ssl_keyfile=settings.key or settings.certificate or None,
        host=settings.host,
        port=settings.port,
    )
    try:
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        listening = socket.create_server((settings.host, settings.port), family=family)
    except OSError as error:
        raise no_listening(settings.host, settings.port, error) from error
    with listening:
        asyncio.run(_serve(_Server(config), listening))
    return 0


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to `_serve`: uvicorn would raise them again at the end, which changes the exit code."""
        yield


async def _serve(server: uvicorn.Server, listening: socket.socket) -> None:
    def end() -> None:
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, end)
    # After the handlers: a reader of this line may send the signal to end at once.
    config = server.config
    log.info("serving http%s://%s:%s", "s" if config.is_ssl else "", config.host, config.port)
    await server.serve([listening])
