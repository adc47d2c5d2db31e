"""What callers of the console's API send and get, on a real worker and a real Kafka."""

import json
from urllib.parse import quote

import pytest
from consoles import OPERATE, READ, Console


@pytest.mark.parametrize("timer_id", ["a\nb", "\n", "a\r\n", "\0", "\t \x7f", "a\x85b\u2028"])
async def test_an_id_with_control_characters_is_an_id_everywhere(console: Console, timer_id: str) -> None:
    path = f"/v1/timers/{quote(timer_id, safe='')}"
    asked = {"after": 3_600, "topic": console.service.callbacks, "timerId": timer_id}
    status, made = await console.ask("POST", "/v1/timers", asked)
    assert (status, made["timerId"]) == (201, timer_id)
    told = await console.answer(path)
    assert (told["timerId"], told["state"], told["request"]) == (timer_id, "pending", made["request"])
    assert (await console.ask("PATCH", path, {"after": 1_800}))[0] == 200
    assert (await console.ask("DELETE", path))[0] == 200
    assert (await console.ask("PUT", path, {"after": 60, "topic": console.service.callbacks}))[0] == 200


@pytest.mark.parametrize("kind", [None, "application/x-www-form-urlencoded", "text/plain", "no kind"])
async def test_a_body_is_read_as_json_whatever_it_is_called(console: Console, kind: str | None) -> None:
    body = json.dumps({"after": 3_600, "topic": console.service.callbacks})
    headers = {"Authorization": f"Bearer {OPERATE}"} | ({"Content-Type": kind} if kind else {})
    url = console.url + "/v1/timers"
    skipped = () if kind else ("Content-Type",)
    async with console.session.post(url, data=body.encode(), headers=headers, skip_auto_headers=skipped) as response:
        assert response.status == 201, await response.text()


@pytest.mark.parametrize(
    "when", [{"at": "20261127"}, {"at": 20261127}, {"at": True}, {"after": True}, {"after": "5"}, {"at": ["5"]}]
)
async def test_what_is_no_time_is_refused_and_fires_nothing(console: Console, when: dict[str, object]) -> None:
    body = {"topic": console.service.callbacks, "timerId": f"no time {when}"}
    for method, path, more in (("POST", "/v1/timers", {}), ("PUT", "/v1/timers/no-time", {"timerId": None})):
        status, told = await console.ask(method, path, body | more | when)
        why = "looks like a date" if "2026" in str(when) else next(iter(when))
        assert (status, why in told["detail"]) == (422, True), told
    assert (await console.ask("GET", f"/v1/timers/{quote(body['timerId'])}"))[0] == 404


async def test_whole_and_broken_seconds_and_all_types_of_a_body_are_taken(console: Console) -> None:
    body = {"topic": console.service.callbacks, "tombstone": True, "partition": 1, "headers": [{"name": "h"}]}
    for when in ({"after": 3_600}, {"after": 3_600.5}, {"at": 4_000_000_000}, {"at": "4000000000.5"}):
        assert (await console.ask("POST", "/v1/timers", body | when))[0] == 201, when


async def test_programs_tell_problems_apart_by_their_type(console: Console) -> None:
    path, asked = "/v1/timers/typed", {"after": 3_600, "topic": console.service.callbacks, "timerId": "typed"}
    _, made = await console.ask("POST", "/v1/timers", asked, Idempotency_Key="typed")
    repeated = {"Idempotency_Key": "typed"}
    other = f"{path}?request={made['request']}9"
    found = [
        await console.ask("GET", path, token=None),
        await console.ask("PATCH", path, {"after": 0}, token=READ),
        await console.ask("POST", "/v1/timers", asked | {"topic": "elsewhere"}),
        await console.ask("GET", "/v1/timers/never"),
        await console.ask("DELETE", "/v1/timers/never"),
        await console.ask("PATCH", "/v1/timers/never", {"after": 0}),
        await console.ask("GET", "/v2"),
        await console.ask("POST", "/v1/timers", asked),
        await console.ask("POST", "/v1/timers", asked | {"after": 5}, **repeated),
        await console.ask("PATCH", other, {"after": 0}),
        await console.ask("DELETE", other),
        await console.ask("POST", "/v1/timers", {}),
    ]
    await console.ask("PATCH", path, {"after": 0})
    await console.until(path, state="fired")
    found += [await console.ask("PATCH", path, {"after": 0}), await console.ask("DELETE", path)]
    assert [(status, told["type"].removeprefix("urn:kafka-timers:problem:")) for status, told in found] == [
        (401, "token-needed"),
        (403, "not-allowed"),
        (403, "topic-not-allowed"),
        (404, "timer-unknown"),
        (404, "timer-unknown"),
        (404, "timer-unknown"),
        (404, "not-found"),
        (409, "id-known"),
        (422, "key-reused"),
        (409, "timer-changed"),
        (409, "timer-changed"),
        (422, "wrong"),
        (409, "too-late"),
        (409, "too-late"),
    ]
