"""A broker is reached by any address of its name, and what keeps it from being reached is told."""

import asyncio
import socket
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from aiokafka.errors import KafkaConnectionError

from kafka_timers.broker import dialing
from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka

# Brokers of tests listen on 127.0.0.1 alone.
OTHER = "127.0.0.9"


async def close(_: StreamReader) -> None:
    """Do what a proxy does whose broker is dead, or a broker that has too many connections."""


async def say_nothing(reader: StreamReader) -> None:
    """Do what a broker does that is frozen."""
    while await reader.read(1 << 10):
        pass


How = Callable[[StreamReader], Awaitable[None]]


@asynccontextmanager
async def listening(how: How | None, host: str, port: int) -> AsyncIterator[list[asyncio.Task[Any]]]:
    """Serve an address in this way, and yield a task for each connection; with None nothing listens there."""
    served: list[asyncio.Task[Any]] = []

    async def serve(reader: StreamReader, writer: StreamWriter) -> None:
        served.append(cast(asyncio.Task[Any], asyncio.current_task()))
        if how:
            await how(reader)
        writer.close()

    server = await asyncio.start_server(serve, host, port) if how else None
    try:
        yield served
    finally:
        if server:
            server.close()
            await asyncio.gather(*served)


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the name `twin` two addresses; the broker has the second one."""
    loop_class = asyncio.SelectorEventLoop
    resolve = loop_class.getaddrinfo

    async def getaddrinfo(self: Any, host: str, port: int, **options: Any) -> Any:
        hosts = [OTHER, "127.0.0.1"] if host == "twin" else [host]
        return [each for one in hosts for each in await resolve(self, one, port, **options)]

    monkeypatch.setattr(loop_class, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(dialing, "_answered", {})


@pytest.mark.parametrize("how", [None, close, say_nothing], ids=["refuses", "closes", "says nothing"])
async def test_each_address_of_a_name_is_tried(bootstrap: str, named: None, how: How | None) -> None:
    port = int(bootstrap.rpartition(":")[2])
    async with listening(how, OTHER, port), Cluster.open(Kafka(f"twin:{port}")) as cluster:
        assert cluster.id


async def test_an_address_that_has_answered_is_tried_first_from_then_on(bootstrap: str, named: None) -> None:
    port = int(bootstrap.rpartition(":")[2])
    async with listening(close, OTHER, port) as served:
        for _ in range(3):
            async with Cluster.open(Kafka(f"twin:{port}")) as cluster:
                assert cluster.id
    assert len(served) == 1


async def test_a_connection_that_is_closed_before_the_first_answer_is_told_with_what_may_be_the_cause() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with listening(close, "127.0.0.1", port):
        with pytest.raises(
            KafkaConnectionError, match=r"closed, before its first answer: has it a limit on connections"
        ):
            async with Cluster.open(Kafka(f"127.0.0.1:{port}")):
                pass
    with pytest.raises(KafkaConnectionError, match=r"\[::1\]:1 cannot be asked for Metadata: ") as refused:
        async with Cluster.open(Kafka("[::1]:1")):
            pass
    assert "limit on connections" not in str(refused.value)
