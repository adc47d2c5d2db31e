"""What callers of the console's API send and get, on a real worker and a real Kafka."""

import json
from urllib.parse import quote

import pytest
from consoles import OPERATE, Console



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
