"""The wheel in environments with nothing else: each command works there, or names the extra to install."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from pathlib import Path
from typing import NamedTuple

import click
import pytest
from programs import running
from uv import find_uv_bin

import kafka_timers
from kafka_timers.cli.program import program
from kafka_timers.dev.broker import free_port
from kafka_timers.dev.java import find as find_java

ROOT = Path(__file__).parents[2]
FORKED = Path(__file__).with_name("forked.py")

NOBODY = "127.0.0.1:1"
NO_KAFKA = f"Error: no Kafka answers at {NOBODY}"
NO_JAVA = "Error: Spark needs Java 17 or later, and none was found"


class Call(NamedTuple):
    """
    A use of a command.

    Attributes:
        options: the words behind the command's name.
        extra: the extra that it needs beside those of every command.
        code: how it ends; None if it runs until it is asked to end.
        says: words of its output, where nothing is missing.
        suffices: another extra with all that it needs.
    """

    options: str = ""
    extra: str = ""
    code: int | None = 1
    says: str = NO_KAFKA
    suffices: str = ""


CALLS = {
    "acls": Call(code=0, says="kafka-acls.sh"),
    "ahead": Call(extra="cli"),
    "cancel": Call("some-id"),
    "capacity": Call("--rate 1 --delay 1d --payload 9", code=0, says="partitions"),
    "console": Call("--port {port}", "console", None, "serving http://"),
    "dev": Call("--folder .", "dev", says="holds things that are not of kafka-timers dev"),
    "find": Call("some-id"),
    "fire-now": Call("some-id"),
    "ask-again": Call("some-id --in 5s"),
    "lake audit": Call(extra="lake", says=NO_JAVA),
    "lake cancel": Call("--where true --yes", "lake", says=NO_JAVA),
    "lake expire": Call("--keep-days 1", "lake", says=NO_JAVA),
    "lake forecast": Call(extra="lake", says=NO_JAVA),
    "lake forget": Call("--id some-id --yes", "lake", says=NO_JAVA),
    "lake land": Call("--once", "lake", says=NO_JAVA),
    "lake move": Call("--where true --by 5 --yes", "lake", says=NO_JAVA),
    "lake optimize": Call(extra="lake", says=NO_JAVA),
    "lake promote": Call("--once", "lake", says=NO_JAVA),
    "lake publish-chain": Call("--to published", "lake", says=NO_JAVA),
    "lake replay": Call(extra="lake", says=NO_JAVA),
    "lake sql": Call("'select 1 as one'", "lake", says=NO_JAVA),
    "list": Call(extra="cli"),
    "log another": Call("--yes"),
    "log same": Call("--yes"),
    "log show": Call(),
    "move": Call("some-id --in 3s"),
    "next": Call(extra="cli"),
    "oscillator": Call("--port {port}", "oscillator", None, f"no broker at {NOBODY}"),
    "planner": Call("--port {port}", "worker", None, f"no Kafka answers at {NOBODY}", suffices="lake"),
    "redrive": Call("timer-rejected:0:0"),
    "rejected": Call(),
    "schedule change": Call("some-id --note new", "schedules"),
    "schedule delete": Call("some-id", "schedules"),
    "schedule list": Call(extra="schedules"),
    "schedule next": Call("some-id", "schedules"),
    "schedule pause": Call("some-id", "schedules"),
    "schedule put": Call("some-id --every 5s --topic callbacks", "schedules"),
    "schedule resume": Call("some-id", "schedules"),
    "schedule run": Call("some-id", "schedules"),
    "schedule show": Call("some-id", "schedules"),
    "schedule skip": Call("some-id", "schedules"),
    "send": Call("--in 3s --topic callbacks"),
    "serve": Call("--port {port}", "serve", None, f"no Kafka answers at {NOBODY}"),
    "status": Call(),
    "topics check": Call(),
    "topics create": Call(),
    "watch": Call("callbacks"),
    "worker": Call("--port {port}", "worker", None, f"no Kafka answers at {NOBODY}"),
}

# The commands that work with each extra. Two others are for developers, whose tests have them already.
WORKING = {
    "": set[str](),
    "cli": {"schedules", "cli"},
    "oscillator": {"cli", "oscillator"},
    "console": {"schedules", "cli", "console"},
    "worker": {"schedules", "cli", "oscillator", "worker"},
    "serve": {"schedules", "cli", "oscillator", "console", "worker", "serve"},
    "dev": {"schedules", "cli", "oscillator", "console", "worker", "serve", "dev"},
    "lake": {"schedules", "cli", "oscillator", "lake"},
}
DEVELOPERS = {"test", "test-deploy"}
# They are for programs, or for logins, and have no command line.
LIBRARIES = {"schedules", "msk", "google"}

PUBLIC = ["kafka_timers", "kafka_timers.faust", "kafka_timers.sync", "kafka_timers.testing"]
PACKAGES = {
    "cli": ["kafka_timers.cli", "kafka_timers.operate"],
    "oscillator": ["kafka_timers_oscillator"],
    "console": ["kafka_timers.console"],
    "schedules": ["kafka_timers.client"],
    "worker": ["kafka_timers.worker", "kafka_timers.adapters", "kafka_timers.planner"],
    "serve": ["kafka_timers.processes", "kafka_timers.serve"],
    "dev": ["kafka_timers.dev"],
    "lake": ["kafka_timers.lake"],
}
# Imports a package and all below it.
IMPORT_ALL = """
import importlib, pkgutil, sys
for name in sys.argv[1:]:
    for module in pkgutil.walk_packages(importlib.import_module(name).__path__, name + "."):
        importlib.import_module(module.name)
"""


def paths(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, bool]]:
    """Yield the words by which *command* and all below it are called, and whether others are below them."""
    context = click.Context(command)
    below = command.list_commands(context) if isinstance(command, click.Group) else []
    yield " ".join(path), bool(below)
    for name in below:
        assert isinstance(command, click.Group)
        one = command.get_command(context, name)
        assert one is not None
        yield from paths(one, (*path, name))


def uv(*arguments: str | Path) -> None:
    done = subprocess.run(
        [find_uv_bin(), *arguments], env=os.environ | {"UV_NO_PROGRESS": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A wheel, and the archive of sources that it was built from: those of `make release`, if it asks."""
    if "RELEASE" in os.environ:
        folder = Path(os.environ["RELEASE"]).resolve()
    else:
        folder = tmp_path_factory.mktemp("built")
        subprocess.run([sys.executable, ROOT / "deploy/release.py", folder, "--packages"], check=True)
    (wheel,), (sources,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sources


class Environment:
    """A Python that has kafka-timers with one extra, and its libraries; it finds no Java."""

    def __init__(self, folder: Path, wheel: Path, extra: str) -> None:
        self.extra, self.working = extra, WORKING[extra]
        self.bin, self.cwd = folder / "venv" / "bin", folder / "cwd"
        self.cwd.mkdir()
        # `dev` leaves a folder alone that holds things of others.
        (self.cwd / "thing").touch()
        # The sources are on no path.
        self.env = {"PYTHONPATH": "", "PATH": str(self.bin), "JAVA_HOME": "", "KAFKA_TIMERS_BOOTSTRAP": NOBODY}
        uv("venv", "--quiet", "--python", sys.executable, folder / "venv")
        python = ("--quiet", "--python", self.bin / "python")
        uv("pip", "install", *python, f"kafka-timers[{extra}] @ {wheel.as_uri()}" if extra else wheel)
        uv("pip", "check", *python)

    def run(self, *command: str | Path, given: str = "", **env: str) -> str:
        """Return the output of *command* in this environment, which ends well and has nothing to warn of."""
        done = subprocess.run(
            [self.bin / command[0], *command[1:]],
            input=given,
            env=os.environ | self.env | env,
            cwd=self.cwd,
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    def outcomes(self, calls: dict[str, list[str]]) -> dict[str, tuple[int, str, str]]:
        """Return of each call of the program its exit code, and the text of its two outputs."""
        told = json.loads(self.run("python", FORKED, given=json.dumps(list(calls.values()))))
        return {path: (code, out, err) for path, (code, out, err) in zip(calls, told, strict=True)}

    async def runs_until_asked_to_end(self, arguments: list[str], says: str) -> None:
        """Start the program, wait until it has written *says*, and have it end."""
        async with running(self.bin / "kafka-timers", *arguments, cwd=self.cwd, **self.env) as process:
            assert process.stdout is not None
            written = b""
            while says.encode() not in written:
                line = await process.stdout.readline()
                assert line, written.decode()
                written += line
            process.terminate()
            written += await process.stdout.read()
            assert await process.wait() == 0, written.decode()
            assert b"Traceback" not in written, written.decode()

    def lacks(self, path: str) -> str | None:
        """Return a pattern of the line that the command at *path* ends with where its extra is missing."""
        first, needed, suffices = path.split()[0], CALLS[path].extra, CALLS[path].suffices
        if not self.extra:
            # A user who installs this extra has all that the command needs.
            advised = first if first in WORKING else "cli"
            return rf"Error: the command line needs click: pip install 'kafka-timers\[{advised}\]'\n"
        if needed and self.working.isdisjoint({needed, suffices}):
            return rf"Error: \w+ is not installed: pip install 'kafka-timers\[{needed}\]'\n"
        return None


@pytest.fixture(
    params=[pytest.param(name, marks=[pytest.mark.chaos] * (name not in ("", "worker"))) for name in WORKING]
)
def environment(built: tuple[Path, Path], tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Environment]:
    """An environment of each extra. `make test` tries a client and a worker, and `make test-wheel` all of them."""
    yield Environment(tmp_path, built[0], request.param)
    shutil.rmtree(tmp_path / "venv")


async def test_each_command_works_or_names_the_extra_to_install(environment: Environment) -> None:
    packages = [name for part in sorted(environment.working) for name in PACKAGES[part]]
    environment.run("python", "-c", f"import {', '.join(PUBLIC)}\n{IMPORT_ALL}", *packages)

    port = free_port()
    calls = {path: [*path.split(), *shlex.split(call.options.format(port=port))] for path, call in CALLS.items()}
    goes_on = [path for path, call in CALLS.items() if call.code is None and not environment.lacks(path)]
    helps = {f"{path} --help".lstrip(): [*path.split(), "--help"] for path, _ in paths(program)}
    outcomes = environment.outcomes({path: calls[path] for path in CALLS if path not in goes_on} | helps)
    for path in helps:
        code, out, err = outcomes.pop(path)
        if environment.extra:
            assert (code, err) == (0, ""), path
            assert out.startswith(f"Usage: kafka-timers {path.removesuffix('--help')}"), path
        else:
            assert (code, out, err.count("\n")) == (1, "", 1), path
    for path, (code, out, err) in outcomes.items():
        told = f"{path}: {code}\n{out}\n{err}"
        if lacks := environment.lacks(path):
            assert (code, out) == (1, ""), told
            assert re.fullmatch(lacks, err), told
        else:
            assert code == CALLS[path].code, told
            assert CALLS[path].says in (err if code else out), told
            assert err.count("\n") == bool(code), told
    if environment.extra:
        told = environment.run("kafka-timers", "--version")
        assert told == f"kafka-timers, version {kafka_timers.__version__}\n"
    for path in goes_on:
        await environment.runs_until_asked_to_end(calls[path], CALLS[path].says)
    if "lake" in environment.working:
        # With a Java.
        env = {"JAVA_HOME": str(find_java().resolve().parents[1]), "PATH": os.environ["PATH"]}
        answer = environment.run("kafka-timers", "lake", "sql", "select 1 as one", "--json", **env)
        assert json.loads(answer) == [{"one": 1}]


def test_every_command_and_every_extra_is_tried() -> None:
    assert set(CALLS) == {path for path, has_more in paths(program) if not has_more}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras) == set(WORKING) - {""} | DEVELOPERS | LIBRARIES


def files_below(folder: Path) -> set[str]:
    """Return the files below *folder*, without Python's caches, as they lie in its parent."""
    return {
        str(path.relative_to(folder.parent))
        for path in folder.rglob("*")
        if path.is_file() and path.parent.name != "__pycache__"
    }


def test_the_wheel_has_both_packages_whole_and_nothing_else(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[0]) as wheel:
        names = {name for name in wheel.namelist() if not name.endswith("/")}
        (about,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        metadata = message_from_bytes(wheel.read(about))
    packages = files_below(ROOT / "app/kafka_timers") | files_below(ROOT / "oscillator/kafka_timers_oscillator")
    assert {"kafka_timers/py.typed", "kafka_timers_oscillator/py.typed"} < packages
    assert {name for name in names if ".dist-info/" not in name} == packages
    assert metadata["Version"] == kafka_timers.__version__
    assert set(metadata.get_all("Provides-Extra", [])) == set(WORKING) - {""} | DEVELOPERS | LIBRARIES
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])


def test_the_sources_have_all_files_that_the_targets_of_make_need(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[1]) as sources:
        names = {member.name.partition("/")[2] for member in sources if member.isfile()}
    wanted = set().union(*(files_below(ROOT / name) for name in ("deploy", "docs", "examples", "proto", "tests")))
    # Files that others left behind in a checkout are in no archive.
    wanted &= tracked() or wanted
    assert wanted <= names
    assert {"Makefile", "pyproject.toml", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE"} <= names
    assert {name.partition("/")[0] for name in names} == {
        *("app", "deploy", "docs", "examples", "oscillator", "proto", "tests"),
        *(".gitignore", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "PKG-INFO", "README.md"),
        *("SECURITY.md", "pyproject.toml"),
    }


def tracked() -> set[str]:
    """Return the files of the checkout; none where this is no checkout."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    return set(listed.stdout.splitlines())
