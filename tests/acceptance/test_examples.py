"""The programs in examples/ do what they show, and docs/wire-examples.md shows parts of them."""

import asyncio
import json
import os
import re
import shutil
import sys
import urllib.error
import urllib.request
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Producer
from patience import LIMIT_S
from programs import running
from service import Service

from kafka_timers.dev import java
from kafka_timers.dev.broker import free_port
from kafka_timers.dev.jars import cache_folder, caches

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
WIRE_PAGE = ROOT / "docs" / "wire-examples.md"
# The words of Go, npm and Cargo where a registry does not answer.
_NO_REGISTRY = re.compile(rb"dial tcp|ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ETIMEDOUT|Could(n't| not) (resolve|connect)")


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
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=LIMIT_S) as answer:
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


def program_of(name: str, elsewhere: str = "") -> str:
    """Return the path of a toolchain's program; skip where there is none."""
    found = shutil.which(name) or shutil.which(name, path=Path(elsewhere).expanduser())
    if found is None:
        pytest.skip(f"there is no {name}")
    return found


async def make(service: Service, *command: str | Path, cwd: Path, **env: str) -> None:
    """Build an example, or part of it; skip where its needs cannot be had."""
    async with example(service, *command, cwd=cwd, **env) as building:
        said, _ = await building.communicate()
    if building.returncode and _NO_REGISTRY.search(said):
        pytest.skip(f"what {command[0]} needs cannot be had")
    assert building.returncode == 0, said.decode()


async def go(service: Service, folder: str, tmp_path: Path) -> list[str]:
    """Build an example in Go, and return the command that runs it."""
    tool = program_of("go", "/usr/local/go/bin")
    await make(service, tool, "build", "-o", tmp_path / "go", ".", cwd=EXAMPLES / folder)
    return [str(tmp_path / "go")]


async def test_a_reminder_of_go_comes_and_another_one_is_taken_back(plain_service: Service, tmp_path: Path) -> None:
    command = await go(plain_service, "reminders_go", tmp_path)

    async def output(*words: str) -> str:
        async with example(plain_service, *command, *words, cwd=tmp_path) as process:
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


# --- the wire in other languages --------------------------------------------------------------------------------------


async def in_go(service: Service, tmp_path: Path) -> list[str]:
    """Return the command of the program in Go."""
    return await go(service, "wire_go", tmp_path)


async def in_java(service: Service, tmp_path: Path) -> list[str]:
    """Compile the program in Java, and return its command."""
    command = java.find()
    javac = command.resolve().with_name("javac")
    if not javac.exists():
        pytest.skip("this Java has no compiler")
    jars = f"{cache_folder()}/*"
    source = EXAMPLES / "wire_java" / "Wire.java"
    quick = "-XX:TieredStopAtLevel=1"
    await make(service, javac, f"-J{quick}", "-Xlint:all", "-Werror", "-cp", jars, "-d", tmp_path, source, cwd=tmp_path)
    return [str(command), quick, "-cp", os.pathsep.join([jars, str(tmp_path)]), "Wire"]


async def in_typescript(service: Service, tmp_path: Path) -> list[str]:
    """Compile the program in TypeScript, and return its command."""
    npm, node = program_of("npm"), program_of("node")
    folder = shutil.copytree(EXAMPLES / "wire_typescript", tmp_path / "typescript")
    quietly = ("--no-audit", "--no-fund", "--no-package-lock", "--prefer-offline")
    await make(service, npm, "install", *quietly, cwd=folder)
    await make(service, folder / "node_modules" / ".bin" / "tsc", cwd=folder)
    return [node, str(folder / "build" / "wire.js")]


async def in_rust(service: Service, tmp_path: Path) -> list[str]:
    """Compile the program in Rust, and return its command; its parts stay in the user's cache."""
    cargo = program_of("cargo", "~/.cargo/bin")
    for name in ("cc", "make"):
        program_of(name)
    # Each copy is newer than the build of the one before: Cargo goes by that.
    folder = caches() / "wire-rust"
    shutil.copytree(EXAMPLES / "wire_rust", folder, dirs_exist_ok=True, copy_function=shutil.copy)
    await make(service, cargo, "build", "--quiet", cwd=folder, CARGO_TARGET_DIR=str(folder / "target"))
    return [str(folder / "target" / "debug" / "wire")]


LANGUAGES = {
    "Go": (in_go, "wire_go/main.go"),
    "Java": (in_java, "wire_java/Wire.java"),
    "TypeScript": (in_typescript, "wire_typescript/wire.ts"),
    "Rust": (in_rust, "wire_rust/src/main.rs"),
}


async def add_aborted(service: Service, timer_id: str) -> None:
    """Write a callback of a transaction that is aborted: readers of committed records never see it."""
    headers = [("timer-id", timer_id.encode()), ("timer-expiry", b"5"), ("timer-request", b"0:0")]
    async with AIOKafkaProducer(bootstrap_servers=service.bootstrap, transactional_id=timer_id) as producer:
        await producer.begin_transaction()
        await producer.send_and_wait("callbacks", b"of an aborted transaction", b"order-7", headers=headers)
        await producer.abort_transaction()


# The first time, Rust compiles Kafka's client in C, which takes minutes.
@pytest.mark.parametrize(
    "language", [pytest.param(name, marks=pytest.mark.chaos if name == "Rust" else ()) for name in LANGUAGES]
)
async def test_a_plain_client_asks_cancels_and_receives_by_the_wire_alone(
    plain_service: Service, tmp_path: Path, language: str
) -> None:
    build: Callable[[Service, Path], Awaitable[list[str]]] = LANGUAGES[language][0]
    command = await build(plain_service, tmp_path)

    async def output(*words: str) -> list[str]:
        # Java decodes the bytes of its arguments by the locale.
        async with example(plain_service, *command, *words, cwd=tmp_path, LC_ALL="C.UTF-8") as process:
            said, _ = await asyncio.wait_for(process.communicate(), 2 * LIMIT_S)
        assert process.returncode == 0, said.decode()
        return said.decode().splitlines()

    rows = json.loads((ROOT / "docs" / "wire-vectors.json").read_text())["partitions"]
    wanted = [(row["id"], count, partition) for row in rows for count, partition in row["partition"].items()]
    words = [word for timer_id, count, _ in wanted for word in (timer_id, count)]
    assert await output(*words) == [str(partition) for *_, partition in wanted]

    name = f"order-7-{language.lower()}"
    await add_aborted(plain_service, name)
    lines = [line for line in await output() if re.match("answer|callback", line)]
    # The callback of the aborted transaction is not among them.
    wanted_lines = [
        r"answer to \d+:\d+: UNKNOWN",
        r"answer to \d+:\d+: CANCELLED",
        rf"callback: pay now, id {name}, token 2, expiry \d+",
    ]
    assert len(lines) == len(wanted_lines), lines
    for line, pattern in zip(lines, wanted_lines, strict=True):
        assert re.fullmatch(pattern, line), lines


def unindented(text: str) -> str:
    """Return *text* without the indentation of its lines, since a part of a program has less."""
    return "\n".join(line.strip() for line in text.splitlines())


def test_the_page_shows_parts_of_the_programs_as_they_stand() -> None:
    page = WIRE_PAGE.read_text()
    for text in (page, (EXAMPLES / "README.md").read_text()):
        assert f"/{cache_folder().name}/*" in text
    for language, (_, path) in LANGUAGES.items():
        program = unindented((EXAMPLES / path).read_text())
        section = re.split(rf"^## {language}$", page, flags=re.MULTILINE)[1].partition("\n## ")[0]
        shown = re.findall(r"^```\w+\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
        assert len(shown) == 4
        for part in map(unindented, shown):
            assert part in program, f"{path} has no more: {part}"


async def test_three_fields_are_enough_in_python(plain_service: Service, tmp_path: Path) -> None:
    [text] = re.findall(r"^```python\n(.*?)^```$", WIRE_PAGE.read_text(), re.MULTILINE | re.DOTALL)
    for old, new in {"127.0.0.1:9092": plain_service.bootstrap, "+ 30": "- 30"}.items():
        assert old in text
        text = text.replace(old, new)
    file = tmp_path / "program.py"
    file.write_text(text)
    await plain_service.create_topic("reminders")
    async with example(plain_service, sys.executable, file, cwd=tmp_path) as process:
        said, _ = await asyncio.wait_for(process.communicate(), LIMIT_S)
    assert (said, process.returncode) == (b"", 0)
    assert [(r.key, r.value) for r in await plain_service.read("reminders", 1)] == [(b"order-7", b"pay now")]
