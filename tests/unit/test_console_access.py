"""The roles of the console's users, before anything is asked of Kafka."""

from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

import pytest

from kafka_timers.console.access import BODY_BYTES_MAX, Access, Caller, Role
from kafka_timers.console.console_settings import ConsoleSettings
from kafka_timers.errors import SettingsError

READ, OPERATE = "read-0123456789abcdef", "operate-0123456789abcdef"


class Served:
    """An application that takes note of its callers."""

    def __init__(self) -> None:
        self.callers: list[Caller] = []

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        await receive()
        self.callers.append(scope["state"]["caller"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})


async def asked(
    settings: ConsoleSettings,
    headers: Mapping[str, str] | None = None,
    *,
    method: str = "GET",
    path: str = "/v1/status",
    client: str = "10.0.0.9",
    body: bytes = b"",
) -> tuple[int, Caller | None]:
    """Return the status of an answer, and the caller that was let in."""
    served, statuses = Served(), []
    told = {"host": f"127.0.0.1:{settings.port}"} | dict(headers or {})

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])
            assert (b"x-content-type-options", b"nosniff") in message["headers"]

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "client": (client, 5),
        "headers": [(name.encode(), value.encode()) for name, value in told.items()],
    }
    await Access(served, settings)(scope, receive, send)
    return statuses[0], next(iter(served.callers), None)


@pytest.fixture
def tokens(tmp_path: Path) -> str:
    file = tmp_path / "tokens"
    file.write_text(f"# who may come\n\nread {READ}\noperate {OPERATE} the billing service\n")
    return str(file)


async def test_without_tokens_this_host_may_look_and_more_only_if_told() -> None:
    assert await asked(ConsoleSettings()) == (200, Caller("somebody on this host", Role.READ))
    assert await asked(ConsoleSettings(writable=True)) == (200, Caller("somebody on this host", Role.OPERATE))


async def test_a_token_has_a_name_and_a_role(tokens: str) -> None:
    settings = ConsoleSettings(token_file=tokens, host="0.0.0.0")
    assert await asked(settings, {"authorization": f"Bearer {READ}"}) == (200, Caller("token of line 3", Role.READ))
    assert await asked(settings, {"authorization": f"bearer  {OPERATE} "}) == (
        200,
        Caller("the billing service", Role.OPERATE),
    )
    for wrong in (
        "",
        READ,
        f"Basic {READ}",
        f"Bearer {READ}x",
        "Bearer",
        "Bearer é",
    ):
        assert await asked(settings, {"authorization": wrong}) == (401, None)
    assert (await asked(settings, path="/livez"))[0] == 200


async def test_the_header_of_a_proxy_counts_if_it_comes_from_there() -> None:
    settings = ConsoleSettings(user_header="X-User", proxy="10.0.0.1", operators="alice, bob", host="0.0.0.0")
    assert await asked(settings, {"x-user": "bob"}, client="10.0.0.1") == (200, Caller("bob", Role.OPERATE))
    assert await asked(settings, {"x-user": "eve"}, client="10.0.0.1") == (200, Caller("eve", Role.READ))
    assert await asked(settings, {"x-user": "bob"}, client="10.0.0.2") == (401, None)
    assert await asked(settings, client="10.0.0.1") == (401, None)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "localhost"}, 200),
        ({"host": "[::1]:8074"}, 200),
        ({"host": "timers.example:443"}, 200),
        ({"host": "TIMERS.example"}, 200),
        ({"host": ""}, 403),
        ({"host": "elsewhere.example"}, 403),
        ({"host": "127.0.0.1.elsewhere.example"}, 403),
        ({"origin": "http://127.0.0.1:8074"}, 200),
        ({"origin": "http://127.0.0.1:8075"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "same-origin"}, 200),
    ],
)
async def test_no_page_of_another_origin_and_no_other_name_leads_here(headers: dict[str, str], status: int) -> None:
    settings = ConsoleSettings(allowed_hosts="timers.example")
    assert (await asked(settings, headers))[0] == status


async def test_a_page_of_elsewhere_changes_nothing_though_it_may_lead_here() -> None:
    settings = ConsoleSettings(writable=True)
    elsewhere = {"sec-fetch-site": "cross-site"}
    assert (await asked(settings, elsewhere))[0] == 200
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        assert (await asked(settings, elsewhere, method=method))[0] == 403


async def test_too_many_bytes_or_headers_are_refused() -> None:
    settings = ConsoleSettings()
    assert (await asked(settings, body=b"x" * BODY_BYTES_MAX))[0] == 200
    assert (await asked(settings, body=b"x" * (BODY_BYTES_MAX + 1)))[0] == 413
    assert (await asked(settings, {"content-length": str(BODY_BYTES_MAX + 1)}))[0] == 413
    assert (await asked(settings, {"content-length": "9" * 5_000}))[0] == 413
    assert (await asked(settings, {f"x-{number}": "" for number in range(300)}))[0] == 431


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("", "has no line"),
        ("# nobody\n", "has no line"),
        ("read\n", "line 1: give `read` or `operate`"),
        (f"write {READ}\n", "line 1"),
        ("read short\n", "a token of 16 characters or more"),
        (f"read {READ}\n{OPERATE}\n", "line 2"),
    ],
)
def test_a_file_of_tokens_that_has_another_line_is_refused_without_telling_it(
    tmp_path: Path, lines: str, told: str
) -> None:
    file = tmp_path / "tokens"
    file.write_text(lines)
    with pytest.raises(SettingsError, match=told) as raised:
        Access(Served(), ConsoleSettings(token_file=str(file)))
    assert READ not in str(raised.value)
    assert OPERATE not in str(raised.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"token_file .*nowhere cannot be read"):
        Access(Served(), ConsoleSettings(token_file=str(tmp_path / "nowhere")))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"host": "0.0.0.0"}, "can be reached from other hosts: give token_file, or user_header and proxy"),
        ({"user_header": "X-User"}, "belong together"),
        ({"proxy": "10.0.0.1"}, "belong together"),
        ({"operators": "alice"}, "give user_header and proxy"),
        ({"writable": True, "token_file": "tokens"}, "writable is for users without a token"),
        ({"key": "key.pem"}, "give certificate too"),
    ],
)
def test_settings_that_contradict_each_other_are_named(given: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        ConsoleSettings(**given)
