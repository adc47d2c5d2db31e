"""Timers over HTTP, on a real worker and a real Kafka, as a service without a Kafka client has them."""

import asyncio
import base64
import io
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiokafka import TopicPartition
from consoles import OPERATE, READ, Console
from patience import LIMIT_S

from kafka_timers import request_from
from kafka_timers.core.routing import hash_of
from kafka_timers.core.wire import Future, age_of
from kafka_timers.dev.broker import free_port


async def test_a_timer_is_asked_for_seen_moved_and_fires(console: Console) -> None:
    topic, due = await console.topic("once"), int(time.time()) + 3_600
    headers = [{"name": "trace", "valueBase64": "/w=="}, {"name": "none"}]
    asked = {"at": due, "topic": topic, "key": "k", "value": "v", "timerId": "a/b", "token": "t", "headers": headers}
    status, made = await console.ask("POST", "/v1/timers", asked | {"at": due + 0.345})
    assert (status, made["outcome"], made["state"], made["second"]) == (201, "ACCEPTED", "pending", due)
    assert (made["dueMs"], made["at"][-5:]) == (due * 1000 + 345, ".345Z")
    status, seen = await console.ask("GET", "/v1/timers/a%2Fb", token=READ)
    assert (status, seen["state"], seen["request"], seen["value"], seen["token"]) == (
        200,
        "pending",
        made["request"],
        "v",
        "t",
    )
    assert seen["headers"][0] == {"name": "trace", "value": None, "valueBase64": "/w=="}
    assert (seen["dueMs"], seen["at"]) == (made["dueMs"], made["at"])

    await console.service.until_sealed(int(time.time()))
    status, page = await console.ask("GET", f"/v1/timers?topic={topic}&values=true", token=READ)
    [listed] = page["timers"]
    assert (listed["timerId"], listed["key"], listed["value"], listed["dueMs"]) == ("a/b", "k", "v", made["dueMs"])
    assert (page["cursor"], page["unknown"]) == (None, [])
    status, ahead = await console.ask("GET", f"/v1/ahead?unit=hour&from={due - 7200}&to={due + 7200}", token=READ)
    assert sum(each["count"] for each in ahead["counts"]) >= 1

    status, moved = await console.ask("PATCH", "/v1/timers/a%2Fb", {"after": 0, "valueBase64": "AP8="})
    assert (status, moved["outcome"], moved["state"]) == (200, "MOVED", "pending")
    [callback] = await console.fired(topic, 1)
    told = dict(callback.headers)
    assert request_from(callback.headers) == moved["request"]
    assert (callback.key, callback.value, told["timer-token"], told["trace"], told["none"]) == (
        b"k",
        b"\x00\xff",
        b"t",
        b"\xff",
        None,
    )
    status, seen = await console.ask("GET", "/v1/timers/a%2Fb")
    assert (seen["state"], [each["state"] for each in seen["history"]]) == ("fired", ["moved", "fired"])
    status, late = await console.ask("PATCH", "/v1/timers/a%2Fb", {"after": 60})
    assert (status, "has fired" in late["detail"]) == (409, True)
    status, late = await console.ask("DELETE", "/v1/timers/a%2Fb")
    assert (status, "fires, has fired" in late["detail"]) == (409, True)


async def test_any_bytes_tombstones_and_partitions_are_asked_for_and_changed(console: Console) -> None:
    topic = await console.topic("bytes")
    binary = {"topic": topic, "keyBase64": "/wA=", "tombstone": True, "partition": 1}
    _, fires = await console.ask("POST", "/v1/timers", binary | {"after": 0})
    [callback] = await console.fired(topic, 1)
    assert request_from(callback.headers) == fires["request"]
    assert (callback.key, callback.value, callback.partition) == (b"\xff\x00", None, 1)
    # Fields that are left out of a change stay.
    for number, change in enumerate(
        [{}, {"value": "v"}, {"key": "k"}, {"keyBase64": "", "partition": 0}, {"partition": None}]
    ):
        timer_id = f"bytes-{number}"
        assert (await console.ask("PUT", f"/v1/timers/{timer_id}", binary | {"after": 3_600}))[0] == 200
        status, _ = await console.ask("PATCH", f"/v1/timers/{timer_id}", change | {"after": 0})
        assert status == 200
    by_id = {dict(each.headers).get("timer-id"): each for each in await console.fired(topic, 6)}
    found = [(by_id[b"bytes-%d" % number].key, by_id[b"bytes-%d" % number].value) for number in range(5)]
    assert found == [(b"\xff\x00", None), (b"\xff\x00", b"v"), (b"k", None), (b"", None), (b"\xff\x00", None)]
    partitions = [by_id[b"bytes-%d" % number].partition for number in range(5)]
    assert partitions == [1, 1, 1, 0, hash_of(b"\xff\x00") % console.service.partitions]
    for wrong in ({"value": "v", "tombstone": True}, {"partition": -1}):
        assert (await console.ask("POST", "/v1/timers", {"topic": topic, "after": 5} | wrong))[0] == 422


async def test_a_repeated_request_makes_no_second_timer_even_after_the_first_has_fired(console: Console) -> None:
    topic = await console.topic("idempotent")
    asked = {"after": 0, "topic": topic, "valueBase64": base64.b64encode(b"v").decode()}
    status, first = await console.ask("POST", "/v1/timers", asked, Idempotency_Key="order-7")
    assert (status, first["timerId"], first["outcome"]) == (201, "order-7", "ACCEPTED")
    assert len(await console.fired(topic, 1)) == 1
    status, again = await console.ask("POST", "/v1/timers", asked, Idempotency_Key="order-7")
    assert (status, again["outcome"], again["request"], again["state"]) == (200, "IGNORED", first["request"], "fired")
    assert len(await console.fired(topic, 1)) == 1
    status, told = await console.ask("POST", "/v1/timers", asked | {"timerId": "order-7"})
    assert (status, first["request"] in told["detail"]) == (409, True)
    status, _ = await console.ask("POST", "/v1/timers", asked | {"timerId": "order-8"}, Idempotency_Key="order-7")
    assert status == 422


async def test_a_timer_is_taken_back_and_set_anew(console: Console) -> None:
    topic = await console.topic("anew")
    asked = {"after": 3_600, "topic": topic}
    _, made = await console.ask("POST", "/v1/timers", asked | {"timerId": "anew"})
    other = f"{made['request']}9"
    assert (await console.ask("DELETE", f"/v1/timers/anew?request={other}"))[0] == 409
    status, gone = await console.ask("DELETE", f"/v1/timers/anew?request={made['request']}")
    assert (status, gone["outcome"], gone["state"]) == (200, "CANCELLED", "cancelled")
    assert (await console.ask("PATCH", "/v1/timers/anew", {"after": 5}))[0] == 404
    assert (await console.ask("POST", "/v1/timers", asked | {"timerId": "anew"}))[0] == 409
    status, made = await console.ask("PUT", "/v1/timers/anew", {"after": 0, "topic": topic})
    assert (status, made["state"]) == (200, "pending")
    assert [request_from(each.headers) for each in await console.fired(topic, 1)] == [made["request"]]
    assert (await console.ask("DELETE", "/v1/timers/nobody"))[0] == 404
    assert (await console.ask("GET", "/v1/timers/nobody"))[0] == 404


async def test_the_record_names_the_user_that_asked(console: Console) -> None:
    status, made = await console.ask(
        "POST", "/v1/timers", {"after": 3_600, "topic": console.service.callbacks, "timerId": "mine"}
    )
    assert status == 201
    partition, offset = map(int, made["request"].split(":"))
    async with console.service.reading(console.service.topics.requests) as consumer:
        at = TopicPartition(console.service.topics.requests, partition)
        consumer.seek(at, offset)
        record = await consumer.getone(at)
    assert dict(record.headers)["timer-asked-by"] == b"billing"
    assert "create of timer 'mine' by 'billing': ACCEPTED" in console.process.child.log.read_text()


async def test_refused_requests_are_listed_and_sent_again(console: Console) -> None:
    topic, service = console.service.prefix + "missing", console.service
    await service.request(int(time.time()), Future(callBackTopic=topic, callBack=b"v", timerId="refused"))
    end_s, found = time.monotonic() + LIMIT_S, []
    while not found and time.monotonic() < end_s:
        status, page = await console.ask("GET", f"/v1/rejected?topic={topic}", token=READ)
        assert status == 200
        found = page["rejected"]
    [refused] = found
    assert (refused["reason"], refused["timerId"], refused["value"]) == ("topic-unknown", "refused", "v")
    await service.create_topic(topic)
    place = f"/v1/rejected/{refused['place']}/redrive"
    # Workers believe for 5 s that a topic is missing.
    status, again = await console.ask("POST", place, {"after": 6})
    assert (status, again["outcome"]) == (200, "ACCEPTED")
    assert [request_from(each.headers) for each in await console.fired(topic, 1)] == [again["request"]]
    status, told = await console.ask("POST", place, {})
    assert (status, again["request"] in told["detail"]) == (409, True)
    assert (await console.ask("POST", "/v1/rejected/0:999999/redrive", {}))[0] == 422


async def test_a_request_is_shown_by_its_place_also_one_without_an_id(console: Console) -> None:
    service, due = console.service, int(time.time()) + 3_600
    topic = await console.topic("places")
    waits = await service.request(due, Future(callBackTopic=topic, callBack=b"\xff"), 1)
    # The workers bring such ones into one row.
    others = [await service.request(due, Future(callBackTopic=topic, callBack=b"%d" % each), 1) for each in range(20)]
    soon = await service.request(int(time.time()) + 1, Future(callBackTopic=topic, timerId="soon"))
    await service.until_sealed(int(time.time()) + 2)
    for place, name, value in ((waits, "valueBase64", "/w=="), (others[0], "value", "0"), (others[-1], "value", "19")):
        shown = await console.answer(f"/v1/requests/{place}")
        assert (shown["waits"], shown["second"], shown["timerId"]) == (True, due, None)
        assert shown[name] == value
    shown = await console.answer(f"/v1/requests/{soon}")
    assert (shown["waits"], shown["timerId"], shown["topic"]) == (False, "soon", topic)
    for nothing, status in (("0:999999", 404), ("77:0", 404), ("0:x", 422), ("0", 422)):
        assert (await console.ask("GET", f"/v1/requests/{nothing}"))[0] == status


async def test_topics_of_the_next_timers_and_of_refused_requests_are_listed(console: Console) -> None:
    service, due = console.service, int(time.time()) + 1_800
    there, missing = await console.topic("there"), service.prefix + "gone"
    await service.request(due, Future(callBackTopic=there, timerId="there"))
    await service.request(due + 1, Future(callBackTopic=there, timerId="there-too"))
    await service.request(due, Future(callBackTopic="not-allowed", timerId="elsewhere"))
    await service.request(int(time.time()), Future(callBackTopic=missing, timerId="gone"))
    await service.until_sealed(int(time.time()) + 1)
    found = await console.answer("/v1/topics")
    topics = {each.pop("name"): each for each in found["topics"]}
    assert found["unknown"] == []
    assert topics[there] == {"isAllowed": True, "partitions": 4, "coming": 2, "nextSecond": due, "refused": 0}
    assert topics[missing] == {"isAllowed": True, "partitions": None, "coming": 0, "nextSecond": None, "refused": 1}
    # Whether it exists is nobody's business here.
    assert topics["not-allowed"] | {"coming": 1, "isAllowed": False, "partitions": None} == topics["not-allowed"]


async def test_a_timer_that_waits_is_told_by_its_worker_without_its_history(console: Console) -> None:
    topic, due = await console.topic("quick"), int(time.time()) + 3_600
    asked = {"at": due, "topic": topic, "value": "v", "timerId": "quick", "headers": [{"name": "h", "value": "x"}]}
    _, made = await console.ask("POST", "/v1/timers", asked)
    await console.service.until_sealed(int(time.time()))
    whole = await console.answer("/v1/timers/quick")
    assert (whole["complete"], len(whole["history"])) == (True, 1)
    status, quick = await console.ask("GET", "/v1/timers/quick?history=false", token=READ)
    assert (status, quick) == (200, whole | {"complete": False, "history": []})
    # Of one that waits no more only the log tells.
    await console.ask("DELETE", "/v1/timers/quick")
    await console.service.until_sealed(int(time.time()))
    gone = await console.answer("/v1/timers/quick?history=false")
    assert (gone["state"], gone["complete"]) == ("cancelled", True)
    assert made["request"] == gone["request"]


async def test_the_admin_gui_of_etf1_finds_its_schedules(console: Console) -> None:
    service, due = console.service, int(time.time()) + 3_600
    schedules = service.prefix + "schedules"
    headers = [("scheduler-epoch", str(due).encode()), ("scheduler-target-topic", b"there"), ("x", None)]
    headers.append(("scheduler-target-key", b"k"))
    at = await service.producer.send_and_wait(schedules, b"\xff", key=b"video-1", headers=headers)
    end_s, found = time.monotonic() + LIMIT_S, []
    while not found and time.monotonic() < end_s:
        found = await console.answer("/schedules")
    assert found == [
        {
            "id": "video-1",
            "epoch": due,
            "timestamp": at.timestamp // 1000,
            "topic": schedules,
            "target-topic": "there",
            "target-key": "k",
            "value": "/w==",
        }
    ]
    told = await console.answer("/info")
    assert told["kafka"] == {"bootstrap_servers": service.bootstrap, "topics": [schedules], "history_topic": ""}
    assert (await console.ask("GET", "/schedules", token=None))[0] == 401
    async with console.session.get(console.url + "/liveness") as response:
        assert response.status == 200


async def test_partitions_of_a_silent_worker_are_unknown_and_the_others_are_listed(console: Console) -> None:
    service, due = console.service, int(time.time()) + 3_600
    topic = await console.topic("halves")
    for number in range(40):
        await service.request(due, Future(callBackTopic=topic, timerId=f"half-{number}"))
    # Frozen it keeps its partitions for the time of this test.
    options = ("--seal-every-s", "1", "--session-timeout-s", "45", "--query-port", str(free_port()))
    other = await service.start("worker", *options)
    try:
        await other.until("/readyz", lambda status, _: status == 200)
        await _until_two_answer(console, topic)
        other.child.pause()
        page = await console.answer(f"/v1/timers?topic={topic}")
        unknown = {each["partition"] for each in page["unknown"]}
        assert (0 < len(unknown) < 4, 0 < len(page["timers"]) < 40) == (True, True)
        assert all("does not answer within" in each["why"] for each in page["unknown"])
        for path in ("/v1/ahead?unit=hour", "/v1/topics"):
            assert {each["partition"] for each in (await console.answer(path))["unknown"]} == unknown
        # Each timer is shown all the same: if no worker answers, from the log.
        for number in range(8):
            assert (await console.answer(f"/v1/timers/half-{number}"))["state"] == "pending"
        assert (await console.ask("GET", "/schedules", token=READ))[0] == 502
    finally:
        other.child.resume()
        await other.child.stop(LIMIT_S)


async def _until_two_answer(console: Console, topic: str) -> None:
    """Wait until two workers answer for partitions, and tell of all timers of *topic* together."""
    end_s = time.monotonic() + LIMIT_S
    while time.monotonic() < end_s:
        seals = await console.service.seals()
        urls = {max(tail, key=age_of).queries for tail in seals.values() if tail}
        _, page = await console.ask("GET", f"/v1/timers?topic={topic}", token=READ)
        if len(urls) == 2 and not page["unknown"] and len(page["timers"]) == 40:
            return
        await asyncio.sleep(0.2)
    raise AssertionError(f"workers at {urls}, {page['unknown']}")


async def test_while_kafka_is_silent_each_answer_says_so_in_time(console: Console) -> None:
    """It accepts connections, and says nothing."""

    async def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)

    writers: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    address = "{}:{}".format(*server.sockets[0].getsockname())
    try:
        # Of an option that is given twice the last one counts.
        started = await console.service.start("console", "--bootstrap", address)
        await started.until("/livez", lambda status, _: status == 200)
        url = f"http://127.0.0.1:{started.port}/v1/"
        paths = ("timers", "timers/x", "ahead", "topics", "rejected", "status", "requests/0:0", "events?topic=t")
        for path in (*paths, "schedules", "schedules/x"):
            async with console.session.get(url + path) as response:
                told = await response.json(content_type="application/problem+json")
            assert response.status == 503
            assert any(words in told["detail"] for words in ("no answer within", "no Kafka answers at")), told
        await started.child.stop(LIMIT_S)
        assert started.child.returncode == 0, started.child.last_words()
    finally:
        for writer in writers:
            writer.close()
        server.close()


async def test_each_role_has_its_permissions_and_no_more(console: Console) -> None:
    asked = {"after": 3_600, "topic": console.service.callbacks, "timerId": "nobodys"}
    for token, status in ((None, 401), ("operate", 401), (READ, 403)):
        assert (await console.ask("POST", "/v1/timers", asked, token=token))[0] == status
        assert (await console.ask("DELETE", "/v1/timers/nobodys", token=token))[0] == status
    assert (await console.ask("GET", "/v1/status", token=None))[0] == 401
    assert (await console.ask("GET", "/openapi.json", token=None))[0] == 401
    assert (await console.ask("GET", "/v1/me", token=READ))[0] == 200
    # Of another origin, with any credentials.
    for origin in ("http://elsewhere", f"http://127.0.0.1:{console.process.port + 1}", "null"):
        assert (await console.ask("POST", "/v1/timers", asked, Origin=origin))[0] == 403
    assert (await console.ask("POST", "/v1/timers", asked, Sec_Fetch_Site="cross-site"))[0] == 403
    assert (await console.ask("GET", "/v1/status", Host="elsewhere"))[0] == 403
    # And no topic but the allowed ones.
    status, told = await console.ask("POST", "/v1/timers", asked | {"topic": "other"})
    assert (status, "topic other is none of the allowed ones" in told["detail"]) == (403, True)
    status, told = await console.ask("POST", "/v1/timers", asked | {"topic": console.service.topics.requests})
    assert status == 422
    assert (await console.ask("GET", "/v1/timers/nobodys"))[0] == 404


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({}, "topic: is needed"),
        ({"topic": "t"}, "give `at` or `after`"),
        ({"topic": "t", "at": 5, "after": 5}, "not both"),
        ({"topic": "t", "at": "tomorrow"}, "neither ISO 8601"),
        ({"topic": "t", "at": "2030-01-31T12:00:00"}, "has no zone"),
        ({"topic": "t", "at": 1_900_000_000_000}, "looks like milliseconds"),
        ({"topic": "t", "after": -1}, "after"),
        ({"topic": "no topic", "after": 1}, "is not the name of a Kafka topic"),
        ({"topic": "t", "after": 1, "value": "v", "valueBase64": "dg=="}, "give one of `value`"),
        ({"topic": "t", "after": 1, "key": "k", "keyBase64": "aw=="}, "not both"),
        ({"topic": "t", "after": 1, "valueBase64": "?"}, "is not in base64"),
        ({"topic": "t", "after": 1, "headers": [{"name": "timer-id", "value": "x"}]}, "is set by the timer service"),
        ({"topic": "t", "after": 1, "unknown": 1}, "unknown: there is no such field"),
        ({"topic": "t", "after": 1, "key": "\ud800"}, "key: "),
        ({"topic": "t", "after": 1, "timerId": "\ud800"}, "timerId: "),
        ({"topic": "t", "after": 1, "headers": [{"name": "\ud800"}]}, "headers.0.name: "),
        ({"topic": "t", "after": 1, "partition": 1, "partitionKey": "k"}, "give one of `partition`"),
    ],
)
async def test_an_invalid_request_is_refused_with_a_sentence(console: Console, body: dict[str, Any], told: str) -> None:
    status, problem = await console.ask("POST", "/v1/timers", body)
    assert (status, problem["status"]) == (422, 422)
    assert told in problem["detail"]


async def test_a_body_or_headers_that_are_too_much_are_refused(console: Console) -> None:
    authorized = {"Authorization": f"Bearer {OPERATE}", "Content-Type": "application/json"}
    url = console.url + "/v1/timers"
    for data in (b"x" * (10 << 20), b'{"topic": "\xff"}', b"{", b"[1"):
        async with console.session.post(url, data=io.BytesIO(data), headers=authorized) as response:
            said = await response.json(content_type="application/problem+json")
        assert response.status == (413 if len(data) > 1_000 else response.status)
        assert (400 <= response.status < 500, said["status"]) == (True, response.status)

    # By pieces, without a length.
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b"x" * 100_000

    async with console.session.post(url, data=pieces(), headers=authorized) as response:
        assert response.status == 413
    many = {f"x-{number}": "v" for number in range(10_000)}
    async with console.session.get(console.url + "/v1/status", headers=authorized | many) as response:
        # Of these uvicorn itself refuses more than 64 KiB that come at once, with another code.
        assert response.status in (400, 431)
    assert (await console.ask("GET", "/v1/me"))[0] == 200


async def test_it_needs_no_document_but_its_own(console: Console) -> None:
    from openapi_spec_validator import validate

    status, document = await console.ask("GET", "/openapi.json")
    assert status == 200
    validate(document)
    assert set(document["paths"]) == {
        "/v1/timers",
        "/v1/timers/{timer_id}",
        "/v1/ahead",
        "/v1/requests/{place}",
        "/v1/topics",
        "/v1/rejected",
        "/v1/rejected/{place}/redrive",
        "/v1/schedules",
        "/v1/schedules/preview",
        "/v1/schedules/{schedule_id}",
        *(f"/v1/schedules/{{schedule_id}}/{action}" for action in ("pause", "resume", "skip", "unskip", "run")),
        "/v1/status",
        "/v1/me",
        "/v1/events",
    }


async def test_it_ends_when_it_is_asked_to(console: Console) -> None:
    other = await console.service.start("console")
    await other.until("/livez", lambda status, _: status == 200)
    async with console.session.post(f"http://127.0.0.1:{other.port}/v1/timers", json={}) as response:
        assert response.status == 403  # it is not --writable
    await other.until("/v1/status", lambda status, _: status == 200)
    await other.child.stop(LIMIT_S)
    assert other.child.returncode == 0, other.child.last_words()
