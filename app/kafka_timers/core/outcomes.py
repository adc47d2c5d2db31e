"""
How the timers of one id stand, told by the request log and the last complete seal of its partition alone.

Pure. Every record of an id is about at most one other, the last request before it. It takes that one back if the broker
appended it before that one's second, unless that second had been fired before the record could be read:

    offset  appended  asks for       about                                    sealed: second 20, fence 14
    11      9 s       second 15                                               cancelled
    12      14 s      cancel         11, in time                              cancelled
    13      16 s      second 18                                               fired
    14      17 s      second 30      13, behind the fence: read too late      pending
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kafka_timers.core.wire import SECOND_LIMIT, Record, Sealed, future_from, number_in
from kafka_timers.errors import WireError

__all__ = ["Asked", "State", "asked_in", "states_of"]


class State(StrEnum):
    """
    How a record of an id stands.

    Attributes:
        PENDING: a request that will fire, unless it is taken back in time.
        FIRED: a request whose second is sealed. What its topic did not take lies on `timer-rejected` instead.
        CANCELLED: a request that was taken back, or a cancel that found one.
        MOVED: a request that was replaced by a later one.
        TOO_LATE: a cancel whose timer fires or has fired.
        UNKNOWN: a cancel that found no timer in what was read.
        REFUSED: a request that no worker accepts; it lies on `timer-rejected`, with the reason.
    """

    PENDING = "pending"
    FIRED = "fired"
    CANCELLED = "cancelled"
    MOVED = "moved"
    TOO_LATE = "too late"
    UNKNOWN = "unknown"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Asked:
    """
    What one record asks for.

    Attributes:
        offset: on `timer-request`.
        appended_ms: UNIX milliseconds at which the broker appended it.
        second: UNIX second of the timer; None for a cancel, and for a request that is refused.
        cancel: whether it takes a timer back.
        topic: of the callback.
        key: of the callback.
    """

    offset: int
    appended_ms: int
    second: int | None
    cancel: bool
    topic: str
    key: str


def asked_in(records: Iterable[Record], timer_id: str) -> Iterator[Asked]:
    """Yield what those of *records* ask for that have *timer_id*, in their order."""
    name = timer_id.encode()
    for record in records:
        # Parsing costs many times as much as looking for the bytes.
        if name not in (record.value or b""):
            continue
        try:
            future = future_from(record.value or b"")
        except WireError:
            continue
        if future.timerId != timer_id:
            continue
        fits = not future.cancel and future.callBackTopic and future.millis <= 999
        second = _second_in(record.key or b"") if fits else None
        yield Asked(record.offset, record.timestamp, second, future.cancel, future.callBackTopic, future.callBackKey)


def states_of(asked: Sequence[Asked], seal: Sealed | None) -> list[State]:
    """
    Return how each of *asked* stands.

    Args:
        asked: all that one id has from some offset on, in the order of the log.
        seal: the last complete one of the partition, None when nothing has been sealed.
    """
    last, fence = (seal.last, seal.fence) if seal else (0, 0)
    states: list[State] = []
    before, second = -1, 0  # the last request so far, and what it was made for
    for number, ask in enumerate(asked):
        if ask.second is None and not ask.cancel:
            states.append(State.REFUSED)
            continue
        state = states[before] if before >= 0 else State.UNKNOWN
        stands = state in (State.PENDING, State.FIRED)
        in_time = ask.appended_ms < second * 1000 and not (state is State.FIRED and ask.offset >= fence)
        if stands and in_time:
            states[before] = State.CANCELLED if ask.cancel else State.MOVED
        if ask.second is None:
            states.append(State.TOO_LATE if stands and not in_time else State.CANCELLED if before >= 0 else state)
        else:
            states.append(State.FIRED if ask.second <= last and ask.offset < fence else State.PENDING)
            before, second = number, ask.second
    return states


def _second_in(key: bytes) -> int | None:
    second = number_in(key)
    return second if second and second < SECOND_LIMIT else None
