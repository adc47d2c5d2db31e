"""
How a worker process is put together: the one module that knows it.

    shipped    Owner, Follower, Firing, LogReader, TickReader, TimerStore, KafkaSender with its Producer and
               Coordinator, Cluster with Fetcher, LogBounds, SealLog; EndOffsets, KafkaReplies, TopicLookup, and all of
               `core`
    modelled   the parts in `cluster` (connections to brokers) and `disk`
"""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, cast
from unittest import mock

from aiokafka.errors import KafkaError

from kafka_timers.broker import cluster as brokers
from kafka_timers.broker import fetching, seals
from kafka_timers.broker.bounds import LogBounds
from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.fetching import Fetcher
from kafka_timers.broker.reading import TopicLog
from kafka_timers.broker.seals import SealLog
from kafka_timers.core import backlog, sweep
from kafka_timers.core.callbacks import Target
from kafka_timers.core.changes import Head
from kafka_timers.core.tick_clock import TickRead, tick_second
from kafka_timers.core.wire import FORMAT, number_in
from kafka_timers.errors import BrokerError
from kafka_timers.runtime.log_reader import LogReader
from kafka_timers.runtime.metrics import WorkerMetrics
from kafka_timers.runtime.outlet import Outlet
from kafka_timers.runtime.priority import PriorityGate
from kafka_timers.runtime.targets import TopicLookup
from kafka_timers.runtime.ticked_clock import TickedClock
from kafka_timers.runtime.ticks import TickReader
from kafka_timers.settings import WorkerSettings
from kafka_timers.worker import alone
from kafka_timers.worker.damage import destroy
from kafka_timers.worker.end_offsets import EndOffsets
from kafka_timers.worker.owner import Owner
from kafka_timers.worker.placement import Member
from kafka_timers.worker.prebuild import ByteBudget
from kafka_timers.worker.replies import KafkaReplies
from kafka_timers.worker.sender import KafkaSender
from kafka_timers.worker.shared import Ports
from kafka_timers.worker.store import TimerStore
from kafka_timers.worker.stores import head_in
from simulation.cluster import Brokers, Connection, hosts_of, parsed
from simulation.disk import Disk, DiskStore, SmallMemory
from simulation.faults import Faults
from simulation.kafka import Kafka
from simulation.loop import PROCESS, SeededLoop
from simulation.network import Network

# As in `processes.worker`.
HAND_OVER_S = 2.0
# Twice as long as there, since a fifth as much runs.
_HOUSEKEEPING_S, _WATCH_OTHERS_S, _WATCH_LOGS_S = 1.0, 5.0, 5.0


@contextmanager
def patched() -> Iterator[None]:
    """Have brokers be those of the model, and portions be small, so that there are several."""
    with (
        # Two offsets to a chunk, so that a history of some dozens of requests has several.
        mock.patch.object(backlog, "CHUNK_BITS", 1),
        mock.patch.object(sweep, "_REQUESTS_MAX", 2),
        mock.patch.object(seals, "_FIRST_REACH", 2),
        mock.patch.object(fetching, "parsed", parsed),
        mock.patch.object(brokers, "dial", Connection.open),
        mock.patch.object(brokers, "collect_hosts", hosts_of),
    ):
        yield


class DiskStores:
    """The stores of one worker, on its disk."""

    def __init__(self, process: "Process") -> None:
        self._disk = process.disk
        # A disk whose process was killed goes on in another folder.
        self._data_dir = process.disk.folder
        self._memory = SmallMemory()
        self.alone: dict[int, int] = {}

    @property
    def numbers(self) -> list[int]:
        """The partitions that have a store here."""
        return sorted(int(each.name) for each in self._data_dir.iterdir()) if self._data_dir.is_dir() else []

    def check_room(self, number: int) -> None:
        """Check that the disk has room."""
        self._disk.check()

    def open(self, number: int) -> DiskStore:
        """Open the store of partition *number*."""
        return DiskStore(self._folder(number), b"simulated/%d" % number, self._memory, self._disk)

    async def head(self, number: int) -> Head | None:
        """Return the head of the closed store of partition *number*."""
        return head_in(partial(self.open, number))

    async def close(self, store: TimerStore) -> None:
        """Close *store*, at once: a seed could not tell when a thread has done so."""
        store.close()

    def destroy(self, number: int) -> None:
        """Remove the store of partition *number*."""
        destroy(self._folder(number))

    def make_room(self, number: int) -> None:
        """Remove the store of partition *number*, since the disk is full, unless it is the only copy."""
        if number not in self.alone:
            self.destroy(number)

    def _folder(self, number: int) -> Path:
        return self._data_dir / str(number)


class Clock:
    """
    The clock of a worker's host.

    Args:
        loop: shows the time of the brokers.
        seed: of how wrong this clock is: the date by up to two hours, and the passing time by up to half a
            millisecond a second; None is not at all.

    Attributes:
        ahead_s: seconds by which its date is wrong.
    """

    def __init__(self, loop: SeededLoop, seed: object = None) -> None:
        self._loop = loop
        self.ahead_s, self._pace = 0.0, 1.0
        if seed is not None:
            rng = Random(f"{seed}/clock")
            self.ahead_s = rng.choice((0.0, rng.uniform(-2, 2), -3_600.0, 7_200.0))
            self._pace += rng.uniform(-0.0005, 0.0005)

    def wall_s(self) -> float:
        """Return UNIX time in seconds."""
        return self._loop.wall_s + self.ahead_s

    def elapsed_s(self) -> float:
        """Return monotonic seconds."""
        return self._loop.time() * self._pace

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
        faults: the faults of the history.
        disk: its own.
        seed: for the draws of its clients; None draws nothing.
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
        self._ports = self._context.run(self._connect, f"{seed}/{name}" if seed is not None else None, settings)
        self.joined = self.run(self._join())
        self.run(self._ports.reader.run())
        self.run(self._ticks.run())
        self.run(self._watch_others())
        self.run(self._watch_logs())
        self.run(self._keep_house())

    def _connect(self, seed: object, settings: dict[str, Any]) -> Ports:
        kafka, network, faults, self.clock = self.kafka, self.network, self.faults, Clock(self.loop, seed)
        configured = WorkerSettings(data_dir=str(self.disk.folder), **settings)
        self._clock = clock = TickedClock(self.clock, configured.max_clock_skew_s)
        gate = PriorityGate()
        self.brokers = Brokers(kafka, network, faults, seed)
        self._cluster = cluster = Cluster(cast(Any, self.brokers))
        self.stores = DiskStores(self)
        reader = LogReader(Fetcher(cluster, kafka.own.requests, "requests"), gate)
        topics = TopicLookup(cluster, kafka.own, "*", clock)
        self._lookup = topics
        self._ticks = TickReader(cluster, kafka.own.oscillator, self._on_tick)
        self._replies = replies = KafkaReplies(
            cluster, kafka.own.replies, topics, self.metrics, clock, clock.ticked.is_set
        )
        bounds = LogBounds(cluster, kafka.own.requests)
        requests = kafka.topics[kafka.own.requests]
        home = Target(requests.partitions, requests.bytes_max)
        rejected_takes = Target(1, kafka.topics[kafka.own.rejected].bytes_max)
        return Ports(
            settings=configured,
            names=kafka.own,
            partitions=kafka.topics[kafka.own.requests].partitions,
            reader=reader,
            bounds=bounds,
            ends=EndOffsets(bounds, cluster, kafka.own.requests, lambda: reader.numbers, clock),
            log=TopicLog(cluster, kafka.own.requests),
            seals=SealLog(cluster, kafka.own.sealed),
            new_sender=lambda number: KafkaSender(configured, cluster, number, kafka.own),
            stores=self.stores,
            callback_topics=topics,
            outlet=Outlet(kafka.own.requests, home, kafka.own.rejected, rejected_takes),
            history=None,
            replies=replies,
            budget=ByteBudget(configured.arm_bytes),
            gate=gate,
            metrics=self.metrics,
            clock=clock,
            name=self.name,
            queries="",
            format=lambda: self.format,
            give_up=self.gave_up.append,
        )

    def run(self, chore: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run *chore* as a part of this process."""
        task = self.loop.create_task(chore, context=self._context.copy())
        self._tasks.append(task)
        return task

    async def _join(self) -> None:
        with suppress(KafkaError, BrokerError):
            own = self.kafka.own
            await self._cluster.look_up([own.requests, own.sealed, own.oscillator])
            await alone.look_for(self._ports, [each for each in self.stores.numbers if each not in self.owners])

    async def _watch_others(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_OTHERS_S)
            with suppress(KafkaError):
                await self._cluster.refresh()

    async def _watch_logs(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_LOGS_S)
            with suppress(KafkaError, BrokerError):
                await alone.watch(self._ports, self.owners)

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

    # --- the messages of group and oscillator ------------------------------------------------------------------------

    def give_up(self) -> "asyncio.Task[None]":
        """Give all partitions up, as when the group is rebalanced."""
        return self.own([])

    @property
    def member(self) -> Member:
        """What this process tells the group when it joins."""
        return Member(frozenset(self.owners), dict.fromkeys(self.stores.numbers, 1.0), dict(self.stores.alone))

    def own(self, numbers: list[int]) -> "asyncio.Task[None]":
        """Own *numbers* and nothing else, once all that was said before is done."""
        self._assignment = self.run(self._own(self._assignment, numbers))
        return self._assignment

    async def _own(self, before: "asyncio.Task[None] | None", numbers: list[int]) -> None:
        if before is not None:
            await asyncio.wait([before])
        self._ticks.leave(self.owners)
        owners, self.owners = list(self.owners.values()), {}
        await asyncio.gather(*[owner.stop(HAND_OVER_S) for owner in owners])
        self.owners = {number: Owner(number, self._ports) for number in numbers}
        self._ticks.follow(numbers)

    def _on_tick(self, number: int, key: bytes | None, appended_ms: int, epoch: int) -> None:
        second, owner = number_in(key), self.owners.get(number)
        if owner and second is not None:
            usable = tick_second(second, appended_ms, self._ports.settings.max_clock_skew_s)
            if usable is not None:
                read = TickRead(appended_ms, self._clock.elapsed_s(), epoch)
                self._clock.read(number, read)
                owner.tick(usable, read)

    @property
    def was_impatient(self) -> bool:
        """Whether a tick has not waited for all that was accepted before it."""
        return bool(self.metrics.fence_timeouts._value.get())

    def proved_s(self, number: int) -> float | None:
        """Return when the end of a partition's requests was proved last."""
        return self._ports.ends.proved_s(number)

    def problems(self) -> list[str]:
        """Return the problems that the owners report."""
        return [problem for owner in self.owners.values() if (problem := owner.problem())]

    def deaths(self) -> list[str]:
        """Return the errors that would have ended the process: none of its tasks may raise."""
        ended = [task for task in self._tasks if task.done() and not task.cancelled()]
        return [f"{self.name} has died of {error!r}" for task in ended if (error := task.exception())]

    async def end(self) -> None:
        """End the tasks beside the owners, and let go of all."""
        for task in self._tasks:
            task.cancel()
        self._ports.ends.close()
        await self._cluster.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._replies.stop()
        self._tasks.clear()
        self._assignment = None
        # References to this process must not keep errors alive that nobody has looked at.
        del self._ports
