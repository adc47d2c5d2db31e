"""What the console answers to requests that it cannot understand, before anything is asked of Kafka."""

import json
from collections.abc import MutableMapping
from typing import Any

import pytest

from kafka_timers.clock import HostClock
from kafka_timers.console.access import Access
from kafka_timers.console.actions import Service
from kafka_timers.console.console_settings import ConsoleSettings
from kafka_timers.console.routes import app_of

SETTINGS = ConsoleSettings(writable=True)


async def asked(method: str, path: str, body: bytes = b"", *, is_broken: bool = False) -> dict[str, Any]:
    """Return the problem that is the answer."""
    app = app_of(Service(SETTINGS, HostClock()))
    if is_broken:
        app.state.service = object()
    answer = b""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    async def send(message: MutableMapping[str, Any]) -> None:
        nonlocal answer
        answer += message.get("body", b"")
        if message["type"] == "http.response.start":
            assert (b"content-type", b"application/problem+json") in message["headers"]

    path, _, query = path.partition("?")
    scope: dict[str, Any] = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query.encode(),
        "client": ("127.0.0.1", 5),
        "headers": [(b"host", b"127.0.0.1")],
    }
    try:
        await Access(app, SETTINGS)(scope, receive, send)
    except AttributeError:
        # It goes on to the server, which logs it.
        assert is_broken
    problem: dict[str, Any] = json.loads(answer)
    assert problem["type"].startswith("urn:kafka-timers:problem:")
    return problem


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("", "body: is needed"),
        ("[]", "body: give a JSON object"),
        ('"text"', "body: give a JSON object"),
        ("{,", "body: is not JSON"),
        ("{}", "topic: is needed"),
        ('{"topic": "t"}', "body: give `at` or `after`"),
        ('{"topic": "t", "after": 1, "atonce": 1}', "atonce: there is no such field"),
        ('{"topic": "t", "after": "5s"}', "after: give a number"),
        ('{"topic": "t", "after": -1}', "after: give 0 or more"),
        ('{"topic": "t", "after": 1e12}', "after: give less than 100000000000"),
        ('{"topic": "t", "after": NaN}', "after: "),
        ('{"topic": "t", "at": true}', "at: give a text or give a number"),
        ('{"topic": "t", "at": "noon"}', "'noon' is neither ISO 8601"),
        ('{"topic": 7, "after": 1}', "topic: give a text"),
        ('{"topic": "", "after": 1}', "topic: give 1 or more characters"),
        ('{"topic": "%s", "after": 1}' % ("t" * 250), "topic: give 249 characters at most"),
        ('{"topic": "t", "after": 1, "headers": {}}', "headers: give a list"),
        ('{"topic": "t", "after": 1, "headers": [7]}', "headers.0: give a JSON object"),
        ('{"topic": "t", "after": 1, "headers": [{"value": "v"}]}', "headers.0.name: is needed"),
        ('{"topic": "t", "after": 1, "partition": true}', "partition: give a whole number"),
        ('{"topic": "t", "after": 1, "partition": 1.5}', "partition: give a whole number"),
        ('{"topic": "t", "after": 1, "tombstone": "yes"}', "tombstone: give true or false"),
        ('{"topic": "t", "after": 1, "key": "\\ud800"}', "key: holds half a surrogate pair"),
        ('{"topic": "t", "after": 1, "keyBase64": "?"}', "key is not in base64"),
    ],
)
async def test_a_wrong_body_is_refused_in_words_of_this_service(body: str, told: str) -> None:
    problem = await asked("POST", "/v1/timers", body.encode())
    assert problem["detail"].startswith(told)
    assert (problem["status"], problem["type"].split(":")[-1]) == (422, "wrong")
    for words in ("Input", "Value error", "Field required", "JSON decode", "base64:", "codec"):
        assert words not in problem["detail"]


@pytest.mark.parametrize(
    ("method", "path", "status", "told"),
    [
        ("GET", "/v1/timers/", 422, "timerId: give 1 or more characters"),
        ("GET", "/v1/timers?limit=many", 422, "limit: give a whole number"),
        ("GET", "/v1/timers?limit=1001", 422, "limit: give 1000 at most"),
        ("GET", "/v1/timers?values=perhaps", 422, "values: give true or false"),
        ("GET", "/v1/requests/x", 422, "place: give a text of the form ^[0-9]"),
        ("GET", "/v1/nothing", 404, "there is no such address"),
        ("PUT", "/v1/timers", 405, "this address does not do that"),
    ],
)
async def test_a_wrong_address_is_refused_in_words_of_this_service(
    method: str, path: str, status: int, told: str
) -> None:
    problem = await asked(method, path)
    assert (problem["status"], problem["detail"][: len(told)]) == (status, told)


async def test_a_body_that_is_no_text_is_refused() -> None:
    problem = await asked("POST", "/v1/timers", b'"\xff')
    assert (problem["status"], problem["detail"]) == (400, "the body is no text that can be read")


async def test_an_error_of_the_console_itself_is_a_problem_too() -> None:
    problem = await asked("GET", "/v1/topics", is_broken=True)
    assert (problem["status"], problem["type"].split(":")[-1]) == (500, "broken")
    assert problem["detail"] == "an error of the console itself: its log has it"
