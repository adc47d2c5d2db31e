"""The commands of the README's first screen work as they stand, on a service as `make run` starts it."""

import asyncio
import re
import shlex
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from patience import LIMIT_S
from service import Service

from kafka_timers.dev.dev_settings import DevSettings
from kafka_timers.dev.instance import CALLBACK_TOPIC
from kafka_timers.settings import WorkerSettings, env_name

README = (Path(__file__).parents[2] / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def shown(line: str) -> str:
    """Return *line* if the README shows it."""
    assert line in [shown for block in blocks("console") for shown in block.splitlines()]
    return line


@pytest.fixture
async def address(start_kafka: Callable, tmp_path: Path) -> AsyncIterator[str]:
    """Where a service runs whose topics have the names that the README has; only its address differs."""
    kafka = await start_kafka()
    async with Service(kafka.bootstrap, "", tmp_path, DevSettings.partitions) as service:
        assert service.callbacks == CALLBACK_TOPIC
        await service.start("oscillator")
        worker = await service.worker()
        await worker.until("/readyz", lambda status, _: status == 200)
        yield kafka.bootstrap


async def start(*command: str, address: str) -> Process:
    # The workers of a test are in a group of its own.
    env = {env_name("bootstrap"): address, env_name("group"): "workers", "PYTHONUNBUFFERED": "1", "COLUMNS": "80"}
    return await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, env=env)


async def output(process: Process) -> str:
    """Return the output of *process*; it ends well."""
    async with asyncio.timeout(LIMIT_S):
        told = (await process.communicate())[0].decode()
    assert process.returncode == 0, told
    return told


async def test_the_code_and_the_commands_of_the_readme_show_a_callback_in_its_second(address: str) -> None:
    # One test, because the service with its own Kafka takes longer to start than all of it.
    [code] = blocks("python")
    assert WorkerSettings.bootstrap in code
    code = code.replace(WorkerSettings.bootstrap, address)
    told = await output(await start(sys.executable, "-c", code, address=address))
    second, callback = re.fullmatch(r"fires at second (\d+)\n(.*)\n", told).groups()
    assert callback.startswith("b'order-7' b'pay now' (")
    assert f"('timer-expiry', b'{second}')" in callback

    program = [sys.executable, "-m"]
    watch = [*program, *shlex.split(shown("kafka-timers watch callbacks").replace("-", "_", 1)), "--count", "1"]
    watching = await start(*watch, address=address)
    async with asyncio.timeout(LIMIT_S):
        assert (await watching.stdout.readline()).startswith(b"watching callbacks")
    send = shown('kafka-timers send --in 3s --topic callbacks --key order-7 --value "pay now"').replace("-", "_", 1)
    assert "fires at" in await output(await start(*program, *shlex.split(send), address=address))
    moment, late = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{3})?", r"(\d+ ms|\d+\.\d s) late"
    line = rf"{moment} +{late} order-7 +pay now +\n +timer-request=\d+:\d+\n"
    assert re.fullmatch(line, await output(watching))
    status = shown("kafka-timers status").replace("-", "_", 1)
    assert "sealed up to" in await output(await start(*program, *shlex.split(status), address=address))
