"""Where the request log ends when a tick comes: one question for all partitions, and one that fails harms no other."""

import asyncio
from collections.abc import Collection

import pytest
from aiokafka.errors import KafkaError

from kafka_timers.worker.end_offsets import EndOffsets


class Bounds:
    """A log that ends at 100 plus the number of the partition; some questions fail."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, ...]] = []
        self.failing: set[tuple[int, ...]] = set()
        self.answers = asyncio.Event()
        self.answers.set()

    async def ends(self, numbers: Collection[int]) -> dict[int, int]:
        asked = tuple(sorted(numbers))
        self.asked.append(asked)
        await self.answers.wait()
        if asked in self.failing:
            raise KafkaError(f"no answer for {asked}")
        return {number: 100 + number for number in numbers}

    async def starts(self, numbers: Collection[int]) -> dict[int, int]:
        raise AssertionError("a tick asks for ends alone")


ALL = (0, 1, 2)


async def test_a_tick_asks_once_for_all_partitions() -> None:
    bounds = Bounds()
    ends = EndOffsets(bounds, lambda: ALL)
    assert await asyncio.gather(*[ends.end(number, 7) for number in ALL]) == [100, 101, 102]
    assert await ends.end(1, 7) == 101
    assert bounds.asked == [ALL]


async def test_the_next_tick_asks_anew() -> None:
    """The answer tells the end after that tick."""
    bounds = Bounds()
    ends = EndOffsets(bounds, lambda: ALL)
    for second in (7, 8, 9):
        await ends.end(0, second)
    assert bounds.asked == [ALL] * 3


async def test_a_question_that_fails_does_not_fail_the_partitions_that_have_asked() -> None:
    """Each asks for itself then, and only one that gets no answer so either hears of it."""
    bounds = Bounds()
    bounds.failing = {ALL, (1,)}
    ends = EndOffsets(bounds, lambda: ALL)
    came = await asyncio.gather(*[ends.end(number, 7) for number in ALL], return_exceptions=True)
    assert [came[0], came[2]] == [100, 102]
    assert isinstance(came[1], KafkaError)
    assert bounds.asked == [ALL, (0,), (1,), (2,)]


async def test_a_question_that_has_failed_is_not_remembered() -> None:
    bounds = Bounds()
    bounds.failing = {ALL}
    ends = EndOffsets(bounds, lambda: ALL)
    assert await ends.end(0, 7) == 100
    bounds.failing.clear()
    assert await ends.end(1, 7) == 101
    assert await ends.end(2, 7) == 102
    assert bounds.asked == [ALL, (0,), ALL]


async def test_a_failure_of_an_earlier_tick_does_not_put_away_the_question_of_the_next() -> None:
    bounds = Bounds()
    bounds.failing = {ALL}
    bounds.answers.clear()
    numbers = ALL
    ends = EndOffsets(bounds, lambda: numbers)
    early = asyncio.create_task(ends.end(0, 7))
    await asyncio.sleep(0)
    numbers = (0, 1)
    late = asyncio.create_task(ends.end(1, 8))
    await asyncio.sleep(0)
    bounds.answers.set()
    assert (await early, await late) == (100, 101)
    assert await ends.end(0, 8) == 100
    assert bounds.asked == [ALL, (0, 1), (0,)]


async def test_a_partition_that_came_after_the_question_asks_for_itself() -> None:
    bounds = Bounds()
    ends = EndOffsets(bounds, lambda: (0, 1))
    assert await ends.end(0, 7) == 100
    assert await ends.end(5, 7) == 105
    assert bounds.asked == [(0, 1), (5,)]


async def test_a_partition_that_is_given_up_while_it_waits_leaves_the_question_to_the_others() -> None:
    bounds = Bounds()
    bounds.answers.clear()
    ends = EndOffsets(bounds, lambda: ALL)
    waiting = [asyncio.create_task(ends.end(number, 7)) for number in ALL]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    bounds.answers.set()
    assert [await waiting[1], await waiting[2]] == [101, 102]
    assert bounds.asked == [ALL]
    with pytest.raises(asyncio.CancelledError):
        await waiting[0]
