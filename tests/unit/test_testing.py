"""The package's parts for users' tests: a clock that is moved, and the service in memory."""

import asyncio
import inspect
import itertools
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kafka_timers import (
    Answer,
    AnswerError,
    Outcome,
    Pending,
    PublishError,
    RequestError,
    Timer,
    TimerClient,
    WhenError,
    request_from,
)
from kafka_timers.clock import Clock
from kafka_timers.testing import InMemoryTimers, ManualClock

RECEIVERS_PAGE = Path(__file__).parents[2] / "docs" / "receivers.md"


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


async def test_clock_stands_until_it_is_moved() -> None:
    clock: Clock = ManualClock(1_700_000_000.5)
    assert (clock.wall_s(), clock.wall_s()) == (1_700_000_000.5, 1_700_000_000.5)
    assert clock.elapsed_s() == 0.0


async def test_sleepers_wake_at_their_own_moment_in_order() -> None:
    clock = ManualClock()
    woken: list[tuple[str, float]] = []

    async def sleep(name: str, until_s: float) -> None:
        await clock.sleep_until(until_s)
        woken.append((name, clock.wall_s()))

    async with asyncio.TaskGroup() as tasks:
        for name, until_s in [("c", 3.0), ("a", 1.0), ("b1", 2.0), ("b2", 2.0)]:
            tasks.create_task(sleep(name, until_s))
        await clock.advance(2.5)
        assert woken == [("a", 1.0), ("b1", 2.0), ("b2", 2.0)]
        assert (clock.wall_s(), clock.elapsed_s()) == (2.5, 2.5)
        await clock.advance(0.5)
    assert woken[-1] == ("c", 3.0)


async def test_task_that_sleeps_second_by_second_wakes_in_each() -> None:
    clock = ManualClock(10.0)
    seconds: list[float] = []

    async def tick() -> None:
        while clock.wall_s() < 100:
            await clock.sleep_until(clock.wall_s() + 1)
            seconds.append(clock.wall_s())

    task = asyncio.create_task(tick())
    await clock.advance(90)
    await task
    assert seconds == [float(second) for second in range(11, 101)]


async def test_sleep_into_the_past_returns_at_once() -> None:
    clock = ManualClock(10.0)
    await clock.sleep_until(10.0)
    await clock.sleep_until(3.0)


async def test_cancelled_sleeper_does_not_stop_the_clock() -> None:
    clock = ManualClock()
    task = asyncio.create_task(clock.sleep_until(1))
    await clock.advance(0)
    task.cancel()
    await clock.advance(2)
    assert task.cancelled()
    assert clock.wall_s() == 2.0


async def test_a_step_of_the_clock_wakes_due_tasks_and_is_no_time_that_passed() -> None:
    clock = ManualClock(100.0)
    task = asyncio.create_task(clock.sleep_until(150))
    await clock.advance(1)
    clock.set(50.0)
    assert clock.wall_s() == 50.0
    clock.set(200.0)
    await task
    assert clock.elapsed_s() == 1.0


async def test_time_does_not_go_back_by_advancing() -> None:
    with pytest.raises(ValueError, match="does not go back"):
        await ManualClock().advance(-1)


async def test_callback_appears_in_its_second_and_not_before() -> None:
    clock = ManualClock(1_700_000_000.0)
    timers = InMemoryTimers(clock)
    timer = await timers.client.after(30, topic="reminders", key="order-7", value=b"pay")
    assert timer == Timer(1_700_000_030_000, 0, 0, None, None)
    await clock.advance(29.999)
    assert timers.take("reminders") == []
    await clock.advance(0.001)
    [record] = timers.take("reminders")
    assert (record.topic, record.key, record.value) == ("reminders", b"order-7", b"pay")
    assert record.timestamp == 1_700_000_030_000
    assert record.headers == (("timer-expiry", b"1700000030"), ("timer-request", b"0:0"))
    assert request_from(record.headers) == timer.request
    assert timers.take("reminders") == []


async def test_callback_has_the_headers_that_the_service_writes() -> None:
    clock = ManualClock()
    timers = InMemoryTimers(clock)
    headers = [("trace", b"1"), ("null", None)]
    await timers.client.at(5, topic="reminders", timer_id="id", token="token", headers=headers)
    await clock.advance(5)
    [record] = timers.take("reminders")
    assert (record.key, record.value) == (None, b"")
    assert record.headers == (
        ("timer-token", b"token"),
        ("timer-id", b"id"),
        ("timer-expiry", b"5"),
        ("timer-request", b"0:0"),
        ("trace", b"1"),
        ("null", None),
    )


async def test_callbacks_come_in_order_of_millisecond_then_acceptance() -> None:
    clock = ManualClock()
    timers = InMemoryTimers(clock)
    for when in (2.5, 2, 1.999, 2.5, 1.0):
        await timers.client.at(when, topic="reminders")
    await clock.advance(10)
    assert [request_from(record.headers) for record in timers.take("reminders")] == ["0:4", "0:2", "0:1", "0:0", "0:3"]


async def test_late_request_fires_at_once_and_keeps_its_second() -> None:
    clock = ManualClock(100.2)
    timers = InMemoryTimers(clock)
    await timers.client.at(101, topic="reminders", value=b"in time")
    await timers.client.at(40.999, topic="reminders", value=b"late")
    assert timers.take("reminders") == []
    fired = []
    for seconds in (0.001, 0.798, 0.001):
        await clock.advance(seconds)
        fired.append([(each.value, dict(each.headers)["timer-expiry"]) for each in timers.take("reminders")])
    assert fired == [[(b"late", b"40")], [], [(b"in time", b"101")]]


async def test_a_timer_fires_at_its_millisecond_and_can_be_cancelled_before_it() -> None:
    clock = ManualClock(100.0)
    timers = InMemoryTimers(clock)
    await timers.client.at(101.25, topic="reminders", value=b"fires", timer_id="fires")
    await timers.client.after(1.25, topic="reminders", value=b"is cancelled", timer_id="is cancelled")
    clock.set(101.249)
    assert timers.take("reminders") == []
    assert (await timers.client.cancel("is cancelled")).outcome is Outcome.CANCELLED
    clock.set(101.25)
    [fired] = timers.take("reminders")
    assert (fired.value, fired.timestamp) == (b"fires", 101_250)
    assert fired.headers[1:3] == (("timer-expiry", b"101"), ("timer-millis", b"250"))
    late = await timers.client.cancel("fires")
    assert (late.outcome, late.due_ms, late.second) == (Outcome.TOO_LATE, 101_250, 101)


async def test_clock_that_steps_back_fires_nothing_twice() -> None:
    clock = ManualClock(100.0)
    timers = InMemoryTimers(clock)
    await timers.client.at(110, topic="reminders")
    clock.set(120.0)
    assert len(timers.take("reminders")) == 1
    clock.set(100.0)
    await timers.client.at(115, topic="reminders")
    await clock.advance(20)
    assert timers.take("reminders") == []
    await clock.advance(1)
    assert len(timers.take("reminders")) == 1


async def test_topics_are_apart_and_their_offsets_count_from_zero() -> None:
    clock = ManualClock()
    timers = InMemoryTimers(clock)
    for topic in ("a", "b", "a"):
        await timers.client.send_later(b"key", b"value", topic, datetime(1970, 1, 1, 0, 0, 3, tzinfo=UTC))
    await clock.advance(3)
    assert [record.offset for record in timers.take("a")] == [0, 1]
    assert [record.offset for record in timers.take("b")] == [0]
    assert timers.take("c") == []


async def test_cancelled_timer_does_not_fire() -> None:
    clock = ManualClock(100.0)
    timers = InMemoryTimers(clock)
    timer = await timers.client.at(110, topic="reminders", timer_id="id")
    other = await timers.client.at(110, topic="reminders", timer_id="other")
    await clock.advance(9.999)
    assert await timers.client.cancel("id") == Answer(Outcome.CANCELLED, 110_000, timer.request, "0:2")
    await clock.advance(100)
    assert [request_from(record.headers) for record in timers.take("reminders")] == [other.request]


async def test_cancel_in_the_second_of_the_timer_is_too_late() -> None:
    clock = ManualClock(100.0)
    timers = InMemoryTimers(clock)
    timer = await timers.client.at(110, topic="reminders", timer_id="id")
    await clock.advance(10)
    assert await timers.client.cancel("id") == Answer(Outcome.TOO_LATE, 110_000, timer.request, "0:1")
    assert len(timers.take("reminders")) == 1


async def test_cancel_of_a_late_request_is_too_late_before_it_fires() -> None:
    clock = ManualClock(100.0)
    timers = InMemoryTimers(clock)
    timer = await timers.client.at(40, topic="reminders", timer_id="id")
    assert await timers.client.cancel("id") == Answer(Outcome.TOO_LATE, 40_000, timer.request, "0:1")
    await clock.advance(1)
    assert len(timers.take("reminders")) == 1


async def test_cancel_of_nothing_is_unknown() -> None:
    timers = InMemoryTimers(ManualClock(100.0))
    await timers.client.at(110, topic="reminders", timer_id="another")
    assert await timers.client.cancel("id") == Answer(Outcome.UNKNOWN, None, None, "0:1")


async def test_move_replaces_the_timer_as_a_whole() -> None:
    clock = ManualClock(100.0)
    timers = InMemoryTimers(clock)
    first = await timers.client.at(110, topic="reminders", key="k", value=b"first", token="t", timer_id="id")
    moved = await timers.client.move("id", 105, topic="others", value=b"second")
    assert moved == Answer(Outcome.MOVED, 110_000, first.request, "0:1")
    assert await timers.client.move("id", 120, topic="others", value=b"third") == Answer(
        Outcome.MOVED, 105_000, moved.asked, "0:2"
    )
    await clock.advance(100)
    [record] = timers.take("others")
    assert (record.key, record.value, record.headers) == (
        None,
        b"third",
        (("timer-id", b"id"), ("timer-expiry", b"120"), ("timer-request", b"0:2")),
    )
    assert timers.take("reminders") == []


async def test_second_request_of_an_id_is_a_move_too() -> None:
    clock = ManualClock(100.0)
    timers = InMemoryTimers(clock)
    await timers.client.at(110, topic="reminders", value=b"first", timer_id="id")
    second = await timers.client.after(20, topic="reminders", value=b"second", timer_id="id")
    assert await timers.client.cancel("id") == Answer(Outcome.CANCELLED, 120_000, second.request, "0:2")
    await timers.client.at(130, topic="reminders", value=b"after the cancel", timer_id="id")
    await clock.advance(100)
    assert [record.value for record in timers.take("reminders")] == [b"after the cancel"]


async def test_move_that_comes_too_late_fires_as_well() -> None:
    clock = ManualClock(100.0)
    timers = InMemoryTimers(clock)
    first = await timers.client.at(110, topic="reminders", timer_id="id")
    clock.set(110.0)
    assert await timers.client.move("id", 120, topic="reminders") == Answer(
        Outcome.TOO_LATE, 110_000, first.request, "0:1"
    )
    await clock.advance(10)
    assert [request_from(record.headers) for record in timers.take("reminders")] == ["0:0", "0:1"]


async def test_move_of_nothing_is_a_new_timer() -> None:
    clock = ManualClock(100.0)
    timers = InMemoryTimers(clock)
    assert await timers.client.move("id", 120, topic="reminders") == Answer(Outcome.UNKNOWN, None, None, "0:0")
    assert (await timers.client.cancel("id")).outcome is Outcome.CANCELLED
    assert await timers.client.cancel("id") == Answer(Outcome.CANCELLED, 120_000, "0:0", "0:2")
    assert await timers.client.move("id", 130, topic="reminders") == Answer(Outcome.UNKNOWN, None, None, "0:3")
    await clock.advance(100)
    assert [request_from(record.headers) for record in timers.take("reminders")] == ["0:3"]


async def test_ids_are_known_for_an_hour_after_the_second_of_their_timer() -> None:
    """As in the service, which forgets the ids of a minute together."""
    clock = ManualClock(100.0)
    timers = InMemoryTimers(clock)
    await timers.client.at(110, topic="reminders", timer_id="fires")
    await timers.client.at(110, topic="reminders", timer_id="cancelled")
    await timers.client.cancel("cancelled")
    clock.set(3_709)
    assert (await timers.client.cancel("cancelled")).outcome is Outcome.CANCELLED
    assert (await timers.client.cancel("fires")).outcome is Outcome.TOO_LATE
    clock.set(3_710)
    assert (await timers.client.cancel("fires")).outcome is Outcome.UNKNOWN
    clock.set(3_781)
    assert (await timers.client.cancel("cancelled")).outcome is Outcome.UNKNOWN
    assert (await timers.client.cancel("fires")).outcome is Outcome.UNKNOWN
    await timers.client.at(3_700, topic="reminders", timer_id="late")
    clock.set(3_782)
    assert (await timers.client.cancel("late")).outcome is Outcome.TOO_LATE
    await timers.client.at(10_000, topic="reminders", timer_id="far")
    clock.set(9_999)
    assert (await timers.client.cancel("far")).outcome is Outcome.CANCELLED


async def test_create_stands_once_however_often_it_is_asked_for() -> None:
    clock = ManualClock(100.0)
    timers = InMemoryTimers(clock)
    created = await timers.client.create("id", 110, topic="reminders", key="k", value=b"first", token="t")
    assert created == Answer(Outcome.ACCEPTED, None, None, "0:0")
    again = await timers.client.create("id", 105, topic="reminders", value=b"second")
    assert again == Answer(Outcome.IGNORED, 110_000, created.asked, "0:1", waits=True)
    await clock.advance(100)
    [record] = timers.take("reminders")
    assert (record.key, record.value, request_from(record.headers)) == (b"k", b"first", created.asked)


@pytest.mark.parametrize(("is_cancelled", "free_s"), [(False, 3_710), (True, 3_700)])
async def test_create_is_ignored_until_an_hour_after_the_last_timer_or_its_cancel(
    is_cancelled: bool, free_s: int
) -> None:
    clock = ManualClock(100.0)
    timers = InMemoryTimers(clock)
    await timers.client.at(110, topic="reminders", timer_id="id")
    if is_cancelled:
        await timers.client.cancel("id")
    clock.set(free_s - 0.001)
    ignored = await timers.client.create("id", 4_000, topic="reminders")
    assert (ignored.outcome, ignored.second) == (Outcome.IGNORED, 110)
    clock.set(free_s)
    assert (await timers.client.create("id", 4_000, topic="reminders")).outcome is Outcome.ACCEPTED


async def test_a_follow_up_of_a_callback_is_created_once() -> None:
    clock = ManualClock(100.0)
    timers = InMemoryTimers(clock)
    first = await timers.client.create("id", 110, topic="reminders")
    # Before its second it is no callback that anybody could have read.
    early = await timers.client.create("id", 120, topic="reminders", request=first.asked)
    assert (early.outcome, early.request) == (Outcome.IGNORED, first.asked)
    clock.set(110)
    [callback] = timers.take("reminders")
    read = request_from(callback.headers)
    second = await timers.client.create("id", 120, topic="reminders", request=read)
    again = await timers.client.create("id", 120, topic="reminders", request=read)
    assert (second.outcome, again.outcome, again.request) == (Outcome.ACCEPTED, Outcome.IGNORED, second.asked)
    clock.set(130)
    assert [request_from(each.headers) for each in timers.take("reminders")] == [second.asked]


async def test_create_after_a_cancel_of_nothing_is_accepted() -> None:
    timers = InMemoryTimers(ManualClock(100.0))
    await timers.client.cancel("id")
    assert (await timers.client.create("id", 110, topic="reminders")).outcome is Outcome.ACCEPTED


async def test_late_move_fires_alone_or_not_at_all_under_a_condition() -> None:
    clock = ManualClock(100.0)
    timers = InMemoryTimers(clock)
    first = await timers.client.at(110, topic="reminders", timer_id="id")
    clock.set(110.0)
    ignored = await timers.client.move("id", 120, topic="reminders", if_pending=True)
    assert ignored == Answer(Outcome.IGNORED, 110_000, first.request, "0:1")
    await clock.advance(100)
    assert [request_from(record.headers) for record in timers.take("reminders")] == [first.request]


async def test_move_of_a_pending_timer_is_a_move_also_under_a_condition() -> None:
    clock = ManualClock(100.0)
    timers = InMemoryTimers(clock)
    first = await timers.client.at(110, topic="reminders", timer_id="id")
    moved = await timers.client.move("id", 120, topic="reminders", if_pending=True, request=first.request)
    assert moved == Answer(Outcome.MOVED, 110_000, first.request, "0:1")
    ignored = await timers.client.move("id", 130, topic="reminders", if_pending=True, request=first.request)
    assert ignored == Answer(Outcome.IGNORED, 120_000, moved.asked, "0:2", waits=True)
    await clock.advance(100)
    assert [request_from(record.headers) for record in timers.take("reminders")] == [moved.asked]


async def test_move_of_nothing_is_ignored_under_a_condition() -> None:
    clock = ManualClock(100.0)
    timers = InMemoryTimers(clock)
    ignored = await timers.client.move("id", 120, topic="reminders", if_pending=True)
    assert ignored == Answer(Outcome.IGNORED, None, None, "0:0")
    await clock.advance(100)
    assert timers.take("reminders") == []


async def test_cancel_under_a_condition_names_the_request_that_is_known() -> None:
    clock = ManualClock(100.0)
    timers = InMemoryTimers(clock)
    timer = await timers.client.at(110, topic="reminders", timer_id="id")
    other = await timers.client.cancel("id", if_pending=True, request="0:7")
    assert other == Answer(Outcome.IGNORED, 110_000, timer.request, "0:1", waits=True)
    cancelled = await timers.client.cancel("id", if_pending=True, request=timer.request)
    assert cancelled == Answer(Outcome.CANCELLED, 110_000, timer.request, "0:2")
    again = await timers.client.cancel("id", if_pending=True)
    assert again == Answer(Outcome.IGNORED, 110_000, timer.request, "0:3")
    assert (await timers.client.cancel("id")).outcome is Outcome.CANCELLED
    assert (await timers.client.cancel("nothing", if_pending=True)).request is None
    await clock.advance(100)
    assert timers.take("reminders") == []


async def test_checks_are_those_of_the_real_client() -> None:
    clock = ManualClock()
    async with InMemoryTimers(clock).client as client:
        assert isinstance(client, TimerClient)
        with pytest.raises(WhenError):
            await client.at(1_700_000_000_000, topic="reminders")
        with pytest.raises(RequestError):
            await client.after(timedelta(seconds=1), topic="oscillator")
        with pytest.raises(RequestError):
            await client.cancel("")
        with pytest.raises(RequestError):
            await client.move("id", 10, topic="timer-reply")
        with pytest.raises(RequestError, match="give if_pending=True with it"):
            await client.cancel("id", request="0:0")
        with pytest.raises(RequestError, match="not partition:offset"):
            await client.move("id", 10, topic="reminders", if_pending=True, request="0-0")
        with pytest.raises(RequestError, match="lie in partition 0"):
            await client.cancel("id", if_pending=True, request="1:0")
        with pytest.raises(RequestError, match="timer_id is None"):
            await client.create(None, 10, topic="reminders")  # type: ignore[arg-type]


async def test_real_client_that_was_not_started_says_so() -> None:
    with pytest.raises(PublishError, match="async with TimerClient") as caught:
        await TimerClient().after(1, topic="reminders")
    assert not caught.value.retriable


def of_the_page(text: str) -> dict[str, Any]:
    """Return the names that the block with *text* on the receivers page defines."""
    names: dict[str, Any] = {}
    [block] = [block for block in python_blocks(RECEIVERS_PAGE) if text in block]
    exec(block, names)
    return names


async def test_cancel_on_the_receivers_page_tells_if_it_came_in_time() -> None:
    names = of_the_page("def pay(number")
    clock = ManualClock(100.0)
    timers = InMemoryTimers(clock)
    for number in ("1", "2"):
        await timers.client.at(110, topic="deadlines", timer_id=f"deadline-{number}")
    assert await names["pay"]("1", timers.client)
    clock.set(110.0)
    assert not await names["pay"]("2", timers.client)


async def test_conditions_on_the_receivers_page_hold() -> None:
    names = of_the_page("def extend(number")
    clock = ManualClock(100.0)
    timers = InMemoryTimers(clock)
    assert await names["open_order"]("1", 110, timers.client)
    assert not await names["open_order"]("1", 110, timers.client)
    assert await names["extend"]("1", 120, timers.client)
    clock.set(120.0)
    assert not await names["extend"]("1", 130, timers.client)
    await clock.advance(100)
    assert [dict(record.headers)["timer-expiry"] for record in timers.take("deadlines")] == [b"120"]


async def test_moves_of_the_time_alone_on_the_receivers_page_hold() -> None:
    names = of_the_page("def snooze(number")
    clock = ManualClock(100.0)
    timers = InMemoryTimers(clock)
    assert await names["deadline"]("1", timers.client) is None
    await timers.client.at(200, topic="deadlines", timer_id="deadline-1")
    assert await names["snooze"]("1", timers.client)
    assert await names["deadline"]("1", timers.client) == 700
    clock.set(700)
    assert not await names["snooze"]("1", timers.client)


async def test_a_callback_is_described_as_on_the_receivers_page() -> None:
    names = of_the_page("def describe(record")
    clock = ManualClock(100.0)
    timers = InMemoryTimers(clock)
    await timers.client.at(101.25, topic="deadlines", timer_id="deadline-1")
    timers.put("deadlines", b"plain")
    await clock.advance(10)
    described = [names["describe"](record) for record in timers.take("deadlines")]
    assert described == ["no callback", "deadline-1 was due at 101250 and left 0 ms later"]


async def test_the_loop_with_retries_on_the_receivers_page_gives_up_in_the_end() -> None:
    names = of_the_page("def consume(orders")
    clock = ManualClock(100.0)
    timers = InMemoryTimers(clock)
    timers.put("orders", b"order")
    handled, committed = [], []

    async def handle(record: Any) -> None:
        handled.append(clock.wall_s())
        raise ConnectionError("no stock")

    class Orders:
        async def __aiter__(self) -> AsyncIterator[Any]:
            while not (dead := timers.take("orders-dead")):
                for record in timers.take("orders"):
                    yield record
                await clock.advance(1)
            [given_up] = dead
            assert dict(given_up.headers)["timer-retry-error"] == b"ConnectionError: no stock"

        async def commit(self) -> None:
            committed.append(clock.wall_s())

    names["handle"] = handle
    await names["consume"](Orders(), timers.client)
    waited = [after - before for before, after in itertools.pairwise(handled)]
    # Less the jitter; the clock goes by seconds.
    assert all(0.8 * full <= delay <= full + 1 for delay, full in zip(waited, [10, 30, 90, 270, 810], strict=True))
    assert committed == handled


async def test_tests_on_the_receivers_page_pass() -> None:
    names: dict[str, Any] = {}
    for block in python_blocks(RECEIVERS_PAGE):
        exec(block, names)
    tests = [value for name, value in names.items() if name.startswith("test_") and inspect.iscoroutinefunction(value)]
    assert len(tests) == 2
    for test in tests:
        await test()


# --- the time alone, and pending timers ------------------------------------------------------------------------------


async def test_move_without_a_topic_changes_the_time_alone() -> None:
    clock = ManualClock(100.0)
    timers = InMemoryTimers(clock)
    headers = [("trace", b"1"), ("null", None)]
    first = await timers.client.at(
        110, topic="reminders", key="k", value=b"v", token="t", timer_id="id", headers=headers
    )
    moved = await timers.client.move("id", after=20.25, headers={}, key=None)
    assert (moved.outcome, moved.due_ms, moved.request) == (Outcome.MOVED, 110_000, first.request)
    await clock.advance(20.249)
    assert timers.take("reminders") == []
    await clock.advance(0.001)
    [record] = timers.take("reminders")
    assert (record.key, record.value, record.headers) == (
        b"k",
        b"v",
        (
            ("timer-token", b"t"),
            ("timer-id", b"id"),
            ("timer-expiry", b"120"),
            ("timer-millis", b"250"),
            ("timer-request", moved.asked.encode()),
            ("trace", b"1"),
            ("null", None),
        ),
    )


async def test_the_time_of_a_timer_that_is_not_pending_cannot_be_changed() -> None:
    clock = ManualClock(100.0)
    timers = InMemoryTimers(clock)
    assert await timers.client.move("nothing", 120) == Answer(Outcome.IGNORED, None, None, "0:0")
    await timers.client.at(110, topic="reminders", timer_id="cancelled")
    await timers.client.cancel("cancelled")
    assert (await timers.client.move("cancelled", 120)).outcome is Outcome.IGNORED
    fired = await timers.client.at(110, topic="reminders", timer_id="fired")
    clock.set(110)
    late = await timers.client.move("fired", 120)
    assert (late.outcome, late.request, late.waits) == (Outcome.IGNORED, fired.request, False)
    await clock.advance(100)
    assert [request_from(each.headers) for each in timers.take("reminders")] == [fired.request]


async def test_the_time_of_one_request_is_changed_only_while_it_is_the_pending_one() -> None:
    timers = InMemoryTimers(ManualClock(100.0))
    first = await timers.client.at(110, topic="reminders", timer_id="id")
    moved = await timers.client.move("id", 120, request=first.request)
    assert moved.outcome is Outcome.MOVED
    again = await timers.client.move("id", 130, request=first.request)
    assert (again.outcome, again.request, again.waits) == (Outcome.IGNORED, moved.asked, True)
    other = await timers.client.at(110, topic="reminders", timer_id="other")
    with pytest.raises(RequestError, match="is not one of 'id'"):
        await timers.client.move("id", 130, request=other.request)


@pytest.mark.parametrize("given", [{}, {"when": 120, "after": 5}])
async def test_move_wants_one_moment(given: dict[str, Any]) -> None:
    timers = InMemoryTimers(ManualClock(100.0))
    with pytest.raises(WhenError, match="either a moment or after="):
        await timers.client.move("id", **given)


@pytest.mark.parametrize("given", [{"key": "k"}, {"value": b"v"}, {"token": "t"}, {"headers": [("a", b"1")]}])
async def test_without_a_topic_nothing_else_is_changed(given: dict[str, Any]) -> None:
    timers = InMemoryTimers(ManualClock(100.0))
    with pytest.raises(RequestError, match="without a topic only the time is changed"):
        await timers.client.move("id", 120, **given)


async def test_get_returns_the_pending_timer_and_nothing_else() -> None:
    clock = ManualClock(100.0)
    timers = InMemoryTimers(clock)
    client = timers.client
    timer = await client.at(
        110.5, topic="reminders", key="k", value=b"v", token="t", timer_id="id", headers={"a": b"1"}
    )
    found = await client.get("id")
    assert found == Pending("id", 110_500, timer.request, "reminders", b"k", b"v", "t", (("a", b"1"),))
    assert found.second == 110
    moved = await client.move("id", 120)
    again = await client.get("id")
    assert again is not None
    assert (again.due_ms, again.request) == (120_000, moved.asked)
    assert await client.get("nothing") is None
    await client.cancel("id")
    assert await client.get("id") is None
    await client.at(130, topic="reminders", timer_id="fires")
    clock.set(130)
    assert await client.get("fires") is None


async def test_pending_lists_timers_in_the_order_of_firing() -> None:
    clock = ManualClock(100.0)
    timers = InMemoryTimers(clock)
    await timers.client.at(130, topic="reminders", value=b"second")
    await timers.client.at(120.5, topic="reminders", value=b"first", timer_id="id")
    await timers.client.at(110, topic="reminders", timer_id="cancelled")
    await timers.client.cancel("cancelled")
    waiting = timers.pending()
    assert [(each.value, each.due_ms, each.timer_id) for each in waiting] == [
        (b"first", 120_500, "id"),
        (b"second", 130_000, None),
    ]
    assert waiting[0] == await timers.client.get("id")
    clock.set(125)
    assert [each.value for each in timers.pending()] == [b"second"]


# --- failures on demand ----------------------------------------------------------------------------------------------


async def test_publishing_fails_when_a_test_asks_for_it() -> None:
    timers = InMemoryTimers(ManualClock(100.0))
    timers.fail_next(*[PublishError("no answer from the broker", retriable=True)] * 2)
    for _ in range(2):
        with pytest.raises(PublishError, match="no answer") as caught:
            await timers.client.at(110, topic="reminders")
        assert caught.value.retriable
    await timers.client.at(110, topic="reminders")
    assert len(timers.pending()) == 1


async def test_an_answer_gets_lost_when_a_test_asks_for_it_and_the_cancel_stands() -> None:
    timers = InMemoryTimers(ManualClock(100.0))
    timers.fail_next(AnswerError("no answer came within 10 s", asked="0:1"))
    await timers.client.at(110, topic="reminders", timer_id="id")
    with pytest.raises(AnswerError, match="no answer came"):
        await timers.client.cancel("id")
    assert timers.pending() == []
    assert (await timers.client.cancel("id")).outcome is Outcome.CANCELLED


async def test_a_question_whose_answer_gets_lost_changes_nothing() -> None:
    timers = InMemoryTimers(ManualClock(100.0))
    await timers.client.at(110, topic="reminders", timer_id="id")
    timers.fail_next(AnswerError("no answer came within 10 s", asked="0:1"))
    with pytest.raises(AnswerError, match="no answer came"):
        await timers.client.move("id", 120)
    assert [waiting.due_ms for waiting in timers.pending()] == [110_000]


async def test_a_request_that_is_not_there_is_named_as_by_the_service() -> None:
    timers = InMemoryTimers(ManualClock(100.0))
    timer = await timers.client.at(110, topic="reminders", timer_id="id")
    assert timer.request == "0:0"
    for request in ("0:99", "7:0"):
        with pytest.raises(RequestError, match=f"request {request}"):
            await timers.client.move("id", after=5, request=request)


async def test_an_id_that_is_no_text_is_named_by_every_call() -> None:
    client = InMemoryTimers(ManualClock(100.0)).client
    for call in (client.get("\udcff"), client.move("\udcff", 120), client.cancel("\udcff")):
        with pytest.raises(RequestError, match="timer_id"):
            await call


async def test_a_callback_for_a_topic_that_is_missing_lies_on_timer_rejected() -> None:
    clock = ManualClock(100.0)
    timers = InMemoryTimers(clock, topics=["reminders"])
    timer = await timers.client.at(110, topic="reminder", value=b"misspelt")
    await timers.client.at(110, topic="reminders", value=b"right")
    await clock.advance(10)
    assert [each.value for each in timers.take("reminders")] == [b"right"]
    assert timers.take("reminder") == []
    [rejected] = timers.take("timer-rejected")
    assert rejected.headers == (
        ("timer-rejected-reason", b"topic-unknown"),
        ("timer-rejected-topic", b"timer-request"),
        ("timer-rejected-partition", b"0"),
        ("timer-rejected-offset", b"%d" % timer.offset),
    )
    assert rejected.key == b"110"


async def test_other_records_come_with_the_callbacks() -> None:
    clock = ManualClock(100.0)
    timers = InMemoryTimers(clock)
    await timers.client.at(101, topic="orders", value=b"callback")
    timers.put("orders", b"plain", key=b"k", headers={"a": b"1"})
    timers.put("orders", None)
    await clock.advance(1)
    assert [(each.key, each.value, each.offset) for each in timers.take("orders")] == [
        (b"k", b"plain", 0),
        (None, None, 1),
        (None, b"callback", 2),
    ]


def test_code_without_asyncio_has_a_client_too() -> None:
    clock = ManualClock(100.0)
    timers = InMemoryTimers(clock)
    with timers.sync_client as client:
        timer = client.at(110, topic="reminders", timer_id="id")
        assert client.cancel("id") == Answer(Outcome.CANCELLED, 110_000, timer.request, "0:1")
        client.after(5, topic="reminders", value=b"v")
    clock.set(105)
    assert [each.value for each in timers.take("reminders")] == [b"v"]
