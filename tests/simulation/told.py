"""Told stories: a history in which nothing happens by chance, and a test sets each event."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from kafka_timers.core.wire import Reply, last_second_of
from kafka_timers.worker.placement import spread
from simulation.assembly import Process
from simulation.clients import Wish, ask
from simulation.log import Record, Transaction
from simulation.loop import EPOCH_S, SeededLoop
from simulation.promises import found_in
from simulation.world import World, history

_COORDINATOR = 4


class Story:
    """
    A story; moments are seconds since its beginning, as are the seconds of its timers.

    Attributes:
        world: all that is in it.
        kafka: its cluster.
        faults: the faults of the story.
    """

    def __init__(self, loop: SeededLoop, world: World) -> None:
        self._loop, self.world = loop, world
        self.kafka, self.faults, self.network = world.kafka, world.faults, world.network
        self._asked = 0
        # It leads nothing, so all else goes on without it.
        self.kafka.coordinator = _COORDINATOR
        loop.run_until_complete(self._begin())

    async def _begin(self) -> None:
        self.world.begin()

    @property
    def now_s(self) -> float:
        """Seconds since the beginning."""
        return self._loop.wall_s - EPOCH_S

    def until(self, moment_s: float) -> None:
        """Let everything run until *moment_s*."""
        self._loop.run_until_complete(_sleep(moment_s - self._loop.time()))

    def join(self, host: str) -> Process:
        """Start a worker that joins the group, which then assigns the partitions."""
        process = self.world.group.start(host)
        self.rebalance()
        return process

    def leave(self, process: Process) -> None:
        """Stop *process*; its disk stays."""
        self._loop.run_until_complete(asyncio.wait([process.give_up()]))
        self.world.group.members.remove(process)

    def end(self, process: Process) -> None:
        """End a *process* that owns nothing any more."""
        self._loop.run_until_complete(process.end())
        self.world.group.processes.remove(process)

    def start(self, host: str, *numbers: int) -> Process:
        """Start a worker that owns *numbers*."""
        process = self.world.group.start(host)
        process.own(list(numbers))
        return process

    def rebalance(self) -> None:
        """Assign the partitions to the members as the workers' group does."""
        self._loop.run_until_complete(self._rebalance())

    async def _rebalance(self) -> None:
        members = {process.name: process for process in self.world.group.members}
        told = {name: process.member for name, process in members.items()}
        await asyncio.wait([process.joined for process in members.values()])
        await asyncio.wait([process.give_up() for process in members.values()])
        # Members tell of their stores once they have given up what they own.
        told = {name: replace(process.member, owns=told[name].owns) for name, process in members.items()}
        for name, numbers in spread(len(self.world.group.ticks), told).items():
            members[name].own(numbers)

    def request(
        self, second: int, *, number: int = 0, transaction: Transaction | None = None, more: Any = None, **wish: Any
    ) -> Record:
        """Ask for a timer; *more* are fields of the Future that a `Wish` does not have."""
        self._asked += 1
        payload = b"payload %d" % self._asked
        due = second and EPOCH_S + second
        return ask(self.kafka, number, Wish(due, payload=payload, **wish), transaction=transaction, **(more or {}))

    def cancel(self, timer_id: bytes, *, number: int = 0, transaction: Transaction | None = None) -> Record:
        """Cancel a timer, and ask for an answer."""
        return self.request(0, number=number, transaction=transaction, timer_id=timer_id, is_cancel=True, asks=True)

    def coordinator_is_silent(self, until_s: float) -> None:
        """Freeze the broker that coordinates transactions."""
        node = self.kafka.coordinator
        self.network.freeze(node)
        self._loop.outside(until_s - self._loop.time(), self.network.thaw, node)

    def finish(self) -> None:
        """See `World.finish`."""
        self._loop.run_until_complete(self.world.finish())

    def fired(self, number: int = 0) -> list[tuple[int, float]]:
        """Return of all that has fired which record it was, of those that were asked for, and when."""
        callbacks = found_in(self.kafka)[number].callbacks
        asked = [record.offset for record in self.kafka.requests(number).records if record.about is not None]
        return sorted(
            (asked.index(each.offset), each.record.timestamp / 1000 - EPOCH_S)
            for each in callbacks
            if not each.is_reject
        )

    def sealed(self, number: int = 0) -> list[tuple[int, bool]]:
        """Return of each seal its last second, and whether it closes that."""
        return [
            (last_second_of(seal) - EPOCH_S, not seal.HasField("through"))
            for seal in found_in(self.kafka)[number].seals
        ]

    def answers(self, number: int = 0) -> list[str]:
        """Return the answers, in their order."""
        return [Reply.Outcome.Name(reply.outcome) for reply in found_in(self.kafka)[number].replies]


async def _sleep(for_s: float) -> None:
    await asyncio.sleep(for_s)


@contextmanager
def told(*, partitions: int = 1, trace: Callable[[str], None] | None = print, **settings: Any) -> Iterator[Story]:
    """Yield a story; *settings* are those of the workers. Events are printed: pytest shows them when it fails."""
    options = {"seal_every_s": 1, "arm_bytes": 0} | settings
    with history(trace=trace, partitions=partitions, **options) as (loop, world):
        yield Story(loop, world)
