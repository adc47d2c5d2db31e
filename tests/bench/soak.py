"""
Twenty minutes at 5,000 timers a second, and every minute one of two workers is killed: `make soak`.

Requests are due 2 to 30 s after they are published. A reader of committed records counts the callbacks of each; at the
end every request must have come back exactly once. What the workers take in memory and on disk is sampled, and whoever
is killed is started again at once with the store that it had.

    soak.py [FILE [MINUTES]]     FILE gets all figures as JSON, and the folder around it the plots
"""

import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import plots
from load import disk_mb, numbered, producer, publish, received, request, rss_mb, until
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
CALM_S = 40


class Soak:
    """One run."""

    def __init__(self, service: Service, minutes: float) -> None:
        self.service = service
        self.run_s = minutes * 60
        self.came = bytearray(int(self.run_s * RATE))
        self.late_ms: defaultdict[int, list[float]] = defaultdict(list)
        self.samples: list[dict[str, float]] = []
        self.kills_s: list[float] = []
        self._workers: list[Process] = []
        self._start_s = 0.0

    @property
    def now_s(self) -> float:
        """Seconds since the load began."""
        return time.time() - self._start_s

    def take(self, now_s: float, records: Sequence[Any]) -> None:
        """Count what came."""
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
            self.kills_s.append(self.now_s)
            self._workers.append(await self.start_worker(victim.data_dir))

    async def sample(self) -> None:
        """Look at memory and disk until cancelled."""
        while True:
            running = [worker for worker in self._workers if worker.child.returncode is None]
            sizes = {"rss_mb": sum(map(rss_mb, running)), "disk_mb": sum(map(disk_mb, running))}
            self.samples.append({"s": round(self.now_s, 1)} | {name: round(mb, 1) for name, mb in sizes.items()})
            await asyncio.sleep(SAMPLE_EVERY_S)

    async def run(self) -> dict[str, Any]:
        """Run it, and return what was seen."""
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
                chores = asyncio.gather(self.load(), self.kill())
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
            "late_ms": {f"p{share}": round(late_ms[len(late_ms) * share // 100]) for share in (50, 90, 99)}
            | {"max": round(late_ms[-1])},
            "early": sum(late < 0 for late in late_ms),
            **medians,
            "kills_s": [round(at_s, 1) for at_s in self.kills_s],
            "samples": self.samples,
            "seconds": seconds,
        }


async def main(minutes: float) -> dict[str, Any]:
    """Run a soak on a Kafka of its own."""
    with tempfile.TemporaryDirectory() as folder:
        async with (
            EmbeddedKafka(Path(folder) / "kafka") as kafka,
            Service(kafka.bootstrap, "soak-", Path(folder)) as service,
        ):
            return await Soak(service, minutes).run()


if __name__ == "__main__":
    file = Path(sys.argv[1]) if sys.argv[1:] else None
    seen = asyncio.run(main(float(sys.argv[2]) if sys.argv[2:] else 20))
    Console().print({name: value for name, value in seen.items() if name not in ("samples", "seconds")})
    if file:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(seen) + "\n")
        plots.draw_soak(seen, file.parent)
    if seen["lost"] or seen["doubled"] or seen["early"]:
        sys.exit("requests were lost, doubled or early")
