"""
A random walk of the pure core: owners of one partition read, scan, seal, crash and take over, in any order.

There is no model of the worker here. Each step is one atomic action of an owner, in the words of the core: some records
of the log through `accept` and `Partition.read` into a `MemoryStore`, as `worker/follower.py` does; a scan begun; a
slice of it sealed; a takeover. A seeded generator chooses the next step, also for owners that another has followed, and
that have not heard of it yet. The broker's part is kept here: such an owner commits nothing. When the history
is over the promises are checked against the visible records.

    python tests/unit/walk.py 4711                       tell history 4711 step by step
    python tests/unit/walk.py 4711 --off "due rule"      the same with a rule switched off, see `rules.py`

How the shipped worker goes through these steps, with all that may get in between, is `tests/simulation/`.
"""

import random
import sys
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

# Where it is run by itself.
sys.path.append(str(Path(__file__).parents[1]))

from promises import Audit, Callback, PromiseError, Terms, Wish, check, check_at_least_once, repeated_of
from rules import switched_off

from kafka_timers.core import backlog, decisions, hour, partition, reconcile, sweep, tick_clock
from kafka_timers.core import rows as batches
from kafka_timers.core.accepting import accept, take
from kafka_timers.core.changes import Changes
from kafka_timers.core.contents import Contents
from kafka_timers.core.decisions import true_by_now
from kafka_timers.core.keys import REFUSED_MS, copied_in, count_of, is_batch, is_late, moment_of, parts_of
from kafka_timers.core.memory_store import MemoryStore
from kafka_timers.core.partition import Partition
from kafka_timers.core.refused import unpack_refused
from kafka_timers.core.sweep import Sweep, repeated_in, unconditional
from kafka_timers.core.versions import Answer, KnownFromError, Original
from kafka_timers.core.wire import KEPT_KEY, Condition, Copy, Forwarded, Future, Reply, Sealed

START_S = 10
MAX_CLOCK_SKEW_S = 2.0
# In short histories an hour, and half an hour, are these, so that they end within a history.
MEMORY_S, STALE_S, SLACK_MS = 12, 3, 1000
_AHEAD_MS = 2000
_CHECKED = frozenset((Reply.CANCELLED, Reply.MOVED, Reply.ACCEPTED, Reply.IGNORED))
_ALL = 1 << 60
TROUBLES = ("crash", "assign", "zombie") * 2 + (
    *("late cancel", "mid-second", "resume", "land", "backup", "compact", "retention"),
)


@dataclass(frozen=True, slots=True)
class Record:
    """A record on `timer-request`."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


class FencedError(Exception):
    """Another owner has been let in at the broker."""


class Log:
    """Kafka's records of one partition, and the owner that may write there."""

    def __init__(self) -> None:
        self.now_ms = START_S * 1000
        self.records: list[Record | None] = []  # None: an offset without a record, as transactions leave them
        self.wishes: dict[int, Wish] = {}
        self.start = 0  # retention has deleted the records below
        self.pinned: int | None = None  # somebody's open transaction begins here
        self.behind_ms = 0  # of the clock of the broker that leads it now
        self.ticks: list[tuple[int, int, int]] = []  # second, UNIX milliseconds of its append, end of readable records
        self.seals: list[Sealed] = []
        self.kept_seals: list[tuple[str, Sealed]] = []  # the ones that compaction has left
        self.callbacks: list[Callback] = []
        self.replies: list[Answer] = []
        self.epoch = 0
        self.sweeps = 1
        self.in_doubt: Slice | None = None  # a commit that nobody has heard of yet

    @property
    def stable(self) -> int:
        """The offset up to which it can be read."""
        return len(self.records) if self.pinned is None else self.pinned


@dataclass(slots=True)
class Slice:
    """The records of one transaction, and its seal."""

    contents: Contents
    seal: Sealed
    drop_before: bytes | None
    callbacks: list[Callback]


class Owner:
    """A worker as far as the core sees it: a disk, and the state of the partition."""

    def __init__(self, walk: "Walk", name: str) -> None:
        self.walk, self.log, self.name = walk, walk.log, name
        self.disk = MemoryStore()
        self.backup = MemoryStore()
        self.partition = Partition(0)
        self.is_up = self.is_paused = False
        self.epoch = 0
        self.end = 0  # of the log at the takeover
        self.tick = 0  # the next to read
        self.swept_to = 0  # the end of the log when the last part of a sweep had been written
        self.target_ms = 0  # the open scan goes up to here
        self.limit_ms = 0  # and no scan further: the end of the last second that was read
        self.outbox: list[Answer] = []
        self.asked: tuple[int, int] | None = None  # what was sealed when it asked for a high watermark, and the answer
        self.sweep: Sweep | None = None
        self._held: deque[tuple[Sequence[Record], int]] = deque()
        self._read_from: int | None = None

    def write(self, changes: Changes) -> None:
        """Keep *changes*: on disk, then in the state."""
        self.disk.write(changes)
        self.partition.apply(changes)

    # --- taking over -------------------------------------------------------------------------------------------------

    def take_over(self) -> None:
        """Shut out the owner before, read the seals, and bring the disk in line."""
        walk, log, off = self.walk, self.log, self.walk.off
        log.epoch += 1
        log.in_doubt = None
        self.epoch, self.is_up, self.end, self.target_ms = log.epoch, True, log.stable, 0
        self.limit_ms = 0
        self.asked = self.sweep = None
        self._held.clear()
        self.partition = now = walk.partition_class(0, walk.terms.horizon_s)
        local, (read_from, self._read_from) = self.disk.head, (self._read_from, None)
        if local is not None:
            # How far a scan has come is left to the seals.
            scan = local.scan and local.scan._replace(through=b"")
            local = replace(local, scan=None if "scan in the store" in off else scan, done_below=0)
        if read_from is not None:
            local, read_from = None, max(read_from, log.start)
        keep = now.acquire(
            walk.last_seals(), local, ignored=self.disk.ignored, log_start=log.start, read_from=read_from
        )
        if local and keep:
            now.restore(self.disk.counts)
            if "reconcile" not in off:
                before = reconcile.unreconciled(now, local)
                marks = {key: mark for key, mark in self.disk.marks.items() if key < before}
                rows, has_ids = (
                    [row for row in sorted(self.disk.data.items()) if row[0] < before],
                    bool(self.disk.known),
                )
                self.write(reconcile.reconcile(now, rows, marks, self.disk.versions, has_ids=has_ids))
        else:
            self.disk = MemoryStore()
        if log.start > now.position and walk.is_exact:
            raise PromiseError(f"{self.name} wants to read from {now.position}, below {log.start}")
        self.write(now.read(max(now.position, log.start)))
        if now.head.lacks_swept and "taken from sweeps" not in off:
            for swept, offsets in now.head.to_take:
                lying = [record for record in log.records[max(swept.since, log.start) : swept.to] if record]
                for repeated in repeated_in(lying, swept.begun_us, offsets):
                    self.write(take(repeated, now, 1, self.disk.versions))
            self.write(now.has_taken())
        left = [each for at, each in sorted(self.disk.answers.items()) if not now.is_answered(at)]
        self.outbox = [] if "answers are kept" in off else [true_by_now(each, now) for each in left]
        self.tick = max(0, min(self.tick, len(log.ticks)) - walk.between(0, 3))
        if walk.trace:
            walk.say(f"{self.name} takes over{' and keeps its disk' * keep}: {state_of(now)}")

    def down(self, why: str) -> None:
        """End it."""
        self.is_up = False
        if self.walk.trace:
            self.walk.say(f"{self.name} {why}")

    @property
    def is_serving(self) -> bool:
        """Whether it has read all that it had to read before it may fire."""
        return self.partition.position >= max(self.end, self.partition.must_read_to)

    # --- reading -----------------------------------------------------------------------------------------------------

    @property
    def read_up_to(self) -> int:
        """The offset up to which records have come, also those that are held back."""
        return self._held[-1][1] if self._held else self.partition.position

    def read(self, count: int = _ALL) -> None:
        """Read the next *count* offsets of the log, as far as it can be read."""
        log, at = self.log, self.read_up_to
        if at < log.start:
            self.down("finds its position expired")
            return
        to = min(log.stable, at + count)
        if at >= to:
            return
        records = [self.walk.seen(record) for record in log.records[at:to] if record]
        try:
            self._ingest(records, to)
        except KnownFromError as error:
            self._read_from = error.offset
            self.down(f"has to read again from {error.offset}")
            self.take_over()
            return
        if self.walk.trace:
            self.walk.say(f"{self.name} reads up to {to}: {state_of(self.partition)}{', holding' * bool(self._held)}")

    def _ingest(self, records: Sequence[Record], position: int) -> None:
        """Keep *records*, after which the log has been read up to *position*; held by `Follower.ingest`."""
        if self._held:
            self._held.append((records, position))
            return
        accepted = accept(records, self.partition, 1, self.disk.versions)
        if accepted.faults:
            raise next(iter(accepted.faults.values()))
        held = records[accepted.count :]
        kept_to = held[0].offset if held else position
        appended_ms = max([record.timestamp for record in records[: accepted.count]], default=0)
        changes = self.partition.read(
            kept_to, accepted.rows, accepted.offsets, accepted.decided, appended_ms=appended_ms
        )
        self.write(changes)
        if held:
            self._held.append((held, position))
        self.outbox += changes.answers

    def release_held(self) -> None:
        """Decide on records held back, as far as that can be done now."""
        held, self._held = self._held, deque()
        for records, position in held:
            self._ingest(records, position)

    def answer(self) -> None:
        """Send the answers that are ready, if this is the owner still."""
        answers, self.outbox = self.outbox, []
        if any(answer.outcome in _CHECKED for answer in answers) and "epoch check" not in self.walk.off:
            self._check_epoch()
        self.log.replies += answers

    def forget(self) -> None:
        """Forget timer ids that are old enough."""
        now = self.partition
        if self.asked is None:
            log = self.log
            self.asked = now.sealed_ms, log.stable if "high watermark" in self.walk.off else len(log.records)
        if now.position >= self.asked[1]:
            now.passed(self.asked[0])
            self.asked = None
        self.disk.forget(now.forgets_s)

    # --- sweeping ----------------------------------------------------------------------------------------------------

    def begin_to_sweep(self, below: int) -> None:
        """Begin to repeat what waits below the offset *below*, if anything does."""
        self.sweep = self.partition.sweep(self.log.sweeps, below, _AHEAD_MS)
        self.log.sweeps += "each sweep has a name" not in self.walk.off

    def go_on_sweeping(self) -> None:
        """Begin a sweep of some of the log, or write its next part, or have the next seal tell of it."""
        walk, now, log, off = self.walk, self.partition, self.log, self.walk.off
        under_way = self.sweep
        if under_way is None:
            self.begin_to_sweep(walk.between(now.position // 2, now.position))
            return
        if not under_way.is_written:
            self._check_epoch()
            marks = self.disk.marks
            if "withdrawn are not repeated" in off:
                self.disk.marks = {}
            part = under_way.part(self.disk.rows(*under_way.range))
            self.disk.marks = marks
            for value in part.values:
                at, below = len(log.records), under_way.below
                walk.say(f"{self.name} repeats {part.requests} requests of below #{below} in #{at}")
                log.records.append(Record(len(log.records), log.now_ms - log.behind_ms, KEPT_KEY, value))
            under_way.written(part)
            self.swept_to = len(log.records)
        is_over = now.position >= self.swept_to and now.sealed_ms >= under_way.from_ms
        if under_way.is_written and (is_over or "told when all is sealed" in off):
            now.swept, self.sweep = under_way.over(self.swept_to), None

    # --- firing ------------------------------------------------------------------------------------------------------

    @property
    def can_fire(self) -> bool:
        """Whether something is being fired, or a tick has not been read, or a second was fired in part."""
        return bool(self.target_ms) or self.tick < len(self.log.ticks) or bool(self._instant_ms)

    @property
    def _instant_ms(self) -> int:
        """The next moment at which something is due in the last second that was read; 0 when nothing is."""
        now = self.partition
        if now.sealed_ms >= self.limit_ms or not self.is_serving:
            return 0
        first = next(self.disk.rows(*_range_of(now, self.limit_ms)), None)
        return moment_of(first[0]) if first else 0

    def fire(self) -> None:
        """Go one step on with firing: a scan is begun, or a slice of it sealed."""
        if not self.is_serving:
            self.read()
        elif not self.target_ms:
            self._begin()
        else:
            self._fire_slice()

    def _begin(self) -> None:
        walk, now, stable = self.walk, self.partition, self.log.stable
        instant_ms = self._instant_ms
        if self.tick < len(self.log.ticks) and not (instant_ms and walk.hits(0.5)):
            if walk.hits(walk.ticks_coalesced):
                self.tick = len(self.log.ticks) - 1
            second, appended_ms, stable = self.log.ticks[self.tick]
            self.tick += 1
            second = tick_clock.tick_second(second, appended_ms, MAX_CLOCK_SKEW_S)
            if second is None or ((second + 1) * 1000 <= now.sealed_ms and "old ticks" not in walk.off):
                return
            self.limit_ms = max(self.limit_ms, (second + 1) * 1000)
            instant_ms = second * 1000
        if not walk.hits(walk.impatient):
            self.read()
        end_ms = self.limit_ms
        if walk.hits(walk.instants):
            # However bad the owner's clock is.
            end_ms = walk.between(max(instant_ms, now.sealed_ms) + 1, self.limit_ms)
        due = next(self.disk.rows(*_range_of(now, end_ms)), None)
        quiet_s = (end_ms - now.sealed_ms) // 1000
        has_to = now.scan or due or quiet_s >= walk.seal_every_s
        if not (self.is_up and has_to):
            return
        self.target_ms = end_ms
        is_new = not now.scan
        now.begin(end_ms)
        if "position is the snapshot" in walk.off and is_new and now.scan:
            now.head = replace(now.head, scan=now.scan._replace(snapshot=stable))
        if walk.trace:
            walk.say(f"{self.name} fires what is due before {end_ms / 1000}: {state_of(now)}")

    def _fire_slice(self) -> None:
        walk, now, off = self.walk, self.partition, self.walk.off
        if not now.scan:
            now.begin(self.target_ms)
        if "answered before sealed" not in off:
            self.answer()
        ready = self._next_slice()
        if "drop after the seal" in off:
            self.disk.write(now.sealed(ready.seal, ready.contents, ready.drop_before))
        self._commit(ready)
        if not self.is_up:
            return
        changes = now.sealed(ready.seal, ready.contents, ready.drop_before)
        if not self.outbox:
            changes.answered_before = ready.seal.fence
        self.write(changes)
        if now.sealed_ms >= self.target_ms:
            self.target_ms = 0
        if walk.trace:
            walk.say(f"{self.name} has sealed {[each.offset for each in ready.callbacks]}: {state_of(now)}")
        try:
            self.release_held()
        except KnownFromError as error:
            self._read_from = error.offset
            self.take_over()

    def _next_slice(self) -> Slice:
        walk, now, disk, log = self.walk, self.partition, self.disk, self.log
        start, end = now.keys_left()
        rows, contents, callbacks = disk.rows(start, end), Contents(), []
        is_last = True
        for count, (key, row) in enumerate(rows):
            if count == walk.slice_rows:
                is_last = False
                break
            offsets, values = [parts_of(key)[1]], [row]
            if is_batch(key):
                run = batches.unpack(row)
                offsets, values = list(run.offsets), list(batches.raw_requests(row))
            copied, is_refused = copied_in(key), parts_of(key)[0] == REFUSED_MS
            if copied:
                contents.copies.append((offsets[0], copied.decided))
            contents.late += is_late(key)
            contents.through = key
            contents.offsets += offsets
            for offset, value in zip(offsets, values, strict=True):
                wish = log.wishes[offset]
                lies_at = copied.at if copied else offset
                if (unpack_refused(value)[2] if is_refused else value) not in walk.values_of(lies_at):
                    raise PromiseError(f"P7: #{offset} is not what was asked for")
                contents.named |= bool(wish.timer_id) and not is_refused
                is_reject = is_refused or offset in walk.unsendable
                if is_reject:
                    contents.rejected.append(offset)
                callbacks.append(Callback(offset, log.now_ms, is_reject))
        drop_before = end if is_last else contents.through + b"\0"
        cancelled, superseded = disk.count_withdrawn(start, drop_before)
        seal = now.seal(contents, complete=is_last, cancelled=cancelled, superseded=superseded)
        seal.partitions = 1
        waiting = self._waiting() - len(contents.offsets)
        if seal.pending != waiting:
            raise PromiseError(f"P8: seal before {seal.end_ms} says that {seal.pending} wait, and {waiting} do")
        has_rows = bool(contents.offsets or cancelled or superseded)
        return Slice(contents, seal, drop_before if has_rows else None, callbacks)

    def _waiting(self) -> int:
        """Return how many requests lie on disk that were not withdrawn."""
        disk = self.disk
        if not disk.marks:
            return sum(map(count_of, disk.data))
        rows = disk.rows(b"", b"\xff")
        return sum(len(batches.unpack(row).offsets) if is_batch(key) else 1 for key, row in rows)

    def _commit(self, ready: Slice) -> None:
        """Commit; its outcome may be known to nobody, and then the partition is taken over anew."""
        walk, log = self.walk, self.log
        if walk.is_fenced:
            self._check_epoch()
        dice = walk.rng.random()
        if dice < walk.commit_lost:
            self.down(f"has lost its transaction for {ready.seal.end_ms}")
        elif dice < walk.commit_lost + walk.commit_in_doubt:
            log.in_doubt = ready
            self.down(f"does not know what became of its transaction for {ready.seal.end_ms}")
        else:
            walk.publish(ready)
            if dice > 1 - walk.commit_unanswered:
                self.down(f"has not heard that it has sealed {ready.seal.end_ms}")

    def _check_epoch(self) -> None:
        if self.walk.is_fenced and self.epoch != self.log.epoch and "fencing" not in self.walk.off:
            raise FencedError


def _range_of(now: Partition, end_ms: int) -> tuple[bytes, bytes]:
    return partition.first_key(now.sealed_ms), partition.first_key(end_ms)


class Lake:
    """
    The promotion of far requests: it decides on landed records, and its copies come when they come.

    Attributes:
        on_their_way: the moment at which each copy is appended, the offset of its original, and its decision.
    """

    def __init__(self, walk: "Walk") -> None:
        self.walk = walk
        self.on_their_way: list[tuple[int, Original]] = []

    def copies(self, decided: int, *, all: bool = False) -> Iterator[Original]:
        """Yield the copies to be made soon, or of all that is far, as far as the records below *decided* tell."""
        walk, log, off = self.walk, self.walk.log, self.walk.off
        known = decided - 2 if "decide on what is read" in off else decided
        wishes = {at: wish for at, wish in log.wishes.items() if at < known}
        if any(wish.condition or wish.first_ms is not None for wish in wishes.values()):
            # Whether a condition held, the seals must say; those that cover all of these may not be there yet.
            audit = Audit(wishes, walk.terms)
            audit.follow(log.seals, {each.offset for each in log.callbacks if each.is_reject})
            wishes = {at: wish for at, wish in wishes.items() if at not in audit.ignored}
        copied = walk.valid_copies(wishes)
        if "promote anew" in off:
            copied = {wish.original.offset for wish in wishes.values() if wish.original}
        withdrawn: set[int] = set()
        last: dict[bytes, int] = {}
        for at, wish in wishes.items():
            if not wish.timer_id or wish.is_refused or wish.original:
                continue
            before = last.get(wish.timer_id)
            if before is not None and wishes[before].is_in_time(wish):
                withdrawn.add(before)
            if not wish.is_cancel:
                last[wish.timer_id] = at
        # What it does not know was appended later.
        unknown = next((wish for at, wish in log.wishes.items() if at >= known), None)
        now_s = (unknown.appended_ms if unknown else log.now_ms) // 1000
        for at, wish in wishes.items():
            is_near = wish.second - wish.appended_ms // 1000 <= walk.terms.horizon_s
            if wish.is_cancel or wish.is_refused or wish.original or is_near or at in copied:
                continue
            # Some of the later requests may not have been made yet.
            if not all and wish.second > now_s + walk.terms.horizon_s:
                continue
            if at not in withdrawn or "decide on all" in off:
                yield Original(at, wish.appended_ms // 1000, decided, now_s)

    def promote(self) -> None:
        """Decide, and put the copies on their way: some are lost, some come twice, some come too late to be of use."""
        walk = self.walk
        if (decided := min(walk.log.stable, walk.judged)) == 0:
            return
        for each in self.copies(decided):
            for _ in range(walk.rng.choice((0, 1, 1, 1, 2))):
                self.on_their_way.append((walk.log.now_ms + walk.between(0, 6000), each))

    def append(self, *, all: bool = False) -> None:
        """Append the copies whose moment has come, or all."""
        now_ms = self.walk.log.now_ms
        arrived = [each for when_ms, each in self.on_their_way if all or when_ms <= now_ms]
        self.on_their_way = [] if all else [each for each in self.on_their_way if each[0] > now_ms]
        for each in arrived:
            if "decided before it is landed" in self.walk.off:
                each = each._replace(decided_s=now_ms // 1000)
            self.walk.copy(each)

    def finish(self) -> None:
        """Promote until nothing is left."""
        self.append(all=True)
        for _ in range(3):
            self.on_their_way += [(0, each) for each in self.copies(self.walk.log.stable, all=True)]
            self.append(all=True)


class Walk:
    """
    One history.

    Args:
        seed: of every choice.
        off: rules that are switched off, of those that owners keep.
        partition_class: breaks those of the core.
        trace: gets a line for each step.
        terms: that it is lived under.
        is_fenced: whether the broker shuts out an owner that another has followed.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        off: Iterable[str] = (),
        partition_class: type[Partition] = Partition,
        trace: Callable[[str], None] | None = None,
        terms: Terms | None = None,
        is_fenced: bool = True,
    ) -> None:
        self.rng = random.Random(seed)
        # Of its own, so that the results of other choices stay the same.
        self.ways = random.Random(f"{seed}/ways")
        self.off = frozenset(off)
        self.partition_class = partition_class
        self.trace = trace
        self.terms = terms or Terms()
        self.is_fenced = is_fenced
        self.log = Log()
        self.lake = Lake(self)
        self.owners = [Owner(self, name) for name in "ABC"]
        self.owner = self.owners[0]  # the owner to which the group has given the partition
        self.unsendable: set[int] = set()
        self.instants, self.far_s = 0.0, 25
        self.slice_rows = 1000
        self.seal_every_s = 0
        self.skew_ms = 0
        self.named = self.conditional = self.shaped = self.forwarded = self.pins = self.hourly = 0.0
        self.impatient = self.ticks_coalesced = self.stubborn = self.seals_tail = self.swept = 0.0
        self.commit_lost = self.commit_in_doubt = self.commit_unanswered = 0.0
        self.is_troubled = False
        self._boundary = START_S + 1

    # --- choices -----------------------------------------------------------------------------------------------------

    def hits(self, probability: float) -> bool:
        return probability > 0.0 and self.rng.random() < probability

    def between(self, low: int, high: int) -> int:
        return int(self.rng.random() * (high - low + 1)) + low

    def say(self, what: str) -> None:
        if self.trace:
            self.trace(f"{self.log.now_ms / 1000:8.3f}  {what}")

    @property
    def is_exact(self) -> bool:
        """Whether nothing fires twice."""
        return self.is_fenced or not self.is_troubled

    # --- events around the owners ------------------------------------------------------------------------------------

    def request(self, second: int = 0, timer_id: bytes = b"", **more: Any) -> int:
        """Append a request for a timer, or a cancel; *more* are fields of its `Wish`. Return its offset."""
        log = self.log
        appended_ms = log.now_ms - log.behind_ms
        offset, wish = len(log.records), Wish(second, timer_id=timer_id, appended_ms=appended_ms, **more)
        future = Future(cancel=wish.is_cancel, millis=wish.millis, condition=wish.condition)  # type: ignore[arg-type]
        if not wish.is_cancel:
            if wish.has_callback:
                future.callBackRecord.topic = "calls"
            else:
                future.callBackTopic = "calls"
        if timer_id:
            future.timerId = timer_id.decode()
        if wish.asks:
            future.replyTopic = "replies"
        if wish.first_ms is not None:
            future.forwarded.CopyFrom(Forwarded(fromPartition=0, fromOffset=1, appendedMs=wish.first_ms))
        if wish.expected is not None:
            future.ifRequest = f"0:{wish.expected}"
        key = b"soon" if wish.is_refused else b"%d" % (wish.second or 1)
        log.records.append(Record(offset, appended_ms, key, future.SerializeToString()))
        log.wishes[offset] = wish
        if self.trace:
            self.say(f"#{offset}: {told_of(wish)}")
        return offset

    def copy(self, original: Original) -> int:
        """Append a copy; return its offset."""
        log = self.log
        offset, wish = len(log.records), log.wishes[original.offset]
        of = log.records[original.offset]
        assert of
        future = Future.FromString(of.value or b"")
        future.copy.CopyFrom(
            Copy(
                offset=original.offset,
                appended=original.appended_s,
                decidedOffset=original.decided,
                decided=original.decided_s,
            )
        )
        # Its condition was judged before.
        future.ClearField("condition")
        future.ClearField("ifRequest")
        appended_ms = log.now_ms - log.behind_ms
        log.records.append(Record(offset, appended_ms, of.key, future.SerializeToString()))
        log.wishes[offset] = wish._replace(original=original, appended_ms=appended_ms)
        self.say(f"#{offset}: copy of #{original.offset}, decided at {original.decided}")
        return offset

    def cancel(self, timer_id: bytes = b"a", **more: Any) -> int:
        """Append a cancel; return its offset."""
        return self.request(0, timer_id, is_cancel=True, asks=True, **more)

    def tick(self, second: int) -> None:
        """Append a tick."""
        self.log.ticks.append((second, self.log.now_ms, self.log.stable))
        self.say(f"tick {second}")

    def at(self, second: float) -> None:
        """Let the broker's clock show *second*."""
        self.log.now_ms = round(second * 1000)

    def publish(self, ready: Slice) -> None:
        """Make the records of a transaction visible."""
        log, is_slice = self.log, ready.seal.HasField("through")
        log.callbacks += ready.callbacks
        log.seals.append(ready.seal)
        log.kept_seals.append(("slice" if is_slice and "seal keys" not in self.off else "", ready.seal))

    def compact(self) -> None:
        """Leave of the seals the last one under each key."""
        newest = {key: at for at, (key, _) in enumerate(self.log.kept_seals)}
        self.log.kept_seals = [self.log.kept_seals[at] for at in sorted(newest.values())]

    def last_seals(self) -> list[Sealed]:
        """Return the seals that are left, or the last complete one and those behind it."""
        seals = [seal for _, seal in self.log.kept_seals]
        if self.hits(self.seals_tail):
            complete = [at for at, seal in enumerate(seals) if not seal.HasField("through")]
            return seals[complete[-1] if complete else 0 :]
        return seals

    def seen(self, record: Record) -> Record:
        """Return *record* as an owner sees it that may judge by more than the record."""
        is_moody = "verdict from the log" in self.off and record.offset % 3 == 0
        return replace(record, key=b"soon") if is_moody and self.log.now_ms // 2000 % 2 else record

    def values_of(self, offset: int) -> list[bytes | None]:
        """Return the values of the record at *offset*: as it came, and as a sweep would repeat it."""
        record = self.log.records[offset]
        return [record and record.value, record and record.value and unconditional(record.value)]

    def valid_copies(self, wishes: Mapping[int, Wish]) -> set[int]:
        """Return the originals with a copy that is neither stale nor overtaken."""
        valid = set()
        last: dict[bytes, int] = {}
        for at, wish in wishes.items():
            if wish.original is None:
                if not wish.is_refused:
                    last[wish.timer_id] = at
                continue
            overtaken = bool(wish.timer_id) and last.get(wish.timer_id, -1) >= wish.original.decided
            if not overtaken and wish.appended_ms // 1000 - wish.original.decided_s <= self.terms.stale_s:
                valid.add(wish.original.offset)
        return valid

    @property
    def judged(self) -> int:
        """The offset up to which the lake can tell whether conditions held; all, where there are none."""
        if self.conditional or self.forwarded:
            return self.log.seals[-1].fence if self.log.seals else 0
        return len(self.log.records)

    # --- for told stories --------------------------------------------------------------------------------------------

    def take_over(self, owner: Owner, *, is_empty: bool = False) -> None:
        """Make *owner* the owner."""
        if is_empty:
            owner.disk = MemoryStore()
        self.owner = owner
        owner.tick = 0
        owner.take_over()

    def settle_down(self, owner: Owner) -> None:
        """Let *owner* read and fire all there is."""
        for _ in range(1000):
            owner.read()
            if not owner.is_up:
                self.take_over(owner)
            if owner.is_serving:
                owner.forget()
            if not owner.can_fire:
                owner.answer()
                return
            owner.fire()
        raise PromiseError("P9: the owner does not come to rest")

    # --- a random history --------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Live a random history, end all faults, fire the rest, and check the promises."""
        rng, has_lake = self.rng, self.terms.horizon_s > 0
        self.commit_lost, self.commit_in_doubt = rng.choice((0.0, 0.08)), rng.choice((0.0, 0.08))
        self.commit_unanswered = rng.choice((0.0, 0.08))
        self.impatient, self.ticks_coalesced = rng.choice((0.0, 0.2)), rng.choice((0.0, 0.3))
        self.seals_tail, self.stubborn = rng.choice((0.0, 0.5)), rng.choice((0.0, 0.5))
        self.skew_ms = rng.choice((0, 0, -200, 100, 300))
        self.slice_rows = rng.choice((1, 1, 2, 3, 1000))
        self.pins = rng.choice((0.02, 0.12))
        self.seal_every_s = rng.choice((0, 2, 5))
        self.named = rng.choice((0.0, 0.7, 0.9) if has_lake else (0.0, 0.5, 0.9))
        if self.is_fenced:
            self.conditional = self.ways.choice((0.0, 0.0, 0.5)) if has_lake else rng.choice((0.0, 0.5))
        self.shaped = rng.choice((0.0, 0.3))
        if self.is_fenced:
            self.forwarded = self.ways.choice((0.0, 0.5))
        self.hourly = self.ways.choice((0.0, 0.1, 0.2)) if self.terms.is_forgetful else 0.0
        self.swept = 0.0 if has_lake else self.ways.choice((0.0, 0.3, 0.7))
        self.instants = rng.choice((0.0, 0.5, 0.9))
        # Some are due more than an hour after they were asked for.
        self.far_s = 12 if has_lake and self.ways.random() < 0.5 else 25
        trouble = rng.choice((0.0, 0.06, 0.06, 0.12))
        if self.hits(0.1):
            trouble = self.commit_lost = self.commit_in_doubt = self.commit_unanswered = 0.0
        self.is_troubled = bool(trouble or self.commit_lost or self.commit_in_doubt or self.commit_unanswered)
        self.owner.take_over()
        for _ in range(rng.choice((40, 70, 110))):
            dice = rng.random()
            if self.ways.random() < self.hourly:
                self.come_again()
            if dice < trouble:
                self.trouble()
            elif dice < 0.3:
                self.pass_time(self.between(20, 1200 if self.terms.is_forgetful else 600))
            elif dice < 0.5:
                self.random_request()
            elif dice < 0.55 and has_lake:
                self.lake.promote()
            else:
                self.some_owner()
        self.end()

    def random_request(self) -> None:
        log, dice = self.log, self.rng.random()
        if dice < 0.06:
            log.records.append(None)
        elif dice < 0.06 + self.pins and log.pinned is None:
            # Somebody asks inside a transaction of his own, which stays open for a while.
            log.pinned = len(log.records)
            for _ in range(self.between(0, 2)):
                self.random_record()
        elif dice < 0.2:
            log.pinned = None
        else:
            self.random_record()

    def random_record(self) -> None:
        rng, log = self.rng, self.log
        ahead_s = 4
        if (self.terms.is_forgetful or self.swept) and self.hits(0.5):
            ahead_s = self.far_s
        second = log.now_ms // 1000 + self.between(-3, ahead_s)
        dice = rng.random()
        if dice < 0.05:
            self.unsendable.add(len(log.records))
        if not self.hits(self.named):
            millis = self.some_millis() if dice > 0.8 else 0
            self.request(second, millis=millis, is_refused=0.05 < dice < 0.12, has_callback=self.hits(self.shaped))
            return
        timer_id = rng.choice((b"a", b"a", b"b"))
        is_cancel = dice > 0.05 and self.hits(0.4)
        condition, expected = 0, None
        if self.hits(self.conditional):
            condition = Condition.IF_PENDING if is_cancel or rng.random() < 0.5 else Condition.IF_ABSENT
            if rng.random() < 0.4:
                expected = self.between(0, len(log.records))
        self.request(
            0 if is_cancel else second,
            timer_id,
            millis=self.some_millis() if dice > 0.6 and not is_cancel else 0,
            is_refused=not is_cancel and 0.05 < dice < 0.12,
            is_cancel=is_cancel,
            asks=rng.random() < 0.8,
            condition=condition,
            expected=expected,
            has_callback=not is_cancel and self.hits(self.shaped),
            first_ms=self.some_first_ms(),
        )

    def come_again(self) -> None:
        """Have an id that is known already come again about the end of its hour, also where nobody can read it yet."""
        ways, log = self.ways, self.log
        if ways.random() < 0.3:
            log.behind_ms = ways.choice((0, 300, 900))
        wish = ways.choice([wish for wish in log.wishes.values() if wish.timer_id] or [Wish()])
        over_ms = hour.over_ms(wish.appended_ms if wish.is_cancel or ways.random() < 0.3 else wish.due_ms)
        by_ms = over_ms - log.now_ms + ways.randrange(-600, 400)
        if not wish.timer_id or not 0 < by_ms < MEMORY_S * 1500:
            return
        self.pass_time(by_ms)
        if log.pinned is None and ways.random() < 0.7:
            log.pinned = len(log.records)
        again = log.now_ms // 1000 + ways.randrange(1, self.far_s if self.terms.horizon_s else 6)
        condition = ways.choice((Condition.IF_ABSENT, 0)) if self.conditional else 0
        first_ms = log.now_ms - MEMORY_S * 1000 if self.forwarded and ways.random() < 0.3 else None
        self.request(again, wish.timer_id, asks=True, condition=condition, first_ms=first_ms)
        owner = self.owner
        if owner.is_up and not owner.is_paused and ways.random() < 0.8:
            self.pass_time(ways.randrange(300, STALE_S * 1000 - 300))
            self.guarded(owner, lambda: self.catch_up(owner))
            if ways.random() < 0.3:
                owner.down("is down")
                self.owner = ways.choice(self.owners)
                self.owner.is_up = self.owner.is_paused = False
                self.owner.disk = MemoryStore()
            if ways.random() < 0.5:
                log.pinned = None

    def catch_up(self, owner: Owner) -> None:
        """Have *owner* fire all that it can, and forget what it may."""
        for _ in range(100):
            if not (owner.is_up and owner.can_fire):
                break
            owner.fire()
        if owner.is_serving:
            owner.forget()

    def some_first_ms(self) -> int | None:
        """Have some come from another partition, where they were appended a while ago."""
        behind_ms = self.log.behind_ms + self.ways.randrange(1, 2000)
        return self.log.now_ms - behind_ms if self.ways.random() < self.forwarded else None

    def some_millis(self) -> int:
        return self.rng.choice((1, 250, 500, 500, 750, 999))

    def pass_time(self, by_ms: int) -> None:
        log, until_ms = self.log, self.log.now_ms + by_ms
        self.lake.append()
        while self._boundary * 1000 - self.skew_ms <= until_ms:
            log.now_ms = max(log.now_ms, self._boundary * 1000 - self.skew_ms)
            dice = self.rng.random()
            if dice < 0.9:
                self.tick(self._boundary)
            if dice < 0.1:
                self.tick(self._boundary - self.between(0, 2))
            if dice < 0.02:
                self.tick(self._boundary + 3600)
            self._boundary += 1
        log.now_ms = until_ms
        if log.pinned is not None and self.terms.is_forgetful:
            # Brokers end a transaction after a quarter of an hour, unless they are told otherwise.
            first = next(filter(None, log.records[log.pinned :]), None)
            if first and until_ms - first.timestamp > STALE_S * 1000:
                log.pinned = None

    def some_owner(self) -> None:
        """Let one of them do something, if it has anything to do."""
        owner = self.rng.choice(self.owners) if self.hits(0.3) else self.owner
        if not owner.is_up:
            if owner is self.owner:
                self.guarded(owner, owner.take_over)
            return
        if owner.is_paused:
            return
        if owner.target_ms and self.log.pinned is not None and self.hits(0.2):
            # A transaction that ends in mid-second tells owners apart.
            self.log.pinned = None
        dice = self.rng.random()
        if owner.outbox and dice < 0.5:
            self.guarded(owner, owner.answer)
        elif owner.read_up_to < self.log.stable and (dice < 0.6 or not owner.can_fire):
            self.guarded(owner, lambda: owner.read(self.between(1, 4)))
        elif owner.can_fire:
            self.guarded(owner, owner.fire)
        elif owner.is_serving:
            owner.forget()
        while owner.is_up and owner.is_serving and self.hits(self.swept):
            self.guarded(owner, owner.go_on_sweeping)

    def guarded(self, owner: Owner, step: Callable[[], None]) -> None:
        """Take a *step* of *owner*, which may turn out to be none any more."""
        try:
            step()
        except FencedError:
            owner.down("is fenced")
            if self.hits(self.stubborn):
                owner.take_over()

    def trouble(self) -> None:
        rng, owner, log = self.rng, self.owner, self.log
        kind = rng.choice(TROUBLES)
        self.say(f"-- {kind}")
        if kind == "crash":
            one = owner if self.hits(0.7) else rng.choice(self.owners)
            one.down("is down")
            dice = rng.random()
            if dice < 0.3:
                one.disk = copy_of(one.backup)  # unsynced writes are gone, or an old disk came back
            elif dice < (0.7 if self.terms.horizon_s else 0.5):
                one.disk = MemoryStore()
            if one is owner:
                self.hand_over(rng.choice(self.owners))
        elif kind == "assign":
            owner.down("gives the partition up")
            self.hand_over(rng.choice(self.owners))
        elif kind == "zombie":
            owner.is_paused = self.hits(0.5)
            self.hand_over(self.another())
        elif kind == "late cancel":
            # A record that one owner cannot read in time, the one before may read later, when it goes on.
            if self.named and log.pinned is None:
                log.pinned = len(log.records)
                self.cancel()
                self.hand_over(self.another())
        elif kind == "mid-second":
            # Somebody's transaction ends when a scan has begun; its owner reads on, answers, and another one follows.
            if owner.is_up and owner.target_ms:
                log.pinned = None
                self.guarded(owner, owner.read)
                self.guarded(owner, owner.answer)
                self.hand_over(self.another())
        elif kind == "resume":
            for each in self.owners:
                each.is_paused = False
        elif kind == "land":
            self.land()
        elif kind == "backup":
            one = rng.choice(self.owners)
            one.backup = copy_of(one.disk)
        elif kind == "retention":
            # Nothing that is pending may expire; an operator is warned long before.
            if log.seals:
                to = log.seals[-1].restore_from
                if self.terms.horizon_s:
                    times_ms = [each.timestamp if each else 0 for each in log.records]
                    to = min(to, bisect_left(times_ms, log.now_ms - self.terms.memory_s * 1000))
                log.start = max(log.start, to)
        elif kind == "compact":
            self.compact()

    def another(self) -> Owner:
        return self.rng.choice([owner for owner in self.owners if owner is not self.owner])

    def hand_over(self, owner: Owner) -> None:
        self.owner = owner
        owner.is_paused = False
        if owner.is_up:
            owner.down("is assigned anew")
        if self.hits(0.7):
            owner.take_over()

    def land(self) -> None:
        """Let the commit take place that nobody has heard of, unless its owner has been shut out."""
        ready, self.log.in_doubt = self.log.in_doubt, None
        if ready:
            self.publish(ready)
            self.say("a commit in doubt has taken place")

    def end(self) -> None:
        self.say("-- faults have ended")
        self.log.pinned = None
        self.impatient = self.commit_lost = self.commit_in_doubt = self.commit_unanswered = 0.0
        if self.hits(0.5):
            self.land()
        if self.is_troubled:
            for each in self.owners:
                each.is_up = each.is_paused = False
            self.owner = self.rng.choice(self.owners)
        if not self.owner.is_up:
            self.owner.take_over()
        self.seal_every_s = 0
        self.finish()

    def finish(self) -> None:
        """Let the owner fire all that is left, with a second for late records, and check the promises."""
        log, owner = self.log, self.owner
        self.settle_down(owner)
        if self.terms.horizon_s:
            self.lake.finish()
            self.settle_down(owner)
        last = max([wish.second for wish in log.wishes.values()] + [log.now_ms // 1000, START_S])
        for second in (last + 1, last + 2):
            self.at(second)
            self.tick(second)
            self.settle_down(self.owner)
        if max(seal.end_ms for seal in log.seals) <= (last + 2) * 1000:
            raise PromiseError(f"P9: {last + 2} is not sealed")
        self.check()

    def check(self) -> None:
        """Check the promises, once everything that was asked for is sealed."""
        log = self.log
        if self.is_exact:
            replies = [(answer.offset, answer.outcome) for answer in log.replies]
            check(log.wishes, log.seals, log.callbacks, replies, self.terms, repeated_of(filter(None, log.records)))
        else:
            check_at_least_once(log.wishes, log.seals, log.callbacks)


def copy_of(store: MemoryStore) -> MemoryStore:
    """Return a copy of *store*."""
    other = MemoryStore()
    vars(other).update({name: copy(part) for name, part in vars(store).items()})
    return other


def state_of(now: Partition) -> str:
    text = f"read to {now.position}, sealed before {now.sealed_ms / 1000} snapshot {now.head.snapshot}"
    if scan := now.scan:
        text += f", scanning before {scan.end_ms / 1000} snapshot {scan.snapshot}"
        text += f" through {parts_of(scan.through)}" if scan.through else ""
    return text


def told_of(wish: Wish) -> str:
    parts = ["cancel" if wish.is_cancel else f"request for {wish.due_ms / 1000}"]
    if wish.timer_id:
        parts.append(f"of {wish.timer_id.decode()}")
    if wish.condition:
        parts.append(Condition.Name(wish.condition))  # type: ignore[arg-type]
    if wish.has_callback:
        parts.append("with a callback")
    if wish.expected is not None:
        parts.append(f"if it is #{wish.expected}")
    return " ".join([*parts, "(refused)"] if wish.is_refused else parts)


# --- running them ----------------------------------------------------------------------------------------------------

# Where the times are named that a short history has shorter.
_TIMES: tuple[tuple[ModuleType, str, int], ...] = (
    (hour, "ID_MEMORY_MS", MEMORY_S * 1000),
    (hour, "SLACK_MS", SLACK_MS),
    (decisions, "COPY_STALE_S", STALE_S),
)
SHORT = Terms(memory_s=MEMORY_S, stale_s=STALE_S, is_forgetful=True)


@contextmanager
def shortened(terms: Terms) -> Iterator[None]:
    """Have two offsets to a chunk, so that ten requests have several, and hours last seconds where *terms* say so."""

    places = [(backlog, "CHUNK_BITS", 1), (sweep, "_REQUESTS_MAX", 2)]
    if terms.is_forgetful:
        places += [*_TIMES, (decisions, "_MINUTE_S", 1)]
    before = [(module, name, getattr(module, name)) for module, name, _ in places]
    try:
        for module, name, value in places:
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def run_history(
    seed: int, *, off: Iterable[str] = (), trace: Callable[[str], None] | None = None, has_lake: bool | None = None
) -> None:
    """
    Live one history, the same for the same arguments; in every eighth nothing shuts out an owner that was paused.

    Args:
        seed: of every choice.
        off: rules that are switched off.
        trace: gets a line for each step.
        has_lake: whether far requests are left to a lake; by default in every third history. Hours last seconds in
            those, and in every sixth history without.

    Raises:
        PromiseError: a promise does not hold.
    """
    if has_lake is None:
        has_lake = seed % 3 == 1
    is_short = has_lake or seed % 6 == 3
    terms = replace(SHORT, horizon_s=2 + seed % 2 * 2 if has_lake else 0) if is_short else Terms()
    with shortened(terms), switched_off(off) as broken:
        Walk(seed, off=off, partition_class=broken, trace=trace, terms=terms, is_fenced=seed % 8 != 7).run()


def first_violation(
    seeds: Iterable[int], *, off: Iterable[str] = (), has_lake: bool | None = None
) -> tuple[int, str] | None:
    """Return the first of *seeds* whose history breaks a promise, and which."""
    for seed in seeds:
        try:
            run_history(seed, off=off, has_lake=has_lake)
        except Exception as error:
            return seed, f"{type(error).__name__}: {error}"
    return None


if __name__ == "__main__":
    run_history(int(sys.argv[1]), off=sys.argv[3:], trace=print)
