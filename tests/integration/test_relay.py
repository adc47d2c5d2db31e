"""The relay between two programs, on real sockets; brokers behind it are in tests/acceptance/test_three_brokers.py."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from patience import LIMIT_S
from relay import Relay

from kafka_timers.dev.broker import free_port

HOST = "127.0.0.1"
LARGE = bytes(range(256)) * 40_000


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send back all bytes, until they end."""
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


@asynccontextmanager
async def relayed() -> AsyncIterator[Relay]:
    """Yield a relay, open, in front of a server that sends back all bytes."""
    server = await asyncio.start_server(echo, HOST, 0)
    relay = Relay((HOST, free_port()), server.sockets[0].getsockname())
    await relay.flow()
    try:
        async with asyncio.timeout(LIMIT_S):
            yield relay
    finally:
        await relay.cut()
        server.close()


async def test_bytes_pass_both_ways_unchanged() -> None:
    async with relayed() as relay:
        reader, writer = await asyncio.open_connection(*relay.address)
        writer.write(LARGE)
        assert await reader.readexactly(len(LARGE)) == LARGE
        writer.close()


async def test_held_bytes_arrive_later_and_connections_stay() -> None:
    """Neither those that were there nor new ones are told anything."""
    async with relayed() as relay:
        old_reader, old_writer = await asyncio.open_connection(*relay.address)
        old_writer.write(b"before")
        assert await old_reader.readexactly(6) == b"before"
        await relay.hold()
        new_reader, new_writer = await asyncio.open_connection(*relay.address)
        old_writer.write(b"held")
        new_writer.write(LARGE)
        answers = [asyncio.create_task(old_reader.read(1)), asyncio.create_task(new_reader.read(1))]
        _, waiting = await asyncio.wait(answers, timeout=0.3)
        assert len(waiting) == 2
        await relay.flow()
        assert [await answer for answer in answers] == [b"h", LARGE[:1]]
        assert await old_reader.readexactly(3) == b"eld"
        assert await new_reader.readexactly(len(LARGE) - 1) == LARGE[1:]
        old_writer.close()
        new_writer.close()


async def test_the_end_of_a_connection_is_held_too() -> None:
    """As where packets are lost: the other side does not hear that somebody has hung up."""
    async with relayed() as relay:
        reader, writer = await asyncio.open_connection(*relay.address)
        writer.write(b"x")
        await reader.readexactly(1)
        await relay.hold()
        writer.write(b"last words")
        writer.write_eof()
        answer = asyncio.create_task(reader.read())
        assert not (await asyncio.wait([answer], timeout=0.3))[0]
        await relay.flow()
        await answer
        writer.close()


async def test_a_cut_resets_connections_and_refuses_new_ones_until_it_flows() -> None:
    async with relayed() as relay:
        reader, writer = await asyncio.open_connection(*relay.address)
        writer.write(b"x")
        await reader.readexactly(1)
        await relay.cut()
        with pytest.raises(ConnectionResetError):
            await reader.read()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*relay.address)
        writer.close()
        await relay.flow()
        reader, writer = await asyncio.open_connection(*relay.address)
        writer.write(b"again")
        assert await reader.readexactly(5) == b"again"
        writer.close()


async def test_held_bytes_are_lost_in_a_cut() -> None:
    async with relayed() as relay:
        reader, writer = await asyncio.open_connection(*relay.address)
        await relay.hold()
        writer.write(b"held")
        await relay.cut()
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()


async def test_a_target_that_is_away_ends_the_connection() -> None:
    relay = Relay((HOST, free_port()), (HOST, free_port()))
    await relay.flow()
    reader, writer = await asyncio.open_connection(*relay.address)
    async with asyncio.timeout(LIMIT_S):
        assert await reader.read() == b""
    writer.close()
    await relay.cut()
