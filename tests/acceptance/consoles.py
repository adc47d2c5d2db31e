"""A console that is asked over HTTP, and the service behind it."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from patience import LIMIT_S
from service import Process, Service, take

from kafka_timers.dev.broker import free_port

READ, OPERATE = "read-0123456789abcdef", "operate-0123456789abcdef"
ANSWERED = (200, 201)


class Console:
    """A console that is asked, and the service behind it; tests use timer ids and topics of their own."""

    def __init__(self, service: Service, process: Process, session: aiohttp.ClientSession) -> None:
        self.service = service
        self.process = process
        self.session = session

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.process.port}"

    async def ask(
        self, method: str, path: str, body: object = None, *, token: str | None = OPERATE, **headers: str
    ) -> tuple[int, Any]:
        """Return status and JSON of an answer."""
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        async with self.session.request(method, self.url + path, json=body, headers=headers) as response:
            if response.status not in ANSWERED:
                assert response.content_type == "application/problem+json"
            return response.status, json.loads(await response.read())

    async def answer(self, path: str) -> Any:
        """Return the JSON that a reader gets, and ask again while there is no answer yet: machines may be busy."""
        end_s = time.monotonic() + LIMIT_S
        while True:
            status, told = await self.ask("GET", path, token=READ)
            if status == 200:
                return told
            assert (status, time.monotonic() < end_s) == (503, True), told

    async def until(self, path: str, **wanted: object) -> Any:
        """Return the JSON that a reader gets, once it has what is *wanted*."""
        end_s = time.monotonic() + LIMIT_S
        while True:
            told = await self.answer(path)
            if {name: told[name] for name in wanted} == wanted:
                return told
            assert time.monotonic() < end_s, told
            await asyncio.sleep(0.1)

    async def fired(self, topic: str, count: int) -> list[Any]:
        """Return the callbacks on *topic*, once *count* are there and more seconds are sealed."""
        async with self.service.reading(topic) as consumer:
            records = await take(consumer, count, LIMIT_S)
            second = int(time.time()) + 2
            await asyncio.sleep(second - time.time())
            await self.service.until_sealed(second)
            return records + await take(consumer, 1, 0.5)

    async def topic(self, name: str) -> str:
        """Make a topic for callbacks, and return its name."""
        await self.service.create_topic(self.service.prefix + name)
        return self.service.prefix + name


@pytest.fixture(scope="module")
async def console(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Console]:
    prefix = f"console-{time.time_ns()}-"
    folder: Path = tmp_path_factory.mktemp("console")
    (folder / "tokens").write_text(f"# who may come\nread {READ} the dashboard\n\noperate {OPERATE} billing\n")
    async with Service(bootstrap, prefix, folder) as service, aiohttp.ClientSession() as session:
        await service.start("oscillator")
        await service.create_topic(prefix + "schedules")
        await service.firing("--query-port", str(free_port()), "--door", f"etf1={prefix}schedules")
        options = ("--token-file", str(folder / "tokens"), "--allowed-topics", prefix + "*")
        started = await service.start("console", *options, "--group", prefix + "workers")
        await started.until("/livez", lambda status, _: status == 200)
        yield Console(service, started, session)
