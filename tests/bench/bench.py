"""
How fast the service is on this machine: `make bench`.

One worker, one oscillator and a real Kafka, all here. Each line is the median of three runs; what the plain broker
takes for the same callbacks is measured in the same run, since machines differ and are seldom quiet.

    light        200 timers a second for 15 s: from a timer's second to its callback in a reader of committed records
    hot second   100,000 timers due in one second, all in one partition: until a reader has the last one
    plain        the same 100,000 callbacks as ready batches, sent by one producer without transactions
"""

import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from aiokafka import AIOKafkaProducer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from kafka_timers.dev.broker import EmbeddedKafka
from kafka_timers.wire import Future

sys.path.insert(0, str(Path(__file__).parents[1] / "acceptance"))
from service import Service, take  # found by the line above

RUNS = 3
PAYLOAD = b"x" * 150
LIGHT_S, LIGHT_RATE = 15, 200
HOT = 100_000


async def publish(service: Service, second: int, count: int, partition: int | None = None) -> None:
    """Publish *count* requests for *second*."""
    acks = []
    for number in range(count):
        future = Future(callBackTopic=service.callbacks, callBackKey=str(number), callBack=PAYLOAD)
        to = number % service.partitions if partition is None else partition
        sent = service.producer.send(service.topics.requests, future.SerializeToString(), str(second).encode(), to)
        acks.append(await sent)
    await asyncio.gather(*acks)


async def received(service: Service, count: int) -> Callable[[], Awaitable[list[tuple[float, int]]]]:
    """Start to read callbacks from here on; the result waits for *count* and returns (UNIX time, second) of each."""
    opened = service.reading(service.callbacks)
    consumer = await opened.__aenter__()
    await consumer.seek_to_end()
    for partition in consumer.assignment():
        await consumer.position(partition)

    async def wait() -> list[tuple[float, int]]:
        got: list[tuple[float, int]] = []
        while len(got) < count:
            records = await take(consumer, 1, 60)
            if not records:
                raise AssertionError(f"{count - len(got)} of {count} callbacks have not come")
            now_s = time.time()
            got += [(now_s, int(dict(record.headers)["timer-expiry"])) for record in records]
        await opened.__aexit__(None, None, None)
        return got

    return wait


async def light(service: Service) -> dict[str, float]:
    """Return the lateness in ms at a light load."""
    wait = await received(service, LIGHT_S * LIGHT_RATE)
    waiting = asyncio.create_task(wait())
    start = int(time.time()) + 3
    for second in range(start, start + LIGHT_S):
        await publish(service, second, LIGHT_RATE)
    late_ms = sorted((now_s - second) * 1000 for now_s, second in await waiting)
    return {"light p50, ms": late_ms[len(late_ms) // 2], "light p99, ms": late_ms[len(late_ms) * 99 // 100]}


async def hot_second(service: Service) -> dict[str, float]:
    """Return the seconds until the last callback of a hot second has arrived."""
    wait = await received(service, HOT)
    second = int(time.time()) + 15
    await publish(service, second, HOT, partition=0)
    return {"hot second, last callback, s": max(now_s for now_s, _ in await wait()) - second}


async def plain(service: Service) -> dict[str, float]:
    """Return the seconds that the broker takes for the same callbacks from ready batches."""
    async with AIOKafkaProducer(bootstrap_servers=service.bootstrap, acks="all", max_batch_size=256 << 10) as producer:
        await producer.partitions_for(service.callbacks)
        batches = []
        left = HOT
        while left:
            batch = producer.create_batch()
            while left and batch.append(timestamp=None, key=b"12345", value=PAYLOAD) is not None:
                left -= 1
            batches.append(batch)
        start_s = time.monotonic()
        acks = [await producer.send_batch(b, service.callbacks, partition=n % 4) for n, b in enumerate(batches)]
        await asyncio.gather(*acks)
        return {"plain broker, same callbacks, s": time.monotonic() - start_s}


async def main() -> dict[str, list[float]]:
    """Run everything, print the medians, and return the figures of each run; they go to the file that is named."""
    figures: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        async with EmbeddedKafka(Path(folder) / "kafka") as kafka:
            service = Service(kafka.bootstrap, "bench-", Path(folder))
            await service.open()
            try:
                await service.start("oscillator")
                worker = await service.worker()
                await worker.until("/readyz", lambda status, _: status == 200)
                for _ in track(range(RUNS), "measuring", transient=True):
                    for measure in (light, hot_second, plain):
                        for name, value in (await measure(service)).items():
                            figures.setdefault(name, []).append(value)
            finally:
                await service.close()
    table = Table("figure", "median", f"all {RUNS} runs")
    for name, values in figures.items():
        table.add_row(name, f"{statistics.median(values):.3g}", "  ".join(f"{value:.3g}" for value in values))
    Console().print(table)
    return figures


if __name__ == "__main__":
    measured = asyncio.run(main())
    if sys.argv[1:]:
        Path(sys.argv[1]).write_text(json.dumps(measured, indent=2) + "\n")
