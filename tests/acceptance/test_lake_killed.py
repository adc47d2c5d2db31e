"""Far timers that come due one after the other, while landing and promotion are killed at random moments."""

import asyncio
import itertools
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from service import Service, take

from kafka_timers.core.wire import Future
from kafka_timers.runtime.child import Child

KILLS, TIMERS, HORIZON_S = 50, 2_000, 240
# From a start of a job to its kill: from before Spark is up to some batches later.
LIVES_S = (4, 40)


class Job:
    """A job of the lake that is killed, and starts again."""

    def __init__(self, service: Service, lake: Path, *arguments: str) -> None:
        self._where = ["--bootstrap", service.bootstrap, "--topic-prefix", service.prefix, "--lake", str(lake)]
        self._command = [*arguments, "--horizon-s", str(HORIZON_S), "--every-s", "5", "--master", "local[1]"]
        self._log, self._child = lake.parent / f"{arguments[0]}.log", None

    async def start(self) -> None:
        command = [sys.executable, "-m", "kafka_timers", "lake", *self._command, *self._where]
        self._child = await Child.start(self._command[0], command, self._log)

    async def kill(self) -> None:
        assert self._child is not None
        # With Spark, which is a process of its own.
        with suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        await self._child.wait()


@asynccontextmanager
async def running(*jobs: Job) -> AsyncIterator[None]:
    for job in jobs:
        await job.start()
    try:
        yield
    finally:
        for job in jobs:
            await job.kill()


@pytest.mark.chaos
async def test_far_timers_fire_once_each_through_fifty_kills(service: Service, tmp_path: Path) -> None:
    rng, lives_s = random.Random(5), sum(LIVES_S) / 2
    land, promote = (
        Job(service, tmp_path / "lake", "land"),
        Job(service, tmp_path / "lake", "promote", "--bucket-s", "30"),
    )
    await service.start("oscillator")
    await service.firing("--horizon-s", str(HORIZON_S))
    first = int(time.time()) + HORIZON_S + 60
    span_s = int(KILLS * lives_s)
    wanted = {f"timer-{number}": first + rng.randrange(span_s) for number in range(TIMERS)}
    for name, second in wanted.items():
        future = Future(callBackTopic=service.callbacks, callBackKey=name, callBack=name.encode())
        await service.request(second, future)
    async with running(land, promote):
        for job in itertools.islice(itertools.cycle((promote, land)), KILLS):
            await asyncio.sleep(rng.uniform(*LIVES_S))
            await job.kill()
            await job.start()
        async with service.reading(service.callbacks) as consumer:
            records = await take(consumer, TIMERS, span_s + HORIZON_S + 600)
            records += await take(consumer, 1, 10)
    fired = Counter(record.value.decode() for record in records)
    assert (wanted.keys() - fired.keys(), [name for name, count in fired.items() if count > 1]) == (set(), [])
    late_s = sorted(record.timestamp / 1000 - wanted[record.value.decode()] for record in records)
    assert late_s[0] >= 0
    print(f"{KILLS} kills, lateness p50 {late_s[len(late_s) // 2]:.1f} s, max {late_s[-1]:.1f} s")
