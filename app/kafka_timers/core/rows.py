"""
Batches: requests that were read together and are due at one moment, kept as one row.

Callers mostly ask for the same delay, so requests that lie together on the log are due together. One row for a batch
spares the store. It also lets the protobuf runtime parse all requests in one call, many times faster than one by one.
"""

import struct
from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator, Sequence

from google.protobuf.message import DecodeError

from kafka_timers.core.changes import Row
from kafka_timers.core.keys import REFUSED_MS, copied_in, is_batch, parts_of, row_key
from kafka_timers.core.wire import Extras, Future, Futures, Merged, RawRun, Request, Run

# Tags of the fields of a Run.
_REQUESTS, _OFFSETS, _PLAIN, _NAMED = b"\x0a", b"\x12", b"\x18\x01", b"\x20\x01"


def extras_in(framed: bytes) -> Extras:
    """
    Return the topics of the Futures that `framed` returned, and the fields that any of them has beside these.

    Raises:
        DecodeError: one of them is not a Future.
    """
    return Merged.FromString(framed).requests


def futures_in(framed: bytes) -> Sequence[Future]:
    """
    Return the Futures that `framed` returned.

    Raises:
        DecodeError: one of them is not a Future.
    """
    return Futures.FromString(framed).requests


def pack(requests: bytes, offsets: Sequence[int], *, plain: bool = False, named: bool = False) -> bytes:
    """
    Return the value of a batch.

    Args:
        requests: the requests, as `framed` returns them.
        offsets: their offsets, ascending.
        plain: whether none of them has more than topic, key and value.
        named: whether some of them have a timer id.
    """
    end = _OFFSETS + _varint(8 * len(offsets)) + struct.pack(f"<{len(offsets)}Q", *offsets)
    return requests + end + (_PLAIN if plain else b"") + (_NAMED if named else b"")


def unpack(row: bytes) -> Run:
    """Return the arguments of `pack` from its *row*."""
    return Run.FromString(row)


def may_be_named(key: bytes, row: bytes) -> bool:
    """Tell whether a request under *key* has a timer id; True if that is not known."""
    if is_batch(key):
        return row.endswith(_NAMED)
    if parts_of(key)[0] == REFUSED_MS:
        return False
    try:
        return bool(Extras.FromString(row).timerId)
    except DecodeError:
        return True


def requests_in(values: Sequence[bytes]) -> Sequence[Request]:
    """
    Return the request in each of *values*.

    Raises:
        DecodeError: one of them is not a Future.
    """
    return Run.FromString(framed(values)).requests


def raw_requests(row: bytes) -> Sequence[bytes]:
    """Return the requests of a batch as they came."""
    return RawRun.FromString(row).requests


def ids_in(row: bytes) -> Iterable[tuple[bytes, int]]:
    """Return the timer ids in a row that was packed like a batch, with their offsets."""
    past = RawRun.FromString(row)
    return zip(past.requests, past.offsets, strict=True)


def singles(key: bytes, row: bytes) -> list[Row]:
    """Return the requests under *key*, as a row for each."""
    if not is_batch(key):
        return [(key, row)]
    due_ms, batch = parts_of(key)[0], RawRun.FromString(row)
    return [(row_key(due_ms, offset), raw) for offset, raw in zip(batch.offsets, batch.requests, strict=True)]


def holds_any(key: bytes, row: bytes, offsets: Container[int]) -> bool:
    """
    Tell whether a request under *key* has one of *offsets*.

    A batch keeps its key when its last request is withdrawn, so the key alone does not tell.
    """
    if parts_of(key)[1] in offsets:
        return True
    return is_batch(key) and any(offset in offsets for offset in RawRun.FromString(row).offsets)


def count_at(key: bytes, row: bytes, offsets: range) -> int:
    """Return how many requests under *key* have their record at one of *offsets*, which for a copy is its own."""
    if is_batch(key):
        ascending = RawRun.FromString(row).offsets
        return max(bisect_left(ascending, offsets.stop) - bisect_left(ascending, offsets.start), 0)
    copied = copied_in(key)
    return int((copied.at if copied else parts_of(key)[1]) in offsets)


def without(rows: Iterable[Row], withdrawn: Iterator[bytes]) -> Iterator[Row]:
    """
    Yield *rows* without the requests that do not fire.

    Args:
        rows: keys ascending.
        withdrawn: keys of those requests, or the keys that they would have outside of a batch; ascending.
    """
    next_key = next(withdrawn, None)
    for key, row in rows:
        # Of two batches at one moment the later one has the higher offsets, so a withdrawn key below its key that has
        # not been met yet is its own.
        gone = []
        while next_key is not None and next_key <= key:
            gone.append(next_key)
            next_key = next(withdrawn, None)
        if not gone:
            yield key, row
        elif is_batch(key):
            batch, offsets = Run.FromString(row), {parts_of(each)[1] for each in gone}
            raw = raw_requests(row)
            left = [(each, at) for each, at in zip(raw, batch.offsets, strict=True) if at not in offsets]
            if left:
                values = framed([each for each, _ in left])
                yield key, pack(values, [at for _, at in left], plain=batch.plain, named=batch.named)
        elif key not in gone:
            yield key, row


def framed(values: Sequence[bytes]) -> bytes:
    """Return *values*, a serialised Future each, framed for the parser of many Futures."""
    parts = [b""] * (2 * len(values))
    parts[::2] = map(_FRAMES.__getitem__, map(len, values))
    parts[1::2] = values
    return b"".join(parts)


class _Frames(dict[int, bytes]):
    """The bytes before a request of each size."""

    def __missing__(self, size: int) -> bytes:
        frame = _REQUESTS + _varint(size)
        if size < 1 << 14:
            self[size] = frame
        return frame


_FRAMES = _Frames()


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
