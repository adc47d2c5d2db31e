"""The HTTP server of metrics and health."""

import asyncio
import socket

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Counter

from kafka_timers.dev.broker import free_port
from kafka_timers.errors import SettingsError
from kafka_timers.processes.gathered import Gathered
from kafka_timers.processes.supervisor import Kept, Part
from kafka_timers.runtime.gauges import KnownGauge
from kafka_timers.runtime.probes import Probes, served_by_thread
from kafka_timers.runtime.tasks import cancel
from kafka_timers.serve.dev import tell_notes


def nothing() -> list[str]:
    return []


async def get(url: str) -> tuple[int, str, str]:
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return answer.status, answer.content_type, await answer.text()


async def test_health_is_ok_or_says_every_reason() -> None:
    reasons: list[str] = []
    probes = Probes("127.0.0.1", free_port(), CollectorRegistry(), nothing, lambda: reasons)
    await probes.start()
    try:
        assert await get(probes.url + "/readyz") == (200, "text/plain", "ok")
        reasons += ["partition 3 is stalled", "no tick for 4 s"]
        assert await get(probes.url + "/readyz") == (503, "text/plain", "partition 3 is stalled\nno tick for 4 s")
        assert await get(probes.url + "/livez") == (200, "text/plain", "ok")
    finally:
        await probes.stop()


async def test_what_others_do_not_do_is_told_beside_of_all_processes_and_makes_none_unready() -> None:
    """And `kafka-timers dev` says it on its terminal."""
    reasons, notes = list[str](), ["the lake is behind"]
    probes = Probes("127.0.0.1", free_port(), CollectorRegistry(), nothing, lambda: reasons)
    probes.notes = lambda: notes
    await probes.start()
    worker = Kept(Part(name="worker", command=[], url=probes.url))
    worker.away = ""
    gathered, told = Gathered("127.0.0.1", free_port(), [worker]), asyncio.Queue[str]()
    await gathered.start()
    telling = asyncio.create_task(tell_notes(gathered, told.put_nowait))
    try:
        assert await get(probes.url + "/readyz") == (200, "text/plain", "ok\nthe lake is behind")
        assert await get(gathered.url + "/readyz") == (200, "text/plain", "ok\nworker: the lake is behind")
        assert await gathered.unready() == []
        assert await told.get() == "worker: the lake is behind"
        assert await get(probes.url + "/livez") == (200, "text/plain", "ok")
        reasons.append("no tick for 4 s")
        assert await get(probes.url + "/readyz") == (503, "text/plain", "no tick for 4 s\nthe lake is behind")
        notes.clear()
        assert await get(probes.url + "/readyz") == (503, "text/plain", "no tick for 4 s")
    finally:
        await cancel([telling])
        await gathered.stop()
        await probes.stop()


async def test_metrics_are_those_of_the_registry_given() -> None:
    registry = CollectorRegistry()
    Counter("fired", "what fired", registry=registry).inc(3)
    probes = Probes("127.0.0.1", free_port(), registry, nothing, nothing)
    await probes.start()
    try:
        status, kind, text = await get(probes.url + "/metrics")
    finally:
        await probes.stop()
    assert (status, kind) == (200, "text/plain")
    assert "fired_total 3.0" in text
    assert "python_gc" not in text


async def test_there_is_no_other_route_and_nothing_asked_for_comes_back() -> None:
    probes = Probes("127.0.0.1", free_port(), CollectorRegistry(), nothing, nothing)
    await probes.start()
    try:
        for path in ("/", "/metrics/more", "/nonsense?with=nonsense"):
            status, _, text = await get(probes.url + path)
            assert status == 404
            assert "nonsense" not in text
    finally:
        await probes.stop()


async def test_a_taken_port_is_said_plainly() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        probes = Probes("127.0.0.1", port, CollectorRegistry(), nothing, nothing)
        with pytest.raises(SettingsError, match=f"port {port} on 127.0.0.1 is taken"):
            await probes.start()
        await probes.stop()


async def test_an_address_of_another_host_is_said_plainly() -> None:
    probes = Probes("192.0.2.1", free_port(), CollectorRegistry(), nothing, nothing)
    with pytest.raises(SettingsError, match=r"cannot listen on 192\.0\.2\.1"):
        await probes.start()


async def test_port_0_serves_nothing() -> None:
    probes = Probes("127.0.0.1", 0, CollectorRegistry(), nothing, nothing)
    await probes.start()
    assert probes.url == ""
    await probes.stop()


async def test_after_stop_the_port_is_free_again() -> None:
    port = free_port()
    for _ in range(2):
        probes = Probes("127.0.0.1", port, CollectorRegistry(), nothing, nothing)
        await probes.start()
        assert (await get(probes.url + "/livez"))[0] == 200
        await probes.stop()


def test_a_process_without_an_event_loop_serves_them_too() -> None:
    registry, reasons = CollectorRegistry(), ["no broker answers"]
    probes = Probes("127.0.0.1", free_port(), registry, nothing, lambda: reasons)
    with served_by_thread(probes):
        assert asyncio.run(get(probes.url + "/readyz"))[::2] == (503, "no broker answers")
        other = Probes("127.0.0.1", probes.port, registry, nothing, nothing)
        with pytest.raises(SettingsError, match="is taken"), served_by_thread(other):
            pass
    with pytest.raises(aiohttp.ClientConnectionError):
        asyncio.run(get(probes.url + "/readyz"))
    with served_by_thread(Probes("127.0.0.1", 0, registry, nothing, nothing)):
        pass


def test_a_gauge_is_not_there_while_its_value_is_not_known() -> None:
    registry = CollectorRegistry()
    gauge = KnownGauge("closed", "what is closed", registry)
    assert registry.get_sample_value("closed") is None
    gauge.value = 7
    assert registry.get_sample_value("closed") == 7
    gauge.value = None
    assert registry.get_sample_value("closed") is None
