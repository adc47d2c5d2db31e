"""
An event loop with virtual time, in which a seed draws the task that runs first.

Time stands still while anything can run, and jumps to the next timer otherwise: an hour of waiting costs nothing. Tasks
that are ready at the same time run in an order that is drawn, so a seed finds orders that a machine shows once in a
year. No socket, no thread and no clock of the host is involved: the same seed tells the same history.

Code of a process runs in a context that says so (`PROCESS`), and all that it starts inherits that. So a process can be
paused as SIGSTOP does it: nothing of it runs, its timers included, while the brokers go on with its questions.
"""

import asyncio
import heapq
import random
from asyncio import base_events
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar
from typing import Any

# UNIX seconds at which every history begins.
EPOCH_S = 1_000_000

# The process whose code runs; empty for brokers, clients and observers.
PROCESS: ContextVar[str] = ContextVar("PROCESS", default="")


# A takeover takes some hundred.
_TURNS_MAX = 20_000


class StandstillError(Exception):
    """Nothing can run any more, and nothing ever will. Or something runs for ever, and time does not go on."""


class SeededLoop(base_events.BaseEventLoop):
    """
    The loop of one history.

    Args:
        seed: of the order in which things run; None keeps the order in which they became ready, for told stories.

    Attributes:
        complaints: messages that asyncio would have logged: exceptions that nobody has looked at, forgotten tasks.
    """

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    _stopping: bool

    def __init__(self, seed: object = None) -> None:
        super().__init__()
        self._rng = None if seed is None else random.Random(f"{seed}/loop")
        self._now_s = 0.0
        self._turns = 0
        self._paused: dict[str, list[asyncio.Handle]] = {}
        self.complaints: list[str] = []
        self.set_exception_handler(self._complain)

    def time(self) -> float:
        """Return virtual seconds since the history began."""
        return self._now_s

    @property
    def wall_s(self) -> float:
        """The UNIX time that all clocks show."""
        return EPOCH_S + self._now_s

    def outside(self, delay_s: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        """Call *callback* after *delay_s*, by no process: also when the one that asks for it is paused."""
        return self.call_later(delay_s, callback, *args, context=Context())

    def pause(self, process: str) -> None:
        """Let nothing of *process* run."""
        self._paused.setdefault(process, [])

    def resume(self, process: str) -> None:
        """Let *process* go on, with all timers that have passed meanwhile."""
        self._ready.extend(self._paused.pop(process, ()))

    def is_paused(self, process: str) -> bool:
        """Tell whether *process* is paused."""
        return process in self._paused

    def _run_once(self) -> None:
        ready, scheduled = self._ready, self._scheduled
        while scheduled and scheduled[0]._cancelled:
            heapq.heappop(scheduled)._scheduled = False
        if not ready and not self._stopping:
            if not scheduled:
                raise StandstillError
            if scheduled[0].when() > self._now_s:
                self._now_s, self._turns = scheduled[0].when(), 0
        self._turns += 1
        if self._turns > _TURNS_MAX:
            self._turns = 0
            raise StandstillError(f"time does not go on at {self._now_s:.3f} s")
        while scheduled and scheduled[0].when() <= self._now_s:
            handle = heapq.heappop(scheduled)
            handle._scheduled = False
            if not handle._cancelled:
                ready.append(handle)
        now = list(ready)
        ready.clear()
        if self._paused:
            now = [handle for handle in now if not self._put_aside(handle)]
        if self._rng and len(now) > 1:
            self._rng.shuffle(now)
        for handle in now:
            if not handle._cancelled:
                handle._run()

    def _put_aside(self, handle: asyncio.Handle) -> bool:
        aside = self._paused.get(handle._context.get(PROCESS, ""))  # type: ignore[attr-defined]
        if aside is None:
            return False
        aside.append(handle)
        return True

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def _complain(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        parts = [context["message"]]
        if error := context.get("exception"):
            parts.append(repr(error))
        if isinstance(task := context.get("future") or context.get("task"), asyncio.Task):
            parts.append(getattr(task.get_coro(), "__qualname__", ""))
        self.complaints.append(": ".join(parts))
