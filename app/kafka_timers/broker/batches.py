"""A batch of records that is built once and may be sent again, by the same producer or in its next transaction."""

import struct
from typing import Any

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c

__all__ = ["Batch"]

_MAGIC = 2
_PLAIN = 0
# Places in an encoded batch: the checksum, the first byte it covers, the timestamps of the first and the latest record,
# and the producer's id, epoch and first sequence number. All other timestamps are relative to the first one.
_CHECKSUM_AT, _CHECKED_FROM, _TIMES_AT, _PRODUCER_AT = 17, 21, 27, 43
_CHECKSUM, _TIMES, _PRODUCER = struct.Struct(">I"), struct.Struct(">qq"), struct.Struct(">qhi")


class Batch:
    """
    Records for one partition.

    Args:
        bytes_max: size limit in bytes. The first record is taken at any size.
        is_transactional: whether the batch is sent in transactions.
    """

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
        *,
        timestamp: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]] = [],  # noqa: B006  # read only, once per record
    ) -> Any:
        """
        Append a record. Return None if the batch is full or was sent, and something else otherwise.

        Args:
            timestamp: UNIX milliseconds; None for now.
            key: key of the record.
            value: value of the record.
            headers: headers of the record.
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

    def encoded(self, producer_id: int, epoch: int, sequence: int) -> bytes | bytearray:
        """Return the bytes to send for that producer. *sequence* is the sequence number of the first record."""
        if self._encoded is None:
            self._is_full = True
            self._builder.set_producer_state(producer_id, epoch, sequence)
            self._encoded = self._builder.build()
            self._builder = None
            first_ms, last_ms = _TIMES.unpack_from(self._encoded, _TIMES_AT)
            if self._leaves_ms is not None and self._leaves_ms != last_ms:
                later_ms = self._leaves_ms - last_ms
                self._put(_TIMES_AT, _TIMES.pack(first_ms + later_ms, last_ms + later_ms))
            return self._encoded
        producer = _PRODUCER.pack(producer_id, epoch, sequence)
        if self._encoded[_PRODUCER_AT : _PRODUCER_AT + _PRODUCER.size] != producer:
            self._put(_PRODUCER_AT, producer)
        return self._encoded

    def _put(self, at: int, field: bytes) -> None:
        """Overwrite bytes of the encoded batch from *at* on with *field*."""
        self._encoded = batch = bytearray(self._encoded or b"")
        batch[at : at + len(field)] = field
        _CHECKSUM.pack_into(batch, _CHECKSUM_AT, calc_crc32c(bytes(memoryview(batch)[_CHECKED_FROM:])))
