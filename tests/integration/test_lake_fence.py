"""One landing at a time, on a real broker: the later one goes on, and the earlier one commits nothing behind it."""

import asyncio
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from patience import LIMIT_S
from pyspark.sql import DataFrame
from test_lake_land import Lake, lake, start, told, until

from kafka_timers.broker.connection import Kafka
from kafka_timers.dev.broker import free_port
from kafka_timers.errors import BrokerError
from kafka_timers.lake import tables
from kafka_timers.lake.fence import Fence
from kafka_timers.lake.schema import REQUESTS, Table
from kafka_timers.runtime.child import Child

__all__ = ["lake"]

TAKEN_OVER = "has stopped: another landing has taken over, and goes on"


def test_the_later_landing_shuts_out_the_earlier_one_and_no_other_instance(bootstrap: str, prefix: str) -> None:
    """Queries of three topics ask at once."""
    kafka = Kafka(bootstrap)
    first, second, other = Fence(kafka, prefix), Fence(kafka, prefix), Fence(kafka, f"{prefix}b-")
    with ThreadPoolExecutor(3) as threads:
        for each in (first, other):
            each.take_over()
        assert list(threads.map(lambda _: first.is_held(), range(9))) == [True] * 9
        second.take_over()
        assert list(threads.map(lambda _: first.is_held(), range(9))) == [False] * 9
    assert (first.is_lost, second.is_held(), other.is_held()) == (True, True, True)


def test_a_kafka_that_is_away_is_told(bootstrap: str, prefix: str) -> None:
    away = f"127.0.0.1:{free_port()}"
    with pytest.raises(BrokerError, match=f"no Kafka answers at {away}"):
        Fence(Kafka(away), prefix).take_over()


# Stops itself when it has asked whether it is still the landing, and is about to commit its first requests.
PAUSED = """
import os, signal, time
from pathlib import Path
from kafka_timers import __main__
from kafka_timers.lake import tables
from kafka_timers.lake.schema import REQUESTS

append = tables.append

def pause_and_append(frame, root, table, *more, **options):
    if table is REQUESTS:
        # The queries of the other topics have nothing to ask any more.
        land = Path(root.removeprefix("file:")) / "_land"
        while not all((land / name / "commits" / "0").exists() for name in ("seals", "rejected")):
            time.sleep(0.05)
        print("about to commit", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
    append(frame, root, table, *more, **options)

tables.append = pause_and_append
__main__.main()
"""


async def test_a_landing_that_was_paused_commits_nothing_behind_its_successor(lake: Lake, tmp_path: Path) -> None:
    """It is paused between question and commit. Its successor has landed that batch and more."""
    await lake.publish(1_000)
    child = await paused(lake, tmp_path)
    await lake.land()
    await lake.publish(500)
    await lake.land(batch_records=300)
    child._signal(signal.SIGCONT)
    assert await asyncio.wait_for(child.wait(), LIMIT_S) == 1, child.last_words()
    assert TAKEN_OVER in told(tmp_path / "land.log")
    await lake.publish(100)
    await lake.land()
    await lake.assert_landed(1_600)


async def test_a_landing_whose_first_batch_the_one_before_has_done_meanwhile_goes_on(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one before goes on when its successor is about to commit the same batch, and is the first to be done."""
    await lake.publish(1_000)
    child, append = await paused(lake, tmp_path), tables.append
    done = Path(lake.settings.lake) / "_land" / REQUESTS.name / "commits" / "0"

    def append_behind(frame: DataFrame, root: str, table: Table, *more: Any, **options: Any) -> None:
        if table is REQUESTS and not done.exists():
            child._signal(signal.SIGCONT)
            end_s = time.monotonic() + LIMIT_S
            while not done.exists() and time.monotonic() < end_s:
                time.sleep(0.05)
        append(frame, root, table, *more, **options)

    monkeypatch.setattr(tables, "append", append_behind)
    await lake.land()
    assert done.exists()
    await lake.assert_landed(1_000)
    await lake.publish(100)
    # It sees with its next batch that it was taken over from, and ends, so that its supervisor starts it again.
    assert await asyncio.wait_for(child.wait(), LIMIT_S) == 1, child.last_words()
    assert TAKEN_OVER in told(tmp_path / "land.log")
    await lake.land()
    await lake.assert_landed(1_100)


async def paused(lake: Lake, tmp_path: Path) -> Child:
    """Return a landing that stopped itself when it was about to commit its first requests."""
    script, log = tmp_path / "paused.py", tmp_path / "land.log"
    script.write_text(PAUSED)
    child = await start(lake, str(script), log=log)
    await until(log, child, "about to commit")
    assert tables.read(lake.spark, lake.root, REQUESTS).count() == 0
    return child
