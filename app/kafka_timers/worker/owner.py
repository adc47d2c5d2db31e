"""
One owned partition, from takeover to hand-over.

    take over   fence the previous owner → write a barrier → read the seals → open the store → follow the log
    per tick    fire, see `firing`; then prebuild the next seconds
    in between  fire at moments of the ticked second, by the clock of the broker that has appended the tick

Each step takes the result of the step before, so that no step can be skipped or run too early: the barrier is written
once the previous owner is fenced, and seals and requests are read from brokers that have the barrier.

Any fault ends in a new takeover, after a pause that grows. The seals tell which requests are done, so nothing has to be
remembered across a takeover.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any, NamedTuple

from aiokafka.errors import KafkaError

from kafka_timers.broker.seals import Tail
from kafka_timers.core.changes import Changes
from kafka_timers.core.decisions import true_by_now
from kafka_timers.core.hour import SLACK_MS
from kafka_timers.core.keys import FIRST_MS
from kafka_timers.core.log_identity import is_other_log
from kafka_timers.core.partition import Partition
from kafka_timers.core.tick_clock import TickClock, TickRead
from kafka_timers.core.versions import Letter
from kafka_timers.core.wire import Sealed, partitions_in
from kafka_timers.errors import TopicsError
from kafka_timers.runtime.tasks import cancel, watched
from kafka_timers.worker.faults import REACTIONS, Fault, FencedError, Kind, OtherLogError, RequestLogError
from kafka_timers.worker.firing import Firing, SliceSize
from kafka_timers.worker.follower import Follower
from kafka_timers.worker.held import Held
from kafka_timers.worker.outbox import Outbox
from kafka_timers.worker.overdue import LIMIT_S, Overdue, oldest_due
from kafka_timers.worker.sender import Barrier, KafkaSender
from kafka_timers.worker.shared import Ports
from kafka_timers.worker.stores import StoreFolders

log = logging.getLogger(__name__)

_FORGET_EVERY_S = 1.0
_LEAST_WAIT_S = 1e-6
# Pauses in the search for a leader of the request log that has all requests which were fired from it.
_LOOKS_S = (0.0, 0.1, 0.5, 1.0, 1.0)


class _Fenced(NamedTuple):
    """The sender of a partition whose previous owner is fenced."""

    sender: KafkaSender


class Owner:
    """
    Owns one partition until `stop`.

    Attributes:
        stands: the kind of fault for which the partition stands still until people mend it, which no restart does.
    """

    def __init__(self, number: int, ports: Ports) -> None:
        self.number = number
        self._ports = ports
        self._follower = self._new_follower()
        self._sender: KafkaSender | None = None
        self._firing: Firing | None = None
        self._outbox: Outbox | None = None
        self._slice_size = SliceSize(ports.settings.slice_rows, ports.settings.slice_bytes)
        self._tick = 0
        self._tick_clock = TickClock()
        self._came_s = self._ticked_s = ports.clock.elapsed_s()
        self._fired_up_to = 0
        self._wake = asyncio.Event()
        # Set together with `_wake`, and when rows were read.
        self._news = asyncio.Event()
        self._stopped = asyncio.Event()
        # The offset to read the log from, if a copy of a far request has asked for it.
        self._read_from: int | None = None
        self._chores: list[asyncio.Task[None]] = []
        # True if pending requests have left the log since the takeover.
        self._unrestorable = False
        self._failures = 0
        self.stands: Kind | None = None
        # Kafka's id of the request log, at the takeover.
        self._log_id = b""
        # Disposes of the store once it is closed.
        self._drop_store: Callable[[StoreFolders, int], None] | None = None
        self._failing_since_s: float | None = None
        self._serving = False
        self._trouble = "is being taken over"
        self._looked_at_s = ports.clock.elapsed_s()
        self._task = watched(self._run(), lambda error: ports.give_up(f"partition {number}: its owner ends: {error!r}"))

    def _new_follower(self) -> Follower:
        ports = self._ports
        return Follower(
            Partition(self.number, ports.settings.horizon_s, ports.format()),
            partitions=ports.partitions,
            topic=ports.names.requests,
            stores=ports.stores,
            topics=ports.callback_topics,
            metrics=ports.metrics,
            clock=ports.clock,
            on_read=self._on_read,
        )

    # --- called from outside -----------------------------------------------------------------------------------------

    def tick(self, second: int, read: TickRead) -> None:
        """Fire everything up to *second*. If a later tick arrives before that is done, it replaces this one."""
        self._tick_clock.read(read)
        if second > self._tick:
            self._tick = second
            self._ticked_s = self._ports.clock.elapsed_s()
            self._wake_up()

    async def stop(self, limit_s: float) -> None:
        """Give the partition up. A transaction in progress may end within *limit_s* seconds."""
        self._stopped.set()
        self._wake_up()
        await asyncio.wait([self._task], timeout=limit_s)
        await cancel([self._task])
        self._ports.metrics.forget(self.number)

    @property
    def idle_s(self) -> float:
        """Seconds since this partition last made progress."""
        firing = self._firing
        progress_s = firing.fired_at_s if self._serving and firing else self._follower.read_at_s
        return self._ports.clock.elapsed_s() - max(self._looked_at_s, progress_s)

    @property
    def held(self) -> Held | None:
        """The pending timers of this partition; None until its log has been read."""
        return Held(self._partition, self._follower.store) if self._serving else None

    def problem(self) -> str | None:
        """Return the reason why this partition does not fire; None if it does."""
        if self._follower.has_gap or self._unrestorable:
            return f"partition {self.number}: its request log starts above the oldest pending request"
        if self.idle_s > self._ports.settings.stalled_after_s:
            second = self._firing.second if self._firing else None
            trouble = self._trouble if second is None else f"fires second {second}"
            return f"partition {self.number} {trouble}: no progress for {self.idle_s:.0f} s"
        if not self._serving:
            return f"partition {self.number} {self._trouble}"
        # Without ticks nothing is proved. That is reported once for all partitions.
        overdue = self._overdue(self._ticked_s)
        return f"partition {self.number}: {overdue.why}" if overdue.age_s > LIMIT_S else None

    def _overdue(self, at_s: float) -> Overdue:
        """Return how long the oldest request has been due. A proof was due at *at_s* on the monotonic clock."""
        ports, number, clock = self._ports, self.number, self._ports.clock
        row_s = unserved_s = 0.0
        if self._serving:
            first_ms = self._follower.first_ms()
            if first_ms is not None and first_ms < (self._tick + 1) * 1000:
                row_s = max(clock.wall_s() - first_ms / 1000, 0.0)
        elif self._partition.sealed_ms > FIRST_MS:
            unserved_s = max(clock.wall_s() - self._partition.sealed_ms / 1000, 0.0)
        # A proof from an earlier ownership by this process says nothing about the time in between.
        proved_s = max(ports.ends.proved_s(number) or self._came_s, self._came_s)
        return oldest_due(
            ports.names.requests,
            number,
            row_s=row_s,
            blocked_s=self._follower.blocked_s if self._serving else 0.0,
            unread_s=self._follower.unread_s if self._serving else 0.0,
            proof_s=at_s - proved_s,
            unserved_s=unserved_s,
        )

    # --- the partition's life ----------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while not self._stopped.is_set():
            pause_s = 0.0
            try:
                pause_s = await self._pause_after(self._fire())
            finally:
                pause_s = max(pause_s, await self._pause_after(self._release()))
            # If the release has failed, the store stays as it is.
            self._drop_store = None
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stopped.wait()

    async def _fire(self) -> None:
        firing = await self._take_over()
        # A tick may have come before or during the takeover.
        self._wake_up()
        while await self._next_moment(firing):
            second = self._tick
            await firing.up_to(second)
            self._fired_up_to = max(second, self._fired_up_to)
            self._looked_at_s = self._ports.clock.elapsed_s()
            self._is_served()
            await firing.prove()
            await firing.prebuild(self._tick)

    async def _pause_after(self, work: Coroutine[Any, Any, None]) -> float:
        """Await *work*. If it fails, reckon with that, and return how many seconds to leave the partition alone."""
        try:
            await work
        except Exception as error:
            return self._reckon_with(Fault.of(error), error)
        return 0.0

    def _is_served(self) -> None:
        if self.stands:
            log.info("partition %d: it fires again", self.number)
        self._failures, self._failing_since_s, self.stands = 0, None, None

    def _reckon_with(self, fault: Fault, error: Exception) -> float:
        """Note *fault*, which *error* has told, and return how many seconds to leave the partition alone."""
        ports, number, kind, reaction = self._ports, self.number, fault.kind, REACTIONS[fault.kind]
        session_s, is_told = ports.settings.session_timeout_s, kind is self.stands
        if not is_told:
            cause = error if kind is Kind.UNEXPECTED else None
            log.log(reaction.level, reaction.says, number, fault.text, exc_info=cause)
        if kind is Kind.NEEDS_OLDER:
            self._read_from = fault.read_from
            return reaction.pause_s(self._failures, session_s)
        if not is_told:
            (ports.metrics.fenced if kind is Kind.FENCED else ports.metrics.failures).inc()
        if self._failing_since_s is None:
            self._failing_since_s = ports.clock.elapsed_s()
        if kind is Kind.LOCKED:
            ports.give_up(
                f"partition {number}: its store is still open in this very process, which no retry can mend: "
                f"start the worker again ({fault.text})"
            )
        self._trouble, self._drop_store = reaction.trouble.format(fault.text), reaction.drop
        if reaction.stands:
            self.stands = kind
        if reaction.is_failure:
            ports.callback_topics.doubt()
            self._failures += 1
        return reaction.pause_s(self._failures, session_s)

    async def _release(self) -> None:
        """
        Release everything that the partition holds. The store comes first, since the next owner may open it in this
        process.
        """
        self._serving = False
        self._ports.reader.remove(self._follower)
        for chore in self._chores:
            chore.cancel()
        if self._firing:
            self._firing.release()
            self._firing = None
        chores, self._chores = self._chores, []
        sender, self._sender = self._sender, None
        drop_store, self._drop_store = self._drop_store, None
        try:
            await self._follower.close()
            if drop_store:
                drop_store(self._ports.stores, self.number)
            await cancel(chores)
        finally:
            if sender:
                await sender.stop()

    # --- taking it over ----------------------------------------------------------------------------------------------

    async def _take_over(self) -> Firing:
        self._ports.stores.check_room(self.number)
        if self.stands is Kind.DISK_FULL:
            self._trouble = "has room on its disk again, and reads the log"
        began_s = self._ports.clock.elapsed_s()
        if self._failures:
            await self._ports.outlet.renew(self._ports.callback_topics)
        fenced = await self._fence()
        await self._check_log()
        barrier = await fenced.sender.barrier()
        tail = await self._tail(fenced, barrier)
        end = await self._open(barrier, tail.seals)
        firing = self._start(fenced, tail)
        self._ports.reader.add(self._follower)
        self._ports.reader.hurry()
        # Until the log is read up to its present end, an older request might arrive after a younger one.
        await self._follower.reach(max(end, self._partition.must_read_to), unless=self._stopped.is_set)
        # The end is proved as in `Firing.prove`, also without fencing.
        self._ports.ends.proved(self.number, began_s)
        self._trouble = "waits for a tick"
        self._serving = True
        self._looked_at_s = self._ports.clock.elapsed_s()
        return firing

    async def _fence(self) -> _Fenced:
        self._sender = sender = self._ports.new_sender(self.number)
        await sender.start()
        return _Fenced(sender)

    async def _check_log(self) -> None:
        """
        Check that the seals belong to the request log, before anything is written to it.

        This read proves nothing and serves one purpose: our barriers must not lengthen a recreated log.

        Raises:
            OtherLogError: the seals are of a topic with another id.
            RequestLogError: the log ends below requests that have fired.
        """
        ports, number, topic = self._ports, self.number, self._ports.names.requests
        tail = await ports.seals.tail(number)
        for pause_s in _LOOKS_S:
            # The answers before may be old, from a broker that was cut off.
            await asyncio.sleep(pause_s)
            await ports.bounds.refresh()
            self._log_id, end = ports.log_id(), await ports.bounds.end(number)
            is_other = is_other_log(tail.log, self._log_id)
            if end >= tail.fence and not is_other:
                return
        if is_other:
            raise OtherLogError(topic, number, tail.log, self._log_id)
        raise RequestLogError(topic, number, end, tail.fence)

    async def _tail(self, fenced: _Fenced, barrier: Barrier) -> Tail:
        """
        Return the last seals. As all owners before are fenced, only this owner can write more.

        Raises:
            FencedError: another worker owns the partition by now.
        """
        tail = await self._ports.seals.tail(self.number, barrier.sealed)
        # Seals of a next owner lie behind the barrier. Compaction may have removed those below it for their sake.
        if not await fenced.sender.is_held():
            raise FencedError
        check_partitions(tail.seals, self._ports.partitions)
        return tail

    async def _open(self, barrier: Barrier, seals: list[Sealed]) -> int:
        """Bring the store in line with *seals*, and return the end of the request log."""
        ports, number = self._ports, self.number
        start = (await ports.bounds.starts([number]))[number]
        end = await ports.bounds.end(number, barrier.requests)
        self._follower = follower = self._new_follower()
        follower.partition.log = self._log_id
        read_from, self._read_from = self._read_from, None
        kept = follower.open(seals, start, end, read_from)
        ports.metrics.log_gap.labels(number).set(follower.has_gap)
        ports.metrics.takeovers.labels("kept" if kept else "rebuilt").inc()
        partition = follower.partition
        log.info(
            "partition %d: taken over, fired up to second %d, %d pending in the store, reading on from offset %d of %d",
            *(number, partition.sealed_ms // 1000 - 1, partition.pending, partition.position, end),
        )
        return end

    def _start(self, fenced: _Fenced, tail: Tail) -> Firing:
        """Return the `Firing`, after starting the tasks that run beside it. The log is not read yet."""
        ports, partition, sender = self._ports, self._partition, fenced.sender
        self._outbox = outbox = Outbox(self.number, ports.replies, sender.is_held, ports.clock, ports.metrics)
        if tail.seals:
            outbox.add_letters(Letter.unsent(tail.seals[-1]))
        # Answers below the last seal were sent before it, or are stored in it.
        left = [answer for answer in self._follower.store.answers() if not partition.is_answered(answer.offset)]
        outbox.add([true_by_now(answer, partition) for answer in left])
        self._chores = [watched(chore, self._follower.fail) for chore in (outbox.run(), self._forget())]
        self._firing = firing = Firing(
            *(self.number, self._ports, self._follower, sender, outbox, self._slice_size, self._tick_clock, tail.last),
            is_interrupted=self._wake.is_set,
            is_stopped=self._stopped.is_set,
        )
        return firing

    @property
    def _partition(self) -> Partition:
        return self._follower.partition

    def _on_read(self, changes: Changes) -> None:
        if self._firing:
            self._firing.on_read(changes)
            if changes.rows:
                self._news.set()
        if self._outbox:
            self._outbox.add(changes.answers)

    # --- in between --------------------------------------------------------------------------------------------------

    def _wake_up(self) -> None:
        self._wake.set()
        self._news.set()
        self._follower.wake()
        # Prebuilding may be waiting for other partitions to send.
        self._ports.gate.nudge()

    async def _next_moment(self, firing: Firing) -> bool:
        """Wait for a tick, or for the next due moment of the ticked second; False if the partition must be given up."""
        while not self._wake.is_set():
            self._news.clear()
            due_s = firing.due_s(self._tick)
            if due_s is not None and due_s <= self._ports.clock.elapsed_s():
                break
            await self._rest(due_s)
        self._wake.clear()
        self._follower.check()
        if is_other_log(self._log_id, now := self._ports.log_id()):
            raise OtherLogError(self._ports.names.requests, self.number, self._log_id, now)
        return not self._stopped.is_set()

    async def _rest(self, until_s: float | None) -> None:
        """Wait until *until_s* (monotonic), for a tick, or until rows were read that may be due earlier."""
        if until_s is None:
            await self._news.wait()
            return
        with suppress(TimeoutError):
            # Less than the loop's clock can tell apart would be no wait at all.
            async with asyncio.timeout(max(until_s - self._ports.clock.elapsed_s(), _LEAST_WAIT_S)):
                await self._news.wait()

    async def _forget(self) -> None:
        """Forget timer ids that are old enough, until cancelled."""
        asked: tuple[int, int] | None = None
        while True:
            await asyncio.sleep(_FORGET_EVERY_S)
            if not self._serving:
                continue
            partition = self._partition
            if asked is None and partition.sealed_ms - partition.head.passed_ms > SLACK_MS:
                # No record was read that tells the time.
                with suppress(KafkaError):
                    asked = partition.sealed_ms, await self._ports.bounds.watermark(self.number)
            if asked and partition.position >= asked[1]:
                partition.passed(asked[0])
                asked = None
            while self._serving and self._follower.store.forget(partition.forgets_s):
                await self._ports.gate.over_soon()
                await asyncio.sleep(0)

    # --- metrics ------------------------------------------------------------------------------------------------------

    def watch_log(self, start: int) -> None:
        """Note that the request log now starts at *start*. Requests below it cannot be restored."""
        if not self._serving:
            return
        was_before, self._unrestorable = self._unrestorable, start > self._partition.restorable_from
        self._ports.metrics.log_gap.labels(self.number).set(self._follower.has_gap or self._unrestorable)
        if self._unrestorable and not was_before:
            log.error(
                "partition %d: %s starts at %d, above requests that still wait: its retention is too short",
                *(self.number, self._ports.names.requests, start),
            )

    def show(self) -> None:
        """Update the gauges of this partition."""
        metrics, follower, partition, number = self._ports.metrics, self._follower, self._partition, self.number
        since_s = self._failing_since_s
        metrics.failing.labels(number).set(0 if since_s is None else self._ports.clock.elapsed_s() - since_s)
        if self._fired_up_to or self._serving:
            # Also while it fails and is taken over again.
            behind_s = self._tick - self._fired_up_to if self._fired_up_to else 0
            metrics.seconds_behind.labels(number).set(max(behind_s, 0))
        metrics.oldest_due.labels(number).set(self._overdue(self._ports.clock.elapsed_s()).age_s)
        if not self._serving:
            return
        metrics.pending.labels(number).set(partition.pending)
        metrics.pending_until.labels(number).set(follower.store.last_second() if partition.pending else 0)
        metrics.armed.labels(number).set(self._firing.prebuilt if self._firing else 0)
        metrics.store_bytes.labels(number).set(follower.store.bytes_on_disk)
        metrics.ingest_lag.labels(number).set(max(follower.awaited - partition.position, 0))
        metrics.blocked.labels(number).set(follower.blocked_s)


def check_partitions(seals: Iterable[Sealed], partitions: int) -> None:
    """
    Check that *partitions* equals the number of partitions in the seals.

    Raises:
        TopicsError: the number has changed.
    """
    before = partitions_in(seals)
    if before and before != partitions:
        raise TopicsError(
            f"the service has run with {before} partitions, and this worker was started for {partitions}. The number "
            f"is fixed for life, since timer ids are routed by it: start it with --partitions {before}, or without "
            "the option, which takes the number from the seals"
        )
