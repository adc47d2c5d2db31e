"""A record that comes again: when, how often, with which headers, and where it goes in the end."""

import dataclasses
from datetime import timedelta
from typing import Any

import pytest
from aiokafka import ConsumerRecord

from kafka_timers import Callback, PublishError, RequestError, RetryPolicy, TokenGuard
from kafka_timers.testing import InMemoryTimers, ManualClock

POLICY = RetryPolicy("orders.dead", retries=3, first=10, factor=3, longest=50)


def test_delays_grow_by_the_factor_up_to_the_longest() -> None:
    assert [POLICY.delay_s(attempt) for attempt in (1, 2, 3, 4)] == [10, 30, 50, 50]
    assert RetryPolicy("d", first=timedelta(minutes=1), longest=timedelta(days=1)).delay_s(3) == 240
    assert RetryPolicy("d", first=1e300, longest=3600).delay_s(10_000) == 3600
    assert RetryPolicy("d", first=0).delay_s(7) == 0


def test_jitter_shortens_by_its_share_at_most_and_follows_from_the_record() -> None:
    policy = RetryPolicy("d", first=100, longest=100, jitter=0.5)
    delays = [policy.delay_s(1, f"record-{number}") for number in range(1_000)]
    assert delays == [policy.delay_s(1, f"record-{number}") for number in range(1_000)]
    assert 50 <= min(delays) < 52 < 98 < max(delays) <= 100
    assert 73 < sum(delays) / 1_000 < 77


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"retries": -1}, "retries"),
        ({"first": -1}, "first"),
        ({"first": timedelta(seconds=-1)}, "first"),
        ({"first": float("nan")}, "first"),
        ({"longest": float("inf")}, "longest"),
        ({"factor": 0.5}, "factor"),
        ({"jitter": 1.1}, "jitter"),
    ],
)
def test_a_policy_out_of_its_bounds_is_refused(given: dict[str, Any], named: str) -> None:
    with pytest.raises(RequestError, match=f"^{named} of a RetryPolicy"):
        RetryPolicy("d", **given)


async def test_a_record_comes_again_until_it_is_given_up() -> None:
    clock = ManualClock(1_000)
    timers = InMemoryTimers(clock)
    timers.put("orders", b"order", key=b"7", headers=[("trace", b"abc")])
    [record] = timers.take("orders")
    for attempt, delay_s in ((1, 10), (2, 30), (3, 50)):
        retry = await timers.client.retry(record, POLICY, error=ValueError("no stock"))
        assert (retry.attempt, retry.gave_up) == (attempt, False)
        await clock.advance(delay_s - 0.001)
        assert timers.take("orders") == []
        await clock.advance(0.001)
        [record] = timers.take("orders")
        assert (record.key, record.value) == (b"7", b"order")
        callback = Callback.of(record)
        assert callback is not None
        assert (callback.attempt, callback.timer_id, callback.headers) == (attempt, None, (("trace", b"abc"),))
        told = dict(record.headers)
        assert told["timer-retry-first"] == b"orders/0:0"
        assert told["timer-retry-error"] == b"ValueError: no stock"
        assert len(told) == len(record.headers), "headers must not pile up"
    last = await timers.client.retry(record, POLICY, error="still none")
    assert (last.attempt, last.gave_up) == (3, True)
    await clock.advance(0.001)
    assert timers.take("orders") == []
    [dead] = timers.take("orders.dead")
    told = dict(dead.headers)
    assert (dead.key, dead.value, told["trace"]) == (b"7", b"order", b"abc")
    assert (told["timer-retry-attempt"], told["timer-retry-error"]) == (b"3", b"still none")


async def test_a_record_that_is_read_twice_comes_again_once() -> None:
    clock = ManualClock(1_000)
    timers = InMemoryTimers(clock)
    record = timers.put("orders", b"order")
    timers.take("orders")
    for _ in range(2):
        await timers.client.retry(record, POLICY)
    await clock.advance(100)
    [again] = timers.take("orders")
    # The receiver crashed before it has committed the offset of this one, or of the first one.
    for each in (again, again, record):
        await timers.client.retry(each, POLICY)
    await clock.advance(100)
    assert [Callback.of(each).attempt for each in timers.take("orders")] == [2]  # type: ignore[union-attr]


async def test_a_receiver_is_told_that_a_second_request_is_ignored_if_it_waits_for_the_answer() -> None:
    clock = ManualClock(1_000)
    timers = InMemoryTimers(clock)
    record = timers.put("orders", b"order")
    timers.take("orders")
    retries = [await timers.client.retry(record, POLICY, timeout_s=timeout_s) for timeout_s in (5, 5, None)]
    assert [retry.ignored for retry in retries] == [False, True, None]
    # Each has the place of its own request, whether it was asked about or not.
    assert [retry.timer for retry in retries] == [
        dataclasses.replace(retries[2].timer, offset=offset) for offset in range(3)
    ]
    await clock.advance(100)
    assert len(timers.take("orders")) == 1


async def test_a_record_at_the_place_of_one_of_a_former_topic_comes_again() -> None:
    clock = ManualClock(1_000)
    timers = InMemoryTimers(clock)
    first = timers.put("orders", b"order 1")
    timers.take("orders")
    for record in (first, dataclasses.replace(first, value=b"order 2")):
        await timers.client.retry(record, POLICY)
    await clock.advance(10)
    assert sorted(each.value for each in timers.take("orders")) == [b"order 1", b"order 2"]


async def test_copies_of_a_callback_come_again_once() -> None:
    clock = ManualClock(1_000)
    timers = InMemoryTimers(clock)
    await timers.client.after(1, topic="orders", timer_id="order-7", token="t")
    await clock.advance(1)
    [record] = timers.take("orders")
    copy = timers.put("orders", record.value, key=record.key, headers=record.headers)
    for each in (record, copy):
        await timers.client.retry(each, POLICY)
    timers.take("orders")
    await clock.advance(100)
    [again] = timers.take("orders")
    callback = Callback.of(again)
    assert callback is not None
    assert (callback.timer_id, callback.token, callback.attempt) == ("order-7", "t", 1)
    assert TokenGuard("t").accept(callback.token)


async def test_groups_that_retry_the_same_record_do_not_take_it_from_each_other() -> None:
    clock = ManualClock(1_000)
    timers = InMemoryTimers(clock)
    record = timers.put("orders", b"order")
    for group in ("billing", "shipping"):
        for _ in range(2):
            await timers.client.retry(record, RetryPolicy(f"{group}.dead", topic=f"{group}.again"))
    await clock.advance(10)
    assert [len(timers.take(f"{group}.again")) for group in ("billing", "shipping")] == [1, 1]


async def test_records_that_were_made_of_one_callback_come_again_each() -> None:
    clock = ManualClock(1_000)
    timers = InMemoryTimers(clock)
    await timers.client.after(1, topic="orders", timer_id="order-7")
    await clock.advance(1)
    [record] = timers.take("orders")
    for line in (b"line 1", b"line 2"):
        await timers.client.retry(timers.put("lines", line, headers=record.headers), POLICY)
    timers.take("lines")
    await clock.advance(10)
    assert [each.value for each in timers.take("lines")] == [b"line 1", b"line 2"]


async def test_a_record_given_up_at_once_keeps_its_first_place_and_id() -> None:
    clock = ManualClock(1_000)
    timers = InMemoryTimers(clock)
    await timers.client.after(1, topic="orders", timer_id="order-7")
    await clock.advance(1)
    [record] = timers.take("orders")
    await timers.client.retry(record, RetryPolicy("orders.dead", retries=0))
    await clock.advance(1)
    [dead] = timers.take("orders.dead")
    await timers.client.retry(dead, RetryPolicy("orders.dead", topic="orders"))
    await clock.advance(1)
    [again] = timers.take("orders")
    callback = Callback.of(again)
    assert callback is not None
    assert (callback.attempt, callback.timer_id) == (1, "order-7")
    assert dict(again.headers)["timer-retry-first"] == b"orders/0:0"


async def test_a_retry_leaves_the_next_timer_of_the_same_id_alone() -> None:
    clock = ManualClock(1_000)
    timers = InMemoryTimers(clock)
    await timers.client.after(1, topic="orders", timer_id="daily")
    await clock.advance(1)
    [record] = timers.take("orders")
    await timers.client.after(60, topic="orders", timer_id="daily")
    await timers.client.retry(record, POLICY)
    await clock.advance(100)
    assert [Callback.of(each).attempt for each in timers.take("orders")] == [1, 0]  # type: ignore[union-attr]


async def test_a_topic_of_its_own_and_none_at_all() -> None:
    clock = ManualClock(1_000)
    timers = InMemoryTimers(clock)
    record = timers.put("orders", b"order")
    await timers.client.retry(record, RetryPolicy("orders.dead", topic="orders.again"))
    at_once = await timers.client.retry(timers.put("orders", b"bad"), RetryPolicy("orders.dead", retries=0))
    assert (at_once.attempt, at_once.gave_up) == (0, True)
    await clock.advance(1)
    assert [each.value for each in timers.take("orders.again")] == [b"order"]
    assert [each.value for each in timers.take("orders.dead")] == [b"bad"]


async def test_an_error_of_many_pages_is_cut() -> None:
    clock = ManualClock(1_000)
    timers = InMemoryTimers(clock)
    await timers.client.retry(timers.put("orders", b""), POLICY, error="ä" * 10_000)
    timers.take("orders")
    await clock.advance(10)
    [again] = timers.take("orders")
    assert dict(again.headers)["timer-retry-error"] == "ä".encode() * 500


async def test_a_retry_that_the_broker_does_not_take_says_so() -> None:
    timers = InMemoryTimers(ManualClock(1_000))
    timers.fail_next(PublishError("no answer from the broker", retriable=True))
    with pytest.raises(PublishError, match="no answer"):
        await timers.client.retry(timers.put("orders", b""), POLICY)


async def test_an_object_that_is_no_record_is_named() -> None:
    timers = InMemoryTimers(ManualClock(1_000))
    with pytest.raises(RequestError, match="dict is not a record"):
        await timers.client.retry({"value": b""}, POLICY)
    assert isinstance(timers.put("orders", b""), ConsumerRecord)
