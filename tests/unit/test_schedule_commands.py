"""`kafka-timers schedule`, on schedules in memory."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner

from kafka_timers.cli.program import program
from kafka_timers.core.schedules import Schedule
from kafka_timers.testing import InMemoryTimers, ManualClock

NOON_S = 1_795_780_800  # 2026-11-27 12:00 UTC

Run = Callable[..., str]


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> InMemoryTimers:
    timers = InMemoryTimers(ManualClock(NOON_S))
    monkeypatch.setattr("kafka_timers.cli.asking.TimerClient", lambda *_, **__: timers.client)
    return timers


@pytest.fixture
def run(timers: InMemoryTimers) -> Run:
    def call(*words: str, code: int = 0) -> str:
        result = CliRunner().invoke(program, ["schedule", *words])
        assert result.exit_code == code, result.output
        return str(result.output)

    return call


def test_a_deployment_ends_no_pause_and_says_that_there_is_one(run: Run) -> None:
    put = ("put", "report", "--every", "1h", "--topic", "reports")
    run(*put)
    run("pause", "report", "--note", "incident 42")
    assert "paused: incident 42" in run(*put)
    assert "paused: incident 42" in run("list")
    assert "paused" not in run(*put, "--running")
    assert "paused" in run(*put, "--paused")


def test_what_is_not_named_stays(run: Run, timers: InMemoryTimers) -> None:
    run("put", "report", "--every", "1h", "--topic", "reports", "--value", "v", "--key", "k", "--runs", "7")
    run("change", "report", "--note", "hourly", "--except", "2026-11-28")
    found = asyncio.run(timers.client.schedules.get("report"))
    assert found is not None
    assert (found.value, found.key, found.message.runs_max, found.note) == (b"v", b"k", 7, "hourly")
    run("change", "report", "--tombstone", "--cron", "0 9 * * *", "--zone", "Europe/Paris")
    found = asyncio.run(timers.client.schedules.get("report"))
    assert found is not None
    assert (found.value, found.times) == (None, "0 9 * * * in Europe/Paris")
    assert "give what is to change" in run("change", "report", code=2)


def test_runs_that_are_left_out_are_told(run: Run) -> None:
    run("put", "report", "--every", "1h", "--topic", "reports", "--jitter", "10m")
    told = run("skip", "report")
    assert told.startswith("leaves out 2026-11-27 12:00:00+00:00 UTC\n")
    assert "skips      2026-11-27 12:00:00+00:00 UTC" in told
    first, *_ = run("next", "report").splitlines()
    assert first.startswith("2026-11-27 13:00:00+00:00  UTC  due ")
    assert first.endswith(" s later")
    assert "skips" not in run("skip", "report", "--undo")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--every", "1d", "--zone", "Europe/Paris"], "--zone has no effect without --cron"),
        (["--every", "1d", "--gap", "skip"], "--gap has no effect without --cron"),
        (["--at", "2030-01-01T00:00Z", "--overlap", "both"], "--overlap has no effect without --cron"),
        (["--cron", "* * * * *", "--anchor", "2030-01-01T00:00Z"], "--anchor has no effect without --every"),
        (["--every", "1d", "--cron", "* * * * *"], "give one of --cron, --every and --at"),
        ([], "give one of --cron, --every and --at"),
    ],
)
def test_options_without_effect_are_refused(run: Run, options: list[str], told: str) -> None:
    assert told in run("put", "report", "--topic", "reports", *options, code=2)


@pytest.mark.parametrize(
    "options", [["--at", "2020-01-01T00:00Z"], ["--cron", "0 9 * * *", "--end", "2021-01-01T00:00Z"]]
)
def test_a_schedule_that_can_never_run_is_refused(run: Run, options: list[str]) -> None:
    assert "it has no run from now on" in run("put", "report", "--topic", "reports", *options, code=1)


def test_a_record_that_cannot_be_planned_leaves_the_list_to_the_others(run: Run, timers: InMemoryTimers) -> None:
    run("put", "report", "--every", "1h", "--topic", "reports")
    bad: Any = Schedule()
    bad.cron.expression = "61 * * * *"
    bad.callback.callBackTopic = "x"
    timers._schedules.append((b"bad", bad.SerializeToString()))
    timers._schedules.append((b"worse", b"\xff"))
    told = run("list")
    assert "cannot be planned: cron.expression: '61 * * * *'" in " ".join(told.split())
    assert "report" in told
    assert "worse" not in told
