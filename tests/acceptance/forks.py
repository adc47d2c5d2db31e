"""
Processes of `kafka-timers` that start at once: copies of one that has all modules imported.

Python takes a second of CPU to import a worker, and the tests start some hundreds. This is a program too, which forks:
it reads requests as lines of JSON, answers with the process ids, and later with the exit codes.
"""

import asyncio
import atexit
import ctypes
import gc
import importlib
import io
import json
import os
import pkgutil
import random
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from kafka_timers.runtime.child import Child

# Not for a process of the service, or heavy.
_LEFT_OUT = ("dev", "faust", "lake", "serve", "testing")


class Forked:
    """A process as `Child` needs it."""

    def __init__(self, pid: int, ended: "Future[int]") -> None:
        self.pid = pid
        self._ended = ended

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._ended.result() if self._ended.done() else None

    async def wait(self) -> int:
        """Wait for the end and return the exit code."""
        return await asyncio.wrap_future(self._ended)


def _future() -> "Future[Any]":
    """Return a future that is not cancelled by who waits for it."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future


class Forks:
    """The program that forks, as others use it; it starts with the first process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: list[Future[Forked]] = []
        self._ended: dict[int, Future[int]] = {}
        self._program: subprocess.Popen[bytes] | None = None

    def _started(self) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        program = subprocess.Popen([sys.executable, __file__], stdin=pipe, stdout=pipe, start_new_session=True)
        assert program.stdout
        threading.Thread(target=self._listen, args=[program.stdout], daemon=True).start()

        def end() -> None:
            with program:
                program.kill()

        atexit.register(end)
        return program

    def _listen(self, answers: Iterable[bytes]) -> None:
        for line in answers:
            pid, code = json.loads(line)
            with self._lock:
                if code is None:
                    self._ended[pid] = _future()
                    self._asked.pop(0).set_result(Forked(pid, self._ended[pid]))
                else:
                    self._ended.pop(pid).set_result(code)
        for asked in self._asked:
            asked.set_exception(RuntimeError("the program that forks has ended"))

    async def start(self, name: str, arguments: Sequence[str], log: Path, env: Mapping[str, str]) -> Child:
        """Start `kafka-timers` with *arguments* as `Child.start` does."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            log_start = output.tell()
        started: Future[Forked] = _future()
        with self._lock:
            self._program = self._program or self._started()
            assert self._program.stdin
            self._asked.append(started)
            self._program.stdin.write(json.dumps([arguments, str(log), dict(env)]).encode() + b"\n")
            self._program.stdin.flush()
        process: Any = await asyncio.wrap_future(started)
        return Child(name, process, log, log_start)


def serve(requests: io.RawIOBase, answers: int) -> bool:
    """Fork for each request. Returns True in a fork, and False once there are no more requests."""
    woken, wakes = os.pipe()
    for end in (woken, wakes):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes)
    while True:
        ready, _, _ = select.select([requests, woken], [], [])
        if woken in ready:
            os.read(woken, 4_096)
            while (ended := _ended()) is not None:
                os.write(answers, json.dumps(ended).encode() + b"\n")
        if requests in ready:
            line = requests.readline()
            if not line:
                return False
            if not (pid := os.fork()):
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for end in (woken, wakes):
                    os.close(end)
                _be_the_program(*json.loads(line))
                return True
            os.write(answers, json.dumps([pid, None]).encode() + b"\n")


def _ended() -> tuple[int, int] | None:
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, os.waitstatus_to_exitcode(status)) if pid else None


def _be_the_program(arguments: list[str], log: str, env: dict[str, str]) -> None:
    os.setsid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # ends with its parent, see die_with_parent.py
    inputs, outputs = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for found, wanted in ((inputs, 0), (outputs, 1), (outputs, 2)):
        os.dup2(found, wanted)
    for found in (inputs, outputs):
        os.close(found)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = ["kafka-timers", *arguments]
    random.seed()


def import_all() -> None:
    """Import the service's modules."""
    for package in map(importlib.import_module, ("kafka_timers", "kafka_timers_oscillator")):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.endswith("__main__") and found.name.split(".")[1] not in _LEFT_OUT:
                importlib.import_module(found.name)
    gc.freeze()


if __name__ == "__main__":
    import_all()
    # Unbuffered: a line that was read ahead would not be seen as ready.
    if serve(sys.stdin.buffer.raw, 1):
        from kafka_timers.__main__ import main

        main()
