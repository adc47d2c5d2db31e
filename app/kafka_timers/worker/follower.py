"""
Follows the request log of one partition: reads it into the store, and knows which requests are done.

It needs no ownership, since nothing that it does is visible outside. So a worker may follow a partition that another
worker owns. Each change goes into the store first, and into the state once that has succeeded:

    records → core.accept → Changes → store → state

So a failed write leaves everything unchanged, and a new takeover continues from there.
"""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from kafka_timers.clock import Clock
from kafka_timers.core.accepting import Accepted, accept, take
from kafka_timers.core.changes import Changes
from kafka_timers.core.partition import Partition
from kafka_timers.core.reconcile import reconcile, unreconciled
from kafka_timers.core.takeover import may_wait_below
from kafka_timers.core.wire import Record, Sealed
from kafka_timers.runtime.metrics import WorkerMetrics
from kafka_timers.runtime.targets import TopicLookup
from kafka_timers.worker.faults import Fault, FaultError, LogCutError, LogGapError, StoreBehindError
from kafka_timers.worker.store import TimerStore
from kafka_timers.worker.stores import StoreFolders

log = logging.getLogger(__name__)

# A store that has been behind its disk for this long will hardly catch up.
_BEHIND_S, _BEHIND_MAX_S = 0.01, 10.0

# Called with changes from reading, after they were written.
OnRead = Callable[[Changes], None]
# Returns the offset below which the log has what it had under a leader epoch, see `LogBounds.kept`.
Kept = Callable[[int], Awaitable[int]]
# Tells whether the log is another one than that of an id or mark, see `TopicLog.is_other`.
IsOther = Callable[[bytes], Awaitable[bool]]


class Follower:
    """
    The state and the store of one partition, from `open` to `close`.

    Args:
        on_read: called with the changes from reading.

    Attributes:
        awaited: the offset that a caller of `reach` waits for.
        read_at_s: time of the last read on the monotonic clock, in seconds.
    """

    def __init__(
        self,
        partition: Partition,
        *,
        partitions: int,
        topic: str,
        stores: StoreFolders,
        topics: TopicLookup,
        metrics: WorkerMetrics,
        clock: Clock,
        kept: Kept,
        is_other: IsOther,
        on_read: OnRead,
    ) -> None:
        self.partition = partition
        self.awaited = 0
        self.read_at_s = -math.inf
        self._number = partition.number
        self._partitions = partitions
        self._topic = topic
        self._stores = stores
        self._topics = topics
        self._metrics = metrics
        self._clock = clock
        self._kept = kept
        self._is_other = is_other
        self._on_read = on_read
        self._store: TimerStore | None = None
        self._fault: Fault | None = None
        self._news = asyncio.Event()
        # Records that can be decided only after the open scan is sealed, each with the position after them.
        self._held: deque[tuple[Sequence[Record], int]] = deque()
        # The offset at which an open transaction blocks reading, and the time since when.
        self._stable = 0
        self._blocked_since_s: float | None = None
        # Ends of the log that are not reached yet, each with the time of the question.
        self._ends: deque[tuple[int, float]] = deque()

    # --- opening and closing it --------------------------------------------------------------------------------------

    async def open(
        self,
        seals: Sequence[Sealed],
        start: int,
        end: int,
        read_from: int | None,
        *,
        log_id: bytes = b"",
        loses: bool = True,
    ) -> bool:
        """
        Open the store and bring it in line with the *seals*, or empty it. Then feed the log from `position` on.

        Args:
            end: the offset after the log's last committed request.
            read_from: the offset to read the log from, regardless of the store; None to continue from the store's
                position.
            log_id: id or mark of the log.
            loses: whether to go on without requests that have left the log and that this store does not have.

        Returns:
            True if the store's contents were kept.

        Raises:
            LogCutError: the seals do not belong to this log.
            LogGapError: requests have left the log; nothing has changed.
            NewerFormatError: a later version has written the seals or the store.
        """
        number, partition = self._number, self.partition
        self._store = store = self._stores.open(number)
        local = store.head()
        if local and await self._is_other(local.log):
            local = None
        if local and local.position > end:
            log.warning("partition %d: the store has read up to %d, the log ends at %d", number, local.position, end)
            local = None
        if local and read_from is not None and number in self._stores.alone:
            # The log has not all that the store has. So a copy is judged by the store, though it may lack a cancel.
            local, read_from = replace(local, known_from=0), None
        if read_from is not None:
            local, read_from = None, max(read_from, start)
        keep = partition.acquire(
            seals,
            local,
            ignored=store.ignored() if local else {},
            log_start=start,
            read_from=read_from,
            log=log_id,
        )
        self._check_log(end)
        if start > partition.position and may_wait_below(seals, start):
            if not loses:
                raise LogGapError(self._topic, number, partition.position, start)
            partition.lost = range(partition.position, start)
            log.error(
                "partition %d: the timers that wait at offsets %d to %d of %s are lost, since it starts at %d: its "
                "retention is too short",
                *(number, partition.position, start - 1, self._topic, start),
            )
        if local and keep:
            partition.restore(store.counts())
            before = unreconciled(partition, local)
            marks = store.marks(before)
            has_ids = store.has_ids
            self.write(reconcile(partition, store.kept_rows(before), marks, store.versions, has_ids=has_ids))
        elif not store.is_new:
            store.close()
            self._stores.destroy(number)
            self._store = self._stores.open(number)
        self.write(partition.read(max(partition.position, start)))
        return bool(local and keep)

    def take(self, repeated: Sequence[Record]) -> None:
        """Take requests that a sweep has *repeated*; `has_taken` notes that these were all."""
        self.write(take(repeated, self.partition, self._partitions, self.store.versions))

    def has_taken(self) -> None:
        """Note that all is in the store that sweeps have repeated."""
        self.write(self.partition.has_taken())

    def _check_log(self, end: int) -> None:
        """Check that the request log, which ends at *end*, still has all that has fired."""
        if self.partition.must_read_to > end:
            raise LogCutError(self._topic, self._number, end, self.partition.must_read_to, has_fired=True)

    async def close(self) -> None:
        """Close the store. Once this returns or is cancelled, its folder may be opened again."""
        store, self._store = self._store, None
        if store:
            await self._stores.close(store)

    @property
    def store(self) -> TimerStore:
        """The store. It is open only between `open` and `close`."""
        if self._store is None:
            raise AssertionError("the store is open between takeover and hand-over only")
        return self._store

    def write(self, changes: Changes) -> None:
        """Apply *changes* to the store, then to the state."""
        self.store.write(changes)
        self.partition.apply(changes)

    # --- fed by the reader -------------------------------------------------------------------------------------------

    @property
    def read_up_to(self) -> int:
        """The offset up to which records have arrived, held back records included."""
        return self._held[-1][1] if self._held else self.partition.position

    async def ready(self, epoch: int) -> None:
        """
        Wait until records may be fed that were read under a leader *epoch*, or -1 if it is not known.

        That is at once, unless they arrive faster than the store's disk can take them, or their leader is another one
        than before.

        Raises:
            LogCutError: this leader lacks records that have been fed.
            DiskFullError: the disk is full.
            StoreBehindError: the disk has taken nothing for too long.
        """
        if epoch > self.partition.head.leader_epoch:
            kept_to = await self._kept(self.partition.head.leader_epoch)
            if kept_to < self.read_up_to:
                raise LogCutError(self._topic, self._number, kept_to, self.read_up_to, has_fired=False)
            self.partition.led(epoch)
        deadline_s = self._clock.elapsed_s() + _BEHIND_MAX_S
        while self._store and self._store.is_behind:
            if self._clock.elapsed_s() >= deadline_s:
                raise StoreBehindError(f"the disk of {self._store.folder} has taken nothing for {_BEHIND_MAX_S:.0f} s")
            await asyncio.sleep(_BEHIND_S)

    def ingest(self, records: Sequence[Record], position: int) -> None:
        """
        Store *records*. Afterwards the log has been read up to *position*.

        Known records are skipped: the reader starts again at the store's position, though more records are held back.

        Raises:
            FaultError: there was a fault before.
            DiskFullError: the disk of the store is full.
        """
        # After a fault there may be a gap between the written records and the next ones.
        self.check()
        read_up_to = self.read_up_to
        if position <= read_up_to:
            return
        if records and records[0].offset < read_up_to:
            records = [record for record in records if record.offset >= read_up_to]
        if self._held:
            self._held.append((records, position))
            return
        accepted = accept(records, self.partition, self._partitions, self.store.versions)
        kept_to, held = position, records[accepted.count :]
        if held:
            kept_to = held[0].offset
        kept, counted = records[: accepted.count], self.partition.head.read
        if counted is not None:
            counted = counted.read_on(self._number, kept, kept_to, accepted.far, accepted.cancels)
        changes = self.partition.read(
            kept_to,
            accepted.rows,
            accepted.offsets,
            accepted.decided,
            read=counted,
            appended_ms=kept[-1].timestamp if kept else 0,
        )
        self.write(changes)
        if held:
            self._held.append((held, position))
        self._topics.want(accepted.topics)
        self._count(accepted)
        self.read_at_s = self._clock.elapsed_s()
        self._on_read(changes)
        self._news.set()

    def release_held(self) -> None:
        """Decide on held back records, as far as possible now."""
        held, self._held = self._held, deque()
        try:
            for records, position in held:
                self.ingest(records, position)
        except Exception as error:
            self.fail(error)
            raise

    def _count(self, accepted: Accepted) -> None:
        metrics, decided = self._metrics, accepted.decided
        for offset, error in accepted.faults.items():
            log.error(
                "%s partition %d offset %d is set aside as unreadable: %r",
                *(self._topic, self._number, offset, error),
                exc_info=error,
            )
        metrics.requests.inc(len(accepted.offsets) - accepted.refused.total())
        metrics.far.inc(len(accepted.far))
        for disposition, count in accepted.copies.items():
            metrics.copies.labels(disposition).inc(count)
        metrics.copies_lead.inc(accepted.copies_lead_s)
        for each in decided.withdrawn:
            metrics.taken_back.labels("moved" if each.superseded else "cancelled").inc()

    def blocked(self, stable: int, end: int) -> None:
        """Note that an open transaction blocks reading between *stable* and *end*; if these are equal, none does."""
        if end <= stable:
            self._blocked_since_s = None
        elif self._blocked_since_s is None or stable != self._stable:
            self._blocked_since_s = self._clock.elapsed_s()
        self._stable = stable

    @property
    def blocked_s(self) -> float:
        """Seconds since an open transaction began to block reading; 0 without one."""
        since_s = self._blocked_since_s
        return 0.0 if since_s is None else self._clock.elapsed_s() - since_s

    def first_ms(self) -> int | None:
        """Return the moment from which the first row may fire; None if there is none, or if it cannot be read."""
        try:
            return self.store.first_ms(self.partition.sealed_ms)
        except Exception as error:
            # A caller that only shows it must not fail. The owner meets the fault with the next tick.
            self.fail(error)
            return None

    @property
    def unread_s(self) -> float:
        """Seconds since the oldest unreached end of the log was first waited for; 0 without one."""
        ends, position = self._ends, self.partition.position
        while ends and ends[0][0] <= position:
            ends.popleft()
        return self._clock.elapsed_s() - ends[0][1] if ends else 0.0

    def fail(self, error: Exception) -> None:
        """Note that the partition cannot be read, or that its answers cannot be sent."""
        self._fault = self._fault or Fault.of(error)
        self._news.set()

    # --- waited for --------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise a FaultError if there was a fault."""
        if self._fault:
            raise FaultError(self._fault)

    async def reach(self, position: int, unless: Callable[[], bool]) -> None:
        """
        Wait until the store has read up to *position*, or until *unless* returns True. No scan may be open.

        Raises:
            FaultError: the partition cannot be read.
        """
        self.awaited = position
        self._ends.append((position, self._clock.elapsed_s()))
        self.check()
        while self.partition.position < position and not unless():
            self._news.clear()
            await self._news.wait()
            self.check()

    def wake(self) -> None:
        """Make `reach` check again."""
        self._news.set()
