"""
The state of a store as bytes: how far it has read and fired, and its identity.

Earlier versions take everything after the head that they know as the identity of another store, and rebuild it.
"""

import struct

from kafka_timers.core.changes import Head, Scan
from kafka_timers.core.sums import ReadSums, Sum

__all__ = ["FORMAT", "format_of", "pack_head", "unpack_head"]

FORMAT = 4

_HEAD = struct.Struct(">BQQQQB")
_SCAN = struct.Struct(">QQ")
_MILLIS = struct.Struct(">HH")
_READ = struct.Struct(">7Q")
# Flags of the head. All except the third say which fields follow, in this order.
_SCANNING, _WITHIN_SECONDS, _HAS_CALLBACKS, _HAS_READ = 1, 2, 4, 8


def format_of(head: bytes) -> int:
    """Return the format of *head*."""
    return head[0]


def pack_head(head: Head, identity: bytes) -> bytes:
    """Return the bytes of *head*, for a store with *identity*."""
    scan, read = head.scan, head.read
    # In seconds, as earlier versions expect.
    told = head.position, head.sealed_ms // 1000 - 1, head.snapshot, head.known_from
    tail = _SCAN.pack(scan.end_ms // 1000 - 1, scan.snapshot) if scan else b""
    flags = (_SCANNING if scan else 0) | (_HAS_CALLBACKS if head.has_callbacks else 0)
    millis = head.sealed_ms % 1000, scan.end_ms % 1000 if scan else 0
    if any(millis):
        flags, tail = flags | _WITHIN_SECONDS, tail + _MILLIS.pack(*millis)
    # Sums beyond the read position come from seals, which will provide them again.
    if read is not None and read.to == head.position:
        flags, tail = flags | _HAS_READ, tail + _READ.pack(read.since, *read.near, *read.far, *read.cancels)
    return _HEAD.pack(FORMAT, *told, flags) + tail + identity


def unpack_head(packed: bytes, identity: bytes) -> Head | None:
    """Return the head that `pack_head` has *packed*; None if the store has another *identity*."""
    _, position, second, snapshot, known_from, flags = _HEAD.unpack_from(packed)
    scan, read, at, millis, of_millis = None, None, _HEAD.size, 0, 0
    if flags & _SCANNING:
        (of_second, scan_snapshot), at = _SCAN.unpack_from(packed, at), at + _SCAN.size
        scan = Scan((of_second + 1) * 1000, scan_snapshot)
    if flags & _WITHIN_SECONDS:
        (millis, of_millis), at = _MILLIS.unpack_from(packed, at), at + _MILLIS.size
        scan = scan and scan._replace(end_ms=scan.end_ms + of_millis)
    if flags & _HAS_READ:
        (since, *sums), at = _READ.unpack_from(packed, at), at + _READ.size
        read = ReadSums(since, position, *(Sum(*sums[each : each + 2]) for each in (0, 2, 4)))
    if packed[at:] != identity:
        return None
    sealed_ms, has_callbacks = (second + 1) * 1000 + millis, bool(flags & _HAS_CALLBACKS)
    return Head(position, sealed_ms, snapshot, known_from, scan, has_callbacks=has_callbacks, read=read)
