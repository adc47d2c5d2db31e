"""A batch of records that is built once and may be sent again, by the same producer or in its next transaction."""

import struct
from hashlib import sha256
from typing import Any

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from crc32c import crc32c

_MAGIC = 2
_PLAIN = 0
# Places in an encoded batch: the checksum, the first byte it covers, the timestamps of the first and the latest record,
# the producer's id, epoch and first sequence number, and the records. All other timestamps are relative to the first.
_CHECKSUM_AT, CHECKED_FROM, _TIMES_AT, _PRODUCER_AT, _RECORDS_AT = 17, 21, 27, 43, 61
_CHECKSUM, _TIMES, _PRODUCER = struct.Struct(">I"), struct.Struct(">qq"), struct.Struct(">qhi")


class Batch:
    """Records for one partition, of *bytes_max* bytes at most; the first record is taken at any size."""

    __slots__ = ("_builder", "_count", "_encoded", "_is_full", "_leaves_ms")

    def __init__(self, bytes_max: int, *, is_transactional: bool) -> None:
        self._builder: Any = DefaultRecordBatchBuilder(
            _MAGIC,
            _PLAIN,
            is_transactional=is_transactional,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            batch_size=bytes_max,
        )
        self._count = 0
        self._is_full = False
        self._leaves_ms: int | None = None
        self._encoded: bytes | bytearray | None = None

    def append(
        self,
        timestamp: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]] = [],  # noqa: B006  # read only, once per record
    ) -> Any:
        """
        Append a record. Return None if the batch is full or was sent, and something else otherwise. *timestamp* is in
        UNIX milliseconds; None for now.
        """
        if self._is_full:
            return None
        appended = self._builder.append(self._count, timestamp, key, value, headers)
        if appended is None:
            # A smaller record that would fit is not taken either: records keep their order.
            self._is_full = True
        else:
            self._count += 1
        return appended

    def leave(self, at_ms: int) -> None:
        """
        Set the timestamp of the last record to UNIX milliseconds *at_ms*, and shift all others by the same amount.
        """
        self._leaves_ms = at_ms

    def record_count(self) -> int:
        """Return the number of records."""
        return self._count

    def size(self) -> int:
        """Return the size in bytes."""
        return self._builder.size() if self._encoded is None else len(self._encoded)

    def digest(self) -> bytes:
        """
        Return the SHA-256 of the records as they are encoded; nothing can be appended any more.

        It covers keys, values, headers and order of the records, and the differences between their timestamps.
        """
        return sha256(memoryview(self._built(-1, -1, -1))[_RECORDS_AT:]).digest()

    def encoded(self, producer_id: int, epoch: int, sequence: int) -> bytes | bytearray:
        """Return the bytes to send for that producer. *sequence* is the sequence number of the first record."""
        batch, producer = self._built(producer_id, epoch, sequence), _PRODUCER.pack(producer_id, epoch, sequence)
        first_ms, last_ms = _TIMES.unpack_from(batch, _TIMES_AT)
        later_ms = 0 if self._leaves_ms is None else self._leaves_ms - last_ms
        if later_ms or batch[_PRODUCER_AT : _PRODUCER_AT + _PRODUCER.size] != producer:
            self._encoded = batch = bytearray(batch)
            _TIMES.pack_into(batch, _TIMES_AT, first_ms + later_ms, last_ms + later_ms)
            batch[_PRODUCER_AT : _PRODUCER_AT + _PRODUCER.size] = producer
            _CHECKSUM.pack_into(batch, _CHECKSUM_AT, crc32c(memoryview(batch)[CHECKED_FROM:]))
        return batch

    def _built(self, *producer: int) -> bytes | bytearray:
        """Return the encoded batch; it is for *producer* (id, epoch, sequence number) if it was not encoded before."""
        if self._encoded is None:
            self._is_full = True
            self._builder.set_producer_state(*producer)
            self._encoded = self._builder.build()
            self._builder = None
        return self._encoded
