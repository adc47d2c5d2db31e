"""
The group of workers and the oscillator: the owners of partitions, and their ticks.

A rebalance is eager, as Faust's is: all give their partitions up, then all get their own. A worker that is paused, or
does not hear of it, goes on as an owner for as long as nobody tells.
"""

import asyncio
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from simulation.assembly import Process
from simulation.disk import Disk
from simulation.faults import Faults
from simulation.kafka import Kafka
from simulation.log import Record
from simulation.loop import EPOCH_S, SeededLoop
from simulation.network import Network

_REBALANCE_S = 6.0


class Tick(NamedTuple):
    """A tick, and how far the request log of a partition could be read when it was appended to `oscillator`."""

    second: int
    appended_ms: int
    stable: int


class Group:
    """
    All workers of a history.

    Args:
        loop: that they run on.
        kafka: that they work for.
        network: the way there.
        faults: the faults inside of them.
        folder: for their disks.
        seed: of all choices.
        say: takes a line for each change.
        settings: of the workers.

    Attributes:
        members: alive, and in the group.
        processes: all that ever were.
        ticks: by partition of the request log, all that any partition of `oscillator` has: a worker asks for all of its
            partitions where their logs end when a second comes to the first of them.
    """

    def __init__(
        self,
        loop: SeededLoop,
        kafka: Kafka,
        network: Network,
        faults: Faults,
        folder: Path,
        seed: object,
        say: Callable[[str], None],
        **settings: Any,
    ) -> None:
        self._loop, self._kafka, self._network, self._faults = loop, kafka, network, faults
        self._folder, self._seed, self._say, self._settings = folder, seed, say, settings
        self._rng = random.Random(f"{seed}/group")
        self.members: list[Process] = []
        self.processes: list[Process] = []
        self._dead: set[str] = set()
        self._disks: dict[str, Disk] = {}
        self._partitions = kafka.topics[kafka.own.requests].partitions
        self.ticks: dict[int, list[Tick]] = {number: [] for number in range(self._partitions)}
        self._wanted = asyncio.Event()
        self._is_rebalancing = False

    @property
    def disks(self) -> list[Disk]:
        """The disks of all workers."""
        return list(self._disks.values())

    def disk_of(self, process: Process) -> Disk:
        """Return the disk of *process*."""
        return process.disk

    # --- members -----------------------------------------------------------------------------------------------------

    def start(self, host: str) -> Process:
        """Start a worker on *host*, with its disk."""
        disk = self._disks.get(host)
        if disk is None:
            disk = self._disks[host] = Disk(self._folder / host, self._faults, self._seed)
        name = f"{host}{sum(process.name[0] == host for process in self.processes) + 1}"
        process = Process(
            name, self._loop, self._kafka, self._network, self._faults, disk, self._seed, **self._settings
        )
        disk.killed = partial(self.kill, process)
        self.processes.append(process)
        self.members.append(process)
        self.rebalance_soon()
        return process

    def kill(self, process: Process, *, keeps: bool = True, old: bool = False, for_s: float = 0.0) -> None:
        """Kill *process*, as power loss does, and start another one on its disk after *for_s*."""
        if process.name in self._dead:
            return
        self._leave(process)
        self._loop.pause(process.name)
        self._dead.add(process.name)
        process.disk.lose_power(keeps=keeps, old=old)
        self._say(f"{process.name} is down; its disk is {'an old one' if old else 'kept' if keeps else 'lost'}")
        self._loop.outside(for_s, self.start, process.name[0])

    def pause(self, process: Process, for_s: float) -> None:
        """Pause *process*, and give its partitions to the others."""
        if process.name in self._dead:
            return
        self._leave(process)
        self._loop.pause(process.name)
        self._say(f"{process.name} is paused")
        self._loop.outside(for_s, self._resume, process)

    def deafen(self, process: Process, for_s: float) -> None:
        """Give the partitions of *process* to the others; it hears of that after *for_s*."""
        self._leave(process)
        self._say(f"{process.name} is deaf")
        self._loop.outside(for_s, self._rejoin, process)

    def _leave(self, process: Process) -> None:
        if process in self.members:
            self.members.remove(process)
            self.rebalance_soon()

    def _resume(self, process: Process) -> None:
        if process.name not in self._dead:
            self._loop.resume(process.name)
            # It hears of the events a moment later.
            self._loop.outside(self._rng.choice((0.0, 0.3, 1.5)), self._rejoin, process)

    def _rejoin(self, process: Process) -> None:
        if process.name not in self._dead and process not in self.members:
            self.members.append(process)
            self.rebalance_soon()

    def resume_all(self) -> None:
        """Have all go on, and hear of everything, but those that were killed."""
        for process in self.processes:
            if process.name not in self._dead:
                self._loop.resume(process.name)
                self._rejoin(process)

    def bury(self) -> None:
        """Let those that were killed run, so that they can be ended."""
        for process in self.processes:
            self._loop.resume(process.name)

    # --- owners ------------------------------------------------------------------------------------------------------

    def rebalance_soon(self) -> None:
        """Assign partitions anew, as soon as the last time is over; in a told story the story does."""
        if self._seed is not None:
            self._wanted.set()

    @property
    def is_settled(self) -> bool:
        """Whether nobody waits for partitions."""
        return not self._wanted.is_set() and not self._is_rebalancing

    async def run(self) -> None:
        """Rebalance whenever that is wanted, until cancelled."""
        while True:
            await self._wanted.wait()
            await asyncio.sleep(self._rng.choice((0.0, 0.1, 0.5)))
            self._wanted.clear()
            self._is_rebalancing = True
            await self._rebalance()
            self._is_rebalancing = False

    async def _rebalance(self) -> None:
        members = list(self.members)
        tasks = [member.give_up() for member in members]
        if tasks and self._rng.random() < 0.8:
            # A worker that does not answer in time is left behind, with its running work.
            await asyncio.wait(tasks, timeout=_REBALANCE_S)
        shares: dict[Process, list[int]] = {member: [] for member in members}
        for number in range(self._partitions if members else 0):
            shares[self._rng.choice(members)].append(number)
        self._say(f"assigned: { {member.name: numbers for member, numbers in shares.items()} }")
        for member, numbers in shares.items():
            member.own(numbers)

    # --- the oscillator ----------------------------------------------------------------------------------------------

    async def oscillate(self, troubled: Callable[[], bool]) -> None:
        """Tick once a second, until cancelled; where *troubled* holds, with gaps, repetitions and leaps."""
        second = int(self._loop.wall_s)
        while True:
            second += 1
            await asyncio.sleep(max(second - EPOCH_S - self._loop.time(), 0))
            dice = self._rng.random() if troubled() else 1.0
            if dice < 0.05:
                continue
            if dice < 0.1:
                self.tick(second - self._rng.randint(1, 2))
            if dice < 0.12:
                self.tick(second + 3600)
            self.tick(second + 1 if dice < 0.14 else second)

    def tick(self, second: int) -> None:
        """Append a tick to each partition whose leader takes any."""
        self._say(f"tick {second}")
        logs = [self._kafka.ticks(number) for number in self.ticks]
        silent = {*self._network.frozen, *self._network.down}
        living = [log for log in logs if log.leader not in silent]
        for log in living:
            log.append(Record(b"%d" % second, b"1"), self._kafka.now_ms)
        for number, ticks in self.ticks.items() if living else ():
            ticks.append(Tick(second, self._kafka.now_ms, self._kafka.requests(number).stable))
