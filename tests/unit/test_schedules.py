"""Recurring timers as services use them, in memory."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kafka_timers import At, Cron, Every
from kafka_timers.client.recurring import Schedules
from kafka_timers.client.times import Times
from kafka_timers.errors import RequestError, ScheduleError
from kafka_timers.testing import InMemoryTimers, ManualClock

# 2026-10-24 12:00 UTC, the day before the clocks of Paris go back.
NOW_S = 1_792_843_200


@pytest.fixture
def timers() -> InMemoryTimers:
    return InMemoryTimers(ManualClock(NOW_S))


@pytest.fixture
def schedules(timers: InMemoryTimers) -> Schedules:
    return timers.client.schedules


def instants(timers: InMemoryTimers) -> list[str]:
    return [(dict(record.headers)["timer-schedule-instant"] or b"").decode() for record in timers.take("reports")]


async def test_a_schedule_runs_by_the_clocks_of_its_zone(timers: InMemoryTimers, schedules: Schedules) -> None:
    await schedules.put("report", Cron("30 2 * * *", zone="Europe/Paris"), topic="reports", value=b"now")
    await timers._clock.advance(3 * 86_400)
    assert instants(timers) == ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z", "2026-10-27T01:30:00Z"]


async def test_a_long_wait_misses_nothing(timers: InMemoryTimers, schedules: Schedules) -> None:
    await schedules.put("report", Every(1), topic="reports", catch_up="none")
    await timers._clock.advance(1_000)
    assert len(instants(timers)) == 1_001


async def test_a_callback_tells_schedule_run_and_instant(timers: InMemoryTimers, schedules: Schedules) -> None:
    at = [NOW_S + 5.25, NOW_S + 7]
    await schedules.put("report", At(at), topic="reports", key="k", value=b"v", token="t", headers={"own": b"1"})
    await timers._clock.advance(10)
    first, second = timers.take("reports")
    assert (first.key, first.value) == (b"k", b"v")
    headers = dict(first.headers)
    assert headers["timer-id"] == b"report@2026-10-24T12:00:05.250Z"
    assert headers["timer-schedule"] == b"report"
    assert headers["timer-schedule-instant"] == b"2026-10-24T12:00:05.250Z"
    assert headers["timer-schedule-run"] == b"1"
    assert headers["timer-token"] == b"t"
    assert headers["own"] == b"1"
    assert dict(second.headers)["timer-schedule-run"] == b"2"


async def test_schedules_are_listed_paused_resumed_and_deleted(timers: InMemoryTimers, schedules: Schedules) -> None:
    clock = timers._clock
    await schedules.put("b", Every(timedelta(seconds=10)), topic="reports", note="of Bea")
    await schedules.put("a", Cron("* * * * *"), topic="reports")
    assert [(each.schedule_id, each.times) for each in await schedules.list()] == [
        ("a", "* * * * * in UTC"),
        ("b", "every 10 s"),
    ]
    assert [each.schedule_id for each in await schedules.list("b")] == ["b"]
    await schedules.delete("a")
    assert await schedules.get("a") is None
    paused = await schedules.pause("b")
    assert (paused.paused, paused.note) == (True, "of Bea")
    await clock.advance(1)
    timers.take("reports")
    await clock.advance(59)
    assert instants(timers) == []
    await schedules.resume("b", "again")
    assert (await schedules.list())[0].note == "again"
    await clock.advance(30)
    assert len(instants(timers)) == 3


async def test_a_run_can_be_asked_for_by_hand(timers: InMemoryTimers, schedules: Schedules) -> None:
    await schedules.put("report", Cron("0 9 * * *"), topic="reports", paused=True)
    timer = await schedules.run_now("report")
    assert timer.timer_id == "report@2026-10-24T12:00:00Z"
    await timers._clock.advance(1)
    [record] = timers.take("reports")
    assert "timer-schedule-run" not in dict(record.headers)


async def test_a_run_is_a_timer_that_can_be_taken_back(timers: InMemoryTimers, schedules: Schedules) -> None:
    await schedules.put("report", Every(10), topic="reports")
    await timers.client.cancel("report@2026-10-24T12:00:20Z")
    await timers._clock.advance(30)
    assert instants(timers) == ["2026-10-24T12:00:00Z", "2026-10-24T12:00:10Z", "2026-10-24T12:00:30Z"]


async def test_the_next_runs_are_told_in_the_schedules_own_zone(schedules: Schedules) -> None:
    await schedules.put("report", Cron("0 3 * * *", zone="Europe/Paris"), topic="reports")
    assert [each.isoformat() for each in await schedules.next("report", 2)] == [
        "2026-10-25T03:00:00+01:00",
        "2026-10-26T03:00:00+01:00",
    ]
    await schedules.put("report", At([NOW_S + 60]), topic="reports")
    assert await schedules.next("report") == [datetime.fromtimestamp(NOW_S + 60, UTC)]


@pytest.mark.parametrize(
    ("times", "arguments", "told"),
    [
        (Cron("61 * * * *"), {}, "cron.expression: '61 * * * *' is no cron expression (Bad minute)"),
        (Cron("* * *"), {}, "cron.expression: '* * *' is no cron expression"),
        (Cron("* * * * *", zone="Mars/Olympus"), {}, "cron.zone: 'Mars/Olympus' is no time zone of tzdata"),
        (Cron("* * * * *", zone="../zones"), {}, "cron.zone: '../zones' is no time zone of tzdata"),
        (Cron("* * * * *", gap="jump"), {}, "gap: 'jump' is none of default, at-jump, skip"),  # type: ignore[arg-type]
        (Cron("0 0 30 2 *"), {}, "cron.expression: '0 0 30 2 *' is no cron expression"),
        ("* * * * *", {}, "times: '* * * * *' is none: give Cron, Every or At"),
        (Every(0.5), {}, "interval.every_ms: 500 is not from 1000 on"),
        (At([]), {}, "instants.at_ms: there are 0"),
        (Every(5), {"runs": 0}, "runs: 0 runs are none"),
        (Every(5), {"start": NOW_S, "end": NOW_S}, "until_ms: "),
        (Every(5), {"jitter": 90_000}, "jitter_ms: 90000000 is more than a day"),
        (Every(5), {"jitter": -1}, "jitter_ms: -1000 is negative"),
        (Every(5), {"catch_up": "some"}, "catch_up: 'some' is none of last, all, none"),
        (Every(5), {"headers": {"timer-schedule": b"x"}}, "callback.headers: timer-schedule is set by the service"),
    ],
)
async def test_an_invalid_schedule_is_refused_with_the_field(
    schedules: Schedules, times: Times, arguments: dict[str, object], told: str
) -> None:
    with pytest.raises(ScheduleError) as raised:
        await schedules.put("report", times, topic="reports", **arguments)  # type: ignore[arg-type]
    assert str(raised.value).startswith(told)


@pytest.mark.parametrize(
    "call",
    [
        lambda schedules: schedules.put("report", topic="reports"),
        lambda schedules: schedules.put("report", Every(5)),
        lambda schedules: schedules.put("report", Every(5), At([NOW_S]), topic="reports"),
        lambda schedules: schedules.put("report", Every(5), zone="Europe/Paris", topic="reports"),
        lambda schedules: Every(5, zone="Europe/Paris"),
        lambda schedules: Cron("* * * * *", anchor=NOW_S),
        lambda schedules: At([NOW_S], overlap="both"),
    ],
)
async def test_arguments_that_exclude_each_other_cannot_be_given(
    schedules: Schedules, call: Callable[[Schedules], Any]
) -> None:
    """tests/types/arguments.py has the same for type checkers."""
    with pytest.raises(TypeError):
        await call(schedules)


async def test_a_schedule_counts_from_its_anchor(timers: InMemoryTimers, schedules: Schedules) -> None:
    await schedules.put("report", Every(10, anchor=NOW_S + 3), topic="reports")
    await timers._clock.advance(15)
    assert instants(timers) == ["2026-10-24T12:00:03Z", "2026-10-24T12:00:13Z"]


async def test_a_schedule_needs_an_id_and_a_topic(schedules: Schedules) -> None:
    with pytest.raises(RequestError, match="timer_id is empty"):
        await schedules.put("", Every(5), topic="reports")
    with pytest.raises(RequestError, match="is not the name of a Kafka topic"):
        await schedules.put("report", Every(5), topic="")
    for call in (schedules.pause, schedules.resume, schedules.run_now, schedules.next):
        with pytest.raises(ScheduleError, match="there is no schedule 'nobody'"):
            await call("nobody")


def test_programs_without_asyncio_have_schedules_too() -> None:
    timers = InMemoryTimers(ManualClock(NOW_S))
    with timers.sync_client as client:
        put = client.schedules.put("report", Every(10), topic="reports")
        assert client.schedules.get("report") == put
        assert client.schedules.list() == [put]
        client.schedules.delete("report")
        assert client.schedules.get("report") is None
        with pytest.raises(ScheduleError, match="there is no schedule 'report'"):
            client.schedules.run_now("report")
