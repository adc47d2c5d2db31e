"""An adapter parses a record into a request, a cancel, nothing, or a refusal with its reason."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from kafka_timers.adapters import ADAPTERS, WITH_IDS, door_topics
from kafka_timers.adapters.commands import Command, Refusal, SourceHeaders, TooManyHopsError
from kafka_timers.adapters.countdown import Callers
from kafka_timers.adapters.headers import names_of, parser_of
from kafka_timers.core.wire import Callback, Future, Header

SECOND = 1_893_456_000
TIMESTAMP_MS = 1_607_918_336_789
# Adapters that pass a record's own headers on. A schedule of sky-uk has those of its callback in the value.
WITH_HEADERS = [name for name in ADAPTERS if name != "skyuk"]


@dataclass
class Given:
    """A record as another system's client wrote it."""

    key: bytes | None = b"k"
    value: bytes | None = b"v"
    headers: SourceHeaders = ()
    timestamp: int = TIMESTAMP_MS
    topic: str = "theirs"
    partition: int = 3
    offset: int = 17


def parsed(adapter: str, record: Given) -> tuple[int | None, bytes | None, Future]:
    """Return second, name and Future of the command that *record* stands for."""
    command = ADAPTERS[adapter](record)
    assert isinstance(command, Command)
    return command.second, command.name, Future.FromString(command.future)


def headers_of(future: Future) -> list[tuple[str, bytes | None]]:
    return [(header.key, header.value if header.HasField("value") else None) for header in future.headers]


def changed(headers: SourceHeaders, **values: bytes | None) -> SourceHeaders:
    """Return *headers* with other values, or without those whose value is None; dashes are underscores here."""
    new = {name.replace("_", "-"): value for name, value in values.items()}
    return [(name, new.get(name, value)) for name, value in headers if new.get(name, value) is not None]


# --- etf1 ------------------------------------------------------------------------------------------------------------

# The example of its README.
ETF1: SourceHeaders = (
    ("scheduler-epoch", b"1893456000"),
    ("scheduler-target-topic", b"online-videos"),
    ("scheduler-target-key", b"vid1"),
    ("customer-header", b"dummy"),
)
VIDEO = Given(b"vid1-online", b'"video 1"', ETF1, topic="schedules")


def test_a_schedule_of_etf1_becomes_the_record_that_etf1_would_write() -> None:
    second, name, future = parsed("etf1", VIDEO)
    assert (second, name) == (SECOND, b"etf1:schedules:vid1-online")
    assert future == Future(
        callBackTopic="online-videos",
        callBackKey="vid1",
        callBack=b'"video 1"',
        timerId="etf1:schedules:vid1-online",
        headers=[
            *(Header(key=name, value=value) for name, value in ETF1),
            Header(key="scheduler-timestamp", value=b"1607918336"),
            Header(key="scheduler-key", value=b"vid1-online"),
            Header(key="scheduler-topic", value=b"schedules"),
        ],
        tombstoneTopic="schedules",
        tombstoneKey="vid1-online",
        tombstonePartition=3,
    )


def test_a_schedule_without_a_value_is_taken_back_unless_we_wrote_the_tombstone() -> None:
    _, _, future = parsed("etf1", Given(b"vid1-online", None, topic="schedules"))
    assert future == Future(timerId="etf1:schedules:vid1-online", cancel=True)
    # The record of that scheduler when it has fired: the tombstone has the headers of the callback.
    fired = (*ETF1, ("scheduler-timestamp", b"1607918336"), ("scheduler-key", b"vid1-online"))
    assert parsed("etf1", Given(b"vid1-online", None, fired, topic="schedules"))[2].cancel
    ours = Given(b"vid1-online", None, (("timer-request", b"0:12"),), topic="schedules")
    assert ADAPTERS["etf1"](ours) is None


def test_an_empty_value_is_a_schedule_and_a_missing_target_key_is_none() -> None:
    _, _, future = parsed("etf1", Given(value=b"", headers=changed(ETF1, scheduler_target_key=None)))
    assert (future.callBack, future.callBackKey, future.cancel) == (b"", "", False)


def test_of_headers_that_share_a_name_the_first_counts() -> None:
    """As in that scheduler: a message that is sent round again has the old ones behind."""
    second, _, future = parsed("etf1", Given(headers=(*ETF1, ("scheduler-epoch", b"1"))))
    assert second == SECOND
    assert [value for name, value in headers_of(future) if name == "scheduler-epoch"] == [b"1893456000", b"1"]


@pytest.mark.parametrize("adapter", WITH_HEADERS)
def test_headers_of_an_earlier_callback_do_not_travel_on(adapter: str) -> None:
    """A receiver that schedules its callback again sends the service's headers along."""
    stale: SourceHeaders = (("timer-request", b"0:1"), ("timer-id", b"old"))
    good = GOOD[adapter]
    _, _, future = parsed(adapter, Given(good.key, good.value, (*good.headers, *stale, ("mine", b"1"))))
    assert ("mine", b"1") in headers_of(future)
    assert not {"timer-request", "timer-id", "timer-expiry", "timer-millis"} & {name for name, _ in headers_of(future)}


@pytest.mark.parametrize("adapter", WITH_HEADERS)
def test_a_door_with_timer_ids_reads_ahead_for_later_versions(adapter: str) -> None:
    """Else a backlog would fire timers that a later record moves or cancels."""
    _, _, future = parsed(adapter, GOOD[adapter])
    assert (adapter in WITH_IDS) == bool(future.timerId)


# --- headers ---------------------------------------------------------------------------------------------------------

PLAIN: SourceHeaders = (
    ("timer-expiry", b"1893456000"),
    ("timer-callback-topic", b"reminders"),
    ("timer-callback-key", b"order-7"),
    ("timer-token", b"tok"),
    ("timer-reply-topic", b"replies"),
    ("trace", b"\x00\xff"),
    ("null", None),
)


def test_headers_say_all_that_a_timer_needs() -> None:
    second, name, future = parsed("headers", Given(b"pay-7", b"pay now", PLAIN))
    assert (second, name) == (SECOND, b"pay-7")
    assert future == Future(
        callBackTopic="reminders",
        callBackKey="order-7",
        callBack=b"pay now",
        timerId="pay-7",
        token="tok",
        headers=[Header(key="trace", value=b"\x00\xff"), Header(key="null")],
        replyTopic="replies",
    )


@pytest.mark.parametrize(("text", "millis"), [(b"0", 0), (b"7", 7), (b"007", 7), (b"999", 999)])
def test_a_header_may_name_the_millisecond(text: bytes, millis: int) -> None:
    second, _, future = parsed("headers", Given(b"pay-7", b"v", (*PLAIN, ("timer-millis", text))))
    assert (second, future.millis) == (SECOND, millis)


def test_a_record_without_a_value_takes_its_timer_back() -> None:
    """Also one with the headers of the callback, such as a receiver that took them all over sends."""
    record = Given(b"pay-7", None, (("timer-request", b"0:12"), ("timer-reply-topic", b"replies")))
    command = ADAPTERS["headers"](record)
    assert isinstance(command, Command)
    assert command.key == b"pay-7"
    assert parsed("headers", record) == (None, b"pay-7", Future(timerId="pay-7", cancel=True, replyTopic="replies"))


def test_topic_and_second_are_enough() -> None:
    _, _, future = parsed("headers", Given(b"pay-7", b"v", PLAIN[:2]))
    assert future == Future(callBackTopic="reminders", callBack=b"v", timerId="pay-7")


@pytest.mark.parametrize(
    ("header", "due_ms"),
    [
        (("timer-expiry", b"1893456000"), 1_893_456_000_000),
        (("timer-expiry", b"1893456000.345"), 1_893_456_000_345),
        (("timer-expiry", b"1893456000345"), 1_893_456_000_345),
        (("timer-expiry", b"2030-01-01T00:00:00Z"), 1_893_456_000_000),
        (("timer-expiry", b"2030-01-01T02:00:00.25+02:00"), 1_893_456_000_250),
        (("timer-delay", b"5m"), TIMESTAMP_MS + 300_000),
        (("timer-delay", b"250ms"), TIMESTAMP_MS + 250),
        (("timer-delay", b"30"), TIMESTAMP_MS + 30_000),
        (("timer-delay", b"0"), TIMESTAMP_MS),
        (("timer-delay", b"1.5h"), TIMESTAMP_MS + 5_400_000),
    ],
)
def test_when_may_be_told_in_any_of_these_ways(header: tuple[str, bytes], due_ms: int) -> None:
    second, _, future = parsed("headers", Given(b"id", b"v", (*PLAIN[1:], header)))
    assert second * 1000 + future.millis == due_ms
    assert not {"timer-expiry", "timer-delay"} & dict(headers_of(future)).keys()


def test_a_header_may_say_where_the_callback_goes() -> None:
    _, _, future = parsed("headers", Given(b"id", b"v", (*PLAIN, ("timer-callback-partition", b"3"))))
    asked = future.callBackRecord
    assert (asked.topic, asked.key, asked.partition) == ("reminders", b"order-7", 3)
    _, _, future = parsed("headers", Given(b"id", b"v", (*PLAIN, ("timer-callback-partition-key", b"home"))))
    assert (future.callBackRecord.partitionKey, future.callBackRecord.HasField("partition")) == (b"home", False)


# --- countdown -------------------------------------------------------------------------------------------------------


def body(**fields: object) -> bytes:
    return json.dumps({"topic": "T", "message": "<message body>", "countdown": 120} | fields).encode()


def test_a_countdown_runs_from_the_records_timestamp() -> None:
    record = Given(None, body(), (("CALLER_SERVICE", b"S"),), timestamp=1_700_000_000_000)
    second, name, future = parsed("countdown", record)
    assert (second, name) == (1_700_000_120, None)
    assert future == Future(
        callBackTopic="T", callBack=b"<message body>", headers=[Header(key="CALLER_SERVICE", value=b"S")]
    )


@pytest.mark.parametrize(
    ("timestamp_ms", "countdown_s", "due_ms"),
    [
        (1_700_000_000_000, 0, 1_700_000_000_000),
        (1_700_000_000_001, 0, 1_700_000_000_001),
        (1_700_000_000_999, 3, 1_700_000_003_999),
        (1_700_000_000_500, 0.5, 1_700_000_001_000),
        (1_700_000_000_500, 0.6, 1_700_000_001_100),
        (1_700_000_000_500, 0.0001, 1_700_000_000_501),
        (1_700_000_000_000, 16.1, 1_700_000_016_100),
        (1_700_000_000_000, 1e9, 2_700_000_000_000),
    ],
)
def test_a_countdown_ends_at_its_millisecond_and_never_too_early(
    timestamp_ms: int, countdown_s: float, due_ms: int
) -> None:
    second, _, future = parsed("countdown", Given(value=body(countdown=countdown_s), timestamp=timestamp_ms))
    assert second * 1000 + future.millis == due_ms


def test_text_of_any_script_is_sent_as_utf8() -> None:
    assert parsed("countdown", Given(value=body(message="grün 日本")))[2].callBack == "grün 日本".encode()


def test_a_caller_may_be_required_and_limited_per_second_of_the_log() -> None:
    def record(caller: bytes | None, second: int) -> Given:
        return Given(headers=(("CALLER_SERVICE", caller),), timestamp=second * 1000 + 5)

    callers = Callers(required=True, limit=2)
    assert [callers.refuse(record(b"S", 100)) for _ in range(3)] == [None, None, Refusal.CALLER_OVER_LIMIT]
    assert callers.refuse(record(b"T", 100)) is None
    assert callers.refuse(record(b"S", 101)) is None
    # Producers' clocks differ: an older one counts where the log has come to.
    assert [callers.refuse(record(b"S", 100)) for _ in range(2)] == [None, Refusal.CALLER_OVER_LIMIT]
    assert callers.refuse(record(None, 102)) == Refusal.CALLER_MISSING
    assert callers.refuse(Given()) == Refusal.CALLER_MISSING
    assert callers.counted == {"S": 4, "T": 1}
    # One with a clock that is far ahead uses up nothing of those behind it.
    assert callers.refuse(record(b"S", 9_999)) is None
    assert [callers.refuse(record(b"S", 103)) for _ in range(3)] == [None, None, Refusal.CALLER_OVER_LIMIT]
    free = Callers(required=False, limit=0)
    assert {free.refuse(Given()) for _ in range(1_000)} == {None}


# --- Karafka ---------------------------------------------------------------------------------------------------------

KARAFKA: SourceHeaders = (
    ("schedule_schema_version", b"1.0.0"),
    ("schedule_target_epoch", b"1893456000"),
    ("schedule_source_type", b"schedule"),
    ("schedule_target_topic", b"events"),
    ("schedule_target_key", b"user-1"),
    ("own", b"header"),
)


def test_an_envelope_of_karafka_becomes_the_record_that_karafka_would_dispatch() -> None:
    second, name, future = parsed("karafka", Given(b"events-uuid", b"{}", KARAFKA))
    assert (second, name) == (SECOND, b"karafka:theirs:3:events-uuid")
    assert future == Future(
        callBackTopic="events",
        callBackKey="user-1",
        callBack=b"{}",
        timerId="karafka:theirs:3:events-uuid",
        headers=[
            *(Header(key=name, value=value) for name, value in KARAFKA),
            Header(key="schedule_source_topic", value=b"theirs"),
            Header(key="schedule_source_partition", value=b"3"),
            Header(key="schedule_source_offset", value=b"17"),
            Header(key="schedule_source_key", value=b"events-uuid"),
        ],
    )


@pytest.mark.parametrize("kind", [b"cancel", b"tombstone"])
def test_karafka_takes_back_cancelled_and_dispatched_messages(kind: bytes) -> None:
    headers = (("schedule_schema_version", b"1.0.0"), ("schedule_source_type", kind))
    wanted = Future(timerId="karafka:theirs:3:events-uuid", cancel=True)
    assert parsed("karafka", Given(b"events-uuid", None, headers)) == (None, b"karafka:theirs:3:events-uuid", wanted)


@pytest.mark.parametrize(
    ("more", "value", "callback"),
    [
        ((("schedule_target_partition_key", b"home"),), b"{}", {"value": b"{}", "partitionKey": b"home"}),
        ((("schedule_target_partition", b"2"),), b"{}", {"value": b"{}", "partition": 2}),
        (
            (("schedule_target_partition", b"2"), ("schedule_target_partition_key", b"home")),
            b"{}",
            {"value": b"{}", "partition": 2},
        ),
        ((), None, {}),
    ],
)
def test_partitions_and_empty_payloads_of_karafka_are_taken(
    more: SourceHeaders, value: bytes | None, callback: dict[str, Any]
) -> None:
    _, _, future = parsed("karafka", Given(b"uuid", value, (*KARAFKA, *more)))
    assert future.callBackRecord == Callback(topic="events", key=b"user-1", **callback)


def test_an_older_schema_of_karafka_is_taken() -> None:
    _, _, future = parsed("karafka", Given(headers=(("schedule_schema_version", b"0.9.12"), *KARAFKA[1:])))
    assert future.callBackTopic == "events"


def test_a_partition_key_that_is_the_key_is_no_contradiction() -> None:
    record = Given(headers=(*KARAFKA, ("schedule_target_partition_key", b"user-1")))
    assert parsed("karafka", record)[2].callBackKey == "user-1"


# --- kafka-timebridge ------------------------------------------------------------------------------------------------

TIMEBRIDGE: SourceHeaders = (
    ("X-Timebridge-When", b"2024-12-25T10:00:00Z"),
    ("X-Timebridge-Where", b"user-notifications"),
    ("own", b"header"),
)


def test_a_message_of_timebridge_is_passed_on_without_its_two_headers() -> None:
    assert parsed("timebridge", Given(b"user-1", b"hello", TIMEBRIDGE)) == (
        1_735_120_800,
        b"user-1",
        Future(
            callBackTopic="user-notifications",
            callBackKey="user-1",
            callBack=b"hello",
            headers=[Header(key="own", value=b"header")],
        ),
    )


@pytest.mark.parametrize("key", [None, b""])
def test_a_message_of_timebridge_without_a_key_lies_anywhere(key: bytes | None) -> None:
    _, name, future = parsed("timebridge", Given(key, b"hello", TIMEBRIDGE))
    assert (name, future.callBackKey) == (None, "")


@pytest.mark.parametrize(
    ("when", "due_ms"),
    [
        (b"2024-12-25T10:00:00+02:00", 1_735_113_600_000),
        (b"2024-12-25T10:00:00.000Z", 1_735_120_800_000),
        (b"2024-12-25T10:00:00.345Z", 1_735_120_800_345),
        (b"2024-12-25T10:00:00.000001Z", 1_735_120_800_001),
        (b"2024-12-25T10:00:00.123456789Z", 1_735_120_800_124),
    ],
)
def test_zones_and_fractions_are_understood_and_never_early(when: bytes, due_ms: int) -> None:
    second, _, future = parsed("timebridge", Given(headers=(("X-Timebridge-When", when), TIMEBRIDGE[1])))
    assert second * 1000 + future.millis == due_ms


@pytest.mark.parametrize(
    ("when", "due_ms"),
    [
        (b"0001-01-01T00:00:00Z", 1_000),
        (b"1969-12-31T23:59:59Z", 1_000),
        (b"1970-01-01T00:00:00.5Z", 1_000),
        (b"9999-12-31T23:59:59Z", 99_999_999_999_999),
        (b"9999-12-31T23:59:59-23:59", 99_999_999_999_999),
    ],
)
def test_a_time_that_no_timer_can_have_is_at_once_or_never(when: bytes, due_ms: int) -> None:
    second, _, future = parsed("timebridge", Given(headers=(("X-Timebridge-When", when), TIMEBRIDGE[1])))
    assert second * 1000 + future.millis == due_ms


@pytest.mark.parametrize(
    ("adapter", "record", "key"),
    [
        ("timebridge", Given(b"\xff\0", b"v", TIMEBRIDGE), b"\xff\0"),
        ("timebridge", Given(b"key", None, TIMEBRIDGE), b"key"),
        ("etf1", Given(b"id", b"v", changed(ETF1, scheduler_target_key=b"\xff")), b"\xff"),
        ("headers", Given(b"id", b"v", changed(PLAIN, timer_callback_key=b"\xff")), b"\xff"),
        ("headers", Given(b"id", b"", (*PLAIN, ("timer-tombstone", b"1"))), b"order-7"),
        ("karafka", Given(b"id", b"v", (*KARAFKA[:4], ("schedule_target_key", b"\xff"))), b"\xff"),
    ],
)
def test_callback_keys_of_any_bytes_and_tombstones_are_taken(adapter: str, record: Given, key: bytes) -> None:
    _, _, future = parsed(adapter, record)
    assert (future.callBackTopic, future.callBackKey, future.callBack) == ("", "", b"")
    assert future.callBackRecord.key == key
    assert future.callBackRecord.HasField("value") is (key not in (b"key", b"order-7"))


# --- loops -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adapter", WITH_HEADERS)
def test_a_record_that_comes_round_is_counted_and_refused_in_the_end(adapter: str) -> None:
    """As a schedule whose callback goes to a door's own topic does."""
    good = GOOD[adapter]
    headers = [*good.headers, ("timer-request", b"0:1")]
    sizes = []
    for hops in range(1, 101):
        _, _, future = parsed(adapter, Given(good.key, good.value, headers, topic=good.topic))
        told = headers_of(future)
        assert [value for name, value in told if name == "timer-hops"] == [b"%d" % hops]
        sizes.append(len(told))
        # The headers that the service sets on the callback, and those that the door took for itself.
        headers = [("timer-request", b"0:1"), *told, *(each for each in good.headers if each not in told)]
    assert len(set(sizes)) == 1, "headers must not grow"
    with pytest.raises(TooManyHopsError):
        ADAPTERS[adapter](Given(good.key, good.value, headers, topic=good.topic))


def test_a_record_that_was_no_callback_has_no_hops() -> None:
    _, _, future = parsed("headers", Given(b"id", b"v", (*PLAIN, ("timer-hops", b"99"))))
    assert "timer-hops" not in dict(headers_of(future))


# --- names of headers ------------------------------------------------------------------------------------------------


def test_headers_may_have_the_names_of_a_house() -> None:
    parse = parser_of(names_of("expiry=x-scheduler-deliver-at, topic=x-scheduler-deliver-to,key=x-key"))
    headers = (
        ("x-scheduler-deliver-at", b"2030-01-01T00:00:00Z"),
        ("x-scheduler-deliver-to", b"reminders"),
        ("x-key", b"order-7"),
        ("timer-callback-topic", b"is passed on"),
        ("own", b"1"),
    )
    command = parse(Given(b"id", b"v", headers))
    assert isinstance(command, Command)
    future = Future.FromString(command.future)
    assert (command.second, future.callBackTopic, future.callBackKey) == (SECOND, "reminders", "order-7")
    assert headers_of(future) == [("timer-callback-topic", b"is passed on"), ("own", b"1")]
    assert parse(Given(b"id", b"v", PLAIN)) == Refusal.EXPIRY_MISSING


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("when=x", "give WHAT=HEADER, one of expiry, delay"),
        ("expiry", "give WHAT=HEADER"),
        ("expiry=", "give WHAT=HEADER"),
        ("expiry=a,delay=a", "tells both expiry and delay"),
        ("topic=timer-token", "tells both topic and token"),
    ],
)
def test_names_of_headers_that_make_no_sense_are_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        names_of(text)


# --- refused records -------------------------------------------------------------------------------------------------

GOOD: Mapping[str, Given] = {
    "etf1": VIDEO,
    "headers": Given(headers=PLAIN),
    "countdown": Given(value=body()),
    "karafka": Given(headers=KARAFKA),
    "timebridge": Given(headers=TIMEBRIDGE),
}
SECONDS = [
    (None, Refusal.EXPIRY_MISSING),
    (b"", Refusal.EXPIRY_MISSING),
    (b"tomorrow", Refusal.EXPIRY_NOT_A_SECOND),
    (b"-1893456000", Refusal.EXPIRY_NOT_A_SECOND),
    (b"1893456000.5", Refusal.EXPIRY_NOT_A_SECOND),
    (b" 1893456000", Refusal.EXPIRY_NOT_A_SECOND),
    (b"0", Refusal.EXPIRY_NOT_A_SECOND),
    ("١٢".encode(), Refusal.EXPIRY_NOT_A_SECOND),
    (b"9" * 5_000, Refusal.EXPIRY_NOT_A_SECOND),
    (b"1893456000000", Refusal.EXPIRY_IN_MILLISECONDS),
    (b"100000000000", Refusal.EXPIRY_IN_MILLISECONDS),
]


@pytest.mark.parametrize(("text", "reason"), SECONDS)
def test_a_second_that_is_none_is_refused(text: bytes | None, reason: Refusal) -> None:
    headers = [(name, text if name == "scheduler-epoch" else value) for name, value in ETF1]
    assert ADAPTERS["etf1"](Given(VIDEO.key, VIDEO.value, headers)) == reason


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ((), Refusal.EXPIRY_MISSING),
        ((("timer-expiry", b""),), Refusal.EXPIRY_MISSING),
        ((("timer-expiry", None),), Refusal.EXPIRY_MISSING),
        ((("timer-expiry", b"tomorrow"),), Refusal.EXPIRY_INVALID),
        ((("timer-expiry", b"-1893456000"),), Refusal.EXPIRY_INVALID),
        ((("timer-expiry", b" 1893456000"),), Refusal.EXPIRY_INVALID),
        ((("timer-expiry", b"0"),), Refusal.EXPIRY_INVALID),
        ((("timer-expiry", b"0.5"),), Refusal.EXPIRY_INVALID),
        ((("timer-expiry", b"1893456000."),), Refusal.EXPIRY_INVALID),
        ((("timer-expiry", b"1893456000000.5"),), Refusal.EXPIRY_INVALID),
        ((("timer-expiry", b"189345600000000"),), Refusal.EXPIRY_INVALID),
        ((("timer-expiry", "١٢".encode()),), Refusal.EXPIRY_INVALID),
        ((("timer-expiry", b"99999999999.9999999"),), Refusal.EXPIRY_OUT_OF_RANGE),
        ((("timer-expiry", b"9" * 5_000),), Refusal.EXPIRY_INVALID),
        ((("timer-expiry", b"2030-01-01T00:00:00"),), Refusal.EXPIRY_INVALID),
        ((("timer-expiry", b"2030-02-30T00:00:00Z"),), Refusal.EXPIRY_INVALID),
        ((("timer-expiry", b"T\xff"),), Refusal.EXPIRY_INVALID),
        ((("timer-delay", b"soon"),), Refusal.DELAY_INVALID),
        ((("timer-delay", b"-5"),), Refusal.DELAY_INVALID),
        ((("timer-delay", b"\xff"),), Refusal.DELAY_INVALID),
        ((("timer-delay", b"1h 5m"),), Refusal.DELAY_INVALID),
        ((("timer-delay", b"999999999w"),), Refusal.EXPIRY_OUT_OF_RANGE),
        ((("timer-delay", b"5s"), ("timer-expiry", b"1893456000")), Refusal.EXPIRY_INVALID),
    ],
)
def test_a_time_that_is_none_is_refused(headers: SourceHeaders, reason: Refusal) -> None:
    assert ADAPTERS["headers"](Given(b"k", b"v", (*PLAIN[1:], *headers))) == reason


@pytest.mark.parametrize(
    ("adapter", "record", "reason"),
    [
        ("etf1", Given(None, headers=ETF1), Refusal.KEY_MISSING),
        ("etf1", Given(b" \n", headers=ETF1), Refusal.KEY_MISSING),
        ("etf1", Given(), Refusal.EXPIRY_MISSING),
        ("etf1", Given(headers=changed(ETF1, scheduler_target_topic=None)), Refusal.TOPIC_MISSING),
        ("headers", Given(b"", headers=PLAIN), Refusal.KEY_MISSING),
        ("headers", Given(None, None), Refusal.KEY_MISSING),
        ("headers", Given(headers=PLAIN[:1]), Refusal.TOPIC_MISSING),
        ("headers", Given(headers=(*PLAIN, ("timer-millis", b"1000"))), Refusal.MILLIS_OUT_OF_RANGE),
        ("headers", Given(headers=(*PLAIN, ("timer-millis", b"-1"))), Refusal.MILLIS_OUT_OF_RANGE),
        ("headers", Given(headers=(*PLAIN, ("timer-millis", b"soon"))), Refusal.MILLIS_OUT_OF_RANGE),
        ("countdown", Given(value=None), Refusal.VALUE_MISSING),
        ("countdown", Given(value=b""), Refusal.VALUE_MISSING),
        ("countdown", Given(value=b"{"), Refusal.VALUE_NOT_COUNTDOWN),
        ("countdown", Given(value=b"\xff\xfe\xff"), Refusal.VALUE_NOT_COUNTDOWN),
        ("countdown", Given(value=b"[" * 100_000), Refusal.VALUE_NOT_COUNTDOWN),
        ("countdown", Given(value=b"120"), Refusal.VALUE_NOT_COUNTDOWN),
        ("countdown", Given(value=body(topic=None)), Refusal.VALUE_NOT_COUNTDOWN),
        ("countdown", Given(value=body(topic="")), Refusal.TOPIC_MISSING),
        ("countdown", Given(value=body(message={"a": 1})), Refusal.VALUE_NOT_COUNTDOWN),
        ("countdown", Given(value=body(countdown="120")), Refusal.VALUE_NOT_COUNTDOWN),
        ("countdown", Given(value=body(countdown=True)), Refusal.VALUE_NOT_COUNTDOWN),
        ("countdown", Given(value=body(countdown=-1)), Refusal.EXPIRY_OUT_OF_RANGE),
        ("countdown", Given(value=body(countdown=float("nan"))), Refusal.EXPIRY_OUT_OF_RANGE),
        ("countdown", Given(value=body(countdown=float("inf"))), Refusal.EXPIRY_OUT_OF_RANGE),
        ("countdown", Given(value=body(countdown=10**100)), Refusal.EXPIRY_OUT_OF_RANGE),
        ("countdown", Given(value=b'{"countdown": %b}' % (b"9" * 5_000)), Refusal.VALUE_NOT_COUNTDOWN),
        ("countdown", Given(value=body(countdown=99_999_999_999)), Refusal.EXPIRY_OUT_OF_RANGE),
        ("countdown", Given(value=body(countdown=0), timestamp=-1), Refusal.EXPIRY_OUT_OF_RANGE),
        ("karafka", Given(None, headers=KARAFKA), Refusal.KEY_MISSING),
        ("karafka", Given(), Refusal.VERSION_UNKNOWN),
        ("karafka", Given(headers=(("schedule_schema_version", b"2.0.0"), *KARAFKA[1:])), Refusal.VERSION_UNKNOWN),
        ("karafka", Given(headers=KARAFKA[:2]), Refusal.TYPE_UNKNOWN),
        ("karafka", Given(headers=(KARAFKA[0], *KARAFKA[2:])), Refusal.EXPIRY_MISSING),
        ("karafka", Given(headers=KARAFKA[:3]), Refusal.TOPIC_MISSING),
        ("karafka", Given(headers=(("schedule_schema_version", b"1.0.1"), *KARAFKA[1:])), Refusal.VERSION_UNKNOWN),
        ("karafka", Given(headers=(("schedule_schema_version", b"1.0"), *KARAFKA[1:])), Refusal.VERSION_UNKNOWN),
        ("karafka", Given(headers=(("schedule_schema_version", b"1.x.0"), *KARAFKA[1:])), Refusal.VERSION_UNKNOWN),
        ("karafka", Given(headers=(*KARAFKA, ("schedule_target_partition", b"-1"))), Refusal.PARTITION_INVALID),
        ("karafka", Given(headers=(*KARAFKA, ("schedule_target_partition", b"9999999999"))), Refusal.PARTITION_INVALID),
        ("headers", Given(headers=(*PLAIN, ("timer-callback-partition", b"-1"))), Refusal.PARTITION_INVALID),
        ("headers", Given(headers=(*PLAIN, ("timer-callback-partition", None))), Refusal.PARTITION_INVALID),
        (
            "headers",
            Given(headers=(*PLAIN, ("timer-callback-partition", b"1"), ("timer-callback-partition-key", b"k"))),
            Refusal.PARTITION_INVALID,
        ),
        ("timebridge", Given(), Refusal.EXPIRY_MISSING),
        ("timebridge", Given(headers=TIMEBRIDGE[:1]), Refusal.TOPIC_MISSING),
    ],
)
def test_a_malformed_record_is_refused_with_its_reason(adapter: str, record: Given, reason: Refusal) -> None:
    assert ADAPTERS[adapter](record) == reason


@pytest.mark.parametrize(
    ("when", "reason"),
    [
        (b"2024-12-25T10:00:00", Refusal.EXPIRY_NOT_RFC3339),
        (b"2024-12-25 10:00:00Z", Refusal.EXPIRY_NOT_RFC3339),
        (b"2024-02-30T10:00:00Z", Refusal.EXPIRY_NOT_RFC3339),
        (b"2024-12-25T10:00:00+25:00", Refusal.EXPIRY_NOT_RFC3339),
        (b"+24h", Refusal.EXPIRY_NOT_RFC3339),
        (b"1735120800", Refusal.EXPIRY_NOT_RFC3339),
        (b"\xff", Refusal.EXPIRY_NOT_RFC3339),
    ],
)
def test_a_time_that_timebridge_would_not_take_is_refused(when: bytes, reason: Refusal) -> None:
    assert ADAPTERS["timebridge"](Given(headers=(("X-Timebridge-When", when), TIMEBRIDGE[1]))) == reason


@pytest.mark.parametrize(
    ("adapter", "record"),
    [
        ("etf1", Given(b"\xff", headers=ETF1)),
        ("etf1", Given(b"\xff", None)),
        ("etf1", Given(headers=changed(ETF1, scheduler_target_topic=b"\xff"))),
        ("headers", Given(b"\xff", headers=PLAIN)),
        ("headers", Given(headers=changed(PLAIN, timer_token=b"\xff"))),
        ("countdown", Given(value=b'{"topic": "T", "message": "\\ud800", "countdown": 1}')),
        ("karafka", Given(b"\xff", headers=KARAFKA)),
        ("timebridge", Given(headers=(TIMEBRIDGE[0], ("X-Timebridge-Where", b"\xff")))),
    ],
)
def test_text_that_is_not_utf8_is_told_from_everything_else(adapter: str, record: Given) -> None:
    """The reader refuses it as `not-utf8`: a Future carries text."""
    with pytest.raises(UnicodeError):
        ADAPTERS[adapter](record)


# --- the setting -----------------------------------------------------------------------------------------------------


def test_adapters_are_listed_with_their_topics() -> None:
    assert door_topics("") == []
    assert door_topics("etf1=schedules, headers=a=b,etf1=more") == [
        ("etf1", "schedules"),
        ("headers", "a=b"),
        ("etf1", "more"),
    ]


@pytest.mark.parametrize("text", ["etf1", "etf1=", "=t", "back=t", "etf1=schedules,front"])
def test_an_adapter_that_does_not_exist_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="give NAME=TOPIC, the name one of etf1, skyuk, countdown"):
        door_topics(text)
