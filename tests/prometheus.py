"""
A real Prometheus with the shipped alarms, beside processes that run here. It is Debian's package `prometheus`.

Its rules are those of the chart, unchanged, with the times that they wait before they ring.
"""

import asyncio
import json
import shutil
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import yaml

from kafka_timers.dev.broker import free_port
from kafka_timers.runtime.child import Child

__all__ = ["Prometheus", "is_installed"]

_ALARMS = Path(__file__).parents[1] / "deploy" / "chart" / "alarms.yaml"
# So soon a fault has to be told.
_SOON_S = 30


def is_installed() -> bool:
    """Tell whether there is a Prometheus on this machine."""
    return shutil.which("prometheus") is not None


class _HasPort(Protocol):
    @property
    def port(self) -> int: ...


def _configured(folder: Path, targets: Path, scrape_every_s: int) -> Path:
    """Write the configuration, and an empty list of *targets*."""
    folder.mkdir(parents=True, exist_ok=True)
    targets.write_text("[]")
    discovery = {"files": [str(targets)], "refresh_interval": "1s"}
    config = {
        "global": {"scrape_interval": f"{scrape_every_s}s", "evaluation_interval": "1s"},
        "rule_files": [str(_ALARMS)],
        "scrape_configs": [{"job_name": "kafka-timers", "file_sd_configs": [discovery]}],
    }
    file = folder / "prometheus.yaml"
    file.write_text(yaml.safe_dump(config))
    return file


class Prometheus:
    """One that runs at *url*, and scrapes the addresses in the file *targets*."""

    def __init__(self, url: str, targets: Path) -> None:
        self._url, self._targets = url, targets

    @classmethod
    @asynccontextmanager
    async def started(cls, folder: Path, scrape_every_s: int) -> AsyncIterator["Prometheus"]:
        """Yield one with its data in *folder*, which scrapes nothing yet."""
        port, targets = free_port(), folder / "targets.json"
        config = _configured(folder, targets, scrape_every_s)
        address = f"127.0.0.1:{port}"
        where = [f"--storage.tsdb.path={folder / 'tsdb'}", f"--web.listen-address={address}", "--log.level=warn"]
        command = ["prometheus", f"--config.file={config}", *where]
        child = await Child.start("prometheus", command, folder / "prometheus.log")
        made = cls(f"http://{address}", targets)
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

    def scrape(self, *processes: _HasPort | int) -> None:
        """Scrape these from now on, given as such or by their ports."""
        ports = [each if isinstance(each, int) else each.port for each in processes]
        told = [{"targets": [f"127.0.0.1:{port}" for port in ports]}]
        # At once, since half a file would be read too.
        new = self._targets.with_suffix(".new")
        new.write_text(json.dumps(told))
        new.rename(self._targets)

    def get(self, path: str, **query: str) -> Any:
        """Return the answer of the API."""
        address = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(address, timeout=10) as answer:
            return json.load(answer)["data"]

    async def value(self, query: str) -> list[Any]:
        """Return the result of a *query* now."""
        told: list[Any] = (await asyncio.to_thread(self.get, "query", query=query))["result"]
        return told

    async def ringing(self) -> set[str]:
        """Return the alarms that ring now."""
        alerts = (await asyncio.to_thread(self.get, "alerts"))["alerts"]
        return {each["labels"]["alertname"] for each in alerts if each["state"] == "firing"}

    async def tells(self, alarm: str) -> bool:
        """Tell whether *alarm* rings. If it waits for minutes before it does, it only has to wait."""
        groups = (await asyncio.to_thread(self.get, "rules", type="alert"))["groups"]
        [rule] = [each for group in groups for each in group["rules"] if each["name"] == alarm]
        return rule["state"] == "firing" or (rule["state"] == "pending" and rule["duration"] > _SOON_S)

    async def rang(self) -> set[str]:
        """Return all alarms that have rung so far."""
        told = await self.value('last_over_time(ALERTS{alertstate="firing"}[1d])')
        return {each["metric"]["alertname"] for each in told}
