"""One landing per lake: it has the lease; others wait for it, and take it over."""

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kafka_timers.errors import LakeError
from kafka_timers.lake import lease
from kafka_timers.lake.lease import Holder, lease_of

NEVER = threading.Event()


@pytest.fixture
def root(tmp_path: Path) -> str:
    return f"file:{tmp_path}/a lake"


def file_of(root: str) -> Path:
    return Path(root.removeprefix("file:")) / "_land" / "lease"


def held_by(root: str, holder: Holder) -> None:
    file_of(root).parent.mkdir(parents=True, exist_ok=True)
    file_of(root).write_text(json.dumps(asdict(holder)))


def test_a_second_landing_names_the_first_and_comes_next(spark: SparkSession, root: str) -> None:
    with lease_of(spark, root, 0, NEVER) as lost:
        assert lost is not None
        told = rf"landed into by process {os.getpid()} on "
        with pytest.raises(LakeError, match=told), lease_of(spark, root, 0, NEVER):
            pass
        assert not lost()
    assert not file_of(root).exists()
    with lease_of(spark, root, 0, NEVER) as lost:
        assert lost is not None


def test_of_many_at_once_one_has_it(spark: SparkSession, root: str) -> None:
    """All of them find it free in the same moment."""
    begin, within, seen = threading.Barrier(4), threading.Lock(), []

    def run() -> None:
        begin.wait()
        with lease_of(spark, root, 300, NEVER):
            seen.append(within.acquire(blocking=False))
            time.sleep(0.05)
            within.release()

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [True] * 4


def test_a_landing_whose_process_has_ended_here_is_not_waited_for(spark: SparkSession, root: str) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    held_by(root, replace(Holder.new(), pid=ended.pid, number=7))
    with lease_of(spark, root, 0, NEVER) as lost:
        assert lost is not None


def test_one_elsewhere_is_waited_for_as_long_as_it_may_land(
    spark: SparkSession, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_by(root, Holder("elsewhere", "", 1, "x", 7))
    with pytest.raises(LakeError, match="by process 1 on elsewhere"), lease_of(spark, root, 0.1, NEVER):
        pass
    monkeypatch.setattr(lease, "LEASE_S", 1.0)
    with lease_of(spark, root, 300, NEVER) as lost:
        assert lost is not None


def test_one_that_is_taken_over_is_told_and_leaves_it(
    spark: SparkSession, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "_RENEW_S", 0.05)
    stop, other = threading.Event(), Holder("elsewhere", "", 1, "x", 7)
    with lease_of(spark, root, 0, stop) as lost:
        held_by(root, other)
        assert stop.wait(60)
        assert lost is not None
        assert lost()
    assert file_of(root).exists()


def test_a_landing_that_is_told_to_end_does_not_wait(spark: SparkSession, root: str) -> None:
    stop = threading.Event()
    stop.set()
    held_by(root, Holder("elsewhere", "", 1, "x", 7))
    with lease_of(spark, root, 300, stop) as lost:
        assert lost is None
