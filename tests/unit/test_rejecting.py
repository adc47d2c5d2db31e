"""Refused requests as they lie on `timer-rejected`."""

from dataclasses import dataclass, replace

import pytest

from kafka_timers.adapters.commands import SourceHeaders, pack_future, source_field
from kafka_timers.core.callbacks import OVERHEAD_BYTES
from kafka_timers.core.rejected import Rejected
from kafka_timers.core.wire import Condition, Future, refused_request, rejection_in
from kafka_timers.errors import RequestError
from kafka_timers.runtime.rejecting import Headers, Refused, fitted, refused_records, size_of


@dataclass
class Record:
    """A record of another system, or one on `timer-rejected`."""

    key: bytes | None
    value: bytes | None = None
    topic: str = "schedules"
    partition: int = 2
    offset: int = 300
    timestamp: int = 1_000_500
    headers: SourceHeaders = ()


FUTURE = {"callBackTopic": b"calls", "callBack": b"v", "timerId": b"id", "millis": 250}


def rejected_as(value: bytes, key: bytes | None = b"1000") -> Refused:
    [refused] = refused_records("topic-unknown", "timer-request", 5, [(7, key, value)])
    return refused


@pytest.mark.parametrize("key", [None, b"", b"\xff", b"k" * 300])
@pytest.mark.parametrize("offset", [0, 127, 128, 1 << 40])
def test_a_request_of_a_door_is_rejected_as_its_record_and_names_the_request(key: bytes | None, offset: int) -> None:
    record = Record(key, offset=offset)
    value = pack_future([("own", b"1"), ("null", None)], **FUTURE) + source_field("etf1", record)
    assert Future.FromString(value).source.offset == offset
    refused = rejected_as(value)
    assert (refused.key, refused.value, refused.own) == (key, b"v", [("own", b"1"), ("null", None)])
    told = rejection_in(refused.about)
    assert told == {
        "reason": b"topic-unknown",
        "topic": b"schedules",
        "partition": b"2",
        "offset": b"%d" % offset,
        "door": b"etf1",
        "request": b"5:7",
        "callback-topic": b"calls",
        "id": b"id",
        "due-ms": b"1000250",
    }
    assert refused_request(told, "timer-request") == b"5:7"


@pytest.mark.parametrize("value", [b"", b"\x92\x01", b"\x92\x01\xff", Future(token="\x92\x01").SerializeToString()])
def test_a_request_that_no_door_has_made_is_rejected_as_it_is(value: bytes) -> None:
    refused = rejected_as(value)
    assert (refused.key, refused.value, refused.own) == (b"1000", value, [])
    told = rejection_in(refused.about)
    assert (refused_request(told, "timer-request"), "request" in told) == (b"5:7", False)
    assert refused_request(told, "other") is None


def test_a_record_that_a_door_refuses_itself_is_no_request() -> None:
    told = {"topic": b"schedules", "partition": b"1", "offset": b"3", "door": b"etf1", "reason": b"past-grace"}
    assert refused_request(told, "timer-request") is None


@pytest.mark.parametrize("room", [300, 700, 1_200, 2_400, 5_000])
def test_parts_that_do_not_fit_are_left_out_headers_first(room: int) -> None:
    told: Headers = [("timer-rejected-reason", b"r" * 50), ("timer-rejected-words", b"w" * 100)]
    own: Headers = [("own", b"o" * 900), ("timer-rejected-reason", b"of before")]
    key, value, headers = fitted(Refused(told, b"k" * 100, b"v" * 1_000, own), room)
    assert size_of(key, value, headers) - OVERHEAD_BYTES <= room
    assert headers[:2] == told
    assert ("own" in dict(headers), len(value or b"") == 1_000) == (room >= 1_200, room >= 2_400)
    missing = 1_100 - len(key or b"") - len(value or b"")
    assert dict(headers[2:]).get("timer-rejected-cut", b"0") == b"%d" % missing
    assert headers.count(("timer-rejected-reason", b"of before")) == 0


def test_it_is_sent_again_as_the_request_that_the_door_had_made() -> None:
    value = pack_future(tombstoneTopic=b"schedules", **FUTURE) + source_field("etf1", Record(b"vid1"))
    refused = rejected_as(value)
    lying = Record(refused.key, refused.value, "timer-rejected", 0, 9, headers=refused.about)
    shown = Rejected.of(lying)
    assert (shown.second, shown.due_ms, shown.callback_topic, shown.timer_id) == (1000, 1_000_250, "calls", "id")
    document = shown.document()
    assert (document["made"], document["record_key"], document["record_value"]) == ("5:7", "vid1", "v")
    with pytest.raises(RequestError, match=r"its request is gone from timer-request\. Publish it on schedules again"):
        shown.again("timer-request", 8, 2_000_000)
    gone = replace(shown, gone="request 5:7 has left timer-request")
    with pytest.raises(RequestError, match=r": request 5:7 has left timer-request\. Publish it on schedules again"):
        gone.again("timer-request", 8, 2_000_000)
    # What a timer-request that was made anew has at that place is not sent in its stead.
    for other in (pack_future(**FUTURE), value + source_field("etf1", Record(b"vid1", offset=301)), b"\xff"):
        assert shown.with_request(other) == shown
    due_ms, future = shown.with_request(value).again("timer-request", 8, 2_000_000)
    assert (due_ms, future.timerId, future.condition) == (2_000_000, "id", Condition.IF_ABSENT)
    assert (future.tombstoneTopic, future.source.door) == ("schedules", "etf1")
