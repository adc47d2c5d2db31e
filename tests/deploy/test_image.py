"""The content of the images, made as the Dockerfile makes them; compose and chart start commands that exist."""

import asyncio
import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml
from service import Service
from test_chart import SCENARIOS, pods

from kafka_timers.cli.program import program
from kafka_timers.core.wire import Future

DEPLOY = Path(__file__).parents[2] / "deploy"


def installed(folder: Path, extras: str) -> set[str]:
    """Install as the Dockerfile does, and return the names of the installed packages."""
    subprocess.run([DEPLOY / "build.sh", folder, extras], check=True)
    told = "from importlib.metadata import distributions; print(*{each.name.lower() for each in distributions()})"
    found = subprocess.run([folder / "bin" / "python", "-c", told], check=True, capture_output=True, text=True)
    return set(found.stdout.split())


def test_the_oscillators_image_has_little_in_it(tmp_path: Path) -> None:
    names = installed(tmp_path / "made", "oscillator")
    assert {"kafka-timers", "aiokafka", "protobuf"} <= names
    assert not {"pip", "faust-streaming", "rocksdict", "pyspark", "uvloop"} & names
    asked = [tmp_path / "made" / "bin" / "kafka-timers", "oscillator", "--help"]
    assert "--replica" in subprocess.run(asked, check=True, capture_output=True, text=True).stdout
    # Help imports no code that runs a process.
    subprocess.run([tmp_path / "made" / "bin" / "python", "-c", "import kafka_timers_oscillator.main"], check=True)


def test_the_workers_image_has_all_but_spark(tmp_path: Path) -> None:
    names = installed(tmp_path / "made", "worker,oscillator,console")
    assert {"faust-streaming", "rocksdict"} <= names
    assert not {"pip", "pyspark", "pytest"} & names
    for command in ("worker", "oscillator", "console", "topics", "status"):
        subprocess.run(
            [tmp_path / "made" / "bin" / "kafka-timers", command, "--help"], check=True, stdout=subprocess.DEVNULL
        )
    runs = "import kafka_timers.console.run, kafka_timers.processes.worker, kafka_timers_oscillator.main"
    subprocess.run([tmp_path / "made" / "bin" / "python", "-c", runs], check=True)


async def test_the_lakes_image_lands_by_spark_submit_without_a_repository(service: Service, tmp_path: Path) -> None:
    made = tmp_path / "made"
    assert "pyspark" in await asyncio.to_thread(installed, made, "worker,lake")
    await service.request(int(time.time()) + 60, Future(callBackTopic=service.callbacks, callBack=b"v"))
    where = ["--bootstrap", service.bootstrap, "--topic-prefix", service.prefix, "--lake", str(tmp_path / "lake")]
    # A folder of jars that is empty and stays so: nothing is fetched.
    (home := tmp_path / "home").mkdir()
    env = os.environ | {
        "KAFKA_TIMERS_PACKAGES": "none",
        "HOME": str(home),
        "PATH": f"{made / 'bin'}:{os.environ['PATH']}",
    }
    command = ["spark-submit", "--master", "local[2]", str(made / "run.py"), "lake"]
    for arguments in (["land", "--once"], ["sql", "SELECT count(*) AS landed FROM requests", "--json"]):
        job = await asyncio.create_subprocess_exec(
            *command, *arguments, *where, env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, errors = await job.communicate()
        assert job.returncode == 0, errors.decode()[-3_000:]
    assert json.loads(out) == [{"landed": 1}]
    assert not list(home.rglob("*.jar"))


def test_images_run_as_nobody_special() -> None:
    stages = re.split(r"^FROM ", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE)
    users = {stage.split(" AS ")[1].split()[0]: re.findall(r"^USER (\S+)", stage, re.MULTILINE) for stage in stages[1:]}
    assert users["base"][-1] == users["lake"][-1] == "10001:10001"
    assert users["oscillator"] == users["worker"] == []


def commands() -> Iterator[tuple[str, list[str]]]:
    """Yield the file that starts something, and the arguments of kafka-timers."""
    for name, service in yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"].items():
        if service.get("image") == "kafka-timers":
            yield name, service["command"]
    for scenario in SCENARIOS:
        for name, pod in pods(scenario):
            [container] = pod["spec"]["containers"]
            arguments = container["args"]
            if "command" in container:
                assert container["command"] == ["spark-submit"]
                arguments = arguments[arguments.index("/opt/kafka-timers/run.py") + 1 :]
            yield f"{scenario} {name}", arguments


@pytest.mark.parametrize(("who", "arguments"), [*commands()])
def test_every_start_of_a_process_gives_options_that_it_has(who: str, arguments: list[str]) -> None:
    command: click.Command = program
    context = None
    while isinstance(command, click.Group):
        name, *arguments = arguments
        found = command.get_command(click.Context(command), name)
        assert found, who
        command = found
    context = command.make_context(command.name, list(arguments))
    assert context.params
