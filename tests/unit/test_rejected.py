"""The record of a refused request, and its second try."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from kafka_timers.cli.render import rejected_lines
from kafka_timers.core.refused import Reason
from kafka_timers.core.rejected import Rejected
from kafka_timers.core.routing import partition_of
from kafka_timers.core.schedules import Cron, Schedule
from kafka_timers.core.wire import Condition, Copy, Future, Header
from kafka_timers.errors import RequestError

NOW_MS = 2_000_500
HOME = partition_of("id", 8)


@dataclass
class Record:
    """A record as it is read from `timer-rejected`."""

    key: bytes | None = b"1000"
    value: bytes | None = b""
    partition: int = 3
    offset: int = 17
    timestamp: int = 1_000_500
    headers: list[tuple[str, bytes | None]] = field(default_factory=list)


def told(reason: str, **more: object) -> list[tuple[str, bytes | None]]:
    told = {"reason": reason, "topic": "timer-request", "partition": HOME, "offset": 5} | more
    return [(f"timer-rejected-{name}", str(value).encode()) for name, value in told.items()]


def refused(
    reason: str = "topic-unknown", key: bytes | None = b"1000", more: dict[str, object] | None = None, **asked: Any
) -> Rejected:
    """Return a request that was refused."""
    future = Future(**({"callBackTopic": "calls", "callBackKey": "k", "callBack": b"v", "timerId": "id"} | asked))
    return Rejected.of(Record(key, future.SerializeToString(), headers=told(reason, **(more or {}))))


def test_a_refused_request_is_shown_with_place_reason_and_callback() -> None:
    headers = [Header(key="trace", value=b"\xff"), Header(key="none")]
    document = refused(more={"words": "no leader"}, token="t", millis=250, headers=headers).document()
    assert document == {
        "place": "3:17",
        "at_ms": 1_000_500,
        "reason": "topic-unknown",
        "words": "no leader",
        "door": "",
        "source": "timer-request",
        "request": f"{HOME}:5",
        "cut": 0,
        "again": None,
        "second": 1000,
        "due_ms": 1_000_250,
        "cancel": False,
        "topic": "calls",
        "key": "k",
        "partition": None,
        "partition_key": None,
        "timer_id": "id",
        "token": "t",
        "value": "v",
        "headers": [{"name": "trace", "value_base64": "/w=="}, {"name": "none", "value": None}],
    }


@pytest.mark.parametrize("value", [None, b"", b"\xff\xff", b"\x0a"])
def test_a_record_that_is_no_request_is_shown_by_its_bytes(value: bytes | None) -> None:
    document = Rejected.of(Record(b"soon", value, headers=told("value-not-a-future"))).document()
    assert (document["record_key"], document["second"], "topic" in document) == ("soon", None, False)
    assert document["due_ms"] is None
    shown = {None: None, b"": "", b"\x0a": "\n"}
    assert document.get("record_value_base64", "//8=") == "//8="
    assert document.get("record_value") == shown.get(value)


def refused_schedule(value: bytes, why: str = "cron: '61 * * * *' has no times") -> Rejected:
    headers = told("schedule-invalid", topic="timer-schedule", partition=2, offset=11, why=why)
    return Rejected.of(Record(b"1000", value, headers=headers))


def test_a_refused_schedule_is_shown_as_one_with_its_cause() -> None:
    callback = Future(callBackTopic="calls", callBackKey="k", callBack=b"\xff")
    bad = refused_schedule(Schedule(cron=Cron(expression="61 * * * *"), callback=callback).SerializeToString())
    document = bad.document()
    assert document["words"] == "cron: '61 * * * *' has no times"
    assert (document["schedule_id"], document["times"]) == ("1000", "61 * * * * in UTC")
    assert (document["topic"], document["key"], document["value_base64"]) == ("calls", "k", "/w==")
    assert (document["second"], document["due_ms"], "record_key" in document) == (None, None, False)
    assert (bad.callback_topic, bad.timer_id) == ("calls", "")
    assert rejected_lines(bad)[1:] == [
        f"{'':30}cron: '61 * * * *' has no times",
        f"{'':30}schedule 1000: 61 * * * * in UTC, to calls",
    ]
    with pytest.raises(RequestError, match="it is a schedule: put a correct one, with kafka-timers schedule put"):
        bad.again("timer-request", 8, NOW_MS)
    # One without times, and one that is cut or no message at all.
    assert rejected_lines(refused_schedule(b""))[-1] == f"{'':30}schedule 1000: no times, to no topic"
    document = refused_schedule(b"\x0a\x20ab").document()
    assert (document["record_key"], document["record_value"], document["words"][:5]) == ("1000", "\n ab", "cron:")


def test_a_record_that_tells_nothing_is_shown_all_the_same() -> None:
    odd = Rejected.of(Record(None, None, headers=[("other", None)]))
    assert (odd.reason, odd.topic, odd.request, odd.future) == ("", "", "?:?", None)
    with pytest.raises(RequestError, match="it was read from an unknown topic"):
        odd.again("timer-request", 8, NOW_MS)


def test_a_request_with_an_id_is_asked_for_again_unless_a_later_one_is_known() -> None:
    """It is known by its id itself, for an hour, if it was refused in its second."""
    due_ms, future = refused(token="t", tombstoneTopic="schedules", replyTopic="mine").again("timer-request", 8, NOW_MS)
    assert due_ms == NOW_MS
    assert (future.timerId, future.condition, future.ifRequest) == ("id", Condition.IF_ABSENT, f"{HOME}:5")
    assert (future.callBackTopic, future.callBack, future.token, future.tombstoneTopic) == (
        "calls",
        b"v",
        "t",
        "schedules",
    )


def test_one_that_lay_elsewhere_is_not_known_by_its_id() -> None:
    elsewhere = {"partition": (HOME + 1) % 8}
    _, future = refused("id-in-foreign-partition", more=elsewhere).again("timer-request", 8, NOW_MS)
    assert (future.timerId, future.condition, future.ifRequest) == ("id", Condition.IF_ABSENT, "")


def test_a_request_without_an_id_gets_one_of_its_place() -> None:
    _, future = refused(timerId="").again("timer-request", 8, NOW_MS)
    assert (future.timerId, future.condition, future.ifRequest) == ("rejected-3:17", Condition.IF_ABSENT, "")


def test_a_request_in_the_future_keeps_its_millisecond_and_a_copy_becomes_a_request() -> None:
    due_ms, future = refused(key=b"3000", millis=7, copy=Copy(offset=5, decidedOffset=9)).again(
        "timer-request", 8, NOW_MS
    )
    assert (due_ms, future.HasField("copy"), future.ifRequest) == (3_000_007, False, f"{HOME}:5")


@pytest.mark.parametrize("reason", ["key-missing", "key-not-a-second", "key-in-milliseconds"])
def test_a_request_whose_key_names_no_second_needs_one(reason: str) -> None:
    wrong = refused(reason, key=b"1900000000000" if "milli" in reason else None)
    with pytest.raises(RequestError, match=r"3:17 cannot be sent again: its key names no second .*: give one"):
        wrong.again("timer-request", 8, NOW_MS)
    assert wrong.again("timer-request", 8, NOW_MS, 2_500_250).due_ms == 2_500_250


@pytest.mark.parametrize(
    ("reason", "more", "asked", "why"),
    [
        (
            "etf1-epoch",
            {"door": "etf1", "topic": "schedules"},
            {},
            "the door etf1: publish it on schedules again",
        ),
        (
            "topic-unknown",
            {"topic": "eu.timer-request"},
            {},
            "from eu.timer-request, and requests lie on timer-request",
        ),
        ("too-large", {"cut": 7}, {}, "7 bytes of it are missing here, and its request is gone from timer-request"),
        ("condition-invalid", {}, {}, "the request itself is wrong .condition-invalid.: correct it"),
        ("topic-missing", {}, {"callBackTopic": ""}, "publish it anew"),
        ("condition-unsupported", {}, {"cancel": True}, "use kafka-timers cancel"),
        ("condition-unsupported", {}, {"condition": Condition.IF_PENDING}, "use kafka-timers move"),
    ],
)
def test_one_that_cannot_be_sent_again_says_why(
    reason: str, more: dict[str, object], asked: dict[str, Any], why: str
) -> None:
    with pytest.raises(RequestError, match=why):
        refused(reason, more=more, **asked).again("timer-request", 8, NOW_MS)


def test_one_that_is_cut_is_sent_again_whole_if_that_is_found() -> None:
    whole = Future(callBackTopic="calls", callBack=b"v" * 100, timerId="id").SerializeToString()
    cut = Rejected.of(Record(value=whole[:60], headers=told("too-large", cut=len(whole) - 60)))
    assert cut.lies_at == f"{HOME}:5"
    # What a timer-request that was made anew has at that place is not sent in its stead.
    for other in (b"", whole + b"v", whole[:-1], b"x" + whole[1:], whole[:60]):
        assert cut.with_request(other) == cut
    again = cut.with_request(whole)
    assert (again.lies_at, again.document()["value"]) == ("", "v" * 100)
    assert again.again("timer-request", 8, NOW_MS).future.callBack == b"v" * 100
    gone = replace(cut, gone=f"request {HOME}:5 has left timer-request")
    with pytest.raises(
        RequestError, match=f"bytes of it are missing here, and request {HOME}:5 has left timer-request"
    ):
        gone.again("timer-request", 8, NOW_MS)


@pytest.mark.parametrize("reason", Reason)
def test_of_every_reason_it_is_known_whether_the_request_can_be_sent_again(reason: Reason) -> None:
    """Think about each new one: whether its requests can ever be taken."""
    contents = ["value-", "millis-", "id-missing", "condition-invalid", "callback-", "copy-", "topic-missing"]
    is_wrong_itself = any(reason.startswith(each) for each in contents)
    try:
        refused(reason).again("timer-request", 8, NOW_MS, 2_500_000)
    except RequestError:
        assert is_wrong_itself
    else:
        assert not is_wrong_itself


def test_one_that_the_service_asks_for_again_is_not_sent_again_by_hand() -> None:
    """Until it has given up."""
    waits = refused("topic-unavailable", more={"again": 1030})
    assert waits.document()["again"] == 1030
    with pytest.raises(RequestError, match="the service itself has asked for it again, for second 1030"):
        waits.again("timer-request", 4, 2_000_000)
    assert refused("topic-unavailable").again("timer-request", 4, 2_000_000).due_ms == 2_000_000
