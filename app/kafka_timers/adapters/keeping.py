"""
Schedulers that keep their schedules on the topic on which users write them, under ids that are those of a whole topic.

A tombstone of theirs, behind the schedule, says that it has fired; so does one of ours. What such a scheduler has fired
does not fire again, and what it would not have fired does not either (pure).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from kafka_timers.adapters.commands import Parsed, SourceRecord, headers_by_name
from kafka_timers.core.text import is_text
from kafka_timers.core.wire import REASON_HEADER, REQUEST_HEADER

__all__ = ["Keeping", "Last", "is_own", "timer_id_of"]

# One of these is on our own tombstones, of what has fired and of what was refused.
_OWN = {REQUEST_HEADER, REASON_HEADER}


class Last(NamedTuple):
    """
    The last version of a timer: its offset, key and UNIX milliseconds of its record, and its second.

    Key and second are None for what is cancelled, or has fired.
    """

    offset: int
    key: bytes | None
    timestamp_ms: int
    second: int | None


@dataclass(frozen=True, slots=True)
class Keeping:
    """
    How a scheduler keeps its schedules.

    Attributes:
        name: of its adapter; timer ids begin with it.
        ended: schedules that are refused for one of these reasons get a tombstone.
        superseding: versions that are refused for one of these reasons take the place of the one before all the same.
        fired_ms: returns the UNIX millisecond of which a record says that what was due by then has fired there; None of
            any other record.
        is_later: tells whether a record of another partition says that a version is done, or replaces it.
    """

    name: str
    ended: frozenset[StrEnum]
    superseding: frozenset[StrEnum]
    fired_ms: Callable[[SourceRecord], int | None]
    is_later: Callable[[SourceRecord, Last], bool]

    def timer_id(self, record: SourceRecord) -> bytes:
        """Return the id of the timer that *record* is of."""
        return timer_id_of(self.name, record)

    def ended_by(self, record: SourceRecord, parsed: Parsed | StrEnum, *, is_new: bool) -> tuple[bytes, float] | None:
        """
        Return what *record* ends without being a command: the id of a timer, and by when a version of it must be due.

        Args:
            record: of its topic.
            parsed: what it stands for.
            is_new: whether the door has read nothing of the topic before. All may have fired here then. Otherwise a
                version that was written before our own tombstone and not passed on by then has not.

        Returns:
            None where it ends nothing. What is due later was moved on in time, and is not what has fired.
        """
        if record.key is None:
            return None
        if isinstance(parsed, StrEnum):
            return (self.timer_id(record), math.inf) if parsed in self.superseding else None
        if record.value is not None:
            return None
        if REQUEST_HEADER in headers_by_name(record):
            return (self.timer_id(record), record.timestamp) if is_new else None
        by_ms = self.fired_ms(record)
        return None if by_ms is None else (self.timer_id(record), by_ms)

    def withdrawn(self, record: SourceRecord, reason: StrEnum) -> bytes | None:
        """Return the id of the timer that *record*, which is refused for *reason*, cancels; None where it stays."""
        if record.key is None or reason not in self.superseding or not is_text(record.key):
            return None
        return self.timer_id(record)


def is_own(record: SourceRecord) -> bool:
    """Tell whether *record*, which has no value, is a tombstone of ours."""
    return not _OWN.isdisjoint(headers_by_name(record))


def timer_id_of(name: str, record: SourceRecord) -> bytes:
    """Return the id of the timer that *record* is of, for the adapter *name*."""
    return b"%b:%b:%b" % (name.encode(), record.topic.encode(), record.key or b"")
