"""
Requests out and callbacks in, with as little work of their own as Python allows: whole batches, both ways.

A payload begins with a number and its second, so that each callback tells which request it answers.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import psutil
from aiokafka import AIOKafkaProducer, TopicPartition
from brokers import Outgoing, consuming
from service import Process

from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.fetching import Fetched, Fetcher
from kafka_timers.core.wire import Future

PAYLOAD_BYTES = 150
_BATCH_BYTES = 256 << 10

# Number and second of a request.
Numbered = tuple[int, int]


def payload(number: int, second: int) -> bytes:
    """Return the payload of a callback."""
    return (b"%d %d " % (number, second)).ljust(PAYLOAD_BYTES, b"x")


def numbered(value: bytes) -> Numbered:
    """Return the arguments of `payload`."""
    number, second, _ = value.split(b" ", 2)
    return int(number), int(second)


def request(number: int, second: int, topic: str, partition: int, timer_id: str = "") -> Outgoing:
    """Return a request of the three fields that any client has, and of a timer id if one is given."""
    future = Future(callBackTopic=topic, callBackKey=str(number), callBack=payload(number, second), timerId=timer_id)
    return partition, b"%d" % second, future.SerializeToString(), []


def schedule(number: int, second: int, topic: str, partition: int) -> Outgoing:
    """Return a record for the door `etf1`."""
    key, target = b"schedule-%d" % number, topic.encode()
    headers = [("scheduler-epoch", b"%d" % second), ("scheduler-target-topic", target), ("scheduler-target-key", key)]
    return partition, key, payload(number, second), headers


def producer(bootstrap: str) -> AIOKafkaProducer:
    """Return a producer for `publish`, not started."""
    return AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", max_batch_size=_BATCH_BYTES)


@asynccontextmanager
async def received(bootstrap: str, topic: str, partitions: int, take: Callable[[float, Sequence[Any]], None]):
    """
    Read committed records of *topic* from here on, in the background, while the block runs.

    Args:
        bootstrap: Kafka.
        topic: with records from `payload`.
        partitions: of the topic.
        take: called with UNIX time and records whenever some come.
    """
    where = [TopicPartition(topic, number) for number in range(partitions)]
    async with consuming(Kafka(bootstrap)) as consumer:
        positions = {at.partition: end for at, end in (await consumer.end_offsets(where)).items()}
    async with Cluster.open(Kafka(bootstrap)) as cluster:
        await cluster.look_up([topic])
        fetcher = Fetcher(cluster, topic, "received")
        [node] = fetcher.leaders(positions)

        async def read() -> None:
            while True:
                for number, part in (await fetcher.fetch(node, positions, 100)).items():
                    if not isinstance(part, Fetched):
                        raise part
                    now_s, records = time.time(), list(part.records)
                    positions[number] = part.position
                    if records:
                        take(now_s, records)

        reading = asyncio.create_task(read())
        try:
            yield
        finally:
            reading.cancel()
            await asyncio.wait([reading])
            if not reading.cancelled():
                await reading


async def until(reached: Callable[[], bool | Awaitable[bool]], what: str, limit_s: float = 120) -> None:
    """Wait until *reached* says so."""
    end_s = time.monotonic() + limit_s
    while True:
        answer = reached()
        if answer if isinstance(answer, bool) else await answer:
            return
        if time.monotonic() > end_s:
            raise AssertionError(f"{what}: not within {limit_s:g} s")
        await asyncio.sleep(0.02)


def rss_mb(process: Process) -> float:
    """Return the memory of a process of the service."""
    return psutil.Process(process.child.pid).memory_info().rss / 1e6


def disk_mb(process: Process) -> float:
    """Return the disk space of a worker's stores."""
    sizes = []
    for path in process.data_dir.rglob("*"):
        try:
            sizes.append(path.stat().st_size)
        except FileNotFoundError:
            continue  # RocksDB has deleted it meanwhile
    return sum(sizes) / 1e6
