"""Ends asyncio tasks."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any


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
