"""
Follows the request log of one partition: brings it into the store, and knows what is done.

It needs no ownership: nothing that it does is visible outside, so a worker may follow a partition that another one
owns. Whatever changes goes into the store first; the state follows when that has succeeded:

    what is fed → core.accept → Changes → store → state

So a write that fails leaves everything as it was, and a new takeover goes on from there.
"""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from kafka_timers.clock import Clock
from kafka_timers.core.changes import Changes
from kafka_timers.core.partition import Partition
from kafka_timers.core.reconcile import reconcile, unreconciled
from kafka_timers.core.verdicts import Accepted, accept
from kafka_timers.core.wire import ReadRecord, Sealed
from kafka_timers.worker.faults import Fault, FaultError, RequestLogError, StoreBehindError
from kafka_timers.worker.metrics import WorkerMetrics
from kafka_timers.worker.ports import CallbackTopics, Stores
from kafka_timers.worker.store import TimerStore

log = logging.getLogger(__name__)

# A store that has not caught up with its disk for this long will hardly do so.
_BEHIND_S, _BEHIND_MAX_S = 0.01, 10.0

# Is told what was read, after it was written.
OnRead = Callable[[Changes], None]


class Follower:
    """
    The state and the store of one partition, from `open` to `close`.

    Args:
        partition: new; `open` sets it.
        partitions: how many there are.
        topic: the name of `timer-request`.
        stores: have the one of this partition.
        topics: are told which callback topics will be needed.
        metrics: count what is read.
        clock: tells for how long reading has been blocked.
        on_read: is told what was read.

    Attributes:
        partition: the state.
        awaited: the offset that somebody waits for the store to reach.
        read_at_s: when something was read last, by the monotonic clock.
        has_gap: whether requests that wait had left the log before they could be read.
    """

    def __init__(
        self,
        partition: Partition,
        *,
        partitions: int,
        topic: str,
        stores: Stores,
        topics: CallbackTopics,
        metrics: WorkerMetrics,
        clock: Clock,
        on_read: OnRead,
    ) -> None:
        self.partition = partition
        self.awaited = 0
        self.read_at_s = -math.inf
        self.has_gap = False
        self._number = partition.number
        self._partitions = partitions
        self._topic = topic
        self._stores = stores
        self._topics = topics
        self._metrics = metrics
        self._clock = clock
        self._on_read = on_read
        self._store: TimerStore | None = None
        self._fault: Fault | None = None
        self._news = asyncio.Event()
        # What cannot be decided before the open scan is sealed, and the position behind it.
        self._held: deque[tuple[Sequence[ReadRecord], int]] = deque()
        # Where a transaction that is open keeps the log from being read on, and since when.
        self._stable = 0
        self._blocked_since_s: float | None = None
        # The ends of the log that are not reached yet, and when each was asked for.
        self._ends: deque[tuple[int, float]] = deque()

    # --- opening and closing it --------------------------------------------------------------------------------------

    def open(self, seals: Sequence[Sealed], start: int, end: int, read_from: int | None) -> bool:
        """
        Open the store and bring it in line with the *seals*, or empty it; the log is to be fed from `position` on.

        Args:
            seals: the last ones of the partition.
            start: first offset of the request log.
            end: the offset behind its last committed request.
            read_from: the offset to read the log from without regard to the store; None to go on where it was.

        Returns:
            Whether what the store had was kept.

        Raises:
            RequestLogError: the log is not the one that the seals are of.
            NewerFormatError: a later version has written the seals or the store.
            Exception: RocksDB cannot open or write the store.
        """
        number, partition = self._number, self.partition
        self._store = store = self._stores.open(number)
        local = store.head()
        if local and local.position > end:
            log.warning("partition %d: the store has read up to %d, the log ends at %d", number, local.position, end)
            local = None
        if read_from is not None:
            local, read_from = None, max(read_from, start)
        keep = partition.acquire(seals, local, log_start=start, read_from=read_from)
        self._check_log(start, end)
        if local and keep:
            partition.restore(store.counts(), store.ignored())
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

    def _check_log(self, start: int, end: int) -> None:
        """Compare what must be read with what the request log still has, from *start* to *end*."""
        partition = self.partition
        if partition.must_read_to > end:
            raise RequestLogError(self._topic, self._number, end, partition.must_read_to)
        self.has_gap = start > partition.position
        if self.has_gap:
            log.error(
                "partition %d: requests from offset %d on are pending, but %s starts at %d: its retention is too short",
                *(self._number, partition.position, self._topic, start),
            )

    async def close(self) -> None:
        """Close the store; its folder may be opened again once this returns, or is cancelled."""
        store, self._store = self._store, None
        if store:
            await self._stores.close(store)

    @property
    def store(self) -> TimerStore:
        """The store; open between `open` and `close` only."""
        if self._store is None:
            raise AssertionError("the store is open between takeover and hand-over only")
        return self._store

    def write(self, changes: Changes) -> None:
        """
        Keep *changes*: in the store, then in the state.

        Raises:
            Exception: RocksDB did not take them; nothing has changed.
        """
        self.store.write(changes)
        self.partition.apply(changes)

    # --- fed by the reader -------------------------------------------------------------------------------------------

    @property
    def read_up_to(self) -> int:
        """The offset up to which records have come, also those that are held back."""
        return self._held[-1][1] if self._held else self.partition.position

    async def ready(self) -> None:
        """
        Wait until records may be fed, which is at once unless they come faster than the disk of the store takes them.

        Raises:
            DiskFullError: the disk is full.
            StoreBehindError: it has taken nothing for too long.
        """
        deadline_s = self._clock.elapsed_s() + _BEHIND_MAX_S
        while self._store and self._store.is_behind:
            if self._clock.elapsed_s() >= deadline_s:
                raise StoreBehindError(f"the disk of {self._store.folder} has taken nothing for {_BEHIND_MAX_S:.0f} s")
            await asyncio.sleep(_BEHIND_S)

    def ingest(self, records: Sequence[ReadRecord], position: int) -> None:
        """
        Keep *records*, after which the log has been read up to *position*.

        What has come before is passed over: the reader begins anew where the store is, though more is held back.

        Raises:
            FaultError: something has failed before.
            DiskFullError: the disk of the store is full.
            Exception: RocksDB did not take it.
        """
        # After a fault there may be a gap between what was written and what comes.
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
        counted = self.partition.head.read
        if counted is not None:
            kept = records[: accepted.count]
            counted = counted.read_on(self._number, kept, kept_to, accepted.far, accepted.cancels)
        changes = self.partition.read(
            kept_to,
            accepted.rows,
            accepted.offsets,
            accepted.decided,
            has_callbacks=accepted.has_callbacks,
            read=counted,
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
        """Decide on what was held back, as far as that can be done now."""
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
        """Take note that nothing between *stable* and the log's *end* can be read before a transaction has ended."""
        if end <= stable:
            self._blocked_since_s = None
        elif self._blocked_since_s is None or stable != self._stable:
            self._blocked_since_s = self._clock.elapsed_s()
        self._stable = stable

    @property
    def blocked_s(self) -> float:
        """Seconds since an open transaction keeps the log from being read on; 0 where none does."""
        since_s = self._blocked_since_s
        return 0.0 if since_s is None else self._clock.elapsed_s() - since_s

    def first_ms(self) -> int | None:
        """Return the moment from which on the first row may fire; None where there is none, or it cannot be read."""
        try:
            return self.store.first_ms(self.partition.sealed_ms)
        except Exception as error:
            # Whoever only shows it is not to end for it: the owner finds out with the next tick.
            self.fail(error)
            return None

    @property
    def unread_s(self) -> float:
        """Seconds since somebody began to wait for the oldest end of the log that is not reached; 0 where none is."""
        ends, position = self._ends, self.partition.position
        while ends and ends[0][0] <= position:
            ends.popleft()
        return self._clock.elapsed_s() - ends[0][1] if ends else 0.0

    def fail(self, error: Exception) -> None:
        """Take note that the partition cannot be read, or that its answers cannot be sent."""
        self._fault = self._fault or Fault.of(error)
        self._news.set()

    # --- waited for --------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """
        Check that nothing has failed.

        Raises:
            FaultError: something has.
        """
        if self._fault:
            raise FaultError(self._fault)

    async def reach(self, position: int, unless: Callable[[], bool]) -> None:
        """
        Wait until the store has read up to *position*, or *unless* holds; no scan may be open.

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
        """Have `reach` look again."""
        self._news.set()


def withdrawn_keys(changes: Changes) -> Iterable[bytes]:
    """Return the keys of the requests that *changes* withdraw."""
    return [key for key, mark in changes.marks.items() if mark is not None]
