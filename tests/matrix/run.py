"""A profile: the steps, timers under kills, and the logs."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
from campaign.faults import Fault
from campaign.load import Load
from campaign.run import run_on
from campaign.stage import Stage

from matrix.logs import look
from matrix.profiles import PROFILES
from matrix.steps import STEPS, Walk

__all__ = ["problems_of", "run"]

_KILL_EVERY_S = 10
# Errors beyond these are counted alone.
_SHOWN = 5
_COUNTS = ("timers", "missing", "doubled", "early", "strange", "wrong", "unanswered", "overruled")


def _killing(timers: int, every_s: float) -> Callable[[Stage, Load, bool], Awaitable[str]]:
    async def kill(stage: Stage, load: Load, short: bool) -> str:
        """Kill one worker after the other, until the load has asked for *timers*; each starts again on its disk."""
        killed = 0
        while not killed or load.timers < timers:
            await asyncio.sleep(every_s)
            worker = stage.workers[killed % len(stage.workers)]
            await worker.kill()
            await worker.start()
            killed += 1
        for worker in stage.workers:
            await worker.until_ready()
        return str(killed)

    return kill


async def run(name: str, folder: Path, *, timers: int, rate: float, idle_s: float) -> dict[str, Any]:
    """
    Run the service on the broker *name*, and return what is told of it.

    Args:
        name: one of `PROFILES`.
        folder: of data and logs; it exists.
        timers: to ask for at least.
        rate: timers a second.
        idle_s: how long all processes are left alone at the end.
    """
    profile, began_s = PROFILES[name], time.time()
    async with profile.opened(folder / "kafka") as opened:
        reached = ("--bootstrap", opened.address, *opened.login)
        stage = Stage(opened.kafka, "matrix-", folder, options=(), reached=reached)
        walk = Walk(stage)
        await walk.prepare()
        async with stage:
            await walk.go()
            kills = _killing(timers, min(_KILL_EVERY_S, timers / rate / 2))
            # Without the rest that others have before and after: timers are asked for all the time.
            outcome = await run_on(stage, Fault("kill -9", kills, brokers=1), rate=rate, seed=0, short=True)
            await asyncio.sleep(idle_s)
            connections = _connections_of(stage, int(opened.address.split(":")[1]))
            await walk.end()
        found = look(process.log for process in stage.processes)
        broker_errors = sum(" ERROR " in line for line in opened.kafka.log.read_text().splitlines())
    verdict = asdict(outcome.verdict)
    return {
        "profile": name,
        "title": profile.title,
        "how": profile.how,
        "steps": len(STEPS) - len(walk.failed),
        "failed": walk.failed,
        **{count: verdict[count] for count in _COUNTS},
        "kills": int(outcome.note or 0),
        "broken": outcome.broken,
        **{late: round(verdict[late], 3) for late in ("late_p50_s", "late_p99_s", "late_max_s")},
        "idle_s": idle_s,
        "refused": sorted(set(opened.relay.refused)) if opened.relay else [],
        "connections": connections,
        "errors": dict(found.errors.most_common(_SHOWN)),
        "errors_count": found.errors.total(),
        "known": dict(found.known),
        "warnings": found.warnings,
        "broker_errors": broker_errors,
        "took_s": round(time.time() - began_s),
    }


def problems_of(told: Mapping[str, Any]) -> list[str]:
    """Return what must not be in the result of `run`, and is."""
    counts = ("missing", "doubled", "early", "strange", "wrong", "unanswered", "errors_count")
    problems = [f"{told[name]} {name}" for name in counts if told[name]]
    problems += [f"{step}: {why}" for step, why in told["failed"].items()]
    problems += [f"closed a connection that asked for {key} in version {version}" for key, version in told["refused"]]
    return problems + ([told["broken"]] if told["broken"] else [])


def _connections_of(stage: Stage, port: int) -> dict[str, int]:
    """Return how many connections each process has to the broker, or to the relay before it, at *port*."""
    return {
        process.name: sum(
            each.status == psutil.CONN_ESTABLISHED and bool(each.raddr) and each.raddr.port == port
            for each in psutil.Process(process.child.pid).net_connections("tcp")
        )
        for process in stage.processes
    }
