"""`kafka-timers dev` as a user has it: one command in an empty folder, and the commands that it prints to try next."""

import asyncio
import json
import os
import signal
import socket
import time
import urllib.request
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from devs import PROGRAM, Dev, dev, dev_ports
from patience import LIMIT_S

pytestmark = pytest.mark.usefixtures("needs_java")


async def said_by(*arguments: str, limit_s: float = LIMIT_S) -> str:
    """Run a command of the program and return its output; it succeeds within *limit_s*."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*PROGRAM, *arguments, stdout=pipe, stderr=pipe)
    try:
        async with asyncio.timeout(limit_s):
            output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, errors.decode()
    return output.decode()


async def test_a_timer_fires_before_and_after_everything_was_ended(tmp_path: Path) -> None:
    """Start, send, watch, Ctrl-C; and a second start goes on where the first one was."""
    ports = dev_ports()
    async with dev(tmp_path, ports) as first:
        send, watch, status = (first.hints[name][1:] for name in ("send a timer", "watch callbacks", "show the status"))
        callback = await seen_after(send, watch, seconds=2)
        assert callback["value"] == "hello"
        assert callback["key"] == "order-1"
        assert callback["lateness_ms"] >= 0
        told = json.loads(await said_by(*status, "--json"))
        rows = told["partitions"]
        assert [worker["url"] for worker in told["workers"]] == [f"http://127.0.0.1:{ports[1]}"]
        assert [row["partition"] for row in rows] == [0, 1, 2, 3]
        assert all(row["owner"] == f"http://127.0.0.1:{ports[1]}" for row in rows)
        assert len(first.children) == 4
        async with aiohttp.ClientSession() as session, session.get(first.hints["look and try"][0]) as page:
            assert (page.status, "<title>kafka-timers</title>" in await page.text()) == (200, True)
        # The worker is to be ended by then, also on a busy machine.
        waits = json.loads(await said_by(*scheduled(send, 25, value="while you were away"), "--json"))
        [listed] = map(json.loads, (await said_by(*first.hints["list timers"][1:], "--json", "--values")).splitlines())
        assert (listed["request"], listed["value"]) == (waits["request"], "while you were away")
        said = await first.end()
        assert "the next start goes on from here" in said
        assert first.process.returncode == 0
        assert_gone(first)
    assert os.listdir(tmp_path) == [".kafka-timers"]
    await asyncio.sleep(max(waits["second"] + 1 - time.time(), 0))  # it is due while nothing runs

    started_ms = time.time() * 1000
    async with dev(tmp_path, ports) as second:
        lines = (await said_by(*watch, "--json", "--from-beginning", "--count", "2")).splitlines()
        [late] = [callback for callback in map(json.loads, lines) if callback["value"] != "hello"]
        assert (late["value"], late["request"]) == ("while you were away", waits["request"])
        assert late["second"] == waits["second"]
        assert late["second"] * 1000 + late["lateness_ms"] > started_ms
        assert (await seen_after(send, watch, seconds=2))["value"] == "hello"
        await second.end()
        assert second.process.returncode == 0
        assert_gone(second)


@pytest.mark.chaos
async def test_a_timer_goes_to_the_lake_and_comes_back(tmp_path: Path) -> None:
    """A worker that has a horizon does not keep it: it fires because it was landed and promoted."""
    ports = dev_ports()
    async with dev(tmp_path, ports, "--lake") as running:
        send, watch, ask = (running.hints[name][1:] for name in ("one to the lake", "watch callbacks", "ask the lake"))
        sent = json.loads(await said_by(*send, "--json"))
        log = tmp_path / ".kafka-timers" / "log" / "lake.log"
        async with asyncio.timeout(LIMIT_S):
            while "land timer-request" not in log.read_text():  # noqa: ASYNC110  # a file has to be asked
                await asyncio.sleep(0.2)
        [timer] = json.loads(await said_by(*ask, "--json"))
        assert (f"{timer['partition']}:{timer['offset']}", timer["second"]) == (sent["request"], sent["second"])
        assert timer["far"]
        said = await said_by(*watch, "--json", "--from-beginning", "--count", "1")
        callback = json.loads(said)
        assert (callback["value"], callback["request"]) == ("hello", sent["request"])
        # Both tell of it: the job that has promoted it, and the worker that was told.
        for port, name, least in ((ports[6], "promoted_total", 1), (ports[1], "closed_second", sent["second"])):
            async with asyncio.timeout(LIMIT_S):
                while await asyncio.to_thread(shown, port, f"kafka_timers_lake_{name}") < least:  # noqa: ASYNC110
                    await asyncio.sleep(0.2)
        assert callback["lateness_ms"] >= 0
        assert len(running.children) == 5
        await running.end()
        assert running.process.returncode == 0
        assert_gone(running)
    assert os.listdir(tmp_path) == [".kafka-timers"]


def shown(port: int, metric: str) -> float:
    """Return the metric of the process at *port*; 0 if it has none."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        lines = dict(line.rsplit(" ", 1) for line in answer.read().decode().splitlines())
    return float(lines.get(metric, 0))


@pytest.mark.chaos
async def test_timers_fire_on_three_brokers_when_one_is_killed_and_after_all_were_ended(tmp_path: Path) -> None:
    """A user may kill one of them and see that it goes on; the next start has all three again."""
    ports = dev_ports(brokers=3)
    async with dev(tmp_path, ports, "--brokers", "3") as first:
        send, watch = (first.hints[name][1:] for name in ("send a timer", "watch callbacks"))
        assert len(first.children) == 6
        [victim] = [pid for pid in first.children if "broker-1/server.properties" in command_of(pid)]
        os.kill(victim, signal.SIGKILL)
        assert (await seen_after(send, watch, seconds=2))["value"] == "hello"
        await first.end()
        assert first.process.returncode == 0
        assert_gone(first)
    async with dev(tmp_path, ports, "--brokers", "3") as second:
        lines = (await said_by(*watch, "--json", "--from-beginning", "--count", "1")).splitlines()
        assert [json.loads(line)["value"] for line in lines] == ["hello"]
        await second.end()
        assert_gone(second)


def command_of(pid: int) -> str:
    """Return the command line of a process."""
    return Path(f"/proc/{pid}/cmdline").read_text()


def scheduled(send: list[str], seconds: int, value: str = "hello") -> list[str]:
    """Return the command that was said to try, for another time and value."""
    given = list(send)
    given[given.index("--in") + 1] = f"{seconds}s"
    given[given.index("--value") + 1] = value
    return given


async def seen_after(send: list[str], watch: list[str], seconds: int) -> dict[str, Any]:
    """Watch, send a timer, and return the callback as it is shown."""
    pipe = asyncio.subprocess.PIPE
    command = (*PROGRAM, *watch, "--count", "1", "--json")
    watching = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    try:
        assert watching.stderr
        async with asyncio.timeout(LIMIT_S):
            assert b"watching" in await watching.stderr.readline()
            told = json.loads(await said_by(*scheduled(send, seconds), "--json"))
            output, _ = await watching.communicate()
    finally:
        if watching.returncode is None:
            watching.kill()
    assert watching.returncode == 0
    callback: dict[str, Any] = json.loads(output)
    assert (callback["second"], callback["request"]) == (told["second"], told["request"])
    return callback


def assert_gone(ended: Dev) -> None:
    """Check that neither a process nor a port of *ended* is left."""
    assert [pid for pid in ended.children if os.path.exists(f"/proc/{pid}")] == []
    for port in ended.ports:
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", port))
