"""
Sums over records that Python and Spark compute alike, so that a seal can show which records were read and have fired.

Pure. Each record counts by its XXH64, and a sum adds all of these, modulo 2^64, in any order and any division. A hash
goes over parts, each with the hash of the parts before it as its seed. The first seed is 42. Spark's `xxhash64` does
the same with its arguments. Numbers are 8 bytes, the lowest byte first:

    fired requests   partition, offset
    read records     partition, offset, append time in milliseconds, key, value, and of each header name, value and
                     0, or 1 (both of 4 bytes) if it has none

For read records, 2^32 is added to the partition if there is no key, and 2^33 if there is no value. Missing parts are
skipped, but a missing header value counts as empty. A header name that is not UTF-8, or has the character U+FFFD,
counts as empty, since other languages read such a name differently.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import repeat
from struct import Struct
from typing import NamedTuple

from xxhash import xxh64_intdigest

from kafka_timers.core.contents import DIGESTS
from kafka_timers.core.wire import Record, Sealed

SEED = 42
_NO_KEY, _NO_VALUE = 1 << 32, 1 << 33
_NO_HEADER_VALUE, _HEADER_VALUE = b"\1\0\0\0", b"\0\0\0\0"
_UNREADABLE = "\ufffd"

_number = Struct("<q").pack


class Sum(NamedTuple):
    """A number of records, and their digest."""

    records: int = 0
    digest: int = 0

    def plus(self, other: "Sum") -> "Sum":
        """Return the sum of the records of both."""
        return Sum(self.records + other.records, (self.digest + other.digest) % DIGESTS)

    def minus(self, other: "Sum") -> "Sum":
        """Return the sum without the records of *other*, which must be a part of it."""
        return Sum(self.records - other.records, (self.digest - other.digest) % DIGESTS)


NOTHING = Sum()


@dataclass(frozen=True, slots=True)
class ReadSums:
    """
    Sums of the committed records of a partition's log between two offsets.

    Attributes:
        since: first offset.
        to: offset behind the last one.
        near: records that are held, were refused, or are copies.
        far: records that are left to the lake.
        cancels: see `Sealed`.
    """

    since: int
    to: int
    near: Sum = NOTHING
    far: Sum = NOTHING
    cancels: Sum = NOTHING

    @classmethod
    def of(cls, seal: Sealed) -> "ReadSums | None":
        """Return the sums in *seal*; None if it has none."""
        if not seal.HasField("read_from"):
            return None
        sums = (Sum(each.count, each.digest) for each in (seal.near, seal.far, seal.cancels))
        return cls(seal.read_from, seal.fence, *sums)

    def tell(self, seal: Sealed) -> None:
        """Write these sums into *seal*, whose fence must be their end."""
        seal.read_from = self.since
        for field, own in ((seal.near, self.near), (seal.far, self.far), (seal.cancels, self.cancels)):
            # Even to set a zero would make an empty message of it.
            if own != NOTHING:
                field.count, field.digest = own

    def read_on(
        self, number: int, records: Sequence[Record], to: int, far: Collection[int], cancels: Collection[int]
    ) -> "ReadSums":
        """
        Return these sums with those *records* added that they do not include yet.

        Args:
            records: all committed records up to the offset *to*, beginning at or below the end of these sums.
            far: offsets of records that are left to the lake.
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
    """Return the digest of fired requests of partition *number* at *offsets*."""
    return sum(map(xxh64_intdigest, map(_number, offsets), repeat(_seed_of(number)))) % DIGESTS


def sum_of(number: int, records: Sequence[Record]) -> Sum:
    """Return the sum of *records* of partition *number*."""
    if not records:
        return NOTHING
    keys = [key for record in records if (key := record.key) is not None]
    values = [value for record in records if (value := record.value) is not None]
    if len(keys) + len(values) < 2 * len(records) or any(record.headers for record in records):
        return Sum(len(records), sum([hash_of_record(number, record) for record in records]) % DIGESTS)
    # All of them run in C, in a third of the time of a loop.
    hashes = map(xxh64_intdigest, map(_number, [record.offset for record in records]), repeat(_seed_of(number)))
    hashes = map(xxh64_intdigest, map(_number, [record.timestamp for record in records]), hashes)
    return Sum(len(records), sum(map(xxh64_intdigest, values, map(xxh64_intdigest, keys, hashes))) % DIGESTS)


def hash_of_record(number: int, record: Record) -> int:
    """Return the hash of a *record* of partition *number*, at least 0 and below `DIGESTS`."""
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
    """Return the SHA-256 of a seal's *value*, which the next seal names."""
    return sha256(value).digest()


def hash_of_batches(digests: Iterable[bytes]) -> bytes:
    """Return the SHA-256 that a seal names for a topic, from the SHA-256 of each batch."""
    return sha256(b"".join(digests)).digest()


def _readable(name: str) -> bytes:
    try:
        return b"" if _UNREADABLE in name else name.encode()
    except UnicodeEncodeError:
        return b""


def _seed_of(number: int) -> int:
    return xxh64_intdigest(_number(number), SEED)
