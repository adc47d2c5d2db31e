"""
Rules of schedulers that keep schedules on the topic where users write them, with ids that are unique in the topic.

A tombstone of theirs after a schedule says that it has fired; so does one of ours. Schedules that such a scheduler has
fired do not fire again, and those that it would not fire do not fire here either (pure).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from kafka_timers.adapters.commands import Parsed, SourceRecord, headers_by_name
from kafka_timers.core.text import is_text
from kafka_timers.core.wire import REASON_HEADER, REQUEST_HEADER, number_in

# Header of our tombstone for a schedule that a tombstone in another partition has ended: the offset of its last
# version.
OVER_HEADER = "timer-over"
# Each of our own tombstones has one of these: for a schedule that has fired, was refused, or was over.
_OWN = {REQUEST_HEADER, REASON_HEADER, OVER_HEADER}


class Last(NamedTuple):
    """
    The last version of a timer: its offset, the key and UNIX milliseconds of its record, and its second.

    Key and second are None if the timer is cancelled or has fired.
    """

    offset: int
    key: bytes | None
    timestamp_ms: int
    second: int | None


class Ended(NamedTuple):
    """
    The end of earlier versions, caused by a record that is no command.

    Attributes:
        by_ms: UNIX milliseconds. Versions due by then are over. A version that is due later was moved in time.
        up_to: versions after this offset are not over.
    """

    name: bytes
    by_ms: float = math.inf
    up_to: float = math.inf

    def is_over(self, version: Last) -> bool:
        """Tell whether this ends *version*."""
        return version.second is not None and version.second * 1000 <= self.by_ms and version.offset <= self.up_to


@dataclass(frozen=True, slots=True)
class Keeping:
    """
    Rules of a scheduler that keeps its schedules on a topic.

    Attributes:
        name: name of its adapter; timer ids begin with it.
        ended: a schedule that is refused for one of these reasons gets a tombstone.
        superseding: a version that is refused for one of these reasons still replaces the version before.
        fired_ms: takes a record. If the record says that all schedules due by some moment have fired, returns that
            moment in UNIX milliseconds, otherwise None.
        is_later: tells whether a record of another partition shows that a version is done, or replaces it.
    """

    name: str
    ended: frozenset[StrEnum]
    superseding: frozenset[StrEnum]
    fired_ms: Callable[[SourceRecord], int | None]
    is_later: Callable[[SourceRecord, Last], bool]

    def timer_id(self, record: SourceRecord) -> bytes:
        """Return the timer id of *record*."""
        return timer_id_of(self.name, record)

    def ended_by(self, record: SourceRecord, parsed: Parsed | StrEnum, *, is_new: bool) -> Ended | None:
        """
        Return the versions that *record* ends although it is no command; None if there are none.

        Args:
            is_new: True if the door has never read this topic, so that every schedule may have fired here. Otherwise a
                version that was written before our own tombstone but not passed on by then has not fired.
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
        """
        Return the id of the timer that *record* cancels, although it is refused for *reason*; None if it cancels none.
        """
        if record.key is None or reason not in self.superseding or not is_text(record.key):
            return None
        return self.timer_id(record)


def is_own(record: SourceRecord) -> bool:
    """Tell whether *record*, which has no value, is one of our own tombstones."""
    return not _OWN.isdisjoint(headers_by_name(record))


def timer_id_of(name: str, record: SourceRecord) -> bytes:
    """Return the timer id of *record* for the adapter *name*."""
    return b"%b:%b:%b" % (name.encode(), record.topic.encode(), record.key or b"")
