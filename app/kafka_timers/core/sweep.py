"""
Repeat what waits far behind on the request log, so that the log before it may go.

Pure. One request of next year would hold back all of the log behind it. So the owner of a partition sweeps it now and
then: requests that wait below an offset `below` are written once more, in records with `Future.kept`.

    since     how far the owner had read when it began; what it repeats waited then
    to        all of these records lie from `since` on and below this offset

They are a picture of the partition at `since`, in pieces. To readers of the log they mean nothing, so no rule about
requests and cancels has to know them. Only an owner that begins at `restore_from` with an empty store needs them: it
takes their requests first, and then reads on as if they lay below its begin. Requests that were withdrawn after `since`
may be among them, since the record that withdraws them is still to be read. If they are not, the log keeps them as long
as their ids are known, see `Partition.read_again_at`.

The seal that tells of a sweep comes when all of it is written, and everything is sealed that was due so soon that it
was left out. With it, requests below `below` count as if they lay at `since`, in every store, and `restore_from` moves.
A sweep that is broken off before is worth nothing, and its records are none of the next one's.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from google.protobuf.message import DecodeError

from kafka_timers.core import rows as batches
from kafka_timers.core.backlog import begin_of
from kafka_timers.core.changes import Row, Swept
from kafka_timers.core.keys import copied_in, count_of, first_key, parts_of
from kafka_timers.core.wire import KEPT_KEY, Extras, Future, Kept, KeptRequest, Record, Sealed

# What one record repeats, but for the last request of it; and how many are looked at for a part.
_REQUESTS_MAX, _BYTES_MAX, _LOOKED_AT_MAX = 500, 256 << 10, 10_000
_END = b"\xff"
_PARTS = ("below", "since", "to", "requests", "from_ms")


class Part(NamedTuple):
    """
    A part of a sweep.

    Attributes:
        values: values of the records that repeat its requests.
        following: the key from which the next part looks; None if this is the last one.
    """

    values: Sequence[bytes]
    requests: int
    following: bytes | None


class Sweep:
    """
    A sweep that is under way.

    Args:
        begun_us: as in `Swept`.
        below: offset below which requests are repeated, or a little less.
        since: offset up to which the log has been read.
        from_ms: UNIX milliseconds; what fires before is left out.

    Attributes:
        is_written: whether all is written, so that only `to` is missing.
    """

    def __init__(self, begun_us: int, below: int, since: int, from_ms: int) -> None:
        # A chunk counts as a whole.
        self.below, self.since = begin_of(below), since
        self._begun_us = begun_us
        self.from_ms = from_ms
        self.is_written = False
        self._requests = 0
        self._next = first_key(from_ms)

    @property
    def range(self) -> tuple[bytes, bytes]:
        """The keys of the rows that are left to look at, the second one excluded."""
        return self._next, _END

    def part(self, rows: Iterable[Row]) -> Part:
        """Return the next part; *rows* are those of `range`, without withdrawn requests."""
        asked: list[KeptRequest] = []
        looked_at = size = 0
        for key, row in rows:
            if looked_at >= _LOOKED_AT_MAX or len(asked) >= _REQUESTS_MAX or size >= _BYTES_MAX:
                return self._part(asked, key)
            looked_at += count_of(key)
            # Copies of far requests have a lake.
            if copied_in(key) or not batches.count_at(key, row, range(self.below)):
                continue
            for single, value in batches.singles(key, row):
                due_ms, offset = parts_of(single)
                if offset < self.below:
                    asked.append(KeptRequest(offset=offset, dueMs=due_ms, future=unconditional(value)))
                    size += len(value)
        return self._part(asked, None)

    def _part(self, asked: Sequence[KeptRequest], following: bytes | None) -> Part:
        values, kept, size = list[bytes](), Kept(begun=self._begun_us), 0
        # A row may hold thousands.
        for each in asked:
            if len(kept.requests) >= _REQUESTS_MAX or size >= _BYTES_MAX:
                values.append(Future(kept=kept).SerializeToString())
                kept, size = Kept(begun=self._begun_us), 0
            kept.requests.append(each)
            size += len(each.future)
        if kept.requests:
            values.append(Future(kept=kept).SerializeToString())
        return Part(values, len(asked), following)

    def written(self, part: Part) -> None:
        """Note that *part* is on the log."""
        self._requests += part.requests
        self.is_written = part.following is None
        if part.following is not None:
            self._next = part.following

    def over(self, to: int) -> Swept:
        """Return the sweep, all of which lies below the offset *to*."""
        return Swept(self._begun_us, self.below, self.since, to, self._requests, self.from_ms)


def sweeps_in(seal: Sealed) -> tuple[Swept, ...]:
    """Return the sweeps that *seal* tells of."""
    return tuple(Swept(each.begun, each.below, each.since, each.to, each.requests, each.from_ms) for each in seal.swept)


def tell(sweeps: Iterable[Swept], seal: Sealed) -> None:
    """Write *sweeps* into *seal*, but for those from before the last one that lie below its `restore_from`."""
    *before, last = sweeps
    for begun_us, *parts in (*(each for each in before if each.since >= seal.restore_from), last):
        seal.swept.add(begun=begun_us, **dict(zip(_PARTS, parts, strict=True)))


def is_of_a_sweep(record: Record) -> bool:
    """Tell whether *record* is one of a sweep."""
    return _kept_in(record) is not None


def _kept_in(record: Record) -> Kept | None:
    """Return the part of a sweep that *record* is; None if it is none."""
    if record.key != KEPT_KEY:
        return None
    try:
        future = Future.FromString(record.value or b"")
    except DecodeError:
        return None
    return future.kept if future.HasField("kept") else None


@dataclass(frozen=True, slots=True)
class _Repeated:
    """A request that a sweep has repeated, as if it was read where it once lay; nobody knows when it was appended."""

    key: bytes
    value: bytes
    offset: int
    timestamp: int
    headers: Sequence[tuple[str, bytes | None]] = ()


def repeated_in(records: Iterable[Record], begun_us: int, offsets: range) -> Iterator[list[Record]]:
    """
    Yield the requests at *offsets* that the sweep of *begun_us* repeats in each of *records*, as `take` needs them.

    Offsets ascend in each list.
    """
    for record in records:
        kept = _kept_in(record)
        if kept is not None and kept.begun == begun_us:
            asked = sorted((each for each in kept.requests if each.offset in offsets), key=lambda each: each.offset)
            # As if it was appended when it is due, no horizon takes it for far.
            yield [_Repeated(b"%d" % (each.dueMs // 1000), each.future, each.offset, each.dueMs) for each in asked]


def unconditional(value: bytes) -> bytes:
    """Return a Future's *value* without its condition, which has held."""
    extras = Extras.FromString(value)
    if not (extras.HasField("condition") or extras.HasField("ifRequest")):
        return value
    future = Future.FromString(value)
    future.ClearField("condition")
    future.ClearField("ifRequest")
    return future.SerializeToString()
