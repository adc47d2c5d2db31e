"""
Fires the timers of one partition, from its takeover to its release.

A tick allows all moments of its second to come. The clock of the broker that appended the tick decides which of them
have come. Timers that are due by then fire at once. The others fire at moments in between, each scan after the commit
of the one before.

Each step takes the result of the step before, so that no step can be skipped or run too early: callbacks are sent for a
scan that has begun, and rows are dropped for a seal that is committed.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from aiokafka.errors import KafkaError

from kafka_timers.core import rows as batches
from kafka_timers.core.brief import shortened
from kafka_timers.core.changes import Changes, Row
from kafka_timers.core.ignored import IGNORED_MAX
from kafka_timers.core.keys import first_key
from kafka_timers.core.refused import Reason
from kafka_timers.core.sums import hash_of_seal
from kafka_timers.core.tick_clock import TickClock
from kafka_timers.core.wire import Sealed, is_brief, is_complete
from kafka_timers.worker.faults import TopicsRefusedError
from kafka_timers.worker.follower import Follower
from kafka_timers.worker.outbox import Outbox
from kafka_timers.worker.own_log import tell_lost_seals
from kafka_timers.worker.prebuild import Prebuilt, PrebuiltSeconds, behind
from kafka_timers.worker.sender import KafkaSender
from kafka_timers.worker.shared import Ports
from kafka_timers.worker.slices import Slice
from kafka_timers.worker.sweeping import Sweeping

log = logging.getLogger(__name__)

_SLICE_ROWS_MIN, _SLICE_BYTES_MIN = 100, 64 << 10
# A second that takes longer than this to build exceeds a worker's capacity anyway.
_PREBUILD_S = 5
# With more requests than this, assume that some have ids instead of checking each.
_LOOKED_AT = 100
# A proof that the log is read from its leader is valid for this time.
_PROVED_FOR_S = 2.0
# A leader hears of a new topic in less than this time.
_UNHEARD_S = 2.0


class _OpenScan(NamedTuple):
    """The rest of an open scan: the keys from `start` up to, not including, `end`, and requests below `snapshot`."""

    start: bytes
    end: bytes
    end_ms: int
    snapshot: int


class _Sent(NamedTuple):
    """A slice that was sent to the broker, and the seal that will commit it."""

    slice: Slice
    seal: Sealed
    drop_before: bytes | None
    answered: int


class _Committed(NamedTuple):
    """A slice that receivers can see."""

    sent: _Sent


class SliceSize:
    """Limits of one transaction. They shrink after a slice that took too long, and then grow again."""

    def __init__(self, rows_max: int, bytes_max: int) -> None:
        self.rows, self.bytes = self._most = rows_max, bytes_max

    def shrink(self) -> None:
        """Note that a slice took too long."""
        self.rows, self.bytes = max(self.rows // 4, _SLICE_ROWS_MIN), max(self.bytes // 4, _SLICE_BYTES_MIN)

    def grow(self) -> None:
        """Note that a slice was committed in time."""
        rows_max, bytes_max = self._most
        self.rows, self.bytes = min(self.rows * 2, rows_max), min(self.bytes * 2, bytes_max)


class Firing:
    """
    Fires for one owner, whose sender has fenced the previous owner.

    Args:
        size: limits of slices; outlives this object.
        previous: `hash_of_seal` of the last seal of the partition.
        is_interrupted: returns True if something is more urgent than prebuilding.
        is_stopped: returns True if the partition must be given up.

    Attributes:
        second: the second that is being fired; None otherwise.
        fired_at_s: time of the last fired slice on the monotonic clock, in seconds.
    """

    def __init__(
        self,
        number: int,
        ports: Ports,
        follower: Follower,
        sender: KafkaSender,
        outbox: Outbox,
        size: SliceSize,
        tick_clock: TickClock,
        previous: bytes,
        *,
        is_interrupted: Callable[[], bool],
        is_stopped: Callable[[], bool],
    ) -> None:
        self.second: int | None = None
        self.fired_at_s = ports.clock.elapsed_s()
        self._number = number
        self._ports = ports
        self._follower = follower
        self._partition = follower.partition
        self._sender = sender
        self._outbox = outbox
        self._size = size
        self._tick_clock = tick_clock
        self._previous = previous
        # The offset of the last seal of this owner; below 0 if it is not known.
        self._sealed_at = -1
        self._whole: Sealed | None = None
        self._misses_history = False
        self._forgets_ignored = False
        self._asked_for = 0
        self._opened_s = 0.0
        # Seconds spent in each stage of the current slice.
        self._took_s: dict[str, float] = {}
        self._is_interrupted = is_interrupted
        self._is_stopped = is_stopped
        self._prebuilt = PrebuiltSeconds()
        self._answered = 0
        self._sweeping = Sweeping(number, ports, follower, sender)

    @property
    def has_seals(self) -> bool:
        """Whether the partition has a seal."""
        return bool(self._previous)

    @property
    def prebuilt(self) -> int:
        """Number of callbacks that are ready."""
        return self._prebuilt.requests

    def on_read(self, changes: Changes) -> None:
        """Note *changes* from reading the log: prebuilt callbacks may be invalid or incomplete now."""
        for key, mark in changes.marks.items():
            if mark is not None:
                self._prebuilt.withdrawn(key)
        if changes.rows:
            self._prebuilt.added(min(changes.rows)[0])

    def release(self) -> None:
        """Drop prebuilt callbacks."""
        self._prebuilt.release()

    def due_s(self, second: int) -> float | None:
        """
        Return when the next timer of the ticked UNIX *second* is due, on the monotonic clock; None if no timer is.

        The result keeps the minimal distance between moments that the settings demand.
        """
        if not self._fires_within_seconds:
            return None
        first_ms = self._follower.store.first_ms(self._partition.sealed_ms)
        if first_ms is None or first_ms >= (second + 1) * 1000:
            return None
        due_s = self._tick_clock.when_s(first_ms)
        return None if due_s is None else max(due_s, self._opened_s + self._ports.settings.instant_every_ms / 1000)

    async def up_to(self, second: int) -> None:
        """
        Fire all timers that are due now, up to the UNIX *second*. Without any, write a seal if one is due.

        Raises:
            Exception: the partition must be taken over again.
        """
        ports, partition, began_s = self._ports, self._partition, self._ports.clock.elapsed_s()
        end_ms = self._end_ms(second, began_s)
        if end_ms <= partition.sealed_ms:
            return
        with ports.gate.firing():
            if second != self._asked_for:
                # Another partition of this worker may have asked for both, some moments ago.
                asked_ms = self._end_ms(second, ports.ends.asked_s(second))
                await self._read_up_to(await ports.ends.end(self._number, second))
                self._asked_for = second
            else:
                asked_ms = partition.sealed_ms
            if self._names_any(asked_ms, end_ms):
                # A request that was appended before that moment may withdraw one of them.
                await self._read_up_to(await ports.bounds.end(self._number))
            self._opened_s = ports.clock.elapsed_s()
            self._took_s["read"] = self._opened_s - began_s
            while self._has_to_seal(end_ms) and not self._is_stopped():
                self.second = second
                with ports.gate.on():
                    await self._fire_slice(self._begin(end_ms))
            self.second = None

    @property
    def _fires_within_seconds(self) -> bool:
        return self._ports.settings.instant_every_ms > 0

    def _end_ms(self, second: int, at_s: float) -> int:
        """Return the end of the moments that had come at *at_s* (monotonic), given that *second* is ticked."""
        end_ms = (second + 1) * 1000
        if not self._fires_within_seconds:
            return end_ms
        now_ms = self._tick_clock.now_ms(at_s)
        return min(max(second * 1000, now_ms or 0) + 1, end_ms)

    def _names_any(self, start_ms: int, end_ms: int) -> bool:
        """Tell whether a request due between these moments has an id. With many requests, assume that one has."""
        if start_ms >= end_ms:
            return False
        start, end = first_key(max(start_ms, self._partition.sealed_ms)), first_key(end_ms)
        rows = enumerate(self._follower.store.rows(start, end))
        return any(number == _LOOKED_AT or batches.may_be_named(key, row) for number, (key, row) in rows)

    async def _read_up_to(self, end: int) -> None:
        """Wait until the store has read up to *end*, but no longer than the settings allow."""
        ports = self._ports
        if self._partition.position >= end:
            return
        ports.reader.hurry()
        try:
            async with asyncio.timeout(ports.settings.fence_wait_s):
                await self._follower.reach(end, unless=self._is_stopped)
        except TimeoutError:
            ports.metrics.fence_timeouts.inc()

    def _has_to_seal(self, end_ms: int) -> bool:
        follower, partition = self._follower, self._partition
        quiet_ms = end_ms - partition.sealed_ms
        return partition.sealed_ms < end_ms and (
            partition.scan is not None
            or quiet_ms >= self._ports.settings.seal_every_s * 1000
            or follower.store.has_due(partition.sealed_ms, end_ms)
        )

    def _begin(self, end_ms: int) -> _OpenScan:
        partition = self._partition
        partition.begin(end_ms)
        scan = partition.scan
        if scan is None:
            raise AssertionError("a scan that was begun is open")
        return _OpenScan(*partition.keys_left(), scan.end_ms, scan.snapshot)

    async def _fire_slice(self, scan: _OpenScan) -> None:
        committed = await self._send_and_commit(scan)
        self._drop(scan, committed)
        self._size.grow()
        self.fired_at_s = self._ports.clock.elapsed_s()
        self._count(committed.sent.slice, committed.sent.seal.late_arrivals)

    async def _send_and_commit(self, scan: _OpenScan) -> _Committed:
        """
        Send the next slice of *scan* and commit it. If topics refuse, send it again without them.

        A topic counts as refusing after its second refusal, in a transaction that failed for that reason alone. Its
        callbacks are then rejected in the transaction that commits the others. Each refusal makes us look the topic up
        again. If the topic is there although its leader does not know it, the leader is believed after two seconds.

        Partitions that are unavailable for long are set aside at once, since no transaction with them ends.
        """
        topics, clock, since_s = self._ports.callback_topics, self._ports.clock, dict[str, float]()
        while True:
            try:
                # After the transaction's timeout the broker would abort it anyway.
                async with asyncio.timeout(self._ports.settings.transaction_timeout_s * 0.8):
                    return await self._commit(await self._send(scan))
            except TimeoutError as error:
                self._size.shrink()
                raise KafkaError(
                    f"the callbacks of a slice were not taken in time ({self._sender.trouble or 'there are many'}); "
                    f"slices have {self._size.rows} callbacks, {self._size.bytes >> 10} KiB at most now"
                ) from error
            except TopicsRefusedError as error:
                refusals, unavailable = error.reasons, error.unavailable
                log.warning("partition %d: sent again, since topics do not take theirs: %s", self._number, error)
            await self._sender.abort(ends=not unavailable)
            self._prebuilt.release()
            # The topic may have changed since it was looked up.
            topics.doubt()
            topics.set_aside(unavailable)
            now_s = clock.elapsed_s()
            for topic, (reason, words) in refusals.items():
                is_unheard_of = reason is Reason.TOPIC_UNKNOWN and now_s < since_s.get(topic, now_s) + _UNHEARD_S
                if topic in since_s and not is_unheard_of:
                    topics.refuse(topic, reason, words)
                since_s.setdefault(topic, now_s)

    async def _send(self, scan: _OpenScan) -> _Sent:
        """Send the callbacks of the next slice of *scan*, and return its seal, which includes unsent answers."""
        ports, partition, store, sender = self._ports, self._partition, self._follower.store, self._sender
        began_s = ports.clock.elapsed_s()
        # Decisions that a seal covers are final. Everything below the scan's snapshot has been read by now.
        answered = await self._outbox.confirmed()
        slice_, missed, rows, is_last = self._next_slice(scan)
        await sender.begin()
        while await slice_.add(missed):
            pass
        ended = False
        while is_last and not (ended or slice_.is_full):
            ended = not await slice_.add(rows)
            sender.send_all(slice_.full())
        sender.send_all(slice_.rest())
        drop_before = scan.end if ended else behind(slice_)
        cancelled, superseded = store.count_withdrawn(scan.start, drop_before)
        seal = partition.seal(slice_.contents, complete=ended, cancelled=cancelled, superseded=superseded)
        seal.lateness_p50_ms = slice_.lateness_ms(0.5)
        seal.lateness_p99_ms = slice_.lateness_ms(0.99)
        seal.lateness_max_ms = slice_.lateness_ms(1)
        seal.worker, seal.queries, seal.previous = ports.name, ports.queries, self._previous
        seal.partitions, seal.retired[:] = ports.partitions, sender.retired
        for letter in await self._outbox.unsent():
            seal.unsent.add(topic=letter.topic, key=letter.key, reply=letter.value)
        if ports.settings.guarantee == "exactly-once":
            slice_.tell(seal)
            # Otherwise it might come to lie behind a whole seal of another owner.
            seal = shortened(seal, self._whole)
        has_rows = bool(len(slice_) or cancelled or superseded)
        self._took_s["build"] = ports.clock.elapsed_s() - began_s
        return _Sent(slice_, seal, drop_before if has_rows else None, answered)

    async def _commit(self, sent: _Sent) -> _Committed:
        clock, began_s = self._ports.clock, self._ports.clock.elapsed_s()

        def on_taken() -> None:
            self._took_s["acknowledge"] = clock.elapsed_s() - began_s

        offset = await self._sender.commit(sent.seal, on_taken)
        if 0 <= offset <= self._sealed_at:
            tell_lost_seals(self._ports, self._number, f"its offsets {offset} to {self._sealed_at}")
        self._sealed_at = offset
        self._previous = hash_of_seal(sent.seal.SerializeToString())
        if is_complete(sent.seal) and not is_brief(sent.seal):
            self._whole = sent.seal
        took_s, self._took_s = self._took_s, {}
        if sent.seal.fired:
            took_s["commit"] = clock.elapsed_s() - began_s - took_s["acknowledge"]
            for stage, stage_s in took_s.items():
                self._ports.metrics.stages.add(stage_s, stage=stage)
        return _Committed(sent)

    def _drop(self, scan: _OpenScan, committed: _Committed) -> None:
        """Drop the rows of a durable seal, and decide on the records that were held back for it."""
        slice_, seal, drop_before, answered = committed.sent
        changes = self._partition.sealed(seal, slice_.contents, drop_before)
        if answered > self._answered:
            changes.answered_before = scan.snapshot
            self._answered = answered
        if len(self._partition.ignored) > IGNORED_MAX and not self._forgets_ignored:
            # Once: the excess is forgotten with each seal, and comes again with the next ones that are ignored.
            self._forgets_ignored = True
            log.warning(
                "partition %d: more requests were ignored than a seal names (%d): some may fire "
                "if this worker loses its store",
                *(self._number, IGNORED_MAX),
            )
        self._follower.write(changes)
        self._follower.release_held()

    def _next_slice(self, scan: _OpenScan) -> tuple[Slice, Iterator[Row], Iterator[Row], bool]:
        """Return the next slice, rows that it must also have, rows that follow it, and whether it may take these."""
        store = self._follower.store
        ready = self._prebuilt.next_slice(scan.start, scan.end, store.rows)
        if ready is None:
            return self._new_slice(self._not_before_ms(scan.end_ms)), iter(()), store.rows(scan.start, scan.end), True
        built, missed, is_last = ready
        return built, missed, store.rows(behind(built), scan.end), is_last

    def _not_before_ms(self, end_ms: int) -> int:
        """Return the moment that has come once everything before *end_ms* fires."""
        last_ms = end_ms - 1
        return last_ms if self._fires_within_seconds else last_ms - last_ms % 1000

    def _new_slice(self, not_before_ms: int) -> Slice:
        ports = self._ports
        return Slice(
            self._number,
            self._sender.new_batch,
            ports.callback_topics,
            ports.outlet,
            ports.history,
            ports.clock,
            rows_max=self._size.rows,
            bytes_max=self._size.bytes,
            not_before_ms=not_before_ms,
        )

    # --- between scans ------------------------------------------------------------------------------------------------

    async def prove(self) -> None:
        """
        Prove the end of the log with a record of our own, if there is no recent proof from the brokers' answers.

        Answers prove nothing while a broker with a replica is silent: it might be the leader now, and accept requests.

        Raises:
            FencedError: another worker owns the partition.
            KafkaError: no broker takes the record. The partition must be taken over again.
        """
        ends, number, began_s = self._ports.ends, self._number, self._ports.clock.elapsed_s()
        proved_s = ends.proved_s(number)
        if proved_s is not None and began_s - proved_s < _PROVED_FOR_S:
            return
        barrier = await self._sender.barrier()
        if barrier.requests is not None:
            await self._read_up_to(await self._ports.bounds.end(number, barrier.requests))
        # Without fencing there is no barrier, so any leader is believed.
        ends.proved(number, began_s)

    def sweep(self, below: int) -> None:
        """Begin to repeat what waits below the offset *below* on the request log, see `Sweeping`."""
        self._sweeping.begin(below)

    async def go_on_sweeping(self, tick: int) -> None:
        """Go on with it between the seconds, after that of *tick*."""
        if not self._partition.scan:
            await self._sweeping.go_on(partial(self._is_wanted, tick))

    async def prebuild(self, tick: int) -> None:
        """Build callbacks of the seconds after *tick*, until all are built or something is due."""
        partition, budget, store = self._partition, self._ports.budget, self._follower.store
        if not tick or partition.scan:
            return
        first_ms = store.first_ms(partition.sealed_ms)
        if first_ms is None or first_ms >= (tick + 1 + _PREBUILD_S) * 1000:
            return
        within = self._fires_within_seconds
        start = first_key(partition.sealed_ms)
        for second in range(tick + 1, tick + 1 + _PREBUILD_S):
            # Half of the budget is reserved for the next second of all partitions.
            kept_free = 0 if second == tick + 1 else budget.size // 2
            if self._is_wanted(tick) or budget.bytes <= kept_free:
                return
            end = first_key((second + 1) * 1000)
            if within:
                # These callbacks come with the tick. The others of the second follow one by one.
                start, end = max(start, first_key(second * 1000)), first_key(second * 1000 + 1)
            prebuilt = self._prebuilt.up_to(end)
            if prebuilt is None and next(store.rows(start, end), None):
                new_slice = partial(self._new_slice, second * 1000)
                prebuilt = Prebuilt(new_slice, store.rows(start, end), start, end, budget)
                self._prebuilt.add(prebuilt)
            if prebuilt and not await self._build_all(prebuilt, kept_free, partial(self._is_wanted, tick)):
                return
            start = end

    def _is_wanted(self, tick: int) -> bool:
        """Tell whether something more urgent than prebuilding must be done now."""
        due_s = self.due_s(tick)
        return self._is_interrupted() or (due_s is not None and due_s <= self._ports.clock.elapsed_s())

    async def _build_all(self, prebuilt: Prebuilt, kept_free: int, is_wanted: Callable[[], bool]) -> bool:
        """Build all slices of *prebuilt*; False if building must stop, for now or until the tick."""
        budget, gate = self._ports.budget, self._ports.gate
        try:
            while not is_wanted() and await prebuilt.more() and budget.bytes > kept_free:
                await gate.over(unless=is_wanted)
        except KafkaError:
            # If the trouble lasts, the tick will meet it and report it.
            self._prebuilt.release()
            return False
        return not is_wanted()

    def _count(self, fired: Slice, late_arrivals: int) -> None:
        metrics, settings = self._ports.metrics, self._ports.settings
        for topic, count in fired.fired.items():
            metrics.fired.labels(topic).inc(count)
        metrics.forwarded.inc(len(fired.contents.forwarded))
        for reason, count in fired.refused.items():
            metrics.rejected.labels(reason).inc(count)
        if fired.unrecorded:
            metrics.history_missed.inc(fired.unrecorded)
            if not self._misses_history:
                log.warning("partition %d: %s does not take all of the history", self._number, settings.door_history)
        self._misses_history = bool(fired.unrecorded)
        metrics.late_arrivals.inc(late_arrivals)
        now_ms = self._ports.clock.wall_s() * 1000
        for due_ms, count in fired.dues_ms.items():
            metrics.lateness.add(max(now_ms - due_ms, 0) / 1000, count)
