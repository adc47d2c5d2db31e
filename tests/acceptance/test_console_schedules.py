"""Schedules over HTTP, on a real planner, worker and Kafka."""

import asyncio
import time
from datetime import UTC, datetime
from itertools import product
from typing import Any

import pytest
from consoles import READ, Console
from patience import LIMIT_S

from kafka_timers import Every, TimerClient
from kafka_timers.core.moments import when_of
from kafka_timers.core.schedules import HOLD_PREFIX, Hold, Schedule
from kafka_timers.core.schedules import Cron as CronMessage
from kafka_timers.core.wire import Future, Header
from kafka_timers.v1.schedule_pb2 import Instants, Interval

PARIS = {"cron": "30 2 * * *", "zone": "Europe/Paris"}


async def put(console: Console, name: str, **more: object) -> Any:
    """Put a schedule that runs daily, and return how it is shown."""
    wish = PARIS | {"topic": console.service.callbacks, "value": "v"} | more
    status, told = await console.ask("PUT", f"/v1/schedules/{name}", wish)
    assert status == 200, told
    return told


async def act(console: Console, name: str, action: str, body: object = None) -> Any:
    """Return what an action on a schedule answers."""
    status, told = await console.ask("POST", f"/v1/schedules/{name}/{action}", body)
    assert status == 200, told
    return told


async def test_a_schedule_is_put_and_fires_and_tells_how_late_its_last_run_was(console: Console) -> None:
    topic = await console.topic("each-second")
    put_at = time.time()
    wish = {"everyS": 1, "topic": topic, "keyBase64": "/w==", "value": "v", "note": "n", "token": "t"}
    status, made = await console.ask("PUT", "/v1/schedules/each%2Fsecond", wish)
    assert (status, made["scheduleId"], made["times"], made["zone"]) == (200, "each/second", "every 1 s", "UTC")
    assert (made["keyBase64"], made["note"], made["paused"], made["skips"]) == ("/w==", "n", False, [])
    [coming] = made["next"]
    assert coming["timerId"] == f"each/second@{coming['at']}"
    assert coming["dueMs"] > put_at * 1000
    records = await console.service.read_all(topic, 3)
    assert {record.key for record in records} == {b"\xff"}
    end_s = time.monotonic() + LIMIT_S
    while (last := (told := await console.answer("/v1/schedules/each%2Fsecond"))["lastRun"]) is None:
        assert time.monotonic() < end_s, told
        await asyncio.sleep(0.2)
    came = {dict(each.headers)["timer-id"]: each.timestamp for each in await console.service.read_all(topic, 3)}
    assert last["latenessMs"] == came[last["timerId"].encode()] - last["dueMs"]
    assert last["timerId"] == f"each/second@{last['at']}"
    assert (told["wish"]["value"], told["wish"]["token"], len(told["next"])) == ("v", "t", 10)
    assert (await console.ask("DELETE", "/v1/schedules/each%2Fsecond"))[0] == 200
    assert (await console.ask("GET", "/v1/schedules/each%2Fsecond"))[0] == 404


async def test_a_preview_shows_what_would_run_and_writes_nothing(console: Console) -> None:
    wish = PARIS | {"topic": console.service.callbacks, "start": "2027-03-26T12:00:00Z", "jitterS": 60}
    # By somebody who may only look.
    status, plan = await console.ask("POST", "/v1/schedules/preview?id=preview-1", wish, token=READ)
    assert (status, plan["times"], len(plan["next"])) == (200, "30 2 * * * in Europe/Paris", 10)
    # On the 28th, there is no 02:30.
    shown = [(run["instant"], run["zone"], run["timerId"]) for run in plan["next"][:3]]
    assert shown == [
        ("2027-03-27T02:30:00+01:00", "CET", "preview-1@2027-03-27T01:30:00Z"),
        ("2027-03-28T03:00:00+02:00", "CEST", "preview-1@2027-03-28T01:00:00Z"),
        ("2027-03-29T02:30:00+02:00", "CEST", "preview-1@2027-03-29T00:30:00Z"),
    ]
    assert (await console.ask("GET", "/v1/schedules/preview-1"))[0] == 404
    await put(console, "preview-1", **wish)
    assert (await console.answer("/v1/schedules/preview-1"))["next"] == plan["next"]


async def test_a_run_is_skipped_and_the_schedule_is_paused_resumed_and_run(console: Console) -> None:
    topic = await console.topic("acted")
    first, second = (await console.ask("POST", "/v1/schedules/preview", PARIS | {"topic": topic}))[1]["next"][:2]
    await put(console, "acted", topic=topic)
    skipped = await act(console, "acted", "skip", {"instant": first["instant"]})
    assert (skipped["skips"], skipped["next"][0]["instant"]) == ([first["instant"]], second["instant"])
    # It was to be the one that was shown.
    status, told = await console.ask("POST", "/v1/schedules/acted/skip", {"instant": first["instant"]})
    assert (status, told["detail"]) == (
        409,
        f"instant: the next run that can be left out is {second['instant']} by now",
    )
    assert (await act(console, "acted", "unskip"))["skips"] == []
    assert len((await act(console, "acted", "skip"))["skips"]) == 1
    paused = await act(console, "acted", "pause", {"note": "the receiver moves"})
    assert (paused["paused"], paused["pauseNote"]) == (True, "the receiver moves")
    # A pause ends by no put that does not say so.
    assert (await put(console, "acted", topic=topic))["pauseNote"] == "the receiver moves"
    asked = await act(console, "acted", "run")
    [callback] = await console.service.read_all(topic, 1)
    assert dict(callback.headers)["timer-id"] == asked["timerId"].encode()
    assert dict(callback.headers)["timer-request"] == asked["request"].encode()
    resumed = await act(console, "acted", "resume")
    assert (resumed["paused"], resumed["pauseNote"]) == (False, "")
    status, deleted = await console.ask("DELETE", "/v1/schedules/acted")
    assert (status, deleted["scheduleId"]) == (200, "acted")
    async with TimerClient(console.service.bootstrap, topic_prefix=console.service.prefix) as timers:
        assert await timers.schedules.get("acted") is None
    assert "pause of schedule 'acted' by 'billing'" in console.process.child.log.read_text()


async def test_what_is_not_named_in_a_change_stays(console: Console) -> None:
    await put(console, "kept", key="k", note="n", runs=7, exceptDates=["2030-12-25"])
    status, told = await console.ask("PATCH", "/v1/schedules/kept", {"cron": "0 9 * * *", "value": "w"})
    assert (status, told["times"], told["key"], told["note"]) == (200, "0 9 * * * in UTC", "k", "n")
    wish = (await console.answer("/v1/schedules/kept"))["wish"]
    assert (wish["runs"], wish["exceptDates"], wish["value"]) == (7, ["2030-12-25"], "w")
    await console.ask("PATCH", "/v1/schedules/kept", {"runs": None, "note": None, "end": 2_000_000_000})
    wish = (await console.answer("/v1/schedules/kept"))["wish"]
    assert ("runs" in wish, wish["note"], wish["end"]) == (False, "", "2033-05-18T03:33:20Z")


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"gap": "skip", "overlap": "both", "catchUp": "none", "catchUpWindowS": 60, "keyBase64": "/w==", "value": ""},
        {"cron": None, "zone": None, "everyS": 1.5, "anchor": 7, "start": "2027-01-01T00:00:00.250Z", "end": 2e9},
        {"cron": None, "zone": None, "at": [1.9e9, "2031-01-01T00:00:00.5Z"], "tombstone": True, "value": None},
        {"runs": 3, "jitterS": 0.5, "token": "t", "headers": [{"name": "h", "valueBase64": "/w=="}, {"name": "n"}]},
        {"partition": 3, "key": ""},
        {"partitionKeyBase64": "/w==", "key": "k", "exceptDates": ["2030-12-25"]},
    ],
)
async def test_a_schedule_is_told_so_that_the_same_can_be_put(console: Console, more: dict[str, Any]) -> None:
    await put(console, "told", **more)
    told = await console.answer("/v1/schedules/told")
    status, again = await console.ask("PUT", f"/v1/schedules/told?version={told['version']}", told["wish"])
    assert (status, again["version"]) == (200, told["version"]), again


async def test_an_action_on_another_version_than_was_seen_changes_nothing(console: Console) -> None:
    seen = (await put(console, "seen"))["version"]
    wish = PARIS | {"topic": console.service.callbacks}
    status, told = await console.ask("PUT", "/v1/schedules/seen?version=new", wish)
    assert (status, "you have seen none, and 'seen' runs 30 2 * * * in Europe/Paris" in told["detail"]) == (409, True)
    # By another one meanwhile.
    async with TimerClient(console.service.bootstrap, topic_prefix=console.service.prefix) as timers:
        await timers.schedules.change("seen", Every(3_600))
        await timers.schedules.pause("seen", "moves")
    for method, path, body in (
        ("PUT", "", wish),
        ("PATCH", "", {"note": "n"}),
        ("DELETE", "", None),
        ("POST", "/pause", {"note": "mine"}),
        ("POST", "/resume", None),
        ("POST", "/skip", None),
        ("POST", "/unskip", None),
        ("POST", "/run", None),
    ):
        status, told = await console.ask(method, f"/v1/schedules/seen{path}?version={seen}", body)
        assert status == 409, (path, told)
        assert "you have seen another one, and 'seen' runs every 3600 s" in told["detail"]
        assert told["detail"].endswith(", paused: moves")
    told = await console.answer("/v1/schedules/seen")
    assert (told["times"], told["paused"], told["skips"]) == ("every 3600 s", True, [])
    status, told = await console.ask("POST", f"/v1/schedules/seen/resume?version={told['version']}")
    assert (status, told["paused"]) == (200, False)
    status, _ = await console.ask("PUT", "/v1/schedules/gone?version=0123456789abcdef", wish)
    assert status == 404


async def test_schedules_are_listed_by_pages(console: Console) -> None:
    await asyncio.gather(*(put(console, f"list-{number}") for number in range(5)))
    await console.ask("POST", "/v1/schedules/list-3/pause", {"note": "why"})
    # One that somebody else has put, and that cannot be planned.
    wrong = await _wrong(console, "list-9")
    names, cursor, pages = list[str](), "", 0
    while cursor is not None:
        page = await console.answer(f"/v1/schedules?prefix=list-&limit=2&cursor={cursor}")
        names += [each["scheduleId"] for each in page["schedules"]]
        cursor, pages = page["cursor"], pages + 1
    assert (names, pages) == ([*(f"list-{number}" for number in range(5)), "list-9"], 3)
    listed = {each["scheduleId"]: each for each in (await console.answer("/v1/schedules?prefix=list-"))["schedules"]}
    assert (listed["list-3"]["paused"], listed["list-3"]["pauseNote"]) == (True, "why")
    assert (listed["list-9"]["problem"], listed["list-9"]["next"]) == (wrong, [])
    assert len(listed["list-0"]["next"]) == 1
    due = when_of(listed["list-0"]["next"][0]["at"])
    assert isinstance(due, datetime)
    assert due > datetime.now(UTC)
    assert "value" not in listed["list-0"]


async def test_a_record_that_is_no_schedule_is_replaced(console: Console) -> None:
    async with TimerClient(console.service.bootstrap, topic_prefix=console.service.prefix) as timers:
        await timers.schedules._channel.write_schedule(b"broken", b"broken", b"\xff")
    status, told = await console.ask("GET", "/v1/schedules/broken")
    assert (status, told["detail"]) == (422, "value: the value is no protobuf message Schedule")
    assert (await console.answer("/v1/schedules?prefix=broken"))["schedules"] == []
    assert (await put(console, "broken"))["problem"] == ""


async def _wrong(console: Console, name: str) -> str:
    """Write a schedule with an unknown time zone, and return what is wrong with it."""
    await put(console, name)
    status, told = await console.ask("PATCH", f"/v1/schedules/{name}", {"cron": "0 9 * * *", "zone": "Europe/Pariss"})
    assert status == 422
    async with TimerClient(console.service.bootstrap, topic_prefix=console.service.prefix) as timers:
        found = await timers.schedules.get(name)
        assert found is not None
        found.message.cron.zone = "Europe/Pariss"
        await timers.schedules._channel.write_schedule(name.encode(), name.encode(), found.message.SerializeToString())
    return str(told["detail"])


async def test_any_schedule_that_others_have_written_is_answered(console: Console) -> None:
    most, topic = (1 << 63) - 1, console.service.callbacks
    header = Future(headers=[Header(key="h", value=b"\xff"), Header(key="n")], callBackTopic=topic)
    odd = [
        Schedule(),
        Schedule(cron=CronMessage(expression="* * * * *", gap=7, zone="/"), callback=Future(callBackTopic="no topic!")),
        Schedule(interval=Interval(every_ms=-5, anchor_ms=most), from_ms=most, until_ms=-most, callback=header),
        Schedule(interval=Interval(every_ms=1_000, anchor_ms=7), jitter_ms=most, catch_up=9, runs_max=-1),
        Schedule(instants=Instants(at_ms=[-most, 0, most]), except_dates=["x"], catch_up_window_s=-1),
        Schedule(interval=Interval(every_ms=60_000), callback=Future(callBackTopic="no topic!", tombstoneKey="k")),
        Schedule(interval=Interval(every_ms=60_000), callback=Future(callBackTopic=topic, timerId="no", millis=7)),
    ]
    holds = [Hold(skipped_ms=[-most, most]).SerializeToString(), b"\xff", None]
    names = [f"odd-{number}-{kind}" for number in range(len(odd)) for kind in range(len(holds))]
    async with TimerClient(console.service.bootstrap, topic_prefix=console.service.prefix) as timers:
        write = timers.schedules._channel.write_schedule
        for name, (schedule, hold) in zip(names, product(odd, holds), strict=True):
            key = name.encode()
            await write(key, key, schedule.SerializeToString())
            await write(key, HOLD_PREFIX + key, hold)
    listed = await console.answer("/v1/schedules?prefix=odd-&limit=100")
    assert [each["scheduleId"] for each in listed["schedules"]] == names
    for name in names:
        assert (await console.answer(f"/v1/schedules/{name}"))["scheduleId"] == name
    for name in names[:: len(holds)]:
        for method, path, body in (
            ("POST", "/pause", None),
            ("POST", "/skip", None),
            ("POST", "/run", None),
            ("POST", "/unskip", None),
            ("PATCH", "", {"note": "n"}),
            ("PUT", "", {"everyS": 60, "topic": topic}),
            ("DELETE", "", None),
        ):
            status, told = await console.ask(method, f"/v1/schedules/{name}{path}", body)
            assert status in (200, 403, 409, 422), (name, path, told)


async def test_who_may_only_look_changes_no_schedule_and_no_topic_is_used_but_the_allowed_ones(
    console: Console,
) -> None:
    await put(console, "roles")
    wish = PARIS | {"topic": console.service.callbacks}
    for token, status in ((None, 401), (READ, 403)):
        for method, path, body in (
            ("PUT", "", wish),
            ("PATCH", "", {"note": "n"}),
            ("DELETE", "", None),
            *(("POST", f"/{action}", None) for action in ("pause", "resume", "skip", "unskip", "run")),
        ):
            assert (await console.ask(method, f"/v1/schedules/roles{path}", body, token=token))[0] == status
    assert (await console.ask("GET", "/v1/schedules", token=None))[0] == 401
    for method, path, body in (
        ("PUT", "roles", wish | {"topic": "other"}),
        ("PATCH", "roles", {"topic": "other"}),
        ("POST", "preview", wish | {"topic": "other"}),
    ):
        status, told = await console.ask(method, f"/v1/schedules/{path}", body)
        assert (status, "topic other is none of the allowed ones" in told["detail"]) == (403, True)
    async with TimerClient(console.service.bootstrap, topic_prefix=console.service.prefix) as timers:
        await timers.schedules.change("roles", topic="other")
    status, told = await console.ask("POST", "/v1/schedules/roles/run")
    assert (status, "topic other is none of the allowed ones" in told["detail"]) == (403, True)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({}, "give one of `cron`, `everyS` and `at`"),
        ({"cron": "* * * * *", "everyS": 5}, "give one of `cron`, `everyS` and `at`"),
        ({"everyS": 5, "zone": "Europe/Paris"}, "`zone` has no effect without `cron`"),
        ({"cron": "* * * *"}, "cron.expression: "),
        ({"cron": "* * * * *", "zone": "Europe/Pariss"}, "cron.zone: 'Europe/Pariss' is no time zone of tzdata"),
        ({"everyS": 0.5}, "everyS"),
        ({"at": ["2020-01-01T00:00:00Z"]}, "instants: it has no run from now on"),
        ({"at": ["tomorrow"]}, "at: 'tomorrow' is neither ISO 8601"),
        ({"at": []}, "instants.at_ms: there are 0"),
        ({"everyS": 5, "start": 1_900_000_000_000}, "start: "),
        ({"everyS": 5, "end": "2020-01-01T00:00:00Z"}, "interval: it has no run from now on"),
        ({"everyS": 5, "exceptDates": ["25 December"]}, "except_dates: '25 December' is no day"),
        ({"everyS": 5, "jitterS": 90_000}, "jitter_ms: 90000000 is more than a day"),
        ({"everyS": 5, "headers": [{"name": "timer-schedule", "value": "x"}]}, "callback.headers: timer-schedule"),
        ({"everyS": 5, "valueBase64": "?"}, "value is not in base64"),
        ({"everyS": 5, "unknown": 1}, "unknown: there is no such field"),
    ],
)
async def test_an_impossible_schedule_is_refused_with_the_sentence_of_the_client(
    console: Console, body: dict[str, Any], told: str
) -> None:
    for method, path in (("PUT", "impossible"), ("POST", "preview")):
        status, problem = await console.ask(
            method, f"/v1/schedules/{path}", {"topic": console.service.callbacks} | body
        )
        assert (status, told in problem["detail"]) == (422, True), problem
    assert (await console.ask("GET", "/v1/schedules/impossible"))[0] == 404
    for method, path in (("PATCH", ""), ("DELETE", ""), ("POST", "/pause"), ("POST", "/run")):
        status, problem = await console.ask(
            method, f"/v1/schedules/impossible{path}", {} if method == "PATCH" else None
        )
        assert (status, problem["detail"]) == (404, "there is no schedule 'impossible'")
