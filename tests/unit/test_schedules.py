"""Recurring timers as services use them, in memory."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kafka_timers import At, Cron, Every
from kafka_timers.client.recurring import Schedules, draft
from kafka_timers.client.schedule_options import ScheduleOptions
from kafka_timers.client.times import Times
from kafka_timers.core.schedules import CatchUp
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
    paused = await schedules.pause("b", "an incident")
    assert (paused.paused, paused.note, paused.hold.note) == (True, "of Bea", "an incident")
    await clock.advance(1)
    timers.take("reports")
    await clock.advance(59)
    assert instants(timers) == []
    resumed = await schedules.resume("b")
    assert (resumed.paused, resumed.note, resumed.hold.note) == (False, "of Bea", "")
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
    assert [each.instant.isoformat() for each in await schedules.next("report", 2)] == [
        "2026-10-25T03:00:00+01:00",
        "2026-10-26T03:00:00+01:00",
    ]
    await schedules.put("report", At([NOW_S + 60]), topic="reports")
    moment = datetime.fromtimestamp(NOW_S + 60, UTC)
    assert await schedules.next("report") == [(moment, moment, "report@2026-10-24T12:01:00Z")]


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
        (Every(5), {"runs": 1 << 63}, "runs: 9223372036854775808 runs are none"),
        (Every(5), {"runs": True}, "runs: True runs are none"),
        (Every(float("nan")), {}, "interval.every_ms: nan s are no duration"),
        (Every(float("inf")), {}, "interval.every_ms: inf s are no duration"),
        (Every(1e30), {}, "interval.every_ms: 1e+30 s are no duration"),
        (Every(1.0004), {}, "interval.every_ms: 1.0004 is not a whole number of milliseconds"),
        (Every("5"), {}, "interval.every_ms: '5' is of type str"),  # type: ignore[arg-type]
        (Every(5, anchor=float("nan")), {}, "anchor: nan is not a point in time"),
        (Cron(None), {}, "cron.expression: None is no text"),  # type: ignore[arg-type]
        (Cron("* * * * *", zone=None), {}, "cron.zone: None is no text"),  # type: ignore[arg-type]
        (At([NOW_S * 1000]), {}, "moments: 1792843200000 looks like milliseconds"),
        (Every(5), {"start": "tomorrow"}, "start: 'tomorrow' is of type str"),
        (Every(5), {"end": float("inf")}, "end: inf is not a point in time"),
        (Every(5), {"note": 5}, "note: 5 is no text"),
        (Every(5), {"catch_up": []}, "catch_up: [] is none of"),
        (Every(5), {"catch_up_window": "1d"}, "catch_up_window: '1d' is of type str"),
        (Every(5), {"except_dates": ["25.12.2026"]}, "except_dates: '25.12.2026' is no day: give one as 2026-12-25"),
        (Every(5), {"except_dates": ["20261225"]}, "except_dates: '20261225' is no day"),
        (Every(5), {"end": NOW_S - 5}, "interval: it has no run from now on"),
        (At([NOW_S - 1]), {}, "instants: it has no run from now on"),
        (Every(5), {"start": NOW_S, "end": NOW_S}, "until_ms: "),
        (Every(5), {"jitter": 90_000}, "jitter_ms: 90000000 is more than a day"),
        (Every(5), {"jitter": -1}, "jitter_ms: -1000 is negative"),
        (Every(5), {"jitter": None}, "jitter: None is of type NoneType"),
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
        client.schedules.put("report", Every(10), topic="reports")
        put = client.schedules.get("report")
        assert put is not None
        assert client.schedules.list() == [put]
        assert client.schedules.skip("report").timer_id == "report@2026-10-24T12:00:10Z"
        assert client.schedules.change("report", note="new").note == "new"
        client.schedules.delete("report")
        assert client.schedules.get("report") is None
        with pytest.raises(ScheduleError, match="there is no schedule 'report'"):
            client.schedules.run_now("report")


# --- changes that meet ------------------------------------------------------------------------------------------------


async def test_a_schedule_that_is_put_anew_stays_paused_and_keeps_why(schedules: Schedules) -> None:
    await schedules.put("report", Every(10), topic="reports")
    await schedules.pause("report", "incident 42")
    await schedules.put("report", Every(20), topic="reports")
    found = await schedules.get("report")
    assert found is not None
    assert (found.paused, found.hold.note, found.times) == (True, "incident 42", "every 20 s")
    await schedules.put("report", Every(20), topic="reports", paused=False)
    found = await schedules.get("report")
    assert found is not None
    assert (found.paused, found.hold.note) == (False, "")


async def test_a_schedule_that_is_refused_is_not_paused(schedules: Schedules) -> None:
    await schedules.put("report", Every(10), topic="reports")
    with pytest.raises(ScheduleError, match="it has no run from now on"):
        await schedules.put("report", At([NOW_S - 5]), topic="reports", paused=True)
    assert [each.paused for each in await schedules.list()] == [False]


async def test_a_schedule_that_is_deleted_forgets_its_pause(timers: InMemoryTimers, schedules: Schedules) -> None:
    await schedules.put("report", Every(10), topic="reports", paused=True)
    await schedules.delete("report")
    await schedules.put("report", Every(10), topic="reports")
    await timers._clock.advance(10)
    assert len(instants(timers)) == 2


async def test_what_is_not_named_stays_as_it_is(schedules: Schedules) -> None:
    options: Any = {"key": "k", "value": b"v", "token": "t", "headers": {"own": b"1"}, "partition": 3, "runs": 7}
    await schedules.put("report", Cron("0 9 * * *", zone="Europe/Paris"), topic="reports", note="n", **options)
    before = await schedules.get("report")
    after = await schedules.change("report", value=b"new", except_dates=["2026-12-25"])
    assert before is not None
    expected = type(before.message)()
    expected.CopyFrom(before.message)
    expected.callback.callBackRecord.value = b"new"
    expected.except_dates.append("2026-12-25")
    assert after.message == expected
    at = await schedules.change("report", At([NOW_S + 9]), runs=None, topic="elsewhere")
    assert (at.times, at.topic, at.value, at.message.runs_max) == ("1 moments", "elsewhere", b"new", 0)
    again = await schedules.change("report", At([NOW_S + 10]))
    assert list(again.message.instants.at_ms) == [(NOW_S + 10) * 1000]
    with pytest.raises(ScheduleError, match="there is no schedule 'nobody'"):
        await schedules.change("nobody", note="n")


class Meeting:
    """A channel on which another client writes right before each of the next writes."""

    def __init__(self, channel: Any, *others: Callable[[], Awaitable[Any]]) -> None:
        self._channel, self._others = channel, list(others)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    async def write_schedule(self, *arguments: Any) -> int:
        if self._others:
            await self._others.pop(0)()
        offset: int = await self._channel.write_schedule(*arguments)
        return offset


async def test_changes_that_meet_are_both_made(schedules: Schedules) -> None:
    await schedules.put("report", Every(10), topic="reports", note="old")
    ours = Schedules(
        Meeting(
            schedules._channel,
            lambda: schedules.change("report", note="theirs"),
            lambda: schedules.put("report", Every(20), topic="reports", note="put anew"),
        ),
        schedules._clock,
        frozenset(),
    )
    found = await ours.change("report", value=b"ours")
    assert (found.note, found.value, found.times) == ("put anew", b"ours", "every 20 s")


async def test_a_pause_and_a_put_that_meet_are_both_made(schedules: Schedules) -> None:
    await schedules.put("report", Every(10), topic="reports")
    ours = Schedules(
        Meeting(schedules._channel, lambda: schedules.put("report", Every(20), topic="reports", value=b"new")),
        schedules._clock,
        frozenset(),
    )
    found = await ours.pause("report")
    assert (found.paused, found.times, found.value) == (True, "every 20 s", b"new")


async def test_a_skip_and_a_pause_that_meet_are_both_made(schedules: Schedules) -> None:
    await schedules.put("report", Every(10), topic="reports")
    ours = Schedules(Meeting(schedules._channel, lambda: schedules.skip("report")), schedules._clock, frozenset())
    found = await ours.pause("report")
    assert (found.paused, len(found.hold.skipped_ms)) == (True, 1)


async def test_a_change_brings_no_schedule_back_that_was_deleted_meanwhile(schedules: Schedules) -> None:
    await schedules.put("report", Every(10), topic="reports")
    ours = Schedules(Meeting(schedules._channel, lambda: schedules.delete("report")), schedules._clock, frozenset())
    with pytest.raises(ScheduleError, match="there is no schedule 'report'"):
        await ours.change("report", note="ours")
    assert await schedules.get("report") is None


# --- what will be -----------------------------------------------------------------------------------------------------


async def test_the_next_run_can_be_skipped_and_brought_back(timers: InMemoryTimers, schedules: Schedules) -> None:
    await schedules.put("report", Every(10), topic="reports")
    assert (await schedules.skip("report")).timer_id == "report@2026-10-24T12:00:10Z"
    assert (await schedules.skip("report")).timer_id == "report@2026-10-24T12:00:20Z"
    assert (await schedules.next("report", 1))[0].timer_id == "report@2026-10-24T12:00:30Z"
    await timers._clock.advance(12)
    await schedules.unskip("report")
    await timers._clock.advance(20)
    assert instants(timers) == ["2026-10-24T12:00:00Z", "2026-10-24T12:00:20Z", "2026-10-24T12:00:30Z"]


async def test_the_next_runs_are_as_many_as_are_left(timers: InMemoryTimers, schedules: Schedules) -> None:
    await schedules.put("report", Every(10, anchor=NOW_S), topic="reports", runs=4, start=NOW_S + 1)
    assert len(await schedules.next("report", 9)) == 4
    await timers._clock.advance(25)
    assert [each.timer_id[-4:] for each in await schedules.next("report", 9)] == [":30Z", ":40Z"]
    await timers._clock.advance(20)
    assert await schedules.next("report", 9) == []
    assert len(instants(timers)) == 4


async def test_the_next_runs_are_told_with_their_jitter(timers: InMemoryTimers, schedules: Schedules) -> None:
    await schedules.put("report", Every(60), topic="reports", jitter=600)
    await timers._clock.advance(300)
    timers.take("reports")
    told = [each for each in await schedules.next("report", 50) if each.due.timestamp() < NOW_S + 800]
    assert any(each.instant.timestamp() < NOW_S + 300 for each in told)
    await timers._clock.advance(500)
    fired = {(dict(record.headers)["timer-id"] or b"").decode() for record in timers.take("reports")}
    assert {each.timer_id for each in told} <= fired


async def test_the_last_run_is_told_with_its_jitter(timers: InMemoryTimers, schedules: Schedules) -> None:
    await schedules.put("report", Every(60), topic="reports", jitter=600)
    await schedules.put("monthly", Cron("0 9 1 * *"), topic="reports")
    await schedules.put("once", At([NOW_S + 1_100]), topic="reports")
    await timers._clock.advance(1_000)
    fired = {(dict(record.headers)["timer-id"] or b"").decode() for record in timers.take("reports")}
    report, monthly, once = [await schedules.get(name) for name in ("report", "monthly", "once")]
    assert report is not None
    assert monthly is not None
    assert once is not None
    last = report.last(NOW_S + 1_000)
    assert last is not None
    # The latest of the instants that were due.
    assert last.timer_id == max(fired)
    assert last.due <= datetime.fromtimestamp(NOW_S + 1_000, UTC)
    ninth = datetime(2026, 10, 1, 9, tzinfo=UTC)
    assert monthly.last(NOW_S) == (ninth, ninth, "monthly@2026-10-01T09:00:00Z")
    assert monthly.last(ninth) == monthly.last(NOW_S)
    assert once.last(NOW_S) is None


async def test_a_run_is_left_out_only_if_it_is_the_next_one(schedules: Schedules) -> None:
    await schedules.put("report", Every(60), topic="reports")
    first, second, third = await schedules.next("report", 3)
    with pytest.raises(ScheduleError, match="instant: the next run that can be left out is 2026-10-24T12:01:00"):
        await schedules.skip("report", second.instant)
    assert await schedules.next("report", 3) == [first, second, third]
    assert await schedules.skip("report", first.instant) == first
    assert await schedules.next("report", 2) == [second, third]


async def test_a_draft_is_what_would_be_put_and_is_not_put(schedules: Schedules) -> None:
    times, options = Cron("0 3 * * *", zone="Europe/Paris"), ScheduleOptions(jitter=600, note="n")
    made = draft("report", times, {"topic": "reports", **options}, (), NOW_S)
    assert await schedules.get("report") is None
    await schedules.put("report", times, topic="reports", **options)
    found = await schedules.get("report")
    assert found is not None
    assert (found.message, found.next(3, NOW_S)) == (made.message, made.next(3, NOW_S))
    with pytest.raises(ScheduleError, match="instants: it has no run from now on"):
        draft("report", At([NOW_S - 1]), {"topic": "reports"}, (), NOW_S)


async def test_a_day_can_be_left_out(timers: InMemoryTimers, schedules: Schedules) -> None:
    # In the night to the 25th, the clocks of Paris go back.
    await schedules.put(
        "report", Cron("0 */6 * * *", zone="Europe/Paris"), topic="reports", except_dates=["2026-10-25"]
    )
    await timers._clock.advance(2 * 86_400)
    assert instants(timers) == [
        "2026-10-24T16:00:00Z",
        "2026-10-25T23:00:00Z",
        "2026-10-26T05:00:00Z",
        "2026-10-26T11:00:00Z",
    ]


async def test_a_window_of_nothing_makes_up_for_nothing(schedules: Schedules) -> None:
    await schedules.put("report", Every(10), topic="reports", catch_up="all", catch_up_window=0)
    found = await schedules.get("report")
    assert found is not None
    assert found.message.catch_up == CatchUp.CATCH_UP_NONE
