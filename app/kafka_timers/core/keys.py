"""
The keys under which a partition's pending requests are kept, and their order.

A key begins with a moment and the request's offset, so keys sort by moment, then in order of acceptance. In the core a
moment is one number, UNIX milliseconds. On disk and in `Sealed.through` it is a second (8 bytes) and its milliseconds
(2 bytes), which sort alike.

    in time        due, offset
    late           the moment from which it may fire, offset, and behind these its own due
    batch          due, the last of several offsets, and the number of requests under the key
    copy           either of the first two, and behind it the offsets of the copy and of its decision

A late request keeps its own due, because that tells whether it is done.
"""

import struct
from typing import NamedTuple

_ROW = struct.Struct(">QHQ")
_BATCH = struct.Struct(">QHQH")
_LATE = struct.Struct(">QHQQH")
# The part of a copy's key that follows the key of its request, late or not.
_COPIED = struct.Struct(">QQ")
_LATE_BYTES = (_LATE.size, _LATE.size + _COPIED.size)
_COPY_BYTES = (_ROW.size + _COPIED.size, _LATE.size + _COPIED.size)

# The due of a refused request. It sorts as late, so the next tick takes it to `timer-rejected`.
REFUSED_MS = 0
# No request is due before second 1, so a partition that has not fired yet counts as sealed up to here.
FIRST_MS = 1000


class Copied(NamedTuple):
    """The offset of a copy on `timer-request`, and the offset below which all was known when it was decided."""

    at: int
    decided: int


def first_key(at_ms: int) -> bytes:
    """Return the lowest key of the moment *at_ms*, an exclusive upper bound for all requests that are due before it."""
    return _ROW.pack(at_ms // 1000, at_ms % 1000, 0)


def row_key(due_ms: int, offset: int, copied: Copied | None = None) -> bytes:
    """Return the key of a request that is not late."""
    key = _ROW.pack(due_ms // 1000, due_ms % 1000, offset)
    return key + _COPIED.pack(*copied) if copied else key


def late_key(from_ms: int, offset: int, due_ms: int, copied: Copied | None = None) -> bytes:
    """Return the key of a request for *due_ms* that may not fire before *from_ms*."""
    key = _LATE.pack(from_ms // 1000, from_ms % 1000, offset, due_ms // 1000, due_ms % 1000)
    return key + _COPIED.pack(*copied) if copied else key


def batch_key(due_ms: int, last: int, count: int) -> bytes:
    """Return the key of *count* requests; the last one has the offset *last*."""
    return _BATCH.pack(due_ms // 1000, due_ms % 1000, last, count)


def is_batch(key: bytes) -> bool:
    """Tell whether several requests may lie under *key*."""
    return len(key) == _BATCH.size


def is_late(key: bytes) -> bool:
    """Tell whether the request was read after its due moment had been scanned."""
    return len(key) in _LATE_BYTES


def count_of(key: bytes) -> int:
    """Return the number of requests under *key*."""
    return int.from_bytes(key[_ROW.size :], "big") if is_batch(key) else 1


def moment_of(key: bytes) -> int:
    """Return the UNIX millisecond from which on the row under *key* may fire: its due, or later if it came late."""
    second, millis, _ = _ROW.unpack_from(key)
    return int(second * 1000 + millis)


def row_of(key: bytes) -> int:
    """Return the offset that orders the rows of one moment: the request's, or the last one of a batch."""
    return int(_ROW.unpack_from(key)[2])


def parts_of(key: bytes) -> tuple[int, int]:
    """Return the due in UNIX milliseconds that a request asked for, and its offset; for a batch its last offset."""
    if is_late(key):
        _, _, offset, second, millis = _LATE.unpack_from(key)
    else:
        second, millis, offset = _ROW.unpack_from(key)
    return second * 1000 + millis, offset


def copied_in(key: bytes) -> Copied | None:
    """Return the offsets of the copy under *key*; None if it is not a copy."""
    return Copied(*_COPIED.unpack(key[-_COPIED.size :])) if len(key) in _COPY_BYTES else None


def counted_under(key: bytes) -> int:
    """Return the offset under which the request counts as pending: for a copy, that of its decision."""
    copied = copied_in(key)
    return copied.decided if copied else parts_of(key)[1]
