"""
Measure whether sessions that end delay timers: two instances on one broker, side by side, one of them with logins.

    PYTHONPATH=tests:tests/acceptance:tests/bench python tests/bench/sessions.py [--minutes N] [--session-ms N]
"""

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from brokers import publish, short_sessions
from load import numbered, producer, received, request
from service import Service
from soak import percentiles

_RATE = 200
_WARM_S = 20


class Side:
    """An instance, and the lateness of its callbacks in milliseconds."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.late_ms: dict[int, list[float]] = {}

    def take(self, now_s: float, records: Sequence[Any]) -> None:
        for record in records:
            number, second = numbered(record.value)
            self.late_ms.setdefault(number, []).append((now_s - second) * 1000)


async def measured(side: Side, login: Sequence[str], seconds: int) -> dict[str, Any]:
    """Ask for timers each second and return what came of those after the first twenty seconds."""
    service, asked = side.service, 0
    async with service:
        processes = [await service.start("oscillator", *login), await service.firing(*login)]
        sends = producer(service.bootstrap)
        async with received(service.bootstrap, service.callbacks, service.partitions, side.take):
            await sends.start()
            begins_s = int(time.time())
            for second in range(begins_s, begins_s + seconds):
                await asyncio.sleep(max(0, second - time.time()))
                numbers = range(asked, asked + _RATE)
                wanted = [request(each, second + 3, service.callbacks, each % service.partitions) for each in numbers]
                await publish(sends, service.topics.requests, wanted)
                asked += _RATE
            await asyncio.sleep(6)
            await sends.stop()
    late = sorted(each[0] for number, each in side.late_ms.items() if number >= _WARM_S * _RATE)
    came = [len(each) for each in side.late_ms.values()]
    lines = [line for process in processes for line in process.child.log.read_text().splitlines()]
    told = [line for line in lines if " WARNING " in line or " ERROR " in line]
    return {
        "asked": asked,
        "lost": asked - len(came),
        "doubled": sum(came) - len(came),
        **percentiles(late),
        "warnings": told[:5],
    }


async def main(seconds: int, session_ms: int) -> dict[str, Any]:
    """Return by instance what `measured` tells."""
    with tempfile.TemporaryDirectory(prefix="bench-sessions-") as name:
        folder = Path(name)
        async with short_sessions(folder / "kafka", session_ms) as (kafka, address, properties):
            config = folder / "login.properties"
            config.write_text("\n".join(f"{name}={value}" for name, value in properties.items()))
            login = ("--bootstrap", address, "--kafka-config", str(config))
            sides = {}
            for name in ("plain", "login"):
                (folder / name).mkdir()
                sides[name] = Side(Service(kafka.bootstrap, f"{name}-", folder / name))
            told = await asyncio.gather(measured(sides["plain"], (), seconds), measured(sides["login"], login, seconds))
    return dict(zip(sides, told, strict=True))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--session-ms", type=int, default=15_000)
    given = parser.parse_args()
    print(json.dumps(asyncio.run(main(int(given.minutes * 60), given.session_ms))))
