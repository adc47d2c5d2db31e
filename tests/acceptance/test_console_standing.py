"""What stands under an id, and that no action meets another timer than the one that was meant: over HTTP."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from consoles import OPERATE, Console
from service import Service

from kafka_timers import TimerClient
from kafka_timers.core.routing import hash_of
from kafka_timers.core.wire import Future


@pytest.fixture
async def client(console: Console) -> AsyncIterator[TimerClient]:
    """Somebody else, who asks over Kafka."""
    async with TimerClient(console.service.bootstrap, topic_prefix=console.service.prefix) as started:
        yield started


async def test_what_stands_is_told_and_beside_it_what_was_ignored(console: Console, client: TimerClient) -> None:
    topic, due = await console.topic("stands"), int(time.time()) + 600
    _, made = await console.ask("POST", "/v1/timers", {"at": due, "topic": topic, "value": "1", "timerId": "stands"})
    answer = await client.create("stands", due + 300, topic=topic, value=b"2")
    # A question changes nothing either, and is no part of the history.
    waiting = await client.get("stands")
    assert (answer.outcome, waiting and waiting.request) == ("IGNORED", made["request"])
    for path in ("/v1/timers/stands", "/v1/timers/stands?history=false"):
        told = await console.answer(path)
        assert (told["state"], told["request"], told["value"], told["second"]) == ("pending", made["request"], "1", due)
    told = await console.until("/v1/timers/stands", complete=True)
    assert [(each["request"], each["state"]) for each in told["history"]] == [
        (made["request"], "pending"),
        (answer.asked, "ignored"),
    ]
    # So it is once it has fired.
    status, moved = await console.ask("PATCH", "/v1/timers/stands", {"after": 0})
    assert status == 200
    assert len(await console.fired(topic, 1)) == 1
    await client.create("stands", due, topic=topic, value=b"3")
    told = await console.answer("/v1/timers/stands")
    assert (told["state"], told["request"], told["value"]) == ("fired", moved["request"], "1")
    assert [each["state"] for each in told["history"]] == ["moved", "ignored", "fired", "ignored"]
    # And of an id with nothing but such records no timer is known.
    await client.cancel("nothing-stands", if_pending=True)
    status, told = await console.ask("GET", "/v1/timers/nothing-stands")
    assert (status, "no timer is known as 'nothing-stands'" in told["detail"]) == (404, True)


async def test_a_repeat_tells_what_has_become_of_the_timer(console: Console, client: TimerClient) -> None:
    topic, key = await console.topic("repeated"), "clé-é"
    asked = {"after": 3_600, "topic": topic, "value": "v"}

    async def repeat(body: dict[str, Any] = asked, key: str = key) -> tuple[int, dict[str, Any]]:
        status, told = await console.ask("POST", "/v1/timers", body, Idempotency_Key=key)
        assert status != 200 or (told["outcome"], told["replay"], told["timerId"]) == ("IGNORED", True, key)
        return status, told

    # The text of the header is the id, whichever way it comes.
    status, made = await repeat()
    assert (status, made["timerId"], made["replay"]) == (201, key, False)
    assert (await console.ask("POST", "/v1/timers", asked | {"timerId": key}))[0] == 409
    status, told = await repeat(asked | {"timerId": key})
    assert (status, told["state"], told["request"], told["dueMs"]) == (200, "pending", made["request"], made["dueMs"])
    # Another body is no repeat.
    for other in ({"value": "w"}, {"after": 3_601}, {"key": "k"}, {"tombstone": False}):
        status, told = await repeat(asked | other)
        assert (status, "with another body" in told["detail"]) == (422, True)
    # One that was moved is the timer still.
    _, moved = await console.ask("PATCH", "/v1/timers/cl%C3%A9-%C3%A9", {"after": 1_800})
    status, told = await repeat()
    assert (status, told["state"], told["request"], told["second"]) == (
        200,
        "pending",
        moved["request"],
        moved["second"],
    )
    assert (await repeat(asked | {"value": "w"}))[0] == 422
    assert (await console.ask("DELETE", "/v1/timers/cl%C3%A9-%C3%A9"))[0] == 200
    status, told = await repeat()
    assert (status, told["state"], told["request"]) == (200, "cancelled", moved["request"])
    assert (await repeat(asked | {"value": "w"}))[0] == 422

    lost = {"after": 0, "topic": console.service.prefix + "lost"}
    assert (await repeat(lost, "lost"))[0] == 201
    refused = await console.until("/v1/timers/lost", state="refused")
    status, told = await repeat(lost, "lost")
    assert (status, told["state"], told["reason"], told["request"]) == (
        200,
        "refused",
        "topic-unknown",
        refused["request"],
    )
    # Of a timer that somebody else has made it is no repeat at all.
    await client.after(3_600, topic=topic, timer_id="somebodys")
    status, told = await repeat(asked, "somebodys")
    assert (status, "no request with this Idempotency-Key has made it" in told["detail"]) == (409, True)


async def test_an_idempotency_key_that_is_no_text_is_refused(console: Console) -> None:
    body = json.dumps({"after": 3_600, "topic": console.service.callbacks}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", console.process.port)
    about = f"Host: localhost\r\nAuthorization: Bearer {OPERATE}\r\nContent-Length: {len(body)}\r\n".encode()
    about += b"Content-Type: application/json\r\nConnection: close\r\nIdempotency-Key: a\xe9\r\n\r\n"
    writer.write(b"POST /v1/timers HTTP/1.1\r\n" + about + body)
    answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 422 ")
    assert b"Idempotency-Key is not UTF-8" in answer
    writer.close()


async def somebody_elses(client: TimerClient, service: Service, timer_id: str) -> str:
    """Set another timer under an id, and return its request."""
    other = await client.after(2_400, topic=service.callbacks, key="x", value=b"else's", timer_id=timer_id)
    return other.request


async def test_no_change_meets_the_timer_of_somebody_else(console: Console, client: TimerClient) -> None:
    service, topic = console.service, await console.topic("mine")
    body = {"after": 3_600, "topic": topic, "value": "mine"}
    for method, change in (("PATCH", {"after": 0}), ("PUT", body), ("PUT", {"after": 5}), ("DELETE", None)):
        timer_id = f"mine-{method}-{len(change or ())}"
        path = f"/v1/timers/{timer_id}"
        _, made = await console.ask("POST", "/v1/timers", body | {"timerId": timer_id})
        other = await somebody_elses(client, service, timer_id)
        status, told = await console.ask(method, f"{path}?request={made['request']}", change)
        assert (status, "nothing has changed" in told["detail"], other in told["detail"]) == (409, True, True), told
        told = await console.until(path, complete=True)
        assert (told["state"], told["request"], told["value"]) == ("pending", other, "else's")
        # What was cancelled meanwhile is told too.
        await client.cancel(timer_id)
        if method != "DELETE":
            status, told = await console.ask(method, f"{path}?request={made['request']}", change)
            assert (status, "was cancelled" in told["detail"], other in told["detail"]) == (409, True, True), told
    # Of the timer that is meant each does what it does without it.
    for method, change, outcome in (
        ("PATCH", {"after": 60}, "MOVED"),
        ("PUT", body, "MOVED"),
        ("DELETE", None, "CANCELLED"),
    ):
        _, made = await console.ask("POST", "/v1/timers", body | {"timerId": f"meant-{method}"})
        status, told = await console.ask(method, f"/v1/timers/meant-{method}?request={made['request']}", change)
        assert (status, told["outcome"]) == (200, outcome)
    assert (await console.ask("PATCH", "/v1/timers/meant-PATCH?request=1:x", {"after": 60}))[0] == 422


async def test_a_timer_is_asked_for_again_unless_another_has_its_id(console: Console, client: TimerClient) -> None:
    service, topic = console.service, await console.topic("again")
    body = {"topic": topic, "keyBase64": "/wA=", "tombstone": True, "partitionKeyBase64": "AP8=", "token": "t"}
    body["headers"] = [{"name": "h", "valueBase64": "/w=="}, {"name": "none"}]
    for number, state in enumerate(("fired", "cancelled", "refused")):
        timer_id = f"again-{state}"
        path = f"/v1/timers/{timer_id}"
        _, made = await console.ask("PUT", path, body | {"after": 3_600 if state == "cancelled" else 0})
        if state == "cancelled":
            await console.ask("DELETE", path)
        elif state == "refused":
            lost = Future(callBackTopic=service.prefix + "again-lost", timerId=timer_id)
            made = {"request": await service.request(int(time.time()), lost)}
        told = await console.until(path, state=state, complete=True)
        assert told["request"] == made["request"]
        # Without a callback it has that of the request, byte for byte, and it does not need to be sent.
        status, again = await console.ask("PUT", f"{path}?request={made['request']}", {"after": 3_600})
        assert (status, again["state"]) == (200, "pending"), (state, again)
        told = await console.until(path, state="pending", complete=True)
        assert told["request"] == again["request"]
        if state != "refused":
            shown = {name: told[name] for name in body if name != "tombstone"}
            assert [(each["name"], each["valueBase64"]) for each in shown.pop("headers")] == [
                ("h", "/w=="),
                ("none", None),
            ]
            assert shown == {name: each for name, each in body.items() if name not in ("tombstone", "headers")}
            assert (told["value"], told["valueBase64"]) == (None, None)
        # Asked for a second time it meets the first one.
        status, told = await console.ask("PUT", f"{path}?request={made['request']}", {"after": 3_600})
        assert (status, again["request"] in told["detail"]) == (409, True), (number, told)
        assert (await console.ask("PATCH", f"{path}?request={again['request']}", {"after": 0}))[0] == 200
    assert (await console.ask("PUT", "/v1/timers/again-fired", {"after": 5}))[0] == 422
    # One of `again-fired` and one before the refused request had fired already.
    callbacks = await console.fired(topic, 4)
    told_by_them = {
        (each.key, each.value, each.partition, dict(each.headers)["timer-token"], dict(each.headers)["h"])
        for each in callbacks
    }
    assert len(callbacks) == 4
    assert told_by_them == {(b"\xff\x00", None, hash_of(b"\x00\xff") % service.partitions, b"t", b"\xff")}
