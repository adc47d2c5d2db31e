"""The state of a store as bytes: how far it has read and fired, and its identity."""

import struct

from kafka_timers.core.changes import Head, Scan, Swept
from kafka_timers.core.sums import ReadSums, Sum

FORMAT = 1

_HEAD = struct.Struct(">BQQQQiBB")
_SCAN = struct.Struct(">QQ")
_READ = struct.Struct(">7Q")
_SWEEP = struct.Struct(">6Q")
# Flags of the head: which fields follow, in this order, and whether some of a sweep is missing.
_SCANNING, _HAS_READ, _HAS_SWEEP, _HAS_LATER_SWEEP, _LACKS_SWEPT = 1, 2, 4, 8, 16


def format_of(head: bytes) -> int:
    """Return the format of *head*."""
    return head[0]


def pack_head(head: Head, identity: bytes) -> bytes:
    """Return the bytes of *head*, for a store with *identity*."""
    scan, read = head.scan, head.read
    flags, tail = 0, b""
    if scan:
        flags, tail = _SCANNING, _SCAN.pack(scan.end_ms, scan.snapshot)
    # Sums beyond the read position come from seals, which will provide them again.
    if read is not None and read.to == head.position:
        flags, tail = flags | _HAS_READ, tail + _READ.pack(read.since, *read.near, *read.far, *read.cancels)
    for flag, swept in zip((_HAS_SWEEP, _HAS_LATER_SWEEP), head.sweeps, strict=False):
        flags, tail = flags | flag, tail + _SWEEP.pack(*swept)
    if head.lacks_swept:
        flags |= _LACKS_SWEPT
    numbers = head.position, head.sealed_ms, head.snapshot, head.known_from, head.leader_epoch
    return _HEAD.pack(FORMAT, *numbers, len(head.log), flags) + tail + head.log + identity


def unpack_head(packed: bytes, identity: bytes) -> Head | None:
    """Return the head that `pack_head` has *packed*; None if the store has another *identity*."""
    _, position, sealed_ms, snapshot, known_from, epoch, log_bytes, flags = _HEAD.unpack_from(packed)
    scan, read, at = None, None, _HEAD.size
    sweeps: tuple[Swept, ...] = ()
    if flags & _SCANNING:
        scan, at = Scan(*_SCAN.unpack_from(packed, at)), at + _SCAN.size
    if flags & _HAS_READ:
        (since, *sums), at = _READ.unpack_from(packed, at), at + _READ.size
        read = ReadSums(since, position, *(Sum(*sums[each : each + 2]) for each in (0, 2, 4)))
    for flag in (_HAS_SWEEP, _HAS_LATER_SWEEP):
        if flags & flag:
            sweeps, at = (*sweeps, Swept(*_SWEEP.unpack_from(packed, at))), at + _SWEEP.size
    log, at = packed[at : at + log_bytes], at + log_bytes
    if packed[at:] != identity:
        return None
    return Head(
        *(position, sealed_ms, snapshot, known_from, scan),
        read=read,
        leader_epoch=epoch,
        log=log,
        sweeps=sweeps,
        lacks_swept=bool(flags & _LACKS_SWEPT),
    )
