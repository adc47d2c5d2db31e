"""The content of the images, made as the Dockerfile makes them; compose and chart start commands that exist."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml
from service import Service
from test_chart import SCENARIOS, pods
from test_serve import fires_and_ends
from uv import find_uv_bin

from kafka_timers.cli.program import program
from kafka_timers.core.wire import Future

DEPLOY = Path(__file__).parents[2] / "deploy"


STAGES = {
    stage.split(" AS ")[1].split()[0]: stage
    for stage in re.split(r"^FROM ", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE)[1:]
}


def extras(image: str) -> str:
    """Return what the Dockerfile installs for *image*."""
    [asked] = re.findall(r"^RUN /src/deploy/build.sh /opt/kafka-timers (\S+)$", STAGES[f"build-{image}"], re.MULTILINE)
    return str(asked)


def installed(folder: Path, image: str) -> set[str]:
    """Install as the Dockerfile does, of the files that it takes, and return the names of the installed packages."""
    source = folder.with_name("src")
    for line in re.findall(r"^COPY (.+)$", STAGES["source"], re.MULTILINE):
        *names, into = line.split()
        (target := source / into.removeprefix("/src").lstrip("/")).mkdir(parents=True, exist_ok=True)
        for name in names:
            if (path := DEPLOY.parent / name).is_dir():
                shutil.copytree(path, target, dirs_exist_ok=True)
            else:
                shutil.copy(path, target)
    subprocess.run([source / "deploy/build.sh", folder, extras(image)], check=True)
    shutil.rmtree(source)
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


async def test_the_workers_image_has_all_but_spark_and_serves(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    names = await asyncio.to_thread(installed, tmp_path / "made", "worker")
    assert {"faust-streaming", "rocksdict"} <= names
    assert not {"pip", "pyspark", "pytest"} & names
    await fires_and_ends([str(tmp_path / "made" / "bin" / "kafka-timers")], bootstrap, prefix, tmp_path)


# Faust has no wheel for arm64. Where there is no compiler, it comes without its C code. Spark is Java and Python.
SOURCES = ("faust-streaming", "pyspark")


@pytest.mark.parametrize("platform", ["x86_64", "aarch64"])
@pytest.mark.parametrize("image", ["oscillator", "worker", "lake"])
def test_an_image_needs_no_compiler_on_either_platform(image: str, platform: str) -> None:
    resolve = [find_uv_bin(), "pip", "compile", "--quiet", "--no-header", DEPLOY.parent / "pyproject.toml"]
    resolve += ["--python-version", "3.12", "--python-platform", f"{platform}-manylinux_2_28"]
    resolve += ["--only-binary", ":all:", *(option for name in SOURCES for option in ("--no-binary", name))]
    resolve += [option for extra in extras(image).split(",") for option in ("--extra", extra)]
    done = subprocess.run(resolve, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


async def test_the_lakes_image_lands_by_spark_submit_without_a_repository(service: Service, tmp_path: Path) -> None:
    made = tmp_path / "made"
    assert "pyspark" in await asyncio.to_thread(installed, made, "lake")
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
    users = {name: re.findall(r"^USER (\S+)", stage, re.MULTILINE) for name, stage in STAGES.items()}
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
