"""Callers take turns on connections, and get more of them only where one is not answered."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from kafka_timers.broker import lanes
from kafka_timers.broker.lanes import SharedLanes

given_up: list[tuple[str, int]] = []


@pytest.fixture
async def shared(monkeypatch: pytest.MonkeyPatch) -> SharedLanes[str]:
    monkeypatch.setattr(lanes, "_HELD_S", 0.05)
    monkeypatch.setattr(lanes, "_IDLE_S", 0.05)
    given_up.clear()
    return SharedLanes(lambda key, number: given_up.append((key, number)))


async def test_who_is_quick_shares_one_connection_in_the_order_of_the_calls(shared: SharedLanes[str]) -> None:
    order: list[int] = []

    async def one(caller: int) -> int:
        async with shared.one("a") as number:
            order.append(caller)
            await asyncio.sleep(0.005)
            return number

    assert set(await asyncio.gather(*map(one, range(20)))) == {0}
    assert order == sorted(order)


async def test_a_connection_that_is_held_leaves_others_one_more_until_that_is_idle_for_long(
    shared: SharedLanes[str],
) -> None:
    async with shared.one("a") as held:
        async with shared.one("a") as second, shared.one("a") as third:
            assert (held, second, third) == (0, 1, 2)
        # Those are free, so nobody waits.
        async with asyncio.timeout(0.04), shared.one("a") as number:
            assert number == 1
        # Another broker has connections of its own.
        async with shared.one("b") as number:
            assert number == 0
        await asyncio.sleep(0.1)
    assert sorted(given_up) == [("a", 1), ("a", 2)]
    await asyncio.sleep(0.1)
    assert len(given_up) == 2


async def test_who_gives_up_waiting_keeps_nobody_waiting(shared: SharedLanes[str]) -> None:
    async def wait() -> int:
        async with shared.one("a") as number:
            return number

    async with AsyncExitStack() as held:
        await held.enter_async_context(shared.one("a"))
        impatient, patient = asyncio.create_task(wait()), asyncio.create_task(wait())
        await asyncio.sleep(0)
        impatient.cancel()
    # Its turn has come, and it does not know yet.
    late = asyncio.create_task(wait())
    assert await patient == 0
    assert await late == 0
    async with shared.one("a") as number:
        granted = asyncio.create_task(wait())
        await asyncio.sleep(0)
    granted.cancel()
    with pytest.raises(asyncio.CancelledError):
        await granted
    async with asyncio.timeout(0.04), shared.one("a") as number:
        assert number == 0
