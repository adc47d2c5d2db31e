"""Records of any bytes on the service's topics: each is told as it is, and none of them keeps an answer from coming."""

import asyncio
import itertools
import json
import random
import sys
import time
from asyncio.subprocess import PIPE, STDOUT
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from consoles import OPERATE, Console
from hostile import some_value

from kafka_timers.core.callbacks import Outgoing
from kafka_timers.core.routing import partition_of
from kafka_timers.core.text import bytes_in
from kafka_timers.core.wire import REJECT_PREFIX, SECOND_LIMIT, Callback, Future, Header, Request, future_from
from kafka_timers.errors import WireError

ODD = (b"", b"k", b"\xff\x00", "\u00e9\u202e\uffff\0\n".encode(), None)
# Longer ones do not fit into an address.
ID_LENGTH = 1_000
RECORDS = 100


def snake(told: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an answer as `bytes_in` takes them."""
    names = {"keyBase64": "key_base64", "valueBase64": "value_base64", "partitionKey": "partition_key"}
    names["partitionKeyBase64"] = "partition_key_base64"
    return {names.get(name, name): each for name, each in told.items()}


def callback_in(told: dict[str, Any]) -> tuple[Any, ...]:
    """Return the callback that an answer describes, in bytes."""
    fields = snake(told)
    headers = [(each["name"], bytes_in(snake(each), "value")) for each in told["headers"]]
    parts = (bytes_in(fields, name) for name in ("key", "value", "partition_key"))
    return (told["topic"], *parts, told["partition"], told["token"], headers)


def callback_of(future: Future) -> tuple[Any, ...]:
    """Return the callback that *future* asks for, by the code that workers write it with."""
    outgoing = Outgoing.of(Request.FromString(future.SerializeToString()))
    asked = future.callBackRecord
    partition_key = asked.partitionKey if asked.HasField("partitionKey") else None
    headers = [(each.key, each.value if each.HasField("value") else None) for each in future.headers]
    key, value = outgoing.key, outgoing.value
    return (outgoing.topic.decode(), key, value, partition_key, outgoing.partition, future.token or None, headers)


async def test_bytes_survive_each_answer_and_each_change(console: Console) -> None:
    topic, due = await console.topic("survive"), int(time.time()) + 7_200
    headers = [
        Header(key="h", value=b"\xff"),
        Header(key="timer-id", value=b"x"),
        Header(key="", value=b""),
        Header(key="n"),
    ]
    placings: list[dict[str, Any]] = [{}, {"partition": 3}, {"partitionKey": b"\xfe"}]
    asked: dict[str, Future] = {}
    for number, (key, value) in enumerate(itertools.product(ODD, ODD)):
        record = Callback(topic=topic, key=key, value=value, **placings[number % 3])
        name = f"survive-{number}"
        asked[name] = Future(callBackRecord=record, timerId=name, token="t", headers=headers)
    places = {name: await console.service.request(due, future) for name, future in asked.items()}
    await console.service.until_sealed(int(time.time()))
    cursor, listed = "", dict[str, tuple[Any, ...]]()
    while cursor is not None:
        page = await console.answer(f"/v1/timers?topic={topic}&values=true&limit=20{cursor and '&cursor=' + cursor}")
        listed |= {each["timerId"]: callback_in(each) for each in page["timers"]}
        cursor = page["cursor"]
    wanted = {name: callback_of(future) for name, future in asked.items()}
    assert listed == wanted
    for number, (name, place) in enumerate(places.items()):
        for path in (f"/v1/requests/{place}", f"/v1/timers/{name}", f"/v1/timers/{name}?history=false"):
            assert callback_in(await console.answer(path)) == wanted[name]
        told = await console.until(f"/v1/timers/{name}", complete=True)
        assert bytes_in(snake(told["history"][0]), "key") == wanted[name][1]
        # Some are moved, some are taken back and asked for again, and the others are left.
        path = f"/v1/timers/{name}?request={place}"
        if number % 4 == 1:
            assert (await console.ask("PATCH", path, {"after": 3_600}))[0] == 200
        elif number % 4 == 2:
            assert (await console.ask("DELETE", path))[0] == 200
            assert (await console.ask("PUT", path, {"after": 3_600}))[0] == 200
        assert callback_in(await console.until(f"/v1/timers/{name}", state="pending")) == wanted[name]


@pytest.mark.parametrize(
    ("change", "partition", "partition_key"),
    [
        ({"partition": 2}, 2, None),
        ({"partitionKey": "k"}, None, b"k"),
        ({"partitionKeyBase64": "/w=="}, None, b"\xff"),
        ({"partition": None, "partitionKey": None}, None, None),
        ({"partition": None, "partitionKey": "k"}, None, b"k"),
        ({"keyBase64": "AP8="}, 1, b"old"),
        ({}, 1, b"old"),
    ],
)
async def test_a_partition_takes_the_place_of_a_partition_key_and_the_reverse(
    console: Console, change: dict[str, Any], partition: int | None, partition_key: bytes | None
) -> None:
    topic = console.service.callbacks
    for placing in ({"partition": 1}, {"partitionKey": "old"}):
        body = {"after": 3_600, "topic": topic, "key": "k", "value": "v"}
        assert (await console.ask("PUT", "/v1/timers/placing", body | placing))[0] == 200
        status, moved = await console.ask("PATCH", "/v1/timers/placing", change)
        assert (status, moved["outcome"]) == (200, "MOVED")
        told = await console.until("/v1/timers/placing", request=moved["request"])
        found = told["partition"], bytes_in(snake(told), "partition_key")
        # What a change does not name is as it was.
        is_placed = any(name.startswith("partition") for name in change)
        was = (1, None) if "partition" in placing else (None, b"old")
        assert found == ((partition, partition_key) if is_placed else was)


async def test_no_record_on_the_topics_keeps_an_answer_from_coming(console: Console) -> None:
    service, chance, seen = console.service, random.Random(51), Counter[int]()
    # To this one each topic is allowed, so that each action gets as far as it can.
    started = await service.start("console", "--writable", "--group", f"{service.prefix}workers")
    await started.until("/livez", lambda status, _: status == 200)
    console = Console(service, started, console.session)

    async def ask(method: str, path: str, body: object = None) -> Any:
        status, told = await console.ask(method, path, body)
        # A log that takes long to read is no fault.
        assert status < 500 or status == 503, (method, path, body, told)
        assert status != 503 or "no answer within" in told["detail"], told
        seen[status] += 1
        return told

    soon, later = b"%d" % (time.time() + 1), b"%d" % (time.time() + 7_200)
    keys = [soon, later, later, b"1", b"", b"\xff", b"-1", b"9" * 5_000, b"%d" % SECOND_LIMIT, b"0" * 14]
    places, ids = dict[str, bytes | None](), set[str]()
    for _ in range(RECORDS):
        value = some_value(chance)
        number = chance.randrange(service.partitions)
        try:
            timer_id = future_from(value or b"").timerId
        except WireError:
            timer_id = ""
        if timer_id and chance.random() < 0.8:
            number = partition_of(timer_id, service.partitions)
        places[await service.request(chance.choice(keys), value, number)] = value
        ids |= {timer_id} if 0 < len(timer_id) < ID_LENGTH else set()
    await reject_odd_records(console, chance)
    await service.until_sealed(int(time.time()) + 2)

    for place, value in places.items():
        told = await ask("GET", f"/v1/requests/{place}")
        if "request" not in told:
            continue
        if told["problem"]:
            raw = {"value": told["recordValue"], "value_base64": told["recordValueBase64"]}
            assert bytes_in(raw, "value") == value
        else:
            assert callback_in(told) == callback_of(future_from(value or b""))
    page: dict[str, Any] = {"cursor": ""}
    while page["cursor"] is not None:
        page = await console.answer(f"/v1/timers?values=true{page['cursor'] and '&cursor=' + page['cursor']}")
    for path in ("/v1/topics", "/v1/ahead?unit=hour", "/schedules", "/info", "/v1/status"):
        await ask("GET", path)
    page = await console.answer("/v1/rejected?limit=1000")
    assert len({each["reason"] for each in page["rejected"]}) > 8
    for each in page["rejected"]:
        await ask("POST", f"/v1/rejected/{each['place']}/redrive", {"after": 7_200})
    for timer_id in sorted(ids):
        path = f"/v1/timers/{quote(timer_id, safe='')}"
        await ask("GET", f"{path}?history=false")
        for method, body in (
            ("PATCH", {"after": 3_600}),
            ("PATCH", {"partition": 1}),
            ("PATCH", {"keyBase64": "/w=="}),
            ("PUT", {"after": 3_600}),
            ("DELETE", None),
            ("PUT", {"after": 3_600}),
        ):
            told = await ask("GET", path)
            await ask(method, f"{path}?request={told.get('request', '0:0')}", body)
    assert seen[200] > RECORDS


async def reject_odd_records(console: Console, chance: random.Random) -> None:
    """Write records to `timer-rejected` as no worker does."""
    names = ("reason", "words", "topic", "partition", "offset", "door", "request", "id", "due-ms", "again", "cut")
    requests = console.service.topics.requests
    contents = [None, b"", b"\xff", b"0", b"-1", b"9" * 14, b"1:2", b"0:x", requests.encode(), b"topic-unknown"]
    for _ in range(RECORDS):
        headers = [
            (REJECT_PREFIX + name, chance.choice(contents)) for name in chance.sample(names, chance.randrange(8))
        ]
        if chance.random() < 0.5:
            # So that it is taken for a request of the service's own.
            headers.insert(0, (REJECT_PREFIX + "topic", requests.encode()))
        key, value = chance.choice([b"", b"\xff", b"5"]), some_value(chance)
        await console.service.producer.send_and_wait(console.service.topics.rejected, value, key=key, headers=headers)


async def test_any_callback_is_followed(console: Console) -> None:
    topic = await console.topic("followed")
    headers = {"Authorization": f"Bearer {OPERATE}"}
    odd = [("timer-expiry", b"\xff"), ("timer-request", None), ("timer-millis", b"9" * 14), ("", b"\xff")]
    async with console.session.get(f"{console.url}/v1/events?topic={topic}", headers=headers) as response:
        assert (await response.content.readline()).startswith(b": follows")
        for value in ODD:
            await console.service.producer.send_and_wait(topic, value, key=value or b"", headers=odd)
        told = []
        while len(told) < len(ODD):
            line = await response.content.readline()
            told += [json.loads(line[6:])] if line.startswith(b"data: ") else []
    assert {bytes_in(each, "value") for each in told} == set(ODD)
    assert {bytes_in(each, "key") for each in told} == set(ODD) - {None}


async def test_random_requests_are_answered_as_the_openapi_document_says(console: Console) -> None:
    await asked_by_schemathesis(console, "--phases", "fuzzing", "--max-examples", "10")


@pytest.mark.chaos
async def test_many_random_requests_are_answered_as_the_openapi_document_says(console: Console) -> None:
    await asked_by_schemathesis(console, "--max-examples", "100")


async def asked_by_schemathesis(console: Console, *options: str) -> None:
    """Send requests that the document allows, and others that it does not, some of them as answers have led to."""
    checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
    command = [str(Path(sys.executable).parent / "schemathesis"), "run", f"{console.url}/openapi.json", "--no-color"]
    # On a busy machine a log may take longer to read than somebody waits, and then that is said.
    expected = '["2xx", "4xx", "503"]'
    folder = console.process.data_dir.parent
    (folder / "schemathesis.toml").write_text(f"[checks]\nnot_a_server_error.expected-statuses = {expected}\n")
    # Events go on without end.
    options = ("--exclude-path", "/v1/events", *options)
    options = ("-H", f"Authorization: Bearer {OPERATE}", "--checks", checks, "--seed", "1", *options)
    process = await asyncio.create_subprocess_exec(*command, *options, stdout=PIPE, stderr=STDOUT, cwd=folder)
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()[-8_000:]
