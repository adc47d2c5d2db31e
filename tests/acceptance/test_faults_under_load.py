"""
Shortened runs of faults of `make faults` that need no three brokers; the others are in test_three_brokers.py.

Each takes the better part of a minute, so `make test` has quieter tests instead, in test_faults.py, test_health.py,
test_broker_away.py, test_bad_input.py and test_worker_disk.py.

Under load, with an oracle that knows nothing but the log of requests: see tests/campaign.
"""

from pathlib import Path

import pytest
from brokers import StartKafka
from campaign.faults import FAULTS
from campaign.run import run
from disks import small_disk

from kafka_timers.dev.broker import EmbeddedKafka

pytestmark = pytest.mark.chaos

RATE = 300
_FAULTS = ("hold-transaction", "delete-topic", "kill-process", "pause-worker", "fill-disk")


@pytest.mark.parametrize("name", _FAULTS)
async def test_a_fault_of_workers_and_topics_neither_loses_nor_doubles(
    name: str, kafka: EmbeddedKafka, prefix: str, tmp_path: Path
) -> None:
    if name == "fill-disk":
        # Skipped where this user may mount none.
        with small_disk(tmp_path / "tried", 1):
            pass
    outcome = await run(FAULTS[name], kafka, prefix, tmp_path, rate=RATE, seed=1, short=True)
    assert outcome.problems() == []


async def test_a_broker_that_is_killed_and_freezes_neither_loses_nor_doubles(
    start_kafka: StartKafka, prefix: str, tmp_path: Path
) -> None:
    broker = await start_kafka()
    outcome = await run(FAULTS["kill-broker"], broker, prefix, tmp_path, rate=RATE, seed=1, short=True)
    assert outcome.problems() == []
