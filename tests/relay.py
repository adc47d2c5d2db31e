"""
A relay for TCP connections that can hold or cut them, so that a test can break a network.

It knows nothing of Kafka. To separate two programs, let them reach each other through one relay for each direction;
see `partable`.

    flows    bytes pass as they come
    held     nothing passes and no connection ends, as on a network that loses all packets; held bytes arrive later
    cut      connections are reset and new ones refused, as by a host that is down
"""

import asyncio
import contextlib
import socket
import struct
from asyncio import StreamReader, StreamWriter
from collections.abc import Coroutine, Iterator
from typing import Any

__all__ = ["Address", "Relay"]

Address = tuple[str, int]

_CHUNK_BYTES = 1 << 16
# Close at once, drop unsent bytes, and send a reset instead of an end.
_RESET = struct.pack("ii", 1, 0)


class Relay:
    """
    Passes connections from one address on to another. It starts closed; `flow` opens it.

    Args:
        address: host and port to listen on.
        target: host and port to pass connections on to; nothing needs to listen there yet.
    """

    def __init__(self, address: Address, target: Address) -> None:
        self.address = address
        self.target = target
        self._server: asyncio.Server | None = None
        self._flowing = asyncio.Event()
        self._connections: set[asyncio.Task[None]] = set()
        self._writers: set[StreamWriter] = set()

    async def flow(self) -> None:
        """
        Let bytes pass from now on, including those that were held.

        Raises:
            OSError: the address is taken.
        """
        await self._listen()
        self._flowing.set()

    async def hold(self) -> None:
        """
        Let nothing pass until `flow`. Connections stay; new ones are accepted and held too.

        Raises:
            OSError: the address is taken.
        """
        await self._listen()
        self._flowing.clear()

    async def cut(self) -> None:
        """Reset all connections and refuse new ones until `flow` or `hold`. Held bytes are lost."""
        if self._server:
            self._server.close()
            self._server = None
        for writer in self._writers:
            with contextlib.suppress(OSError):
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()
        ended = list(self._connections)
        for connection in ended:
            connection.cancel()
        await asyncio.gather(*ended, return_exceptions=True)

    async def _listen(self) -> None:
        if not self._server:
            self._server = await asyncio.start_server(self._accept, *self.address)

    def _accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        # A task of its own, so that `cut` can cancel it and await its end.
        connection = asyncio.create_task(self._pass_on(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _pass_on(self, reader: StreamReader, writer: StreamWriter) -> None:
        with self._closing(writer):
            await self._flowing.wait()
            try:
                far_reader, far_writer = await asyncio.open_connection(*self.target)
            except OSError:
                return
            with self._closing(far_writer):
                ways = [asyncio.create_task(way) for way in self._ways(reader, writer, far_reader, far_writer)]
                try:
                    # When one side ends, the other ends too: no program here uses a half-closed connection.
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for way in ways:
                        way.cancel()
                    await asyncio.gather(*ways, return_exceptions=True)

    def _ways(
        self, reader: StreamReader, writer: StreamWriter, far_reader: StreamReader, far_writer: StreamWriter
    ) -> tuple[Coroutine[Any, Any, None], Coroutine[Any, Any, None]]:
        """Return what passes bytes on to the target, and what passes them back."""
        return self._pump(reader, far_writer), self._pump(far_reader, writer)

    @contextlib.contextmanager
    def _closing(self, writer: StreamWriter) -> Iterator[None]:
        self._writers.add(writer)
        try:
            yield
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _pump(self, reader: StreamReader, writer: StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                await self._flowing.wait()
                writer.write(data)
                await writer.drain()
        # The end of a connection is held as bytes are.
        await self._flowing.wait()
