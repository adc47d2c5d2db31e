"""
The worker process: it connects, joins the group, and owns the partitions that it is assigned.

`owner` does the work on a partition. This module connects the Faust app, the reader and the owners, and reports their
state.
"""

import asyncio
import ctypes
import dataclasses
import fcntl
import logging
import socket
from collections.abc import Collection, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import faust
import uvloop
from aiokafka.errors import KafkaError

from kafka_timers.adapters import door_topics
from kafka_timers.adapters.passing import DoorSettings
from kafka_timers.adapters.reader import ADDED, AdapterReader
from kafka_timers.broker.bounds import LogBounds
from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.fetching import Fetcher
from kafka_timers.broker.reading import TopicLog
from kafka_timers.broker.seals import SealLog
from kafka_timers.broker.topics import answering, examine
from kafka_timers.clock import Clock, HostClock
from kafka_timers.core.callbacks import Target
from kafka_timers.core.tick_clock import TickRead, tick_second
from kafka_timers.core.wire import FORMAT, Topics, number_in
from kafka_timers.errors import BrokerError, SettingsError, WorkerError
from kafka_timers.planner.plan_metrics import PlannerMetrics
from kafka_timers.planner.planner import SchedulePlanner
from kafka_timers.processes.kept_worker import keep_member_id, run_all
from kafka_timers.processes.start import connected, find_out, tried
from kafka_timers.runtime.collector import collect_seldom
from kafka_timers.runtime.log_reader import LogReader
from kafka_timers.runtime.metrics import WorkerMetrics
from kafka_timers.runtime.outlet import Outlet
from kafka_timers.runtime.priority import PriorityGate
from kafka_timers.runtime.probes import Probes
from kafka_timers.runtime.targets import TopicLookup
from kafka_timers.runtime.tasks import cancel, stop_asked
from kafka_timers.runtime.ticked_clock import TickedClock
from kafka_timers.runtime.ticks import TickReader
from kafka_timers.settings import WorkerSettings
from kafka_timers.worker import alone
from kafka_timers.worker.end_offsets import EndOffsets
from kafka_timers.worker.held import Held
from kafka_timers.worker.lake_watch import LakeWatch
from kafka_timers.worker.membership import make_app
from kafka_timers.worker.owner import Owner
from kafka_timers.worker.prebuild import ByteBudget
from kafka_timers.worker.query_server import QueryServer
from kafka_timers.worker.questions import Questions
from kafka_timers.worker.replies import KafkaReplies
from kafka_timers.worker.sender import KafkaSender
from kafka_timers.worker.shared import Ports
from kafka_timers.worker.slices import History
from kafka_timers.worker.stores import StoreFolders
from kafka_timers.worker.trim import Trimmer
from kafka_timers.worker.unowned import Unowned

log = logging.getLogger(__name__)

# Time for a second's transaction to end when the partition is to be given up.
_HAND_OVER_S = 2.0
_LEAVE_S = 5.0
# Time to open the stores of all partitions, if their log has a gap.
_LOOK_FOR_S = 60.0
_HOUSEKEEPING_S = 0.5
_WATCH_LOGS_S = 5.0
_WATCH_OTHERS_S = 5.0
_WATCH_TOPICS_S = 30.0
_NO_TICK_S = 3.0
# Numbers of glibc's mallopt(3).
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
# After this many times `stalled_after_s` a restart is the better choice: /livez turns red.
_DEAD_FACTOR = 6


class Worker:
    """
    One worker process.

    Args:
        clock: of this host. Its date decides nothing: what a worker knows of the time, it knows from ticks.
    """

    def __init__(self, settings: WorkerSettings, clock: Clock | None = None) -> None:
        self._settings = settings
        self._host = clock or HostClock()
        self._clock = TickedClock(self._host, settings.max_clock_skew_s)
        self._topics = Topics.of(settings.topic_prefix)
        self.metrics = WorkerMetrics()
        self.probes = Probes(settings.host, settings.port, self.metrics.registry, self._dead, self._unready)
        self.probes.notes = lambda: [problem] if (problem := self._lake_problem()) else []
        self._queries = QueryServer(settings, lambda: self._questions, self._lake_problem)
        self._questions: Questions | None = None
        self._owners: dict[int, Owner] = {}
        self._joined = False
        self._ticked_s: float | None = None
        self._newest_tick = 0
        self._skewed: str | None = None
        self._ports: Ports | None = None
        self._ticks: TickReader | None = None
        # The seal format that every member of the group can read.
        self._format = 1
        self._lake: LakeWatch | None = None
        self._doors: list[AdapterReader] = []
        self._has_added = asyncio.Event()
        self._ended = asyncio.Event()
        self._gave_up = ""
        self.metrics.horizon.set(settings.horizon_s)
        self.metrics.tick_age.set_function(self._silent_s)

    async def run(self, stop: asyncio.Event) -> None:
        """
        Fire timers until *stop* is set.

        Raises:
            KafkaTimersError: the worker cannot start or continue; the text has the reason.
        """
        async with AsyncExitStack() as stack:
            stack.enter_context(_locked(Path(self._settings.data_dir)))
            await self.probes.start()
            stack.push_async_callback(self.probes.stop)
            await self._queries.start()
            stack.push_async_callback(self._queries.stop)
            cluster = await tried(partial(connected, self._settings.kafka, stack), stop, gives_up=False)
            if cluster is None:
                return
            topics = TopicLookup(cluster, self._topics, self._settings.allowed_topics, self._clock)
            found = await tried(partial(find_out, self._settings, cluster, topics), stop, gives_up=True)
            if found is None:
                return
            self._ports = ports = self._connect(cluster, topics, *found, stack)
            self.metrics.partitions.set(ports.partitions)
            self._questions = Questions(
                self._held, ports.partitions, ports.gate, lambda: self._ticked_s or 0.0, self._clock
            )
            self._ticks = ticks = TickReader(cluster, self._topics.oscillator, self._on_tick)
            # Doors and planner need the time, whether or not this worker owns a partition.
            ticks.follow([0])
            self._doors = self._readers(ports)
            chores = [
                ports.reader.run(),
                ticks.run(),
                self._keep_house(topics, ports.stores),
                self._watch_logs(ports),
                self._watch_others(ports, cluster),
                self._watch_topics(cluster, topics, ports.partitions),
                self._reject_added(ports),
                *[self._ticked(door) for door in self._doors],
            ]
            if horizon_s := self._settings.horizon_s:
                prefix = self._settings.topic_prefix
                self._lake = LakeWatch(cluster, prefix, horizon_s, self.metrics, self._clock)
                chores.append(self._lake.run())
            if keep_s := self._settings.keep_s:
                chores.append(Trimmer(ports, cluster, lambda: self._owners, keep_s).run())
            if not self._settings.no_planner:
                metrics = PlannerMetrics(self.metrics.registry)
                planner = SchedulePlanner(self._settings, ports.outlet, ports.gate, metrics, self._clock)
                chores.append(planner.run())
            tasks = [asyncio.create_task(chore) for chore in chores]
            stack.push_async_callback(cancel, tasks)
            membership = asyncio.create_task(self._belong(ports, stop))
            stack.push_async_callback(cancel, [membership])
            ends = [asyncio.create_task(wait) for wait in (stop.wait(), self._ended.wait())]
            done, _ = await asyncio.wait([*ends, *tasks, membership], return_when=asyncio.FIRST_COMPLETED)
            await cancel(ends)
            for number, owner in self._owners.items():
                if held := owner.held_alone:
                    log.warning(
                        "partition %d: keep the disk of %s: %d timers wait there alone, and would be lost with it",
                        *(number, Path(self._settings.data_dir) / str(number), held),
                    )
            await self._on_revoked(set(self._owners))
            for task in done.difference(ends):
                task.result()
            if self._gave_up or not stop.is_set():
                raise WorkerError(self._gave_up or "a part of the worker has ended by itself: start it again")

    async def _belong(self, ports: Ports, stop: asyncio.Event) -> None:
        """Stay in the group. Return when the app has stopped by itself, or if *stop* came before its start."""
        if app := await tried(partial(self._started, ports), stop, gives_up=False):
            log.info("worker %s is in group %s", ports.name, self._settings.group)
            try:
                await app.wait_until_stopped()
                if app.crash_reason:
                    raise app.crash_reason
            finally:
                await _leave(app)

    async def _started(self, ports: Ports) -> faust.App:
        async with answering(self._settings.kafka, timeout_s=_LOOK_FOR_S):
            await alone.look_for(ports, [number for number in ports.stores.numbers if number < ports.partitions])
        app = make_app(self._settings, ports.partitions, ports.name, self._on_assigned, self._on_revoked, self._give_up)
        assignor: Any = app.assignor
        assignor.alone = ports.stores.alone
        try:
            await app.start()
        except BaseException as error:
            await _leave(app)
            if isinstance(error, KafkaError):
                at, group = self._settings.kafka, self._settings.group
                why = f"no broker of {at} lets this worker join group {group}: {type(error).__name__}"
                raise BrokerError(why, retriable=True) from error
            raise
        return app

    # --- the Faust app's callbacks -----------------------------------------------------------------------------------

    def _on_tick(self, number: int, key: bytes | None, appended_ms: int, epoch: int) -> None:
        second = number_in(key)
        if second is None:
            self.metrics.ticks_refused.inc()
            log.warning("%s partition %d: a tick with key %.40r is no second", self._topics.oscillator, number, key)
            return
        usable = tick_second(second, appended_ms, self._settings.max_clock_skew_s)
        if usable is None:
            self.metrics.ticks_refused.inc()
            self._skewed = f"tick {second} is {second - appended_ms / 1000:.1f} s ahead of the broker's clock: refused"
            log.warning("%s partition %d: %s", self._topics.oscillator, number, self._skewed)
            return
        self._skewed = None
        read = TickRead(appended_ms, self._clock.elapsed_s(), epoch)
        self._clock.read(number, read)
        if second > self._newest_tick:
            # Repeated ticks are normal: an oscillator learns the broker's time from them.
            self._newest_tick = second
            self.metrics.tick_delay.add(self._host.wall_s() - second, 1)
        if owner := self._owners.get(number):
            self._ticked_s = read.read_s
            owner.tick(usable, read)

    async def _on_assigned(self, numbers: set[int], format: int, member_id: str) -> None:
        keep_member_id(Path(self._settings.data_dir), member_id)
        await self._on_revoked(set(self._owners))
        if format < FORMAT:
            log.info(
                "some worker of the group is of an earlier version: seals stay in format %d until it is gone", format
            )
        self._format = format
        if self._ports and self._ticks:
            self._owners = {number: Owner(number, self._ports) for number in numbers}
            self._ticks.follow(numbers or [0])
        self._ticked_s = self._clock.elapsed_s()
        self._joined = True
        log.info("owns partitions %s", sorted(numbers))

    async def _on_revoked(self, numbers: set[int]) -> None:
        if self._ticks:
            self._ticks.leave(numbers)
        owners = [self._owners.pop(number) for number in numbers & set(self._owners)]
        await asyncio.gather(*[owner.stop(_HAND_OVER_S) for owner in owners])

    # --- health ------------------------------------------------------------------------------------------------------

    def _unready(self) -> list[str]:
        if self._ports is None:
            return [f"no broker answers at {self._settings.kafka} yet"]
        if not self._joined:
            return ["has not joined the group yet"]
        reasons = [problem for owner in self._owners.values() if (problem := owner.problem())]
        silent_s = self._silent_s()
        if silent_s > _NO_TICK_S:
            reasons.append(f"no tick for {silent_s:.0f} s: is an oscillator running?")
        if self._skewed:
            reasons.append(self._skewed)
        return reasons + [problem for door in self._doors for problem in door.refused.values()]

    def _lake_problem(self) -> str:
        return self._lake.progress.problem if self._lake else ""

    def _silent_s(self) -> float:
        """Return the seconds without a tick; 0 while no tick is expected."""
        return self._clock.elapsed_s() - (self._ticked_s or 0) if self._owners else 0.0

    def _dead(self) -> list[str]:
        limit_s = self._settings.stalled_after_s * _DEAD_FACTOR
        if self._silent_s() > _NO_TICK_S:
            # Without ticks nothing moves, and restarting a worker does not help.
            return []
        # What people have to mend, no restart does either.
        idle = [owner for owner in self._owners.values() if owner.idle_s > limit_s and not owner.stands]
        return [problem for owner in idle if (problem := owner.problem())]

    # --- start -------------------------------------------------------------------------------------------------------

    def _connect(
        self, cluster: Cluster, lookup: TopicLookup, partitions: int, own: Mapping[str, Target], stack: AsyncExitStack
    ) -> Ports:
        settings, topics = self._settings, self._topics
        gate = PriorityGate()
        reader = LogReader(Fetcher(cluster, topics.requests, "requests"), gate)
        bounds = LogBounds(cluster, topics.requests)
        ends = EndOffsets(bounds, cluster, topics.requests, lambda: reader.numbers, self._clock)
        stack.callback(ends.close)
        # The number of served partitions decides the partition of an id.
        home = dataclasses.replace(own[topics.requests], partitions=partitions)
        replies = KafkaReplies(cluster, topics.replies, lookup, self.metrics, self._clock, self._clock.ticked.is_set)
        stack.push_async_callback(replies.stop)
        return Ports(
            settings=settings,
            names=topics,
            partitions=partitions,
            reader=reader,
            bounds=bounds,
            ends=ends,
            log=TopicLog(cluster, topics.requests),
            seals=SealLog(cluster, topics.sealed),
            new_sender=lambda number: KafkaSender(settings, cluster, number, topics),
            stores=StoreFolders(Path(settings.data_dir), f"{cluster.id}/{topics.requests}", settings.horizon_s),
            callback_topics=lookup,
            outlet=Outlet(topics.requests, home, topics.rejected, own[topics.rejected]),
            history=history_of(settings),
            replies=replies,
            budget=ByteBudget(settings.arm_bytes),
            gate=gate,
            metrics=self.metrics,
            clock=self._clock,
            name=self.probes.url or f"{socket.gethostname()}:{settings.data_dir}",
            queries=self._queries.address,
            format=lambda: self._format,
            give_up=self._give_up,
        )

    def _held(self) -> dict[int, Held]:
        return {number: held for number, owner in self._owners.items() if (held := owner.held)}

    def _give_up(self, why: str) -> None:
        self._gave_up = self._gave_up or why
        self._ended.set()

    def _readers(self, ports: Ports) -> list[AdapterReader]:
        settings = door_settings(self._settings)
        return [
            AdapterReader(settings, name, topic, ports.outlet, ports.gate, self.metrics, self._clock)
            for name, topic in door_topics(self._settings.door)
        ]

    async def _ticked(self, door: AdapterReader) -> None:
        """Run *door*; if it has a grace, once the time is known by which it judges records to be past it."""
        if self._settings.door_grace_s >= 0:
            await self._clock.ticked.wait()
        await door.run()

    async def _keep_house(self, lookup: TopicLookup, stores: StoreFolders) -> None:
        known: Collection[str] = ()
        while True:
            await asyncio.sleep(_HOUSEKEEPING_S)
            for owner in self._owners.values():
                owner.show()
            self.metrics.store_free_bytes.set(stores.free_bytes(self._owners))
            with _logged("callback topics could not be looked up"):
                await lookup.refresh()
            unavailable = lookup.unavailable()
            self.metrics.show_unavailable(unavailable)
            for topic in unavailable:
                if topic not in known:
                    words = lookup.words.get(topic, "")
                    log.warning("topic %s takes no callbacks, which are sent later: %s", topic, words)
            known = unavailable

    async def _watch_logs(self, ports: Ports) -> None:
        while True:
            await asyncio.sleep(_WATCH_LOGS_S)
            with _logged("the start of the request log could not be read"):
                await alone.watch(ports, self._owners)

    async def _watch_others(self, ports: Ports, cluster: Cluster) -> None:
        unowned = Unowned(cluster, self._topics.sealed, self._settings.seal_every_s, self.metrics, self._clock)
        while True:
            await asyncio.sleep(_WATCH_OTHERS_S)
            with _logged("the partitions of other workers could not be looked at"):
                await unowned.look([number for number in range(ports.partitions) if number not in self._owners])

    async def _watch_topics(self, cluster: Cluster, lookup: TopicLookup, served: int) -> None:
        topics, known = self._topics, list[str]()
        while True:
            with _logged("the settings of the service's topics could not be read"):
                found = await lookup.look_up(dataclasses.astuple(topics))
                existing = {name: each.partitions for name, each in found.items() if isinstance(each, Target)}
                if existing.get(topics.requests, 0) > served:
                    self._has_added.set()
                now = await examine(cluster, topics, existing, self._settings.horizon_s, served, self._settings.keep_s)
                self.metrics.retention.set(now.retention_s)
                self.metrics.topic_problems.set(len(now.problems))
                for problem in now.problems:
                    if problem not in known:
                        log.warning("%s", problem)
                known = now.problems
            await asyncio.sleep(_WATCH_TOPICS_S)

    async def _reject_added(self, ports: Ports) -> None:
        """Reject the records of partitions that were added to `timer-request`, once there are some."""
        await self._has_added.wait()
        # Nothing is sent to the topic itself.
        outlet = dataclasses.replace(ports.outlet, requests_take=ports.outlet.rejected_takes)
        settings, metrics = door_settings(self._settings), self.metrics
        await AdapterReader(
            settings, ADDED, outlet.requests, outlet, ports.gate, metrics, self._clock, ports.partitions
        ).run()


def run(settings: WorkerSettings) -> int:
    """
    Run one worker, or several, until SIGTERM or SIGINT, and return the exit code.

    Raises:
        KafkaTimersError: the worker cannot start; the text has the reason.
    """

    async def main() -> int:
        stop = stop_asked()
        if settings.processes > 1:
            return await run_all(settings, stop)
        await Worker(settings).run(stop)
        return 0

    collect_seldom()
    _keep_memory()
    # Set as the policy, because Faust makes a loop of its own for the thread that reads ticks.
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    with asyncio.Runner() as runner:
        return runner.run(main())


def _keep_memory() -> None:
    """Make the allocator keep memory that each second needs again, instead of returning it to the system."""
    # Only glibc has these options. Getting memory page by page took a tenth of the CPU time at 40,000 timers a second.
    with suppress(AttributeError):
        set_option = ctypes.CDLL(None).mallopt
        for option, size in ((_M_TRIM_THRESHOLD, 128 << 20), (_M_TOP_PAD, 16 << 20), (_M_MMAP_THRESHOLD, 32 << 20)):
            set_option(option, size)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("wb")
    except OSError as error:
        raise SettingsError(f"data folder {folder} cannot be written to: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise SettingsError(f"data folder {folder} is used by another worker: give each its own") from error
        yield


async def _leave(app: faust.App) -> None:
    """Stop the app. If that takes long, the end of the session does the rest."""
    # With the broker away, Faust's consumer dies while it stops, and the stop waits for it for a minute.
    with suppress(TimeoutError):
        async with asyncio.timeout(_LEAVE_S):
            await app.stop()


@contextmanager
def _logged(what: str) -> Iterator[None]:
    """Log that brokers do not answer, and continue; the caller tries again."""
    try:
        yield
    except (KafkaError, BrokerError) as error:
        log.warning("%s: %s", what, error)


def history_of(settings: WorkerSettings) -> History | None:
    """Return the history of etf1's door that *settings* ask for; None if they ask for none."""
    sources = [topic.encode() for name, topic in door_topics(settings.door) if name == "etf1"]
    return History(settings.door_history.encode(), frozenset(sources)) if settings.door_history else None


def door_settings(settings: WorkerSettings) -> DoorSettings:
    """Return those of *settings* that a door needs."""
    return DoorSettings(**{field.name: getattr(settings, field.name) for field in fields(DoorSettings)})
