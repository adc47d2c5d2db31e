"""
The README's first screen and the pages that teach run as they stand: their programs and commands, in their order, with
the output of the page.
"""

import asyncio
import re
import shlex
import sys
from asyncio.subprocess import Process
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path

from patience import LIMIT_S
from programs import running
from service import Service

from kafka_timers.serve.dev import CALLBACK_TOPIC
from kafka_timers.serve.dev_settings import DevSettings
from kafka_timers.settings import WorkerSettings, env_name

README = (Path(__file__).parents[2] / "README.md").read_text()
DOCS = Path(__file__).parents[2] / "docs"
# The fixtures stand for these lines.
_ENVIRONMENT = ("make run", "source .venv/bin/activate", "export KAFKA_TIMERS_BOOTSTRAP=kafka:9092")


class Page:
    """
    A page, its programs as files in *folder*, with the address of *service*.

    Attributes:
        commands: in the order of the page.
        outputs: the outputs of these as the page shows them, each a block.
    """

    def __init__(self, name: str, service: Service, folder: Path, **replaced: str) -> None:
        self._service, self._folder = service, folder
        text = (DOCS / f"{name}.md").read_text()
        for file, code in re.findall(r"[Ss]ave\s+this\s+as\s+`([\w.]+)`.*?^```python\n(.*?)^```$", text, re.M | re.S):
            for old, new in ({WorkerSettings.bootstrap: service.bootstrap} | replaced).items():
                code = code.replace(old, new)
            (folder / file).write_text(code)
        blocks = re.findall(r"^( *)```(\w+)\n(.*?)^ *```$", text, re.M | re.S)
        assert len([kind for _, kind, _ in blocks if kind == "python"]) == len(list(folder.glob("*.py")))
        self.outputs = [code for _, kind, code in blocks if kind == "text"]
        lines = [line.strip() for _, kind, code in blocks if kind == "console" for line in code.splitlines()]
        self.commands = [line for line in lines if line not in _ENVIRONMENT]

    def start(self, command: str) -> AbstractAsyncContextManager[Process]:
        """Have one of the page's commands running."""
        assert command in self.commands
        words = shlex.split(command)
        program = ["-m", "kafka_timers", *words[1:]] if words[0] == "kafka-timers" else words[1:]
        # The workers of a test are in a group of its own.
        env = {env_name("bootstrap"): self._service.bootstrap, env_name("group"): "workers", "PYTHONUNBUFFERED": "1"}
        return running(sys.executable, *program, cwd=self._folder, COLUMNS="400", PYTHONPATH=_python_path(), **env)

    async def run(self, command: str, code: int = 0) -> str:
        """Return the output of one of the page's commands."""
        async with self.start(command) as process:
            said, _ = await asyncio.wait_for(process.communicate(), LIMIT_S)
        assert process.returncode == code, said.decode()
        return said.decode()


def _python_path() -> str:
    """Return where this process finds the packages, for one that runs in another folder."""
    return ":".join(path for path in sys.path if path)


async def lines(process: Process, *wanted: str) -> None:
    """Wait until *process* has printed all lines that match one of *wanted*, in any order."""
    assert process.stdout is not None
    left, seen = list(wanted), []
    try:
        async with asyncio.timeout(LIMIT_S):
            while left and (line := (await process.stdout.readline()).decode()):
                seen.append(line)
                found = [pattern for pattern in left if re.fullmatch(pattern, line.rstrip())]
                for pattern in found[:1]:
                    left.remove(pattern)
    except TimeoutError:
        pass
    assert not left, f"no line {left}: {''.join(seen)}"


def like(shown: str) -> Sequence[str]:
    """Return patterns for the lines of a block, whose milliseconds and seconds may be others."""
    escaped = (re.escape(line).replace(r"\ ", " ") for line in shown.splitlines())
    return [re.sub(r"(?<= )\d+(?= ms| *$)", r"\\d+", line) for line in escaped]


# --- the README -------------------------------------------------------------------------------------------------------


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def shown(line: str) -> list[str]:
    """Return the words behind the program's name in *line*, which the README shows."""
    assert line in [shown for block in blocks("console") for shown in block.splitlines()]
    return shlex.split(line)[1:]


async def test_the_code_and_the_commands_of_the_readme_show_a_callback_in_its_second(
    plain_service: Service, tmp_path: Path
) -> None:
    """On a service as `make run` starts it; only its address differs. The first test here: others leave a schedule."""
    assert (plain_service.callbacks, plain_service.partitions) == (CALLBACK_TOPIC, DevSettings.partitions)
    # The workers of a test are in a group of its own.
    env = {env_name("bootstrap"): plain_service.bootstrap, env_name("group"): "workers", "PYTHONUNBUFFERED": "1"}

    def start(*command: str) -> AbstractAsyncContextManager[Process]:
        return running(sys.executable, *command, cwd=tmp_path, COLUMNS="80", PYTHONPATH=_python_path(), **env)

    async def output(process: Process) -> str:
        said, _ = await asyncio.wait_for(process.communicate(), LIMIT_S)
        assert process.returncode == 0, said.decode()
        return said.decode()

    [code] = blocks("python")
    assert WorkerSettings.bootstrap in code
    async with start("-c", code.replace(WorkerSettings.bootstrap, plain_service.bootstrap)) as asked:
        assert await output(asked) == "CANCELLED\n"

    program = ("-m", "kafka_timers")
    async with start(*program, *shown("kafka-timers watch callbacks"), "--count", "1") as watching:
        await lines(watching, "watching callbacks.*")
        send = shown('kafka-timers send --in 3s --topic callbacks --key order-7 --value "pay now"')
        async with start(*program, *send) as sending:
            assert "fires at" in await output(sending)
        moment, late = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{3})?", r"(\d+ ms|\d+\.\d s) late"
        line = rf"{moment} +{late} order-7 +pay now\n +timer-request=\d+:\d+\n"
        assert re.fullmatch(line, await output(watching))
    async with start(*program, *shown("kafka-timers status")) as asking:
        assert "sealed up to" in await output(asking)


# --- the pages --------------------------------------------------------------------------------------------------------


async def test_the_first_timer_fires_and_the_next_one_is_cancelled(plain_service: Service, tmp_path: Path) -> None:
    page = Page("first-timer", plain_service, tmp_path)
    assert page.commands == [
        *("python receive.py", "python ask.py", "python cancel.py"),
        *("kafka-timers status", "kafka-timers find deadline-8"),
    ]
    _, waits, fires, callback, cancelled = page.outputs
    async with page.start("python receive.py") as receiver:
        await lines(receiver, *like(waits))
        asked = await page.run("python ask.py")
        assert re.fullmatch("".join(like(fires)), asked.rstrip())
        await lines(receiver, *like(callback))
    assert await page.run("python cancel.py") == cancelled
    assert "all is well" in await page.run("kafka-timers status")
    assert "cancelled" in await page.run("kafka-timers find deadline-8")


async def test_an_order_that_is_paid_does_not_expire(plain_service: Service, tmp_path: Path) -> None:
    page = Page("cancel-on-payment", plain_service, tmp_path, **{"TIME_TO_PAY_S = 1800": "TIME_TO_PAY_S = 4"})
    assert page.commands == ["python shop.py", "python -m pytest test_shop.py"]
    assert await page.run("python shop.py") == page.outputs[0]


async def test_the_shop_is_tested_without_waiting(plain_service: Service, tmp_path: Path) -> None:
    page = Page("cancel-on-payment", plain_service, tmp_path)
    # The warning of pytest-asyncio about a setting that only this repository's own tests have.
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    assert "2 passed" in await page.run("python -m pytest test_shop.py")


async def test_an_order_that_fails_comes_again_and_is_given_up_in_the_end(
    plain_service: Service, tmp_path: Path
) -> None:
    page = Page("retry-with-backoff", plain_service, tmp_path, **{"first=1,": "first=0.2,"})
    assert page.commands[:3] == ["python topics.py", "python worker.py", "python produce.py"]
    await page.run("python topics.py")
    async with AsyncExitStack() as stack:
        worker = await stack.enter_async_context(page.start("python worker.py"))
        await lines(worker, "ready")
        await page.run("python produce.py")
        await lines(worker, *map(re.escape, page.outputs[0].splitlines()), *[r"b'8' comes again"] * 3, "b'8' given up")
    assert "the mail server is down" in await page.run(page.commands[3])


async def test_the_commands_of_the_checklist_find_a_service_that_is_well(
    plain_service: Service, tmp_path: Path
) -> None:
    page = Page("production-checklist", plain_service, tmp_path)
    said = {command: await page.run(command) for command in page.commands}
    assert [command.split()[1] for command in said] == [
        *("capacity", "topics", "topics", "acls", "rejected", "send", "status"),
    ]
    assert "all topics are as they should be" in said["kafka-timers topics check"]
    assert "all is well" in said["kafka-timers status"]


async def test_a_schedule_comes_again_and_again_until_it_is_deleted(plain_service: Service, tmp_path: Path) -> None:
    page = Page("recurring", plain_service, tmp_path)
    put, watch, upcoming, listed, shown, pause, resume, skip, change, run, delete, program, _ = page.commands
    own = (put, upcoming, listed, shown, pause, resume, skip, change, run, delete)
    assert [command.split()[2] for command in own] == [
        *("put", "next", "list", "show", "pause", "resume", "skip", "change", "run", "delete"),
    ]
    told, callbacks, refused = page.outputs
    _, callback, headers = map(_at_any_moment, callbacks.splitlines())
    async with page.start(watch) as watching:
        await lines(watching, "watching callbacks; Ctrl-C ends")
        same = told.partition("next run")[0]
        assert (await page.run(put)).startswith(same)
        moments = (await page.run(upcoming)).splitlines()
        assert len([moment for moment in moments if re.fullmatch(r"\S+ \d\d:\d\d:\d0\+0\d:00  CES?T", moment)]) == 5
        assert "*/10 * * * * * in Europe/Paris" in await page.run(listed)
        assert (await page.run(shown)).startswith(same)
        await lines(watching, callback, f"{headers} timer-schedule-run=1")
        assert re.search(r"^next run +paused: until the new receiver is there$", await page.run(pause), re.M)
        assert re.search(r"^next run +2", await page.run(resume), re.M)
        assert re.search(r"^leaves out (2.*)\n(.*\n)+skips +\1$", await page.run(skip), re.M)
        assert re.search(r"^skips +2", await page.run(change), re.M)
        assert "fires at once, timer id hello@" in await page.run(run)
        await lines(watching, headers)
        assert await page.run(delete) == "deleted hello\n"
    said = await page.run(program)
    assert "hello-2 runs */10 * * * * * in Europe/Paris\nasked for hello-2@" in said
    assert refused.startswith("cron.zone: 'Europe/Pariss' is no time zone of tzdata ")


def _at_any_moment(shown: str) -> str:
    """Return a pattern for a line of `watch` that may be of another moment, and is shown in full."""
    moment = r"\\d{4}-\\d\\d-\\d\\d[ T]\\d\\d:\\d\\d:\\d\\d(\\.\\d+)?"
    pattern = re.escape(shown.rstrip("…")).replace(r"\ ", " ").replace(r"\-", "-")
    pattern = re.sub(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d", moment, pattern)
    pattern = re.sub(r" +\d+ ms late", r" +[\\d.]+ m?s late", pattern)
    pattern = re.sub(r"timer-request=\d+:\d+", r"timer-request=\\d+:\\d+", pattern)
    return pattern + (r"\S+" if shown.endswith("…") else "")
