"""
A schedule of sky-uk/kafka-message-scheduler becomes a request, in JSON and in Avro, and damaged ones are refused.

Avro is written, and read for comparison, by a library that is not ours.
"""

import base64
import io
import json
import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from fastavro import schemaless_reader, schemaless_writer
from test_adapters import TIMESTAMP_MS, Given, headers_of

from kafka_timers.adapters import ADAPTERS, KEEPINGS
from kafka_timers.adapters.commands import Command, Parsed, Refusal, TooManyHopsError
from kafka_timers.adapters.keeping import Ended, Last
from kafka_timers.core.wire import Callback, Future, Header

DUE_MS = 1_893_456_000_345
TOPIC = "schedules"
# As `sbt schema` of that scheduler writes it, without its words.
FIELDS = [
    {"name": "time", "type": "long"},
    {"name": "topic", "type": "string"},
    {"name": "key", "type": "bytes"},
    {"name": "value", "type": ["null", "bytes"]},
    {"name": "headers", "type": {"type": "map", "values": "bytes"}},
]
SCHEMA: dict[str, Any] = {"type": "record", "name": "AvroSchedule", "fields": FIELDS}
WITHOUT_HEADERS = SCHEMA | {"fields": FIELDS[:4]}

Schedule = Mapping[str, Any]
GOOD: Schedule = {"time": DUE_MS, "topic": "videos", "key": b"vid1", "value": b"play", "headers": {"trace": b"\0\xff"}}


def avro(schedule: Schedule = GOOD, schema: dict[str, Any] = SCHEMA) -> bytes:
    """Return *schedule* in Avro."""
    to = io.BytesIO()
    schemaless_writer(to, schema, dict(schedule))
    return to.getvalue()


def in_json(schedule: Schedule = GOOD, **changed: Any) -> bytes:
    """Return *schedule* in JSON as that scheduler reads it, with some fields *changed* as they stand."""

    def text(data: bytes) -> str:
        return base64.b64encode(data).decode()

    value = schedule["value"]
    body = {
        "time": schedule["time"],
        "topic": schedule["topic"],
        "key": text(schedule["key"]),
        "value": None if value is None else text(value),
        "headers": {name: text(value) for name, value in schedule["headers"].items()},
    }
    return json.dumps(body | changed).encode()


def without(name: str) -> bytes:
    """Return the good schedule in JSON without a field."""
    body = json.loads(in_json())
    del body[name]
    return json.dumps(body).encode()


def parse(value: bytes | None, key: bytes | None = b"id", **more: Any) -> Parsed:
    return ADAPTERS["skyuk"](Given(key, value, topic=TOPIC, **more))


def future_of(value: bytes, key: bytes = b"id", **more: Any) -> tuple[int | None, bytes | None, Future]:
    """Return second, name and Future of the command that a schedule stands for."""
    command = parse(value, key, **more)
    assert isinstance(command, Command)
    return command.second, command.name, Future.FromString(command.future)


both = pytest.mark.parametrize("write", [avro, in_json])


@both
def test_a_schedule_becomes_the_record_that_skyuk_would_write(write: Callable[[Schedule], bytes]) -> None:
    second, name, future = future_of(write(GOOD), headers=(("of the record", b"stays behind"),))
    assert (second, name) == (DUE_MS // 1000, b"skyuk:schedules:id")
    assert future == Future(
        callBackTopic="videos",
        callBackKey="vid1",
        callBack=b"play",
        timerId="skyuk:schedules:id",
        millis=345,
        headers=[Header(key="trace", value=b"\0\xff")],
        tombstoneTopic="schedules",
        tombstoneKey="id",
        tombstonePartition=3,
    )


@both
@pytest.mark.parametrize(
    ("key", "value"), [(b"\xff\0", b"v"), (b"vid1", None), (b"", b"v"), (b"", None), (b"\xff", b"")]
)
def test_keys_of_any_bytes_and_tombstones_are_taken(
    write: Callable[[Schedule], bytes], key: bytes, value: bytes | None
) -> None:
    """An empty key is a key there, and not none; a compacted topic tells them apart."""
    _, _, future = future_of(write(GOOD | {"key": key, "value": value}))
    assert future.callBackRecord == Callback(topic="videos", key=key, value=value)
    assert (future.callBackTopic, future.callBackKey, future.callBack) == ("", "", b"")


@both
def test_an_empty_value_is_no_tombstone(write: Callable[[Schedule], bytes]) -> None:
    _, _, future = future_of(write(GOOD | {"value": b""}))
    assert (future.callBackTopic, future.callBackKey, future.callBack) == ("videos", "vid1", b"")


@both
@pytest.mark.parametrize(
    ("time", "due_ms"),
    [
        (1_700_000_000_001, 1_700_000_000_001),
        (1_000, 1_000),
        (999, 1_000),
        (0, 1_000),
        (-62, 1_000),
        (-(1 << 63), 1_000),
        (99_999_999_999_999, 99_999_999_999_999),
        (100_000_000_000_000, 99_999_999_999_999),
        ((1 << 63) - 1, 99_999_999_999_999),
    ],
)
def test_a_time_that_no_timer_can_have_is_at_once_or_never(
    write: Callable[[Schedule], bytes], time: int, due_ms: int
) -> None:
    second, _, future = future_of(write(GOOD | {"time": time}))
    assert second is not None
    assert second * 1000 + future.millis == due_ms


def test_a_schedule_of_before_there_were_headers_has_none() -> None:
    _, _, future = future_of(avro(GOOD, WITHOUT_HEADERS))
    assert (future.callBack, list(future.headers)) == (b"play", [])
    _, _, future = future_of(avro(GOOD | {"value": None}, WITHOUT_HEADERS))
    assert future.callBackRecord == Callback(topic="videos", key=b"vid1")


def test_headers_of_avro_may_come_in_blocks() -> None:
    start, header = avro(GOOD | {"headers": {}})[:-1], b"\x02a\x02b"
    # One of two, one of one that tells its size, and the end.
    blocks = b"\x04" + header + b"\x02c\x02d" + b"\x01\x08" + b"\x02e\x02f" + b"\0"
    _, _, future = future_of(start + blocks)
    assert headers_of(future) == [("a", b"b"), ("c", b"d"), ("e", b"f")]


@pytest.mark.parametrize(
    "value",
    [
        without("value"),
        in_json(value=None),
        b" \r\n\t" + in_json(value=None),
        in_json(value=None, more={"is": "ignored"}),
        in_json(value=None, time=str(DUE_MS)),
        in_json(value=None, time=float(DUE_MS)),
        in_json(value=None, key="dmlkMQ"),
        in_json(GOOD | {"key": b"vid1"}, value=None, headers={"trace": "AP8"}),
    ],
)
def test_json_may_be_written_in_these_ways(value: bytes) -> None:
    second, _, future = future_of(value)
    assert (second, future.millis, headers_of(future)) == (DUE_MS // 1000, 345, [("trace", b"\0\xff")])
    assert future.callBackRecord.key == b"vid1"


@pytest.mark.parametrize("value", [without("headers"), in_json(headers=None), in_json(headers={})])
def test_headers_may_be_left_out_of_json(value: bytes) -> None:
    assert headers_of(future_of(value)[2]) == []


# --- cancels of a schedule -------------------------------------------------------------------------------------------


def test_a_record_without_a_value_cancels_unless_it_says_that_its_schedule_has_fired() -> None:
    command = parse(None)
    assert isinstance(command, Command)
    assert command.key == b"skyuk:schedules:id"
    assert Future.FromString(command.future) == Future(timerId="skyuk:schedules:id", cancel=True)
    assert isinstance(parse(None, headers=(("schedule:expired", b"false"), ("own", None))), Command)
    for header in (("schedule:expired", b"true"), ("Schedule:Expired", b"TRUE"), ("timer-request", b"0:1")):
        assert parse(None, headers=(("own", b"1"), header)) is None
    assert parse(None, headers=(("timer-rejected-reason", b"past-grace"),)) is None


def test_a_tombstone_ends_schedules_due_by_then_and_none_that_were_moved_on() -> None:
    keeping, fired = KEEPINGS["skyuk"], (("schedule:expired", b"true"),)
    told = Given(b"id", None, fired, topic=TOPIC)
    # Whether or not the door knows the topic: it is the other scheduler that has fired it.
    for is_new in (False, True):
        assert keeping.ended_by(told, None, is_new=is_new) == Ended(b"skyuk:schedules:id", TIMESTAMP_MS + 60_000)
    ours = Given(b"id", None, (("timer-request", b"0:1"),), topic=TOPIC)
    assert keeping.ended_by(ours, None, is_new=True) == Ended(b"skyuk:schedules:id", TIMESTAMP_MS)
    assert keeping.ended_by(ours, None, is_new=False) is None
    assert keeping.ended_by(Given(b"id", b"v", fired, topic=TOPIC), None, is_new=True) is None
    assert keeping.ended_by(Given(None, None, fired, topic=TOPIC), None, is_new=True) is None

    second = TIMESTAMP_MS // 1000
    due, moved, earlier = (Last(1, b"id", TIMESTAMP_MS - 5, at) for at in (second, second + 3_600, second - 9))
    for mark in (told, ours):
        assert [keeping.is_later(mark, each) for each in (due, moved, earlier)] == [True, False, True]
    # It was made anew since.
    assert not keeping.is_later(told, Last(1, b"id", TIMESTAMP_MS + 1, second - 9))
    # By its own clock it may have fired a little early.
    assert keeping.is_later(told, Last(1, b"id", TIMESTAMP_MS - 5, second + 1))
    for other in (Given(b"id", avro(), topic=TOPIC), Given(b"id", None, topic=TOPIC)):
        assert keeping.is_later(other, moved)
        assert not keeping.is_later(other, Last(1, b"id", TIMESTAMP_MS, second))


def test_a_version_that_is_refused_cancels_the_one_before_as_it_does_there() -> None:
    keeping, record = KEEPINGS["skyuk"], Given(b"id", b"bad", topic=TOPIC)
    for reason in (Refusal.VALUE_NOT_SCHEDULE, Refusal.PAST_GRACE, Refusal.NOT_UTF8, Refusal.TOO_LARGE):
        assert keeping.withdrawn(record, reason) == b"skyuk:schedules:id"
        assert keeping.ended_by(record, reason, is_new=False) == Ended(b"skyuk:schedules:id")
    for key in (None, b"\xff"):
        assert keeping.withdrawn(Given(key, b"bad", topic=TOPIC), Refusal.NOT_UTF8) is None
    # Of etf1 the one before stays, unless the new one is past.
    assert KEEPINGS["etf1"].withdrawn(record, Refusal.TOPIC_MISSING) is None
    assert KEEPINGS["etf1"].withdrawn(record, Refusal.PAST_GRACE) == b"etf1:schedules:id"


# --- loops -----------------------------------------------------------------------------------------------------------


@both
def test_headers_of_an_earlier_callback_do_not_travel_on(write: Callable[[Schedule], bytes]) -> None:
    """A receiver that asks for its callback again may put the headers of that into the schedule."""
    stale = {"timer-request": b"0:1", "timer-id": b"old", "timer-expiry": b"1", "timer-millis": b"1", "mine": b"1"}
    _, _, future = future_of(write(GOOD | {"headers": stale}))
    assert headers_of(future) == [("mine", b"1"), ("timer-hops", b"1")]


@both
def test_a_schedule_that_comes_round_is_counted_and_refused_in_the_end(write: Callable[[Schedule], bytes]) -> None:
    """Whether the headers of the callback come back on the record, or within the schedule."""
    told = [("timer-request", b"0:1")]
    for hops in range(1, 101):
        inner, outer = (dict(told), ()) if hops % 2 else ({}, tuple(told))
        _, _, future = future_of(write(GOOD | {"headers": inner}), headers=outer)
        assert headers_of(future) == [("timer-hops", b"%d" % hops)]
        told = [("timer-request", b"0:1"), *((name, value or b"") for name, value in headers_of(future))]
    with pytest.raises(TooManyHopsError):
        parse(write(GOOD | {"headers": dict(told)}))


# --- refused records -------------------------------------------------------------------------------------------------


def test_a_schedule_needs_an_id_and_a_topic() -> None:
    assert parse(avro(), None) == Refusal.KEY_MISSING
    assert parse(None, None) == Refusal.KEY_MISSING
    assert future_of(avro(), b"")[1] == b"skyuk:schedules:"
    for value in (avro(GOOD | {"topic": ""}), in_json(topic="")):
        assert parse(value) == Refusal.TOPIC_MISSING


@pytest.mark.parametrize(
    ("value", "key"),
    [
        (avro(), b"\xff"),
        (None, b"\xff"),
        (avro(GOOD | {"headers": {}}).replace(b"videos", b"vide\xffs"), b"id"),
        (avro().replace(b"trace", b"tra\xffe"), b"id"),
        (in_json(topic="\ud800"), b"id"),
        (in_json(headers={"\udfff": "AA=="}), b"id"),
    ],
)
def test_text_that_is_not_utf8_is_told_from_everything_else(value: bytes | None, key: bytes) -> None:
    """The reader refuses it as `not-utf8`."""
    with pytest.raises(UnicodeError):
        parse(value, key)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b" ",
        b"{",
        b"{}",
        b"{]",
        b"null",
        b"[]",
        b'"text"',
        b"\xef\xbb\xbf" + in_json(),
        in_json().decode().encode("utf-16"),
        in_json().replace(b"videos", b"\xff"),
        in_json() + b"}",
        b"{" * 200_000,
        b'{"a":' * 100_000,
        *(without(name) for name in ("time", "topic", "key")),
        *(in_json(time=time) for time in (None, True, "", "soon", [], {}, 1.5, float("nan"), float("inf"), "NaN")),
        *(in_json(time=time) for time in (1 << 63, -(1 << 63) - 1, 1e30, "1e400", '"5"', "[" * 100_000)),
        in_json().replace(str(DUE_MS).encode(), b"9" * 5_000),
        *(in_json(topic=topic) for topic in (None, 5, ["videos"], {})),
        *(in_json(key=key) for key in (None, 5, "é", "a", "ab=", "a b=", "YQ==YQ==", "YQ=\n=", "=", "_-8=", "{}")),
        *(in_json(value=text) for text in (5, "a", {}, "not base64!", False)),
        *(in_json(headers=headers) for headers in ([], "a", 5, False, {"a": None}, {"a": 5}, {"a": "!"}, {"a": {}})),
    ],
    ids=lambda value: value[:40],
)
def test_json_that_is_no_schedule_is_refused(value: bytes) -> None:
    assert parse(value) == Refusal.VALUE_NOT_SCHEDULE


TIME, END = avro()[:6], b"\0"
LONGEST = b"\xff" * 9


@pytest.mark.parametrize(
    "value",
    [
        TIME,
        b"\x80" * 9 + b"\x02" + avro()[6:],
        LONGEST + b"\x02" + avro()[6:],
        LONGEST + b"\xff\x01" + avro()[6:],
        TIME + b"\x01" + b"v" * 20,
        TIME + LONGEST + b"\x01" + b"v" * 20,
        TIME + b"\x02v\x02k" + b"\x04" + b"\x02v" + END,
        TIME + b"\x02v\x02k" + b"\x01" + b"\x02v" + END,
        TIME + b"\x02v\x02k" + b"\x00" + b"\x02" + END,
        TIME + b"\x02v\x02k" + b"\x00" + LONGEST + b"\x01",
        TIME + b"\x02v\x02k" + b"\x00" + b"\xfe" + LONGEST[1:] + b"\x01",
        TIME + b"\x02v\x02k" + b"\x00" + END + b"more",
        TIME + b"\x02v\x02k" + b"\x00" + END + END,
        # A schema registry's framing, a file's, and the text that earlier versions had for a time.
        b"\0\0\0\0\x07" + avro(),
        b"Obj\x01" + avro(),
        b"\x282018-05-14T10:00:00Z\x0cvideos\x08vid1\x08play",
    ],
)
def test_avro_that_is_no_schedule_is_refused(value: bytes) -> None:
    assert parse(value) in (Refusal.VALUE_NOT_SCHEDULE, Refusal.TOPIC_MISSING)


def outcome(value: bytes) -> Parsed | str:
    """Return the outcome of a record of any bytes at the door; every other exception would stop it."""
    try:
        return parse(value)
    except UnicodeError:
        return "not-utf8"


@both
def test_each_truncation_is_refused(write: Callable[[Schedule], bytes]) -> None:
    value = write(GOOD | {"headers": {"one": b"1" * 70, "two": b""}})
    # A schedule that ends before the headers is of a version that had none.
    whole = {len(value), len(avro(GOOD, WITHOUT_HEADERS))} if write is avro else {len(value)}
    for size in range(len(value) + 1):
        refused = outcome(value[:size])
        assert isinstance(refused, Command) if size in whole else refused in (Refusal.VALUE_NOT_SCHEDULE, "not-utf8")


@both
def test_damaged_schedules_and_random_bytes_are_refused_or_read_as_by_a_library(
    write: Callable[[Schedule], bytes],
) -> None:
    chance, taken = random.Random(41), 0
    values = [write(GOOD), write(GOOD | {"value": None, "headers": {}}), write(GOOD | {"key": b"", "time": -1})]
    for _ in range(6_000):
        value = bytearray(chance.choice(values))
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(value) + 1)
            value[at : at + chance.randint(0, 2)] = chance.randbytes(chance.randint(0, 3))
        if chance.random() < 0.3:
            value = bytearray(chance.randbytes(chance.randint(0, 40)))
        told = outcome(bytes(value))
        assert isinstance(told, Command | Refusal | str)
        if write is avro and isinstance(told, Command):
            taken += 1
            assert as_a_library_reads(bytes(value)) == Future.FromString(told.future)
    assert taken or write is not avro


def as_a_library_reads(value: bytes) -> Future:
    """Return the Future of a schedule in Avro, read by another reader, to its last byte."""
    for schema in (SCHEMA, WITHOUT_HEADERS):
        data = io.BytesIO(value)
        try:
            found = schemaless_reader(data, schema, None)
        except EOFError:
            continue
        assert data.read() == b""
        assert isinstance(found, dict)
        return future_of(in_json({"headers": {}} | found))[2]
    raise AssertionError(f"{value!r} is no Avro")


def test_our_tombstone_for_a_version_that_was_over_ends_none_behind_that_one() -> None:
    keeping, over = KEEPINGS["skyuk"], Given(b"id", None, (("timer-over", b"7"),), topic=TOPIC)
    ended = keeping.ended_by(over, None, is_new=False)
    assert ended == Ended(b"skyuk:schedules:id", up_to=7)
    assert [ended.is_over(Last(at, b"id", TIMESTAMP_MS, 1 << 33)) for at in (6, 7, 8)] == [True, True, False]
    assert not ended.is_over(Last(6, None, TIMESTAMP_MS, None))
    assert ADAPTERS["skyuk"](over) is None
