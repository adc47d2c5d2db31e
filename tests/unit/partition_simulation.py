"""
A model of one partition and everything around it, to drive `Partition` through faults that no test would think of.

One broker, up to three workers with a disk each, one oscillator; chosen step by step by a seeded generator. Workers are
Python generators that yield wherever another process could get in between, so "crash", "pause" and "takeover" are just
ways of not going on with one. After a history the promises are checked against what became visible.

    python tests/unit/partition_simulation.py 4711                      tell history 4711 step by step
    python tests/unit/partition_simulation.py 4711 --off fencing        the same with a rule of the design switched off

What the shell must keep is written here as the shell would do it; each such line can be switched off by the name in
`SHELL_RULES`, and `CORE_RULES` does the same to `Partition` itself.
"""

import random
import struct
import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

from kafka_timers.core import partition as core
from kafka_timers.core import versions as ids
from kafka_timers.core.partition import (
    REFUSED,
    Copied,
    Fate,
    Local,
    Partition,
    Scan,
    Taken,
    Version,
    copied_in,
    counted_under,
    first_key,
    is_late,
    is_run,
    parts_of,
    row_key,
    run_key,
    tick_second,
)
from kafka_timers.core.rows import pack
from kafka_timers.core.versions import Answer, Asked, CopyOf, Decided, KnownFromError, TakenBack, decide
from kafka_timers.core.wire import Reply, Sealed, is_far
from kafka_timers.worker.prebuild import Ahead, Armed, Room, behind
from kafka_timers.worker.slices import Slice

EXACTLY_ONCE, AT_LEAST_ONCE = "exactly-once", "at-least-once"
MAX_CLOCK_SKEW_S = 2.0
START_S = 10
# In histories with a lake an hour and half an hour are these, so that they end within a history.
ID_MEMORY_S, COPY_STALE_S = 12, 3
TROUBLES = ("crash", "assign", "zombie") * 2 + ("late cancel",) + ("resume", "land", "backup", "compact", "retention")

# What a worker does around the core. Each is a promise that the core relies on.
SHELL_RULES = {
    "fencing": "a takeover shuts out the old owner at the broker, with what it has begun",
    "fence before seals": "the old owner is shut out first, then the seals are read",
    "seals in the transaction": "empty seals go through the fenced transaction like all others",
    "position is the fence": "a scan's fence is the position of the store, not the end offset asked for",
    "wait for the end": "a tick waits until the log is read up to its end",
    "settle": "the rows of a kept store are settled",
    "no row within a run": "what is settled within a run takes it apart",
    "old ticks": "a tick at or below the sealed second is ignored",
    "tick counts as appended": "a tick counts as no more than the second of its append",
    "one batch": "rows and position are written at once",
    "place and write": "nothing gets between placing requests and keeping them",
    "scan in the store": "each write to the store carries the open scan",
    "scan before callbacks": "the open scan is written before the first callback leaves",
    "drop after the seal": "rows are dropped only once their seal is durable",
    "seal keys": "slices are sealed under another record key, so that compaction keeps the last complete seal",
    "lease": "before anything is said to be taken back, the broker is asked whether this is the owner",
    "answered before sealed": "a seal waits for the answers to what it covers",
    "answers are kept": "answers that have not left are in the store",
    "doubt": "what was cancelled here and is done elsewhere is not remembered as cancelled",
    "armed is taken back": "what is armed goes without what was taken back meanwhile",
    "missed by arming": "rows that came into the range of what was armed are fired with it",
    "verdict from the log": "whether a request is refused follows from its bytes, not from what a worker knows",
}


# The same, where there is a lake.
LAKE_RULES = {
    "done by its own offset": "whether a copy is done is told by where it lies itself, not by its original",
    "done copies are known": "a copy that is done is known all the same, by its original",
    "forget when serving": "ids are forgotten once the log was read to its end",
    "a copy is never far": "a copy is kept however far ahead it comes",
    "overtaken": "a copy means nothing if there is a record of its id that its decision did not know",
    "repeated": "a copy means nothing if there is one of the same original",
    "stale": "a copy means nothing half an hour after its decision",
    "unheld cancels": "a cancel of an id that is not held is remembered",
    "last record": "of an id that has a request, a cancel behind it is remembered too",
    "decide on all": "a copy of what was taken back, as far as the lake has landed, is not made",
    "decide on what is read": "what the lake decides on is what it has landed, up to the offset that it names",
    "promote anew": "a request whose copy came to nothing is promoted again",
    "decided before it is landed": "the moment of a decision is before what it does not know",
}


class PromiseError(AssertionError):
    """A promise does not hold; the text says which."""


class FencedError(Exception):
    """Another owner has been let in at the broker."""


class SendError(Exception):
    """The outcome of a transaction is not known, or the log cannot be read on."""


@dataclass(frozen=True, slots=True)
class Request:
    """A record on `timer-request`; *moody* ones have a callback topic that comes and goes."""

    second: int
    millis: int
    appended_ms: int
    refused: bool = False
    unsendable: bool = False
    moody: bool = False
    timer_id: bytes = b""
    cancel: bool = False
    asks: bool = False
    copy_of: CopyOf | None = None

    @property
    def topic(self) -> bytes:
        return b"replies" if self.asks else b""


@dataclass(frozen=True, slots=True)
class Callback:
    """A record on a callback topic, or on `timer-rejected`."""

    offset: int
    payload: str
    appended_ms: int
    rejected: bool
    by: str


@dataclass(frozen=True, slots=True)
class Tick:
    """A record on `oscillator`; *stable* is how far the request log could be read at its append."""

    second: int
    appended_ms: int
    stable: int


class Broker:
    """Kafka: three logs of one partition, callbacks, and one transactional id."""

    def __init__(self, now_ms: int = START_S * 1000) -> None:
        self.now_ms = now_ms
        self.requests: list[Request | None] = []  # None: an offset without a record, as transactions leave them
        self.log_start = 0  # retention has deleted what lies below
        self.pinned: int | None = None  # an open transaction of some producer begins here
        self.ticks: list[Tick] = []
        self.ticks_committed = 0
        self.seals: list[Sealed] = []
        self.kept_seals: list[tuple[str, Sealed]] = []  # what compaction has left of them
        self.callbacks: list[Callback] = []
        self.replies: list[Answer] = []
        self.epoch = 0
        self.in_doubt: Producer | None = None  # a commit that was asked for and has not been answered

    @property
    def stable(self) -> int:
        return len(self.requests) if self.pinned is None else self.pinned

    def publish(self, callbacks: Iterable[Callback], seals: Iterable[tuple[str, Sealed]]) -> None:
        self.callbacks.extend(callbacks)
        for key, seal in seals:
            self.seals.append(seal)
            self.kept_seals.append((key, seal))

    def compact(self) -> None:
        newest = {key: at for at, (key, _) in enumerate(self.kept_seals)}
        self.kept_seals = [self.kept_seals[at] for at in sorted(newest.values())]


class Producer:
    """A worker's producer; with *transactions* what it sends is visible at once or never."""

    def __init__(self, broker: Broker, *, transactions: bool, fencing: bool) -> None:
        self.broker, self.transactions, self.fencing = broker, transactions, fencing
        if transactions and fencing:
            broker.epoch += 1
            broker.in_doubt = None
        self.epoch = broker.epoch
        self.callbacks: list[Callback] = []
        self.seals: list[tuple[str, Sealed]] = []

    def check(self) -> None:
        if self.transactions and self.fencing and self.epoch != self.broker.epoch:
            raise FencedError

    def send(self, callback: Callback) -> None:
        self.check()
        if self.transactions:
            self.callbacks.append(callback)
        else:
            self.broker.publish([callback], [])

    def commit(self) -> None:
        self.check()
        self.broker.publish(self.callbacks, self.seals)
        self.callbacks, self.seals = [], []


class Store:
    """A worker's disk; each method is one atomic batch."""

    def __init__(self) -> None:
        self.rows: dict[bytes, dict[int, str]] = {}  # offsets and payloads of the requests under each key
        self.keys: list[bytes] = []
        self.local: Local | None = None
        self.chunks: dict[int, tuple[int, int]] = {}
        self.versions: dict[bytes, Version] = {}
        self.taken_back: dict[bytes, TakenBack] = {}
        self.answers: dict[int, Answer] = {}
        self.past: dict[tuple[int, int], tuple[list[bytes], list[int]]] = {}

    def copy(self) -> "Store":
        other = Store()
        vars(other).update({name: copy(part) for name, part in vars(self).items()})
        return other

    def add(self, rows: Mapping[bytes, dict[int, str]]) -> None:
        self.rows.update(rows)
        self.keys = sorted(self.rows)

    def drop(self, before: bytes) -> None:
        """Drop the rows with a lower key than *before*."""
        for key in self.keys[: bisect_left(self.keys, before)]:
            del self.rows[key]
        self.keys = sorted(self.rows)
        self.taken_back = {key: each for key, each in self.taken_back.items() if key >= before}

    def note(self, local: Local, touched: dict[int, tuple[int, int]]) -> None:
        self.local = local
        for chunk, worth in touched.items():
            if any(worth):
                self.chunks[chunk] = worth
            else:
                self.chunks.pop(chunk, None)

    def decided(self, decided: Decided) -> None:
        for timer_id, version in decided.versions.items():
            if version:
                self.versions[timer_id] = version
            else:
                self.versions.pop(timer_id, None)
        self.taken_back.update({each.key: each for each in decided.taken_back})
        self.answers.update({answer.offset: answer for answer in decided.answers})
        self.past.update({(minute, decided.last): past for minute, past in decided.past.items()})

    def forget(self, second: int) -> None:
        """Forget what is worth nothing more from *second* on."""
        for key in [key for key in self.past if key[0] <= second - ID_MEMORY_S]:
            for name, offset in zip(*self.past.pop(key), strict=True):
                version = self.versions.get(name)
                if version and version.latest == offset:
                    del self.versions[name]

    def live(self, key: bytes) -> dict[int, str]:
        """Return what lies under *key* and was not taken back."""
        singles = self.singles(key)
        return {
            at: what for single, row in singles.items() if single not in self.taken_back for at, what in row.items()
        }

    def count_taken_back(self, start: bytes, before: bytes) -> tuple[int, int]:
        moved = [each.moved for key, each in self.taken_back.items() if start <= key < before]
        return moved.count(False), moved.count(True)

    def between(self, start: bytes, before: bytes) -> list[bytes]:
        keys = self.keys[bisect_left(self.keys, start) : bisect_left(self.keys, before)]
        return [key for key in keys if self.live(key)] if self.taken_back else keys

    def items(self, start: bytes, before: bytes) -> Iterator[tuple[bytes, bytes]]:
        return ((key, pack(b"", [*self.live(key)]) if is_run(key) else b"") for key in self.between(start, before))

    def singles(self, key: bytes) -> dict[bytes, dict[int, str]]:
        """Return what lies under *key* as a row for each request."""
        second, _, _ = parts_of(key)
        return {row_key(second, 0, at) if is_run(key) else key: {at: what} for at, what in self.rows[key].items()}

    def requests(self, keys: Iterable[bytes]) -> list[tuple[bytes, int]]:
        """Return what lies under *keys* and was not taken back, as key and offset of each."""
        return [(key, offset) for key in keys for offset in self.live(key)]


def taken_of(rows: Sequence[tuple[bytes, int]], rejected: Sequence[int] = ()) -> Taken:
    """Return what a slice of *rows*, key and offset each, says of them."""
    keys = {key for key, _ in rows}
    late = sum(map(is_late, keys))
    copies = [(at, copied.decided) for key, at in rows if (copied := copied_in(key))]
    return Taken([at for _, at in rows], [*rejected], late=late, copies=copies, through=max(keys, default=b""))


@dataclass
class Faults:
    """How often something goes wrong inside a worker's own step; all 0 in a told story."""

    send: float = 0.0
    commit: float = 0.0
    commit_in_doubt: float = 0.0
    commit_unanswered: float = 0.0
    impatient: float = 0.0
    ticks_coalesced: float = 0.0
    ticks_uncommitted: float = 0.0
    seals_tail: float = 0.0
    stubborn: float = 0.0
    armed: float = 0.0


Steps = Generator[str, None, None]


class Worker:
    """One process with its disk: a takeover, then a reader and a ticker side by side."""

    def __init__(self, world: "World", name: str) -> None:
        self.world, self.name = world, name
        self.store = Store()
        self.backup = Store()
        self.paused = False
        self.partition: Partition = world.partition_class(0)
        self.read_from: int | None = None
        self.end = 0  # of the log at the takeover
        self.tasks: list[Steps] = []
        self.log_start = 0
        self.ahead = Ahead()
        self.outbox: list[Answer] = []
        self.answers_added = self.answers_sent = 0

    # --- life --------------------------------------------------------------------------------------------------------

    def assign(self) -> None:
        self.ahead = Ahead()
        self.tasks = [self.take_over()]

    def stop(self) -> None:
        self.tasks = []

    def step(self, task: Steps) -> str:
        """Go on with *task* up to its next point; tell what was reached."""
        try:
            return next(task)
        except StopIteration:
            self.tasks = [self.read(), self.answer(), self.tick()]
            if self.world.horizon_s:
                self.tasks.insert(2, self.forget())
            return "owner"
        except FencedError:
            self.stop()
            if self.world.hits(self.world.faults.stubborn):
                self.assign()
            return "fenced"
        except KnownFromError as error:
            self.read_from = error.offset
            self.assign()
            return "reads again"
        except SendError:
            # The outcome is in the seals. A paused owner may do this too, and shuts out the true one.
            self.assign()
            return "send failed"

    def until(self, *points: str, task: int = -1, read: bool = False) -> str:
        """Go on with one task, and reading beside it if told so, until it reaches one of *points*; for told stories."""
        for _ in range(1000):
            if read:
                self.step(self.tasks[0])
            point = self.step(self.tasks[task])
            self.world.say(f"{self.name} {point}")
            if point in points:
                return point
        raise AssertionError(f"{self.name} does not reach {points}")

    # --- takeover ----------------------------------------------------------------------------------------------------

    def take_over(self) -> Steps:
        world, broker, off = self.world, self.world.broker, self.world.off
        transactions = world.guarantee == EXACTLY_ONCE
        if "fence before seals" in off:
            seals = self.seals()
            yield "seals read"
        self.producer = Producer(broker, transactions=transactions, fencing="fencing" not in off)
        yield "fenced the others"
        if "fence before seals" not in off:
            seals = self.seals()
            yield "seals read"
        self.partition = partition = world.partition_class(0, world.horizon_s)
        local, store = self.store.local, self.store
        read_from, self.read_from = self.read_from, None
        if read_from is not None:
            local, read_from = None, max(read_from, self.log_start)
        if partition.take_over(seals, local, read_from):
            assert local is not None
            partition.restore(store.chunks)
            if "settle" not in off:
                self.settle(first_key(partition.unsettled(local)))
            self.note()
        else:
            self.store = Store()
            yield "store dropped"
            self.note()
        if partition.position < self.log_start:
            if transactions:
                raise PromiseError(f"{self.name} wants to read from {partition.position}, below {self.log_start}")
            partition.position = self.log_start  # the seal of a paused owner was the last
        if partition.position <= self.log_start:
            partition.known_from = 0
        left = [answer for answer in self.store.answers.values() if not partition.is_answered(answer.offset)]
        self.outbox = [] if "answers are kept" in off else sorted(answer.by_now(partition) for answer in left)
        self.answers_added = len(self.outbox)
        self.answers_sent = 0
        self.end = broker.stable

    def settle(self, before: bytes) -> None:
        store, partition = self.store, self.partition
        rows, done, moved = {}, [], []
        gone = {key: each for key, each in store.taken_back.items() if key < before}
        for key in store.keys[: bisect_left(store.keys, before)]:
            singles = store.singles(key)
            settled = {single: partition.settle(single) for single in singles}
            if all(single == new for single, new in settled.items()):
                rows[key] = store.rows[key]
                continue
            for single, new in settled.items():
                if single in gone:
                    continue
                if new is None:
                    done.append(single)
                else:
                    rows[new] = singles[single]
                    moved.append(new)
        for key in [key for key in rows if is_run(key)]:
            if "no row within a run" not in self.world.off and any(
                min(store.singles(key)) < new < key for new in moved
            ):
                rows |= store.singles(key)
                del rows[key]
        partition.removed([counted_under(single) for single in done])
        for single in done:
            partition.remember(counted_under(single), parts_of(single)[0])
        store.drop(before)
        for key, each in gone.items():
            new = partition.settle(key)
            version = store.versions.get(each.timer_id)
            if new is not None:
                store.taken_back[new] = each._replace(key=new)
            elif version and version.cancelled and version.offset == parts_of(key)[2] and "doubt" not in self.world.off:
                del store.versions[each.timer_id]
        store.add(rows)

    def seals(self) -> list[Sealed]:
        self.log_start = self.world.broker.log_start
        seals = [seal for _, seal in self.world.broker.kept_seals]
        if self.world.hits(self.world.faults.seals_tail):
            complete = [at for at, seal in enumerate(seals) if not seal.HasField("through")]
            return seals[complete[-1] if complete else 0 :]
        return seals

    def note(self) -> None:
        """Write the state of the partition, in the batch that changes the rows."""
        p = self.partition
        # How far a scan has come is left to the seals.
        scan = None if p.scan is None or "scan in the store" in self.world.off else replace(p.scan, through=b"")
        self.store.note(Local(p.position, p.second, p.fence, scan, p.known_from), p.take_touched())

    # --- reading requests --------------------------------------------------------------------------------------------

    def read(self) -> Steps:
        world, broker, p = self.world, self.world.broker, self.partition
        while True:
            at, to = p.position, min(broker.stable, p.position + world.between(1, 4))
            if at < broker.log_start:
                raise SendError  # a paused owner's position has expired
            if at < to:
                rows: dict[bytes, dict[int, str]] = {}
                together: dict[int, dict[int, str]] = {}
                read = {offset: self.seen(offset) for offset in range(at, to) if broker.requests[offset]}
                if "forget when serving" in world.off:
                    self.store.forget(p.second)
                decided = self.decide(read)
                if decided.open_at is not None:
                    to = decided.open_at
                    read = {offset: request for offset, request in read.items() if offset < to}
                    decided = self.decide(read)
                    if to == at:
                        yield "held"
                        continue
                requests = {offset: request for offset, request in read.items() if not request.cancel}
                usual = all(
                    self.own(request) > p.looked_at and not request.millis and not request.copy_of
                    for request in requests.values()
                )
                for offset, request in requests.items():
                    if request.copy_of:
                        key = self.place_copy(offset, request)
                        far = is_far(request.second, request.appended_ms // 1000, world.horizon_s)
                        if "a copy is never far" in world.off and far:
                            continue
                        if key is not None and offset not in decided.dropped:
                            rows[key] = {request.copy_of.offset: payload_of(request.copy_of.offset)}
                        continue
                    if self.is_far(request):
                        continue
                    key = p.place(self.own(request), request.millis, offset)
                    if key is not None and usual:
                        together.setdefault(request.second, {})[offset] = payload_of(offset)
                    elif key is not None:
                        rows[key] = {offset: payload_of(offset)}
                rows |= {run_key(second, max(run), len(run)): run for second, run in together.items()}
                offsets = sorted(
                    counted_under(key) if copied_in(key) else offset for key, row in rows.items() for offset in row
                )
                if "place and write" in world.off:
                    yield "placed"
                p.position = to
                if "one batch" in world.off:
                    self.note()
                    yield "position written"
                p.added(offsets)
                for each in decided.taken_back:
                    p.removed([each.counted])
                    if "armed is taken back" not in world.off:
                        self.ahead.taken_back(each.key)
                for offset, second in decided.remember:
                    p.remember(offset, second)
                self.store.add(rows)
                self.store.decided(decided)
                self.note()
                self.outbox += decided.answers
                self.answers_added += len(decided.answers)
                if rows:
                    self.ahead.added(min(rows))
                yield "read"
            else:
                yield "all read"

    def decide(self, read: Mapping[int, Request]) -> Decided:
        asked = [
            Asked(
                *(each.timer_id, None if each.cancel else each.second, each.millis, at, each.appended_ms, each.topic),
                *(self.is_far(each), each.copy_of),
            )
            for at, each in read.items()
            if (each.timer_id or each.copy_of) and not each.refused
        ]
        if "done copies are known" in self.world.off:
            asked = [
                ask for ask in asked if not ask.copy_of or self.place_copy(ask.offset, read[ask.offset]) is not None
            ]
        known = {**self.store.versions}
        if "repeated" in self.world.off:
            known = {name: version for name, version in known.items() if name in (b"a", b"b")}
        decided = decide(asked, known, self.partition)
        if "unheld cancels" in self.world.off:
            decided.versions = {name: each for name, each in decided.versions.items() if not each or each.second}
        if "last record" in self.world.off:
            versions = decided.versions.items()
            decided.versions = {name: each._replace(by=0) if each and each.second else each for name, each in versions}
        return decided

    def seen(self, offset: int) -> Request:
        """Return the record at *offset*, of which rules that are switched off hide something."""
        request = self.world.broker.requests[offset]
        assert request
        if request.copy_of and "overtaken" in self.world.off:
            request = replace(request, copy_of=request.copy_of._replace(decided=offset))
        if request.copy_of and "stale" in self.world.off:
            request = replace(request, copy_of=request.copy_of._replace(decided_s=request.appended_ms // 1000))
        return request

    def is_far(self, request: Request) -> bool:
        known = request.copy_of is None and not request.cancel and not request.refused
        return known and is_far(request.second, request.appended_ms // 1000, self.world.horizon_s)

    def place_copy(self, at: int, request: Request) -> bytes | None:
        assert request.copy_of
        of, off = request.copy_of, self.world.off
        copied = Copied(of.offset if "done by its own offset" in off else at, of.decided)
        return self.partition.place(request.second, request.millis, of.offset, copied)

    def forget(self) -> Steps:
        while True:
            if self.partition.position >= self.end:
                self.store.forget(self.partition.second)
            yield "forgot"

    def answer(self) -> Steps:
        while True:
            if not self.outbox:
                yield "nothing to answer"
                continue
            answers, self.outbox = self.outbox, []
            if any(answer.outcome in (Reply.CANCELLED, Reply.MOVED) for answer in answers) and (
                "lease" not in self.world.off
            ):
                self.producer.check()
            yield "about to answer"
            for answer in answers:
                self.world.broker.replies.append(answer)
                yield "answered"
            self.answers_sent += len(answers)

    def own(self, request: Request) -> int:
        if "verdict from the log" in self.world.off and request.moody:
            return REFUSED if self.world.broker.now_ms // 2000 % 2 else request.second
        return REFUSED if request.refused else request.second

    # --- ticks -------------------------------------------------------------------------------------------------------

    def tick(self) -> Steps:
        world, broker, faults = self.world, self.world.broker, self.world.faults
        at, newest = min(broker.ticks_committed, len(broker.ticks)), 0
        while True:
            if at >= len(broker.ticks):
                yield "no tick"
                continue
            if world.hits(faults.ticks_coalesced):
                at = len(broker.ticks) - 1
            second = world.counts_as(broker.ticks[at])
            at += 1
            if second is not None and (second > self.partition.second or "old ticks" in world.off):
                yield from self.fire(second)
            # As `Owner.tick`: an older tick than one that was read changes nothing.
            newest = max(newest, broker.ticks[at - 1].second)
            if self.world.hits(faults.armed):
                self.arm(newest)
            if not world.hits(faults.ticks_uncommitted):
                broker.ticks_committed = at

    def fire(self, second: int) -> Steps:
        world, broker, off, p, store = self.world, self.world.broker, self.world.off, self.partition, self.store
        end = broker.stable
        yield "end asked"
        patient = "wait for the end" not in off
        while p.position < p.must_reach or (patient and p.position < end):
            # Without a limit it is read up to where it ended at the takeover.
            if p.position >= max(p.must_reach, self.end) and world.hits(world.faults.impatient):
                world.impatient.add(second)
                break
            yield "waiting"
        due = store.between(first_key(p.second + 1), first_key(second + 1))
        if not due and p.scan is None and second - p.second < world.seal_every_s:
            return
        first = True
        while p.second < second or (first and "old ticks" in off):
            first = False
            if p.scan is None and "position is the fence" in off:
                p.scan = Scan(second, end)
            p.begin(second)
            yield "scan begun"
            if "scan before callbacks" not in off:
                self.note()
            yield "scan open"
            complete = False
            while not complete:
                complete = yield from self.fire_slice()

    def arm(self, second: int) -> None:
        """Build what the ticks after *second* will fire, as far as it is known and there is room."""
        start = first_key(self.partition.second + 1)
        for of in range(second + 1, second + 1 + self.world.between(1, 3)):
            end = first_key(of + 1)
            armed = self.ahead.up_to(end)
            keys = self.store.between(armed.start if armed else start, end)
            if armed is None and keys:
                armed = Armed(cast(Any, None), iter(()), start, end, Room(0))
                self.ahead.add(armed)
            for built in armed.slices if armed else ():
                keys = [key for key in keys if key >= behind(built)]
            for _ in range(self.world.between(0, 3) if armed else 0):
                some = self.world.between(0, min(self.world.slice_rows, len(keys)))
                if some and armed:
                    taken = taken_of(self.store.requests(keys[:some]))
                    armed.slices.append(cast(Slice, SimpleNamespace(taken=taken, bytes=0)))
                    keys = keys[some:]
            start = end

    def next_slice(self, start: bytes, end: bytes) -> tuple[list[tuple[bytes, int]], bool]:
        """Return key and offset of each request of the next slice, as they are sent, and whether it is the last."""
        store = self.store
        ready = self.ahead.next_slice(start, end, store.items)
        if ready is None:
            left = store.between(start, end)
            return store.requests(left[: self.world.slice_rows]), len(left) <= self.world.slice_rows
        built_slice, came_later, is_last = ready
        offsets = set(built_slice.taken.offsets)
        built = [(key, offset) for key in store.keys for offset in store.rows[key] if offset in offsets]
        missed = [key for key, _ in came_later if "missed by arming" not in self.world.off]
        left = store.between(behind(built_slice), end)
        rest = left[: max(self.world.slice_rows - len(built), 0)] if is_last else []
        return [*built, *store.requests([*missed, *rest])], is_last and len(rest) == len(left)

    def fire_slice(self) -> Generator[str, None, bool]:
        world, p, store = self.world, self.partition, self.store
        scan = p.scan
        assert scan is not None
        start, end = p.range_of(scan)
        due, complete = self.next_slice(start, end)
        rejected = [offset for key, offset in due if self.is_rejected(key, offset)]
        taken = taken_of(due, rejected)
        taken.named = any(request.timer_id for _, at in due if (request := world.broker.requests[at]))
        before = end if complete else taken.through + b"\0"
        cancelled, moved = store.count_taken_back(start, before)
        seal = p.seal(taken, complete=complete, cancelled=cancelled, moved=moved)
        waiting = sum(len(store.live(key)) for key in store.keys)
        if seal.pending != waiting - len(taken.offsets):
            world.miscounts.append(f"seal {seal.last} says that {seal.pending} wait of {waiting} before it")
        rows = [(offset, store.rows[key][offset]) for key, offset in due]
        if "drop after the seal" in world.off:
            self.drop(before)
        yield from self.send(rows, set(rejected), seal)
        p.sealed(seal, taken)
        self.drop(before)
        yield "sealed"
        return complete

    def drop(self, before: bytes) -> None:
        # One range, as a store with a hundred thousand rows drops them.
        self.store.drop(before)
        self.store.answers = {at: each for at, each in self.store.answers.items() if at >= self.partition.must_reach}
        self.note()

    def is_rejected(self, key: bytes, offset: int) -> bool:
        request = self.world.broker.requests[offset]
        return parts_of(key)[0] == REFUSED or (request is not None and request.unsendable)

    def send(self, rows: Sequence[tuple[int, str]], rejected: set[int], seal: Sealed) -> Steps:
        world, broker, faults, producer = self.world, self.world.broker, self.world.faults, self.producer
        for offset, payload in rows:
            producer.send(Callback(offset, payload, broker.now_ms, offset in rejected, self.name))
            yield "sent"
            if world.hits(faults.send):
                raise SendError
        added = self.answers_added
        while self.answers_sent < added and "answered before sealed" not in world.off:
            yield "waiting"
        record = ("slice" if seal.HasField("through") and "seal keys" not in world.off else "", seal)
        yield "about to seal"
        if not producer.transactions or (not rows and "seals in the transaction" in world.off):
            broker.publish([], [record])
        else:
            producer.check()
            producer.seals.append(record)
            yield "about to commit"
            if world.hits(faults.commit):
                raise SendError
            if world.hits(faults.commit_in_doubt):
                producer.check()
                broker.in_doubt = producer
                raise SendError
            producer.commit()
        if world.hits(faults.commit_unanswered):
            raise SendError
        yield "committed"


class Lake:
    """
    What promotes far requests: it decides on what it has landed, and its copies come when they come.

    Attributes:
        on_their_way: the moment at which each copy is appended, and the copy.
    """

    def __init__(self, world: "World") -> None:
        self.world = world
        self.on_their_way: list[tuple[int, Request]] = []

    def copies(self, decided: int, *, all: bool = False) -> Iterator[Request]:
        """Yield the copies to be made soon, or of all that is far, as far as the records below *decided* tell."""
        world = self.world
        known = decided - 2 if "decide on what is read" in world.off else decided
        records = dict(list(records_of(world).items())[:known])
        records = {at: record for at, record in records.items() if at < known}
        asks = {at: record for at, record in records.items() if not record.copy_of}
        followers = followers_of(asks)
        copied = set(valid_copies(records))
        if "promote anew" in world.off:
            copied = {record.copy_of.offset for record in records.values() if record.copy_of}
        now_s = world.broker.now_ms // 1000
        for offset, request in asks.items():
            appended_s = request.appended_ms // 1000
            if request.cancel or request.refused or not is_far(request.second, appended_s, world.horizon_s):
                continue
            taken = offset in followers and in_time(request, records[followers[offset]])
            # Of what comes later, some may not have been asked for yet.
            in_reach = all or request.second <= now_s + world.horizon_s
            if offset not in copied and in_reach and (not taken or "decide on all" in world.off):
                yield replace(request, copy_of=CopyOf(offset, appended_s, decided, now_s), cancel=False, asks=False)

    def promote(self) -> None:
        """Decide, and put the copies on their way: some are lost, some come twice, some come too late to be of use."""
        world = self.world
        for each in self.copies(world.broker.stable):
            for _ in range(world.rng.choice((0, 1, 1, 1, 2))):
                self.on_their_way.append((world.broker.now_ms + world.between(0, 6000), each))

    def append(self, *, all: bool = False) -> None:
        """Append the copies whose moment has come, or all."""
        broker = self.world.broker
        arrived = [each for when_ms, each in self.on_their_way if all or when_ms <= broker.now_ms]
        self.on_their_way = [] if all else [each for each in self.on_their_way if each[0] > broker.now_ms]
        for each in arrived:
            assert each.copy_of
            if "decided before it is landed" in self.world.off:
                each = replace(each, copy_of=each.copy_of._replace(decided_s=broker.now_ms // 1000))
            self.world.say(f"copy #{len(broker.requests)} of #{each.copy_of.offset}, decided at {each.copy_of.decided}")
            broker.requests.append(replace(each, appended_ms=broker.now_ms))

    def finish(self) -> None:
        """Promote until nothing is left."""
        self.append(all=True)
        for _ in range(3):
            for each in list(self.copies(self.world.broker.stable, all=True)):
                self.on_their_way.append((0, each))
            self.append(all=True)


class World:
    """
    One history.

    Args:
        seed: of every choice.
        guarantee: of the workers.
        off: rules that are switched off, of `SHELL_RULES`, `CORE_RULES` or those of the lake.
        trace: gets a line for each step.
        has_lake: whether workers leave far requests to a lake.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        guarantee: str = EXACTLY_ONCE,
        off: Iterable[str] = (),
        trace: Callable[[str], None] | None = None,
        has_lake: bool = False,
    ) -> None:
        self.has_lake = has_lake
        self.rng = random.Random(seed)
        self.guarantee = guarantee
        self.off = frozenset(off)
        self.trace = trace
        core_rules = CORE_RULES | LAKE_CORE_RULES
        broken = [core_rules[rule] for rule in sorted(self.off & core_rules.keys())]
        self.partition_class = type("Partition", (*broken, Partition), {}) if broken else Partition
        self.faults = Faults()
        self.broker = Broker()
        self.skew_ms = 0
        self.slice_rows = 1000
        self.named = 0.0  # how many records have a timer id
        self.pins = 0.0
        self.seal_every_s = 0
        self.horizon_s = 0
        self.lake = Lake(self)
        self.impatient: set[int] = set()  # seconds whose tick did not wait for all that was there
        self.miscounts: list[str] = []
        self.troubled = False
        self.workers = [Worker(self, name) for name in "ABC"]
        self.owner = self.workers[0]
        self._boundary = START_S + 1

    # --- choices -----------------------------------------------------------------------------------------------------

    def hits(self, probability: float) -> bool:
        return probability > 0.0 and self.rng.random() < probability

    def between(self, low: int, high: int) -> int:
        return int(self.rng.random() * (high - low + 1)) + low

    def say(self, what: str) -> None:
        if self.trace:
            self.trace(f"{self.broker.now_ms / 1000:8.3f}  {what}")

    # --- what the world does -----------------------------------------------------------------------------------------

    def counts_as(self, tick: Tick) -> int | None:
        second = tick_second(tick.second, tick.appended_ms, MAX_CLOCK_SKEW_S)
        return tick.second if second is not None and "tick counts as appended" in self.off else second

    def request(self, second: int, **more: Any) -> int:
        """Append a request; return its offset."""
        offset = len(self.broker.requests)
        request = Request(second, more.pop("millis", 0), self.broker.now_ms, **more)
        self.broker.requests.append(request)
        name = f" of {request.timer_id.decode()}" if request.timer_id else ""
        self.say(
            f"{'cancel' if request.cancel else 'request'} #{offset}{name} for {second}{' (refused)' * request.refused}"
        )
        return offset

    def tick(self, second: int) -> None:
        """Append a tick."""
        self.broker.ticks.append(Tick(second, self.broker.now_ms, self.broker.stable))
        self.say(f"tick {second}")

    def at(self, second: float) -> None:
        """Let the broker's clock show *second*."""
        self.broker.now_ms = round(second * 1000)

    def take_over(self, worker: Worker, *, empty: bool = False) -> None:
        """Make *worker* the owner and let it catch up; for told stories."""
        if empty:
            worker.store = Store()
        self.owner = worker
        worker.assign()
        worker.until("owner")

    def settle_down(self, worker: Worker) -> None:
        """Let *worker* read and fire all there is."""
        for _ in range(2000):
            point = worker.step(worker.tasks[-1])
            if point in ("no tick", "waiting"):
                read = worker.step(worker.tasks[0])
                if point == "no tick" and read == "all read" and worker.answers_sent == worker.answers_added:
                    for chore in worker.tasks[2:-1]:
                        worker.step(chore)
                    return
                if len(worker.tasks) > 1:  # else it takes over anew, to read from an earlier offset
                    worker.step(worker.tasks[1])
                point = f"{point}, {read}"
            if self.trace:
                self.say(f"{worker.name} {point:17} {state_of(worker.partition)}")
        raise PromiseError("P9: the owner does not come to rest")

    # --- a random history --------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Live a random history, end all faults, fire what is left, and check the promises."""
        rng = self.rng
        self.faults = Faults(
            send=rng.choice((0.0, 0.03)),
            commit=rng.choice((0.0, 0.1)),
            commit_in_doubt=rng.choice((0.0, 0.1)),
            commit_unanswered=rng.choice((0.0, 0.1)),
            impatient=rng.choice((0.0, 0.2)),
            ticks_coalesced=rng.choice((0.0, 0.3)),
            ticks_uncommitted=rng.choice((0.0, 0.7)),
            seals_tail=rng.choice((0.0, 0.5)),
            stubborn=rng.choice((0.0, 0.5)),
            armed=rng.choice((0.0, 0.7)),
        )
        self.skew_ms = rng.choice((0, 0, -200, 100, 300))
        self.slice_rows = rng.choice((1, 1, 2, 3, 1000))
        self.named = rng.choice((0.0, 0.5, 0.9))
        self.pins = rng.choice((0.02, 0.12))
        self.seal_every_s = rng.choice((0, 2, 5))
        if self.has_lake:
            self.horizon_s = rng.choice((2, 4))
            self.named = rng.choice((0.0, 0.7, 0.9))
        trouble = rng.choice((0.0, 0.04, 0.04, 0.08))
        if self.hits(0.1):
            trouble, self.faults = 0.0, Faults()
        self.troubled = bool(trouble or any(vars(self.faults).values()))
        self.owner.assign()
        for _ in range(rng.choice((50, 90, 150))):
            dice = rng.random()
            if dice < trouble:
                self.trouble()
            elif dice < 0.30:
                self.pass_time(self.between(20, 450))
            elif dice < 0.45:
                self.random_request()
            elif dice < 0.5 and self.horizon_s:
                self.lake.promote()
            else:
                self.some_worker()
        self.end()

    def random_request(self) -> None:
        dice = self.rng.random()
        if dice < 0.06:
            self.broker.requests.append(None)
        elif dice < 0.06 + self.pins and self.broker.pinned is None:
            # A producer that asks inside a transaction of its own, which stays open for a while.
            self.broker.pinned = len(self.broker.requests)
            for _ in range(self.between(0, 2)):
                self.random_record()
        elif dice < 0.2:
            self.broker.pinned = None
        else:
            self.random_record()

    def random_record(self) -> None:
        second = self.broker.now_ms // 1000 + self.between(-3, 12 if self.horizon_s and self.hits(0.5) else 4)
        dice = self.rng.random()
        timer_id = self.rng.choice((b"a", b"a", b"b")) if self.hits(self.named) else b""
        self.request(
            second,
            millis=500 if self.hits(0.2) else 0,
            refused=dice < 0.1,
            unsendable=0.1 < dice < 0.15,
            moody=0.15 < dice < 0.4,
            timer_id=timer_id,
            cancel=bool(timer_id) and dice >= 0.1 and self.hits(0.4),
            asks=bool(timer_id) and self.hits(0.8),
        )

    def pass_time(self, by_ms: int) -> None:
        broker, until_ms = self.broker, self.broker.now_ms + by_ms
        self.lake.append()
        while self._boundary * 1000 - self.skew_ms <= until_ms:
            broker.now_ms = max(broker.now_ms, self._boundary * 1000 - self.skew_ms)
            if not self.hits(0.1):
                self.tick(self._boundary)
            if self.hits(0.1):
                self.tick(self._boundary - self.between(0, 2))
            if self.hits(0.02):
                self.tick(self._boundary + 3600)
            self._boundary += 1
        broker.now_ms = until_ms

    def some_worker(self) -> None:
        worker = self.owner
        if self.hits(0.4):
            worker = self.rng.choice(self.workers)
        if worker.paused or not worker.tasks:
            return
        task = self.rng.choice(worker.tasks)
        # A takeover goes slowly, so that others get in between its few steps.
        for _ in range(self.rng.choice((1, 1, 2, 4, 8)) if len(worker.tasks) > 1 else 1):
            if task not in worker.tasks:
                break
            point = worker.step(task)
            if self.trace:
                self.say(f"{worker.name} {point:17} {state_of(worker.partition)}")
            if point in ("no tick", "all read", "waiting", "held", "nothing to answer"):
                break

    def trouble(self) -> None:
        rng, owner = self.rng, self.owner
        kind = rng.choice(TROUBLES)
        self.say(f"-- {kind}")
        if kind == "crash":
            worker = owner if self.hits(0.7) else rng.choice(self.workers)
            worker.stop()
            if self.hits(0.3):
                worker.store = worker.backup.copy()  # what was not synced is gone, or an old disk came back
            elif self.hits(0.6 if self.has_lake else 0.3):
                worker.store = Store()
            self.say(f"{worker.name} is down, its disk holds {worker.store.local}")
            if worker is owner:
                self.hand_over(rng.choice(self.workers))
        elif kind == "assign":
            owner.stop()
            self.hand_over(rng.choice(self.workers))
        elif kind == "zombie":
            owner.paused = self.hits(0.5)
            self.hand_over(rng.choice([worker for worker in self.workers if worker is not owner]))
        elif kind == "late cancel":
            # What one owner cannot read in time, the one before may read later, when it goes on.
            if self.named and self.broker.pinned is None:
                self.broker.pinned = len(self.broker.requests)
                self.request(0, timer_id=b"a", cancel=True, asks=True)
                self.hand_over(rng.choice([worker for worker in self.workers if worker is not owner]))
        elif kind == "resume":
            for worker in self.workers:
                worker.paused = False
        elif kind == "land":
            self.land()
        elif kind == "backup":
            worker = rng.choice(self.workers)
            worker.backup = worker.store.copy()
        elif kind == "retention":
            # Nothing that is pending may expire; an operator is warned long before.
            if self.broker.seals:
                to = self.broker.seals[-1].restore_from
                if self.horizon_s:
                    times_ms = [each.appended_ms if each else 0 for each in self.broker.requests]
                    to = min(to, bisect_left(times_ms, self.broker.now_ms - ID_MEMORY_S * 1000))
                self.broker.log_start = max(self.broker.log_start, to)
        else:
            self.broker.compact()

    def hand_over(self, worker: Worker) -> None:
        self.owner = worker
        worker.paused = False
        worker.assign()
        self.say(f"{worker.name} gets the partition")

    def land(self) -> None:
        """Let the commit take place that nobody has heard of, unless its producer has been shut out."""
        producer, self.broker.in_doubt = self.broker.in_doubt, None
        if producer:
            producer.commit()
            self.say("a commit in doubt has taken place")

    def end(self) -> None:
        self.say("-- faults have ended")
        self.faults = Faults()
        self.broker.pinned = None
        if self.hits(0.5):
            self.land()
        if self.troubled:
            for worker in self.workers:
                worker.stop()
            self.hand_over(self.rng.choice(self.workers))
        self.seal_every_s = 0
        self.finish()

    def finish(self) -> None:
        """Let the owner fire all that is left, a second for what comes late included, and check the promises."""
        self.settle_down(self.owner)
        if self.horizon_s:
            self.lake.finish()
            self.settle_down(self.owner)
        requests = [request for request in self.broker.requests if request]
        last = max([request.second for request in requests] + [self.broker.now_ms // 1000, START_S])
        for second in (last + 1, last + 2):
            self.at(second)
            self.tick(second)
            self.settle_down(self.owner)
        check(self, last + 1)

    def replay(self) -> "World":
        """Return another world with the same requests and ticks, in which one worker without a past fires them."""
        other = World(off=self.off & set(CORE_RULES))
        other.broker.now_ms = self.broker.now_ms
        other.horizon_s = self.horizon_s
        other.seal_every_s = 1000  # empty seals take time and are not compared
        other.broker.requests, other.broker.ticks = self.broker.requests, self.broker.ticks
        other.owner.assign()
        other.settle_down(other.owner)
        return other


def state_of(partition: Partition) -> str:
    text = f"read to {partition.position}, sealed {partition.second} fence {partition.fence}"
    if scan := partition.scan:
        text += f", scanning {scan.second} fence {scan.fence}"
        text += f" through {struct.unpack_from('>QHQ', scan.through)}" if scan.through else ""
    return text


def payload_of(offset: int) -> str:
    return f"callback of #{offset}"


# --- the promises ----------------------------------------------------------------------------------------------------


def check(world: World, last: int) -> None:
    """
    Check the promises, once everything with a second up to *last* has had its tick.

    Raises:
        PromiseError: one does not hold.
    """
    broker = world.broker
    exact = world.guarantee == EXACTLY_ONCE or not world.troubled
    visible = Counter(callback.offset for callback in broker.callbacks)
    records = {offset: record for offset, record in records_of(world).items() if not record.copy_of}
    lies_at = lies_at_of(world)
    requests = {offset: request for offset, request in records.items() if not request.cancel}
    followers = followers_of(records)
    for offset, request in requests.items():
        if not visible[offset] and not (offset in followers and in_time(request, records[followers[offset]])):
            raise PromiseError(f"P1: #{offset} for {request.second} is lost")
        if exact and visible[offset] > 1:
            raise PromiseError(f"P2: #{offset} for {request.second} is visible {visible[offset]} times")
    latest: dict[tuple[int, int], int] = {}
    for callback in broker.callbacks:
        offset = callback.offset
        if offset not in requests or callback.payload != payload_of(offset):
            raise PromiseError(f"P7: {callback} is not what was asked for")
        request = requests[offset]
        if "verdict from the log" not in world.off and callback.rejected != (request.refused or request.unsendable):
            raise PromiseError(f"#{offset} went to the wrong topic")
        if callback.rejected:
            continue
        if callback.appended_ms < request.second * 1000:
            raise PromiseError(f"P3: #{offset} for {request.second} fired at {callback.appended_ms}")
        at = request.second, request.millis
        at_offset = lies_at.get(offset, offset)
        if at_offset != offset and (
            records_of(world)[at_offset].appended_ms >= request.second * 1000
            or at_offset >= first_fence(broker.seals, request.second)
        ):
            continue  # it was promoted late, or its copy could not be read in time
        if exact and latest.get(at, -1) > offset:
            raise PromiseError(f"P6: #{offset} for {at} fired after #{latest[at]}")
        latest[at] = offset
    if world.miscounts:
        raise PromiseError(f"P8: {world.miscounts[0]}")
    if exact:
        done_by = audit(
            requests,
            broker.seals,
            {of: by for of, by in followers.items() if in_time(records[of], records[by])},
            records,
            lies_at,
        )
        if any(offset not in done_by for offset in requests.keys() & lies_at.keys()):
            raise PromiseError("P8: the seals do not say of all requests that they are done")
        for offset, fired in done_by.items():
            if fired != bool(visible[offset]):
                raise PromiseError(f"P5: #{offset} {'did not fire' if fired else 'fired, though it was taken back'}")
        if any(visible[offset] for offset in requests.keys() - lies_at.keys()):
            raise PromiseError("P5: a far request fired of which there is no copy")
        check_answers(records, visible, broker.replies, forgetful=world.horizon_s > 0)
        check_fences(world)
    else:
        check_cover(broker.seals)
    if max(seal.last for seal in broker.seals) < last:
        raise PromiseError(f"P9: {last} is not sealed")
    if exact:
        # What became readable only after its second had been scanned: the seals tell of it, the log alone does not.
        unseen = {of for of, by in followers.items() if visible[of] and in_time(records[of], records[by])}
        replayed = {(callback.offset, callback.rejected) for callback in world.replay().broker.callbacks}
        fired_here = {
            (callback.offset, callback.rejected) for callback in broker.callbacks if callback.offset not in unseen
        }
        if replayed != fired_here:
            raise PromiseError("P12: a replay fires something else")


def records_of(world: World) -> dict[int, Request]:
    """Return the records on the request log by offset, copies among them."""
    return {offset: request for offset, request in enumerate(world.broker.requests) if request}


def valid_copies(records: Mapping[int, Request]) -> dict[int, int]:
    """Return where the first copy of each far request lies that is neither stale nor overtaken."""
    valid: dict[int, int] = {}
    last: dict[bytes, int] = {}
    for offset, record in records.items():
        if record.refused:
            continue
        if record.copy_of is None:
            last[record.timer_id] = offset
            continue
        overtaken = bool(record.timer_id) and last.get(record.timer_id, -1) >= record.copy_of.decided
        if not overtaken and record.appended_ms // 1000 - record.copy_of.decided_s <= COPY_STALE_S:
            valid.setdefault(record.copy_of.offset, offset)
    return valid


def lies_at_of(world: World) -> dict[int, int]:
    """Return where each request lies that workers hold: at its own offset, or at that of its copy."""
    records = records_of(world)
    near = {
        offset: offset
        for offset, record in records.items()
        if record.refused or not is_far(record.second, record.appended_ms // 1000, world.horizon_s)
    }
    return {offset: at for offset, at in near.items() if not records[offset].copy_of} | valid_copies(records)


def in_time(request: Request, by: Request) -> bool:
    """Tell whether the record *by* was appended before the second of an earlier *request*."""
    return by.appended_ms < request.second * 1000


def followers_of(records: Mapping[int, Request]) -> dict[int, int]:
    """Return the offset of the first record after each request that has its timer id."""
    followers: dict[int, int] = {}
    last: dict[bytes, int] = {}
    for offset, record in records.items():
        if not record.timer_id or record.refused:
            continue
        if record.timer_id in last:
            followers.setdefault(last[record.timer_id], offset)
        if not record.cancel:
            last[record.timer_id] = offset
    return followers


def check_answers(
    records: Mapping[int, Request], visible: Mapping[int, int], replies: Iterable[Answer], *, forgetful: bool
) -> None:
    """Check that whoever asked was answered, and nothing but what is true (P4); *forgetful* workers may not know."""
    followers = followers_of(records)
    said: dict[int, set[int]] = {}
    for reply in replies:
        said.setdefault(reply.offset, set()).add(reply.outcome)
    before: dict[bytes, int] = {}
    cancelled: set[int] = set()
    for offset, record in records.items():
        if not record.timer_id or record.refused:
            continue
        of = before.get(record.timer_id)
        if of is None:
            true = {Reply.UNKNOWN}
        elif visible[of]:
            first = followers[of]
            # Whoever reads the log again takes the first one for in time, if it only became readable too late.
            unsure = first != offset and in_time(records[of], records[first])
            true = {Reply.TOO_LATE, Reply.UNKNOWN} if unsure else {Reply.TOO_LATE}
        elif of in cancelled:
            true = {Reply.CANCELLED, Reply.UNKNOWN} if record.cancel else {Reply.UNKNOWN}
        else:
            true = {Reply.CANCELLED if record.cancel else Reply.MOVED}
            cancelled.add(of)
        if not record.cancel:
            before[record.timer_id] = offset
        if record.asks and not said.get(offset, set()):
            raise PromiseError(f"P4: #{offset} was not answered")
        if forgetful:
            true = {*true, Reply.UNKNOWN}
        if not said.get(offset, set()) <= true:
            names = [Reply.Outcome.Name(outcome) for outcome in said[offset]]
            raise PromiseError(f"P4: #{offset} was answered {names} about #{of}, which fired {visible[of or 0]} times")


def first_fence(seals: Iterable[Sealed], second: int) -> int:
    """Return up to where the log was read for the scan that covered *second* first."""
    return next((seal.fence for seal in seals if seal.last >= second), 0)


def audit(
    requests: dict[int, Request],
    seals: Sequence[Sealed],
    takers: Mapping[int, int],
    records: Mapping[int, Request],
    lies_at: Mapping[int, int],
) -> dict[int, bool]:
    """
    Tell from requests and seals alone what became of each request.

    It follows the words of `sealed.proto`, not the code of `Partition`.

    Args:
        requests: by offset.
        seals: in their order.
        takers: offset of a request → offset of the record that takes it back if it was read in time.
        records: requests and cancels.
        lies_at: offset of a request that workers hold → where it lies.

    Returns:
        Offset of a request that is done → whether it fired or was rejected, rather than taken back.

    Raises:
        PromiseError: P8, a seal contradicts the requests or the seals before it.
    """
    done_by: dict[int, bool] = {}
    waiting = {offset: request for offset, request in requests.items() if offset in lies_at}
    second = fence = 0
    scan: tuple[int, int] | None = None
    for index, seal in enumerate(seals):
        if seal.first != second + 1 or seal.last < seal.first:
            raise PromiseError(f"P8: {seal.first}..{seal.last} is sealed after {second}")
        if seal.fence < fence:
            raise PromiseError(f"P8: the fence went back from {fence} to {seal.fence} with {seal.last}")
        if scan not in (None, (seal.last, seal.fence)):
            raise PromiseError(f"P8: {scan} was left unfinished for {(seal.last, seal.fence)}")
        keys = {}
        for offset, request in waiting.items():
            own = 0 if request.refused else request.second
            if own <= seal.last and lies_at[offset] < seal.fence:
                keys[offset] = (own, request.millis, offset) if own > second else (second + 1, 0, offset)
        if seal.HasField("through"):
            through = struct.unpack_from(">QHQ", seal.through)
            keys = {offset: key for offset, key in keys.items() if key <= through}
        gone = {offset for offset in keys if takers.get(offset, seal.fence) < seal.fence}
        cancelled = sum(records[takers[offset]].cancel for offset in gone)
        done_by.update({offset: offset not in gone for offset in keys})
        waiting = {offset: request for offset, request in waiting.items() if offset not in keys}
        keys = {offset: key for offset, key in keys.items() if offset not in gone}
        rejected = [offset for offset in keys if requests[offset].refused or requests[offset].unsendable]
        fired = [offset for offset in keys if offset not in rejected]
        late = [offset for offset in keys if requests[offset].refused or requests[offset].second <= second]
        said = (seal.due, seal.fired, seal.rejected, seal.late_arrivals, seal.digest, seal.cancelled, seal.moved)
        digest = sum((o + 1) ** 3 for o in fired) % 2**64
        meant = (len(keys), len(fired), len(rejected), len(late), digest, cancelled, len(gone) - cancelled)
        if said != meant:
            raise PromiseError(f"P8: seal {index} of {seal.last} says {said}, requests say {meant}: {sorted(keys)}")
        left = [offset for offset in waiting if takers.get(offset, seal.fence) >= seal.fence]
        if any(lies_at[offset] < seal.restore_from for offset in left):
            raise PromiseError(f"P8: {min(left)} waits below restore_from {seal.restore_from} of {seal.last}")
        if seal.pending < sum(lies_at[offset] < seal.fence and takers.get(offset) is None for offset in left):
            raise PromiseError(f"P8: {seal.last} says that {seal.pending} wait, more do")
        if seal.HasField("through"):
            scan = seal.last, seal.fence
        else:
            second, fence, scan = seal.last, seal.fence, None
    return done_by


def check_cover(seals: Sequence[Sealed]) -> None:
    """Check that seals leave out no second, also when a paused owner has added some of its own."""
    second = 0
    for seal in seals:
        if seal.first > second + 1:
            raise PromiseError(f"P8: {second + 1}..{seal.first - 1} is not sealed")
        if seal.due != seal.fired + seal.rejected:
            raise PromiseError(f"P8: {seal.last} does not balance")
        if not seal.HasField("through"):
            second = max(second, seal.last)


def check_fences(world: World) -> None:
    """Check that what was accepted before a tick fires in its second, where nobody lost patience."""
    stable: dict[int, int] = {}
    for tick in world.broker.ticks:
        second = world.counts_as(tick)
        if second is not None:
            stable.setdefault(second, tick.stable)
    for seal in world.broker.seals:
        if seal.last not in world.impatient and seal.fence < stable[seal.last]:
            raise PromiseError(f"{seal.last} was scanned at {seal.fence}, {stable[seal.last]} was read at its tick")


# --- rules of the core, switched off ---------------------------------------------------------------------------------


class _NotBehindTheScan(Partition):
    def place(self, second: int, millis: int, offset: int, copied: Copied | None = None) -> bytes | None:
        scan = self.scan
        if scan and second <= scan.second and offset >= scan.fence:
            self.scan = None
            try:
                return super().place(second, millis, offset, copied)
            finally:
                self.scan = scan
        return super().place(second, millis, offset, copied)


class _NoOwnSecond(Partition):
    def settle(self, key: bytes) -> bytes | None:
        second, millis = struct.unpack_from(">QH", key)
        return self.place(second, millis, parts_of(key)[2], copied_in(key))


class _SealedScanForgotten(Partition):
    def take_over(self, seals: Iterable[Sealed], local: Local | None, read_from: int | None = None) -> bool:
        return super().take_over([seal for seal in seals if not seal.HasField("through")], local, read_from)


class _ScanGetsNewFence(Partition):
    def begin(self, second: int) -> Scan:
        self.scan = replace(super().begin(second), fence=self.position)
        return self.scan


class _OpenScanIsOverwritten(Partition):
    def begin(self, second: int) -> Scan:
        self.scan = None
        return super().begin(second)


class _ThroughIgnored(Partition):
    def place(self, second: int, millis: int, offset: int, copied: Copied | None = None) -> bytes | None:
        scan = self.scan
        self.scan = scan and replace(scan, through=b"")
        try:
            return super().place(second, millis, offset, copied)
        finally:
            self.scan = scan


class _LowWaterKeys(Partition):
    def place(self, second: int, millis: int, offset: int, copied: Copied | None = None) -> bytes | None:
        key = super().place(second, millis, offset, copied)
        if key is not None and self.scan and second <= self.second and offset < self.scan.fence:
            return struct.pack(">QHQQH", self.scan.second + 1, 0, offset, second, millis)
        return key


class _FenceIgnored(Partition):
    def place(self, second: int, millis: int, offset: int, copied: Copied | None = None) -> bytes | None:
        return None if second <= self.second else super().place(second, millis, offset, copied)


class _NoMustReach(Partition):
    @property
    def must_reach(self) -> int:
        return 0


class _MustReachLastFenceOnly(Partition):
    @property
    def must_reach(self) -> int:
        return self.fence


class _StoreKeptBelowRestoreFrom(Partition):
    def take_over(self, seals: Iterable[Sealed], local: Local | None, read_from: int | None = None) -> bool:
        kept = super().take_over(seals, local, read_from)
        if local is not None:
            self.position = local.position
        return kept or local is not None


class _StaleSlices(Partition):
    def take_over(self, seals: Iterable[Sealed], local: Local | None, read_from: int | None = None) -> bool:
        seals = list(seals)
        kept = super().take_over(seals, local, read_from)
        slices = [seal for seal in seals if seal.HasField("through")]
        if self.scan is None and slices:
            self.scan = Scan(slices[-1].last, slices[-1].fence, slices[-1].through)
        return kept


class _SettlesTooLittle(Partition):
    def unsettled(self, local: Local) -> int:
        return self.second + 1


class _SettlesWithoutLocal(Partition):
    def unsettled(self, local: Local) -> int:
        return max(self.second, self.scan.second if self.scan else 0) + 2


class _RestoreFromPosition(Partition):
    @property
    def restore_from(self) -> int:
        return self.position

    def _lowest(self, chunks: Counter[int], second: int) -> int:
        return self.position


class _LatestSealWins(Partition):
    def take_over(self, seals: Iterable[Sealed], local: Local | None, read_from: int | None = None) -> bool:
        return super().take_over(list(seals)[-1:], local, read_from)


class _KeptBeyondTheScan(Partition):
    def _has_read_beyond_the_scan(self, local: Local) -> bool:
        return False


class _LocalIsNotAsked(Partition):
    def take_over(self, seals: Iterable[Sealed], local: Local | None, read_from: int | None = None) -> bool:
        return super().take_over(seals, local and Local(local.position, 0, 0, None, local.known_from), read_from)


class _WhenItIsRead(Partition):
    def fate(self, before: Version, by: int, appended_ms: int) -> Fate:
        return super().fate(before, by, 0)


class _ScannedIsTakenBack(Partition):
    def fate(self, before: Version, by: int, appended_ms: int) -> Fate:
        scan, self.scan = self.scan, None
        try:
            return super().fate(before, by, appended_ms)
        finally:
            self.scan = scan


class _OpenIsTooLate(Partition):
    def fate(self, before: Version, by: int, appended_ms: int) -> Fate:
        fate = super().fate(before, by, appended_ms)
        return Fate.TOO_LATE if fate is Fate.OPEN else fate


class _PastIsTooLate(Partition):
    def fate(self, before: Version, by: int, appended_ms: int) -> Fate:
        fate = super().fate(before, by, appended_ms)
        return Fate.TOO_LATE if fate is Fate.PAST else fate


class _AnswersAgain(Partition):
    def is_answered(self, offset: int) -> bool:
        return False


class _KnowsAll(Partition):
    @property
    def known_from(self) -> int:
        return 0

    @known_from.setter
    def known_from(self, offset: int) -> None:
        pass


class _RemembersNothing(Partition):
    def _remember(self, chunks: Iterable[int], second: int) -> None:
        pass


CORE_RULES: dict[str, type[Partition]] = {
    "behind the scan": _NotBehindTheScan,
    "own second": _NoOwnSecond,
    "sealed scan redone": _SealedScanForgotten,
    "scan keeps its fence": _ScanGetsNewFence,
    "open scan first": _OpenScanIsOverwritten,
    "through": _ThroughIgnored,
    "late key from the seal": _LowWaterKeys,
    "offset below the fence": _FenceIgnored,
    "must_reach": _NoMustReach,
    "must_reach of the scan": _MustReachLastFenceOnly,
    "store below restore_from": _StoreKeptBelowRestoreFrom,
    "unsettled": _SettlesTooLittle,
    "unsettled by local": _SettlesWithoutLocal,
    "restore_from": _RestoreFromPosition,
    "complete seal and slices": _LatestSealWins,
    "slices above the seal": _StaleSlices,
    "local second": _LocalIsNotAsked,
    "beyond the scan": _KeptBeyondTheScan,
    "due rule": _WhenItIsRead,
    "what a scan covers": _ScannedIsTakenBack,
    "open until sealed": _OpenIsTooLate,
    "past": _PastIsTooLate,
    "answered before": _AnswersAgain,
    "remembered": _RemembersNothing,
}
LAKE_CORE_RULES: dict[str, type[Partition]] = {"known from": _KnowsAll}


# --- running them ----------------------------------------------------------------------------------------------------


def run_history(
    seed: int, *, off: Iterable[str] = (), trace: Callable[[str], None] | None = None, has_lake: bool | None = None
) -> None:
    """
    Live one history, the same for the same arguments; every fourth is at-least-once.

    Args:
        seed: of every choice.
        off: rules that are switched off.
        trace: gets a line for each step.
        has_lake: whether workers leave far requests to a lake; by default in every third history.

    Raises:
        PromiseError: a promise does not hold.
    """
    guarantee = AT_LEAST_ONCE if seed % 4 == 3 else EXACTLY_ONCE
    if has_lake is None:
        has_lake = seed % 3 == 1
    # Two offsets to a chunk, so that a history of ten requests has several.
    with mock.patch.object(core, "CHUNK_BITS", 1), shortened(has_lake):
        World(seed, guarantee=guarantee, off=off, trace=trace, has_lake=has_lake).run()


@contextmanager
def shortened(has_lake: bool) -> Iterator[None]:
    """Have hours last seconds, where there is a lake."""
    with ExitStack() as stack:
        for module, name, value in (
            (ids, "ID_MEMORY_S", ID_MEMORY_S),
            (core, "ID_MEMORY_S", ID_MEMORY_S),
            (ids, "COPY_STALE_S", COPY_STALE_S),
            (ids, "_MINUTE_S", 1),
        ):
            if has_lake:
                stack.enter_context(mock.patch.object(module, name, value))
        yield


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
