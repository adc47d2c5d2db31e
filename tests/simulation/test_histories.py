"""
The promises, held by the worker itself through random histories.

A failing history is told step by step by `PYTHONPATH=app:oscillator:tests python -m simulation SEED`.
"""

import hashlib
import os
import subprocess
import sys

import pytest

from simulation.world import run_history

# Read now, before the variables of the user who runs the tests are removed.
HISTORIES = 200
HISTORIES_OF_A_CAMPAIGN = int(os.environ.get("KAFKA_TIMERS_TEST_WORKER_CAMPAIGN", "20000"))


def _first_failure(seeds: range) -> str | None:
    for seed in seeds:
        try:
            run_history(seed)
        except Exception as error:
            return f"history {seed}: {type(error).__name__}: {error}; see python -m simulation {seed}"
    return None


def test_the_promises_hold_through_random_histories(histories: int | None) -> None:
    # One of the worker takes as long as a hundred of the walk through the core.
    assert _first_failure(range(HISTORIES if histories is None else histories // 3)) is None


@pytest.mark.chaos
def test_the_promises_hold_through_a_long_campaign_of_the_worker() -> None:
    """KAFKA_TIMERS_TEST_WORKER_CAMPAIGN sets how many; none of them is among those of the short one."""
    assert _first_failure(range(HISTORIES, HISTORIES + HISTORIES_OF_A_CAMPAIGN)) is None


@pytest.mark.parametrize("seed", [3, 17, 40])
def test_a_seed_tells_the_same_history_in_every_process(seed: int) -> None:
    """Also where sets have another order, as they do in each process."""
    told: list[str] = []
    run_history(seed, trace=told.append)
    again: list[str] = []
    run_history(seed, trace=again.append)
    assert again == told
    elsewhere = subprocess.run(
        [sys.executable, "-m", "simulation", str(seed)],
        env=os.environ | {"PYTHONHASHSEED": "4711", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        check=True,
    )
    assert hashlib.sha256(elsewhere.stdout).digest() == hashlib.sha256("\n".join([*told, ""]).encode()).digest()
