"""The verdicts of the campaign's oracle, right and wrong: it judges the service, so nothing else judges it."""

from dataclasses import replace
from pathlib import Path

import pytest
from campaign.audited import audited
from campaign.clocks import Clocks
from campaign.oracle import Answer, Callback, Request, Verdict, expected, judge
from promises import PromiseError, Terms, fired_digest

from kafka_timers.core.wire import Condition
from kafka_timers.v1.future_pb2 import Future
from kafka_timers.v1.reply_pb2 import Reply
from kafka_timers.v1.sealed_pb2 import Sealed

SECOND = 1_000
IN_TIME_MS, LATE_MS = SECOND * 1000 - 1, SECOND * 1000


def asked(
    offset: int,
    appended_ms: int = 0,
    second: int = SECOND,
    timer_id: str = "",
    cancel: bool = False,
    condition: Condition = Condition.CONDITION_UNSPECIFIED,
) -> Request:
    """Return a record of partition 0 whose callback has its offset as key and value."""
    future = Future(callBackKey=str(offset), callBack=str(offset).encode(), timerId=timer_id, cancel=cancel)
    future.condition = condition
    if timer_id:
        future.replyTopic = "r"
    return Request(0, offset, appended_ms, 0 if cancel else second, future)


def fired(offset: int, appended_ms: int = SECOND * 1000 + 40) -> Callback:
    """Return the callback of the request at *offset*."""
    return Callback(f"0:{offset}", appended_ms, str(offset), str(offset).encode())


def judged(requests: list[Request], callbacks: list[Callback], answers: dict[int, int] | None = None) -> Verdict:
    """Return the verdict; *answers* are outcomes by the offset that they answer."""
    given = [Answer(f"0:{offset}", outcome) for offset, outcome in (answers or {}).items()]
    return judge(expected(requests), callbacks, given, 0, 0)


def test_a_timer_that_fires_once_in_its_second_is_right() -> None:
    verdict = judged([asked(0), asked(1)], [fired(0), fired(1, SECOND * 1000 + 60)])
    assert verdict.faults() == {}
    assert (verdict.timers, verdict.late_p50_s, verdict.late_max_s) == (2, 0.06, 0.06)


def test_lateness_begins_with_the_append_of_a_request_whose_second_has_passed() -> None:
    verdict = judged([asked(0, appended_ms=LATE_MS + 5_000)], [fired(0, LATE_MS + 5_250)])
    assert verdict.late_max_s == 0.25


@pytest.mark.parametrize(
    ("callbacks", "fault"),
    [
        ([], "missing"),
        ([fired(0), fired(0)], "doubled"),
        ([fired(0, SECOND * 1000 - 1)], "early"),
        ([fired(0), fired(7)], "strange"),
        ([replace(fired(0), value=b"other")], "strange"),
    ],
)
def test_a_callback_that_is_not_as_asked_for_is_counted(callbacks: list[Callback], fault: str) -> None:
    assert judged([asked(0)], callbacks).faults() == {fault: 1}


@pytest.mark.parametrize(("cancel", "outcome"), [(True, Reply.CANCELLED), (False, Reply.MOVED)])
def test_a_timer_withdrawn_in_time_must_not_fire_unless_the_answer_was_too_late(cancel: bool, outcome: int) -> None:
    requests = [asked(0, timer_id="a"), asked(1, IN_TIME_MS, SECOND + 5, "a", cancel)]
    later = [] if cancel else [fired(1, SECOND * 1000 + 5_000)]
    first = {0: Reply.UNKNOWN}
    assert judged(requests, later, first | {1: outcome}).faults() == {}
    assert judged(requests, [fired(0), *later], first | {1: outcome}).faults() == {"wrong": 1}
    overruled = judged(requests, [fired(0), *later], first | {1: Reply.TOO_LATE})
    assert (overruled.faults(), overruled.overruled) == ({}, 1)
    assert judged(requests, later, first | {1: Reply.TOO_LATE}).faults() == {"wrong": 1}
    assert judged(requests, later, first).faults() == {"unanswered": 1}


def test_a_timer_withdrawn_too_late_must_fire() -> None:
    requests = [asked(0, timer_id="a"), asked(1, LATE_MS, cancel=True, timer_id="a")]
    assert judged(requests, [fired(0)], {0: Reply.UNKNOWN, 1: Reply.TOO_LATE}).faults() == {}
    assert judged(requests, [], {0: Reply.UNKNOWN, 1: Reply.CANCELLED}).faults() == {"missing": 1, "wrong": 1}


def test_a_second_cancel_is_answered_as_the_first_and_a_request_behind_it_is_new() -> None:
    requests = [asked(0, timer_id="a"), *(asked(n, IN_TIME_MS, cancel=True, timer_id="a") for n in (1, 2))]
    requests.append(asked(3, IN_TIME_MS, timer_id="a"))
    answers = {0: Reply.UNKNOWN, 1: Reply.CANCELLED, 2: Reply.CANCELLED, 3: Reply.UNKNOWN}
    assert judged(requests, [fired(3)], answers).faults() == {}


def test_two_answers_that_contradict_each_other_are_wrong() -> None:
    told = expected([asked(0, timer_id="a")])
    answers = [Answer("0:0", Reply.UNKNOWN), Answer("0:0", Reply.TOO_LATE)]
    assert judge(told, [fired(0)], answers, 0, 0).faults() == {"wrong": 1}
    assert judge(told, [fired(0)], answers[:1] * 2, 0, 0).faults() == {}


def test_silence_is_the_longest_gap_of_a_partition_from_the_fault_on() -> None:
    told = expected([asked(n) for n in range(4)])
    callbacks = [fired(n, SECOND * 1000 + ms) for n, ms in enumerate((0, 9_000, 10_000, 14_000))]
    assert judge(told, callbacks, [], SECOND * 1000 + 9_500, 0).silence_s == 4
    # One that is missing at the end of the run keeps its partition silent until then.
    assert judge(told, callbacks[:3], [], SECOND * 1000 + 9_500, SECOND * 1000 + 60_000).silence_s == 50


def test_a_millisecond_counts_for_early_callbacks_and_for_cancels() -> None:
    future = Future(callBackKey="0", callBack=b"0", millis=250, timerId="a", replyTopic="r")
    timer, moment = Request(0, 0, 0, SECOND, future), SECOND * 1000 + 250
    answers = {0: Reply.UNKNOWN}
    assert judged([timer], [fired(0, moment - 1)], answers).faults() == {"early": 1}
    assert judged([timer], [fired(0, moment)], answers).faults() == {}
    cancelled = [timer, asked(1, moment - 1, cancel=True, timer_id="a")]
    assert judged(cancelled, [], answers | {1: Reply.CANCELLED}).faults() == {}


def test_a_callback_is_early_if_it_comes_sooner_than_the_clocks_differ() -> None:
    told = expected([asked(0), asked(1)])
    callbacks = [fired(0, SECOND * 1000 - 50), fired(1, SECOND * 1000 - 51)]
    verdict = judge(told, callbacks, [], 0, 0, lambda *_: 50)
    assert (verdict.early, verdict.skewed, verdict.skewed_max_ms) == (1, 1, 50)


def test_clocks_differ_more_around_a_step(tmp_path: Path) -> None:
    clocks = Clocks(tmp_path)
    assert [clocks.skew_ms(3, 1, 0), clocks.skew_ms(1, 3, 0), clocks.skew_ms(2, 2, 0)] == [50, 0, 0]
    clocks.step(1, -0.5)
    assert clocks.stepped
    at_ms = round(clocks.stepped[2] * 1000)
    assert [clocks.skew_ms(3, 1, at_ms + after_ms) for after_ms in (-6_000, 0, 6_000)] == [50, 550, 550]
    assert [clocks.skew_ms(1, 1, at_ms + after_ms) for after_ms in (-6_000, 0, 6_000)] == [0, 500, 0]
    assert (tmp_path / "clock-1").read_text() == "-0.5\n"


def instead(offset: int, first: Request, second: int) -> Request:
    """Return the request that takes the place of *first*, or of the last one that has done so."""
    asks = replace(first, offset=offset, appended_ms=(second - 5) * 1000, second=second)
    future = Future.FromString(first.future.SerializeToString())
    future.ClearField("replyTopic")
    future.insteadOf.request = first.name
    return replace(asks, future=future)


@pytest.mark.parametrize("timer_id", ["", "a"])
def test_of_the_requests_of_a_timer_whose_topic_was_unavailable_the_last_must_fire(timer_id: str) -> None:
    first = asked(0, timer_id=timer_id)
    told = expected([first, instead(1, first, SECOND + 6), instead(2, first, SECOND + 12)])
    assert told.must_fire() == {"0:2"}


def test_one_behind_a_later_request_of_its_id_must_not_fire() -> None:
    first = asked(0, timer_id="a")
    told = expected([first, asked(1, LATE_MS, SECOND + 60, timer_id="a"), instead(2, first, SECOND + 6)])
    assert told.must_fire() == {"0:1"}
    assert told.outcomes == {"0:0": {Reply.UNKNOWN}, "0:1": {Reply.TOO_LATE}}


@pytest.mark.parametrize(("callbacks", "faults"), [([fired(0)], {}), ([], {"wrong": 1})])
def test_a_cancel_that_was_too_late_for_a_worker_lets_the_one_in_its_place_fire(
    callbacks: list[Callback], faults: dict[str, int]
) -> None:
    first = asked(0, timer_id="a")
    requests = [first, asked(1, IN_TIME_MS, timer_id="a", cancel=True), instead(2, first, SECOND + 6)]
    late = [replace(one, request="0:2", appended_ms=(SECOND + 7) * 1000) for one in callbacks]
    verdict = judged(requests, late, {0: Reply.UNKNOWN, 1: Reply.TOO_LATE})
    assert (verdict.faults(), verdict.overruled) == (faults, len(callbacks))


def test_a_cancel_stops_the_one_in_its_place() -> None:
    first = asked(0, timer_id="a")
    told = expected([first, instead(1, first, SECOND + 6), asked(2, LATE_MS + 1_000, timer_id="a", cancel=True)])
    assert told.must_fire() == set()
    assert told.outcomes["0:2"] == {Reply.CANCELLED}


def test_a_record_whose_condition_does_not_hold_is_as_if_nobody_had_asked() -> None:
    requests = [asked(0, timer_id="a"), asked(1, IN_TIME_MS, SECOND + 5, "a", condition=Condition.IF_ABSENT)]
    told = audited(requests, {}, {}, Terms(), lambda _: True)
    answers = [Answer("0:0", Reply.UNKNOWN), Answer("0:1", Reply.IGNORED)]
    assert judge(told, [fired(0)], answers, 0, 0).faults() == {}
    assert judge(told, [fired(0), fired(1)], answers, 0, 0).faults() == {"strange": 1}
    assert judge(told, [fired(0)], [answers[0], Answer("0:1", Reply.MOVED)], 0, 0).faults() == {"wrong": 1}


def test_an_id_is_free_for_a_request_on_condition_once_its_hour_is_over() -> None:
    requests = [asked(0, timer_id="a"), asked(1, LATE_MS + 59_999, timer_id="a", condition=Condition.IF_ABSENT)]
    requests.append(asked(2, LATE_MS + 60_000, timer_id="a", condition=Condition.IF_ABSENT))
    told = audited(requests, {}, {}, Terms(memory_s=60), lambda _: True)
    assert told.outcomes == {"0:0": {Reply.UNKNOWN}, "0:1": {Reply.IGNORED}, "0:2": {Reply.ACCEPTED}}
    assert told.must_fire() == {"0:0", "0:2"}


def test_the_seal_tells_whether_a_record_in_time_was_read_in_time() -> None:
    requests = [asked(0, timer_id="a"), asked(1, IN_TIME_MS, timer_id="a", cancel=True, condition=Condition.IF_PENDING)]
    counts = {"due": 1, "fired": 1, "fired_digest": fired_digest(0, [0])}
    seal = Sealed(first_ms=1000, end_ms=LATE_MS + 1000, fence=1, **counts)
    told = audited(requests, {0: [seal]}, {}, Terms(), lambda _: True)
    assert (told.must_fire(), told.outcomes["0:1"]) == ({"0:0"}, {Reply.IGNORED})
    seal.fence = 2
    with pytest.raises(PromiseError, match="P8"):
        audited(requests, {0: [seal]}, {}, Terms(), lambda _: True)


@pytest.mark.parametrize(("after_ms", "is_known"), [(3_599_999, True), (3_600_000, False)])
def test_a_timer_may_be_unknown_an_hour_after_its_second(after_ms: int, is_known: bool) -> None:
    """As where the leader of `timer-request` has a clock that is an hour ahead of the one with the ticks."""
    requests = [asked(0, timer_id="a"), asked(1, SECOND * 1000 + after_ms, timer_id="a", cancel=True)]
    for given in (Reply.TOO_LATE, Reply.UNKNOWN):
        verdict = judged(requests, [fired(0)], {0: Reply.UNKNOWN, 1: given})
        assert verdict.faults() == ({"wrong": 1} if is_known and given == Reply.UNKNOWN else {})
