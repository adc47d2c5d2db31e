"""`kafka-timers dev` for tests: started, and always ended with the test."""

import asyncio
import re
import shlex
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from patience import LIMIT_S

from kafka_timers.dev.broker import free_port
from kafka_timers.runtime.die_with_parent import die_with_us

PROGRAM = (sys.executable, "-m", "kafka_timers")


class Dev:
    """
    A running `kafka-timers dev`.

    Attributes:
        process: the command itself.
        ports: as `dev_ports` gives them.
        children: the ids of its processes: Kafka, the oscillator, the worker, the console.
        hints: the commands that it prints to try next, as words, by purpose.
    """

    def __init__(self, process: asyncio.subprocess.Process, ports: list[int], hints: dict[str, list[str]]) -> None:
        self.process = process
        self.ports = ports
        self.children = children_of(process.pid)
        self.hints = hints

    async def end(self) -> str:
        """Press Ctrl-C, and return the output until the end."""
        self.process.send_signal(signal.SIGINT)
        async with asyncio.timeout(LIMIT_S):
            output, _ = await self.process.communicate()
        return output.decode()


def children_of(pid: int) -> list[int]:
    """Return the ids of the processes that *pid* has started."""
    children: list[int] = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        # One that has ended since has left its children to another.
        with suppress(FileNotFoundError, ProcessLookupError):
            children += map(int, (thread / "children").read_text().split())
    return children


def dev_ports(brokers: int = 1) -> list[int]:
    """Return ports for Kafka, worker, oscillator, all, questions, console, lake; then of Kafka's other brokers."""
    metrics = free_port()
    kafka = free_port()
    others = [free_port(), free_port(), free_port(), *range(kafka + 1, kafka + brokers)]
    return [kafka, metrics + 2, metrics + 1, metrics, *others]


@asynccontextmanager
async def dev(folder: Path, ports: list[int], *more: str) -> AsyncIterator[Dev]:
    """Run the command in *folder* until it prints the commands to try next; its end is left to the test, or forced."""
    kafka, _, _, metrics, queries, console, lake = ports[:7]
    options = ["--port", str(kafka), "--metrics-port", str(metrics)]
    options += ["--query-port", str(queries), "--console-port", str(console), "--lake-port", str(lake)]
    process = await asyncio.create_subprocess_exec(
        *die_with_us(*PROGRAM, "dev", *options, *more),
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        assert process.stdout
        try:
            async with asyncio.timeout(LIMIT_S):
                said = (await process.stdout.readuntil(b"  logs ")).decode()
                said += (await process.stdout.readline()).decode()
        except asyncio.IncompleteReadError as error:
            raise AssertionError(f"dev has ended: {error.partial.decode()}") from error
        lines = [re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in said.splitlines() if line.startswith("  ")]
        yield Dev(process, ports, {line[0]: shlex.split(line[1]) for line in lines if len(line) == 2})
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
