"""The coordinator of transactions at moments that a whole worker meets seldom."""

from collections.abc import Iterator
from typing import Any, cast

import pytest

from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.coordinator import Coordinator
from simulation.assembly import patched
from simulation.cluster import Brokers
from simulation.faults import Faults
from simulation.kafka import Kafka
from simulation.loop import SeededLoop
from simulation.network import Network


class Scene:
    """A cluster, and coordinators of one transactional id."""

    def __init__(self) -> None:
        self.loop = SeededLoop()
        self.kafka, self.network = Kafka(self.loop, 1, lambda: 0.0), Network(self.loop)

    def coordinator(self) -> Coordinator:
        """Return what talks to the coordinator, for another process each."""
        return Coordinator(Cluster(cast(Any, Brokers(self.kafka, self.network, Faults()))), "t", 10.0, "lane")


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    with patched():
        yield scene
    scene.loop.close()


@pytest.mark.parametrize("version", [1, 2])
def test_a_producer_whose_later_epoch_is_not_told_is_still_the_one(scene: Scene, version: int) -> None:
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
        # By that it writes on, and what it wrote with the epoch before is refused.
        scene.kafka.of("t", coordinator.identity.epoch, joins=("callbacks", 0))

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
