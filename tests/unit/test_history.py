"""How the timers of one id stand follows from the log and the last seal."""

from io import StringIO

import pytest
from aiokafka import ConsumerRecord
from rich.console import Console

from kafka_timers.cli.program import history_table
from kafka_timers.core.outcomes import Asked, State, asked_in, states_of
from kafka_timers.core.wire import Future, Sealed

PENDING, FIRED, CANCELLED, MOVED = State.PENDING, State.FIRED, State.CANCELLED, State.MOVED
TOO_LATE, UNKNOWN, REFUSED = State.TOO_LATE, State.UNKNOWN, State.REFUSED

SEAL = Sealed(last=20, fence=14)


def request(offset: int, appended_s: float, second: int | None) -> Asked:
    return Asked(offset, int(appended_s * 1000), second, False, "calls", "k")


def cancel(offset: int, appended_s: float) -> Asked:
    return Asked(offset, int(appended_s * 1000), None, True, "", "")


@pytest.mark.parametrize(
    ("asked", "seal", "states"),
    [
        ([request(11, 9, 15), cancel(12, 14), request(13, 16, 18), request(14, 17, 30)], SEAL, "C C F P"),
        ([request(11, 9, 15)], None, "P"),
        ([request(11, 9, 20)], SEAL, "F"),
        ([request(11, 9, 21)], SEAL, "P"),
        # Read after its second was sealed: it fires with the next tick.
        ([request(14, 9, 15)], SEAL, "P"),
        ([request(1, 9, 15), cancel(2, 14.999)], None, "C C"),
        ([request(1, 9, 15), cancel(2, 15)], None, "P L"),
        ([request(1, 9, 15), cancel(2, 15)], SEAL, "F L"),
        # Committed after the second was fired.
        ([request(1, 9, 15), cancel(14, 14)], SEAL, "F L"),
        ([request(1, 9, 15), cancel(13, 14)], SEAL, "C C"),
        ([request(1, 9, 25), cancel(14, 24)], SEAL, "C C"),
        ([cancel(1, 9)], SEAL, "U"),
        ([cancel(1, 9), request(2, 10, 30), cancel(15, 11), cancel(16, 12), cancel(17, 40)], SEAL, "U C C C C"),
        ([request(1, 9, 30), cancel(2, 10), request(3, 11, 31)], SEAL, "C C P"),
        ([request(1, 9, 30), request(2, 10, 31), request(3, 11, 32)], SEAL, "M M P"),
        ([request(1, 9, 15), request(2, 15, 30), cancel(3, 16)], SEAL, "F C C"),
        ([request(1, 9, 15), request(2, 15, 16), cancel(15, 16)], SEAL, "F F L"),
        ([request(1, 9, 30), request(2, 10, None), cancel(3, 11)], SEAL, "C R C"),
        ([], SEAL, ""),
    ],
)
def test_state_follows_from_append_times_and_the_last_seal(
    asked: list[Asked], seal: Sealed | None, states: str
) -> None:
    letters = dict(zip("PFCMLUR", [PENDING, FIRED, CANCELLED, MOVED, TOO_LATE, UNKNOWN, REFUSED], strict=True))
    assert states_of(asked, seal) == [letters[letter] for letter in states.split()]


def record(offset: int, key: bytes | None, value: bytes | None) -> ConsumerRecord[bytes, bytes]:
    return ConsumerRecord("timer-request", 3, offset, 1_000 + offset, 1, key, value, None, 1, 1, ())


def test_only_records_of_the_id_are_taken() -> None:
    of_id = Future(callBackTopic="calls", callBackKey="k", timerId="id")
    values = [
        None,
        b"",
        b"id\xff",
        Future(callBackTopic="calls", timerId="id2").SerializeToString(),
        Future(callBackTopic="calls", callBackKey="id", callBack=b"id").SerializeToString(),
        of_id.SerializeToString(),
        Future(timerId="id", cancel=True, callBackTopic="ignored", millis=5_000).SerializeToString(),
    ]
    asked = list(asked_in([record(offset, b"17", value) for offset, value in enumerate(values)], "id"))
    assert asked == [Asked(5, 1_005, 17, False, "calls", "k"), Asked(6, 1_006, None, True, "ignored", "")]


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
    [asked] = asked_in([record(0, key, future.SerializeToString())], "größe")
    assert (asked.second, asked.cancel) == (None, False)
    assert states_of([asked], SEAL) == [REFUSED]


def test_table_fits_a_terminal_and_holds_no_control_characters() -> None:
    rows = [
        (Asked(12_345_678, 1_700_000_000_999, 4_000_000_000, False, "\x1b[2J[bold]" * 9, "日本\n" * 9), PENDING),
        (Asked(12_345_679, 1_700_000_001_000, None, True, "", ""), TOO_LATE),
        (Asked(12_345_680, 1_700_000_001_000, None, False, "", ""), REFUSED),
    ]
    console = Console(file=StringIO(), width=80)
    console.print(history_table(3, rows))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "3:12345678  2023-11-14 22:13:20  2096-10-02 07:06:40  pending   \\x1b[2J[" in shown
    assert "3:12345679  2023-11-14 22:13:21  cancel               too late" in shown
    assert all(line.isprintable() and len(line) <= 80 for line in shown.splitlines())
