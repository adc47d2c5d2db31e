"""
One owned partition, from takeover to hand-over.

    take over   shut out the owner before → read the seals → open the store → follow the log up to its end
    per tick    wait until all that was accepted before it is read → open the scan → callbacks, rejects and seal →
                drop the rows

Each step takes what the one before it returns, so none can be left out or come too early: seals are read with the
proof that the owner before is shut out, callbacks are sent for a scan that is in the store, and rows are dropped for a
seal that is committed.

Any fault ends in a new takeover, after a pause that grows: what is done is told by the seals, so nothing has to be
remembered across it.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from aiokafka.errors import KafkaError

from kafka_timers.clock import Clock
from kafka_timers.core.changes import Changes, Row
from kafka_timers.core.keys import first_key
from kafka_timers.core.partition import Partition
from kafka_timers.core.verdicts import Reason
from kafka_timers.core.wire import Sealed, Topics, age_of
from kafka_timers.errors import TopicsError
from kafka_timers.settings import WorkerSettings
from kafka_timers.worker.end_offsets import EndOffsets
from kafka_timers.worker.faults import Fault
from kafka_timers.worker.follower import Follower, withdrawn_keys
from kafka_timers.worker.metrics import WorkerMetrics
from kafka_timers.worker.outbox import Outbox
from kafka_timers.worker.ports import CallbackTopics, LogBounds, NewSender, ReplySender, SealLog, Sender, Stores
from kafka_timers.worker.prebuild import ByteBudget, Prebuilt, PrebuiltSeconds, behind
from kafka_timers.worker.priority import PriorityGate
from kafka_timers.worker.reader import RequestReader
from kafka_timers.worker.slices import Rejects, Slice
from kafka_timers.worker.tasks import cancel

log = logging.getLogger(__name__)

_PAUSES_S = (0.1, 0.5, 1.0, 2.0, 5.0)
_SLICE_ROWS_MIN = 100
# A second that takes this long to build is as much as a worker can do anyway.
_PREBUILD_S = 5
_FORGET_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Ports:
    """
    What the owners of one process talk to, and share.

    Attributes:
        settings: of the worker.
        names: of the service's topics.
        partitions: of `timer-request`.
        reader: feeds followers.
        bounds: where the request log begins and ends.
        ends: the same once per tick for all partitions.
        seals: the log of seals.
        new_sender: makes the sender of a partition.
        stores: of this worker.
        callback_topics: what is known of them.
        rejects: where refused requests go.
        replies: the way to reply topics.
        budget: of prebuilt callbacks.
        gate: who goes first on the event loop.
        metrics: of the worker.
        clock: tells how late callbacks are and how long nothing has happened; never what is due.
        name: of this worker in seals.
        format: returns the format of seals that every member of the group can read.
        give_up: ends the process, with a sentence.
    """

    settings: WorkerSettings
    names: Topics
    partitions: int
    reader: RequestReader
    bounds: LogBounds
    ends: EndOffsets
    seals: SealLog
    new_sender: NewSender
    stores: Stores
    callback_topics: CallbackTopics
    rejects: Rejects
    replies: ReplySender
    budget: ByteBudget
    gate: PriorityGate
    metrics: WorkerMetrics
    clock: Clock
    name: str
    format: Callable[[], int]
    give_up: Callable[[str], None]


class _Fenced(NamedTuple):
    """The sender of a partition whose owner before is shut out."""

    sender: Sender


class _OpenScan(NamedTuple):
    """What is left of a scan that is in the store: the keys from `start` on and before `end`, up to `snapshot`."""

    start: bytes
    end: bytes
    end_ms: int
    snapshot: int


class _Sent(NamedTuple):
    """A slice that was handed to the broker, and the seal to commit it with."""

    slice: Slice
    seal: Sealed
    drop_before: bytes | None
    answered: int


class _Committed(NamedTuple):
    """A slice that is visible."""

    sent: _Sent


class Owner:
    """Owns one partition until `stop`."""

    def __init__(self, number: int, ports: Ports) -> None:
        self.number = number
        self._ports = ports
        self._follower = self._new_follower()
        self._sender: Sender | None = None
        self._prebuilt = PrebuiltSeconds()
        self._outbox = Outbox(number, ports.replies, None)
        self._slice_rows = ports.settings.slice_rows
        self._tick = 0
        self._fired_up_to = 0
        self._wake = asyncio.Event()
        self._stopped = asyncio.Event()
        # Where to read the log from instead of going on, when a copy has asked for it.
        self._read_from: int | None = None
        self._chores: list[asyncio.Task[None]] = []
        self._answered = 0
        # Whether requests that wait have left the log since the takeover.
        self._unrestorable = False
        self._faults = 0
        self._failing_since_s: float | None = None
        self._serving = False
        self._trouble = "is being taken over"
        self._looked_at_s = ports.clock.elapsed_s()
        self._task = asyncio.create_task(self._run(), name=f"partition-{number}")

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

    def tick(self, second: int) -> None:
        """Fire everything up to *second*; a later tick that comes before that is done covers it."""
        if second > self._tick:
            self._tick = second
            self._wake_up()

    async def stop(self, limit_s: float) -> None:
        """Give the partition up, after the transaction that is under way if that ends within *limit_s*."""
        self._stopped.set()
        self._wake_up()
        await asyncio.wait([self._task], timeout=limit_s)
        await cancel([self._task])
        self._ports.metrics.forget(self.number)

    @property
    def idle_s(self) -> float:
        """Seconds since this partition has made progress."""
        looked_at_s = self._looked_at_s if self._serving else max(self._looked_at_s, self._follower.read_at_s)
        return self._ports.clock.elapsed_s() - looked_at_s

    def problem(self) -> str | None:
        """Return why this partition does not fire; None when it does."""
        if self._follower.has_gap or self._unrestorable:
            return f"partition {self.number}: its request log starts above the oldest pending request"
        if self.idle_s > self._ports.settings.stalled_after_s:
            return f"partition {self.number} {self._trouble}: no progress for {self.idle_s:.0f} s"
        return None if self._serving else f"partition {self.number} {self._trouble}"

    # --- the partition's life ----------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while not self._stopped.is_set():
            pause_s = 0.0
            try:
                await self._take_over()
                # A tick may have come before or during the takeover.
                self._wake.set()
                while await self._next_tick():
                    await self._fire_up_to(self._tick)
                    self._faults, self._failing_since_s = 0, None
                    await self._prebuild()
            except Exception as error:
                fault = Fault.of(error)
                if not fault.is_known:
                    log.warning("partition %d: %s", self.number, fault.text, exc_info=error)
                pause_s = self._reckon_with(fault)
            finally:
                await self._release()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stopped.wait()

    def _reckon_with(self, fault: Fault) -> float:
        """Take note of *fault*, and return for how many seconds to leave the partition alone."""
        ports, number = self._ports, self.number
        if self._failing_since_s is None and fault.read_from is None:
            self._failing_since_s = ports.clock.elapsed_s()
        if fault.fenced:
            ports.metrics.fenced.inc()
            self._trouble = "is owned by another worker"
            log.warning("partition %d: %s", number, fault.text)
            # Either this worker has lost the partition and will hear of it with its next heartbeat, or the broker gave
            # up a transaction that took too long. After a whole session without a word it is the latter.
            return ports.settings.session_timeout_s
        if fault.read_from is not None:
            log.info("partition %d: %s", number, fault.text)
            self._read_from = fault.read_from
            return 0.0
        if fault.locked:
            ports.give_up(
                f"partition {number}: its store is still open in this very process, which no retry can mend: "
                f"start the worker again ({fault.text})"
            )
        ports.metrics.failures.inc()
        self._trouble = f"failed ({fault.text})"
        if fault.is_known:
            log.warning("partition %d: %s", number, fault.text)
        # A callback topic may have changed since it was looked up, and be the cause.
        ports.callback_topics.doubt()
        for topic, reason in fault.topics.items():
            if reason is Reason.TOPIC_REFUSED or self._faults:
                ports.callback_topics.refuse(topic, reason)
        if fault.damaged:
            log.warning("partition %d: its store is damaged and is rebuilt from the log", number)
            self._follower.close()
            ports.stores.destroy(number)
        self._faults += 1
        return _PAUSES_S[min(self._faults, len(_PAUSES_S)) - 1]

    async def _release(self) -> None:
        """Let go of all that the partition holds; the store first, since whoever is next may open it here."""
        self._serving = False
        self._ports.reader.remove(self._follower)
        for chore in self._chores:
            chore.cancel()
        self._prebuilt.release()
        self._follower.close()
        chores, self._chores = self._chores, []
        sender, self._sender = self._sender, None
        try:
            await cancel(chores)
        finally:
            if sender:
                await sender.stop()

    # --- taking it over ----------------------------------------------------------------------------------------------

    async def _take_over(self) -> None:
        fenced = await self._fence()
        end = await self._open(fenced, await self._seals(fenced))
        self._start_chores(fenced)
        self._ports.reader.add(self._follower)
        # Until the log has been read up to where it ends now, an older request might come after a younger one.
        await self._follower.reach(max(end, self._partition.must_read_to), unless=self._stopped.is_set)
        self._trouble = "waits for a tick"
        self._serving = True
        self._looked_at_s = self._ports.clock.elapsed_s()

    async def _fence(self) -> _Fenced:
        self._sender = sender = self._ports.new_sender(self.number)
        await sender.start()
        return _Fenced(sender)

    async def _seals(self, _: _Fenced) -> list[Sealed]:
        """Return the last seals: none comes after them but this owner's own, now that all others are shut out."""
        seals = await self._ports.seals.seals(self.number)
        check_partitions(seals, self._ports.partitions)
        return seals

    async def _open(self, _: _Fenced, seals: list[Sealed]) -> int:
        """Bring the store in line with *seals*, and return where the request log ends."""
        ports, number = self._ports, self.number
        start = (await ports.bounds.starts([number]))[number]
        end = (await ports.bounds.ends([number]))[number]
        self._follower = follower = self._new_follower()
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

    def _start_chores(self, fenced: _Fenced) -> None:
        partition = self._partition
        self._prebuilt = PrebuiltSeconds()
        self._outbox = outbox = Outbox(self.number, self._ports.replies, fenced.sender.epoch_check)
        self._answered = 0
        # What a seal covers was answered before it.
        left = [answer for answer in self._follower.store.answers() if not partition.is_answered(answer.offset)]
        outbox.add([answer.by_now(partition) for answer in left])
        self._chores = [asyncio.create_task(chore) for chore in (outbox.run(), self._forget())]
        for task in self._chores:
            task.add_done_callback(partial(_chore_ended, self._follower))

    @property
    def _partition(self) -> Partition:
        return self._follower.partition

    def _on_read(self, changes: Changes) -> None:
        for key in withdrawn_keys(changes):
            self._prebuilt.withdrawn(key)
        if changes.rows:
            self._prebuilt.added(min(changes.rows)[0])
        self._outbox.add(changes.answers)

    # --- firing ------------------------------------------------------------------------------------------------------

    def _wake_up(self) -> None:
        self._wake.set()
        self._follower.wake()
        # Prebuilding may be waiting for others to have sent.
        self._ports.gate.nudge()

    async def _next_tick(self) -> bool:
        """Wait for a tick; False when the partition is to be given up."""
        await self._wake.wait()
        self._wake.clear()
        self._follower.check()
        return not self._stopped.is_set()

    async def _fire_up_to(self, second: int) -> None:
        ports, partition, end_ms = self._ports, self._partition, (second + 1) * 1000
        if end_ms > partition.sealed_ms:
            await self._read_up_to(await ports.ends.end(self.number, second))
            if self._has_to_seal(end_ms):
                self._trouble = f"fires second {second}"
                while partition.sealed_ms < end_ms and not self._stopped.is_set():
                    with ports.gate.on():
                        await self._fire_slice(self._begin(end_ms))
                self._trouble = "waits for a tick"
        self._fired_up_to = max(second, self._fired_up_to)
        self._looked_at_s = ports.clock.elapsed_s()

    async def _read_up_to(self, end: int) -> None:
        """Wait until the store has read up to *end*, for as long as the settings allow."""
        ports = self._ports
        if self._partition.position >= end:
            return
        self._follower.awaited = end
        ports.reader.hurry()
        try:
            async with asyncio.timeout(ports.settings.fence_wait_s):
                await self._follower.reach(end, unless=self._stopped.is_set)
        except TimeoutError:
            ports.metrics.fence_timeouts.inc()

    def _has_to_seal(self, end_ms: int) -> bool:
        follower, partition = self._follower, self._partition
        quiet_ms = end_ms - partition.sealed_ms
        return (
            partition.scan is not None
            or follower.is_holding
            or quiet_ms >= self._ports.settings.seal_every_s * 1000
            or follower.store.has_due(partition.sealed_ms, end_ms)
        )

    def _begin(self, end_ms: int) -> _OpenScan:
        """Open the scan up to *end_ms*, or go on with the one that is open."""
        follower, partition = self._follower, self._partition
        # What could not be written has not been read, and no scan may declare it as done.
        follower.check()
        follower.write(partition.begin(end_ms))
        scan = partition.scan
        if scan is None:
            raise AssertionError("a scan that was begun is open")
        return _OpenScan(*partition.keys_left(), scan.end_ms, scan.snapshot)

    async def _fire_slice(self, scan: _OpenScan) -> None:
        """Send the next slice of *scan* and its seal."""
        try:
            # Past the transaction's timeout the broker would abort it anyway.
            async with asyncio.timeout(self._ports.settings.transaction_timeout_s * 0.8):
                committed = await self._commit(await self._send(scan))
        except TimeoutError as error:
            self._slice_rows = max(self._slice_rows // 4, _SLICE_ROWS_MIN)
            raise KafkaError(
                f"the callbacks of a slice were not taken in time; slices have {self._slice_rows} now"
            ) from error
        self._drop(scan, committed)
        self._slice_rows = min(self._slice_rows * 2, self._ports.settings.slice_rows)
        self._looked_at_s = self._ports.clock.elapsed_s()
        self._count(committed.sent.slice, committed.sent.seal.late_arrivals)

    async def _send(self, scan: _OpenScan) -> _Sent:
        """Send the callbacks of the next slice of *scan*, and return once all that its seal covers is answered."""
        ports, partition, store, sender = self._ports, self._partition, self._follower.store, self._connected
        slice_, missed, rows, is_last = self._next_slice(scan)
        await sender.begin()
        while await slice_.add(missed):
            pass
        ended = False
        while is_last and not (ended or slice_.is_full):
            ended = not await slice_.add(rows)
            await sender.send_all(slice_.full())
        await sender.send_all(slice_.rest())
        drop_before = scan.end if ended else behind(slice_)
        cancelled, superseded = store.count_withdrawn(scan.start, drop_before)
        seal = partition.seal(slice_.contents, complete=ended, cancelled=cancelled, superseded=superseded)
        seal.lateness_p50_ms = slice_.lateness_ms(0.5)
        seal.lateness_p99_ms = slice_.lateness_ms(0.99)
        seal.lateness_max_ms = slice_.lateness_ms(1)
        seal.worker = ports.name
        seal.partitions = ports.partitions
        # What a seal covers is never answered again.
        answered = await self._outbox.sent()
        has_rows = bool(len(slice_) or cancelled or superseded)
        return _Sent(slice_, seal, drop_before if has_rows else None, answered)

    async def _commit(self, sent: _Sent) -> _Committed:
        await self._connected.commit(sent.seal)
        return _Committed(sent)

    def _drop(self, scan: _OpenScan, committed: _Committed) -> None:
        """Drop what is done by a seal that is durable, and decide on what was held back for it."""
        slice_, seal, drop_before, answered = committed.sent
        changes = self._partition.sealed(seal, slice_.contents, drop_before)
        if answered > self._answered:
            changes.answered_before = scan.snapshot
            self._answered = answered
        self._follower.write(changes)
        self._follower.release_held()

    def _next_slice(self, scan: _OpenScan) -> tuple[Slice, Iterator[Row], Iterator[Row], bool]:
        """Return the slice to fire next, the rows it must have too, those behind it, and whether it may take these."""
        store = self._follower.store
        ready = self._prebuilt.next_slice(scan.start, scan.end, store.rows)
        if ready is None:
            return self._new_slice(scan.end_ms // 1000 - 1), iter(()), store.rows(scan.start, scan.end), True
        built, missed, is_last = ready
        return built, missed, store.rows(behind(built), scan.end), is_last

    def _new_slice(self, not_before_s: int) -> Slice:
        ports = self._ports
        return Slice(
            self.number,
            self._connected.new_batch,
            ports.callback_topics,
            ports.rejects,
            ports.clock,
            rows_max=self._slice_rows,
            bytes_max=ports.settings.slice_bytes,
            not_before_s=not_before_s,
        )

    @property
    def _connected(self) -> Sender:
        if self._sender is None:
            raise AssertionError("there is a sender between takeover and hand-over only")
        return self._sender

    # --- in between --------------------------------------------------------------------------------------------------

    async def _prebuild(self) -> None:
        """Build callbacks of the next seconds, until they are all there or the next tick comes."""
        partition, budget, store = self._partition, self._ports.budget, self._follower.store
        if not self._tick or partition.scan:
            return
        start = first_key(partition.sealed_ms)
        for second in range(self._tick + 1, self._tick + 1 + _PREBUILD_S):
            # Half of the budget is for the next second of all partitions.
            kept_free = 0 if second == self._tick + 1 else budget.size // 2
            if self._wake.is_set() or budget.bytes <= kept_free:
                return
            end = first_key((second + 1) * 1000)
            prebuilt = self._prebuilt.up_to(end)
            if prebuilt is None and next(store.rows(start, end), None):
                prebuilt = Prebuilt(partial(self._new_slice, second), store.rows(start, end), start, end, budget)
                self._prebuilt.add(prebuilt)
            if prebuilt and not await self._build_all(prebuilt, kept_free):
                return
            start = end

    async def _build_all(self, prebuilt: Prebuilt, kept_free: int) -> bool:
        """Build what *prebuilt* is to have; False when that is to be left, for now or until its tick comes."""
        budget, gate = self._ports.budget, self._ports.gate
        try:
            while not self._wake.is_set() and await prebuilt.more() and budget.bytes > kept_free:
                await gate.over(unless=self._wake.is_set)
        except KafkaError:
            # The tick will meet the same trouble, if it lasts, and say so.
            self._prebuilt.release()
            return False
        return not self._wake.is_set()

    async def _forget(self) -> None:
        """Forget timer ids that are old enough, until cancelled."""
        while True:
            await asyncio.sleep(_FORGET_EVERY_S)
            # Before, copies may be read that were decided when what is forgotten now was not.
            while self._serving and self._follower.store.forget(self._partition.sealed_ms // 1000 - 1):
                await self._ports.gate.over(unless=lambda: False)
                await asyncio.sleep(0)

    # --- what is shown -----------------------------------------------------------------------------------------------

    def _count(self, fired: Slice, late_arrivals: int) -> None:
        metrics = self._ports.metrics
        for topic, count in fired.fired.items():
            metrics.fired.labels(topic).inc(count)
        for reason, count in fired.refused.items():
            metrics.rejected.labels(reason).inc(count)
        metrics.late_arrivals.inc(late_arrivals)
        now_s = self._ports.clock.wall_s()
        for second, count in fired.seconds.items():
            metrics.lateness.add(now_s - second, count)

    def watch_log(self, start: int) -> None:
        """Take note that the request log starts at *start* by now: what is gone from it cannot be restored."""
        if not self._serving:
            return
        told, self._unrestorable = self._unrestorable, start > self._partition.restorable_from
        self._ports.metrics.log_gap.labels(self.number).set(self._follower.has_gap or self._unrestorable)
        if self._unrestorable and not told:
            log.error(
                "partition %d: %s starts at %d, above requests that still wait: its retention is too short",
                *(self.number, self._ports.names.requests, start),
            )

    def show(self) -> None:
        """Bring the gauges of this partition up to date."""
        metrics, follower, partition, number = self._ports.metrics, self._follower, self._partition, self.number
        since_s = self._failing_since_s
        metrics.failing.labels(number).set(0 if since_s is None else self._ports.clock.elapsed_s() - since_s)
        if self._fired_up_to or self._serving:
            # Also while it fails and is taken over anew.
            behind_s = self._tick - self._fired_up_to if self._fired_up_to else 0
            metrics.seconds_behind.labels(number).set(max(behind_s, 0))
        if not self._serving:
            return
        metrics.pending.labels(number).set(partition.pending)
        metrics.pending_until.labels(number).set(follower.store.last_second() if partition.pending else 0)
        metrics.armed.labels(number).set(self._prebuilt.requests)
        metrics.store_bytes.labels(number).set(follower.store.bytes_on_disk)
        metrics.ingest_lag.labels(number).set(max(follower.awaited - partition.position, 0))
        metrics.blocked.labels(number).set(follower.blocked_s)


def _chore_ended(follower: Follower, task: asyncio.Task[None]) -> None:
    if not task.cancelled() and isinstance(error := task.exception(), Exception):
        follower.fail(error)


def check_partitions(seals: Iterable[Sealed], partitions: int) -> None:
    """
    Check the number of partitions against the one that the seals were written with.

    Raises:
        TopicsError: it has changed.
    """
    before = max(seals, key=age_of, default=None)
    if before and before.partitions != partitions:
        raise TopicsError(
            f"the service has run with {before.partitions} partitions and finds {partitions} now. The count is fixed "
            "for life, since timer ids are routed by it: move to a new set of topics (--topic-prefix) instead"
        )
