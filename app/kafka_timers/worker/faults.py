"""
Faults that keep a partition from being served, and the right reaction to each.

An exception keeps alive every object of the frames where it was raised, including an open store. So no exception is
kept; a `Fault` holds everything that is needed later.
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
        topic: name of the log.
        number: partition number.
        end: the offset after the log's last request.
        fired_to: the offset up to which requests have fired.
    """

    def __init__(self, topic: str, number: int, end: int, fired_to: int) -> None:
        super().__init__(
            f"{topic} partition {number} ends at offset {end}, below {fired_to} up to which it has been fired: was the "
            "topic deleted, or did it lose records? If you recreated it on purpose, recreate the topic of the seals too"
        )


class StoreBehindError(Exception):
    """The disk of a store accepts no more writes."""


@dataclass(frozen=True, slots=True)
class Fault:
    """
    The reason why a partition cannot continue.

    Attributes:
        text: a sentence for people.
        is_known: True for an expected kind of fault. Any other is logged with its traceback.
        fenced: another worker owns the partition.
        perhaps_fenced: another worker may own it.
        read_from: the offset from which the log must be read again; None to continue where reading stopped.
        damaged: the files of the store are damaged.
        full: the disk of the store has no space left.
        locked: this process already has the store open.
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
        """Return the fault for *error*."""
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
    """Carries an earlier fault to the code that serves the partition."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.text)
        self.fault = fault
