"""How planning shares the event loop with callbacks."""

import asyncio

import pytest
from patience import LIMIT_S

from kafka_timers.clock import HostClock
from kafka_timers.planner.turns import STRIDE_RECORDS, Turns
from kafka_timers.runtime import priority
from kafka_timers.runtime.priority import PriorityGate
from kafka_timers.testing import ManualClock


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> PriorityGate:
    monkeypatch.setattr(priority, "_SOON_S", 0.01)
    return PriorityGate()


async def test_one_partition_plans_in_a_turn_of_the_event_loop(gate: PriorityGate) -> None:
    turns, strides, most = Turns(gate, HostClock()), 0, 0

    async def plan() -> None:
        nonlocal strides
        for _ in range(20):
            await turns.over()
            strides += 1

    planning = asyncio.gather(*(plan() for _ in range(8)))
    while not planning.done():
        before = strides
        await asyncio.sleep(0)
        most = max(most, strides - before)
    assert (strides, most) == (160, 1)


async def test_planning_waits_while_a_second_is_fired(gate: PriorityGate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(priority, "_SOON_S", 60)
    turns = Turns(gate, HostClock())
    with gate.firing():
        stride = asyncio.create_task(turns.over())
        for _ in range(10):
            await asyncio.sleep(0)
        assert not stride.done()
    async with asyncio.timeout(LIMIT_S):
        await stride


async def test_planning_goes_on_beside_a_worker_that_always_fires(gate: PriorityGate) -> None:
    waits = 0
    original = gate.idle_soon

    async def counted() -> bool:
        nonlocal waits
        waits += 1
        return await original()

    gate.idle_soon = counted  # type: ignore[method-assign]
    turns = Turns(gate, HostClock())
    with gate.firing():
        for _ in range(82):
            await turns.over()
    assert waits == 2


async def test_all_items_come_in_order_and_none_waits_for_more_than_a_stride(gate: PriorityGate) -> None:
    turns, overs = Turns(gate, HostClock()), 0
    original = turns.over

    async def counted() -> None:
        nonlocal overs
        overs += 1
        await original()

    turns.over = counted  # type: ignore[method-assign]
    items = list(range(2 * STRIDE_RECORDS + 1))
    assert [item async for item in turns.spread(items)] == items
    assert overs == 3


@pytest.mark.parametrize(
    ("wall_s", "begins_s"), [(999.94, 999.94), (999.96, 1000.02), (1000.01, 1000.02), (1000.03, 1000.03)]
)
async def test_no_transaction_of_a_planner_is_open_when_a_second_begins(
    gate: PriorityGate, wall_s: float, begins_s: float
) -> None:
    clock = ManualClock(wall_s)
    beginning = asyncio.create_task(Turns(gate, clock).may_begin())
    while not beginning.done():
        await clock.advance(0.001)
    assert clock.wall_s() == pytest.approx(begins_s, abs=0.005)
