"""
The rules of one partition: which requests are done, where a new one is kept, and what a tick may fire.

Pure: seconds, offsets and bytes, no Kafka, no store, no clock. `tests/unit/test_simulation.py` drives this class
through crashes, paused owners and takeovers and checks the promises after each history.

What is done is told by seals alone (`timer-sealed`), so that whoever takes the partition over knows it:

    complete seal (second, fence)           done: own second <= second and offset < fence
    slice of a scan (second, fence, through) done: key <= through and offset < fence

Every pending request has one key, and it follows from the log and the last complete seal alone, so that two workers
order the same rows alike and `through` means the same to both:

    own second > sealed second              (own second, millis, offset)
    else it came late                       (sealed second + 1, 0, offset) + (own second, millis)
    read during a scan of its second        (scan's second + 1, 0, offset) + (own second, millis)

Requests that are read in one go, due in one second that no scan has looked at, and ask for no millis may be kept under
one key, that of the last of them with their number behind it. They fire together, so nothing has to tell them apart.

A scan is everything with a key up to the end of its second; its fence is how far the log had been read when it began.
What is read during a scan lies behind the fence and is kept outside of the scan's range: it fires with the next tick.

A request that is far ahead is left to the lake, which has it copied back in good time. A copy keeps the name of its
original, so its key has the original's offset where others have their own. Whether it is done is told by where it lies
itself, and which chunk of offsets it counts under by its decision: who reads on from there knows all that it needs.

A cancel, or a request with the id of an earlier one, counts for the earlier one if it was appended before that one's
second. That follows from the log, but for records that become readable late (a transaction that is committed late, a
scan that did not wait for them): what a scan has covered is fired by it, whatever is read behind its fence.
"""

import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import cached_property
from itertools import chain
from typing import NamedTuple

from kafka_timers.core.wire import ID_MEMORY_S, Sealed, age_of, is_complete, is_far, latest

_ROW = struct.Struct(">QHQ")
_RUN = struct.Struct(">QHQH")
_LATE = struct.Struct(">QHQQH")
# What a copy's key has behind that of a request, late or not.
_COPIED = struct.Struct(">QQ")
_LATE_BYTES = (_LATE.size, _LATE.size + _COPIED.size)
_COPY_BYTES = (_ROW.size + _COPIED.size, _LATE.size + _COPIED.size)
_VERSION = struct.Struct(">QHQQB")
_DIGESTS = 1 << 64

# Pending requests are counted per run of this many offsets, so `restore_from` is exact to one run and a worker with 10
# million pending keeps some 600 numbers.
CHUNK_BITS = 14

# The own second of a request that is refused: it sorts as late, so the next tick takes it to `timer-rejected`.
REFUSED = 0


def first_key(second: int) -> bytes:
    """Return the lowest key of *second*: an exclusive upper bound for all seconds before it."""
    return _ROW.pack(second, 0, 0)


def row_key(second: int, millis: int, offset: int) -> bytes:
    """Return the key of a request that is not late."""
    return _ROW.pack(second, millis, offset)


def run_key(second: int, last: int, count: int) -> bytes:
    """Return the key of *count* requests, of which the last one has offset *last*."""
    return _RUN.pack(second, 0, last, count)


def is_run(key: bytes) -> bool:
    """Tell whether several requests may lie under *key*."""
    return len(key) == _RUN.size


def count_of(key: bytes) -> int:
    """Return how many requests lie under *key*."""
    return int.from_bytes(key[_ROW.size :], "big") if is_run(key) else 1


class Copied(NamedTuple):
    """Where a copy itself lies on `timer-request`, and below which offset all was known when it was decided."""

    at: int
    decided: int


def parts_of(key: bytes) -> tuple[int, int, int]:
    """Return second and millis that the request asked for, and its offset on `timer-request`; a run's is its last."""
    if is_late(key):
        _, _, offset, second, millis = _LATE.unpack_from(key)
        return second, millis, offset
    return _ROW.unpack_from(key)


def copied_in(key: bytes) -> Copied | None:
    """Return where the copy under *key* lies, None when it is no copy that lies there."""
    return Copied(*_COPIED.unpack(key[-_COPIED.size :])) if len(key) in _COPY_BYTES else None


def is_late(key: bytes) -> bool:
    """Tell whether the request was read after its second had been scanned."""
    return len(key) in _LATE_BYTES


def counted_under(key: bytes) -> int:
    """Return the offset under which the request counts as pending: of a copy that of its decision."""
    copied = copied_in(key)
    return copied.decided if copied else parts_of(key)[2]


def digest_of(offsets: Iterable[int]) -> int:
    """Return the sum of (offset + 1)^3 modulo 2^64: seals, slices and partitions add up, whatever the order."""
    return sum([(number := offset + 1) * number * number for offset in offsets]) % _DIGESTS


class Version(NamedTuple):
    """
    What is known of a timer id: its last request, and what came of that.

    Attributes:
        second: that it is due in; 0 when a cancel is all that is known.
        millis: within that second.
        offset: of the request; of a copy that of its original.
        cancelled: whether it was taken back by a cancel.
        by: offset of the last cancel behind it; kept where there is a horizon, else 0.
        far: whether it is left to the lake.
        copied: where its copy lies, if it is one.
    """

    second: int
    millis: int
    offset: int
    cancelled: bool = False
    by: int = 0
    far: bool = False
    copied: Copied | None = None

    @property
    def latest(self) -> int:
        """Offset of the last record that this follows from."""
        return self.by or self.offset

    @property
    def at(self) -> int:
        """Offset at which it lies itself."""
        return self.copied.at if self.copied else self.offset

    def pack(self) -> bytes:
        """Return it as a row of the store."""
        row = _VERSION.pack(self.second, self.millis, self.offset, self.by, self.cancelled | self.far << 1)
        return row + _COPIED.pack(*self.copied) if self.copied else row

    @classmethod
    def unpack(cls, row: bytes) -> "Version":
        """Return what `pack` was called on."""
        second, millis, offset, by, flags = _VERSION.unpack_from(row)
        copied = Copied(*_COPIED.unpack_from(row, _VERSION.size)) if len(row) > _VERSION.size else None
        return cls(second, millis, offset, bool(flags & 1), by, bool(flags & 2), copied)


class Fate(Enum):
    """
    What a cancel, or a request with the same timer id, means for an earlier request.

    Attributes:
        TAKEN_BACK: the earlier one does not fire.
        TOO_LATE: it fires, or has fired.
        PAST: one or the other, long ago: a worker that reads the log again cannot tell, and nobody asks any more.
        OPEN: whether it fires will be known when the open scan is sealed.
    """

    TAKEN_BACK = auto()
    TOO_LATE = auto()
    PAST = auto()
    OPEN = auto()


@dataclass
class Taken:
    """
    Rows of a scan that are sent in one go: all that are left up to a key.

    Attributes:
        offsets: of all of them, as they are sent.
        rejected: those of the offsets that go to `timer-rejected` instead of their callback topic.
        named: whether any of them has a timer id.
        late: how many came late.
        copies: of each copy among them the offset, and that under which it counts as pending.
        through: the highest key.
    """

    offsets: list[int] = field(default_factory=list)
    rejected: list[int] = field(default_factory=list)
    named: bool = False
    late: int = 0
    copies: list[tuple[int, int]] = field(default_factory=list)
    through: bytes = b""

    @cached_property
    def chunks(self) -> Counter[int]:
        """How many of them lie in each chunk of offsets; to be asked for when all are there."""
        chunks = _chunks_of(self.offsets)
        if self.copies:
            chunks.subtract(_chunks_of([offset for offset, _ in self.copies]))
            chunks.update(_chunks_of([counted for _, counted in self.copies]))
        return +chunks


@dataclass(frozen=True, slots=True)
class Scan:
    """A second that is being fired: requests below *fence* with a key up to its end, those up to *through* are done."""

    second: int
    fence: int
    through: bytes = b""


@dataclass(frozen=True, slots=True)
class Local:
    """What a store on this host says of itself; see `Partition` for the fields."""

    position: int
    second: int
    fence: int
    scan: Scan | None
    known_from: int = 0


class Partition:
    """
    The state of one partition at its owner.

    Args:
        number: of the partition.
        horizon_s: requests due more seconds than this after their append are left to the lake; 0 leaves none.

    Attributes:
        second: the last second that is sealed completely; 0 before the first.
        fence: the offset up to which the request log had been read when that second was scanned.
        scan: the second that is being fired, if any.
        position: the offset up to which the request log has been read into the store.
        chunks: how many requests wait in each chunk of offsets.
        remembered: chunks with requests that have a timer id and do not wait any more, and the second up to which they
            are worth to be read again.
        known_from: the offset from which on the log has been read into the store, without a gap up to `position`.
        horizon_from: the offset from which on all owners have judged by this horizon.
    """

    def __init__(self, number: int, horizon_s: int = 0) -> None:
        self.number = number
        self.horizon_s = horizon_s
        self.second = 0
        self.fence = 0
        self.scan: Scan | None = None
        self.position = 0
        self.chunks: Counter[int] = Counter()
        self.remembered: dict[int, int] = {}
        self.known_from = 0
        self.horizon_from = 0
        self._done_below = 0
        self._touched: set[int] = set()

    # --- taking over -------------------------------------------------------------------------------------------------

    def take_over(self, seals: Iterable[Sealed], local: Local | None, read_from: int | None = None) -> bool:
        """
        Set the state from the *seals* of this partition and from what a *local* store says.

        The reader goes on at `position` then, and nothing may be scanned before `must_reach`.

        Args:
            seals: the last ones, with the latest complete one among them.
            local: None when there is no store, or one that was kept by another horizon.
            read_from: the offset to read the log from, if without a local store that is to be earlier than the seals
                say.

        Returns:
            Whether the local store is worth keeping. If so, pass each of its rows below `first_key(unsettled)` through
            `settle`; else drop it, and read the log from `position`.
        """
        seals = list(seals)
        complete = latest(seals)
        self.second, self.fence = (complete.last, complete.fence) if complete else (0, 0)
        # `through` is a key under the complete seal that the slice stands on. Under an older one, as a paused owner
        # adds with at-least-once, the same key would declare requests as done that are not.
        slices = [s for s in seals if not is_complete(s) and s.first == self.second + 1]
        last_slice = max(slices, key=lambda s: (*age_of(s), s.through), default=None)
        self.scan = Scan(last_slice.last, last_slice.fence, last_slice.through) if last_slice else None
        restore_from = max((s.restore_from for s in (last_slice, complete) if s), default=0)
        self._done_below = restore_from
        if local is not None and local.position < restore_from:
            # A store that ends below restore_from holds nothing that is pending: all its rows have fired since.
            local = None
        if local is not None and local.second <= self.second and self._has_read_beyond_the_scan(local):
            local = None
        if local is None:
            self.position = self.known_from = restore_from if read_from is None else min(restore_from, read_from)
        else:
            self.position, self.known_from = local.position, local.known_from
            if local.second > self.second:
                # The seals are gone, this store is not.
                self.second, self.fence, self.scan = local.second, local.fence, None
        self._judge_from(last_slice or complete)
        return local is not None

    def _has_read_beyond_the_scan(self, local: Local) -> bool:
        """
        Tell whether a *local* store may have taken back what the open scan, of which others have sealed a part, fires.

        A paused owner reads on:
         1. A pauses at offset 11; B takes over, scans second 19 with fence 11, seals its first slice, and dies
         2. A goes on, and reads offset 11: a cancel of what is due in 19
         3. A takes over, and goes on with the scan, which knows nothing of offset 11
        Held by test_what_a_paused_owner_has_cancelled_fires_if_the_open_scan_says_so.
        """
        scan, own = self.scan, local.scan
        if scan is None or (own is not None and (own.second, own.fence) == (scan.second, scan.fence)):
            return False
        return local.position > scan.fence

    def _judge_from(self, seal: Sealed | None) -> None:
        if self.horizon_s == (seal.horizon_s if seal else 0):
            self.horizon_from = seal.horizon_from if seal else 0
        else:
            # What owners with another horizon have kept is below, and settled: the log is read anew from here.
            self.horizon_from = self.known_from

    def unsettled(self, local: Local) -> int:
        """Return the first second whose rows in a *local* store are certain to have the key that they must have."""
        seconds = [self.second, local.second]
        seconds += [scan.second for scan in (self.scan, local.scan) if scan]
        return max(seconds) + 2

    def settle(self, key: bytes) -> bytes | None:
        """Return the key that the row under *key* must have by now, or None when its request is done."""
        return self.place(*parts_of(key), copied_in(key))

    # --- requests ----------------------------------------------------------------------------------------------------

    @property
    def looked_at(self) -> int:
        """The last second that a scan has begun to look at: later ones have nothing done, and nothing late."""
        return max(self.second, self.scan.second if self.scan else 0)

    def place(self, second: int, millis: int, offset: int, copied: Copied | None = None) -> bytes | None:
        """
        Return the key to keep a request under, or None when it is done.

        Args:
            second: that it asks for; `REFUSED` of a refused one.
            millis: within that second.
            offset: of the request; of a copy that of its original.
            copied: of a copy, where it lies.
        """
        scan = self.scan
        at, tail = (copied.at, _COPIED.pack(*copied)) if copied else (offset, b"")
        if second > self.second:
            key = _ROW.pack(second, millis, offset) + tail
        elif at < self.fence:
            return None
        else:
            key = _LATE.pack(self.second + 1, 0, offset, second, millis) + tail
        if scan is not None and second <= scan.second:
            # A request is read after the scan of its second began:
            #  1. tick 12 is read, the log has been read up to offset 40: scan (12, fence 40)
            #  2. offset 40 asks for second 11        3. the scan's rows are dropped once they are sealed
            # Under 11 it would be dropped without having fired. Held by test_v4_request_read_during_a_scan_is_not_lost.
            if at >= scan.fence:
                return _LATE.pack(scan.second + 1, 0, offset, second, millis) + tail
            if key <= scan.through:
                return None
        return key

    def is_done(self, version: Version) -> bool:
        """Tell whether a request that was not taken back is done; one that is left to the lake is not."""
        return not version.far and self.place(version.second, version.millis, version.offset, version.copied) is None

    def holds_original(self, second: int, offset: int, appended_s: int) -> bool:
        """
        Tell whether this partition's owners keep, or have kept, the request that a copy is made of.

        So it is where the lake's horizon is shorter than the workers'.

        Args:
            second: that the request asks for.
            offset: of the request.
            appended_s: UNIX second of its append.
        """
        return offset >= self.horizon_from and not is_far(second, appended_s, self.horizon_s)

    def fate(self, before: Version, by: int, appended_ms: int) -> Fate:
        """
        Return what a record means for the request *before* it of its timer id, which no record has taken back yet.

        Args:
            before: the earlier one.
            by: offset of the record, which is a cancel or a request.
            appended_ms: UNIX milliseconds at which the broker appended the record.
        """
        in_time = appended_ms < before.second * 1000
        if before.far:
            return Fate.TAKEN_BACK if in_time else Fate.TOO_LATE
        if self.is_done(before):
            return Fate.PAST if in_time and self.is_answered(by) else Fate.TOO_LATE
        if not in_time:
            return Fate.TOO_LATE
        scan = self.scan
        if scan is not None and before.second <= scan.second and before.at < scan.fence <= by:
            # Once a slice is sealed, whoever goes on with this scan has the same fence. Before, the next owner may have
            # read the record when it begins one of its own.
            return Fate.TOO_LATE if scan.through else Fate.OPEN
        return Fate.TAKEN_BACK

    def is_answered(self, offset: int) -> bool:
        """Tell whether the record at *offset* was answered before: no seal covers what was not."""
        return offset < self.must_reach

    def remember(self, offset: int, second: int) -> None:
        """Have the request at *offset* read by whoever has no store, until what came of it in *second* is forgotten."""
        self._remember([offset >> CHUNK_BITS], second)

    def _remember(self, chunks: Iterable[int], second: int) -> None:
        until = second + ID_MEMORY_S
        for chunk in chunks:
            if until > max(self.remembered.get(chunk, 0), self.second):
                self.remembered[chunk] = until
                self._touched.add(chunk)

    def added(self, offsets: Sequence[int]) -> None:
        """Count the requests at *offsets*, which ascend, as pending."""
        if offsets and offsets[0] >> CHUNK_BITS == offsets[-1] >> CHUNK_BITS:
            counts = {offsets[0] >> CHUNK_BITS: len(offsets)}
        else:
            counts = _chunks_of(offsets)
        self.chunks.update(counts)
        self._touched.update(counts)

    def removed(self, offsets: Iterable[int]) -> None:
        """Count the requests at *offsets* as done."""
        self._remove(_chunks_of(offsets))

    def _remove(self, counts: Counter[int]) -> None:
        self.chunks.subtract(counts)
        for chunk in counts:
            if not self.chunks[chunk]:
                del self.chunks[chunk]
        self._touched.update(counts)

    def take_touched(self) -> dict[int, tuple[int, int]]:
        """Return the chunks that have changed since the last call: how many wait, and until when it is remembered."""
        touched = {chunk: (self.chunks[chunk], self.remembered.get(chunk, 0)) for chunk in self._touched}
        self._touched.clear()
        return touched

    def restore(self, chunks: Mapping[int, tuple[int, int]]) -> None:
        """Set what `take_touched` has told of all chunks."""
        self.chunks.update({chunk: count for chunk, (count, _) in chunks.items() if count})
        self.remembered.update({chunk: until for chunk, (_, until) in chunks.items() if until > self.second})

    @property
    def pending(self) -> int:
        """How many requests wait."""
        return self.chunks.total()

    @property
    def restore_from(self) -> int:
        """An offset on `timer-request` below which nothing waits or is remembered; one chunk below the best at most."""
        return self._lowest(self.chunks, self.second)

    @property
    def restorable_from(self) -> int:
        """An offset at or above the oldest pending request: a log that starts above it has lost one."""
        lowest = min(self.chunks, default=None)
        return self.position if lowest is None else ((lowest + 1) << CHUNK_BITS) - 1

    def _lowest(self, chunks: Counter[int], second: int) -> int:
        remembered = [chunk for chunk, until in self.remembered.items() if until > second]
        lowest = min(chain(chunks, remembered), default=None)
        # What was sealed once is never taken back, though a new request may open its chunk again: retention follows it.
        return self.position if lowest is None else max(lowest << CHUNK_BITS, self._done_below)

    # --- firing ------------------------------------------------------------------------------------------------------

    @property
    def must_reach(self) -> int:
        """
        The position that the store must have reached before anything is scanned.

        A seal with a lower fence than one before it would declare requests between the two as not done.
        """
        return max(self.fence, self.scan.fence if self.scan else 0)

    def begin(self, second: int) -> Scan:
        """
        Open the scan of *second*, or return the one that was left open, which comes first and keeps its fence.

        The scan must be in the store before its first callback leaves.
        """
        if self.scan is None:
            self.scan = Scan(second, self.position)
        return self.scan

    def range_of(self, scan: Scan) -> tuple[bytes, bytes]:
        """Return the range of keys, the second one excluded, that are left to fire in *scan*."""
        return scan.through + b"\0" if scan.through else first_key(self.second + 1), first_key(scan.second + 1)

    def seal(self, taken: Taken, *, complete: bool, cancelled: int = 0, moved: int = 0) -> Sealed:
        """
        Return the seal for the next rows of the open scan, without the fields that only the sender knows.

        Args:
            taken: the rows, from the scan's `through` on, nothing left out but what was taken back.
            complete: no further rows of this scan follow.
            cancelled: rows between that were taken back by a cancel.
            moved: rows between that were taken back by another request.
        """
        scan = self._open()
        after = self.chunks - taken.chunks
        if taken.named:
            self._remember(taken.chunks, scan.second)
        return Sealed(
            partition=self.number,
            first=self.second + 1,
            last=scan.second,
            due=len(taken.offsets),
            fired=len(taken.offsets) - len(taken.rejected),
            rejected=len(taken.rejected),
            late_arrivals=taken.late,
            cancelled=cancelled,
            moved=moved,
            pending=after.total(),
            digest=(digest_of(taken.offsets) - digest_of(taken.rejected)) % _DIGESTS,
            fence=scan.fence,
            through=None if complete else taken.through,
            restore_from=self._lowest(after, scan.second),
            horizon_s=self.horizon_s,
            horizon_from=self.horizon_from,
        )

    def sealed(self, seal: Sealed, taken: Taken) -> None:
        """Take note that *seal* is durable, and with it that the rows *taken* are done."""
        scan = self._open()
        self._remove(taken.chunks)
        self._done_below = seal.restore_from
        if not is_complete(seal):
            self.scan = replace(scan, through=seal.through)
        else:
            self.second, self.fence, self.scan = scan.second, scan.fence, None
            forgotten = [chunk for chunk, until in self.remembered.items() if until <= self.second]
            for chunk in forgotten:
                del self.remembered[chunk]
            self._touched.update(forgotten)

    def _open(self) -> Scan:
        if self.scan is None:
            raise AssertionError("no scan is open: begin() comes first")
        return self.scan


def _chunks_of(offsets: Iterable[int]) -> Counter[int]:
    return Counter([offset >> CHUNK_BITS for offset in offsets])


def tick_second(second: int, appended_ms: int, max_clock_skew_s: float) -> int | None:
    """
    Return the second that a tick counts as, or None when it is too far ahead of the broker to be believed.

    An oscillator ahead of the broker must not make anything early, so a tick never counts as more than the second in
    which the broker appended it.

    Args:
        second: the tick's own second.
        appended_ms: UNIX milliseconds of its append, by the broker's clock.
        max_clock_skew_s: how far ahead is still believed.
    """
    if second * 1000 - appended_ms > max_clock_skew_s * 1000:
        return None
    return min(second, appended_ms // 1000)
