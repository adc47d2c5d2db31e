"""Starts and ends asyncio tasks, none of which may end unnoticed."""

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterable
from typing import Any


def stop_asked() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


async def cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel *tasks* and wait for their end. Their results and errors are dropped."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def completed(work: Coroutine[Any, Any, None], limit_s: float) -> None:
    """Await *work*. If the caller is cancelled meanwhile, *work* still has *limit_s* to end before it is cancelled."""
    task = asyncio.create_task(work)
    try:
        await asyncio.shield(task)
    finally:
        await asyncio.wait([task], timeout=limit_s)
        task.cancel()


def watched(work: Coroutine[Any, Any, None], on_failure: Callable[[Exception], None]) -> asyncio.Task[None]:
    """Start *work*, whose end nobody awaits. If an exception ends it, *on_failure* is called with that."""

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            on_failure(error)

    task = asyncio.create_task(work)
    task.add_done_callback(ended)
    return task


async def until_one_ends(*works: Coroutine[Any, Any, Any]) -> None:
    """Run *works* until one of them ends, and cancel the others. An exception that ended one is raised."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        await cancel(tasks)
