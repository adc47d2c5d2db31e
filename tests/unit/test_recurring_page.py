"""docs/recurring.md: its recipes run when it says, its clocks change as the code's do, and its test passes."""

import asyncio
import re
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kafka_timers import Cron
from kafka_timers.cli.program import program
from kafka_timers.client.recurring import Recurring
from kafka_timers.core.calendar import CronTimes, Gap, Overlap, zone_of
from kafka_timers.errors import ScheduleError
from kafka_timers.testing import InMemoryTimers, ManualClock

PAGE = (Path(__file__).parents[2] / "docs" / "recurring.md").read_text()
_, RECIPES, TEST = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
# 2026-11-27 12:00 UTC.
NOON_S = 1_795_780_800.0
NAMES = ("weekdays", "month-end", "quarter-hours", "odd-mondays", "quarters")


def rows(title: str) -> list[list[str]]:
    """Return the cells below the head of the table whose first column has *title*."""
    lines = PAGE.split(f"\n| {title} |")[1].split("\n\n")[0].splitlines()[2:]
    return [line.removeprefix("| ").removesuffix(" |").split(" | ") for line in lines]


def in_python() -> dict[str, Recurring]:
    """Return the schedules that the page's program puts, by id."""
    timers, names = InMemoryTimers(ManualClock(NOON_S)), dict[str, Any](__name__="recipes")
    exec(RECIPES, names)

    async def put() -> list[Recurring]:
        await names["put_all"](timers.client, "callbacks")
        return await timers.client.schedules.list()

    return {each.schedule_id: each for each in asyncio.run(put())}


def test_recipes_run_when_the_page_says() -> None:
    schedules = in_python()
    for name, (_, _, told) in zip(NAMES, rows("you want"), strict=True):
        runs = told.split(", ")
        found = schedules[name].next(len(runs), NOON_S)
        assert [run.instant.astimezone(UTC).strftime("%Y-%m-%dT%H:%MZ") for run in found] == runs


def test_recipes_are_the_same_on_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    timers, schedules = InMemoryTimers(ManualClock(NOON_S)), in_python()
    monkeypatch.setattr("kafka_timers.cli.asking.TimerClient", lambda *_, **__: timers.client)
    for name, (_, options, _) in zip(NAMES, rows("you want"), strict=True):
        words = ["schedule", "put", name, "--topic", "callbacks", *shlex.split(options.strip("`"))]
        assert CliRunner().invoke(program, words, catch_exceptions=False).exit_code == 0
        put = asyncio.run(timers.client.schedules.get(name))
        assert put is not None
        # The command line names the default of a day.
        put.message.catch_up_window_s = 0
        assert put == schedules[name]


async def test_the_quarter_hours_are_late_by_their_jitter() -> None:
    timers, names = InMemoryTimers(clock := ManualClock(NOON_S)), dict[str, Any](__name__="recipes")
    exec(RECIPES, names)
    await names["put_all"](timers.client, "callbacks")
    await clock.advance(3_600)
    late = []
    for record in timers.take("callbacks"):
        headers = {name: (value or b"").decode() for name, value in record.headers}
        due_s = int(headers["timer-expiry"]) + int(headers.get("timer-millis", "0")) / 1000
        late.append(due_s - datetime.fromisoformat(headers["timer-schedule-instant"]).timestamp())
    assert len(late) >= 4
    assert all(0 <= each <= 60 for each in late)
    assert len(set(late)) > 1


@pytest.mark.parametrize(("expression", "forward", "back"), rows("expression"))
def test_clocks_change_as_the_page_says(expression: str, forward: str, back: str) -> None:
    cron, *chosen = re.findall(r"`(.*?)`", expression)
    gap, overlap, zone = Gap.DEFAULT, Overlap.DEFAULT, zone_of("Europe/Paris")
    for option, choice in map(str.split, chosen):
        gap = Gap[choice.upper()] if option == "--gap" else gap
        overlap = Overlap[choice.upper()] if option == "--overlap" else overlap
    times = CronTimes(cron, zone, gap, overlap)
    # From some minutes before the change on, until the clocks show times that are as usual again.
    spring, autumn = datetime(2027, 3, 28, 0, 15, tzinfo=UTC), datetime(2027, 10, 30, 23, 45, tzinfo=UTC)
    for told, first, minutes in ((forward, spring, 90), (back, autumn, 150)):
        runs = [] if told == "none" else told.split(", ")
        ms = int(first.timestamp() * 1000)
        end_ms, found = ms + minutes * 60_000, list[str]()
        while (run_ms := times.next_after(ms)) is not None and run_ms < end_ms:
            moment, ms = datetime.fromtimestamp(run_ms / 1000, zone.info).isoformat(), run_ms
            found.append(moment[11:16] + moment[19:])
        assert found == runs


async def test_a_wrong_zone_is_refused_as_the_page_says() -> None:
    [told] = re.findall(r"^cron\.zone: .*$", PAGE, re.MULTILINE)
    times = Cron("* * * * *", zone="Europe/Pariss")
    with pytest.raises(ScheduleError) as raised:
        await InMemoryTimers(ManualClock()).client.schedules.put("s", times, topic="t")
    assert re.sub(r"tzdata \w+:", "tzdata:", str(raised.value)) == re.sub(r"tzdata \w+:", "tzdata:", told)


async def test_the_test_on_the_page_passes() -> None:
    names = dict[str, Any]()
    exec(TEST, names)
    await names["test_no_report_on_a_weekend"]()
