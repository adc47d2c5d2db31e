"""
The records of a batch without their headers, for batches whose headers are not text.

To clients in C, Go and Rust the name of a header is any bytes. aiokafka's compiled parser decodes it, and raises in the
middle of a batch where it is not UTF-8; without this, such a record would keep everything behind it from being read.
"""

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from aiokafka.codec import gzip_decode, lz4_decode, snappy_decode, zstd_decode
from aiokafka.errors import CorruptRecordException

__all__ = ["HeaderlessRecord", "batch_at", "headerless"]

# The header of a batch, magic 2: base offset, length, leader epoch, magic, checksum, attributes, last offset delta,
# first and last timestamp, producer id and epoch, base sequence, count. Its records lie behind it.
_HEADER = struct.Struct(">qiibIhiqqqhii")
# Base offset and length, which does not count these two.
_PREFIX = struct.Struct(">qi")
_CODEC, _LOG_APPEND_TIME = 0x07, 0x08
_DECODERS: dict[int, Callable[[bytes], bytes]] = {1: gzip_decode, 2: snappy_decode, 3: lz4_decode, 4: zstd_decode}


class HeaderlessRecord(NamedTuple):
    """A record as the compiled parser gives it, without its headers; the timestamp is in UNIX milliseconds."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


def batch_at(data: bytes, base_offset: int) -> bytes:
    """Return the batch that begins at the offset *base_offset*, which is one of the whole batches in *data*."""
    at = 0
    while True:
        begins, length = _PREFIX.unpack_from(data, at)
        behind = at + _PREFIX.size + length
        if begins == base_offset:
            return data[at:behind]
        at = behind


def headerless(batch: bytes) -> Iterator[HeaderlessRecord]:
    """
    Yield the records of *batch*, offsets ascending.

    Args:
        batch: as it came, header included; its checksum is not looked at.

    Raises:
        CorruptRecordException: the batch is not what its header says.
    """
    base_offset, _, _, _, _, attributes, _, first_ms, last_ms, _, _, _, count = _HEADER.unpack_from(batch)
    codec = attributes & _CODEC
    try:
        data, at = bytes(_DECODERS[codec](batch[_HEADER.size :])) if codec else batch[_HEADER.size :], 0
        for _ in range(count):
            length, at = _varint_at(data, at)
            behind = at + length
            # One byte of attributes, of which Kafka uses none.
            ahead_ms, at = _varint_at(data, at + 1)
            ahead, at = _varint_at(data, at)
            key, at = _bytes_at(data, at)
            value, at = _bytes_at(data, at)
            if not at <= behind <= len(data):
                raise ValueError(f"a record of {length} bytes")
            timestamp = last_ms if attributes & _LOG_APPEND_TIME else first_ms + ahead_ms
            yield HeaderlessRecord(base_offset + ahead, timestamp, key, value)
            at = behind
    except Exception as error:
        # Each codec has errors of its own.
        raise CorruptRecordException(f"the batch at offset {base_offset} cannot be read: {error!r}") from error


def _bytes_at(data: bytes, at: int) -> tuple[bytes | None, int]:
    length, at = _varint_at(data, at)
    return (None, at) if length < 0 else (data[at : at + length], at + length)


def _varint_at(data: bytes, at: int) -> tuple[int, int]:
    # aiokafka's own reads beyond the end of what is cut short.
    bits = shift = 0
    while True:
        byte = data[at]
        at += 1
        bits |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (bits >> 1) ^ -(bits & 1), at
        shift += 7
