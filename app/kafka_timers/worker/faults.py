"""
Faults that keep a partition from being served, and a table with the right reaction to each kind.

An exception keeps alive every object of the frames where it was raised, including an open store. So no exception is
kept; a `Fault` holds everything that is needed later.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from aiokafka.errors import KafkaError

from kafka_timers.broker.coordinator_calls import PerhapsFencedError
from kafka_timers.core.refused import Reason
from kafka_timers.core.versions import KnownFromError
from kafka_timers.errors import KafkaTimersError
from kafka_timers.worker.damage import is_damage, is_of_the_disk, is_own_lock
from kafka_timers.worker.room import DiskFullError, is_full
from kafka_timers.worker.stores import StoreFolders


class FencedError(Exception):
    """Another worker owns the partition. Only a new assignment makes this worker its owner again."""


class TopicsRefusedError(Exception):
    """The broker refused writes to callback topics. `reasons` has, by topic, our reason and the broker's words."""

    def __init__(self, reasons: dict[str, tuple[Reason, str]]) -> None:
        super().__init__(", ".join(f"{topic}: {words}" for topic, (_, words) in reasons.items()))
        self.reasons = reasons


class RequestLogError(Exception):
    """
    The seals do not belong to this request log. Firing from it would lose or repeat timers.

    Args:
        end: the offset after the log's last request.
        fired_to: the offset up to which requests have fired.
    """

    def __init__(self, topic: str, number: int, end: int, fired_to: int) -> None:
        super().__init__(
            f"{topic} partition {number} ends at offset {end}, below {fired_to} up to which it has been fired: it has "
            "lost records, as in an unclean election"
        )


class OtherLogError(Exception):
    """
    The seals name offsets of another topic, which had the same name.

    Args:
        was: Kafka's id of that topic.
        now: Kafka's id of the one that is there.
    """

    def __init__(self, topic: str, number: int, was: bytes, now: bytes) -> None:
        super().__init__(
            f"{topic} partition {number} is of a topic with id {now.hex()}, and was fired up to now from one with id "
            f"{was.hex()}, so nobody knows what has fired: it was deleted and made anew, restored or mirrored. "
            "kafka-timers log show tells more, and then you decide"
        )


class StoreBehindError(Exception):
    """The disk of a store accepts no more writes."""


class Kind(Enum):
    """Kinds of faults. Each has a reaction in `REACTIONS`."""

    FENCED = auto()
    PERHAPS_FENCED = auto()
    NEEDS_OLDER = auto()
    OTHER_LOG = auto()
    DISK_FULL = auto()
    DAMAGED = auto()
    LOCKED = auto()
    EXPECTED = auto()
    UNEXPECTED = auto()


class _Reaction(NamedTuple):
    """
    How the owner of a partition reacts to a kind of fault, until it takes the partition over again.

    Attributes:
        pauses_s: seconds for which it leaves the partition alone: after the first failure in a row, the second and so
            on. Without any, it waits one session of the group.
        trouble: its reason on /readyz, with the text of the fault for `{}`.
        says: the log message, with the number of the partition and the text of the fault.
        drop: disposes of the store of a partition, once that is closed.
        is_failure: True if a callback topic may be the cause, and the next failure in a row waits longer.
        stands: True if the partition stands still until people mend it, which no restart does. It is told once.
    """

    pauses_s: tuple[float, ...]
    trouble: str = "failed ({})"
    level: int = logging.WARNING
    says: str = "partition %d: %s"
    drop: Callable[[StoreFolders, int], None] | None = None
    is_failure: bool = True
    stands: bool = False

    def pause_s(self, failures: int, session_s: float) -> float:
        """Return how long to pause after so many *failures* in a row, for a group with sessions of *session_s*."""
        if not self.pauses_s:
            return session_s
        return self.pauses_s[min(failures, len(self.pauses_s)) - 1]


_GROWING_S = (0.1, 0.5, 1.0, 1.0, 2.0, 2.0, 5.0)

REACTIONS = {
    # Either this worker has lost the partition and learns of it with its next heartbeat, or the broker gave up a
    # transaction that took too long. After a whole session without news it is the latter.
    Kind.FENCED: _Reaction((), "is owned by another worker", is_failure=False),
    # By then a heartbeat has shown whether another worker has the partition.
    Kind.PERHAPS_FENCED: _Reaction((1.0,)),
    # No fault of anybody: the partition goes on, and what /readyz says of it stays.
    Kind.NEEDS_OLDER: _Reaction((0.0,), "", logging.INFO, is_failure=False),
    # Only people can tell which timers have fired.
    Kind.OTHER_LOG: _Reaction((1.0,), "stands still ({})", logging.ERROR, is_failure=False, stands=True),
    # The log is read again once the disk has room.
    Kind.DISK_FULL: _Reaction(
        *((1.0,), "stands still ({})", logging.ERROR, "partition %d: %s. Its timers wait, and its store is dropped"),
        drop=lambda stores, number: stores.make_room(number),
        is_failure=False,
        stands=True,
    ),
    Kind.DAMAGED: _Reaction(
        _GROWING_S,
        says="partition %d: %s; it is damaged and is rebuilt from the log",
        drop=lambda stores, number: stores.destroy(number),
    ),
    Kind.LOCKED: _Reaction(_GROWING_S),
    Kind.EXPECTED: _Reaction(_GROWING_S),
    Kind.UNEXPECTED: _Reaction(_GROWING_S),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """
    The reason why a partition cannot continue.

    Attributes:
        read_from: the offset from which the log must be read again; None to continue where reading stopped.
    """

    text: str
    kind: Kind
    read_from: int | None = None

    @classmethod
    def of(cls, error: BaseException) -> "Fault":
        """Return the fault for *error*."""
        if isinstance(error, FaultError):
            return error.fault
        text = str(error) or type(error).__name__
        if isinstance(error, FencedError):
            return cls("another worker owns it by now", Kind.FENCED)
        if isinstance(error, PerhapsFencedError):
            return cls(text, Kind.PERHAPS_FENCED)
        if isinstance(error, KnownFromError):
            return cls(text, Kind.NEEDS_OLDER, error.offset)
        if isinstance(error, OtherLogError):
            return cls(text, Kind.OTHER_LOG)
        if isinstance(error, DiskFullError):
            return cls(text, Kind.DISK_FULL)
        if is_full(error):
            return cls(
                f"the disk of its store is full: make room there, and it goes on by itself ({text})", Kind.DISK_FULL
            )
        if isinstance(error, Exception) and is_of_the_disk(error):
            kind = Kind.LOCKED if is_own_lock(error) else Kind.DAMAGED if is_damage(error) else Kind.EXPECTED
            return cls(f"its store: {text}", kind)
        is_expected = isinstance(error, (KafkaError, KafkaTimersError, RequestLogError, StoreBehindError))
        return cls(text, Kind.EXPECTED if is_expected else Kind.UNEXPECTED)


class FaultError(Exception):
    """Carries an earlier fault to the code that serves the partition."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.text)
        self.fault = fault
