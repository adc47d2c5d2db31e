"""The digest of a callback is one number, and any other callback has another one."""

from itertools import combinations

import pytest

from kafka_timers.core import digests
from kafka_timers.core.digests import callback_hash, callback_hash_of, plain_hashes, signed
from kafka_timers.core.wire import Callback, Future, Header

REQUEST = ("timer-request", b"")
SECOND = 1_700_000_000
EXPIRY = ("timer-expiry", b"1700000000")

# Spark has the same: test_spark_counts_a_callback_as_python_does.
VECTORS = [
    (b"k", b"v", [EXPIRY, REQUEST], -2429832245119638652),
    (None, b"v", [EXPIRY, REQUEST], 2633091274028510513),
    (b"", b"v", [EXPIRY, REQUEST], 2197775369075959474),
    (b"k", None, [EXPIRY, REQUEST], -8715315724465724418),
    (b"k", b"", [EXPIRY, REQUEST], 7053559145942121322),
    (None, b"k", [EXPIRY, REQUEST], -1634353895578911174),
    (b"k", b"v", [EXPIRY, REQUEST, ("a", None)], -2491155315041861734),
    (b"k", b"v", [EXPIRY, REQUEST, ("a", b"")], -3404709796641386485),
    (b"k", b"v", [EXPIRY, REQUEST, ("a", b"b:1:")], 214643272202012680),
    (b"k", b"v", [EXPIRY, REQUEST, ("ab", b":1:")], 2726453364105113858),
    (b"k", b"v", [EXPIRY, REQUEST, ("a", b""), ("b", b"")], 2992062201769592942),
    (b"k", b"v", [EXPIRY, REQUEST, ("b", b""), ("a", b"")], 1504313499022232456),
    (b"k", b"v", [REQUEST, EXPIRY], -3530733183253362762),
    ("ü".encode(), b"\xff\0", [EXPIRY, REQUEST, ("ü", b"\xff")], -3771396738936903177),
]


@pytest.mark.parametrize(("key", "value", "headers", "wanted"), VECTORS)
def test_a_callback_counts_as_it_did(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]], wanted: int
) -> None:
    assert callback_hash(key, value, headers) == wanted
    assert -(2**63) <= wanted < 2**63


def test_no_two_callbacks_that_differ_count_alike() -> None:
    counted = [callback_hash(*vector[:3]) for vector in VECTORS]
    assert all(one != other for one, other in combinations(counted, 2))


@pytest.mark.parametrize("first", [0, 999_999_998, SECOND, 9_999_999_998])
def test_many_plain_requests_count_as_each_of_them_does(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Three at a time, so that what is known of earlier seconds is given up.
    monkeypatch.setattr(digests, "_SECONDS_MAX", 3)
    plain = [Future(callBackTopic="t", callBackKey="k", callBack=b"v"), Future(callBackTopic="t", callBackKey="ü")]
    named = [Future(callBackTopic="t", timerId="a", token="x"), Future(callBackTopic="t", callBackKey="k", token="x")]
    for futures in (plain, [*plain, Future(callBackTopic="t")], [*plain, *named]):
        seconds = range(first, first + len(futures))
        ids = [future.timerId.encode() for future in futures] if futures[-1].token else []
        found = plain_hashes(futures, seconds, ids, have_tokens=bool(ids))
        wanted = [callback_hash_of(future, second) for future, second in zip(futures, seconds, strict=True)]
        assert list(map(signed, found)) == wanted


def test_a_request_has_the_digest_of_its_callback() -> None:
    asked = Future(
        callBackRecord=Callback(topic="t", key=b"", partition=1),
        timerId="a",
        token="x",
        millis=7,
        headers=[Header(key="own"), Header(key="timer-token", value=b"another's")],
    )
    headers = [("timer-token", b"x"), ("timer-id", b"a"), EXPIRY, ("timer-millis", b"7"), REQUEST, ("own", None)]
    assert callback_hash_of(asked, SECOND) == callback_hash(b"", None, headers)
