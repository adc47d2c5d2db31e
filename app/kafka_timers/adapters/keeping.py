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
from kafka_timers.core.wire import REASON_HEADER, REQUEST_HEADER, number_in

__all__ = ["OVER_HEADER", "Ended", "Keeping", "Last", "is_own", "timer_id_of"]

# On our tombstone for a schedule that a tombstone in another partition has ended: the offset of its last version.
OVER_HEADER = "timer-over"
# One of these is on our own tombstones, of what has fired, of what was refused, and of what was over.
_OWN = {REQUEST_HEADER, REASON_HEADER, OVER_HEADER}


class Last(NamedTuple):
    """
    The last version of a timer: its offset, key and UNIX milliseconds of its record, and its second.

    Key and second are None for what is cancelled, or has fired.
    """

    offset: int
    key: bytes | None
    timestamp_ms: int
    second: int | None


class Ended(NamedTuple):
    """
    What a record ends that is no command.

    Attributes:
        name: id of the timer.
        by_ms: UNIX millisecond by which a version must be due to be over. What is due later was moved on in time.
        up_to: offset behind which a version is not over.
    """

    name: bytes
    by_ms: float = math.inf
    up_to: float = math.inf

    def is_over(self, version: Last) -> bool:
        """Tell whether *version* is over by this."""
        return version.second is not None and version.second * 1000 <= self.by_ms and version.offset <= self.up_to


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

    def ended_by(self, record: SourceRecord, parsed: Parsed | StrEnum, *, is_new: bool) -> Ended | None:
        """
        Return what *record* ends without being a command, None where it ends nothing.

        Args:
            record: of its topic.
            parsed: what it stands for.
            is_new: whether the door has read nothing of the topic before. All may have fired here then. Otherwise a
                version that was written before our own tombstone and not passed on by then has not.
        """
        if record.key is None:
            return None
        if isinstance(parsed, StrEnum):
            return Ended(self.timer_id(record)) if parsed in self.superseding else None
        if record.value is not None:
            return None
        headers = headers_by_name(record)
        if (up_to := number_in(headers.get(OVER_HEADER))) is not None:
            return Ended(self.timer_id(record), up_to=up_to)
        if REQUEST_HEADER in headers:
            return Ended(self.timer_id(record), record.timestamp) if is_new else None
        by_ms = self.fired_ms(record)
        return None if by_ms is None else Ended(self.timer_id(record), by_ms)

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
