"""
5,000 timers a second, while one of two workers after the other goes away.

Either it is killed (`make soak`), or ended as by an upgrade (`make rolling`).

Requests are due 2 to 30 s after they are published. A reader of committed records counts the callbacks of each; at the
end every request must have come back exactly once. The memory and the disk of the workers are sampled, and a worker
that has gone is started again at once with the store that it had.

    soak.py kill FILE [MINUTES]        one a minute, for 20 minutes; FILE gets all figures as JSON, its folder the plots
    soak.py restart FILE [MINUTES]     each once, the second when the first is ready again, for 3 minutes
"""

import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import plots
from brokers import publish
from load import disk_mb, numbered, producer, received, request, rss_mb, until
from rich.console import Console
from rich.progress import Progress
from service import Process, Service

from kafka_timers.dev.broker import EmbeddedKafka

RATE = 5_000
PORTIONS_PER_S = 10
DELAYS_S = (2, 30)
KILL_EVERY_S = 60
SAMPLE_EVERY_S = 2
SESSION_S = 6
RESTART_AFTER_S = 60
CALM_S = 40


class Soak:
    """One run."""

    def __init__(self, service: Service, minutes: float) -> None:
        self.service = service
        self.run_s = minutes * 60
        self.came = bytearray(int(self.run_s * RATE))
        self.late_ms: defaultdict[int, list[float]] = defaultdict(list)
        self.samples: list[dict[str, float]] = []
        self.gone_s: list[float] = []
        self.back_s: list[float] = []
        self._workers: list[Process] = []
        self._start_s = 0.0

    @property
    def now_s(self) -> float:
        """Seconds since the load began."""
        return time.time() - self._start_s

    def take(self, now_s: float, records: Sequence[Any]) -> None:
        """Count the callbacks."""
        for record in records:
            number, second = numbered(record.value)
            self.came[number] += 1
            self.late_ms[second].append((now_s - second) * 1000)

    async def load(self) -> None:
        """Publish all requests, at a steady pace."""
        chance, portion = random.Random(1), RATE // PORTIONS_PER_S
        async with producer(self.service.bootstrap) as sender:
            for first in range(0, len(self.came), portion):
                await asyncio.sleep(max(self._start_s + first / RATE - time.time(), 0))
                now_s = int(time.time())
                requests = [
                    request(n, now_s + chance.randint(*DELAYS_S), self.service.callbacks, n % self.service.partitions)
                    for n in range(first, min(first + portion, len(self.came)))
                ]
                await publish(sender, self.service.topics.requests, requests)

    async def start_worker(self, folder: Path | None = None) -> Process:
        """Start a worker, with the store that another one left."""
        return await self.service.start("worker", "--session-timeout-s", str(SESSION_S), data_dir=folder)

    async def kill(self) -> None:
        """Kill a worker every minute, one after the other, but for the time that the last ones take to come back."""
        while self.now_s + KILL_EVERY_S < self.run_s:
            await asyncio.sleep(KILL_EVERY_S)
            victim = self._workers.pop(0)
            victim.child.kill()
            await victim.child.wait()
            self.gone_s.append(self.now_s)
            self._workers.append(await self.start_worker(victim.data_dir))

    async def restart(self) -> None:
        """End each worker as Kubernetes does, and go on to the next one when it is ready again."""
        await asyncio.sleep(RESTART_AFTER_S)
        for number, worker in enumerate(self._workers):
            self.gone_s.append(self.now_s)
            await worker.child.stop(30)
            self._workers[number] = await self.start_worker(worker.data_dir)
            await self._workers[number].until("/readyz", lambda status, _: status == 200)
            self.back_s.append(self.now_s)

    async def sample(self) -> None:
        """Look at memory and disk until cancelled."""
        while True:
            running = [worker for worker in self._workers if worker.child.returncode is None]
            sizes = {"rss_mb": sum(map(rss_mb, running)), "disk_mb": sum(map(disk_mb, running))}
            self.samples.append({"s": round(self.now_s, 1)} | {name: round(mb, 1) for name, mb in sizes.items()})
            await asyncio.sleep(SAMPLE_EVERY_S)

    async def run(self, disturb: Callable[[], Awaitable[None]]) -> dict[str, Any]:
        """Run it, and return the figures."""
        service = self.service
        for replica in (0, 1):
            await service.start("oscillator", "--replica", str(replica))
        self._workers = [await self.start_worker() for _ in range(2)]
        for worker in self._workers:
            await worker.until("/readyz", lambda status, _: status == 200)
        async with received(service.bootstrap, service.callbacks, service.partitions, self.take):
            self._start_s = time.time()
            sampling = asyncio.create_task(self.sample())
            with Progress(transient=True) as progress:
                bar = progress.add_task("soaking", total=self.run_s)
                chores = asyncio.gather(self.load(), disturb())
                while not chores.done():
                    progress.update(bar, completed=self.now_s)
                    await asyncio.wait([chores], timeout=1)
                await chores
            sampling.cancel()
            await until(lambda: 0 not in self.came or self.now_s > self.run_s + CALM_S, "the last callbacks")
            await asyncio.sleep(2)  # in which one might come twice
        return self.seen()

    def seen(self) -> dict[str, Any]:
        """Return all figures."""
        late_ms = sorted(late for of_second in self.late_ms.values() for late in of_second)
        window = range(int(self._start_s + self.gone_s[0]), int(self._start_s + (self.back_s or self.gone_s)[-1]) + 2)
        then_ms = sorted(late for second in window for late in self.late_ms[second])
        seconds = [
            {
                "s": second - int(self._start_s),
                "late_p50_ms": round(statistics.median(late)),
                "late_max_ms": round(max(late)),
            }
            for second, late in sorted(self.late_ms.items())
        ]
        third = len(self.samples) // 3
        thirds = {"first third": self.samples[:third], "last third": self.samples[-third:]}
        medians = {
            f"{name}_median": {
                when: statistics.median(sample[name] for sample in part) for when, part in thirds.items()
            }
            for name in ("rss_mb", "disk_mb")
        }
        return {
            "date": time.strftime("%Y-%m-%d"),
            "requests": len(self.came),
            "lost": self.came.count(0),
            "doubled": len(self.came) - self.came.count(0) - self.came.count(1),
            "late_ms": percentiles(late_ms),
            "late_meanwhile_ms": percentiles(then_ms),
            "requests_meanwhile": len(then_ms),
            "early": sum(late < 0 for late in late_ms),
            **medians,
            "gone_s": [round(at_s, 1) for at_s in self.gone_s],
            "back_s": [round(at_s, 1) for at_s in self.back_s],
            "samples": self.samples,
            "seconds": seconds,
        }


def percentiles(late_ms: Sequence[float]) -> dict[str, int]:
    """Return some of *late_ms*, which ascend."""
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}
    return {name: round(late_ms[int(len(late_ms) * share)]) for name, share in shares.items()} | {
        "max": round(late_ms[-1])
    }


async def main(how: str, minutes: float) -> dict[str, Any]:
    """Run it on a Kafka of its own."""
    with tempfile.TemporaryDirectory() as folder:
        async with (
            EmbeddedKafka(Path(folder) / "kafka") as kafka,
            Service(kafka.bootstrap, "soak-", Path(folder)) as service,
        ):
            soak = Soak(service, minutes)
            return await soak.run({"kill": soak.kill, "restart": soak.restart}[how])


if __name__ == "__main__":
    how, file = sys.argv[1], Path(sys.argv[2])
    minutes = float(sys.argv[3]) if sys.argv[3:] else {"kill": 20, "restart": 3}[how]
    seen = asyncio.run(main(how, minutes))
    Console().print({name: value for name, value in seen.items() if name not in ("samples", "seconds")})
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(seen) + "\n")
    if how == "kill":
        plots.draw_soak(seen, file.parent)
    if seen["lost"] or seen["doubled"] or seen["early"]:
        sys.exit("requests were lost, doubled or early")
