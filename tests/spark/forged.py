"""
Records with a digest that somebody has chosen: what a person can do who means harm.

XXH64 takes the last 8 bytes of a value by steps that all can be undone. So there is one way to choose these 8 bytes for
each digest.
"""

from xxhash import xxh64_intdigest

from kafka_timers.core.wire import Future

_MASK = 2**64 - 1
_P1, _P2, _P3, _P4 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63
_FREE = 8
# Tag of field 2000, of bytes.
_UNKNOWN = b"\x82\x7d"


def forged(future: Future, key: bytes, number: int, offset: int, appended_ms: int, digest: int) -> Future:
    """Return *future* with a field more that nobody knows, so that its record has the *digest*."""
    seed = xxh64_intdigest(number.to_bytes(8, "little"), 42)
    for part in (offset.to_bytes(8, "little"), appended_ms.to_bytes(8, "little"), key):
        seed = xxh64_intdigest(part, seed)
    value = future.SerializeToString()
    # The free bytes must be the last of those that XXH64 takes 8 at a time.
    size = next(size for size in range(_FREE, 64) if (n := len(value) + 3 + size) % 8 == 0 and n % 32)
    value += _UNKNOWN + bytes([size]) + bytes(size - _FREE)
    before = _undone(xxh64_intdigest(value + bytes(_FREE), seed)) ^ _round(0)
    value += _unround(_undone(digest) ^ before).to_bytes(_FREE, "little")
    assert xxh64_intdigest(value, seed) == digest
    return Future.FromString(value)


def _undone(digest: int) -> int:
    """Return the state of XXH64 before its last steps and before it has mixed the last 8 bytes, these bytes apart."""
    digest = _unshifted(digest, 32)
    digest = _unshifted(digest * pow(_P3, -1, 2**64) & _MASK, 29)
    digest = _unshifted(digest * pow(_P2, -1, 2**64) & _MASK, 33)
    return _rotated((digest - _P4) * pow(_P1, -1, 2**64) & _MASK, 64 - 27)


def _round(number: int) -> int:
    return _rotated(number * _P2 & _MASK, 31) * _P1 & _MASK


def _unround(state: int) -> int:
    return _rotated(state * pow(_P1, -1, 2**64) & _MASK, 64 - 31) * pow(_P2, -1, 2**64) & _MASK


def _rotated(number: int, bits: int) -> int:
    return (number << bits | number >> (64 - bits)) & _MASK


def _unshifted(number: int, bits: int) -> int:
    """Return x of *number* = x ^ (x >> bits)."""
    found = number
    while bits < 64:
        found ^= found >> bits
        bits *= 2
    return found
