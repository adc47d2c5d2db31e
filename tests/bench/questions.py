"""
The cost of questions about waiting timers: `make bench-questions`, some four minutes.

One worker with 1,000,000 timers that wait, in four partitions, and 5,000 a second that fire. In turns nobody asks, and
one asks without a pause: for a page of 50 by time, an id, a beginning of ids, how many wait in each second of an hour,
and for a key that nobody has, which looks at row after row until it is cut.
"""

import asyncio
import itertools
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bench import Bench
from load import request, until
from service import Process, Service

from kafka_timers.core.routing import partition_of
from kafka_timers.dev.broker import EmbeddedKafka, free_port
from kafka_timers.operate.waiting import Workers, asking
from kafka_timers.settings import QuerySettings

ROUNDS = 3
PENDING, SPREAD_S, WITH_ID = 1_000_000, 86_400, 10_000
RATE, LENGTH_S, AHEAD_S = 5_000, 20, 6


class Questions:
    """
    A client that asks one question after the other.

    Args:
        workers: that are asked.
        begin: UNIX second from which on timers wait.
    """

    def __init__(self, workers: Workers, begin: int) -> None:
        hour: dict[str, Any] = {"from": begin + 3_600, "to": begin + 7_200}
        self._asked: dict[str, Callable[[], Awaitable[object]]] = {
            "page of 50 by time": lambda: workers.page(50, **hour),
            "by id": lambda: workers.page(50, timer_id="id-4242"),
            "by the beginning of 111 ids": lambda: workers.page(50, id_prefix="id-42"),
            "seconds of an hour": lambda: workers.ahead(hour["from"], hour["to"], "second"),
            "by a key that nobody has": lambda: workers.page(50, key="nobody"),
        }
        self.took_ms: dict[str, list[float]] = {name: [] for name in self._asked}

    @asynccontextmanager
    async def asked(self) -> AsyncIterator[None]:
        """Ask all the time inside."""
        task = asyncio.create_task(self._ask())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _ask(self) -> None:
        for name, ask in itertools.cycle(self._asked.items()):
            start_s = time.perf_counter()
            await ask()
            self.took_ms[name].append((time.perf_counter() - start_s) * 1_000)


async def fill(bench: Bench, worker: Process, begin: int) -> None:
    """Have a million timers wait, some of them with an id."""
    topic, partitions = bench.service.callbacks, bench.service.partitions
    await bench.publish(bench.requests(PENDING - WITH_ID, begin, spread_s=SPREAD_S))
    ids = [f"id-{number}" for number in range(WITH_ID)]
    places = [(begin + number, topic, partition_of(name, partitions), name) for number, name in enumerate(ids)]
    await bench.publish([request(number, *place) for number, place in enumerate(places)])

    async def all_read() -> bool:
        return await asyncio.to_thread(worker.metric, "kafka_timers_requests_total") >= PENDING

    await until(all_read, "requests read")


async def main() -> None:
    """Measure, and print a table."""
    with tempfile.TemporaryDirectory() as folder:
        async with (
            EmbeddedKafka(Path(folder) / "kafka") as kafka,
            Service(kafka.bootstrap, "bench-", Path(folder)) as service,
        ):
            bench = Bench(service, Path(folder))
            await service.start("oscillator")
            worker = await service.firing("--query-port", str(free_port()))
            begin = int(time.time()) + 3_600
            await fill(bench, worker, begin)
            async with asking(QuerySettings(bootstrap=service.bootstrap, topic_prefix=service.prefix)) as workers:
                questions = Questions(workers, begin)
                await bench.lateness("first", RATE, LENGTH_S, AHEAD_S)
                for _ in range(ROUNDS):
                    await bench.lateness("nobody asks:", RATE, LENGTH_S, AHEAD_S)
                    async with questions.asked():
                        await bench.lateness("beside questions:", RATE, LENGTH_S, AHEAD_S)
    for name, took_ms in questions.took_ms.items():
        print(f"{name}: {len(took_ms)} times, median {statistics.median(took_ms):.1f} ms, most {max(took_ms):.0f} ms")
    for name, values in bench.figures.items():
        print(f"{name}: {statistics.median(values):.1f} ({', '.join(f'{value:.1f}' for value in values)})")


if __name__ == "__main__":
    asyncio.run(main())
