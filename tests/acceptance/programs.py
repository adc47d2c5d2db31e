"""Programs of the docs and examples, as processes that do not outlive their test."""

import asyncio
import os
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path


@asynccontextmanager
async def running(*command: str | Path, cwd: Path, **env: str) -> AsyncIterator[Process]:
    """Have *command* running in the folder *cwd*, with variables of its own; both outputs are `stdout`."""
    process = await asyncio.create_subprocess_exec(
        *map(str, command), stdout=PIPE, stderr=STDOUT, cwd=cwd, env=os.environ | env
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
