"""The commands that act on pending timers and on refused requests, on a real worker: each thing happens once."""

import asyncio
import json
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from commands import ended
from patience import LIMIT_S
from service import Service, take

from kafka_timers import request_from
from kafka_timers.clock import HostClock
from kafka_timers.core.routing import hash_of
from kafka_timers.core.wire import Callback, Future, Header
from kafka_timers.dev.broker import free_port


class Live:
    """A service that ticks and answers questions; tests use timer ids and topics of their own."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def run(self, *arguments: str) -> tuple[int, str, str]:
        """Return exit code, standard output and standard error of a command about this service."""
        return await ended(*arguments, "--bootstrap", self.service.bootstrap, "--topic-prefix", self.service.prefix)

    async def told(self, *arguments: str, code: int = 0) -> Any:
        """Return the JSON output of a command."""
        ended_with, output, errors = await self.run(*arguments, "--json")
        assert ended_with == code, (ended_with, output, errors)
        return json.loads(output)

    async def rejected(self, topic: str, count: int) -> list[dict[str, Any]]:
        """Return the output of `rejected` about requests for *topic*, once there are so many."""
        end_s = time.monotonic() + LIMIT_S
        while True:
            code, output, _ = await self.run("rejected", "--topic", topic, "--json")
            found = [json.loads(line) for line in output.splitlines()]
            if code == 0 and len(found) >= count:
                return found
            assert time.monotonic() < end_s, found
            await asyncio.sleep(0.2)

    async def fired(self, topic: str, count: int) -> list[str]:
        """Return the requests whose callbacks are on *topic*, once *count* are there and more seconds are sealed."""
        async with self.service.reading(topic) as consumer:
            records = await take(consumer, count, LIMIT_S)
            await self.until_sealed_again()
            records += await take(consumer, 1, 0.5)
        return sorted(request_from(record.headers) or "" for record in records)

    async def until_sealed_again(self) -> None:
        """Wait until all that was asked for before this call, for a second that has begun, has fired."""
        second = int(time.time()) + 2
        await asyncio.sleep(second - time.time())
        await self.service.until_sealed(second)


@pytest.fixture(scope="module")
async def live(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    prefix = f"acting-{time.time_ns()}-"
    folder: Path = tmp_path_factory.mktemp("acting")
    async with Service(bootstrap, prefix, folder) as service:
        await service.start("oscillator")
        await service.firing("--query-port", str(free_port()))
        yield Live(service)


async def test_a_refused_request_is_shown_and_sent_again_once_the_reason_is_gone(live: Live) -> None:
    """A second redrive of the same is ignored, with an id and without one."""
    service = live.service
    topic, due = service.prefix + "later", int(time.time()) + 1
    asked = [
        await service.request(
            due, Future(callBackTopic=topic, callBackKey="k", callBack=b"v", timerId="lost", token="t")
        ),
        await service.request(due, Future(callBackTopic=topic, callBackKey="k", callBack=b"v"), 1),
    ]
    found = await live.rejected(topic, 2)
    assert sorted(each["request"] for each in found) == sorted(asked)
    assert {(each["reason"], each["second"], each["value"]) for each in found} == {("topic-unknown", due, "v")}
    places = {each["timer_id"]: each["place"] for each in found}

    # Nobody says yes.
    code, output, errors = await live.run("redrive", "--topic", topic)
    assert (code, output.strip()) == (1, "")
    assert all(each in errors for each in [*places.values(), "topic-unknown", "id lost", "send 2 requests again?"])
    # And as long as the reason is there, it is refused again, as a request of its own.
    await live.told("redrive", places[None], "--yes")
    again = next(each for each in await live.rejected(topic, 3) if each["place"] not in places.values())
    assert (again["reason"], again["timer_id"]) == ("topic-unknown", f"rejected-{places[None]}")

    await service.create_topic(topic)
    # Workers believe for 5 s that a topic is missing.
    [lost] = await live.told("redrive", places["lost"], "--yes", "--in", "6s")
    [once] = await live.told("redrive", again["place"], "--yes", "--in", "6s")
    assert (lost["outcome"], once["outcome"]) == ("ACCEPTED", "ACCEPTED")
    assert await live.fired(topic, 2) == sorted([lost["asked"], once["asked"]])
    ignored = await live.told("redrive", *places.values(), again["place"], "--yes", code=5)
    assert [each["outcome"] for each in ignored] == ["IGNORED"] * 3
    assert {each["request"] for each in ignored} == {lost["asked"], once["asked"]}
    assert await live.fired(topic, 2) == sorted([lost["asked"], once["asked"]])


async def test_a_request_that_is_wrong_itself_is_not_sent_again(live: Live) -> None:
    await live.service.request("soon", Future(callBackTopic=live.service.prefix + "wrong", callBack=b"v"), 0)
    [found] = await live.rejected(live.service.prefix + "wrong", 1)
    assert found["reason"] == "key-not-a-second"
    code, output, errors = await live.run("redrive", found["place"], "--yes")
    assert (code, output) == (1, "")
    assert "its key names no second (key-not-a-second): give one, with --in or --at" in errors
    code, _, errors = await live.run("redrive", "0:999999", "--yes")
    assert (code, "timer-rejected has no record at 0:999999" in errors) == (1, True)


async def test_rejected_follows_requests_that_are_refused_from_now_on(live: Live) -> None:
    topic = live.service.prefix + "followed"
    where = ("--bootstrap", live.service.bootstrap, "--topic-prefix", live.service.prefix)
    command = [sys.executable, "-m", "kafka_timers", "rejected", "--topic", topic, "--follow", *where]
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        async with asyncio.timeout(LIMIT_S):
            assert await process.stderr.readline() == b"nothing was refused\n"
            request = await live.service.request(
                int(time.time()) - 5, Future(callBackTopic=topic, callBackKey="\x1b[31m")
            )
            lines = [(await process.stdout.readline()).decode() for _ in range(2)]
    finally:
        process.kill()
        await process.communicate()
    assert "topic-unknown" in lines[0]
    assert lines[0].endswith(f"; {live.service.topics.requests} {request}\n")
    assert lines[1].endswith(f" to {topic}, key \\x1b[31m\n")


async def test_cancel_where_cancels_the_matching_timers_and_no_others(live: Live) -> None:
    due = int(time.time()) + 3_600
    service = live.service
    for name in ("cust-7-a", "cust-7-b", "cust-8-a"):
        await service.request(due, Future(callBackTopic=service.callbacks, callBackKey="many", timerId=name))
    await service.request(due, Future(callBackTopic=service.callbacks, callBackKey="many"), 2)
    await live.until_sealed_again()

    code, _, errors = await live.run("cancel", "--where", "key=many", "--dry-run")
    assert code == 0
    assert "4 timers match" in errors
    assert "1 of them have no timer id, so they cannot be cancelled" in errors
    code, _, errors = await live.run("cancel", "--where", "key=many", "--limit", "2", "--yes")
    assert (code, "more than 2 timers match, so none was cancelled" in errors) == (1, True)
    code, output, errors = await live.run("cancel", "--where", "id-prefix=cust-7-")
    assert (code, output.strip(), "cancel 2 timers?" in errors) == (1, "", True)
    assert len(await waiting(live)) == 4

    done = await live.told("cancel", "--where", "id-prefix=cust-7-", "--where", "key=many", "--yes")
    assert sorted((each["timer_id"], each["outcome"]) for each in done) == [
        ("cust-7-a", "CANCELLED"),
        ("cust-7-b", "CANCELLED"),
    ]
    assert sorted(await waiting(live), key=str) == [None, "cust-8-a"]
    code, _, errors = await live.run("cancel", "--where", "id-prefix=cust-7-", "--yes")
    assert (code, "0 timers match" in errors) == (4, True)


async def waiting(live: Live) -> list[str | None]:
    """Return the ids of the timers that wait with the key `many`."""
    await live.until_sealed_again()
    code, output, errors = await live.run("list", "--key", "many", "--json")
    assert code == 0, errors
    return [json.loads(line)["timer_id"] for line in output.splitlines()]


async def test_fire_now_lets_a_timer_fire_as_it_was_asked_for_and_once(live: Live) -> None:
    service = live.service
    topic, due = service.prefix + "now", int(time.time()) + 3_600
    await service.create_topic(topic)
    headers = [Header(key="trace", value=b"\xff")]
    asked = Future(
        callBackTopic=topic, callBackKey="k", callBack=b"\xff\x00", timerId="soon", token="t", headers=headers
    )
    request = await service.request(due, asked)
    answer = await live.told("fire-now", "soon")
    assert (answer["outcome"], answer["request"]) == ("MOVED", request)
    assert await live.fired(topic, 1) == [answer["asked"]]
    [record] = await service.read(topic, 1)
    told = dict(record.headers)
    assert (record.key, record.value, told["timer-token"], told["trace"]) == (b"k", b"\xff\x00", b"t", b"\xff")
    code, _, errors = await live.run("fire-now", "soon")
    assert (code, "no timer of this id waits" in errors) == (4, True)


async def test_a_timer_is_asked_for_again_only_if_it_is_the_one_that_is_meant(live: Live) -> None:
    service = live.service
    topic, due = service.prefix + "again", int(time.time()) + 3_600
    await service.create_topic(topic)
    asked = Future(callBackRecord=Callback(topic=topic, key=b"\xff", partitionKey=b"k"), timerId="again", token="t")
    request = await service.request(due, asked)
    assert await live.told("ask-again", "nobody", "--in", "0s", code=4) is None
    assert await live.told("ask-again", "again", "--in", "0s", code=5) is None
    other = f"{request}0"
    assert (await live.told("fire-now", "again", "--request", other, code=5))["request"] == request
    await live.told("fire-now", "again", "--request", request)
    [fired] = await live.fired(topic, 1)
    assert await live.told("ask-again", "again", "--in", "0s", "--request", request, code=5) is None
    again = await live.told("ask-again", "again", "--in", "0s", "--request", fired)
    assert again["outcome"] == "ACCEPTED"
    assert await live.fired(topic, 2) == sorted([fired, again["asked"]])
    # One that was cancelled too.
    await service.request(due, asked)
    await live.told("cancel", "again")
    last = await live.told("ask-again", "again", "--in", "0s")
    assert last["outcome"] == "ACCEPTED"
    assert await live.fired(topic, 3) == sorted([fired, again["asked"], last["asked"]])
    told = {
        (each.key, each.value, each.partition, dict(each.headers)["timer-token"])
        for each in await service.read(topic, 3)
    }
    assert told == {(b"\xff", None, hash_of(b"k") % service.partitions, b"t")}
    assert (await live.run("ask-again", "again"))[0] == 2


async def test_now_is_the_last_tick_whatever_this_hosts_clock_shows(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, topic = live.service, live.service.prefix + "clock"
    await service.request(int(time.time()), Future(callBackTopic=topic, callBack=b"v", timerId="refused-then"))
    await live.rejected(topic, 1)
    await service.create_topic(topic)
    await service.request(int(time.time()) + 7_200, Future(callBackTopic=topic, callBack=b"v", timerId="ahead"))
    # Workers believe for 5 s that a topic is missing.
    await live.until_sealed_again()
    await service.until_sealed(int(time.time()) + 6)

    monkeypatch.setattr(HostClock, "wall_s", lambda _: time.time() + 3_600)
    moved = await live.told("fire-now", "ahead")
    [again] = await live.told("redrive", "--topic", topic, "--since", "30m", "--yes")
    assert (moved["outcome"], again["outcome"]) == ("MOVED", "ACCEPTED")
    assert await live.fired(topic, 2) == sorted([moved["asked"], again["asked"]])


async def test_a_timer_is_asked_for_moved_and_fires_by_the_millisecond(live: Live) -> None:
    topic, due = live.service.prefix + "millis", int(time.time()) + 3_600
    await live.service.create_topic(topic)
    what = ("--topic", topic, "--timer-id", "fine")
    sent = await live.told("send", "--at", f"{due}.345", *what)
    assert (sent["second"], sent["due_ms"]) == (due, due * 1000 + 345)
    [found] = (await live.told("find", "fine"))["records"]
    assert found["due_ms"] == due * 1000 + 345
    before_ms = int(time.time() * 1000)
    moved = await live.told("move", "fine", "--in", "1250ms", "--topic", topic)
    assert (moved["outcome"], moved["due_ms"]) == ("MOVED", due * 1000 + 345)
    [record] = await live.service.read(topic, 1)
    headers = dict(record.headers)
    due_ms = int(headers["timer-expiry"]) * 1000 + int(headers.get("timer-millis", 0))
    assert before_ms + 1_250 <= due_ms <= record.timestamp


async def test_next_and_ahead_show_the_coming_timers_and_their_number(live: Live) -> None:
    service, due = live.service, (int(time.time()) // 60 + 2_000) * 60
    topic = service.prefix + "coming"
    for number, second in enumerate((due + 120, due + 61, due, due + 60, due + 60)):
        await service.request(second, Future(callBackTopic=topic, callBack=b"v", timerId=f"coming-{number}"))
    await service.until_sealed(int(time.time()))
    told = await live.told("next", "--topic", topic)
    assert (told["timer_id"], told["second"], told["value"]) == ("coming-2", due, "v")
    code, output, _ = await live.run("next", "--id-prefix", "coming-", "--from", str(due + 1))
    assert (code, "coming-3" in output or "coming-4" in output) == (0, True)
    code, output, _ = await live.run("next", "--topic", service.prefix + "nothing")
    assert (code, output) == (4, "no such timer waits\n")
    assert await live.told("next", "--topic", service.prefix + "nothing", code=4) is None

    told = await live.told("ahead", "--from", str(due), "--to", str(due + 180))
    counts = [{"second": due, "count": 1}, {"second": due + 60, "count": 3}, {"second": due + 120, "count": 1}]
    assert told == {"unit": "minute", "from": due, "to": due + 180, "cut": False, "counts": counts}
    code, output, _ = await live.run("ahead", "--unit", "second", "--from", str(due + 60), "--to", str(due + 62))
    # Two bars, and the sum.
    lines = [line.split() for line in output.splitlines()]
    assert (code, [words[2] for words in lines]) == (0, ["2", "1", "3"])
    code, _, errors = await live.run("ahead", "--from", str(due), "--to", str(due))
    assert (code, "--to is to be later than --from" in errors) == (2, True)
