"""
What can keep a partition from being served, and what follows from it.

An exception holds on to everything that was alive where it was raised, an open store among it, so none is kept. What is
to be known of it later is a `Fault`.
"""

from dataclasses import dataclass

from aiokafka.errors import KafkaError

from kafka_timers.broker.asking import PerhapsFencedError
from kafka_timers.core.refused import Reason
from kafka_timers.core.versions import KnownFromError
from kafka_timers.errors import KafkaTimersError
from kafka_timers.worker.damage import is_damage, is_of_the_disk, is_own_lock
from kafka_timers.worker.room import DiskFullError, is_full


class FencedError(Exception):
    """Another worker owns the partition by now; only a fresh assignment makes this one its owner again."""


class TopicsRefusedError(Exception):
    """The broker refused writes to callback topics; `reasons` says which, and why in our words and in its own."""

    def __init__(self, reasons: dict[str, tuple[Reason, str]]) -> None:
        super().__init__(", ".join(f"{topic}: {words}" for topic, (_, words) in reasons.items()))
        self.reasons = reasons


class RequestLogError(Exception):
    """
    The request log is not the one that the seals are of; firing from it would lose or repeat timers.

    Args:
        topic: name of the log.
        number: of the partition.
        end: the offset behind its last request.
        fired_to: the offset up to which it has been fired.
    """

    def __init__(self, topic: str, number: int, end: int, fired_to: int) -> None:
        super().__init__(
            f"{topic} partition {number} ends at offset {end}, below {fired_to} up to which it has been fired: was the "
            "topic deleted, or did it lose records? If it was made anew on purpose, make that of the seals anew too"
        )


class StoreBehindError(Exception):
    """The disk of a store does not take what is written."""


@dataclass(frozen=True, slots=True)
class Fault:
    """
    Why a partition cannot go on.

    Attributes:
        text: a sentence for people.
        is_known: whether it is one of the faults that must be reckoned with; any other is logged with its traceback.
        fenced: another worker owns the partition.
        perhaps_fenced: another worker may own it.
        read_from: the offset from which on the log has to be read again; None to go on where it was.
        damaged: the files of the store are damaged.
        full: the disk of the store has no room.
        locked: this very process has the store open already.
    """

    text: str
    is_known: bool = True
    fenced: bool = False
    perhaps_fenced: bool = False
    read_from: int | None = None
    damaged: bool = False
    full: bool = False
    locked: bool = False

    @classmethod
    def of(cls, error: BaseException) -> "Fault":
        """Return what there is to know of *error*."""
        if isinstance(error, FaultError):
            return error.fault
        text = str(error) or type(error).__name__
        if isinstance(error, FencedError):
            return cls("another worker owns it by now", fenced=True)
        if isinstance(error, PerhapsFencedError):
            return cls(text, perhaps_fenced=True)
        if isinstance(error, KnownFromError):
            return cls(text, read_from=error.offset)
        if isinstance(error, DiskFullError):
            return cls(text, full=True)
        if is_full(error):
            return cls(f"the disk of its store is full: make room there, and it goes on by itself ({text})", full=True)
        if isinstance(error, Exception) and is_of_the_disk(error):
            return cls(f"its store: {text}", damaged=is_damage(error), locked=is_own_lock(error))
        return cls(text, is_known=isinstance(error, (KafkaError, KafkaTimersError, RequestLogError, StoreBehindError)))


class FaultError(Exception):
    """Carries a fault that was met elsewhere to the place where the partition is served."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.text)
        self.fault = fault
