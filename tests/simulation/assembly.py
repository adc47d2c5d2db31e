"""
How a worker process is put together: the one module that knows it.

    shipped    Owner, Follower, Firing, RequestReader, TimerStore, KafkaSender, EpochCheck, EndOffsets, KafkaReplies,
               TopicLookup, and all of `core`
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

from kafka_timers.core import backlog
from kafka_timers.core.callbacks import Target
from kafka_timers.core.partition import tick_second
from kafka_timers.core.wire import FORMAT
from kafka_timers.settings import WorkerSettings
from kafka_timers.worker import sender as sender_module
from kafka_timers.worker.end_offsets import EndOffsets
from kafka_timers.worker.kafka_ports import KafkaLogBounds
from kafka_timers.worker.metrics import WorkerMetrics
from kafka_timers.worker.outbox import KafkaReplies
from kafka_timers.worker.owner import Owner
from kafka_timers.worker.prebuild import ByteBudget
from kafka_timers.worker.priority import PriorityGate
from kafka_timers.worker.reader import RequestReader
from kafka_timers.worker.sender import KafkaSender
from kafka_timers.worker.shared import Ports
from kafka_timers.worker.slices import Rejects
from kafka_timers.worker.store import destroy
from kafka_timers.worker.targets import TopicLookup
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
        yield
        _running.clear()


def _producer(**options: Any) -> Producer:
    process = _running[PROCESS.get()]
    return Producer(process.kafka, process.network, process.faults, **options)


class DiskStores:
    """The stores of one worker, on its disk."""

    def __init__(self, process: "Process") -> None:
        self._disk = process.disk
        # A disk whose process was killed goes on in another folder.
        self._data_dir = process.disk.folder
        self._memory = SmallMemory()

    def open(self, number: int) -> DiskStore:
        """Open the store of partition *number*."""
        return DiskStore(self._folder(number), b"simulated/%d" % number, self._memory, self._disk)

    def destroy(self, number: int) -> None:
        """Remove the store of partition *number*."""
        destroy(self._folder(number))

    def _folder(self, number: int) -> Path:
        return self._data_dir / str(number)


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
        self.loop, self.kafka, self.network, self.faults, self.disk = loop, kafka, network, faults, disk
        self.owners: dict[int, Owner] = {}
        self.format = FORMAT
        # Why the process has ended itself.
        self.gave_up: list[str] = []
        self.metrics = WorkerMetrics()
        self._tasks: list[asyncio.Task[None]] = []
        self._assignment: asyncio.Task[None] | None = None
        self._context = copy_context()
        self._context.run(PROCESS.set, name)
        _running[name] = self
        self._ports = self._context.run(self._connect, f"{seed}/{name}" if seed is not None else None, settings)
        self.run(self._ports.reader.run())
        self.run(self._keep_house())

    def _connect(self, seed: object, settings: dict[str, Any]) -> Ports:
        kafka, network, faults, clock = self.kafka, self.network, self.faults, Clock(self.loop)
        configured = WorkerSettings(data_dir=str(self.disk.folder), **settings)
        gate = PriorityGate()
        self.stores = DiskStores(self)
        self.request_log = RequestLog(kafka, network, faults, seed)
        reader = RequestReader(self.request_log, gate)
        topics = TopicLookup(cast(Any, Admin(kafka, network, faults)), kafka.own, "*", clock)
        self._lookup = topics
        self.answers = Answers(kafka, network, faults, request_timeout_ms=_REPLY_MS)
        own = {name: Target(1, kafka.topics[name].bytes_max) for name in (kafka.own.rejected, kafka.own.replies)}
        bounds = KafkaLogBounds(cast(Any, Ends(kafka, network, faults)), kafka.own.requests)
        return Ports(
            settings=configured,
            names=kafka.own,
            partitions=kafka.topics[kafka.own.requests].partitions,
            reader=reader,
            bounds=bounds,
            ends=EndOffsets(bounds, lambda: reader.numbers),
            seals=SealLog(kafka, network, faults, seed),
            new_sender=lambda number: KafkaSender(configured, number, kafka.own.sealed),
            stores=self.stores,
            callback_topics=topics,
            rejects=Rejects(kafka.own.rejected, own[kafka.own.rejected], kafka.own.requests),
            replies=KafkaReplies(
                cast(Any, self.answers), (kafka.own.replies, own[kafka.own.replies]), topics, self.metrics
            ),
            budget=ByteBudget(configured.arm_bytes),
            gate=gate,
            metrics=self.metrics,
            clock=clock,
            name=self.name,
            format=lambda: self.format,
            give_up=self.gave_up.append,
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
                await self._lookup.refresh()
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
        self.owners = {number: Owner(number, self._ports) for number in numbers}

    def tick(self, number: int, second: int, appended_ms: int) -> None:
        """Take a tick of partition *number*."""
        if owner := self.owners.get(number):
            usable = tick_second(second, appended_ms, self._ports.settings.max_clock_skew_s)
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
        self._ports.ends.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.answers.stop()
        self._tasks.clear()
        self._assignment = None
        # Whoever still knows this process must not keep alive what nobody has looked at.
        del self._ports
