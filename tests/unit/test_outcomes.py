"""The outcomes of the timers of an id follow from its records and the seals; `law_cases` has the table."""

from io import StringIO

import pytest
from aiokafka import ConsumerRecord
from law_cases import CASES, CONDITIONS, ID, LAST, Case, cancel, copy, lake_seal, request, seal
from rich.console import Console

from kafka_timers.cli.terminal import history_table
from kafka_timers.client.request import question_of
from kafka_timers.core.outcomes import Outcome, State, outcomes_of, records_of, standing, uncertain, with_rejected
from kafka_timers.core.wire import Condition, Future

LETTERS = {
    "P": State.PENDING,
    "K": State.PARKED,
    "F": State.FIRED,
    "C": State.CANCELLED,
    "M": State.MOVED,
    "L": State.TOO_LATE,
    "U": State.UNKNOWN,
    "I": State.IGNORED,
    "R": State.REFUSED,
}


@pytest.mark.parametrize("case", [*CASES, *CONDITIONS], ids=lambda case: case.name)
def test_states_follow_from_records_and_seals(case: Case) -> None:
    found = with_rejected(outcomes_of(case.records, case.seals, 0, 1), dict(case.rejected))
    assert [each.state for each in found] == [LETTERS[letter] for letter in case.states]


def test_the_record_that_withdrew_a_request_its_copy_and_its_seal_are_told() -> None:
    records = [request(1, 1, 200), cancel(2, 3), request(3, 4, 210), request(4, 5, 220), copy(50, 150, 220, 4, 40)]
    seals = [lake_seal(140, 30, 1), lake_seal(215, 60, 141), lake_seal(220, 61)]
    found = outcomes_of([*records, cancel(55, 160), request(56, 161, 220)], seals, 0, 1)
    assert [(each.offset, each.by, each.copied_at, each.seal) for each in found] == [
        (1, 2, None, None),
        (2, None, None, None),
        (3, 4, None, None),
        (4, 55, 50, None),
        (55, None, None, None),
        (56, None, None, seals[2]),
    ]
    *_, far = outcomes_of(records, seals, 0, 1)
    assert (far.offset, far.by, far.copied_at, far.seal) == (4, None, 50, seals[2])


def test_a_request_that_came_late_has_the_seal_of_the_tick_that_found_it() -> None:
    seals = [seal(20, 14, 1), seal(21, 15), seal(22, 16)]
    [found] = outcomes_of([request(14, 9, 15)], seals, 0, 1)
    assert found.seal == seals[1]


@pytest.mark.parametrize(
    ("records", "rejected", "stands"),
    [
        ([], {}, None),
        ([request(1, 1, 300)], {}, 1),
        # Beside one that waits, what changed nothing does not stand, nor what no worker could read.
        ([request(1, 1, 300), request(2, 2, 400, condition=Condition.IF_ABSENT)], {}, 1),
        ([request(1, 1, 300), request(2, 2, None)], {}, 1),
        ([request(1, 1, 300), cancel(2, 3)], {}, 1),
        ([request(1, 1, 300), request(2, 3, 400)], {}, 2),
        ([request(1, 1, 10), request(2, 3, 10, condition=Condition.IF_ABSENT)], {}, 1),
        ([request(1, 1, 10)], {1: "topic-unknown"}, 1),
        ([request(1, 1, 10), request(2, 2, None)], {1: "topic-unknown"}, 1),
        ([request(1, 1, None), request(2, 2, None)], {}, 2),
        ([request(1, 1, 300, condition=Condition.IF_PENDING)], {}, None),
    ],
)
def test_the_last_request_that_was_accepted_stands(
    records: list[ConsumerRecord[bytes, bytes]], rejected: dict[int, str], stands: int | None
) -> None:
    found = standing(with_rejected(outcomes_of(records, [seal(20, 14, 1)], 0, 1, whole=True), rejected))
    assert (found and found.offset) == stands


def test_why_a_request_was_refused_is_told() -> None:
    outcomes = outcomes_of([request(1, 9, None), request(2, 9, 15)], LAST, 0, 1)
    [early, later] = with_rejected(outcomes, {2: "topic-unknown"})
    assert (early.state, early.reason, early.due_ms) == (State.REFUSED, "key-not-a-second", None)
    assert (later.state, later.reason, later.second) == (State.REFUSED, "topic-unknown", 15)


@pytest.mark.parametrize(
    ("sealed", "whole", "state"),
    [
        (20, False, State.IGNORED),
        (3_608, False, State.IGNORED),
        (3_609, False, State.FIRED),
        (3_609, True, State.IGNORED),
    ],
)
def test_a_move_if_pending_without_its_timer_in_reach_stands_if_it_came_an_hour_ago(
    sealed: int, whole: bool, state: State
) -> None:
    """A request replaced within an hour of the last seal is read."""
    asked = [request(5, 9, 15, condition=Condition.IF_PENDING)]
    [found] = outcomes_of(asked, [seal(sealed, 14, 1)], 0, 1, whole=whole)
    assert found.state is state


def test_only_requests_that_may_have_been_withdrawn_in_time_need_the_seal_that_covers_them() -> None:
    records = [request(1, 9, 15), cancel(2, 15), request(3, 16, 30), cancel(4, 29), request(5, 30, None)]
    assert uncertain(records, 0, 1) == [30_000]


def record(offset: int, key: bytes | None, value: bytes | None) -> ConsumerRecord[bytes, bytes]:
    return ConsumerRecord("timer-request", 3, offset, 1_000 + offset, 1, key, value, None, 1, 1, ())


def test_only_records_of_the_id_are_taken() -> None:
    values = [
        None,
        b"",
        b"id\xff",
        Future(callBackTopic="calls", timerId="id2").SerializeToString(),
        Future(callBackTopic="calls", callBackKey="id", callBack=b"id").SerializeToString(),
        Future(callBackTopic="calls", callBackKey="k", timerId="id").SerializeToString(),
        Future(timerId="id", cancel=True, callBackTopic="ignored", millis=5_000).SerializeToString(),
        # It changes nothing, and so it is no part of the id's history.
        question_of("id", 0).SerializeToString(),
    ]
    found = records_of([record(offset, b"17", value) for offset, value in enumerate(values)], ID)
    assert [each.offset for each in found] == [5, 6]
    told = [(each.offset, each.second, each.cancel, each.topic, each.key) for each in outcomes_of(found, [], 0, 1)]
    assert told == [(5, 17, False, "calls", b"k"), (6, None, True, "ignored", None)]


@pytest.mark.parametrize(
    ("key", "future"),
    [
        (None, Future(callBackTopic="calls")),
        (b"", Future(callBackTopic="calls")),
        (b"0", Future(callBackTopic="calls")),
        (b"soon", Future(callBackTopic="calls")),
        (b"1" * 12, Future(callBackTopic="calls")),
        (b"1" * 5_000, Future(callBackTopic="calls")),
        (b"17", Future()),
        (b"17", Future(callBackTopic="calls", millis=1_000)),
    ],
)
def test_request_that_no_worker_takes_has_no_second(key: bytes | None, future: Future) -> None:
    future.timerId = "größe"
    [found] = outcomes_of([record(0, key, future.SerializeToString())], [seal(20, 14, 1)], 0, 1)
    assert (found.second, found.cancel, found.state) == (None, False, State.REFUSED)


def test_table_fits_a_terminal_and_holds_no_control_characters() -> None:
    rows = [
        Outcome(
            *(12_345_678, 1_700_000_000_999, 4_000_000_000_250, False, "\x1b[2J[bold]" * 9, b"\xff\n" * 9),
            State.PENDING,
        ),
        Outcome(12_345_679, 1_700_000_001_000, None, True, "", None, State.TOO_LATE),
        Outcome(12_345_680, 1_700_000_001_000, None, False, "", None, State.REFUSED, "key-missing"),
    ]
    console = Console(file=StringIO(), width=80)
    console.print(history_table(3, rows))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "3:12345678  2023-11-14 22:13:20  2096-10-02 07:06:40.250  pending   \\x1b[2J" in shown
    assert "3:12345679  2023-11-14 22:13:21  cancel                   too late" in shown
    assert "3:12345680  2023-11-14 22:13:21  -                        refused   key-missing" in shown
    assert all(line.isprintable() and len(line) <= 80 for line in shown.splitlines())
