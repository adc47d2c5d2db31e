"""Operators get plain values and JSON documents, for use by any front end."""

import json
import subprocess
import sys

import pytest

from kafka_timers import Answer, Outcome, Timer
from kafka_timers.core.wire import Sealed
from kafka_timers.operate.documents import answer_document, found_document, status_document, timer_document
from kafka_timers.operate.find import Found
from kafka_timers.operate.health import Door, ServiceStatus, Worker
from kafka_timers.operate.status import status_of


@pytest.mark.parametrize("module", ["acls", "capacity", "documents", "find", "health", "status", "watch"])
def test_it_needs_no_library_of_the_command_line(module: str) -> None:
    extras = ["click", "rich", "faust", "rocksdict", "prometheus_client", "aiohttp", "pyspark", "murmurhash2"]
    script = f"import sys; sys.modules |= dict.fromkeys({extras}); import kafka_timers.operate.{module}"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_timer_and_an_answer_name_their_requests() -> None:
    assert timer_document(Timer(15_250, 3, 17, "id", None)) == {
        "due_ms": 15_250,
        "second": 15,
        "partition": 3,
        "offset": 17,
        "timer_id": "id",
        "token": None,
        "request": "3:17",
    }
    answer = Answer(Outcome.IGNORED, 15_250, "3:17", "3:20", waits=True)
    when = {"due_ms": 15_250, "second": 15}
    document = {"timer_id": "id", "outcome": "IGNORED", **when, "request": "3:17", "asked": "3:20", "waits": True}
    assert json.loads(json.dumps(answer_document("id", answer))) == document


def test_a_status_is_a_document_of_figures_and_problems() -> None:
    rows = status_of({0: [Sealed(end_ms=96_000, pending=4)], 1: []}, 200.0)
    worker, door = Worker("http://w:1", "w", (0, 1)), Door("etf1", "schedules", 7, readers=1)
    document = status_document(ServiceStatus("g", "timer-request", rows, [worker], doors=[door]))
    assert json.loads(json.dumps(document)) == document | {
        "workers": [{"url": "http://w:1", "host": "w", "partitions": [0, 1]}]
    }
    assert [row["partition"] for row in document["partitions"]] == [0, 1]
    first = document["partitions"][0]
    assert (first["second"], first["lag_s"], first["pending"], first["overdue_s"]) == (95, 105, 4, 105)
    assert document["doors"] == [{"door": "etf1", "topic": "schedules", "lag": 7, "readers": 1}]
    assert document["refused"] is None
    assert [problem[:7] for problem in document["problems"]] == ["no tick"]


def test_a_search_result_names_the_offsets_read_and_the_last_seal() -> None:
    head = {"timer_id": "id", "partition": 3, "start": 5, "end": 9, "stands": None, "records": []}
    assert found_document("id", Found(3, 5, 9, None, [])) == head | {"sealed": None, "problem": ""}
    assert found_document("id", Found(3, 5, 9, Sealed(end_ms=96_000), [])) == head | {"sealed": 95, "problem": ""}
