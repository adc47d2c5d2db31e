"""A callback topic is missing only if two brokers say so, since its timers are then rejected for good."""

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from kafka_timers.broker import codes
from kafka_timers.core.callbacks import Lack, Target
from kafka_timers.core.refused import Reason
from kafka_timers.core.wire import Topics
from kafka_timers.runtime import targets
from kafka_timers.runtime.targets import TopicLookup
from kafka_timers.testing import ManualClock


class Brokers:
    """
    Two brokers, the first of which is asked first, and the knowledge of each.

    Args:
        settings: the topics whose settings each knows.
        partitions: the topics whose partitions each knows.
    """

    def __init__(self, settings: list[set[str]], partitions: list[set[str]]) -> None:
        self._settings, self._partitions = settings, partitions
        # Of each partition, the leader and the replicas in sync; brokers 1 and 2 have replicas.
        self.standing = [(1, [1, 2])] * 3

    async def ask_any(self, request: Any) -> Any:
        return self._told(request, 0)

    async def ask_two(self, request: Any) -> list[Any]:
        return [self._told(request, 0), self._told(request, 1)]

    def _told(self, request: Any, broker: int) -> Any:
        if hasattr(request, "topics"):
            known = self._partitions[broker]
            there = [
                (0, number, leader, 0, [1, 2], in_sync, []) for number, (leader, in_sync) in enumerate(self.standing)
            ]
            rows = [(0, topic, b"", False, there if topic in known else []) for topic in request.topics]
            return SimpleNamespace(topics=rows)
        asked = [topic for _, topic, _ in request._resources]
        missing = codes.UNKNOWN_TOPIC_OR_PARTITION
        needs = [("min.insync.replicas", "2", False, 5, False, [])]
        rows = [(0 if topic in self._settings[broker] else missing, "", 2, topic, needs) for topic in asked]
        return SimpleNamespace(resources=rows)


NEW, OLD = {"old", "new"}, {"old"}


@pytest.mark.parametrize(
    ("settings", "partitions"), [([OLD, NEW], [NEW, NEW]), ([NEW, NEW], [OLD, NEW]), ([OLD, NEW], [OLD, NEW])]
)
async def test_a_topic_that_the_first_broker_does_not_know_yet_is_there(
    settings: list[set[str]], partitions: list[set[str]]
) -> None:
    lookup = TopicLookup(Brokers(settings, partitions), Topics(), "*", ManualClock())  # type: ignore[arg-type]
    await lookup.resolve(["old", "new", "missing"])
    there = Target(3, 1_048_588)
    assert lookup.verdicts == {"old": there, "new": there, "missing": Reason.TOPIC_UNKNOWN}


async def resolved(lookup: TopicLookup, clock: ManualClock, topic: str = "old") -> float:
    """Look the topic up, and return for how long it was waited for."""
    began_s = clock.elapsed_s()
    with mock.patch.object(targets, "_LOOK_AGAIN_S", 0.0):
        resolving = asyncio.create_task(lookup.resolve([topic]))
        await asyncio.sleep(0.01)
        while not resolving.done():
            await clock.advance(0.25)
            await asyncio.sleep(0.01)
    return clock.elapsed_s() - began_s


@pytest.mark.parametrize(("leader", "code", "waits_s"), [(1, 19, 2), (-1, 5, 15)])
async def test_a_partition_is_waited_for_and_counts_as_unavailable_then(leader: int, code: int, waits_s: int) -> None:
    """2 s for replicas in sync, 15 s for a leader. Once well it is available, and waited for when it goes again."""
    brokers, clock = Brokers([NEW, NEW], [NEW, NEW]), ManualClock()
    lookup = TopicLookup(brokers, Topics(), "*", clock)  # type: ignore[arg-type]
    well, brokers.standing = brokers.standing, [(1, [1, 2]), (leader, [1]), (1, [1, 2])]
    assert await resolved(lookup, clock) == waits_s
    assert lookup.verdicts == {"old": Target(3, 1_048_588, unavailable={1: Lack(code, (2,))})}
    assert list(lookup.unavailable()) == ["old"]
    assert await resolved(lookup, clock) == 0
    brokers.standing = well
    await clock.advance(3)
    await lookup.refresh()
    assert lookup.verdicts == {"old": Target(3, 1_048_588)}
    assert not lookup.unavailable()
    await clock.advance(10)
    brokers.standing = [(leader, [1])] * 3
    lookup.doubt()
    assert await resolved(lookup, clock) == waits_s


async def test_a_partition_that_may_soon_be_well_holds_up_no_housekeeping() -> None:
    brokers, clock = Brokers([NEW, NEW], [NEW, NEW]), ManualClock()
    lookup = TopicLookup(brokers, Topics(), "*", clock)  # type: ignore[arg-type]
    brokers.standing = [(1, [1])] * 3
    lookup.want(["old"])
    await lookup.refresh()
    assert lookup.verdicts == {}
    await clock.advance(2)
    await lookup.refresh()
    assert lookup.unavailable()


async def test_a_partition_whose_leader_lacked_replicas_is_believed_to_be_well_after_10_s() -> None:
    """Brokers hear of it later, and a transaction with it would not end."""
    brokers, clock = Brokers([NEW, NEW], [NEW, NEW]), ManualClock()
    lookup = TopicLookup(brokers, Topics(), "*", clock)  # type: ignore[arg-type]
    lookup.set_aside([("old", 2)])
    assert await resolved(lookup, clock) == 0
    assert lookup.unavailable() == {"old": {2: Lack(19, ())}}
    assert lookup.words == {"old": "partition 2: NOT_ENOUGH_REPLICAS"}
    await clock.advance(10)
    await lookup.refresh()
    assert not lookup.unavailable()


async def test_a_broker_that_is_away_costs_its_time_once() -> None:
    """Another partition that lacks it, of any topic, is not waited for again."""
    brokers, clock = Brokers([NEW, NEW], [NEW, NEW]), ManualClock()
    lookup = TopicLookup(brokers, Topics(), "*", clock)  # type: ignore[arg-type]
    brokers.standing = [(1, [1, 2]), (1, [1])]
    lookup.set_aside([("old", 1)])
    assert await resolved(lookup, clock, "old") == 0
    brokers.standing = [(-1, [1])] * 3
    assert await resolved(lookup, clock, "new") == 0
    assert list(lookup.unavailable()) == ["old", "new"]
