"""Child processes: how they end, the errors about them, and the ports that they are given."""

import asyncio
import os
import signal
import subprocess
import sys
from collections import deque
from contextlib import suppress
from pathlib import Path

import pytest
from patience import LIMIT_S

from kafka_timers.dev import broker
from kafka_timers.runtime.child import Child

# Says that it is up and then waits for a signal; SIGTERM ends it well.
PATIENT = "import signal; signal.signal(signal.SIGTERM, lambda *_: exit(0)); print('up', flush=True); signal.pause()"
STUBBORN = PATIENT.replace("lambda *_: exit(0)", "signal.SIG_IGN")


async def start(code: str, log: Path) -> Child:
    return await Child.start("child", [sys.executable, "-c", code], log)


def is_up(log: Path) -> bool:
    return log.exists() and "up" in log.read_text()


async def until_up(log: Path) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not is_up(log):  # noqa: ASYNC110  # another process writes it
            await asyncio.sleep(0.01)


async def test_a_child_is_asked_to_end(tmp_path: Path) -> None:
    child = await start(PATIENT, tmp_path / "log")
    await until_up(child.log)
    await child.stop(LIMIT_S)
    assert child.returncode == 0


async def test_a_signal_to_a_child_that_has_just_ended_leaves_its_exit_code(tmp_path: Path) -> None:
    for _ in range(20):
        child = await start("exit(3)", tmp_path / "log")
        # It has ended, and its exit code may not have been collected.
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222  # the loop must not see it first
        child.resume()
        assert await child.wait() == 3


async def test_a_child_that_does_not_listen_is_killed(tmp_path: Path) -> None:
    child = await start(STUBBORN, tmp_path / "log")
    await until_up(child.log)
    await child.stop(limit_s=0.1)
    assert child.returncode == -signal.SIGKILL


async def test_stopping_twice_is_no_error(tmp_path: Path) -> None:
    child = await start("", tmp_path / "log")
    await child.wait()
    await child.stop(LIMIT_S)
    await child.stop(LIMIT_S)
    assert child.returncode == 0


async def test_the_end_is_told_with_the_last_lines_of_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    child = await start("print(*range(100), sep='\\n'); exit(3)", log)
    told = await child.obituary()
    assert told.startswith(f"child ended with exit code 3; the end of {log}:\n")
    assert told.endswith("\n98\n99")
    assert "\n50\n" not in told


async def test_lines_of_an_earlier_run_are_not_told(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("of an earlier run\n")
    child = await start("exit(3)", log)
    assert await child.obituary() == f"child ended with exit code 3; it wrote nothing to {log}"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ties a process to its parent")
async def test_a_child_dies_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    parent_code = f"""
import asyncio, sys
from pathlib import Path
from kafka_timers.runtime.child import Child

async def main():
    child = await Child.start("child", [sys.executable, "-c", {STUBBORN!r}], Path({str(tmp_path / "log")!r}))
    print(child.pid, flush=True)
    await child.wait()

asyncio.run(main())
"""
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", parent_code, stdout=subprocess.PIPE)
    assert parent.stdout
    # Open until the test ends, so that its number cannot pass to another process meanwhile.
    child = os.pidfd_open(int(await parent.stdout.readline()))
    ended = asyncio.Event()
    try:
        await until_up(tmp_path / "log")
        asyncio.get_running_loop().add_reader(child, ended.set)
        assert not ended.is_set()
        parent.kill()
        await parent.wait()
        await asyncio.wait_for(ended.wait(), 10)
    finally:
        asyncio.get_running_loop().remove_reader(child)
        if not ended.is_set():
            signal.pidfd_send_signal(child, signal.SIGKILL)
        os.close(child)


def test_a_port_is_not_given_to_a_second_program_before_the_first_one_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "PORTS", broker.PORTS[:20])
    monkeypatch.setattr(broker, "_returned", deque(maxlen=10))
    given = [broker.free_port() for _ in range(10)]
    assert len(set(given)) == 10
