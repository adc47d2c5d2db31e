"""A real Prometheus beside a running instance: the dashboard has data, and alarms ring and fall silent."""

import asyncio
import json
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from service import Process, Service
from test_dashboard import CHART, queries

from kafka_timers.dev.broker import free_port
from kafka_timers.dev.process import Child
from kafka_timers.wire import Future

pytestmark = pytest.mark.skipif(not shutil.which("prometheus"), reason="prometheus is missing")
LIMIT_S = 420
FAKE_TIME = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))


@dataclass
class Prometheus:
    """One that scrapes what the file *targets* lists, every second."""

    url: str
    targets: Path

    def scrape(self, *processes: Process) -> None:
        """Scrape these from now on."""
        told = [{"targets": [f"127.0.0.1:{each.port}" for each in processes]}]
        # At once, since half a file would be read too.
        new = self.targets.with_suffix(".new")
        new.write_text(json.dumps(told))
        new.rename(self.targets)

    def get(self, path: str, **query: str) -> Any:
        """Return what the API says."""
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
    """Have *take* remove from *left* what it finds among what rings, until nothing is left."""
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
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
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


async def ask(service: Service, waits_s: int, topic: str | None = None) -> None:
    """Ask for one timer."""
    await service.request(int(time.time()) + waits_s, Future(callBackTopic=topic or service.callbacks, callBack=b"v"))


@asynccontextmanager
async def asking(service: Service, topic: str | None = None) -> AsyncIterator[None]:
    """Ask for five timers a second meanwhile."""

    async def run() -> None:
        while True:
            await ask(service, 2, topic)
            await asyncio.sleep(0.2)

    task = asyncio.create_task(run())
    try:
        yield
    finally:
        task.cancel()


async def set_retention(service: Service, retention_ms: int) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=service.bootstrap)
    await admin.start()
    configs = {
        "retention.ms": str(retention_ms),
        "retention.bytes": "-1",
        "cleanup.policy": "delete",
        "message.timestamp.type": "LogAppendTime",
    }
    await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, service.topics.requests, configs)])
    await admin.close()


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
    async with asking(service), asking(service, "missing"):
        while empty:
            assert time.monotonic() < end_s, empty
            for title, query in queries():
                if await prometheus.value(query):
                    empty.pop(title, None)
            await asyncio.sleep(1)
    assert not await prometheus.ringing() - {"TimersRejected"}


async def test_alarms_ring_and_fall_silent(service: Service, prometheus: Prometheus, tmp_path: Path) -> None:
    assert FAKE_TIME, "install libfaketime"
    oscillators = [await service.start("oscillator", "--replica", str(replica)) for replica in range(2)]
    worker = await service.worker()
    prometheus.scrape(*oscillators, worker)
    await ask(service, 7_200)
    await asyncio.sleep(10)
    assert await prometheus.ringing() == set()

    async with AsyncExitStack() as meanwhile:
        disk = meanwhile.enter_context(small_disk(tmp_path / "small"))
        cramped = await service.worker(data_dir=disk / "store")
        skewed = await service.start(
            "oscillator", "--replica", "2", env={"LD_PRELOAD": str(FAKE_TIME[0]), "FAKETIME": "+3s"}
        )
        prometheus.scrape(*oscillators, worker, cramped, skewed)
        await meanwhile.enter_async_context(asking(service, "missing"))
        await set_retention(service, 3_600_000)
        await stopped(oscillators[1])
        wrong = {
            "TimersDiskFull",
            "TimersClockDrift",
            "TimersRejected",
            "TimersRetentionTooShort",
            "TimersTopicSettings",
            "TimersOneOscillator",
        }
        await prometheus.until_ringing(wrong)
        # Once Prometheus knows all workers, or it would not see that their counters grow.
        await service.producer.send_and_wait(service.topics.oscillator, b"1", key=b"noon", partition=0)
        await prometheus.until_ringing({"TimersTickRefused"})
        await set_retention(service, -1)
        await stopped(cramped)
        await stopped(skewed)
    oscillators[1] = await service.start("oscillator", "--replica", "1")
    prometheus.scrape(*oscillators, worker)
    await prometheus.until_silent({*wrong, "TimersTickRefused"})

    # Who is thought to live for a minute more is not replaced before.
    held = await service.worker("--session-timeout-s", "60")
    prometheus.scrape(*oscillators, worker, held)
    await asyncio.sleep(5)
    await stopped(held)
    await prometheus.until_ringing({"TimersPartitionUnowned"})
    await prometheus.until_silent({"TimersPartitionUnowned"})

    for each in oscillators:
        await stopped(each)
    await prometheus.until_ringing({"TimersNoTick"})
    oscillators = [await service.start("oscillator", "--replica", str(replica)) for replica in range(2)]
    prometheus.scrape(*oscillators, worker)
    await prometheus.until_silent({"TimersNoTick"})

    await stopped(worker)
    await prometheus.until_ringing({"TimersNoWorker"})
    prometheus.scrape(*oscillators, await service.worker())
    await prometheus.until_silent({"TimersNoWorker"})
