"""Child processes of `serve`, `dev` and the tests. Each has a gentle end, and none is left behind."""

import asyncio
import os
import signal
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Self

from kafka_timers.runtime.die_with_parent import die_with_us

_LOG_LINES = 15


class Child:
    """
    A running child process.

    On Linux it ends with this process, even if this process is killed. A Ctrl-C in the terminal does not reach it, so
    this process can end its children in the right order. Its output is appended to the file `log`; if that is None, it
    is part of this process's.
    """

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path | None, log_start: int) -> None:
        self.name = name
        self.log = log
        self._process = process
        self._log_start = log_start

    @classmethod
    async def start(
        cls, name: str, command: Sequence[str], log: Path | None, env: Mapping[str, str] = os.environ
    ) -> Self:
        """
        Start *command* and return at once.

        Raises:
            OSError: the log cannot be written.
        """
        if log:
            log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") if log else nullcontext() as output:
            log_start = output.tell() if output else 0
            process = await asyncio.create_subprocess_exec(
                *die_with_us(*command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=env,
                start_new_session=True,
            )
        return cls(name, process, log, log_start)

    @property
    def pid(self) -> int:
        """The process id, for signals without a method here."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._process.returncode

    async def wait(self) -> int:
        """Wait for the end and return the exit code."""
        return await self._process.wait()

    async def obituary(self) -> str:
        """Wait for the end, and return the exit code and the last lines of the log as text."""
        return f"{self.name} ended with exit code {await self.wait()}; {self.last_words()}"

    async def stop(self, limit_s: float = 10.0) -> None:
        """Ask the process to end (SIGTERM) and wait for it; kill it after *limit_s*."""
        self._signal(signal.SIGTERM)
        # A frozen process would not see the signal.
        self.resume()
        try:
            await asyncio.wait_for(self.wait(), limit_s)
        except TimeoutError:
            self.kill()
            await self.wait()

    def kill(self) -> None:
        """Kill the process (SIGKILL); `wait` returns once it is gone."""
        self._signal(signal.SIGKILL)

    def pause(self) -> None:
        """Freeze the process (SIGSTOP) until `resume`."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let the process go on (SIGCONT)."""
        self._signal(signal.SIGCONT)

    def last_words(self) -> str:
        """Return a sentence with the path of the log and the last lines that this run wrote to it."""
        if self.log is None:
            return "its last lines are above"
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            lines = b"".join(deque(log, _LOG_LINES)).decode(errors="replace").rstrip()
        return f"the end of {self.log}:\n{lines}" if lines else f"it wrote nothing to {self.log}"

    def _signal(self, number: signal.Signals) -> None:
        # The method of asyncio's process collects the exit code of one that has just ended, before Python 3.13, and
        # whatever waits for the code gets 255 (CPython's issue 87744).
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)
