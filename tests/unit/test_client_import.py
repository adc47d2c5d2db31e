"""`import kafka_timers` is for services that have aiokafka and protobuf, and nothing of ours beside them."""

import subprocess
import sys

import pytest

import kafka_timers

HEAVY = {"faust", "mode", "rocksdict", "click", "rich", "pyspark", "prometheus_client", "aiohttp", "uvloop"}
EXTRAS = HEAVY | {"murmurhash2"}

MODULES = ["kafka_timers", "kafka_timers.testing"]

# As on a machine that has none of them: each import of one fails.
WITHOUT = f"import sys; sys.modules |= dict.fromkeys({sorted(EXTRAS)})"


@pytest.mark.parametrize("module", MODULES)
def test_import_loads_nothing_heavy(module: str) -> None:
    script = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    assert "aiokafka" in loaded
    assert HEAVY.isdisjoint(loaded)


def test_timers_in_memory_work_without_any_of_the_extras() -> None:
    script = f"""
{WITHOUT}
import asyncio
from kafka_timers.testing import InMemoryTimers, ManualClock

async def answers():
    timers = InMemoryTimers(ManualClock(100.0))
    await timers.client.at(110, topic="reminders", timer_id="id")
    return (await timers.client.cancel("id")).outcome

print(asyncio.run(answers()))
"""
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("CANCELLED\n", "")


@pytest.mark.parametrize("module", MODULES)
def test_import_needs_none_of_the_extras(module: str) -> None:
    subprocess.run([sys.executable, "-c", f"{WITHOUT}; import {module}"], check=True)


def test_everything_that_is_public_is_there() -> None:
    assert kafka_timers.__version__
    assert [name for name in kafka_timers.__all__ if not hasattr(kafka_timers, name)] == []
    assert {"TimerClient", "Timer", "TokenGuard", "Future", "PublishError", "WhenError"} <= set(kafka_timers.__all__)
