"""A real Prometheus beside a running instance: the dashboard has data, and every alarm rings and falls silent."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest
from aiokafka import AIOKafkaProducer
from brokers import delete_records, set_topic
from devs import dev, dev_ports
from prometheus import Prometheus, is_installed
from service import Process, Service
from test_dashboard import queries
from test_serve import serve, until_ready

from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.lake_group import tell_closed
from kafka_timers.core.wire import Copy, Future
from kafka_timers.runtime.tasks import cancel

pytestmark = pytest.mark.skipif(not is_installed(), reason="prometheus is missing")
LIMIT_S = 1_000
FAKE_TIME = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))


async def until_ringing(prometheus: Prometheus, wanted: Collection[str]) -> None:
    """Wait until each of *wanted* has rung; one that tells of a single event may have fallen silent by then."""
    left = set(wanted)
    await _until(left, lambda ringing: left.difference_update(ringing), prometheus)


async def until_silent(prometheus: Prometheus, wanted: Collection[str]) -> None:
    """Wait until none of *wanted* rings."""
    left = set(wanted)
    await _until(left, lambda ringing: left.intersection_update(ringing), prometheus)


async def _until(left: set[str], take: Callable[[set[str]], None], prometheus: Prometheus) -> None:
    """Have *take* remove from *left* the alarms that ring, until nothing is left."""
    end_s = time.monotonic() + LIMIT_S
    while left:
        take(ringing := await prometheus.ringing())
        assert time.monotonic() < end_s, f"{sorted(left)} are left; ringing are {sorted(ringing)}"
        await asyncio.sleep(1)


@pytest.fixture
async def prometheus(tmp_path: Path) -> AsyncIterator[Prometheus]:
    async with Prometheus.started(tmp_path / "prometheus", scrape_every_s=2) as started:
        yield started


async def stopped(process: Process) -> None:
    process.child.kill()
    await process.child.wait()


@contextmanager
def held(*pids: int) -> Iterator[None]:
    """Keep processes from going on, as a host that hangs does."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


async def slowed(*pids: int) -> NoReturn:
    """Have processes run for a small part of the time."""
    while True:
        with held(*pids):
            await asyncio.sleep(0.46)
        await asyncio.sleep(0.04)


async def ask(
    service: Service, waits_s: int, topic: str | None = None, partitions: Iterable[int] = range(4), **more: Any
) -> None:
    """Ask for one timer in each of *partitions*."""
    future = Future(callBackTopic=topic or service.callbacks, callBack=b"v", **more)
    for number in partitions:
        await service.request(int(time.time()) + waits_s, future, number)


async def ticks_late(service: Service) -> NoReturn:
    """Be an oscillator that is slow."""
    while True:
        await asyncio.sleep(1)
        await service.tick(int(time.time() - 2.5))


@asynccontextmanager
async def meanwhile(work: Coroutine[Any, Any, NoReturn]) -> AsyncIterator[None]:
    """Have *work* done until the block ends."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        await cancel([task])


async def asks(service: Service, topic: str | None = None) -> NoReturn:
    """Ask for twenty timers a second."""
    while True:
        await ask(service, 2, topic)
        await asyncio.sleep(0.2)


async def asks_for_much(service: Service, partition: int) -> NoReturn:
    """Ask for tens of thousands of timers a second, due within the hour."""
    while True:
        await service.requests(int(time.time()) + 3_000, map(str, range(10_000)), partition)
        await asyncio.sleep(0.1)


async def set_retention(service: Service, retention_ms: int) -> None:
    others = {"retention.bytes": "-1", "cleanup.policy": "delete", "message.timestamp.type": "LogAppendTime"}
    await set_topic(service.bootstrap, service.topics.requests, {"retention.ms": str(retention_ms), **others})


async def set_seals(service: Service, max_bytes: int) -> None:
    """Have the broker take seals of at most so many bytes."""
    others = {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}
    lag = {"min.compaction.lag.ms": str(7 * 86_400_000), "segment.ms": str(86_400_000)}
    await set_topic(service.bootstrap, service.topics.sealed, {"max.message.bytes": str(max_bytes), **others, **lag})


@asynccontextmanager
async def open_transaction(service: Service, partition: int) -> AsyncIterator[None]:
    """Have somebody's transaction open on a partition of requests."""
    options = {"transactional_id": f"{service.prefix}hangs", "transaction_timeout_ms": 900_000}
    async with AIOKafkaProducer(bootstrap_servers=service.bootstrap, **options) as producer:
        await producer.begin_transaction()
        await producer.send_and_wait(service.topics.requests, b"", partition=partition)
        try:
            yield
        finally:
            await producer.abort_transaction()


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Yield a folder on a disk of 64 MiB."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


async def test_each_panel_of_the_dashboard_has_data_of_two_that_serve_and_a_hanging_worker_rings(
    service: Service, prometheus: Prometheus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_TIMERS_HORIZON_S", "3600")
    await service.create_topic(door := f"{service.prefix}timers")
    first, second = (
        serve(service.bootstrap, service.prefix, tmp_path / replica, "--replica", replica, "--door", f"headers={door}")
        for replica in "01"
    )
    async with first as one, second as other:
        await asyncio.gather(until_ready(one), until_ready(other))
        prometheus.scrape(one, other)
        await ask(service, 600)
        await ask(service, 7_200)  # is left to the lake
        headers = [("timer-delay", b"600"), ("timer-callback-topic", service.callbacks.encode())]
        await service.producer.send_and_wait(door, b"v", b"id", headers=headers)
        end_s = time.monotonic() + LIMIT_S
        empty = dict(queries())
        async with meanwhile(asks(service)), meanwhile(asks(service, "missing")):
            while empty:
                assert time.monotonic() < end_s, empty
                for title, query in queries():
                    if await prometheus.value(query):
                        empty.pop(title, None)
                await asyncio.sleep(1)
        assert not await prometheus.ringing() - {"TimersRejected"}
        with held(one.children()["worker"].pid):
            await until_ringing(prometheus, {"TimersWorkerSilent"})


async def test_every_alarm_rings_and_falls_silent(prometheus: Prometheus, tmp_path: Path) -> None:
    """On all that `kafka-timers dev` starts, and with the processes that join it."""
    assert FAKE_TIME, "install libfaketime"
    ports = dev_ports()
    # Neither where questions are answered nor the console has metrics.
    kafka, *watched = ports[:3]
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(dev(tmp_path, ports))
        _, first, own_worker, _console = running.children
        service = Service(f"127.0.0.1:{kafka}", "", tmp_path)
        service.callbacks = "fired"
        await stack.enter_async_context(service)
        second = await service.start("oscillator", "--replica", "1")
        oscillators = (first, second.child.pid)
        watched.append(second.port)
        group = ("--group", "kafka-timers")
        far = await service.worker(*group, "--horizon-s", "3600")
        prometheus.scrape(*watched, far)
        await ask(service, 7_200, partitions=[3])
        await asyncio.sleep(10)
        assert await prometheus.ringing() == set()

        # --- wrong settings, and faults of others ---
        disk = stack.enter_context(small_disk(tmp_path / "small"))
        cramped = await service.worker(*group, data_dir=disk / "store")
        fake = {"LD_PRELOAD": str(FAKE_TIME[0]), "FAKETIME": "+3s"}
        skewed = await service.start("oscillator", "--replica", "2", env=fake)
        prometheus.scrape(*watched, far, cramped, skewed)
        wrong = {
            "TimersDiskFull",
            "TimersClockDrift",
            "TimersRejected",
            "TimersRetentionTooShort",
            "TimersTopicSettings",
            "TimersOneOscillator",
        }
        with held(oscillators[1]):
            async with meanwhile(asks(service, "missing")):
                await set_retention(service, 3_000_000)
                await until_ringing(prometheus, wrong)
        # Once Prometheus knows all workers, or it would not see that their counters grow.
        now_s = int(time.time())
        await ask(service, -5, copy=Copy(offset=0, appended=now_s - 4_000, decidedOffset=1, decided=now_s))
        await service.producer.send_and_wait(service.topics.oscillator, b"1", key=b"noon", partition=0)
        # A lake that is gone since.
        await tell_closed(Kafka(service.bootstrap), "", now_s, {})
        await until_ringing(prometheus, {"TimersTickRefused", "TimersPromoteBehind", "TimersPromoteStands"})
        await set_retention(service, -1)
        await stopped(cramped)
        await stopped(skewed)
        prometheus.scrape(*watched, far)

        # --- causes of late timers ---
        async with meanwhile(asks(service)):
            with held(*oscillators):
                await until_ringing(prometheus, {"TimersNoTick"})
                async with meanwhile(ticks_late(service)), open_transaction(service, 3):
                    await until_ringing(prometheus, {"TimersTickDelay", "TimersLate", "TimersOverdue"})
            await until_ringing(prometheus, {"TimersPromoteSlow"})
            async with meanwhile(slowed(own_worker, far.child.pid)), meanwhile(asks_for_much(service, 2)):
                await until_ringing(prometheus, {"TimersIngestLag"})
            await until_silent(prometheus, {"TimersIngestLag", "TimersPartitionNotSealed"})
            await set_seals(service, max_bytes=100)
            await until_ringing(prometheus, {"TimersPartitionNotSealed", "TimersPartitionFails", "TimersPartitionDown"})
            await set_seals(service, max_bytes=1 << 20)
            # A record that leaves the log before it was read is lost, and the alarm rings until the next takeover.
            await until_silent(prometheus, {"TimersPartitionNotSealed", "TimersPartitionDown"})

        # --- losses, and processes that are gone ---
        await service.requests(int(time.time()) + 60, map(str, range(33_000)), partition=0)
        end = await service.request(int(time.time()) + 60, Future(callBackTopic=service.callbacks), 0)
        await delete_records(service.bootstrap, service.topics.requests, 0, int(end.removeprefix("0:")))
        await until_ringing(prometheus, {"TimersLost"})
        await until_silent(prometheus, {"TimersLost"})

        # A process that is thought to live for a minute more is not replaced before.
        long_lived = await service.worker(*group, "--session-timeout-s", "60")
        prometheus.scrape(*watched, far, long_lived)
        await asyncio.sleep(5)
        await stopped(long_lived)
        await until_ringing(prometheus, {"TimersPartitionUnowned"})
        await until_silent(prometheus, {"TimersPartitionUnowned"})
        await stopped(far)
        with held(own_worker):
            await until_ringing(prometheus, {"TimersNoWorker"})

        # The rates of a quarter of an hour know of all that.
        rules = (await asyncio.to_thread(prometheus.get, "rules"))["groups"][0]["rules"]
        await until_silent(prometheus, {each["name"] for each in rules})
