"""Questions that take long: each is asked once, nobody waits long, and callers get an answer meanwhile."""

import asyncio

import pytest

import kafka_timers.console.actions as of_service
from kafka_timers.clock import HostClock
from kafka_timers.console.actions import Service
from kafka_timers.console.console_settings import ConsoleSettings
from kafka_timers.console.sharing import BusyError, LateError, Shared, within
from kafka_timers.operate.health import ServiceStatus
from kafka_timers.testing import ManualClock

SOON_S = 0.01


class Question:
    """A question that is answered when the test says so."""

    def __init__(self) -> None:
        self.asked = 0
        self.answer = asyncio.get_running_loop().create_future()

    async def __call__(self, *_: object, **__: object) -> object:
        self.asked += 1
        answer = await self.answer
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_a_question_is_asked_once_and_all_waiting_callers_get_its_answer() -> None:
    shared, question = Shared(), Question()
    waiting = [asyncio.create_task(shared.answer("it", question, "it")) for _ in range(5)]
    await asyncio.sleep(0)
    question.answer.set_result(7)
    assert await asyncio.gather(*waiting) == [7] * 5
    assert question.asked == 1
    # And the answer is not kept.
    assert await shared.answer("it", question, "it") == 7
    assert question.asked == 2


async def test_a_caller_that_waits_too_long_gets_an_error_and_the_answer_next_time() -> None:
    shared, question = Shared(), Question()
    for _ in range(3):
        with pytest.raises(LateError, match=r"it: no answer within 0.01 s. It is still being looked for"):
            await shared.answer("it", question, "it", SOON_S)
    next_time = asyncio.create_task(shared.answer("it", question, "it"))
    await asyncio.sleep(0)
    question.answer.set_result(7)
    assert (await next_time, question.asked) == (7, 1)


async def test_an_answer_that_comes_when_nobody_waits_goes_to_the_next_caller() -> None:
    shared, question = Shared(), Question()
    with pytest.raises(LateError):
        await shared.answer("it", question, "it", 0)
    question.answer.set_result(7)
    await asyncio.sleep(SOON_S)
    assert (await shared.answer("it", question, "it"), question.asked) == (7, 1)
    assert (await shared.answer("it", question, "it"), question.asked) == (7, 2)


async def test_a_caller_after_a_change_gets_no_answer_to_an_earlier_question() -> None:
    shared, before, after = Shared(), Question(), Question()
    waits = asyncio.create_task(shared.answer("it", before, "it"))
    await asyncio.sleep(0)
    shared.forget("it")
    after.answer.set_result("after")
    assert await shared.answer("it", after, "it") == "after"
    before.answer.set_result("before")
    assert await waits == "before"
    shared.forget("it")


async def test_an_error_reaches_the_waiting_callers_and_the_next_caller_asks_anew() -> None:
    shared, question = Shared(), Question()
    question.answer.set_result(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        await shared.answer("it", question, "it")
    with pytest.raises(ValueError, match="no"):
        await shared.answer("it", question, "it")
    assert question.asked == 2


async def test_a_caller_that_goes_away_takes_the_question_from_nobody() -> None:
    shared, question = Shared(), Question()
    gone, stays = (asyncio.create_task(shared.answer("it", question, "it")) for _ in range(2))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.sleep(0)
    question.answer.set_result(7)
    assert await stays == 7


async def test_no_more_than_some_questions_are_under_way() -> None:
    shared, question = Shared(), Question()
    for number in range(16):
        with pytest.raises(LateError):
            await shared.answer(number, question, "it", 0)
    with pytest.raises(BusyError, match="17th: 16 questions that take long are under way"):
        await shared.answer("another", question, "17th")
    with pytest.raises(LateError):
        await shared.answer(0, question, "it", 0)
    await shared.close()
    assert question.answer.cancelled()


async def test_a_question_that_is_given_up_is_an_error() -> None:
    with pytest.raises(LateError, match=r"it: no answer within 0.01 s, and it was given up"):
        await within(asyncio.Event().wait(), "it", SOON_S)


async def test_while_kafka_is_silent_the_last_status_is_shown_and_then_it_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, silent = Question(), Question()
    status = ServiceStatus("workers", "timer-request", [])
    first.answer.set_result(status)
    monkeypatch.setattr(of_service, "read_status", first)
    clock = ManualClock(1_000.0)
    async with Service(ConsoleSettings(), clock, SOON_S) as service:
        assert await service.status() == (status, 1_000.0)
        monkeypatch.setattr(of_service, "read_status", silent)
        await clock.advance(10)
        assert await service.status() == (status, 1_000.0)
        await clock.advance(10)
        with pytest.raises(LateError, match="the status of the service: no answer within"):
            await service.status()
        silent.answer.set_result(status)
        assert await service.status() == (status, 1_020.0)


async def test_a_service_that_was_asked_nothing_ends() -> None:
    async with Service(ConsoleSettings(), HostClock()):
        pass
