"""
One owned partition, from takeover to hand-over.

    take over   shut out the owner before → read the seals → open the store, or replay the log → read on
    per tick    wait until all that was accepted before it is read → scan → callbacks, rejects and seal → drop the rows

Any fault ends in a new takeover: what is done is told by the seals, so nothing has to be remembered across it.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from kafka_timers.broker.epoch import EpochCheck
from kafka_timers.broker.seals import read_tail
from kafka_timers.clock import Clock
from kafka_timers.core.partition import Partition, Scan, first_key
from kafka_timers.core.rows import Row
from kafka_timers.core.verdicts import Reason, accept
from kafka_timers.core.versions import Decided, KnownFromError
from kafka_timers.core.wire import Record, Sealed, Topics, age_of
from kafka_timers.errors import KafkaTimersError, TopicsError
from kafka_timers.settings import WorkerSettings
from kafka_timers.worker.metrics import WorkerMetrics
from kafka_timers.worker.outbox import Outbox, Replies
from kafka_timers.worker.prebuild import Ahead, Armed, Room, behind
from kafka_timers.worker.priority import Rush
from kafka_timers.worker.reader import RequestReader
from kafka_timers.worker.sender import FencedError, Sender, TopicsRefusedError
from kafka_timers.worker.slices import Rejects, Slice
from kafka_timers.worker.store import StoreMemory, TimerStore, destroy, is_damage
from kafka_timers.worker.targets import CallbackTopics
from kafka_timers.worker.tasks import cancel

log = logging.getLogger(__name__)

_PAUSES_S = (0.1, 0.5, 1.0, 2.0, 5.0)
_SLICE_ROWS_MIN = 100
# A second that takes this long to build is as much as a worker can do anyway.
_ARM_AHEAD_S = 5
_FORGET_EVERY_S = 1.0


class RequestLogError(Exception):
    """The request log is not the one that the seals are of; firing from it would lose or repeat timers."""


class Fences:
    """
    End offsets of the request log, asked for once per tick for all partitions that this worker owns.

    Over a connection of its own: behind the reader's long poll an answer takes as long as the poll.
    """

    def __init__(self, consumer: AIOKafkaConsumer, topic: str, numbers: Callable[[], list[int]]) -> None:
        self._consumer = consumer
        self._topic = topic
        self._numbers = numbers
        self._second = 0
        self._asked: asyncio.Task[dict[int, int]] | None = None

    async def end(self, number: int, second: int) -> int:
        """Return the offset behind the last committed request of partition *number*, asked for after tick *second*."""
        if self._asked is None or second != self._second:
            self._second = second
            self._asked = asyncio.create_task(self.ends(self._numbers()))
        ends = await asyncio.shield(self._asked)
        if number not in ends:
            ends = await self.ends([number])
        return ends[number]

    async def ends(self, numbers: list[int]) -> dict[int, int]:
        """Return the offset behind the last committed request of each partition."""
        where = [TopicPartition(self._topic, number) for number in numbers]
        return {at.partition: end for at, end in (await self._consumer.end_offsets(where)).items()}

    async def starts(self, numbers: list[int]) -> dict[int, int]:
        """Return the first offset that is left in the log of each partition."""
        where = [TopicPartition(self._topic, number) for number in numbers]
        return {at.partition: start for at, start in (await self._consumer.beginning_offsets(where)).items()}


class Ledger:
    """The seals of any partition, one reading at a time over one connection."""

    def __init__(self, consumer: AIOKafkaConsumer, topic: str) -> None:
        self._consumer = consumer
        self._topic = topic
        self._free = asyncio.Lock()

    async def seals(self, number: int) -> list[Sealed]:
        """Return the last seals of partition *number*."""
        async with self._free:
            return await read_tail(self._consumer, self._topic, number)


@dataclass(frozen=True, slots=True)
class Shared:
    """What the owners of one process share."""

    settings: WorkerSettings
    topics: Topics
    partitions: int
    reader: RequestReader
    fences: Fences
    ledger: Ledger
    targets: CallbackTopics
    rejects: Rejects
    replies: Replies
    memory: StoreMemory
    room: Room
    rush: Rush
    cluster: str
    metrics: WorkerMetrics
    clock: Clock
    name: str


class Owner:
    """
    Owns one partition until `stop`.

    Attributes:
        partition: its state; a new one after each takeover.
        awaited: the offset that the tick waits for the store to reach.
    """

    def __init__(self, number: int, shared: Shared) -> None:
        self.number = number
        self.partition = Partition(number, shared.settings.horizon_s)
        self.awaited = 0
        self._shared = shared
        self._store: TimerStore | None = None
        self._sender: Sender | None = None
        self._ahead = Ahead()
        self._slice_rows = shared.settings.slice_rows
        self._tick = 0
        self._fired_up_to = 0
        self._folder = Path(shared.settings.data_dir) / str(number)
        self._wake = asyncio.Event()
        self._read_on = asyncio.Event()
        self._stopped = asyncio.Event()
        self._failed: Exception | None = None
        # Where to read the log from instead of going on, when a copy has asked for it.
        self._read_from: int | None = None
        # What cannot be decided before the open scan is sealed, and the position behind it.
        self._held: deque[tuple[Sequence[Record], int]] = deque()
        self._outbox = Outbox(number, shared.replies, None)
        self._chores: list[asyncio.Task[None]] = []
        self._answered = 0
        # Whether requests had left the log before the takeover could read them, and whether some that wait have since.
        self._gap = self._unrestorable = False
        # Where a transaction that is open keeps the log from being read on, and since when.
        self._stable = 0
        self._blocked_since_s: float | None = None
        self._serving = False
        self._trouble = "is being taken over"
        self._looked_at_s = shared.clock.elapsed_s()
        self._task = asyncio.create_task(self._run(), name=f"partition-{number}")

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
        self._read_on.set()
        await asyncio.wait([self._task], timeout=limit_s)
        await cancel([self._task])
        self._shared.metrics.forget(self.number)

    @property
    def idle_s(self) -> float:
        """Seconds since this partition has made progress."""
        return self._shared.clock.elapsed_s() - self._looked_at_s

    def problem(self) -> str | None:
        """Return why this partition does not fire; None when it does."""
        if self._gap or self._unrestorable:
            return f"partition {self.number}: its request log starts above the oldest pending request"
        if self.idle_s > self._shared.settings.stalled_after_s:
            return f"partition {self.number} {self._trouble}: no progress for {self.idle_s:.0f} s"
        return None if self._serving else f"partition {self.number} {self._trouble}"

    # --- fed by the reader -------------------------------------------------------------------------------------------

    def ingest(self, records: Sequence[Record], position: int) -> None:
        """Keep *records*, after which the log has been read up to *position*."""
        partition, store, shared = self.partition, self._opened, self._shared
        read_up_to = self._held[-1][1] if self._held else partition.position
        if records and records[0].offset < read_up_to:
            # The reader has begun anew while some were held back.
            records = [record for record in records if record.offset >= read_up_to]
        if self._held:
            self._held.append((records, position))
            return
        accepted = accept(records, partition, shared.partitions, store.versions)
        if accepted.count < len(records):
            held = records[accepted.count :]
            self._held.append((held, position))
            position = held[0].offset
        decided = accepted.decided
        partition.position = position
        partition.added(accepted.offsets)
        if decided.versions or decided.answers or decided.dropped:
            self._keep_decided(decided)
            store.add(accepted.rows, partition, decided)
            self._outbox.add(decided.answers)
        else:
            store.add(accepted.rows, partition)
        if accepted.rows:
            self._ahead.added(min(accepted.rows)[0])
        shared.targets.want(accepted.topics)
        shared.metrics.requests.inc(len(accepted.offsets) - accepted.refused.total())
        shared.metrics.far.inc(accepted.far)
        for worth, count in accepted.copies.items():
            shared.metrics.copies.labels(worth).inc(count)
        shared.metrics.copies_lead.inc(accepted.copies_lead_s)
        self._read_on.set()
        if not self._serving:
            self._looked_at_s = self._shared.clock.elapsed_s()

    def _keep_decided(self, decided: Decided) -> None:
        partition = self.partition
        for each in decided.taken_back:
            self._shared.metrics.taken_back.labels("moved" if each.moved else "cancelled").inc()
            self._ahead.taken_back(each.key)
        partition.removed([each.counted for each in decided.taken_back])
        for offset, second in decided.remember:
            partition.remember(offset, second)

    def blocked(self, stable: int, end: int) -> None:
        """Take note that nothing between *stable* and the log's *end* can be read before a transaction has ended."""
        if end <= stable:
            self._blocked_since_s = None
        elif self._blocked_since_s is None or stable != self._stable:
            self._blocked_since_s = self._shared.clock.elapsed_s()
        self._stable = stable

    def fail(self, error: Exception) -> None:
        """Take note that the partition cannot be read, or that its answers cannot be sent."""
        self._failed = error
        self._wake_up()
        self._read_on.set()

    # --- the partition's life ----------------------------------------------------------------------------------------

    async def _run(self) -> None:
        settings = self._shared.settings
        faults = 0
        while not self._stopped.is_set():
            pause_s = 0.0
            try:
                await self._take_over()
                # A tick may have come before or during the takeover.
                self._wake.set()
                while await self._next_tick():
                    await self._fire_up_to(self._tick)
                    faults = 0
                    await self._arm()
            except FencedError:
                self._shared.metrics.fenced.inc()
                self._trouble = "is owned by another worker"
                log.warning("partition %d: another worker owns it by now", self.number)
                # Either this worker has lost the partition and will hear of it with its next heartbeat, or the broker
                # gave up a transaction that took too long. After a whole session without a word it is the latter.
                pause_s = settings.session_timeout_s
            except KnownFromError as error:
                log.info("partition %d: %s", self.number, error)
                self._read_from = error.offset
            except Exception as error:
                self._shared.metrics.failures.inc()
                self._trouble = f"failed ({_told(error)})"
                expected = isinstance(error, (KafkaError, TopicsRefusedError, RequestLogError, KafkaTimersError))
                log.warning("partition %d: %s", self.number, _told(error), exc_info=None if expected else error)
                # A callback topic may have changed since it was looked up, and be the cause.
                self._shared.targets.doubt()
                if isinstance(error, TopicsRefusedError):
                    for topic, reason in error.reasons.items():
                        if reason is Reason.TOPIC_REFUSED or faults:
                            self._shared.targets.refuse(topic, reason)
                elif is_damage(error):
                    log.warning("partition %d: its store is damaged and is rebuilt from the log", self.number)
                    self._close()
                    destroy(self._folder)
                pause_s = _PAUSES_S[min(faults, len(_PAUSES_S) - 1)]
                faults += 1
            finally:
                await self._let_go()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stopped.wait()

    async def _take_over(self) -> None:
        shared, number = self._shared, self.number
        self._failed = None
        self._sender = sender = Sender(shared.settings, number, shared.topics.sealed)
        await sender.start()
        seals = await shared.ledger.seals(number)
        check_partitions(seals, shared.partitions)
        start, end = [(await ask([number]))[number] for ask in (shared.fences.starts, shared.fences.ends)]
        self._store = store = _open(self._folder, shared, number)
        local = store.local()
        if local and local.position > end:
            log.warning("partition %d: the store has read up to %d, the log ends at %d", number, local.position, end)
            local = None
        if self._read_from is not None:
            local = None
        self.partition = partition = Partition(number, shared.settings.horizon_s)
        keep = partition.take_over(seals, local, self._read_from and max(self._read_from, start))
        self._read_from = None
        if partition.position <= start:
            # Nothing that is left to be known lies below.
            partition.known_from = 0
        self._check_log(start, end)
        if local and keep:
            store.settle(partition, local)
        elif not store.is_new:
            self._close()
            destroy(self._folder)
            self._store = TimerStore(self._folder, _identity(shared, number), shared.memory)
        self._opened.save(partition)
        self._start_chores(sender.epoch_check)
        shared.metrics.takeovers.labels("kept" if local and keep else "rebuilt").inc()
        log.info(
            "partition %d: taken over, fired up to second %d, %d pending in the store, reading on from offset %d of %d",
            *(number, partition.second, partition.pending, partition.position, end),
        )
        shared.reader.add(self)
        # Until the log has been read up to where it ends now, an older request might come after a younger one.
        await self._reach(max(end, partition.must_reach), None)
        self._trouble = "waits for a tick"
        self._serving = True
        self._looked_at_s = shared.clock.elapsed_s()

    def _start_chores(self, epoch_check: EpochCheck | None) -> None:
        partition = self.partition
        self._held.clear()
        self._outbox = outbox = Outbox(self.number, self._shared.replies, epoch_check)
        self._answered = 0
        # What a seal covers was answered before it.
        left = [answer for answer in self._opened.answers() if not partition.is_answered(answer.offset)]
        outbox.add([answer.by_now(partition) for answer in left])
        self._chores = [asyncio.create_task(chore) for chore in (outbox.run(), self._forget())]
        for task in self._chores:
            task.add_done_callback(self._chore_ended)

    def _chore_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self.fail(error)

    def _check_log(self, start: int, end: int) -> None:
        """Compare what must be read with what the request log still has, from *start* to *end*."""
        partition, topic = self.partition, self._shared.topics.requests
        if partition.must_reach > end:
            raise RequestLogError(
                f"{topic} ends at offset {end}, below {partition.must_reach} up to which it has been fired: was the "
                "topic deleted, or did it lose records? If it was made anew on purpose, make that of the seals anew too"
            )
        self._gap = start > partition.position
        self._shared.metrics.log_gap.labels(self.number).set(self._gap)
        if self._gap:
            log.error(
                "partition %d: requests from offset %d on are pending, but %s starts at %d: its retention is too short",
                *(self.number, partition.position, topic, start),
            )
            partition.position = start

    def _wake_up(self) -> None:
        self._wake.set()
        # Arming may be waiting for others to have sent.
        self._shared.rush.nudge()

    async def _next_tick(self) -> bool:
        """Wait for a tick; False when the partition is to be given up."""
        await self._wake.wait()
        self._wake.clear()
        if self._failed:
            raise self._failed
        return not self._stopped.is_set()

    async def _fire_up_to(self, second: int) -> None:
        partition, store, shared = self.partition, self._opened, self._shared
        if second > partition.second:
            await self._reach(await shared.fences.end(self.number, second), shared.settings.fence_wait_s)
            quiet = second - partition.second < shared.settings.seal_every_s
            if partition.scan or not quiet or store.has_due(partition.second, second):
                self._trouble = f"fires second {second}"
                while partition.second < second and not self._stopped.is_set():
                    scan = partition.begin(second)
                    store.save(partition)
                    with shared.rush.on():
                        await self._fire(scan)
                self._trouble = "waits for a tick"
        self._fired_up_to = max(second, self._fired_up_to)
        self._looked_at_s = shared.clock.elapsed_s()

    async def _fire(self, scan: Scan) -> None:
        """Send the next slice of *scan* and its seal."""
        shared, partition, store, sender = self._shared, self.partition, self._opened, self._connected
        start, end = partition.range_of(scan)
        taken, missed, rows, is_last = self._next_slice(scan)
        try:
            # Past the transaction's timeout the broker would abort it anyway.
            async with asyncio.timeout(shared.settings.transaction_timeout_s * 0.8):
                await sender.begin()
                while await taken.add(missed):
                    pass
                ended = False
                while is_last and not (ended or taken.is_full):
                    ended = not await taken.add(rows)
                    await sender.send_all(taken.full())
                await sender.send_all(taken.rest())
                behind_last = end if ended else behind(taken)
                cancelled, moved = store.count_taken_back(start, behind_last)
                seal = partition.seal(taken.taken, complete=ended, cancelled=cancelled, moved=moved)
                seal.lateness_p50_ms = taken.lateness_ms(0.5)
                seal.lateness_p99_ms = taken.lateness_ms(0.99)
                seal.lateness_max_ms = taken.lateness_ms(1)
                seal.worker = shared.name
                seal.partitions = shared.partitions
                # What a seal covers is never answered again.
                answered = await self._outbox.sent()
                await sender.commit(seal)
        except TimeoutError as error:
            self._slice_rows = max(self._slice_rows // 4, _SLICE_ROWS_MIN)
            raise KafkaError(
                f"{len(taken)} callbacks were not taken in time; slices have {self._slice_rows} now"
            ) from error
        partition.sealed(seal, taken.taken)
        if len(taken) or cancelled or moved:
            store.drop(behind_last, partition)
        else:
            store.save(partition)
        if answered > self._answered:
            store.answered(scan.fence)
            self._answered = answered
        held, self._held = self._held, deque()
        for records, position in held:
            self.ingest(records, position)
        self._slice_rows = min(self._slice_rows * 2, shared.settings.slice_rows)
        self._looked_at_s = shared.clock.elapsed_s()
        self._count(taken, seal.late_arrivals)

    # --- the callbacks of the next seconds ---------------------------------------------------------------------------

    async def _arm(self) -> None:
        """Build callbacks of the next seconds, until they are all there or the next tick comes."""
        partition, room, store = self.partition, self._shared.room, self._opened
        if not self._tick or partition.scan:
            return
        start = first_key(partition.second + 1)
        for second in range(self._tick + 1, self._tick + 1 + _ARM_AHEAD_S):
            # Half of the room is for the next second of all partitions.
            kept_free = 0 if second == self._tick + 1 else room.size // 2
            if self._wake.is_set() or room.bytes <= kept_free:
                return
            end = first_key(second + 1)
            armed = self._ahead.up_to(end)
            if armed is None and next(store.rows(start, end), None):
                armed = Armed(partial(self._new_slice, second), store.rows(start, end), start, end, room)
                self._ahead.add(armed)
            if armed and not await self._arm_all(armed, kept_free):
                return
            start = end

    async def _arm_all(self, armed: Armed, kept_free: int) -> bool:
        """Build what *armed* is to have; False when that is to be left, for now or until its tick comes."""
        room, rush = self._shared.room, self._shared.rush
        try:
            while not self._wake.is_set() and await armed.more() and room.bytes > kept_free:
                await rush.over(unless=self._wake.is_set)
        except KafkaError:
            # The tick will meet the same trouble, if it lasts, and say so.
            self._ahead.release()
            return False
        return not self._wake.is_set()

    async def _forget(self) -> None:
        """Forget timer ids that are old enough, until cancelled."""
        while True:
            await asyncio.sleep(_FORGET_EVERY_S)
            # Before, copies may be read that were decided when what is forgotten now was not.
            while self._serving and self._opened.forget(self.partition.second):
                await self._shared.rush.over(unless=lambda: False)
                await asyncio.sleep(0)

    def _next_slice(self, scan: Scan) -> tuple[Slice, Iterator[Row], Iterator[Row], bool]:
        """Return the slice to fire next, the rows it must have too, those behind it, and whether it may take these."""
        store, (start, end) = self._opened, self.partition.range_of(scan)
        ready = self._ahead.next_slice(start, end, store.rows)
        if ready is None:
            return self._new_slice(scan.second), iter(()), store.rows(start, end), True
        built, missed, is_last = ready
        return built, missed, store.rows(behind(built), end), is_last

    def _new_slice(self, not_before_s: int) -> Slice:
        shared = self._shared
        return Slice(
            self.number,
            self._connected.new_batch,
            shared.targets,
            shared.rejects,
            shared.clock,
            rows_max=self._slice_rows,
            bytes_max=shared.settings.slice_bytes,
            not_before_s=not_before_s,
        )

    async def _reach(self, position: int, limit_s: float | None) -> None:
        """Wait until the store has been fed up to *position*; with a limit, go on without the rest after it."""
        self.awaited = position
        if self.partition.position >= position:
            return
        self._shared.reader.hurry()
        try:
            async with asyncio.timeout(limit_s):
                while self.partition.position < position and not self._stopped.is_set():
                    self._read_on.clear()
                    await self._read_on.wait()
                    if self._failed:
                        raise self._failed
        except TimeoutError:
            self._shared.metrics.fence_timeouts.inc()

    async def _let_go(self) -> None:
        self._serving = False
        self._shared.reader.remove(self)
        self._ahead.release()
        await cancel(self._chores)
        self._chores = []
        if self._sender:
            await self._sender.stop()
            self._sender = None
        self._close()

    def _close(self) -> None:
        if self._store:
            self._store.close()
            self._store = None

    @property
    def _connected(self) -> Sender:
        if self._sender is None:
            raise AssertionError("there is a sender between takeover and hand-over only")
        return self._sender

    @property
    def _opened(self) -> TimerStore:
        if self._store is None:
            raise AssertionError("the store is open between takeover and hand-over only")
        return self._store

    def _count(self, taken: Slice, late_arrivals: int) -> None:
        metrics = self._shared.metrics
        for topic, count in taken.fired.items():
            metrics.fired.labels(topic).inc(count)
        for reason, count in taken.refused.items():
            metrics.rejected.labels(reason).inc(count)
        metrics.late_arrivals.inc(late_arrivals)
        now_s = self._shared.clock.wall_s()
        for second, count in taken.seconds.items():
            metrics.lateness.add(now_s - second, count)

    def watch_log(self, start: int) -> None:
        """Take note that the request log starts at *start* by now: what is gone from it cannot be restored."""
        if not self._serving:
            return
        told, self._unrestorable = self._unrestorable, start > self.partition.restorable_from
        self._shared.metrics.log_gap.labels(self.number).set(self._gap or self._unrestorable)
        if self._unrestorable and not told:
            log.error(
                "partition %d: %s starts at %d, above requests that still wait: its retention is too short",
                *(self.number, self._shared.topics.requests, start),
            )

    def show(self) -> None:
        """Bring the gauges of this partition up to date."""
        metrics, partition = self._shared.metrics, self.partition
        if self._fired_up_to or self._serving:
            # Also while it fails and is taken over anew.
            behind_s = self._tick - self._fired_up_to if self._fired_up_to else 0
            metrics.seconds_behind.labels(self.number).set(max(behind_s, 0))
        if not self._serving:
            return
        metrics.pending.labels(self.number).set(partition.pending)
        metrics.pending_until.labels(self.number).set(self._opened.last_second() if partition.pending else 0)
        metrics.armed.labels(self.number).set(self._ahead.requests)
        metrics.store_bytes.labels(self.number).set(self._opened.bytes_on_disk)
        metrics.ingest_lag.labels(self.number).set(max(self.awaited - partition.position, 0))
        since_s = self._blocked_since_s
        metrics.blocked.labels(self.number).set(0 if since_s is None else self._shared.clock.elapsed_s() - since_s)


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


def _identity(shared: Shared, number: int) -> bytes:
    """Return what a store must say of itself to be of use: Kafka, topic and partition, and what is kept of them."""
    return f"{shared.cluster}/{shared.topics.requests}/{number}/{shared.settings.horizon_s}".encode()


def _open(folder: Path, shared: Shared, number: int) -> TimerStore:
    identity = _identity(shared, number)
    try:
        return TimerStore(folder, identity, shared.memory)
    except Exception as error:
        if not is_damage(error):
            raise
        log.warning("partition %d: its store is damaged and is rebuilt from the log: %s", number, error)
        destroy(folder)
        return TimerStore(folder, identity, shared.memory)


def _told(error: Exception) -> str:
    return str(error) or type(error).__name__
