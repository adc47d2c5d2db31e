"""
Judge records on `timer-request` by themselves: the timers that they ask for, or the reasons to refuse them.

Checks that need the callback topic are made in the request's second, with `callbacks`.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from google.protobuf.message import DecodeError

from kafka_timers.core import rows as batches
from kafka_timers.core.callbacks import Shown
from kafka_timers.core.refused import Reason
from kafka_timers.core.routing import hash_of
from kafka_timers.core.versions import Original, TimerRecord
from kafka_timers.core.wire import (
    KEPT_KEY,
    NO_OFFSET,
    Condition,
    Extras,
    Future,
    Kept,
    Record,
    first_place,
    second_in,
    unframed,
)

# Fields of Extras that each Future has, and the tag with which the first begins.
_PLAIN, _TOPIC = (Extras.CALLBACKTOPIC_FIELD_NUMBER, Extras.CALLBACKKEY_FIELD_NUMBER), b"\x0a"


def second_of(key: bytes | None) -> int | Reason:
    """Return the expiry second of a record's key, or the reason why it has none."""
    return second_in(
        key,
        missing=Reason.KEY_MISSING,
        malformed=Reason.KEY_NOT_A_SECOND,
        in_milliseconds=Reason.KEY_IN_MILLISECONDS,
    )


# --- one record ------------------------------------------------------------------------------------------------------


class Ask(NamedTuple):
    """A request, with its due in UNIX milliseconds."""

    due_ms: int
    future: Future


class Cancel(NamedTuple):
    """A cancel."""

    future: Future


class SendOn(NamedTuple):
    """A record with the timer id of another partition, to which it is sent on."""

    future: Future


class Repeats(NamedTuple):
    """A record that asks for nothing, but repeats requests that wait: see `sweep`."""

    kept: Kept


# What a record asks for, or why it is refused.
Verdict = Ask | Cancel | SendOn | Repeats | Reason


def judged(record: Record, number: int, partitions: int) -> Verdict:
    """
    Return what *record* asks for, or the reason to refuse it.

    A record in a foreign partition is judged by the rules of the partition to which it is to be sent on.
    """
    second = second_of(record.key)
    try:
        future = Future.FromString(unframed(record.value or b""))
    except DecodeError:
        return second if isinstance(second, Reason) else Reason.VALUE_NOT_A_FUTURE
    if future.HasField("kept") and record.key == KEPT_KEY:
        return Repeats(future.kept)
    home = hash_of(future.timerId.encode()) % partitions if future.timerId else number
    if home != number and (future.HasField("copy") or future.HasField("forwarded")):
        return Reason.ID_IN_FOREIGN_PARTITION
    verdict = _judged_in(home, record, second, future, partitions)
    return verdict if home == number or isinstance(verdict, Reason) else SendOn(future)


def _judged_in(
    number: int, record: Record, second: int | Reason, future: Future, partitions: int
) -> Ask | Cancel | Reason:
    """Judge a *record* as one of partition *number*, where it belongs; *second* is from its key, *future* its value."""
    if future.HasField("forwarded") and not _may_be_forwarded(future, partitions):
        return Reason.FORWARDED_INVALID
    if (future.condition or future.ifRequest) and (reason := _condition_fault(future, number)):
        return reason
    if future.cancel:
        if future.HasField("copy"):
            return Reason.COPY_INVALID
        return Cancel(future) if future.timerId else Reason.ID_MISSING
    if isinstance(second, Reason):
        return second
    if not record.value:
        return Reason.VALUE_MISSING
    if future.millis > 999:
        return Reason.MILLIS_OUT_OF_RANGE
    if future.HasField("copy") and not 0 <= future.copy.offset < future.copy.decidedOffset <= record.offset:
        return Reason.COPY_INVALID
    return _callback_fault(future) or Ask(second * 1000 + future.millis, future)


class _Unsent(NamedTuple):
    key: bytes
    value: bytes
    offset: int = 0
    timestamp: int = 0
    headers: Sequence[tuple[str, bytes | None]] = ()


def fault_of(key: bytes, value: bytes, timer_id: str, partitions: int) -> Reason | None:
    """Return why workers would refuse a record with *timer_id* in its partition as it comes; None if they would not."""
    verdict = judged(_Unsent(key, value), hash_of(timer_id.encode()) % partitions, partitions)
    return verdict if isinstance(verdict, Reason) else None


def _may_be_forwarded(future: Future, partitions: int) -> bool:
    """Tell whether the first place in *future*, from where it was sent on, can be true."""
    first = future.forwarded
    is_place = 0 <= first.fromPartition < partitions and first.fromOffset >= 0
    return is_place and first.appendedMs >= 0 and bool(future.timerId)


def _callback_fault(future: Future) -> Reason | None:
    if not future.HasField("callBackRecord"):
        return None if future.callBackTopic else Reason.TOPIC_MISSING
    asked = future.callBackRecord
    if future.callBackTopic or future.callBackKey or future.callBack:
        return Reason.CALLBACK_INVALID
    if asked.HasField("partition") and (asked.partition < 0 or asked.HasField("partitionKey")):
        return Reason.CALLBACK_INVALID
    return None if asked.topic else Reason.TOPIC_MISSING


def _condition_fault(future: Future, number: int) -> Reason | None:
    if future.condition not in (Condition.IF_ABSENT, Condition.IF_PENDING):
        return Reason.CONDITION_INVALID
    if not future.timerId:
        return Reason.ID_MISSING
    if future.HasField("copy") or (future.cancel and future.condition == Condition.IF_ABSENT):
        return Reason.CONDITION_INVALID
    if future.ifRequest and expected_in(future, number) is None:
        return Reason.CONDITION_INVALID
    return None


def expected_in(future: Future, number: int) -> int | None:
    """Return the offset that `ifRequest` names in partition *number*; None if it names none."""
    partition, _, offset = future.ifRequest.partition(":")
    if partition != str(number) or not (offset.isascii() and offset.isdecimal() and len(offset) <= 19):
        return None
    return min(int(offset), NO_OFFSET)


def timer_record(future: Future, due_ms: int | None, record: Record, number: int, *, far: bool = False) -> TimerRecord:
    """Return the timer record of a *record* that was judged."""
    original = None
    if future.HasField("copy"):
        copy = future.copy
        original = Original(copy.offset, copy.appended, copy.decidedOffset, copy.decided)
    first, first_ms = "", 0
    if future.HasField("forwarded") and original is None:
        first, first_ms = first_place(future.forwarded), min(future.forwarded.appendedMs, record.timestamp)
    return TimerRecord(
        future.timerId.encode(),
        due_ms,
        record.offset,
        record.timestamp,
        future.replyTopic.encode(),
        far,
        original,
        future.condition,
        expected_in(future, number) if future.ifRequest else None,
        first,
        first_ms,
    )


# --- many records at once --------------------------------------------------------------------------------------------


class Screened(NamedTuple):
    """
    Many Futures that `judged` would accept, with any due.

    Attributes:
        futures: all of them; empty if they are plain.
        framed: their bytes, in the form in which `rows` keeps many.
        extras: the fields beside topic, key and value that any of them has.
        topics: callback topics of the requests among them.
        ids: their timer ids in UTF-8; empty if none has one.
        plain: whether none of them has more than topic, key and value.
    """

    futures: Sequence[Future]
    framed: bytes
    extras: Extras
    topics: set[str]
    ids: Sequence[bytes] = ()
    plain: bool = False


def screened(values: Sequence[bytes], number: int, partitions: int) -> Screened | None:
    """
    Return the Futures in *values* if none of them is unusual, many times faster than `judged` one by one.

    Returns:
        None if one of them might be refused or sent on, is a copy, asks for millis, has a condition, or asks for
        nothing.
    """
    framed = batches.framed(values)
    try:
        extras = batches.extras_in(framed)
        if all(field.number in _PLAIN for field, _ in extras.ListFields()) and (
            topics := _topics_at_once(values, extras)
        ):
            return Screened((), framed, extras, topics, plain=True)
        futures = batches.futures_in(framed)
    except (DecodeError, UnicodeDecodeError):
        return None
    if any(map(extras.HasField, ("millis", "copy", "condition", "ifRequest", "forwarded", "insteadOf", "kept"))):
        return None
    ids: Sequence[bytes] = ()
    has_cancels = extras.HasField("cancel")
    if has_cancels or extras.HasField("timerId"):
        ids = [future.timerId.encode() for future in futures]
        if any(hash_of(timer_id) % partitions != number for timer_id in ids if timer_id):
            return None
        if has_cancels and any(future.cancel and not timer_id for future, timer_id in zip(futures, ids, strict=True)):
            return None
    requests = [future for future in futures if not future.cancel] if has_cancels else futures
    topics = {future.callBackTopic for future in requests}
    if "" in topics:
        if not extras.HasField("callBackRecord") or any(map(_callback_fault, requests)):
            return None
        topics = {Shown.of(future).topic for future in requests}
    elif extras.HasField("callBackRecord") and any(map(_callback_fault, requests)):
        return None
    return Screened(futures, framed, extras, topics, ids)


def _topics_at_once(values: Sequence[bytes], extras: Extras) -> set[str]:
    """
    Return the callback topics of the Futures in *values*; empty if this cannot tell, or one of them has none.

    A Future that begins with its topic has one or more. So each has one, if there are as many topics as Futures.
    """
    topics = extras.callBackTopic
    if len(topics) != len(values) or {value[:1] for value in values} != {_TOPIC}:
        return set()
    distinct = {topic.decode() for topic in set(topics)}
    return set() if "" in distinct else distinct


def dues_of(keys: Iterable[bytes | None]) -> dict[bytes | None, int] | None:
    """Return the due in UNIX milliseconds of each of *keys*; None if one of them has none."""
    dues: dict[bytes | None, int] = {}
    for key in keys:
        second = second_of(key)
        if isinstance(second, Reason):
            return None
        dues[key] = second * 1000
    return dues
