"""Requests leave `timer-request` before they fire, as by too short a retention: the stores of workers keep them."""

import asyncio
import time
from collections import Counter
from pathlib import Path

from brokers import delete_records, end_of
from commands import ended
from patience import LIMIT_S
from service import Process, Service

GAP = "kafka_timers_request_log_gap"


async def delete_all(service: Service) -> None:
    for number in range(service.partitions):
        end = await end_of(service.bootstrap, service.topics.requests, number)
        await delete_records(service.bootstrap, service.topics.requests, number, end)


async def problems_in_status(service: Service) -> str:
    where = ("--bootstrap", service.bootstrap, "--topic-prefix", service.prefix)
    return (await ended("status", *where, "--group", service.prefix + "workers"))[1]


async def until_said_by_all(worker: Process, service: Service, words: str) -> None:
    """Wait until /readyz of *worker* says *words* of each partition."""
    await worker.until("/readyz", lambda _, body: body.count(words) == service.partitions)


async def test_timers_whose_requests_were_deleted_wait_for_the_worker_that_has_them(
    service: Service, tmp_path: Path
) -> None:
    second, disk = int(time.time()) - 1000, tmp_path / "disk"
    names = [f"t-{number}" for number in range(60)]
    worker = await service.worker(data_dir=disk)
    await service.until_sealed(second - 10)
    await service.requests(second, names)
    await worker.until("/metrics", lambda *_: worker.metric("kafka_timers_pending") == len(names))
    await worker.child.stop(LIMIT_S)
    await delete_all(service)
    # This one has another disk.
    other = await service.start("worker")
    await until_said_by_all(other, service, "timers may wait from offset")
    assert other.metric(GAP) == service.partitions
    assert f"{service.topics.requests} has lost its offsets" in await problems_in_status(service)
    worker = await service.start("worker", data_dir=disk)
    await until_said_by_all(worker, service, f"timers have left {service.topics.requests} and wait in")
    await worker.child.stop(LIMIT_S)
    said = worker.child.log.read_text()
    assert said.count(f": keep the disk of {disk}/") == service.partitions
    await until_said_by_all(other, service, "timers may wait from offset")
    worker = await service.start("worker", data_dir=disk)
    await until_said_by_all(worker, service, f"timers have left {service.topics.requests} and wait in")
    assert "has some of them in its store" in await problems_in_status(service)
    await service.until_sealed(second - 5)
    assert "wait in the store of " in await problems_in_status(service)
    # Another one changes nothing.
    third = await service.start("worker")
    await third.until("/readyz", lambda status, _: status == 200)
    await until_said_by_all(worker, service, f"timers have left {service.topics.requests} and wait in")
    await service.until_sealed(second)
    assert Counter(await service.callback_names(names)) == Counter(names)
    await worker.until("/metrics", lambda *_: worker.metric(GAP) == 0)


async def test_requests_deleted_under_a_worker_fire_from_its_disk_and_are_told(service: Service) -> None:
    """Nothing is lost yet, but a takeover with an empty disk would lose it; once it has fired, all is well again."""
    second = int(time.time()) - 1000
    worker = await service.worker()
    names = [f"t-{number}" for number in range(20)]
    first = await end_of(service.bootstrap, service.topics.requests, 2)
    await service.requests(second, names, partition=2)
    await worker.until("/metrics", lambda *_: worker.metric("kafka_timers_pending") == len(names))
    assert worker.metric(GAP) == 0
    await delete_records(service.bootstrap, service.topics.requests, 2, before=first + 15)
    # A killed worker has lost what was not on its disk.
    await worker.until("/readyz", lambda _, body: "partition 2: 15 timers have left" in body)
    assert worker.metric(GAP) == 1
    worker.child.kill()
    await worker.child.wait()
    again = await service.start("worker", data_dir=worker.data_dir)
    await again.until("/readyz", lambda _, body: "partition 2: 15 timers have left" in body)
    await asyncio.gather(
        service.until_sealed(second), again.until("/readyz", lambda _, body: "timers have left" not in body)
    )
    assert sorted(await service.callback_names(names)) == sorted(names)
    assert again.metric(GAP) == 0
