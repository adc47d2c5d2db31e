"""Where the request log ends when a tick comes: one question to each broker, and one that fails harms no other."""

import asyncio
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import pytest
from aiokafka.errors import KafkaError, RequestTimedOutError

from kafka_timers.broker.bounds import Bound
from kafka_timers.broker.cluster import Leader
from kafka_timers.clock import Clock, HostClock
from kafka_timers.testing import ManualClock
from kafka_timers.worker.end_offsets import EndOffsets

_NOT_LEADER, _OFFSET_NOT_AVAILABLE = 6, 78


class Log:
    """
    A log of three partitions on three brokers, each of which leads one; they end at 100 plus their number.

    Stands for the brokers and the knowledge of them.

    Attributes:
        asked: broker and partitions of each question, and partitions that were asked for alone.
        silent: brokers that answer only when told so.
        failing: brokers that cannot be asked.
        claims: answers of brokers about partitions that differ from the known leaders.
    """

    def __init__(self) -> None:
        self.known = {number: Leader(number, 4) for number in range(3)}
        self.asked: list[tuple[int, ...]] = []
        self.silent: dict[int, asyncio.Event] = {}
        self.failing: set[int] = set()
        self.claims: dict[tuple[int, int], Bound | int] = {}

    def leader(self, topic: str, number: int) -> Leader | None:
        return self.known.get(number)

    def replicas(self, topic: str, number: int) -> tuple[int, ...]:
        return (0, 1, 2)

    async def told_by(self, node: int, numbers: Collection[int]) -> dict[int, Bound | int]:
        self.asked.append((node, *numbers))
        if node in self.silent:
            await self.silent[node].wait()
        if node in self.failing:
            raise RequestTimedOutError
        return {number: self._told(node, number) for number in numbers}

    def _told(self, node: int, number: int) -> Bound | int:
        if claim := self.claims.get((node, number)):
            return claim
        leader = self.known[number]
        return Bound(100 + number, leader.epoch) if leader.node == node else _NOT_LEADER

    async def end(self, number: int, above: int | None = None) -> int:
        self.asked.append((number,))
        if self.known[number].node in self.failing:
            raise KafkaError("no answer")
        return 200 + number

    async def starts(self, numbers: Collection[int]) -> dict[int, int]:
        raise AssertionError("a tick asks for ends alone")


ALL = (0, 1, 2)
_ONCE = [(0, *ALL), (1, *ALL), (2, *ALL)]


@contextmanager
def asking(log: Log, numbers: Collection[int] = ALL, clock: Clock | None = None) -> Iterator[EndOffsets]:
    ends = EndOffsets(log, log, "timer-request", lambda: numbers, clock or HostClock())  # type: ignore[arg-type]
    yield ends
    ends.close()


async def test_a_tick_asks_each_broker_once_for_all_partitions() -> None:
    log = Log()
    with asking(log) as ends:
        assert await asyncio.gather(*[ends.end(number, 7) for number in ALL]) == [100, 101, 102]
        assert await ends.end(1, 7) == 101
        assert log.asked == _ONCE
        assert await ends.end(1, 8) == 101
        assert log.asked == _ONCE * 2


async def test_a_broker_that_fails_costs_the_partitions_that_it_leads_a_question_of_their_own() -> None:
    log = Log()
    log.failing = {1}
    with asking(log) as ends:
        came = await asyncio.gather(*[ends.end(number, 7) for number in ALL], return_exceptions=True)
        assert [came[0], came[2]] == [100, 102]
        assert isinstance(came[1], KafkaError)
        assert log.asked == [*_ONCE, (1,)]
        log.failing.clear()
        assert await ends.end(1, 8) == 101


async def test_a_broker_that_is_silent_holds_up_no_partition_of_another() -> None:
    log = Log()
    log.silent = {2: asyncio.Event()}
    with asking(log) as ends:
        waiting = asyncio.create_task(ends.end(2, 7))
        assert [await ends.end(number, 7) for number in (0, 1)] == [100, 101]
        assert [await ends.end(number, 8) for number in (0, 1)] == [100, 101]
        assert not waiting.done()
        log.silent[2].set()
        assert await waiting == 102


async def test_an_end_is_proved_when_all_brokers_of_the_partition_have_answered() -> None:
    log = Log()
    log.silent = {2: asyncio.Event()}
    with asking(log) as ends:
        assert await ends.end(0, 7) == 100
        assert ends.proved_s(0) is None
        log.silent[2].set()
        await ends.end(2, 7)
        assert ends.proved_s(0) is not None


async def test_a_proof_is_as_old_as_its_question_and_an_older_one_does_not_take_it_back() -> None:
    log, clock = Log(), ManualClock(7.0)
    log.silent = {2: asyncio.Event()}
    with asking(log, clock=clock) as ends:
        asked_s = clock.elapsed_s()
        assert await ends.end(0, 7) == 100
        await clock.advance(1)
        log.silent[2].set()
        await ends.end(2, 7)
        assert ends.proved_s(0) == asked_s
        ends.proved(0, clock.elapsed_s())
        ends.proved(0, asked_s)
        assert ends.proved_s(0) == asked_s + 1


async def test_what_is_still_asked_is_dropped_with_its_worker() -> None:
    log = Log()
    log.silent = {2: asyncio.Event()}
    before = asyncio.all_tasks()
    with asking(log) as ends:
        assert await ends.end(0, 7) == 100
        assert asyncio.all_tasks() > before
    for _ in range(5):
        await asyncio.sleep(0)
    assert asyncio.all_tasks() <= before


async def test_a_broker_that_leads_in_a_later_epoch_is_believed_and_proves_nothing_yet() -> None:
    """The other one was cut off, and does not know it."""
    log = Log()
    log.silent = {0: asyncio.Event()}
    log.claims = {(1, 0): Bound(150, 5)}
    with asking(log) as ends:
        assert await ends.end(0, 7) == 150
        log.silent[0].set()
        for _ in range(5):
            await asyncio.sleep(0)
        assert ends.proved_s(0) is None
        assert ends.proved_s(1) is not None


async def test_a_broker_that_was_elected_a_moment_ago_and_cannot_tell_the_end_yet_proves_nothing() -> None:
    """The other one was cut off, and tells its old end."""
    log = Log()
    log.claims = {(1, 0): _OFFSET_NOT_AVAILABLE}
    with asking(log) as ends:
        assert await asyncio.gather(*[ends.end(number, 7) for number in ALL]) == [100, 101, 102]
        assert ends.proved_s(0) is None
        assert ends.proved_s(1) is not None


async def test_a_broker_that_leads_in_an_earlier_epoch_is_not_believed() -> None:
    log = Log()
    log.claims = {(0, 0): Bound(90, 3)}
    with asking(log) as ends:
        assert await ends.end(0, 7) == 200
        assert log.asked[-1] == (0,)
        assert ends.proved_s(0) is None


async def test_a_partition_that_came_after_the_question_asks_for_itself() -> None:
    log = Log()
    with asking(log, (0, 1)) as ends:
        assert await ends.end(0, 7) == 100
        assert await ends.end(2, 7) == 202


async def test_a_partition_that_is_given_up_while_it_waits_leaves_the_question_to_the_others() -> None:
    log = Log()
    log.silent = {0: asyncio.Event()}
    with asking(log) as ends:
        waiting = [asyncio.create_task(ends.end(0, 7)) for _ in range(2)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.sleep(0)
        log.silent[0].set()
        assert await waiting[1] == 100
        assert log.asked == _ONCE
        with pytest.raises(asyncio.CancelledError):
            await waiting[0]
