"""One history: a cluster, workers with disks, a group, an oscillator, clients, and faults."""

import asyncio
import gc
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from simulation.assembly import patched
from simulation.audit import PromiseError
from simulation.clients import Clients, create_topics
from simulation.disk import scratch
from simulation.faults import KINDS, Faults
from simulation.group import Group
from simulation.kafka import Kafka
from simulation.loop import SeededLoop, StandstillError
from simulation.nemesis import TROUBLES, Nemesis
from simulation.network import Network
from simulation.promises import check, check_fences, check_readable, found_in, left_in

# P9: virtual seconds after the end of all faults in which all has fired. The longest waits behind it: a request that is
# never answered (10 s), a session after having been fenced (6 s), the pauses between attempts (5 s).
P9_S = 60.0
_LOOK_S = 0.5
# A tick may be fooled by a leader that was cut off from the others; the one after the next must not.
_LATE_S = 2


class World:
    """
    One history.

    Args:
        loop: that it runs on.
        folder: for disks.
        seed: of every choice; None is for told stories, in which nothing happens by chance.
        kinds: of faults that may happen by chance.
        partitions: of the service.
        trace: gets a line for each thing that happens.
        settings: of the workers.
    """

    def __init__(
        self,
        loop: SeededLoop,
        folder: Path,
        seed: object = None,
        *,
        kinds: frozenset[str] = frozenset(),
        partitions: int = 1,
        trace: Callable[[str], None] | None = None,
        **settings: Any,
    ) -> None:
        self.loop, self.seed, self._trace = loop, seed, trace
        self.kinds, self.settings = kinds, settings
        markers = Random(f"{seed}/markers")
        self.kafka = Kafka(loop, partitions, lambda: 0.0 if seed is None else markers.choice((0.0, 0.0, 0.01, 0.3)))
        if seed is not None:
            self.kafka.transaction_version = Random(f"{seed}/transactions").choice((1, 2))
        create_topics(self.kafka)
        self.faults = Faults(seed, kinds)
        self.network = Network(loop, seed)
        self.network.loses = lambda: self.faults.drawn("answer_is_lost")
        self.group = Group(loop, self.kafka, self.network, self.faults, folder, seed, self.say, **settings)
        self.clients = Clients(loop, self.kafka, seed)
        self.nemesis = Nemesis(loop, self.kafka, self.network, self.group, self.clients, seed, self.say)
        self.surprises: list[str] = []
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def is_traced(self) -> bool:
        """Whether anybody wants to be told."""
        return self._trace is not None

    def say(self, what: str) -> None:
        """Print an event."""
        if self._trace:
            self._trace(f"{self.loop.time():8.3f}  {what}")

    def begin(self, *, troubled: Callable[[], bool] = lambda: False) -> None:
        """Let the group and the oscillator run."""
        for chore in (self.group.run(), self.group.oscillate(troubled)):
            self._tasks.append(asyncio.ensure_future(chore))

    async def live(self) -> None:
        """Live a random history."""
        rng = Random(f"{self.seed}/world")
        until_s = rng.choice((5.0, 8.0, 12.0))
        is_quiet = rng.random() < 0.1
        if is_quiet:
            self.faults.end()
        else:
            self.nemesis.draw(self.kinds)
        self.begin(troubled=lambda: not is_quiet and self.loop.time() < until_s)
        for host in "abc"[: rng.choice((1, 2, 2, 3))]:
            self.group.start(host)
        await asyncio.gather(self.clients.run(until_s), self.nemesis.run(until_s))
        await self.finish()

    async def finish(self, limit_s: float = P9_S) -> None:
        """
        End all faults, wait until everything has fired, and check the promises.

        Raises:
            PromiseError: one does not hold.
        """
        self.say("-- faults have ended")
        self.faults.end()
        self.clients.end()
        self.nemesis.end()
        end_s = self.loop.time() + limit_s
        while (left := left_in(self.kafka)) or not self.group.is_settled:
            if self.loop.time() > end_s:
                raise PromiseError(f"P9: still waiting after {limit_s:g} s: {left} {self.problems()}")
            await asyncio.sleep(_LOOK_S)
        for found in found_in(self.kafka):
            check(found)
            if not any(process.was_impatient for process in self.group.processes):
                stable: dict[int, int] = {}
                late_s = _LATE_S if self.kafka.requests(found.number).was_cut_off else 0
                for tick in self.group.ticks[found.number]:
                    appended_s = tick.appended_ms // 1000
                    # Without a delay a tick's own second counts, however late it was appended: its scan asks then.
                    stable.setdefault(appended_s if late_s else min(tick.second, appended_s), tick.stable)
                check_fences(found, stable, late_s)
                if not late_s:
                    check_readable(found, self.kafka.requests(found.number).readable_ms)
        if surprises := [*self.surprises, *self._deaths()]:
            raise PromiseError(f"nobody expects: {surprises}")
        for process in self.group.members:
            await asyncio.wait([process.give_up()])
            if left := process.disk.open_stores():
                raise PromiseError(f"P9: a store is left open, nobody can take it over: {left}")

    def problems(self) -> list[str]:
        """Return the problems that living workers report, and why the driver of the history has ended."""
        ended = [task for task in self._tasks if task.done() and not task.cancelled()]
        return [
            *[problem for process in self.group.members for problem in process.problems()],
            *[repr(error) for task in ended if (error := task.exception())],
        ]

    def _deaths(self) -> list[str]:
        return [death for process in self.group.members for death in process.deaths()]

    async def end(self) -> None:
        """End everything, however the history went."""
        self.faults.end()
        self.nemesis.end()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.group.bury()
        for process in self.group.processes:
            await asyncio.wait([process.give_up()])
            await process.end()


class _Listener(logging.Handler):
    """Hands the worker's log lines to the trace, and keeps exceptions that only a mistake raises."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        self._world.say(f"{record.name.rpartition('.')[2]}: {record.getMessage()}")
        error = record.exc_info[1] if record.exc_info else None
        # RocksDB's are plain Exceptions.
        if error is not None and type(error) is not Exception:
            self._world.surprises.append(repr(error))


@contextmanager
def history(
    seed: object = None, trace: Callable[[str], None] | None = None, **options: Any
) -> Iterator[tuple[SeededLoop, World]]:
    """
    Yield a world that has not begun; ends it, and exceptions that nobody has looked at are errors then.

    Args:
        seed: see `World`.
        trace: the same.
        options: the same.

    Raises:
        PromiseError: an exception was never looked at.
    """
    loop = SeededLoop(seed)
    with _no_collector(), scratch() as folder, patched():
        world = World(loop, folder, seed, trace=trace, **options)
        with _listening(world):
            try:
                yield loop, world
            finally:
                loop.run_until_complete(world.end())
                loop.close()
        del world
        gc.collect()
    if loop.complaints:
        raise PromiseError(f"nobody has looked at: {loop.complaints}")


@contextmanager
def _no_collector() -> Iterator[None]:
    """Turn off garbage collection: workers have made it rare, and a seed could not repeat its moments."""
    collects = gc.isenabled()
    gc.disable()
    # Earlier objects are looked at by no collection of this history, which costs a tenth of it otherwise.
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        if collects:
            gc.enable()


@contextmanager
def _listening(world: World) -> Iterator[None]:
    log, listener = logging.getLogger("kafka_timers"), _Listener(world)
    before = log.level, log.propagate
    log.addHandler(listener)
    log.setLevel(logging.INFO if world.is_traced else logging.WARNING)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(listener)
        log.setLevel(before[0])
        log.propagate = before[1]


ALL = frozenset((*KINDS, *TROUBLES))


def run_history(seed: int, *, trace: Callable[[str], None] | None = None, kinds: frozenset[str] = ALL) -> World:
    """
    Live one random history, the same for the same arguments.

    Args:
        seed: of every choice.
        trace: gets a line for each thing that happens.
        kinds: of faults and troubles that may happen by chance.

    Raises:
        PromiseError: a promise does not hold.
    """
    rng = Random(f"{seed}/settings")
    settings = {
        "slice_rows": rng.choice((1, 1, 2, 3, 1000)),
        "arm_bytes": rng.choice((0, 300, 1 << 20, 1 << 20)),
        "seal_every_s": rng.choice((1, 2, 5)),
        "fence_wait_s": rng.choice((0.3, 5.0, 5.0)),
        # What a sweep leaves out fires within a quarter of this.
        "keep_s": 4,
    }
    partitions = rng.choice((1, 1, 2, 3))
    with history(seed, trace, kinds=kinds, partitions=partitions, **settings) as (loop, world):
        world.say(f"history {seed}: {partitions} partitions, {settings}")
        try:
            loop.run_until_complete(world.live())
        except StandstillError:
            raise PromiseError("P9: nothing can ever happen again") from None
    return world


if __name__ == "__main__":
    run_history(int(sys.argv[1]), trace=print)
