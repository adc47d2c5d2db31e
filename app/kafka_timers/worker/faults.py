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

from kafka_timers.broker.coordinator_calls import ExpiredIdError, PerhapsFencedError
from kafka_timers.core.log_identity import marked_in
from kafka_timers.core.refused import Reason
from kafka_timers.core.versions import KnownFromError
from kafka_timers.errors import KafkaTimersError
from kafka_timers.worker.damage import is_damage, is_of_the_disk, is_own_lock
from kafka_timers.worker.room import DiskFullError, is_full
from kafka_timers.worker.stores import StoreFolders

# For so long after a change of the group, a partition waits for a member whose store has what its log has lost.
WAIT_FOR_STORES_S = 60.0


class FencedError(Exception):
    """Another worker owns the partition. Only a new assignment makes this worker its owner again."""


class TopicsRefusedError(Exception):
    """
    Brokers refused writes to callback topics.

    Attributes:
        reasons: by topic, our reason and the broker's words.
        unavailable: partitions for which a leader, or replicas in sync, were missing for too long, and the broker's
            words. A transaction with them ends only when they are back.
    """

    def __init__(self, reasons: dict[str, tuple[Reason, str]], unavailable: dict[tuple[str, int], str]) -> None:
        said = {topic: words for topic, (_, words) in reasons.items()}
        said |= {topic: words for (topic, _), words in unavailable.items()}
        super().__init__("; ".join(f"{topic}: {words}" for topic, words in said.items()))
        self.reasons, self.unavailable = reasons, unavailable


class LogCutError(Exception):
    """
    The log has lost records, as in an unclean election.

    Args:
        kept_to: the offset from which on it has lost them.
        to: the offset up to which they have fired, or were read by this worker.
        has_fired: whether seals tell that some of them have fired. Only people can then tell which offsets count.
    """

    def __init__(self, topic: str, number: int, kept_to: int, to: int, *, has_fired: bool) -> None:
        if has_fired:
            what = f"and has been fired up to {to}. kafka-timers log show tells more, and then you decide"
        else:
            what = f"of which {to - kept_to} had been read. The timers that they asked for do not fire"
        super().__init__(
            f"{topic} partition {number} has lost its records from offset {kept_to} on, as in an unclean election, "
            f"{what}"
        )
        self.has_fired = has_fired


class OtherLogError(Exception):
    """
    The seals name offsets of another topic, which had the same name.

    Args:
        was: Kafka's id of that topic, or its mark.
        now: Kafka's id of the one that is there; empty if no broker tells one.
    """

    def __init__(self, topic: str, number: int, was: bytes, now: bytes) -> None:
        offset = marked_in(was)
        says = f"has another batch at offset {offset} than the topic that it was fired from up to now"
        if offset is None:
            says = f"is of a topic with id {now.hex()}, and was fired up to now from one with id {was.hex()}"
        super().__init__(
            f"{topic} partition {number} {says}, so nobody knows what has fired: it was deleted and made anew, "
            "restored or mirrored. kafka-timers log show tells more, and then you decide"
        )


class LogGapError(Exception):
    """
    Requests that may still wait have left the log, and this worker's store does not have them.

    Args:
        first: the offset from which on they may wait.
        start: where the log begins now.
    """

    def __init__(self, topic: str, number: int, first: int, start: int) -> None:
        super().__init__(
            f"{topic} partition {number} starts at offset {start}, timers may wait from offset {first} on, and no "
            "member of the group says that its store has them. Start the worker that has, with its disk: some "
            f"{WAIT_FOR_STORES_S:.0f} s after the group's last change it goes on without them, and they are lost"
        )


class SealsGoneError(Exception):
    """A partition has no seals, though its oldest request has been due for *due_s* seconds."""

    def __init__(self, topic: str, number: int, due_s: float) -> None:
        super().__init__(
            f"{topic} partition {number} has no seals, and requests that were due {due_s / 3600:.0f} h ago, so nobody "
            "knows what has fired: the topic of the seals was deleted or made anew. kafka-timers log show tells more, "
            "and then you decide"
        )


class StoreBehindError(Exception):
    """The disk of a store accepts no more writes."""


class Kind(Enum):
    """Kinds of faults. Each has a reaction in `REACTIONS`."""

    FENCED = auto()
    EXPIRED = auto()
    PERHAPS_FENCED = auto()
    NEEDS_OLDER = auto()
    OTHER_LOG = auto()
    LOG_CUT = auto()
    LOG_GAP = auto()
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
    # Nobody else owns it. If another worker does, it has made the id anew, and this one waits the second time.
    Kind.EXPIRED: _Reaction((0.0,), "is taken over anew ({})", logging.INFO, is_failure=False),
    # By then a heartbeat has shown whether another worker has the partition.
    Kind.PERHAPS_FENCED: _Reaction((1.0,)),
    # No fault of anybody: the partition goes on, and what /readyz says of it stays.
    Kind.NEEDS_OLDER: _Reaction((0.0,), "", logging.INFO, is_failure=False),
    # Only people can tell which timers have fired.
    Kind.OTHER_LOG: _Reaction((1.0,), "stands still ({})", logging.ERROR, is_failure=False, stands=True),
    # What is left of the log is read again.
    Kind.LOG_CUT: _Reaction(
        (0.1,), level=logging.ERROR, drop=lambda stores, number: stores.destroy(number), is_failure=False
    ),
    # A member that comes with such a store gets the partition.
    Kind.LOG_GAP: _Reaction((2.0,), "stands still ({})", logging.ERROR, is_failure=False, stands=True),
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
        if isinstance(error, ExpiredIdError):
            return cls(text, Kind.EXPIRED)
        if isinstance(error, PerhapsFencedError):
            return cls(text, Kind.PERHAPS_FENCED)
        if isinstance(error, KnownFromError):
            return cls(text, Kind.NEEDS_OLDER, error.offset)
        if isinstance(error, (OtherLogError, SealsGoneError)):
            return cls(text, Kind.OTHER_LOG)
        if isinstance(error, LogCutError):
            return cls(text, Kind.OTHER_LOG if error.has_fired else Kind.LOG_CUT)
        if isinstance(error, LogGapError):
            return cls(text, Kind.LOG_GAP)
        if isinstance(error, DiskFullError):
            return cls(text, Kind.DISK_FULL)
        if is_full(error):
            return cls(
                f"the disk of its store is full: make room there, and it goes on by itself ({text})", Kind.DISK_FULL
            )
        if isinstance(error, Exception) and is_of_the_disk(error):
            kind = Kind.LOCKED if is_own_lock(error) else Kind.DAMAGED if is_damage(error) else Kind.EXPECTED
            return cls(f"its store: {text}", kind)
        is_expected = isinstance(error, (KafkaError, KafkaTimersError, StoreBehindError))
        return cls(text, Kind.EXPECTED if is_expected else Kind.UNEXPECTED)


class FaultError(Exception):
    """Carries an earlier fault to the code that serves the partition."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.text)
        self.fault = fault
