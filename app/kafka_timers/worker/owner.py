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
import math
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, NamedTuple

from aiokafka.errors import KafkaError

from kafka_timers.broker.seals import Tail
from kafka_timers.core.changes import Changes
from kafka_timers.core.decisions import true_by_now
from kafka_timers.core.hour import SLACK_MS
from kafka_timers.core.keys import FIRST_MS
from kafka_timers.core.partition import Partition
from kafka_timers.core.sweep import repeated_in
from kafka_timers.core.tick_clock import TickClock, TickRead
from kafka_timers.core.versions import Letter
from kafka_timers.core.wire import Sealed
from kafka_timers.runtime.tasks import cancel, watched
from kafka_timers.worker import alone
from kafka_timers.worker.faults import REACTIONS, WAIT_FOR_STORES_S, Fault, FencedError, Kind, LogGapError
from kafka_timers.worker.firing import Firing, SliceSize
from kafka_timers.worker.follower import Follower
from kafka_timers.worker.held import Held
from kafka_timers.worker.outbox import Outbox
from kafka_timers.worker.overdue import LIMIT_S, Overdue, oldest_due
from kafka_timers.worker.own_log import OwnLog
from kafka_timers.worker.sender import Barrier, KafkaSender
from kafka_timers.worker.shared import Ports
from kafka_timers.worker.stores import StoreFolders

log = logging.getLogger(__name__)

_FORGET_EVERY_S = 1.0
_LEAST_WAIT_S = 1e-6


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
        self._failures = 0
        self.stands: Kind | None = None
        self._own_log = OwnLog(number, ports)
        # Disposes of the store once it is closed.
        self._drop_store: Callable[[StoreFolders, int], None] | None = None
        self._failing_since_s: float | None = None
        # When a transactional id was found to have expired.
        self._expired_s = -math.inf
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
            kept=lambda epoch: ports.bounds.kept(self.number, epoch),
            is_other=lambda known: ports.log.is_other(self.number, known),
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
        if self._serving and (lost := alone.problem_of(self._ports, self._partition)):
            return lost
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
            if not firing.has_seals:
                await self._own_log.check_seals(second, self._follower.first_ms())
            await firing.up_to(second)
            self._fired_up_to = max(second, self._fired_up_to)
            self._looked_at_s = self._ports.clock.elapsed_s()
            self._is_served()
            await firing.prove()
            await firing.prebuild(self._tick)
            await firing.go_on_sweeping(self._tick)

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
        ports, number, session_s = self._ports, self.number, self._ports.settings.session_timeout_s
        if fault.kind is Kind.EXPIRED:
            before_s, self._expired_s = self._expired_s, ports.clock.elapsed_s()
            if self._expired_s - before_s < session_s:
                fault = Fault.of(FencedError())
        kind, reaction, is_told = fault.kind, REACTIONS[fault.kind], fault.kind is self.stands
        if not is_told:
            cause = error if kind is Kind.UNEXPECTED else None
            log.log(reaction.level, reaction.says, number, fault.text, exc_info=cause)
        if kind is Kind.NEEDS_OLDER:
            self._read_from = fault.read_from
            return reaction.pause_s(self._failures, session_s)
        if not is_told:
            (ports.metrics.fenced if kind is Kind.FENCED else ports.metrics.failures).inc()
        if kind is Kind.LOG_CUT:
            ports.metrics.log_cuts.labels("timer-request").inc()
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
        await self._own_log.check()
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
        self._own_log.check_partitions(tail.seals)
        fenced.sender.agree(tail.seals[-1].retired if tail.seals else ())
        return tail

    async def _open(self, barrier: Barrier, seals: list[Sealed]) -> int:
        """Bring the store in line with *seals*, and return the end of the request log."""
        ports, number = self._ports, self.number
        start = (await ports.bounds.starts([number]))[number]
        end = await ports.bounds.end(number, barrier.requests)
        self._follower = follower = self._new_follower()
        # The owner reads up to this end before it fires, so the marked batch lies below its fences.
        log_id = self._own_log.id or await ports.log.mark(number, end - 1)
        read_from, self._read_from = self._read_from, None
        loses = ports.clock.elapsed_s() - self._came_s >= WAIT_FOR_STORES_S
        try:
            kept = await follower.open(seals, start, end, read_from, log_id=log_id, loses=loses)
        except LogGapError:
            ports.metrics.log_gap.labels(number).set(True)
            raise
        if barrier.sealed is not None:
            # Otherwise nothing proves that these are the last ones.
            self._own_log.compare(seals, follower.partition.sealed_ms)
        await self._take(follower, start)
        await alone.count(ports, follower, start)
        ports.metrics.takeovers.labels("kept" if kept else "rebuilt").inc()
        partition = follower.partition
        log.info(
            "partition %d: taken over, fired up to second %d, %d pending in the store, reading on from offset %d of %d",
            *(number, partition.sealed_ms // 1000 - 1, partition.pending, partition.position, end),
        )
        return end

    async def _take(self, follower: Follower, start: int) -> None:
        """Take into an empty store what sweeps have repeated, on a log that begins at *start*."""
        head = follower.partition.head
        for swept, offsets in head.to_take if head.lacks_swept else ():
            taken = 0
            async for records in self._ports.log.pages(
                self.number, max(swept.since, start), swept.to, skips_deleted=True
            ):
                for repeated in repeated_in(records, swept.begun_us, offsets):
                    follower.take(repeated)
                    taken += len(repeated)
            log.info(
                "partition %d: %d of the timers that wait were repeated at offsets %d to %d",
                *(self.number, taken, swept.since, swept.to),
            )
        if head.lacks_swept:
            follower.has_taken()

    def _start(self, fenced: _Fenced, tail: Tail) -> Firing:
        """Return the `Firing`, after starting the tasks that run beside it. The log is not read yet."""
        ports, partition, sender = self._ports, self._partition, fenced.sender
        kept = Held(partition, self._follower.store).kept
        self._outbox = outbox = Outbox(self.number, ports.replies, sender.is_held, ports.clock, ports.metrics, kept)
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
        self._own_log.check_id()
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

    async def watch_log(self, start: int) -> None:
        """Note that the request log now starts at *start*, so that requests below it wait in the store alone."""
        if self._serving:
            await alone.count(self._ports, self._follower, start)

    @property
    def sealed(self) -> tuple[bytes, int] | None:
        """The log, as in `Head`, and the highest `restore_from` that this owner has sealed of it; None if none."""
        head = self._partition.head
        return (head.log, head.done_below) if self._serving and head.done_below else None

    def sweep(self, below: int) -> None:
        """Have what waits below the offset *below* repeated on the request log, if anything does."""
        if self._serving and self._firing:
            self._firing.sweep(below)

    @property
    def held_alone(self) -> int:
        """The number of timers that would be lost with the store."""
        return self._partition.held_alone

    def show(self) -> None:
        """Update the gauges of this partition."""
        metrics, follower, partition, number = self._ports.metrics, self._follower, self._partition, self.number
        since_s = self._failing_since_s
        metrics.log_other.labels(number).set(self.stands is Kind.OTHER_LOG)
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
