"""The loop that histories run on: its time, its order, and processes that are paused."""

import asyncio
from contextvars import copy_context

import pytest

from simulation.loop import PROCESS, SeededLoop, StandstillError


def test_an_hour_of_waiting_takes_no_time() -> None:
    loop = SeededLoop(1)
    loop.run_until_complete(asyncio.sleep(3600))
    assert loop.time() == 3600
    loop.close()


def _order(seed: int | None) -> list[int]:
    loop, order = SeededLoop(seed), list[int]()

    async def note(number: int) -> None:
        order.append(number)

    async def main() -> None:
        await asyncio.gather(*map(note, range(10)))

    loop.run_until_complete(main())
    loop.close()
    return order


def test_a_seed_always_draws_the_same_order_of_tasks() -> None:
    assert _order(None) == [*range(10)]
    assert _order(1) == _order(1) != _order(2)


def test_nothing_of_a_paused_process_runs_until_it_is_resumed() -> None:
    loop, seen = SeededLoop(), list[float]()

    async def process() -> None:
        while True:
            await asyncio.sleep(1)
            seen.append(loop.time())

    context = copy_context()
    context.run(PROCESS.set, "a")
    task = loop.create_task(process(), context=context)
    loop.run_until_complete(asyncio.sleep(2.5))
    loop.pause("a")
    loop.run_until_complete(asyncio.sleep(5))
    assert seen == [1, 2]
    loop.resume("a")
    loop.run_until_complete(asyncio.sleep(1.1))
    assert seen == [1, 2, 7.5, 8.5]
    task.cancel()
    loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
    loop.close()


def test_a_loop_on_which_nothing_can_ever_happen_says_so() -> None:
    loop = SeededLoop()

    async def main() -> None:
        await asyncio.Event().wait()

    task = loop.create_task(main())
    with pytest.raises(StandstillError):
        loop.run_until_complete(task)
    task.cancel()
    loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
    loop.close()


def test_a_loop_in_which_something_runs_for_ever_says_so() -> None:
    loop = SeededLoop()

    async def main() -> None:
        while True:  # noqa: ASYNC110  # there is nothing to wait for
            await asyncio.sleep(0)

    task = loop.create_task(main())
    with pytest.raises(StandstillError, match=r"time does not go on at 0\.000 s"):
        loop.run_until_complete(task)
    task.cancel()
    loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
    loop.close()
