"""
Records of batches, including batches that brokers take and aiokafka's compiled parser cannot read.

Without this module such a batch would block everything behind it for ever.

*Bytes behind the compressed records.* Brokers, and Kafka's own clients, ignore them.

*Header names that are not text.* For clients in C, Go and Rust the name of a header is any bytes. The parser decodes
it, and raises in the middle of a batch where it is not UTF-8. Here each such byte becomes a lone surrogate, as Python
does with file names, so different names stay different. `shown` turns such a name into printable text.
"""

import struct
import zlib
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any, NamedTuple

from aiokafka.codec import lz4_decode, snappy_decode, zstd_decode
from aiokafka.errors import CorruptRecordException

# The header of a batch, magic 2: base offset, length, leader epoch, magic, checksum, attributes, last offset delta,
# first and last timestamp, producer id and epoch, base sequence, count. The records follow it.
_HEADER = struct.Struct(">qiibIhiqqqhii")
# Base offset and length; the length does not count these two fields.
_PREFIX = struct.Struct(">qi")
_CODEC, _LOG_APPEND_TIME = 0x07, 0x08
# Number of records parsed in one go.
_RECORDS_AT_ONCE = 500


class _ParsedRecord(NamedTuple):
    """A record with the fields of the compiled parser's records; the timestamp is in UNIX milliseconds."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    # Only records of older formats have one.
    checksum: None = None


def shown(name: str) -> str:
    r"""Return the header *name* as printable text: a byte that is not UTF-8 becomes \xff, for example."""
    return name.encode(errors="surrogateescape").decode(errors="backslashreplace")


def records_of(batch: Any, raw: bytes | memoryview) -> Iterator[Any]:
    """
    Return the records of *batch*, offsets ascending.

    Args:
        batch: a batch of the compiled parser, before any record was taken.
        raw: the same as received.
    """
    return chain.from_iterable(_some_of(batch, raw))


def _some_of(batch: Any, raw: bytes | memoryview) -> Iterator[Iterator[Any] | list[Any]]:
    # Ask the parser for its iterator only once, and for nothing after the iterator has ended.
    given, records = 0, chain(batch)
    try:
        while some := list(islice(records, _RECORDS_AT_ONCE)):
            given += len(some)
            yield some
    except MemoryError:
        raise
    except Exception:
        # Each codec has errors of its own. A batch that `parsed` cannot read either is damaged.
        yield islice(parsed(bytes(raw)), given, None)


def size_of(data: bytes | memoryview) -> int:
    """Return the size in bytes of the batch at the begin of *data*."""
    _, length = _PREFIX.unpack_from(data)
    return _PREFIX.size + int(length)


def parsed(batch: bytes) -> Iterator[_ParsedRecord]:
    """
    Yield the records of *batch*, offsets ascending. *batch* is as received, with its header. The checksum is not
    checked.

    Raises:
        CorruptRecordException: the batch does not match its header.
    """
    base_offset, _, _, _, _, attributes, _, first_ms, last_ms, _, _, _, count = _HEADER.unpack_from(batch)
    codec, has_append_time = attributes & _CODEC, bool(attributes & _LOG_APPEND_TIME)
    try:
        data, at = bytes(_DECODERS[codec](batch[_HEADER.size :])) if codec else batch[_HEADER.size :], 0
        for _ in range(count):
            length, at = _varint_at(data, at)
            behind = at + length
            # Skip the byte of attributes, which Kafka does not use.
            ahead_ms, at = _varint_at(data, at + 1)
            ahead, at = _varint_at(data, at)
            key, at = _bytes_at(data, at)
            value, at = _bytes_at(data, at)
            headers, at = _headers_at(data, at)
            if at != behind or behind > len(data):
                raise ValueError(f"a record of {length} bytes")
            timestamp = last_ms if has_append_time else first_ms + ahead_ms
            yield _ParsedRecord(base_offset + ahead, timestamp, int(has_append_time), key, value, headers)
    except Exception as error:
        # Each codec has errors of its own.
        raise CorruptRecordException(f"the batch at offset {base_offset} cannot be read: {error!r}") from error


# --- decompression, as brokers do it ----------------------------------------------------------------------------------

_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_WINDOW = 31
_XERIAL = b"\x82SNAPPY\0"
_XERIAL_HEADER_BYTES = 16
# Flags of an LZ4 frame, in the byte after its magic number.
_LZ4_BLOCK_CHECKSUM, _LZ4_CONTENT_SIZE, _LZ4_CONTENT_CHECKSUM, _LZ4_DICTIONARY = 0x10, 0x08, 0x04, 0x01
_LZ4_STORED = 1 << 31


def _gunzip(data: bytes) -> bytes:
    parts = list[bytes]()
    while data.startswith(_GZIP_MAGIC) or not parts:
        member = zlib.decompressobj(_GZIP_WINDOW)
        try:
            parts.append(member.decompress(data))
        except zlib.error:
            if not parts:
                raise
            break
        data = member.unused_data
    return b"".join(parts)


def _unsnappy(data: bytes) -> bytes:
    # Streams may follow one another, each with its own header. No chunk size begins with the same bytes as a header.
    if not data.startswith(_XERIAL):
        return bytes(snappy_decode(data))
    chunks, at = [], 0
    while at < len(data):
        if data.startswith(_XERIAL, at):
            at += _XERIAL_HEADER_BYTES
            continue
        behind = at + 4 + int.from_bytes(data[at : at + 4], "big")
        chunks.append(data[at:behind])
        at = behind
    return bytes(snappy_decode(data[:_XERIAL_HEADER_BYTES] + b"".join(chunks)))


def _unlz4(data: bytes) -> bytes:
    flags = data[4]
    at = 7 + (8 if flags & _LZ4_CONTENT_SIZE else 0) + (4 if flags & _LZ4_DICTIONARY else 0)
    while size := int.from_bytes(data[at : at + 4], "little") & ~_LZ4_STORED:
        at += 4 + size + (4 if flags & _LZ4_BLOCK_CHECKSUM else 0)
    return bytes(lz4_decode(data[: at + 4 + (4 if flags & _LZ4_CONTENT_CHECKSUM else 0)]))


_DECODERS: dict[int, Callable[[bytes], bytes]] = {1: _gunzip, 2: _unsnappy, 3: _unlz4, 4: zstd_decode}


# --- fields ----------------------------------------------------------------------------------------------------------


def _headers_at(data: bytes, at: int) -> tuple[list[tuple[str, bytes | None]], int]:
    headers = []
    count, at = _varint_at(data, at)
    for _ in range(count):
        name, at = _bytes_at(data, at)
        value, at = _bytes_at(data, at)
        headers.append(((name or b"").decode(errors="surrogateescape"), value))
    return headers, at


def _bytes_at(data: bytes, at: int) -> tuple[bytes | None, int]:
    length, at = _varint_at(data, at)
    return (None, at) if length < 0 else (data[at : at + length], at + length)


def _varint_at(data: bytes, at: int) -> tuple[int, int]:
    # aiokafka's own function reads beyond the end of truncated data.
    bits = shift = 0
    while True:
        byte = data[at]
        at += 1
        bits |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (bits >> 1) ^ -(bits & 1), at
        shift += 7
