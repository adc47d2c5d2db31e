"""The services in examples/ do what they show, each started by its one command."""

import asyncio
import json
import shutil
import sys
import urllib.error
import urllib.request
from asyncio.subprocess import Process
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from confluent_kafka import Producer
from programs import running
from service import LIMIT_S, Service

from kafka_timers.dev.broker import free_port

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(service: Service, *command: str | Path, cwd: Path, **env: str) -> AbstractAsyncContextManager[Process]:
    """Have an example running against *service*."""
    return running(*command, cwd=cwd, KAFKA=service.bootstrap, PYTHONUNBUFFERED="1", **env)


async def line_with(process: Process, text: str) -> str:
    """Return the next line of *process* that has *text* in it."""
    assert process.stdout is not None
    seen = []
    try:
        async with asyncio.timeout(LIMIT_S):
            while line := (await process.stdout.readline()).decode():
                if text in line:
                    return line.rstrip()
                seen.append(line)
    except TimeoutError:
        pass
    raise AssertionError(f"no line with {text!r}: {''.join(seen)}")


def asked(url: str, method: str = "GET") -> tuple[int, dict[str, object]]:
    """Return status and JSON of an answer."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=20) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


async def test_an_order_expires_unless_it_is_paid_in_time(plain_service: Service, tmp_path: Path) -> None:
    port = free_port()
    shop = EXAMPLES / "order_deadline" / "shop.py"
    async with example(plain_service, sys.executable, shop, cwd=tmp_path, PORT=str(port)) as process:
        await line_with(process, "Starting development server")
        url = f"http://127.0.0.1:{port}/orders/"

        async def call(path: str, method: str = "GET") -> tuple[int, dict[str, object]]:
            return await asyncio.to_thread(asked, url + path, method)

        for number in ("paid", "expires"):
            status, answer = await call(f"{number}?seconds=2", "POST")
            assert (status, answer["number"]) == (200, number)
        assert await call("paid/pay", "POST") == (200, {"number": "paid", "state": "paid"})
        assert "expires" in await line_with(process, "expired")
        assert await call("expires") == (200, {"number": "expires", "state": "expired"})
        assert await call("paid") == (200, {"number": "paid", "state": "paid"})
        assert (await call("expires/pay", "POST"))[0] == 409
        assert (await call("unknown"))[0] == 404


async def test_an_order_comes_again_until_it_is_handled_or_given_up(plain_service: Service, tmp_path: Path) -> None:
    worker = EXAMPLES / "retry" / "worker.py"
    async with example(plain_service, sys.executable, worker, cwd=tmp_path) as process:
        await line_with(process, "ready")
        producer = Producer({"bootstrap.servers": plain_service.bootstrap})
        producer.produce("orders", b"fail x", b"8")
        producer.flush()
        assert "again b'8'" in await line_with(process, "again"), "an order that is nonsense ends no worker"
        producer.produce("orders", b"fail 1", b"7")
        producer.flush()
        assert await line_with(process, "b'7' failed") == "again b'7' failed 1 of 1 times"
        assert await line_with(process, "handled") == "handled b'7' after 1"


async def test_a_reminder_of_go_comes_and_another_one_is_taken_back(plain_service: Service, tmp_path: Path) -> None:
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        pytest.skip("there is no Go")
    program = tmp_path / "reminders"
    folder = EXAMPLES / "reminders_go"
    async with example(plain_service, go, "build", "-o", program, ".", cwd=folder) as building:
        said, _ = await building.communicate()
    if building.returncode and b"dial tcp" in said:
        pytest.skip("Go's modules cannot be had")
    assert (building.returncode, b"error" in said) == (0, False), said.decode()

    async def output(*words: str) -> str:
        async with example(plain_service, program, *words, cwd=tmp_path) as process:
            said, _ = await asyncio.wait_for(process.communicate(), LIMIT_S)
        assert process.returncode == 0, said.decode()
        return said.decode()

    came = await output("-in", "1500ms", "-text", "call mum")
    assert "asked for" in came
    assert "reminder: call mum (" in came
    # Ids of all lengths find the partition in which the service looks for them.
    for name in ("a", "ab", "abc", "mum", "reminder-1", "clé"):
        await output("-in", "1h", "-id", name, "-leave")
        assert await output("-cancel", name) == f"{name}: CANCELLED\n"
    assert await output("-cancel", "nobody") == "nobody: UNKNOWN\n"
