"""The Prometheus of the tests: what it scrapes, and which alarms it tells of."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from prometheus import Prometheus, is_installed

pytestmark = pytest.mark.skipif(not is_installed(), reason="prometheus is missing")


class Shown:
    """A process whose /metrics shows *text*."""

    text, port = "", 0


@pytest.fixture
async def shown() -> AsyncIterator[Shown]:
    process, app = Shown(), web.Application()

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(text=process.text)

    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    process.port = runner.addresses[0][1]
    yield process
    await runner.cleanup()


async def until(told: Callable[[], Awaitable[Any]], wanted: Any = True) -> None:
    async with asyncio.timeout(60):
        while await told() != wanted:  # noqa: ASYNC110  # Prometheus has to be asked
            await asyncio.sleep(0.2)


async def test_an_alarm_is_told_once_it_rings_or_waits_for_minutes_and_is_remembered(
    shown: Shown, tmp_path: Path
) -> None:
    lost = 'kafka_timers_request_log_gap{partition="0"}'
    away = 'kafka_timers_unavailable_partitions{topic="t",partition="0",brokers="1"}'
    # Without a worker another alarm rings.
    shown.text = f"kafka_timers_partitions 0\n{lost} 0\n"
    async with Prometheus.started(tmp_path, scrape_every_s=1) as prometheus:
        prometheus.scrape(shown)
        await until(lambda: prometheus.tells("TimersNoWorker"), False)
        assert not await prometheus.tells("TimersLost")
        shown.text = f"kafka_timers_partitions 0\n{lost} 1\n{away} 1\n"
        await until(lambda: prometheus.tells("TimersLost"))
        await until(lambda: prometheus.tells("TimersTopicUnavailable"))
        await until(prometheus.rang, {"TimersLost"})
        assert await prometheus.ringing() == {"TimersLost"}
        shown.text = f"kafka_timers_partitions 0\n{lost} 0\n"
        await until(prometheus.ringing, set())
        assert not await prometheus.tells("TimersLost")
        assert await prometheus.rang() == {"TimersLost"}
