"""
Makes tombstones for refused schedules, as their own scheduler does for schedules that it would not fire. Also makes
them for schedules that a tombstone in another partition has ended: a scheduler that reads its topic again, with the
partitions in any order, might fire them again.

A tombstone lies after all present records, so on a compacted topic it removes later versions of its key as well:

    offset 5  k, without an epoch: refused     offset 8  k, a schedule     offset 9  k, the tombstone for offset 5

So a schedule gets no tombstone if a later record of its key is known. A record that is written after the door's last
read cannot be known. The door soon passes it on to `timer-request`, where nothing is compacted.
"""

from collections.abc import Collection, Sequence
from enum import StrEnum

from kafka_timers.adapters.commands import Command, Parsed, SourceRecord
from kafka_timers.adapters.keeping import OVER_HEADER
from kafka_timers.broker.batches import Batch
from kafka_timers.core.wire import REASON_HEADER
from kafka_timers.runtime.filling import Filling, Ready

# Smaller than the limit of any topic that has schedules. Tombstones are few.
_BATCH_BYTES = 16 << 10


class Ending:
    """
    Ends the refused and finished schedules of one partition.

    Args:
        reasons: a schedule that is refused for one of these reasons gets a tombstone.

    Attributes:
        is_on: whether to write tombstones at all.
        over: offset by key of each last version that a tombstone in another partition has ended.
    """

    def __init__(self, reasons: Collection[StrEnum]) -> None:
        self.is_on = bool(reasons)
        self.over: dict[bytes, int] = {}
        self._reasons = reasons
        # By key that may need a tombstone: the offset of its last record, as far as the reader has read ahead.
        self._last: dict[bytes, int] = {}

    def look_ahead(self, record: SourceRecord, parsed: Parsed | StrEnum, past_s: float) -> None:
        """
        Note *record*, which the reader has read ahead.

        Args:
            record: a record; offsets ascend from call to call.
            past_s: UNIX seconds. Later schedules are not past their grace.
        """
        key = record.key
        if not self.is_on or not key:
            return
        if isinstance(parsed, Command):
            may_end = parsed.second is not None and parsed.second <= past_s
        else:
            may_end = parsed in self._reasons
        if may_end or key in self._last:
            self._last[key] = record.offset

    def forget(self) -> None:
        """Forget the records that were read ahead, because all of them have been passed on."""
        self._last, self.over = {}, {}

    def tombstones(
        self, refused: Sequence[tuple[SourceRecord, StrEnum]], records: Sequence[SourceRecord], now_ms: int
    ) -> list[Ready]:
        """
        Return the tombstones to write, as batches.

        Args:
            records: all records of the same transaction, offsets ascending.
            now_ms: timestamp of the tombstones, UNIX milliseconds.
        """
        ending = [(each, (REASON_HEADER, reason.encode())) for each, reason in refused if reason in self._reasons]
        if self.over:
            over = [each for each in records if self.over.get(each.key or b"") == each.offset]
            ending += [(each, (OVER_HEADER, b"%d" % each.offset)) for each in over]
        if not self.is_on or not ending:
            return []
        last = self._last | {each.key: each.offset for each in records if each.key and not self._is_known(each)}
        filling = Filling(lambda: Batch(_BATCH_BYTES, is_transactional=True))
        for record, header in ending:
            if record.key and last.get(record.key, -1) <= record.offset:
                filling.add(record.topic, record.partition, now_ms, record.key, None, [header])
        return filling.all()

    def _is_known(self, record: SourceRecord) -> bool:
        """Tell whether a later record of the same key is known from reading ahead."""
        return self._last.get(record.key or b"", -1) > record.offset
