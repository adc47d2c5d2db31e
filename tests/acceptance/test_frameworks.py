"""The programs of docs/frameworks.md run as they stand, on a service as `make run` starts it."""

import asyncio
import re
import sys
from asyncio.subprocess import Process
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import aiohttp
import pytest
from aiokafka import AIOKafkaProducer
from brokers import make_topic
from patience import LIMIT_S
from programs import running
from service import Service

from kafka_timers import TimerClient
from kafka_timers.dev.broker import free_port

PAGE = Path(__file__).parents[2] / "docs" / "frameworks.md"


def program(section: str, service: Service, folder: Path, **replaced: str) -> Path:
    """Return the file of the program below the heading *section*, with the address of *service*."""
    [text] = re.findall(rf"^## {section}$.*?^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    for old, new in ({"127.0.0.1:9092": service.bootstrap} | replaced).items():
        assert old in text
        text = text.replace(old, new)
    file = folder / "program.py"
    file.write_text(text)
    return file


def python(*command: str | Path, folder: Path) -> AbstractAsyncContextManager[Process]:
    """Have Python running with *command*."""
    return running(sys.executable, *command, cwd=folder, NO_COLOR="1")


async def reminded(process: Process, count: int) -> list[str]:
    """Return the first *count* lines that say remind."""
    assert process.stdout is not None
    lines, seen = [], []
    try:
        async with asyncio.timeout(LIMIT_S):
            while len(lines) < count:
                line = (await process.stdout.readline()).decode()
                seen.append(line)
                if not line:
                    raise AssertionError("".join(seen))
                if found := re.search("remind .*", line):
                    lines.append(found[0].rstrip())
    except TimeoutError:
        raise AssertionError("".join(seen)) from None
    return lines


[WORDS] = re.findall(r"`python reminders\.py (.*)`", PAGE.read_text())


@pytest.mark.parametrize(("section", "words"), [("Faust", WORDS.split()), ("FastStream", []), ("confluent-kafka", [])])
async def test_a_receiver_gets_committed_callbacks_and_a_record_that_fails_once_comes_again(
    plain_service: Service, tmp_path: Path, section: str, words: list[str]
) -> None:
    topic = f"callbacks-{section.lower()}"
    await make_topic(plain_service.bootstrap, topic, 2)
    async with AIOKafkaProducer(bootstrap_servers=plain_service.bootstrap, transactional_id=topic) as producer:
        await producer.begin_transaction()
        for partition in range(2):
            headers = [("timer-expiry", b"5"), ("timer-request", b"0:%d" % partition)]
            await producer.send_and_wait(topic, b"of an aborted transaction", b"aborted", partition, headers=headers)
        await producer.abort_transaction()
    async with TimerClient(plain_service.bootstrap) as timers:
        await timers.after(0, topic=topic, key="order-7", value=b"fail once")
    file = program(section, plain_service, tmp_path, **{'"callbacks"': f'"{topic}"', '"reminders"': f'"{topic}"'})
    async with python(file, *words, folder=tmp_path) as process:
        assert await reminded(process, 2) == ["remind b'order-7' 0", "remind b'order-7' 1"]


async def test_a_view_of_django_asks_and_cancels_without_asyncio(plain_service: Service, tmp_path: Path) -> None:
    async with python(
        program("Django, Flask, Celery and scripts", plain_service, tmp_path), folder=tmp_path
    ) as process:
        said, _ = await asyncio.wait_for(process.communicate(), LIMIT_S)
    assert (said.decode(), process.returncode) == ('200\n{"paid": true}\n', 0)


async def test_an_application_of_fastapi_has_one_client(plain_service: Service, tmp_path: Path) -> None:
    port = free_port()
    file = program("FastAPI", plain_service, tmp_path, **{"port=8000": f"port={port}"})
    async with python(file, folder=tmp_path), aiohttp.ClientSession() as session, asyncio.timeout(LIMIT_S):
        while True:
            try:
                async with session.post(f"http://127.0.0.1:{port}/orders/7") as answer:
                    assert answer.status == 200
                    assert (await answer.json())["expires"] > 1_700_000_000
                    break
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(0.1)
    async with TimerClient(plain_service.bootstrap) as timers:
        waiting = await timers.get("deadline-7")
    assert waiting is not None
    assert (waiting.topic, waiting.key) == ("callbacks", b"7")
