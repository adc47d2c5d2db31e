"""`import kafka_timers` is for services that have aiokafka and protobuf, and nothing of ours beside them."""

import subprocess
import sys

import pytest

import kafka_timers

HEAVY = {"faust", "mode", "rocksdict", "click", "rich", "pyspark", "prometheus_client", "aiohttp", "uvloop"}
EXTRAS = HEAVY | {"murmurhash2"}

MODULES = ["kafka_timers", "kafka_timers.testing"]


@pytest.mark.parametrize("module", MODULES)
def test_import_loads_nothing_heavy(module: str) -> None:
    script = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    assert "aiokafka" in loaded
    assert HEAVY.isdisjoint(loaded)


@pytest.mark.parametrize("module", MODULES)
def test_import_needs_none_of_the_extras(module: str) -> None:
    script = f"import sys; sys.modules |= dict.fromkeys({sorted(EXTRAS)}); import {module}"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_everything_that_is_public_is_there() -> None:
    assert kafka_timers.__version__
    assert [name for name in kafka_timers.__all__ if not hasattr(kafka_timers, name)] == []
    assert {"TimerClient", "Timer", "TokenGuard", "Future", "PublishError", "WhenError"} <= set(kafka_timers.__all__)
