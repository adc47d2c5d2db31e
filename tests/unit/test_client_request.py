"""The valid requests of a caller: points in time, and contents."""

import math
import random
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from kafka_timers import Future, RequestError, WhenError
from kafka_timers.client.request import (
    Answer,
    CallbackSpec,
    Outcome,
    cancel_of,
    check_home,
    future_of,
    only_if_absent,
    only_if_pending,
    set_callback,
    timed,
)
from kafka_timers.core.moments import moment_after, moment_at
from kafka_timers.core.routing import partition_of
from kafka_timers.core.verdicts import expected_in
from kafka_timers.core.wire import Condition, Reply

BERLIN = ZoneInfo("Europe/Berlin")


def asked(**given: Any) -> Future:
    """A request for a callback on `reminders`, changed by the arguments."""
    return future_of(CallbackSpec(**({"topic": "reminders"} | given)), reserved={"timer-request"})


@pytest.mark.parametrize(
    ("when", "moment_ms"),
    [
        (1, 1_000),
        (1_700_000_000, 1_700_000_000_000),
        (1_700_000_000.0, 1_700_000_000_000),
        (12.345, 12_345),
        (1_700_000_000.345, 1_700_000_000_345),
        (1_700_000_000.000001, 1_700_000_000_001),
        (1_700_000_000.999, 1_700_000_000_999),
        (1_700_000_000.999001, 1_700_000_001_000),
        (99_999_999_999, 99_999_999_999_000),
        (datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC), 1_700_000_000_000),
        (datetime(2023, 11, 14, 22, 13, 20, 1, tzinfo=UTC), 1_700_000_000_001),
        (datetime(2023, 11, 14, 22, 13, 19, 999_999, tzinfo=UTC), 1_700_000_000_000),
        (datetime(2023, 11, 14, 22, 13, 20, 345_000, tzinfo=UTC), 1_700_000_000_345),
        (datetime(2023, 11, 15, 3, 43, 20, tzinfo=timezone(timedelta(hours=5, minutes=30))), 1_700_000_000_000),
        (datetime(2023, 11, 14, 23, 13, 20, tzinfo=BERLIN), 1_700_000_000_000),
    ],
)
def test_moment_is_the_first_millisecond_that_is_not_before_it(when: datetime | float, moment_ms: int) -> None:
    assert moment_at(when) == moment_ms


def test_every_millisecond_that_a_float_can_name_is_that_millisecond() -> None:
    chance = random.Random(11)
    for _ in range(2_000):
        moment_ms = chance.randrange(1_000, 4_000_000_000_000)
        assert moment_at(moment_ms / 1000) == moment_ms
        assert moment_at(float(f"{moment_ms // 1000}.{moment_ms % 1000:03}")) == moment_ms


def test_hour_that_a_clock_shows_twice_is_two_moments() -> None:
    twice = datetime(2023, 10, 29, 2, 30, tzinfo=BERLIN)
    assert moment_at(twice) == 1_698_539_400_000
    assert moment_at(twice.replace(fold=1)) == 1_698_543_000_000


def test_day_over_the_change_to_summer_time_has_23_hours() -> None:
    before, after = (datetime(2023, 3, day, 12, tzinfo=BERLIN) for day in (25, 26))
    assert moment_at(after) - moment_at(before) == 23 * 3_600_000


def test_no_moment_is_ever_rounded_down_or_by_a_millisecond() -> None:
    chance = random.Random(7)
    for _ in range(2_000):
        moment = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC) + timedelta(microseconds=chance.randrange(10**17))
        exact_us = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
        assert 0 <= moment_at(moment) * 1_000 - exact_us < 1_000
        # A float of that size is exact to a microsecond, not to less.
        number = chance.uniform(1, 4_000_000_000)
        assert -1e-6 <= moment_at(number) / 1000 - number < 0.001 + 1e-6


@pytest.mark.parametrize(
    ("when", "advice"),
    [
        (datetime(2023, 11, 14), "aware datetime"),  # naive
        (1_700_000_000_000, "UNIX seconds, that is 1700000000"),
        (1_700_000_000_000.0, "looks like milliseconds"),
        (100_000_000_000, "looks like milliseconds"),
        (99_999_999_999.9999, "outside the years 1970 to 5138"),
        (0, "outside the years 1970 to 5138"),
        (-1, "outside the years 1970 to 5138"),
        (0.999, "outside the years 1970 to 5138"),
        (-0.5, "outside the years 1970 to 5138"),
        (datetime(1969, 12, 31, tzinfo=UTC), "outside the years 1970 to 5138"),
        (datetime(5139, 1, 1, tzinfo=UTC), "outside the years 1970 to 5138"),
        (datetime.max.replace(tzinfo=UTC), "outside the years 1970 to 5138"),
        (math.nan, "not a point in time"),
        (math.inf, "not a point in time"),
        (-math.inf, "not a point in time"),
        (True, "of type bool"),
        ("1700000000", "of type str"),
        (b"1700000000", "of type bytes"),
        (None, "of type NoneType"),
        (date(2023, 11, 14), "of type date"),
        (timedelta(seconds=3), "of type timedelta"),
        (Decimal(1_700_000_000), "of type Decimal"),
    ],
)
def test_an_invalid_moment_is_refused_with_a_valid_form(when: Any, advice: str) -> None:
    with pytest.raises(WhenError, match=advice):
        moment_at(when)


def test_number_too_large_for_a_float_is_refused_like_any_other() -> None:
    with pytest.raises(WhenError, match="looks like milliseconds"):
        moment_at(10**400)


@pytest.mark.parametrize(
    ("delay", "moment_ms"),
    [
        (0, 100_500),
        (0.5, 101_000),
        (0.25, 100_750),
        (0.0001, 100_501),
        (30, 130_500),
        (timedelta(minutes=1), 160_500),
        (timedelta(milliseconds=1), 100_501),
        (timedelta(0), 100_500),
        (5e9, 5_000_000_100_500),
    ],
)
def test_delay_ends_in_the_first_millisecond_after_it(delay: timedelta | float, moment_ms: int) -> None:
    assert moment_after(delay, 100.5) == moment_ms


@pytest.mark.parametrize(
    "delay",
    [
        -1,
        -0.001,
        timedelta(seconds=-1),
        math.nan,
        math.inf,
        True,
        "5",
        None,
        datetime(2023, 11, 14, tzinfo=UTC),
        10**11,
        10**400,
    ],
)
def test_an_invalid_delay_is_refused(delay: Any) -> None:
    with pytest.raises(WhenError):
        moment_after(delay, 1_700_000_000.0)


def test_request_without_more_has_the_three_fields_alone() -> None:
    future = asked(key="order-7", value=b"pay")
    assert [field.name for field, _ in future.ListFields()] == ["callBackTopic", "callBackKey", "callBack"]


def test_request_carries_everything_given() -> None:
    future = asked(key="k", value=b"\x00\xff", timer_id="id", token="t", headers=[("a", b""), ("b", None), ("a", b"1")])
    assert (future.callBackKey, future.callBack, future.timerId, future.token) == ("k", b"\x00\xff", "id", "t")
    assert timed(future, 1_700_000_000_345) == b"1700000000"
    assert future.millis == 345
    assert [(header.key, header.value if header.HasField("value") else None) for header in future.headers] == [
        ("a", b""),
        ("b", None),
        ("a", b"1"),
    ]


def test_key_as_bytes_is_the_key_as_text() -> None:
    assert asked(key="größe".encode()) == asked(key="größe")


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ({"topic": ""}, "not the name of a Kafka topic"),
        ({"topic": "a b"}, "not the name of a Kafka topic"),
        ({"topic": "a\n"}, "not the name of a Kafka topic"),
        ({"topic": ".."}, "not the name of a Kafka topic"),
        ({"topic": "a" * 250}, "not the name of a Kafka topic"),
        ({"topic": None}, "not the name of a Kafka topic"),
        ({"topic": b"reminders"}, "not the name of a Kafka topic"),
        ({"topic": "timer-request"}, "timer service's own"),
        ({"key": "\ud800"}, "key .* is no text: give bytes"),
        ({"key": 7}, "key is of type int"),
        ({"partition": -1}, "partition -1 is not the number of a partition"),
        ({"partition": "1"}, "partition '1' is not the number of a partition"),
        ({"partition": True}, "partition True is not the number of a partition"),
        ({"partition": 1 << 31}, "is not the number of a partition"),
        ({"partition_key": 7}, "partition_key is of type int"),
        ({"partition": 1, "partition_key": "k"}, "exclude each other"),
        ({"timer_id": ""}, "timer_id is empty"),
        ({"timer_id": 7}, "timer_id is of type int"),
        ({"token": ""}, "token is empty"),
        ({"value": "text"}, "value is of type str"),
        ({"headers": [("trace", "text")]}, "header 'trace'"),
        ({"headers": {"trace": "text"}}, "header 'trace'"),
        ({"headers": ["trace"]}, "header 'trace' is not a pair"),
        ({"headers": [("trace",)]}, "is not a pair"),
        ({"headers": 7}, "headers are of type int"),
        ({"headers": [(b"trace", b"1")]}, "header b'trace'"),
        ({"headers": [("timer-token", b"1")]}, "set by the timer service"),
        ({"headers": [("timer-request", b"1")]}, "set by the timer service"),
    ],
)
def test_an_argument_that_a_request_cannot_carry_is_refused_by_name(given: dict[str, Any], advice: str) -> None:
    with pytest.raises(RequestError, match=advice):
        asked(**given)


@pytest.mark.parametrize(
    "given", [{}, {"key": "clé"}, {"key": "clé".encode()}, {"value": b"\xff"}, {"key": None, "value": b""}]
)
def test_a_callback_that_workers_of_all_versions_know_is_in_the_first_three_fields(given: dict[str, Any]) -> None:
    future = asked(**given)
    assert not future.HasField("callBackRecord")
    assert (future.callBackTopic, future.callBack) == ("reminders", given.get("value", b""))
    assert future.callBackKey == ("clé" if given.get("key") else "")


@pytest.mark.parametrize(
    ("given", "callback"),
    [
        ({"key": b"\xff\0"}, {"key": b"\xff\0", "value": b""}),
        ({"key": b""}, {"key": b"", "value": b""}),
        ({"key": "k", "value": None}, {"key": b"k"}),
        ({"value": None}, {}),
        ({"key": "k", "partition": 0}, {"key": b"k", "value": b"", "partition": 0}),
        ({"partition_key": "home"}, {"value": b"", "partitionKey": b"home"}),
        ({"partition_key": b"\xff", "value": b"v"}, {"value": b"v", "partitionKey": b"\xff"}),
    ],
)
def test_a_callback_that_does_not_fit_there_is_in_the_field_callback(
    given: dict[str, Any], callback: dict[str, Any]
) -> None:
    future = asked(**given)
    assert (future.callBackTopic, future.callBackKey, future.callBack) == ("", "", b"")
    said = {field.name: value for field, value in future.callBackRecord.ListFields()}
    assert said == {"topic": "reminders"} | callback


def test_a_callback_that_is_changed_takes_the_form_that_it_needs_and_keeps_its_partition() -> None:
    future = asked(key="k", value=b"v")
    set_callback(future, "reminders", b"\xff", b"v")
    assert (future.callBackKey, future.callBackRecord.key, future.callBackRecord.value) == ("", b"\xff", b"v")
    set_callback(future, "others", b"k", b"v")
    assert future == asked(topic="others", key="k", value=b"v")
    there = asked(key="k", value=None, partition=3)
    set_callback(there, "others", None, b"v")
    assert there == asked(topic="others", value=b"v", partition=3)


def test_topic_of_three_dots_is_a_name_to_kafka() -> None:
    assert asked(topic="...").callBackTopic == "..."


def test_request_without_a_condition_has_none_on_the_wire() -> None:
    assert only_if_pending(cancel_of("id"), False, None) == cancel_of("id")


def test_conditions_on_the_wire() -> None:
    assert only_if_absent(asked(timer_id="id")).condition == Condition.IF_ABSENT
    excepting = only_if_absent(asked(timer_id="id"), "3:17")
    assert (excepting.condition, expected_in(excepting, 3)) == (Condition.IF_ABSENT, 17)
    anyone = only_if_pending(cancel_of("id"), True, None)
    assert (anyone.condition, anyone.ifRequest) == (Condition.IF_PENDING, "")
    meant = only_if_pending(cancel_of("id"), True, "3:17")
    assert (meant.condition, expected_in(meant, 3)) == (Condition.IF_PENDING, 17)


@pytest.mark.parametrize(
    "request_", ["", "3", "3:", ":17", "3:-1", "03:17", "3:17 ", "3:1\n", "3:٣", "a:b", "3:" + 20 * "1", 17, b"3:17"]
)
def test_a_text_that_names_no_request_is_refused(request_: Any) -> None:
    with pytest.raises(RequestError, match=r"is not partition:offset: give the value of Timer\.request"):
        only_if_pending(cancel_of("id"), True, request_)
    with pytest.raises(RequestError, match=r"is not partition:offset: give the value of Timer\.request"):
        only_if_absent(asked(timer_id="id"), request_)


def test_request_that_is_named_without_a_condition_is_refused() -> None:
    with pytest.raises(RequestError, match="give if_pending=True with it"):
        only_if_pending(cancel_of("id"), False, "3:17")


def test_request_of_another_partition_than_the_ids_is_refused() -> None:
    home = partition_of("id", 8)
    check_home(cancel_of("id"), 8)
    check_home(only_if_pending(cancel_of("id"), True, f"{home}:17"), 8)
    with pytest.raises(RequestError, match=f"all requests of this timer id lie in partition {home}"):
        check_home(only_if_pending(cancel_of("id"), True, f"{(home + 1) % 8}:17"), 8)


def test_every_outcome_of_the_service_is_one_of_the_client() -> None:
    names = set(Reply.Outcome.keys()) - {"OUTCOME_UNSPECIFIED"}
    assert names == set(Outcome)
    told = Answer.of(Reply(outcome="IGNORED", second=9, millis=250, request="3:16", asked="3:17", waits=True))
    assert told == Answer(Outcome.IGNORED, 9_250, "3:16", "3:17", waits=True)
    assert Answer.of(Reply(outcome="IGNORED", asked="3:17")) == Answer(Outcome.IGNORED, None, None, "3:17")
    assert Answer.of(Reply(outcome="ACCEPTED", asked="3:17")) == Answer(Outcome.ACCEPTED, None, None, "3:17")
