"""
`python tests/days.py`: sixty days of one partition in virtual time, by the core and the store, with sweeps and trims.

Two timers a second: four of five are cancelled, one in twenty waits for up to thirty days. Tells how large the log is
beside what it has to keep, what sweeps write, and what an owner with an empty disk reads.
"""

import argparse
import heapq
import json
import random
import tempfile
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from kafka_timers.core import backlog
from kafka_timers.core import rows as batches
from kafka_timers.core.accepting import accept, take
from kafka_timers.core.changes import Changes
from kafka_timers.core.contents import Contents
from kafka_timers.core.keys import first_key, is_batch, parts_of
from kafka_timers.core.partition import Partition
from kafka_timers.core.sweep import Sweep, repeated_in
from kafka_timers.core.wire import KEPT_KEY, Future, Sealed
from kafka_timers.worker.store import TimerStore
from kafka_timers.worker.store_memory import StoreMemory

DAY_S, HOUR_S, STEP_S = 86_400, 3_600, 60
START_S = 1_699_920_000
KEEP_S, SWEEP_EVERY_S, AHEAD_MS = 7 * DAY_S, 600, 600_000
# Bytes of a record in a batch, beside key and value.
FRAME = 12


@dataclass(frozen=True, slots=True)
class Record:
    """A record on `timer-request`."""

    offset: int
    timestamp: int
    key: bytes
    value: bytes
    headers: tuple[()] = ()

    @property
    def size(self) -> int:
        """Its bytes on the log, about."""
        return len(self.key) + len(self.value) + FRAME


class Owner:
    """The owner of a partition, as `worker` has it, in one thread."""

    def __init__(self, folder: Path) -> None:
        self.store = TimerStore(folder, b"days", StoreMemory(64 << 20))
        self.partition = Partition(0)
        self.seal: Sealed | None = None

    def write(self, changes: Changes) -> None:
        """Keep *changes*."""
        self.store.write(changes)
        self.partition.apply(changes)

    def read(self, records: list[Record], to: int) -> None:
        """Read *records*, after which the log has been read up to an offset."""
        done = accept(records, self.partition, 1, self.store.versions)
        assert done.count == len(records), "no scan is open"
        appended_ms = records[-1].timestamp if records else 0
        self.write(self.partition.read(to, done.rows, done.offsets, done.decided, appended_ms=appended_ms))

    def fire(self, end_ms: int) -> int:
        """Fire and seal all that is due before a moment; return how many."""
        now, contents = self.partition, Contents(named=True)
        now.begin(end_ms)
        start, end = now.keys_left()
        for key, row in self.store.rows(start, end):
            contents.offsets += batches.unpack(row).offsets if is_batch(key) else [parts_of(key)[1]]
        cancelled, superseded = self.store.count_withdrawn(start, end)
        self.seal = now.seal(contents, complete=True, cancelled=cancelled, superseded=superseded)
        self.write(now.sealed(self.seal, contents, end))
        while self.store.forget(now.forgets_s):
            pass
        return len(contents.offsets)


class Days:
    """The log, its clients, and its owner."""

    def __init__(self, folder: Path, rate: float, seed: int) -> None:
        self.folder, self.rate, self.rng = folder, rate, random.Random(seed)
        self.owner = Owner(folder / "first")
        self.log: deque[Record] = deque()
        self.end, self.now_s = 0, START_S
        # At the begin of each step: its second, the end of the log, and the bytes appended so far.
        self.steps: list[tuple[int, int, int]] = []
        self.appended = self.repeated = self.asked = self.waiting = 0
        self.cancels: list[tuple[int, str]] = []
        self.sizes: dict[int, int] = {}
        self.sealed: deque[tuple[int, int]] = deque()
        self.sweep: Sweep | None = None
        self.swept_to = 0
        self.start = 0

    def append(self, key: bytes, value: bytes, at_ms: int) -> Record:
        """Append a record."""
        record = Record(self.end, at_ms, key, value)
        self.log.append(record)
        self.end += 1
        self.appended += record.size
        return record

    def clients(self) -> None:
        """Append what clients ask for in a step."""
        rng, count = self.rng, round(self.rate * STEP_S)
        for number in range(count):
            at_ms = self.now_s * 1000 + number * STEP_S * 1000 // count
            name, dice = f"order-{self.asked}", rng.random()
            self.asked += 1
            ahead_s = rng.randrange(60, HOUR_S) if dice < 0.15 else rng.randrange(2 * HOUR_S, 30 * DAY_S)
            if dice >= 0.2:
                heapq.heappush(self.cancels, (self.now_s + rng.randrange(60, HOUR_S), name))
            future = Future(callBackTopic="reminders", callBackKey=name, callBack=b"x" * 40, timerId=name)
            self.append(b"%d" % (at_ms // 1000 + ahead_s), future.SerializeToString(), at_ms)
        at_ms = (self.now_s + STEP_S) * 1000 - 1
        while self.cancels and self.cancels[0][0] <= self.now_s:
            name = heapq.heappop(self.cancels)[1]
            self.append(b"1", Future(timerId=name, cancel=True).SerializeToString(), at_ms)

    def offset_at(self, second: int) -> int:
        """Return the first offset that was appended at *second* or later, or a little less."""
        at = bisect_left(self.steps, (second,))
        return self.steps[max(at - 1, 0)][1] if at < len(self.steps) else self.end

    def go_on_sweeping(self) -> None:
        """Sweep as the worker does, but as fast as it goes."""
        now, sweep = self.owner.partition, self.sweep
        if sweep is None:
            self.sweep = now.sweep(self.now_s * 1_000_000, self.offset_at(self.now_s - KEEP_S // 2), AHEAD_MS)
            if self.sweep:
                print(f"day {(self.now_s - START_S) / DAY_S:.1f}: a sweep below {self.sweep.below}", flush=True)
        elif not sweep.is_written:
            while not sweep.is_written:
                part = sweep.part(self.owner.store.rows(*sweep.range))
                for value in part.values:
                    self.repeated += self.append(KEPT_KEY, value, self.now_s * 1000).size
                sweep.written(part)
            self.swept_to = self.end
        elif now.position >= self.swept_to and now.sealed_ms >= sweep.from_ms:
            now.swept, self.sweep = sweep.over(self.swept_to), None

    def trim(self) -> None:
        """Delete what may be deleted."""
        assert self.owner.seal
        self.sealed.append((self.now_s, self.owner.seal.restore_from))
        while len(self.sealed) > 1 and self.sealed[1][0] <= self.now_s - HOUR_S:
            self.sealed.popleft()
        self.start = max(self.start, min(self.sealed[0][1], self.offset_at(self.now_s - KEEP_S)))
        while self.log and self.log[0].offset < self.start:
            self.log.popleft()

    def step(self) -> None:
        """Live a minute."""
        self.steps.append((self.now_s, self.end, self.appended))
        before = self.end
        self.clients()
        self.owner.read([self.log[at - self.log[0].offset] for at in range(before, self.end)], self.end)
        self.now_s += STEP_S
        self.owner.fire(self.now_s * 1000)
        if self.now_s % SWEEP_EVERY_S == 0 or (self.sweep and not self.sweep.is_written):
            self.go_on_sweeping()
            self.owner.read(_last(self.log, self.end - self.owner.partition.position), self.end)
        self.trim()

    def bytes_of(self, first: int) -> int:
        """Return the bytes of the log from an offset on."""
        at = bisect_left(self.steps, first, key=lambda step: step[1])
        return self.appended - self.steps[min(at, len(self.steps) - 1)][2]

    def figures(self) -> dict[str, Any]:
        """Return the log's size beside what must be kept."""
        average = self.appended / self.end
        waits = self.owner.partition.pending * average
        recent = self.bytes_of(self.offset_at(self.now_s - KEEP_S))
        kept = self.bytes_of(self.start)
        return {
            "day": round((self.now_s - START_S) / DAY_S, 2),
            "pending": self.owner.partition.pending,
            "log_bytes": kept,
            "must_keep_bytes": round(waits + recent),
            "times": round(kept / max(waits + recent, 1), 3),
            "repeated_share": round(self.repeated / max(self.appended - self.repeated, 1), 3),
        }

    def restore(self) -> dict[str, int]:
        """Have an owner with an empty disk begin, and compare."""
        first, seal = self.owner, self.owner.seal
        assert seal
        again = Owner(self.folder / "again")
        again.partition.acquire([seal], None, log_start=self.start)
        now, read = again.partition, 0
        again.write(now.read(now.position))
        if now.head.lacks_swept:
            for swept, offsets in now.head.to_take:
                lying = [each for each in self.log if swept.since <= each.offset < swept.to]
                read += len(lying)
                for repeated in repeated_in(lying, swept.begun_us, offsets):
                    again.write(take(repeated, now, 1, again.store.versions))
            again.write(now.has_taken())
        left = [each for each in self.log if each.offset >= now.position]
        for at in range(0, len(left), 5_000):
            some = left[at : at + 5_000]
            again.read(some, some[-1].offset + 1)
        read += len(left)
        bounds = first.partition.sealed_ms, (START_S + 3650 * DAY_S) * 1000
        assert now.pending == first.partition.pending, (now.pending, first.partition.pending)
        assert _names(again, *bounds) == _names(first, *bounds)
        return {"records_read": read, "since_last_sweep": self.end - seal.swept[-1].since if seal.swept else self.end}


def _last(log: deque[Record], count: int) -> list[Record]:
    return [log[at] for at in range(len(log) - count, len(log))]


def _names(owner: Owner, start_ms: int, end_ms: int) -> set[tuple[int, int]]:
    rows = owner.store.rows(first_key(start_ms), first_key(end_ms))
    return {parts_of(single) for key, row in rows for single, _ in batches.singles(key, row)}


def main() -> None:
    """Live the days, and tell their figures."""
    parser = argparse.ArgumentParser(prog="days", description=__doc__)
    parser.add_argument("--days", type=float, default=60)
    parser.add_argument("--rate", type=float, default=2, help="timers a second")
    parser.add_argument("--json", type=Path, help="write the figures here")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary, mock.patch.object(backlog, "CHUNK_BITS", 10):
        days, told = Days(Path(temporary), given.rate, 0), []
        while days.now_s < START_S + given.days * DAY_S:
            days.step()
            if (days.now_s - START_S) % DAY_S == 0:
                told.append(days.figures())
                print(told[-1], flush=True)
        restored = days.restore()
        print(restored)
        if given.json:
            given.json.write_text(json.dumps({"rate": given.rate, "days": told, "restored": restored}) + "\n")


if __name__ == "__main__":
    main()
