"""A worker whose disk is full says so, stays alive, and fires all exactly once when there is room again."""

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from disks import small_disk
from patience import LIMIT_S
from service import Process, Service

from kafka_timers.core.wire import Future

FAILING = "kafka_timers_partition_failing_seconds"


@asynccontextmanager
async def timers_coming(service: Service) -> AsyncIterator[list[str]]:
    """Ask for some timers each moment, due three seconds later, and yield the growing list of their names."""
    names: list[str] = []
    over = asyncio.Event()

    async def ask() -> None:
        while not over.is_set():
            here = [f"{len(names) + n}" for n in range(40)]
            names.extend(here)
            await service.requests(int(time.time()) + 3, here)
            await asyncio.sleep(0.1)

    asking = asyncio.create_task(ask())
    try:
        yield names
    finally:
        over.set()
        await asking


async def until_stopped(worker: Process, folders: list[Path]) -> None:
    """Wait until /readyz names each of *folders* as full; all questions meanwhile are answered."""

    def all_named(_: int, body: str) -> bool:
        return all(f"stands still (the disk of {folder} is full" in body for folder in folders)

    await worker.until("/readyz", all_named)


async def until_failing_for(worker: Process, seconds: float) -> None:
    """Wait until the partitions have failed for some seconds; /livez and /metrics answer all the time."""
    end_s = time.monotonic() + LIMIT_S
    while await asyncio.to_thread(worker.metric, FAILING) < seconds:
        assert await asyncio.to_thread(worker.get, "/livez") == (200, "ok")
        assert (await asyncio.to_thread(worker.get, "/metrics"))[0] == 200
        assert time.monotonic() < end_s
        await asyncio.sleep(0.1)


async def until_fired(service: Service, names: list[str]) -> list[str]:
    """Return the callbacks, once each of *names* is among them and nothing more comes for a moment."""
    return sorted(await service.callback_names(names, 120), key=int)


async def test_a_worker_whose_disk_was_full_for_a_while_fires_all_once_without_a_restart(
    service: Service, tmp_path: Path
) -> None:
    """Somebody else takes the last byte while timers come."""
    with small_disk(tmp_path / "disk", 48) as disk:
        await service.start("oscillator")
        worker = await service.worker(data_dir=disk.folder)
        async with timers_coming(service) as names:
            await service.read(service.callbacks, 200)
            disk.fill()
            await until_stopped(worker, [disk.folder / str(number) for number in range(service.partitions)])
            await until_failing_for(worker, 8 * service.partitions)
            before = len(names)
            disk.free()
            await worker.until("/readyz", lambda status, _: status == 200)
            await worker.until("/metrics", lambda *_: worker.metric(FAILING) == 0)
            while len(names) < before + 400:  # noqa: ASYNC110  # more come while it catches up
                await asyncio.sleep(0.1)
        assert await until_fired(service, names) == sorted(names, key=int)
        assert worker.child.returncode is None
        log = worker.child.log.read_text()
        assert log.count("Its timers wait, and its store is dropped") == service.partitions
        await worker.child.stop(LIMIT_S)
        assert worker.child.returncode == 0


async def test_sigterm_ends_a_worker_whose_disk_is_full(service: Service, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 48) as disk:
        await service.start("oscillator")
        worker = await service.worker(data_dir=disk.folder)
        async with timers_coming(service):
            await service.read(service.callbacks, 200)
            disk.fill()
            await until_stopped(worker, [disk.folder / "0"])
            # As long as an orchestrator waits by default.
            await worker.child.stop(LIMIT_S)
        assert worker.child.returncode == 0


async def test_a_partition_that_fills_its_own_disk_stops_alone_until_that_is_larger(
    service: Service, tmp_path: Path
) -> None:
    """The folder of partition 0 is a disk of its own, and the timers that wait there are too many for it."""
    data_dir = tmp_path / "data"
    with small_disk(data_dir / "0", 32) as disk:
        worker = await service.worker(data_dir=data_dir)
        second = int(time.time()) - 100
        far = second + 1_000_000
        waiting = Future(callBackTopic=service.callbacks, callBack=os.urandom(25_600))
        ready = asyncio.create_task(until_stopped(worker, [disk.folder]))
        tick = second
        while not ready.done():
            await asyncio.gather(*[service.request(far, waiting, partition=0) for _ in range(40)])
            tick += 1
            await service.tick(tick)
        await ready
        names = [f"{n}" for n in range(400)]
        await service.requests(tick + 1, names)
        # The others fire in the second that is ticked now.
        await service.tick(tick + 1)
        others = [name for number, name in enumerate(names) if number % service.partitions]
        assert await until_fired(service, others) == others
        assert worker.get("/livez") == (200, "ok")
        disk.resize(512)
        await service.until_sealed(tick + 1)
        assert Counter(await until_fired(service, names)) == Counter(names)
