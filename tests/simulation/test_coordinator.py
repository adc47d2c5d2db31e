"""Coordinators, of transactions and of groups, at moments that a whole worker meets seldom."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, cast

import pytest

from kafka_timers.broker.bounds import LogBounds
from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.coordinator import Coordinator
from kafka_timers.broker.coordinator_calls import ExpiredIdError, PerhapsFencedError
from kafka_timers.broker.offsets import GroupOffsets
from kafka_timers.broker.producer import Producer
from simulation.assembly import patched
from simulation.cluster import Brokers
from simulation.faults import Faults
from simulation.kafka import NODES, Kafka
from simulation.loop import SeededLoop
from simulation.network import Network


class Scene:
    """A cluster, and coordinators of one transactional id."""

    def __init__(self) -> None:
        self.loop = SeededLoop()
        self.kafka, self.network = Kafka(self.loop, 1, lambda: 0.0), Network(self.loop)

    def coordinator(self) -> Coordinator:
        """Return the code that talks to the coordinator, for another process each."""
        return Coordinator(self.cluster(), "t", 10.0, "lane")

    def producer(self) -> Producer:
        """Return one that commits offsets, for another process each."""
        return Producer(self.cluster(), "t", 10.0, 4_096, "lane", "g")

    def cluster(self) -> Cluster:
        """Return the code that asks the brokers."""
        return Cluster(cast(Any, Brokers(self.kafka, self.network, Faults())))


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    with patched():
        yield scene
    scene.loop.close()


@pytest.mark.parametrize("version", [1, 2])
def test_a_producer_whose_later_epoch_is_not_told_is_still_the_current_one(scene: Scene, version: int) -> None:
    """The coordinator has written it, and the answer is lost: asked again, it tells the same."""
    scene.kafka.transaction_version = version
    coordinator = scene.coordinator()

    async def ask() -> None:
        await coordinator.init()
        losses = iter([True])
        scene.network.loses = lambda: next(losses, False)
        before = coordinator.identity
        assert await coordinator.is_held()
        assert coordinator.identity == (before.producer_id, before.epoch + 1)
        # With that it writes on, and its records with the epoch before are refused.
        scene.kafka.of("t", coordinator.identity.epoch, joins=("callbacks", 0))

    scene.loop.run_until_complete(ask())


async def held_across_coordinators(scene: Scene, coordinator: Coordinator) -> bool:
    """Tell what the producer is told if its coordinator dies between writing its later epoch and telling it."""

    def loses() -> bool:
        scene.network.loses = lambda: False
        scene.kafka.coordinator = 2
        return True

    scene.network.loses = loses
    return await coordinator.is_held()


def test_a_producer_whose_later_epoch_was_told_by_no_coordinator_before_is_the_current_one(scene: Scene) -> None:
    """The next one has the later epoch, and knows by it that it was asked for before."""
    scene.kafka.transaction_version = 2
    coordinator, other = scene.coordinator(), scene.coordinator()

    async def ask() -> None:
        await coordinator.init()
        for _ in range(2):
            assert await held_across_coordinators(scene, coordinator)
        scene.kafka.of("t", coordinator.identity.epoch, joins=("callbacks", 0))
        await other.init()
        assert not await coordinator.is_held()
        assert await other.is_held()

    scene.loop.run_until_complete(ask())


def test_in_the_first_protocol_such_a_producer_is_perhaps_shut_out(scene: Scene) -> None:
    """The next coordinator does not know whose the later epoch is. Nobody else was let in: a new start is enough."""
    scene.kafka.transaction_version = 1
    coordinator = scene.coordinator()

    async def ask() -> None:
        await coordinator.init()
        with pytest.raises(PerhapsFencedError, match="its answer before was lost"):
            await held_across_coordinators(scene, coordinator)
        await coordinator.init()
        assert await coordinator.is_held()

    scene.loop.run_until_complete(ask())


@pytest.mark.parametrize("version", [1, 2])
def test_a_producer_whose_next_one_has_a_new_id_is_shut_out(scene: Scene, version: int) -> None:
    """An id has 32,767 epochs. The producer that takes over when they are used up gets another id."""
    scene.kafka.transaction_version = version
    old = scene.coordinator()

    async def ask() -> None:
        await old.init()
        scene.kafka.identities["t"] = (old.identity.producer_id + 1, 0)
        with suppress(ExpiredIdError):
            assert not await old.is_held()
        with pytest.raises(ExpiredIdError):
            await old.end(is_commit=True)

    scene.loop.run_until_complete(ask())


def test_a_producer_that_was_shut_out_is_told_so_by_no_coordinator_of_before(scene: Scene) -> None:
    """One that was cut off from the others believes that it still is; it cannot write."""
    old, new = scene.coordinator(), scene.coordinator()

    async def ask() -> None:
        await old.init()
        scene.kafka.former_coordinator, scene.kafka.coordinator = scene.kafka.coordinator, 2
        await new.init()
        assert not await old.is_held()
        assert await new.is_held()

    scene.loop.run_until_complete(ask())


@pytest.mark.parametrize("version", [1, 2])
def test_a_coordinator_that_is_silent_is_waited_for_no_longer_than_it_is_the_one(scene: Scene, version: int) -> None:
    """Its connection is open, as that of a frozen broker; the next one is asked as soon as it is known."""
    scene.kafka.transaction_version = version
    coordinator = scene.coordinator()

    async def ask() -> float:
        await coordinator.init()
        scene.network.freeze(scene.kafka.coordinator)
        scene.loop.outside(0.3, setattr, scene.kafka, "coordinator", 2)
        asked_s = scene.loop.time()
        if version == 2:
            assert await coordinator.is_held()
        else:
            # The frozen one has raised the epoch, and nobody knows for which producer.
            with pytest.raises(PerhapsFencedError):
                await coordinator.is_held()
        return scene.loop.time() - asked_s

    assert scene.loop.run_until_complete(ask()) < 2.5


def test_a_leader_that_is_silent_is_waited_for_no_longer_than_it_leads(scene: Scene) -> None:
    """Its connection is open, as that of a frozen broker; its records go to the next one, and are there once."""
    scene.kafka.create("callbacks", 1)
    log, producer = scene.kafka.logs["callbacks", 0], scene.producer()

    async def send() -> float:
        await producer.start()
        for number in range(2):
            producer.begin()
            batch = producer.new_batch()
            batch.append(timestamp=0, key=None, value=b"%d" % number)
            began_s = scene.loop.time()
            producer.send(batch, "callbacks", 0)
            if number:
                scene.network.freeze(log.leader)
                scene.loop.outside(0.3, setattr, log, "leader", next(node for node in NODES if node != log.leader))
            await producer.commit()
        return scene.loop.time() - began_s

    assert scene.loop.run_until_complete(send()) < 2.5
    assert [record.value for record in log.committed()] == [b"0", b"1"]


def test_an_end_is_asked_of_no_silent_broker_for_longer_than_it_leads(scene: Scene) -> None:
    """As `test_a_leader_that_is_silent_is_waited_for_no_longer_than_it_leads`, for the first question of each tick."""
    log, cluster = scene.kafka.requests(0), scene.cluster()

    async def ask() -> float:
        await cluster.look_up([log.topic])
        scene.network.freeze(log.leader)
        scene.loop.outside(0.3, setattr, log, "leader", next(node for node in NODES if node != log.leader))
        asked_s = scene.loop.time()
        assert await LogBounds(cluster, log.topic).end(0) == log.end
        return scene.loop.time() - asked_s

    assert scene.loop.run_until_complete(ask()) < 2.5


async def commit(producer: Producer, offset: int) -> None:
    producer.begin()
    await producer.send_offsets("theirs", {0: offset})
    await producer.commit()


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("begun", [0, 1, 2])
def test_an_offset_is_believed_of_no_coordinator_of_before(scene: Scene, version: int, begun: int) -> None:
    """One that was cut off from the others tells the offset committed then; the records were passed on long ago."""
    scene.kafka.transaction_version = version
    first, second, third = (scene.producer() for _ in range(3))

    async def ask() -> None:
        await first.start()
        assert await first.committed("theirs", 0) is None
        await commit(first, 5)
        scene.kafka.offsets.cut_off(2)
        await second.start()
        assert await second.committed("theirs", 0) == (5, -1)
        await commit(second, 9)
        # The answer to a question for the offset alone, by the first one that finds it.
        believing = [GroupOffsets(scene.cluster(), "g", 10.0, "lane") for _ in range(3)]
        assert (5, -1) in [await offsets.committed("theirs", 0) for offsets in believing]
        scene.kafka.offsets.told_by_former.clear()
        # So that each broker is asked first once where the coordinator is.
        third_cluster = third._cluster
        for _ in range(begun):
            await third_cluster.refresh()
        await third.start()
        assert await third.committed("theirs", 0) == (9, -1)
        assert scene.kafka.offsets.told_by_former == []

    scene.loop.run_until_complete(ask())


@pytest.mark.parametrize("version", [1, 2])
def test_an_offset_is_proved_anew_when_the_coordinator_changes_in_between(scene: Scene, version: int) -> None:
    """The broker that has taken the proof is cut off before it is asked, and the answer is of its successor."""
    scene.kafka.transaction_version = version
    producer = scene.producer()

    async def ask() -> None:
        await producer.start()
        await commit(producer, 5)
        abort, aborted = producer.abort, list[int]()

        async def moving() -> None:
            await abort()
            if not aborted:
                # It is no coordinator any more and knows it.
                scene.kafka.offsets.coordinator = 2
            aborted.append(scene.kafka.offsets.coordinator)

        producer.abort = moving  # type: ignore[method-assign]
        assert await producer.committed("theirs", 0) == (5, -1)
        assert aborted == [2, 2]

    scene.loop.run_until_complete(ask())


@pytest.mark.parametrize("version", [1, 2])
def test_offsets_are_committed_and_told_when_any_answer_is_lost(scene: Scene, version: int) -> None:
    """
    Each question of a whole transaction in turn.

    A commit that was not answered may arrive yet; so the next transaction has a later epoch, by which it is refused.
    """
    scene.kafka.transaction_version = version

    async def ask() -> None:
        has_lost_one = set[bool]()
        for lost in range(14):
            producer, answers = scene.producer(), iter(range(lost + 1))
            await producer.start()
            scene.network.loses = lambda answers=answers, lost=lost: next(answers, None) == lost
            offsets, before = producer._offsets, producer.coordinator.identity
            await commit(producer, lost)
            assert producer.coordinator.identity != before or not offsets.link.unanswered
            has_lost_one.add(offsets.link.unanswered > 0)
            assert await producer.committed("theirs", 0) == (lost, -1)
        assert has_lost_one == {True, False}

    scene.loop.run_until_complete(ask())
