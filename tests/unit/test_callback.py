"""The fields of a callback for a receiver, read with any Kafka client."""

from types import SimpleNamespace
from typing import Any

import faust
import pytest
from aiokafka import ConsumerRecord
from faust.types.tuples import TP, ConsumerMessage

from kafka_timers import Callback, RequestError, request_from, token_from

HEADERS = [
    ("timer-token", b"token"),
    ("timer-id", b"deadline-7"),
    ("timer-expiry", b"1700000000"),
    ("timer-millis", b"250"),
    ("timer-request", b"3:17"),
    ("trace", b"abc"),
    ("null", None),
]
READ = Callback(
    topic="deadlines",
    partition=2,
    offset=9,
    key=b"order-7",
    value=b"pay",
    headers=(("trace", b"abc"), ("null", None)),
    due_ms=1_700_000_000_250,
    request="3:17",
    timer_id="deadline-7",
    token="token",
    attempt=0,
    sent_ms=1_700_000_000_262,
)


def of_aiokafka(headers: Any = tuple(HEADERS), key: Any = b"order-7", value: Any = b"pay") -> Any:
    return ConsumerRecord("deadlines", 2, 9, 1_700_000_000_262, 0, key, value, None, 7, 3, headers)


class OfConfluent:
    """The methods of confluent-kafka's Message, which cannot be made without a broker."""

    def __init__(self, headers: Any = HEADERS, fault: Any = None, kind: int = 1) -> None:
        self._headers, self._fault, self._kind = headers, fault, kind

    def error(self) -> Any:
        return self._fault

    def topic(self) -> str:
        return "deadlines"

    def partition(self) -> int:
        return 2

    def offset(self) -> int:
        return 9

    def key(self) -> bytes:
        return b"order-7"

    def value(self) -> bytes:
        return b"pay"

    def headers(self) -> Any:
        return self._headers

    def timestamp(self) -> tuple[int, int]:
        return (self._kind, 1_700_000_000_262 if self._kind else 0)


def of_faust(headers: Any = HEADERS) -> Any:
    tp = TP("deadlines", 2)
    message = ConsumerMessage(*tp, 9, 1_700_000_000.262, 0, headers, b"order-7", b"pay", None, 7, 3, tp)
    app = faust.App("receivers", broker="kafka://127.0.0.1:9")
    return faust.Event(app, "key as the codec read it", {"value": "too"}, headers and dict(headers), message)


@pytest.mark.parametrize(
    "record",
    [
        of_aiokafka(),
        of_aiokafka(headers=dict(HEADERS)),
        OfConfluent(),
        of_faust(),
        of_faust().message,
        # The messages that FastStream hands to a subscriber, over either client.
        SimpleNamespace(raw_message=of_aiokafka(), headers={"trace": "abc"}, body=b"pay"),
        SimpleNamespace(raw_message=OfConfluent(), headers={"trace": "abc"}, body=b"pay"),
    ],
    ids=["aiokafka", "dict", "confluent", "faust event", "faust message", "faststream", "faststream confluent"],
)
def test_a_callback_reads_the_same_with_every_client(record: Any) -> None:
    callback = Callback.of(record)
    assert callback == READ
    assert (callback.second, callback.late_ms) == (1_700_000_000, 12)


@pytest.mark.parametrize(
    "record",
    [
        of_aiokafka(headers=()),
        of_aiokafka(headers=(("trace", b"abc"),)),
        OfConfluent(headers=None),
        of_faust(headers=[]),
        of_aiokafka(headers=(("timer-expiry", b"1700000000"),)),
        of_aiokafka(headers=(("timer-request", b"3:17"),)),
        of_aiokafka(headers=(("timer-expiry", b"soon"), ("timer-request", b"3:17"))),
        of_aiokafka(headers=(("timer-expiry", None), ("timer-request", None))),
        of_aiokafka(headers=(("timer-expiry", b"9"), ("timer-millis", b"1000"), ("timer-request", b"3:17"))),
    ],
)
def test_another_record_is_no_callback(record: Any) -> None:
    assert Callback.of(record) is None


def test_a_part_that_a_callback_lacks_is_none() -> None:
    bare = of_aiokafka(headers=(("timer-expiry", b"5"), ("timer-request", b"0:0")), key=None, value=None)
    callback = Callback.of(bare)
    assert callback is not None
    assert (callback.timer_id, callback.token, callback.key, callback.value) == (None, None, None, None)
    assert (callback.headers, callback.due_ms) == ((), 5_000)
    untimed = Callback.of(OfConfluent(kind=0))
    assert untimed is not None
    assert (untimed.sent_ms, untimed.late_ms) == (None, None)


def test_of_two_headers_of_one_name_the_services_own_counts() -> None:
    callback = Callback.of(of_aiokafka(headers=(*HEADERS, ("timer-id", b"forged"), ("timer-token", b"forged"))))
    assert callback is not None
    assert (callback.timer_id, callback.token) == ("deadline-7", "token")


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (b"bytes", "bytes is not a record"),
        (None, "NoneType is not a record"),
        (of_aiokafka(value={"decoded": 1}), "the value of this record is of type dict"),
        (of_aiokafka(key="text"), "the key of this record is of type str"),
        (OfConfluent(fault="end of partition"), "holds no record but an error"),
    ],
)
def test_an_object_that_is_no_record_is_named(record: Any, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        Callback.of(record)


@pytest.mark.parametrize("headers", [HEADERS, tuple(HEADERS), dict(HEADERS)])
def test_token_and_request_are_read_from_headers_of_any_shape(headers: Any) -> None:
    assert (token_from(headers), request_from(headers)) == ("token", "3:17")


@pytest.mark.parametrize("headers", [None, [], {}])
def test_without_headers_there_is_neither(headers: Any) -> None:
    assert (token_from(headers), request_from(headers)) == (None, None)
