"""
Keeps the processes of one command running: those of `serve` and `dev`, and of `worker --processes`.

It does the work of an init system. A process that dies is started again, and the others go on. All end in order.
"""

import asyncio
import dataclasses
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from kafka_timers.broker.environment import env_name
from kafka_timers.runtime.child import Child
from kafka_timers.runtime.tasks import cancel

log = logging.getLogger(__name__)

# What fails again and again must not take the CPU from the others.
_PAUSE_S_MAX = 30.0
# A process that has run for so long does not fail again and again.
_STEADY_S = 60.0


async def _nothing() -> None:
    """Do nothing."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """
    A process to keep running, and how.

    Attributes:
        name: its name in messages.
        command: program and arguments.
        env: its environment.
        turn: parts end in the order of their turns, and those of one turn together.
        pause_s: seconds until it is started again. They double each time, until it has run for a minute.
        end_s: seconds that it has to end.
        died: called when it has died, while the pause runs.
        log: file for its output; None leaves it in the output of this process.
        url: where it answers; empty if it does not.
        ready: path on which it tells whether it does its work.
        has_metrics: whether it has metrics.
    """

    name: str
    command: Sequence[str]
    env: Mapping[str, str] = dataclasses.field(default_factory=lambda: os.environ)
    turn: int = 0
    pause_s: float = 0.5
    end_s: float = 5.0
    died: Callable[[], Awaitable[None]] = _nothing
    log: Path | None = None
    url: str = ""
    ready: str = "/readyz"
    has_metrics: bool = True


def own_command(*arguments: str) -> list[str]:
    """Return the command that runs this program with *arguments*."""
    return [sys.executable, "-m", "kafka_timers", *arguments]


def env_of(settings: Any) -> dict[str, str]:
    """Return this process's environment with all of *settings*, a dataclass, in it."""
    return os.environ | {env_name(name): str(value) for name, value in dataclasses.asdict(settings).items()}


class Kept:
    """
    A part, and what has become of it.

    Attributes:
        away: why its process is not there, as the end of a sentence; empty while it is.
        last_words: what its last process has said at its end; empty if that was asked to end.
    """

    def __init__(self, part: Part) -> None:
        self.part = part
        self.away = "has not started yet"
        self.last_words = ""
        self._ending = asyncio.Event()

    def end(self) -> None:
        """Have `keep` end the process, and return."""
        self._ending.set()

    async def keep(self, gives_up: Callable[[], bool]) -> int:
        """Keep the process running until `end`. Return 0; or its exit code, if it has one and *gives_up* says so."""
        part, pause_s = self.part, self.part.pause_s
        ending = asyncio.create_task(self._ending.wait())
        try:
            while not ending.done():
                started_s = asyncio.get_running_loop().time()
                try:
                    code = await self._run(ending)
                    self.away = f"ended {f'with exit code {code}' if code >= 0 else f'by signal {-code}'}"
                except OSError as error:
                    code, self.away = 1, f"cannot be started: {error}"
                if ending.done():
                    self.away = "has been asked to end"
                    return 0
                if code >= 0 and gives_up():
                    return code
                if asyncio.get_running_loop().time() - started_s >= _STEADY_S:
                    pause_s = part.pause_s
                self.away += f"; it is started again after {pause_s:g} s"
                log.error("%s %s", part.name, self.away)
                telling = asyncio.ensure_future(part.died())
                await asyncio.wait([ending], timeout=pause_s)
                await telling
                pause_s = min(2 * pause_s, _PAUSE_S_MAX)
        finally:
            await cancel([ending])
        return 0

    async def _run(self, ending: asyncio.Task[Any]) -> int:
        """Run the process once, and return its exit code; end it when *ending* is done."""
        child = await Child.start(self.part.name, self.part.command, self.part.log, self.part.env)
        self.away = ""
        ended = asyncio.create_task(child.wait())
        await asyncio.wait([ended, ending], return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            await child.stop(self.part.end_s)
        code = await ended
        self.last_words = "" if ending.done() else child.last_words()
        return code


class Supervisor:
    """
    Keeps *parts* running.

    Attributes:
        kept: the parts.
        has_started: set it once all parts work. Until then a process that ends with an exit code could not start: it
            has told the reason, and `run` ends with that code. From then on it is started again, as after a signal.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self.kept = [Kept(part) for part in parts]
        self.has_started = False

    async def run(self, stop: asyncio.Event) -> int:
        """
        Run all parts until *stop* is set, or one of them gives up. Then end them by their turns.

        Returns:
            0, or the exit code of the part that gave up.
        """
        keepers = {each: asyncio.create_task(each.keep(lambda: not self.has_started)) for each in self.kept}
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait([*keepers.values(), stopping], return_when=asyncio.FIRST_COMPLETED)
        await cancel([stopping])
        for _, together in groupby(sorted(self.kept, key=lambda each: each.part.turn), lambda each: each.part.turn):
            ending = list(together)
            for each in ending:
                each.end()
            await asyncio.wait([keepers[each] for each in ending])
        return max(keeper.result() for keeper in keepers.values())
