"""
Connects to a broker by whichever address of its name answers.

A name may have several addresses, of which one refuses, is silent, or accepts and closes, as that of a proxy whose
broker is dead. Kafka's own clients try each; asyncio stays with the first one that accepts, and waits long for one that
is silent.
"""

import asyncio
import socket
from typing import Any

from aiokafka.conn import AIOKafkaConnection

from kafka_timers.broker.internals import ConnectionTo, connect

# One more address is tried after this time.
_NEXT_S = 0.5

# The address by which each broker has answered last. Tried first, so that a silent one costs its time only once.
_answered: dict[tuple[str, int], str] = {}


async def dial(host: str, port: int, **options: Any) -> AIOKafkaConnection:
    """
    Return a connection to a broker that has answered. *options* are those of aiokafka's connections.

    Raises:
        OSError: the name has no address, or none can be connected to.
        aiokafka.errors.KafkaError: a broker closes the connection, or refuses the login.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(address[0]) for *_, address in found))
    if len(addresses) == 1:
        return await connect(host, port, **options)
    known, left, errors = _answered.get((host, port)), addresses, list[BaseException]()
    left.sort(key=lambda address: address != known)
    tried: dict[asyncio.Task[AIOKafkaConnection], str] = {}
    try:
        while left or tried:
            if left:
                address = left.pop(0)
                tried[asyncio.create_task(_connected(address, host, port, options))] = address
            done, _ = await asyncio.wait(tried, timeout=_NEXT_S if left else None, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                address = tried.pop(task)
                if (error := task.exception()) is None:
                    _answered[host, port] = address
                    return task.result()
                errors.append(error)
    finally:
        for task in tried:
            task.add_done_callback(_hang_up)
            task.cancel()
    # What a broker has said tells more than that nothing listens.
    raise next((error for error in errors if not isinstance(error, OSError)), errors[0])


async def _connected(address: str, host: str, port: int, options: dict[str, Any]) -> AIOKafkaConnection:
    connection = ConnectionTo(address, host, port, **options)
    await connection.connect()
    return connection


def _hang_up(task: asyncio.Task[AIOKafkaConnection]) -> None:
    if not task.cancelled() and not task.exception():
        task.result().close()
