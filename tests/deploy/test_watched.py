"""A real Prometheus beside a running instance: the dashboard has data, and every alarm rings and falls silent."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest
import yaml
from aiokafka import AIOKafkaProducer
from brokers import delete_records, set_topic
from devs import dev, dev_ports
from service import Process, Service
from test_dashboard import CHART, queries

from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.lake_group import tell_closed
from kafka_timers.core.wire import Copy, Future
from kafka_timers.dev.broker import free_port
from kafka_timers.dev.process import Child
from kafka_timers.runtime.tasks import cancel

pytestmark = pytest.mark.skipif(not shutil.which("prometheus"), reason="prometheus is missing")
LIMIT_S = 1_000
FAKE_TIME = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))


@dataclass
class Prometheus:
    """One that scrapes the addresses in the file *targets*, every two seconds."""

    url: str
    targets: Path

    def scrape(self, *processes: Process | int) -> None:
        """Scrape these from now on, given as such or by their ports."""
        ports = [each if isinstance(each, int) else each.port for each in processes]
        told = [{"targets": [f"127.0.0.1:{port}" for port in ports]}]
        # At once, since half a file would be read too.
        new = self.targets.with_suffix(".new")
        new.write_text(json.dumps(told))
        new.rename(self.targets)

    def get(self, path: str, **query: str) -> Any:
        """Return the answer of the API."""
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}", timeout=10) as answer:
            return json.load(answer)["data"]

    async def value(self, query: str) -> list[Any]:
        return (await asyncio.to_thread(self.get, "query", query=query))["result"]

    async def ringing(self) -> set[str]:
        alerts = (await asyncio.to_thread(self.get, "alerts"))["alerts"]
        return {each["labels"]["alertname"] for each in alerts if each["state"] == "firing"}

    async def until_ringing(self, wanted: Collection[str]) -> None:
        """Wait until each of *wanted* has rung; one that tells of a single event may have fallen silent by then."""
        left = set(wanted)
        await _until(left, lambda ringing: left.difference_update(ringing), self)

    async def until_silent(self, wanted: Collection[str]) -> None:
        """Wait until none of *wanted* rings."""
        left = set(wanted)
        await _until(left, lambda ringing: left.intersection_update(ringing), self)


async def _until(left: set[str], take: Callable[[set[str]], None], prometheus: Prometheus) -> None:
    """Have *take* remove from *left* the alarms that ring, until nothing is left."""
    end_s = time.monotonic() + LIMIT_S
    while left:
        take(ringing := await prometheus.ringing())
        assert time.monotonic() < end_s, f"{sorted(left)} are left; ringing are {sorted(ringing)}"
        await asyncio.sleep(1)


@pytest.fixture
async def prometheus(tmp_path: Path) -> AsyncIterator[Prometheus]:
    port, targets = free_port(), tmp_path / "targets.json"
    targets.write_text("[]")
    config = {
        "global": {"scrape_interval": "2s", "evaluation_interval": "1s"},
        "rule_files": [str(CHART / "alarms.yaml")],
        "scrape_configs": [
            {"job_name": "kafka-timers", "file_sd_configs": [{"files": [str(targets)], "refresh_interval": "1s"}]}
        ],
    }
    file = tmp_path / "prometheus.yaml"
    file.write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{port}"
    where = [f"--storage.tsdb.path={tmp_path / 'tsdb'}", f"--web.listen-address={address}", "--log.level=warn"]
    child = await Child.start(
        "prometheus", ["prometheus", f"--config.file={file}", *where], tmp_path / "prometheus.log"
    )
    made = Prometheus(f"http://{address}", targets)
    try:
        for _ in range(300):
            try:
                await made.value("1")
                break
            except OSError:
                assert child.returncode is None, child.last_words()
                await asyncio.sleep(0.1)
        yield made
    finally:
        child.kill()
        await child.wait()


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


async def test_each_panel_of_the_dashboard_has_data(service: Service, prometheus: Prometheus) -> None:
    oscillators = [await service.start("oscillator", "--replica", str(replica)) for replica in range(2)]
    workers = [await service.worker("--horizon-s", "3600") for _ in range(2)]
    prometheus.scrape(*oscillators, *workers)
    await ask(service, 600)
    await ask(service, 7_200)  # is left to the lake
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


async def test_every_alarm_rings_and_falls_silent(prometheus: Prometheus, tmp_path: Path) -> None:
    """On all that `kafka-timers dev` starts, and with the processes that join it."""
    assert FAKE_TIME, "install libfaketime"
    ports = dev_ports()
    # Neither where questions are answered nor the console has metrics.
    kafka, *watched = ports[:4]
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(dev(tmp_path, ports))
        _, *oscillators, own_worker, _console = running.children
        service = Service(f"127.0.0.1:{kafka}", "", tmp_path)
        service.callbacks = "fired"
        await stack.enter_async_context(service)
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
                await prometheus.until_ringing(wrong)
        # Once Prometheus knows all workers, or it would not see that their counters grow.
        now_s = int(time.time())
        await ask(service, -5, copy=Copy(offset=0, appended=now_s - 4_000, decidedOffset=1, decided=now_s))
        await service.producer.send_and_wait(service.topics.oscillator, b"1", key=b"noon", partition=0)
        # A lake that is gone since.
        await tell_closed(Kafka(service.bootstrap), "", now_s, {})
        await prometheus.until_ringing({"TimersTickRefused", "TimersPromoteBehind", "TimersPromoteStands"})
        await set_retention(service, -1)
        await stopped(cramped)
        await stopped(skewed)
        prometheus.scrape(*watched, far)

        # --- causes of late timers ---
        async with meanwhile(asks(service)):
            with held(*oscillators):
                await prometheus.until_ringing({"TimersNoTick"})
                async with meanwhile(ticks_late(service)), open_transaction(service, 3):
                    await prometheus.until_ringing({"TimersTickDelay", "TimersLate", "TimersOverdue"})
            await prometheus.until_ringing({"TimersPromoteSlow"})
            async with meanwhile(slowed(own_worker, far.child.pid)), meanwhile(asks_for_much(service, 2)):
                await prometheus.until_ringing({"TimersIngestLag"})
            await prometheus.until_silent({"TimersIngestLag", "TimersPartitionNotSealed"})
            await set_seals(service, max_bytes=100)
            await prometheus.until_ringing({"TimersPartitionNotSealed", "TimersPartitionFails", "TimersPartitionDown"})
            await set_seals(service, max_bytes=1 << 20)
            # A record that leaves the log before it was read is lost, and the alarm rings until the next takeover.
            await prometheus.until_silent({"TimersPartitionNotSealed", "TimersPartitionDown"})

        # --- losses, and processes that are gone ---
        await service.requests(int(time.time()) + 60, map(str, range(33_000)), partition=0)
        end = await service.request(int(time.time()) + 60, Future(callBackTopic=service.callbacks), 0)
        await delete_records(service.bootstrap, service.topics.requests, 0, int(end.removeprefix("0:")))
        await prometheus.until_ringing({"TimersLost"})
        await prometheus.until_silent({"TimersLost"})

        # A process that is thought to live for a minute more is not replaced before.
        long_lived = await service.worker(*group, "--session-timeout-s", "60")
        prometheus.scrape(*watched, far, long_lived)
        await asyncio.sleep(5)
        await stopped(long_lived)
        await prometheus.until_ringing({"TimersPartitionUnowned"})
        await prometheus.until_silent({"TimersPartitionUnowned"})
        await stopped(far)
        with held(own_worker):
            await prometheus.until_ringing({"TimersNoWorker"})

        # The rates of a quarter of an hour know of all that.
        rules = (await asyncio.to_thread(prometheus.get, "rules"))["groups"][0]["rules"]
        await prometheus.until_silent({each["name"] for each in rules})
