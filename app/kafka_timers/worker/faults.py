"""
What can keep a partition from being served, and what follows from it.

An exception holds on to everything that was alive where it was raised, an open store among it, so none is kept. What is
to be known of it later is a `Fault`.
"""

from dataclasses import dataclass, field

from aiokafka.errors import KafkaError

from kafka_timers.core.verdicts import Reason
from kafka_timers.core.versions import KnownFromError
from kafka_timers.errors import KafkaTimersError
from kafka_timers.worker.store import is_damage, is_of_the_disk, is_own_lock


class FencedError(Exception):
    """Another worker owns the partition by now; only a fresh assignment makes this one its owner again."""


class TopicsRefusedError(Exception):
    """The broker refused writes to callback topics; `reasons` says which and why. Nothing of the slice is visible."""

    def __init__(self, reasons: dict[str, Reason]) -> None:
        super().__init__(", ".join(f"{topic}: {reason}" for topic, reason in reasons.items()))
        self.reasons = reasons


class RequestLogError(Exception):
    """The request log is not the one that the seals are of; firing from it would lose or repeat timers."""


@dataclass(frozen=True, slots=True)
class Fault:
    """
    Why a partition cannot go on.

    Attributes:
        text: a sentence for people.
        is_known: whether it is one of the faults that must be reckoned with; any other is logged with its traceback.
        fenced: another worker owns the partition.
        read_from: the offset from which on the log has to be read again; None to go on where it was.
        damaged: the files of the store are damaged.
        locked: this very process has the store open already.
        topics: callback topics that have refused, and why.
    """

    text: str
    is_known: bool = True
    fenced: bool = False
    read_from: int | None = None
    damaged: bool = False
    locked: bool = False
    topics: dict[str, Reason] = field(default_factory=dict)

    @classmethod
    def of(cls, error: BaseException) -> "Fault":
        """Return what there is to know of *error*."""
        if isinstance(error, FaultError):
            return error.fault
        text = str(error) or type(error).__name__
        if isinstance(error, FencedError):
            return cls("another worker owns it by now", fenced=True)
        if isinstance(error, KnownFromError):
            return cls(text, read_from=error.offset)
        if isinstance(error, TopicsRefusedError):
            return cls(text, topics=error.reasons)
        if isinstance(error, Exception) and is_of_the_disk(error):
            return cls(f"its store: {text}", damaged=is_damage(error), locked=is_own_lock(error))
        return cls(text, is_known=isinstance(error, (KafkaError, KafkaTimersError, RequestLogError)))


class FaultError(Exception):
    """Carries a fault that was met elsewhere to the place where the partition is served."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.text)
        self.fault = fault
