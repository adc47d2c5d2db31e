"""What `make brokers` tells: nothing wrong passes, and operators see the figures of the last run."""

import json
from pathlib import Path
from typing import Any

import pytest
from kafka_versions import KAFKA_3_3, KAFKA_3_9, KAFKA_4_0, NEWEST
from matrix.logs import KNOWN, look
from matrix.profiles import PROFILES
from matrix.run import problems_of
from matrix.steps import STEPS
from matrix.table import BEGIN, END, put, table

DOCS = Path(__file__).parents[2] / "docs"
WELL: dict[str, Any] = {
    "title": "Broker 1", "how": "itself", "steps": 21, "failed": {}, "timers": 200_000, "kills": 9, "missing": 0,
    "doubled": 0, "early": 0, "strange": 0, "wrong": 0, "unanswered": 0, "errors_count": 0, "refused": [], "broken": "",
}  # fmt: skip
WRONG = [
    *({name: 1} for name in ("missing", "doubled", "early", "strange", "wrong", "unanswered")),
    {"failed": {"list": "no answer"}},
    {"refused": [[21, 0]]},
    {"broken": "a partition was silent"},
]


def test_a_run_takes_twenty_one_steps() -> None:
    assert len(set(STEPS)) == len(STEPS) == 21


def test_a_run_in_which_nothing_is_wrong_passes() -> None:
    assert problems_of(WELL) == []
    told = "itself: 21 of 21 steps; 200,000 timers and 9 kills: 0 lost, 0 doubled, 0 early"
    assert f"| Broker 1 | tested | {told} |" in table([WELL])


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: next(iter(wrong)))
def test_nothing_wrong_passes(wrong: dict[str, Any]) -> None:
    assert len(problems_of(WELL | wrong)) == 1
    assert "| Broker 1 | does not pass |" in table([WELL | wrong])


def test_errors_in_logs_let_no_run_pass_and_are_told_in_the_table() -> None:
    told = WELL | {"errors_count": 2}
    assert problems_of(told) == ["2 errors_count"]
    assert "| Broker 1 | tested | itself: " in table([told])
    assert "0 early; 2 lines of errors in logs |" in table([told])


def test_a_page_keeps_what_is_around_the_table(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nan earlier one\n{END}\nbehind\n")
    put([WELL], page)
    assert page.read_text() == f"before\n{BEGIN}\n\n{table([WELL])}\n{END}\nbehind\n"


def test_errors_and_tracebacks_are_found_in_logs_and_what_is_known_apart(tmp_path: Path) -> None:
    log = tmp_path / "worker-0.log"
    known = next(iter(KNOWN))
    lines = ["INFO a: an ERROR of others", f"ERROR b: {known}", "ERROR c: 127.0.0.1:9 closed", "WARNING d: e"]
    log.write_text("\n".join([*(f"2026-11-30 19:06:05,453 {line}" for line in lines), "Traceback (most"]))
    found = look([log])
    assert found.errors == {"ERROR c: the broker closed": 1, "Traceback (most": 1}
    assert (found.known, found.warnings) == ({known: 1}, 1)


def test_operators_see_the_last_results() -> None:
    results = json.loads((DOCS / "brokers.json").read_text())
    assert [one["profile"] for one in results] == list(PROFILES)
    assert {one["title"].split()[-1] for one in results[:4]} == {KAFKA_3_3, KAFKA_3_9, KAFKA_4_0, NEWEST}
    shown = (DOCS / "operate.md").read_text().split(BEGIN)[1].split(END)[0]
    assert shown == f"\n\n{table(results)}\n", "run: make brokers"
