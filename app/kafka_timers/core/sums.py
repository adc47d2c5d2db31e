"""
Sums over records, which Python and Spark compute alike: so a seal tells what was read, and what has fired.

Pure. Each record counts by its XXH64, and a sum is that of all of them, modulo 2^64: whatever their order, and however
they are divided. A hash goes over parts, each with the hash of the parts before it as its seed and the first one with
42, which is what Spark's `xxhash64` does with its arguments. Numbers are 8 bytes, the lowest first:

    what has fired   partition, offset
    what was read    partition, offset, append time in milliseconds, key, value, and of each header name, value and
                     0, or 1 (both of 4 bytes) where it has none

To the partition of what was read 2^32 is added where there is no key, and 2^33 where there is no value; what is not
there is passed over, and of a header an empty value stands for it. The name of a header that is not UTF-8, or has the
character U+FFFD, counts as empty: others than Python read such a name otherwise.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import repeat
from struct import Struct
from typing import NamedTuple

from xxhash import xxh64_intdigest

from kafka_timers.core.contents import DIGESTS
from kafka_timers.core.wire import ReadRecord, Sealed

__all__ = ["SEED", "VERSION", "ReadSums", "Sum", "fired_digest_of", "hash_of_record", "hash_of_seal", "sum_of"]

# Of the digests, as a seal names it.
VERSION = 1
SEED = 42
_NO_KEY, _NO_VALUE = 1 << 32, 1 << 33
_NO_HEADER_VALUE, _HEADER_VALUE = b"\1\0\0\0", b"\0\0\0\0"
_UNREADABLE = "\ufffd"

_number = Struct("<q").pack


class Sum(NamedTuple):
    """How many records there are, and their digest."""

    records: int = 0
    digest: int = 0

    def plus(self, other: "Sum") -> "Sum":
        """Return the sum of the records of both."""
        return Sum(self.records + other.records, (self.digest + other.digest) % DIGESTS)

    def minus(self, other: "Sum") -> "Sum":
        """Return the sum of the records that the *other* one, which is a part, has not."""
        return Sum(self.records - other.records, (self.digest - other.digest) % DIGESTS)


NOTHING = Sum()


@dataclass(frozen=True, slots=True)
class ReadSums:
    """
    The committed records of a partition's log from one offset on and below another one.

    Attributes:
        since: the first offset.
        to: the offset behind the last one.
        near: those that are held, were refused, or are copies.
        far: those that are left to the lake.
        cancels: see `Sealed`.
    """

    since: int
    to: int
    near: Sum = NOTHING
    far: Sum = NOTHING
    cancels: Sum = NOTHING

    @classmethod
    def of(cls, seal: Sealed) -> "ReadSums | None":
        """Return what *seal* tells; None where that is nothing, or is told by digests of another version."""
        if seal.digests != VERSION or not seal.HasField("read_from"):
            return None
        told = (Sum(each.count, each.digest) for each in (seal.near, seal.far, seal.cancels))
        return cls(seal.read_from, seal.fence, *told)

    def tell(self, seal: Sealed) -> None:
        """Have *seal* tell this, whose fence is where it ends."""
        seal.read_from = self.since
        for field, own in ((seal.near, self.near), (seal.far, self.far), (seal.cancels, self.cancels)):
            field.count, field.digest = own

    def read_on(
        self, number: int, records: Sequence[ReadRecord], to: int, far: Collection[int], cancels: Collection[int]
    ) -> "ReadSums":
        """
        Return this and *records*, those of them that it does not have.

        Args:
            number: of the partition.
            records: all committed ones up to the offset *to*, from a lower one than this ends at.
            to: see *records*.
            far: offsets of those that are left to the lake.
            cancels: offsets of the cancels.
        """
        if to <= self.to:
            return self
        if records and records[0].offset < self.to:
            records = [record for record in records if record.offset >= self.to]
        every = sum_of(number, records)
        left, taken = (
            sum_of(number, [record for record in records if record.offset in offsets]) if offsets else NOTHING
            for offsets in (far, cancels)
        )
        near = every.minus(left).minus(taken)
        return ReadSums(self.since, to, self.near.plus(near), self.far.plus(left), self.cancels.plus(taken))


def fired_digest_of(number: int, offsets: Iterable[int]) -> int:
    """Return the digest of what has fired: requests of partition *number* at *offsets*."""
    return sum(map(xxh64_intdigest, map(_number, offsets), repeat(_seed_of(number)))) % DIGESTS


def sum_of(number: int, records: Sequence[ReadRecord]) -> Sum:
    """Return the sum of *records* of partition *number*."""
    if not records:
        return NOTHING
    keys = [key for record in records if (key := record.key) is not None]
    values = [value for record in records if (value := record.value) is not None]
    if len(keys) + len(values) < 2 * len(records) or any(record.headers for record in records):
        return Sum(len(records), sum([hash_of_record(number, record) for record in records]) % DIGESTS)
    # All of them run in C: a third of the time that a loop takes.
    hashes = map(xxh64_intdigest, map(_number, [record.offset for record in records]), repeat(_seed_of(number)))
    hashes = map(xxh64_intdigest, map(_number, [record.timestamp for record in records]), hashes)
    return Sum(len(records), sum(map(xxh64_intdigest, values, map(xxh64_intdigest, keys, hashes))) % DIGESTS)


def hash_of_record(number: int, record: ReadRecord) -> int:
    """Return what a *record* of partition *number* counts by, at least 0 and below `DIGESTS`."""
    key, value = record.key, record.value
    lacks = (_NO_KEY if key is None else 0) + (_NO_VALUE if value is None else 0)
    parts = [_number(record.offset), _number(record.timestamp), *(part for part in (key, value) if part is not None)]
    for name, content in record.headers:
        parts += [_readable(name), content or b"", _NO_HEADER_VALUE if content is None else _HEADER_VALUE]
    hashed = _seed_of(number + lacks)
    for part in parts:
        hashed = xxh64_intdigest(part, hashed)
    return hashed


def hash_of_seal(value: bytes) -> bytes:
    """Return what the seal behind the one with this *value* tells of it: its SHA-256."""
    return sha256(value).digest()


def _readable(name: str) -> bytes:
    try:
        return b"" if _UNREADABLE in name else name.encode()
    except UnicodeEncodeError:
        return b""


def _seed_of(number: int) -> int:
    return xxh64_intdigest(_number(number), SEED)
