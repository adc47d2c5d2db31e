"""
Tombstones for schedules that are refused, as their scheduler writes them: what it would not fire goes. And for those
that a tombstone in another partition has ended: a scheduler that reads its topic anew, the partitions in any order, may
fire them again.

A tombstone lies behind all that the topic has by then, so where that is compacted it removes a later version as well:

    offset 5  k, without an epoch: refused     offset 8  k, a schedule     offset 9  k, the tombstone for offset 5

So there is none for a schedule behind which another record of its key is known. One that is written after the door has
read so far cannot be known, and is in `timer-request` soon, where nothing is compacted.
"""

from collections.abc import Collection, Sequence
from enum import StrEnum

from kafka_timers.adapters.commands import Command, Parsed, SourceRecord
from kafka_timers.adapters.keeping import OVER_HEADER
from kafka_timers.broker.batches import Batch
from kafka_timers.core.wire import REASON_HEADER
from kafka_timers.worker.ports import Ready
from kafka_timers.worker.sender import Filling

__all__ = ["Ending"]

# Less than any topic takes that has schedules; tombstones are few.
_BATCH_BYTES = 16 << 10


class Ending:
    """
    Ends the schedules of one partition that are refused, or over.

    Args:
        reasons: the schedules that are refused for one of these are ended.

    Attributes:
        is_on: whether tombstones are written at all.
        over: offset by key of the last versions that a tombstone in another partition has ended.
    """

    def __init__(self, reasons: Collection[StrEnum]) -> None:
        self.is_on = bool(reasons)
        self.over: dict[bytes, int] = {}
        self._reasons = reasons
        # Where the last record lies of each key that may need a tombstone, as far as was read ahead.
        self._last: dict[bytes, int] = {}

    def look_ahead(self, record: SourceRecord, parsed: Parsed | StrEnum, past_s: float) -> None:
        """
        Take note of *record*, which is read ahead.

        Args:
            record: offsets ascending.
            parsed: what it stands for.
            past_s: UNIX seconds: what is due later is not refused as past its grace.
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
        """Forget what was read ahead: all of it has been passed on."""
        self._last, self.over = {}, {}

    def tombstones(
        self, refused: Sequence[tuple[SourceRecord, StrEnum]], records: Sequence[SourceRecord], now_ms: int
    ) -> list[Ready]:
        """
        Return the tombstones to be written, as batches.

        Args:
            refused: schedules, and why they are refused.
            records: all that is passed on with them, offsets ascending.
            now_ms: timestamp of the tombstones.
        """
        ending = [(each, (REASON_HEADER, reason.encode())) for each, reason in refused if reason in self._reasons]
        if self.over:
            over = [each for each in records if self.over.get(each.key or b"") == each.offset]
            ending += [(each, (OVER_HEADER, b"%d" % each.offset)) for each in over]
        if not self.is_on or not ending:
            return []
        last = self._last | {each.key: each.offset for each in records if each.key and not self._is_known(each)}
        filling = Filling(lambda: Batch(_BATCH_BYTES, is_transactional=True))
        for record, told in ending:
            if record.key and last.get(record.key, -1) <= record.offset:
                filling.add(record.topic, record.partition, now_ms, record.key, None, [told])
        return filling.all()

    def _is_known(self, record: SourceRecord) -> bool:
        """Tell whether a record behind *record* is known from reading ahead."""
        return self._last.get(record.key or b"", -1) > record.offset
