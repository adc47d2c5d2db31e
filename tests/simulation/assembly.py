"""
How a worker process is put together: the one module that knows it.

    shipped    Owner, RequestReader, TimerStore, Sender, Lease, Fences, Replies, CallbackTopics, and all of `core`
    modelled   what is in `ports`, `producers` and `disk`
"""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import Any, cast
from unittest import mock

from kafka_timers.core import partition as backlog
from kafka_timers.core.partition import tick_second
from kafka_timers.core.verdicts import Target
from kafka_timers.settings import WorkerSettings
from kafka_timers.worker import owner as owner_module
from kafka_timers.worker import sender as sender_module
from kafka_timers.worker.metrics import WorkerMetrics
from kafka_timers.worker.outbox import Replies
from kafka_timers.worker.owner import Fences, Ledger, Owner, Shared
from kafka_timers.worker.prebuild import Room
from kafka_timers.worker.priority import Rush
from kafka_timers.worker.reader import RequestReader
from kafka_timers.worker.slices import Rejects
from kafka_timers.worker.targets import CallbackTopics
from simulation.disk import Disk, DiskStore, SmallMemory
from simulation.faults import Faults
from simulation.kafka import Kafka
from simulation.loop import PROCESS, SeededLoop
from simulation.network import Network
from simulation.ports import Admin, Ends, RequestLog, SealLog
from simulation.producers import Answers, Producer

# As in `worker.process`.
HAND_OVER_S = 2.0
_REPLY_MS = 4_000
# Twice as long as there, since it is a fifth of what runs otherwise.
_HOUSEKEEPING_S = 1.0

_running: dict[str, "Process"] = {}


@contextmanager
def patched() -> Iterator[None]:
    """Have owners make their producers and stores of what stands in for them, of whichever process they are of."""
    with ExitStack() as stack:
        # Two offsets to a chunk, so that a history of some dozens of requests has several.
        stack.enter_context(mock.patch.object(backlog, "CHUNK_BITS", 1))
        stack.enter_context(mock.patch.object(sender_module, "AIOKafkaProducer", _producer))
        stack.enter_context(mock.patch.object(owner_module, "TimerStore", _store))
        yield
        _running.clear()


def _producer(**options: Any) -> Producer:
    process = _running[PROCESS.get()]
    return Producer(process.kafka, process.network, process.faults, **options)


def _store(folder: Path, identity: bytes, memory: SmallMemory) -> DiskStore:
    process = _running[PROCESS.get()]
    return DiskStore(folder, identity, memory, process.disk, closes_readers=process.closes_stores)


class Clock:
    """The clock of a host, which is that of the loop."""

    def __init__(self, loop: SeededLoop) -> None:
        self._loop = loop

    def wall_s(self) -> float:
        """Return UNIX time in seconds."""
        return self._loop.wall_s

    def elapsed_s(self) -> float:
        """Return monotonic seconds."""
        return self._loop.time()

    async def sleep_until(self, wall_s: float) -> None:
        """Return once `wall_s()` has reached *wall_s*."""
        await asyncio.sleep(wall_s - self.wall_s())


class Process:
    """
    A worker process, from its start until it is stopped or killed.

    Args:
        name: no other process of the history has it.
        loop: that all runs on.
        kafka: that it works for.
        network: the way there.
        faults: what goes wrong.
        disk: its own.
        seed: of what its clients draw; None draws nothing.
        settings: of the worker.

    Attributes:
        owners: of the partitions that it believes to own.
        closes_stores: see `simulation.faults.CLOSES_STORES`.
    """

    def __init__(
        self,
        name: str,
        loop: SeededLoop,
        kafka: Kafka,
        network: Network,
        faults: Faults,
        disk: Disk,
        seed: object = None,
        **settings: Any,
    ) -> None:
        self.name = name
        self.closes_stores = False
        self.loop, self.kafka, self.network, self.faults, self.disk = loop, kafka, network, faults, disk
        self.owners: dict[int, Owner] = {}
        self.metrics = WorkerMetrics()
        self._tasks: list[asyncio.Task[None]] = []
        self._assignment: asyncio.Task[None] | None = None
        self._context = copy_context()
        self._context.run(PROCESS.set, name)
        _running[name] = self
        self._shared = self._context.run(self._connect, f"{seed}/{name}" if seed is not None else None, settings)
        self.run(self._shared.reader.run())
        self.run(self._keep_house())

    def _connect(self, seed: object, settings: dict[str, Any]) -> Shared:
        kafka, network, faults, clock = self.kafka, self.network, self.faults, Clock(self.loop)
        configured = WorkerSettings(data_dir=str(self.disk.folder), **settings)
        rush = Rush()
        self.request_log = RequestLog(kafka, network, faults, seed)
        reader = RequestReader(cast(Any, self.request_log), rush)
        targets = CallbackTopics(cast(Any, Admin(kafka, network, faults)), kafka.own, "*", clock)
        self.answers = Answers(kafka, network, faults, request_timeout_ms=_REPLY_MS)
        own = {name: Target(1, kafka.topics[name].bytes_max) for name in (kafka.own.rejected, kafka.own.replies)}
        return Shared(
            settings=configured,
            topics=kafka.own,
            partitions=kafka.topics[kafka.own.requests].partitions,
            reader=reader,
            fences=Fences(cast(Any, Ends(kafka, network, faults)), kafka.own.requests, lambda: reader.numbers),
            ledger=cast(Ledger, SealLog(kafka, network, faults, seed)),
            targets=targets,
            rejects=Rejects(kafka.own.rejected, own[kafka.own.rejected], kafka.own.requests),
            replies=Replies(
                cast(Any, self.answers), (kafka.own.replies, own[kafka.own.replies]), targets, self.metrics
            ),
            memory=SmallMemory(),
            room=Room(configured.arm_bytes),
            rush=rush,
            cluster="simulated",
            metrics=self.metrics,
            clock=clock,
            name=self.name,
        )

    def run(self, chore: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run *chore* as a part of this process."""
        task = self.loop.create_task(chore, context=self._context.copy())
        self._tasks.append(task)
        return task

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(_HOUSEKEEPING_S)
            for owner in self.owners.values():
                owner.show()
            try:
                await self._shared.targets.refresh()
            except Exception as error:
                if type(error).__module__ != "aiokafka.errors":
                    raise

    # --- what the group and the oscillator bring ---------------------------------------------------------------------

    def give_up(self) -> "asyncio.Task[None]":
        """Give all partitions up, as when the group is rebalanced."""
        return self.own([])

    def own(self, numbers: list[int]) -> "asyncio.Task[None]":
        """Own *numbers* and nothing else, once all that was said before is done."""
        self._assignment = self.run(self._own(self._assignment, numbers))
        return self._assignment

    async def _own(self, before: "asyncio.Task[None] | None", numbers: list[int]) -> None:
        if before is not None:
            await asyncio.wait([before])
        owners, self.owners = list(self.owners.values()), {}
        await asyncio.gather(*[owner.stop(HAND_OVER_S) for owner in owners])
        for owner in owners if self.closes_stores else ():
            owner._close()
        self.owners = {number: Owner(number, self._shared) for number in numbers}

    def tick(self, number: int, second: int, appended_ms: int) -> None:
        """Take a tick of partition *number*."""
        if owner := self.owners.get(number):
            usable = tick_second(second, appended_ms, self._shared.settings.max_clock_skew_s)
            if usable is not None:
                owner.tick(usable)

    def after(self, delay_s: float, what: str, *args: Any) -> None:
        """Call a method of this process after *delay_s*, or later where it is paused."""
        self.loop.call_later(delay_s, partial(getattr(self, what), *args), context=self._context.copy())

    @property
    def was_impatient(self) -> bool:
        """Whether a tick has not waited for all that was accepted before it."""
        return bool(self.metrics.fence_timeouts._value.get())

    def problems(self) -> list[str]:
        """Return what the owners say of themselves."""
        return [problem for owner in self.owners.values() if (problem := owner.problem())]

    def deaths(self) -> list[str]:
        """Return what the process would have ended of: of what runs in it, nothing may raise."""
        ended = [task for task in self._tasks if task.done() and not task.cancelled()]
        return [f"{self.name} has died of {error!r}" for task in ended if (error := task.exception())]

    async def end(self) -> None:
        """End what runs beside the owners, and let go of all."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.answers.stop()
        self._tasks.clear()
        self._assignment = None
        # Whoever still knows this process must not keep alive what nobody has looked at.
        del self._shared
