"""
Check a caller's arguments, and make the bytes and the partition of a request from them.

These functions are pure. `TimerClient` and the in-memory broker of `kafka_timers.testing` share them. docs/wire.md
describes the same for clients in other languages. What a request cannot carry raises `RequestError`; the text names the
argument.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Self, TypedDict

from kafka_timers.core.callbacks import Shown
from kafka_timers.core.routing import partition_of
from kafka_timers.core.text import is_text, pairs_of
from kafka_timers.core.wire import NO_OFFSET, REQUEST_HEADER, SERVICE_HEADERS, Condition, Future, Header, Reply
from kafka_timers.errors import RequestError

Headers = Iterable[tuple[str, bytes | None]] | Mapping[str, bytes | None]

_PARTITION_MAX = (1 << 31) - 1
_request_matches = re.compile(r"(0|[1-9][0-9]{0,9}):[0-9]{1,19}", re.ASCII).fullmatch

# The names that Kafka allows for a topic. A request for any other would only end on `timer-rejected`.
_topic_matches = re.compile(r"(?!\.{1,2}\Z)[a-zA-Z0-9._-]{1,249}").fullmatch


class CallbackOptions(TypedDict, total=False):
    """
    All of a callback but its topic: keywords of `at`, `after`, `create`, `move` and `schedules.put`.

    Attributes:
        key: key of the callback, text or bytes; by default, and for None, a callback without a key.
        value: value of the callback; empty by default; None for a tombstone, a record without a value.
        token: handed back in the header `timer-token`; see `TokenGuard`.
        headers: headers of the callback, after the service's own.
        partition: partition of the topic; by default Kafka's default partitioner chooses it by *key*.
        partition_key: chooses the partition in place of *key*.
    """

    key: str | bytes | None
    value: bytes | None
    token: str | None
    headers: Headers
    partition: int | None
    partition_key: str | bytes | None


@dataclass(frozen=True, slots=True)
class CallbackSpec:
    """
    A callback as a caller describes it, in the caller's types and not checked yet.

    *timer_id* is the caller's own name for the timer. `CallbackOptions` explains the others.
    """

    topic: str
    key: str | bytes | None = None
    value: bytes | None = b""
    timer_id: str | None = None
    token: str | None = None
    headers: Headers = ()
    partition: int | None = None
    partition_key: str | bytes | None = None


@dataclass(frozen=True, slots=True)
class Timer:
    """
    A request that the broker has accepted.

    Attributes:
        due_ms: UNIX millisecond at which it fires.
        partition: partition of `timer-request` that holds the request.
        offset: offset in that partition; -1 if the broker did not tell it (after a retry of a known batch).
        timer_id: the sender's own name for the timer.
        token: token that the callback carries in the header `timer-token`.
    """

    due_ms: int
    partition: int
    offset: int
    timer_id: str | None
    token: str | None

    @property
    def second(self) -> int:
        """UNIX second in which it fires."""
        return self.due_ms // 1000

    @property
    def request(self) -> str:
        """partition:offset, as in the header `timer-request` of every copy of the callback."""
        return f"{self.partition}:{self.offset}"


class Outcome(StrEnum):
    """
    The result of a cancel, a move or a create for the timer that it was about.

    Attributes:
        CANCELLED: the timer does not fire. A timer that was cancelled before gets the same outcome.
        MOVED: the timer does not fire; the request that asked has taken its place.
        TOO_LATE: the timer fires or has fired, since it was due. A move with this outcome fires as well.
        UNKNOWN: the service holds no timer of this id: there was none, or an hour has passed since its second; for a
            move, also if it was cancelled. A move with this outcome is a new timer.
        ACCEPTED: no timer of this id was known; the one that `create` asked for will fire.
        IGNORED: the condition did not hold, so the call has changed nothing. For `create`, the id is known already. For
            a cancel or a move with `if_pending`, no timer is pending under this id, or another one than you named.
    """

    CANCELLED = "CANCELLED"
    MOVED = "MOVED"
    TOO_LATE = "TOO_LATE"
    UNKNOWN = "UNKNOWN"
    ACCEPTED = "ACCEPTED"
    IGNORED = "IGNORED"


@dataclass(frozen=True, slots=True)
class Answer:
    """
    The service's answer to a cancel, a move or a create.

    Attributes:
        outcome: the result for the timer that the call was about.
        due_ms: UNIX millisecond of the earlier timer of this id; None if none is known.
        request: partition:offset of that timer's request, as in the header `timer-request` of its callback; None if
            none is known.
        asked: partition:offset of the call's own record. If a move or a create stands, this is the request of the new
            timer.
        waits: with `IGNORED`: whether that earlier timer waits, so that you could still move or cancel it.
        kept: the serialised Future of that request if it waits and may have left `timer-request`; else empty.
    """

    outcome: Outcome
    due_ms: int | None
    request: str | None
    asked: str
    waits: bool = False
    kept: bytes = b""

    @property
    def second(self) -> int | None:
        """UNIX second of the earlier timer of this id; None if none is known."""
        return None if self.due_ms is None else self.due_ms // 1000

    @classmethod
    def of(cls, reply: Reply) -> Self:
        """
        Return *reply* as an answer.

        Raises:
            ValueError: this version does not know its outcome.
        """
        outcome = Outcome(Reply.Outcome.Name(reply.outcome))
        due_ms = reply.second * 1000 + reply.millis if reply.second else None
        return cls(outcome, due_ms, reply.request or None, reply.asked, reply.waits, reply.future)


@dataclass(frozen=True, slots=True)
class Pending:
    """
    A timer that waits.

    Attributes:
        timer_id: the sender's own name for the timer.
        due_ms: UNIX millisecond at which it fires.
        request: partition:offset of its request, as in the header `timer-request` of its callback.
        topic, key, value, token, headers: those of the callback, as in `CallbackOptions`.
    """

    timer_id: str | None
    due_ms: int
    request: str
    topic: str
    key: bytes | None
    value: bytes | None
    token: str | None
    headers: tuple[tuple[str, bytes | None], ...]

    @property
    def second(self) -> int:
        """UNIX second in which it fires."""
        return self.due_ms // 1000

    @classmethod
    def of(cls, future: Future, due_ms: int, request: str) -> Self:
        """Return the timer of *future*, which fires at the UNIX millisecond *due_ms* and lies at *request*."""
        topic, key, value = Shown.of(future)
        name, token = future.timerId or None, future.token or None
        return cls(name, due_ms, request, topic, key, value, token, tuple(pairs_of(future.headers)))


def future_of(callback: CallbackSpec, reserved: Collection[str]) -> Future:
    """
    Return the message that asks for *callback*. `timed` adds its time. *reserved* are the service's own topics, which
    get no callbacks.
    """
    topic, value = callback.topic, callback.value
    if not isinstance(topic, str) or not _topic_matches(topic):
        raise RequestError(f"topic {topic!r} is not the name of a Kafka topic: name the one that gets the callback")
    if topic in reserved:
        raise RequestError(f"topic {topic} is one of the timer service's own: callbacks need another")
    if value is not None and not isinstance(value, bytes):
        raise RequestError(f"value is of type {type(value).__name__}: give the callback's bytes, or None")
    future = Future()
    partition, partition_key = callback.partition, _checked_bytes("partition_key", callback.partition_key)
    if partition is not None:
        if isinstance(partition, bool) or not isinstance(partition, int) or not 0 <= partition <= _PARTITION_MAX:
            raise RequestError(f"partition {partition!r} is not the number of a partition")
        if partition_key is not None:
            raise RequestError("partition and partition_key exclude each other: give one of them")
        future.callBackRecord.partition = partition
    if partition_key is not None:
        future.callBackRecord.partitionKey = partition_key
    set_callback(future, topic, _checked_bytes("key", callback.key), value)
    if callback.timer_id is not None:
        future.timerId = checked_id(callback.timer_id)
    if callback.token is not None:
        future.token = _checked_text("token", callback.token)
    if callback.headers:
        future.headers.extend(map(_header, _header_pairs(callback.headers)))
    return future


def question_of(timer_id: str, partition: int) -> Future:
    """
    Return a message that changes nothing, and whose answer describes the timer *timer_id*.

    It is a cancel of a request that does not exist, in *partition*, the partition of the id; see `wire.is_question`.
    """
    return only_if_pending(cancel_of(timer_id), True, f"{partition}:{NO_OFFSET}")


def set_callback(future: Future, topic: str, key: bytes | None, value: bytes | None) -> None:
    """
    Make *future* ask for a callback with this *topic*, *key* and *value*; a partition that it names stays.

    Fields 1 to 3, which workers of all versions know, are used whenever they can carry the callback.
    """
    asked, has_callback = future.callBackRecord, future.HasField("callBackRecord")
    names_partition = has_callback and (asked.HasField("partition") or asked.HasField("partitionKey"))
    if not names_partition and value is not None and (key is None or (key and is_text(key))):
        future.ClearField("callBackRecord")
        future.callBackTopic, future.callBackKey, future.callBack = topic, (key or b"").decode(), value
        return
    for name in ("callBackTopic", "callBackKey", "callBack"):
        future.ClearField(name)
    asked.topic = topic
    for name, content in (("key", key), ("value", value)):
        if content is None:
            asked.ClearField(name)
        else:
            setattr(asked, name, content)


def timed(future: Future, due_ms: int) -> bytes:
    """Make *future* ask for the UNIX millisecond *due_ms*, and return the key of its record."""
    future.millis = due_ms % 1000
    return b"%d" % (due_ms // 1000)


def cancel_of(timer_id: str) -> Future:
    """Return the message that cancels the pending timer *timer_id*."""
    return Future(cancel=True, timerId=checked_id(timer_id))


def only_if_absent(future: Future, request: str | None = None) -> Future:
    """
    Return *future*, a request with a timer id, changed so that it is ignored if that id is known. A timer of *request*,
    partition:offset, does not count once it is due.
    """
    future.condition = Condition.IF_ABSENT
    if request is not None:
        future.ifRequest = checked_request(request)
    return future


def only_if_pending(future: Future, wanted: bool, request: str | None) -> Future:
    """
    Return *future*, a cancel or a request, changed so that it is ignored unless it finds a pending timer.

    Args:
        wanted: False returns *future* as it is.
        request: partition:offset of the request that the pending timer must come from; None for any request, and if
            *wanted* is False.
    """
    if request is not None:
        if not wanted:
            raise RequestError("request names the pending timer that is meant: give if_pending=True with it")
        future.ifRequest = checked_request(request)
    if wanted:
        future.condition = Condition.IF_PENDING
    return future


def check_home(future: Future, partitions: int) -> None:
    """
    Check that the request in *future.ifRequest*, if there is one, can belong to its timer id. The workers would refuse
    *future* if it lay in another partition than the id's requests.
    """
    home = partition_of(future.timerId, partitions)
    if future.ifRequest and future.ifRequest.partition(":")[0] != str(home):
        raise RequestError(
            f"request {future.ifRequest} is not one of {future.timerId!r}: all requests of this timer id lie in "
            f"partition {home}"
        )


def checked_id(timer_id: str | bytes) -> str:
    """Return *timer_id* as text, which is not empty."""
    return _checked_text("timer_id", timer_id)


def checked_request(request: str) -> str:
    """Return *request*, which must be partition:offset."""
    if not isinstance(request, str) or not _request_matches(request):
        raise RequestError(
            f"request {request!r} is not partition:offset: give the value of Timer.request, Answer.request or the "
            f"header {REQUEST_HEADER}"
        )
    return request


def _checked_bytes(what: str, given: str | bytes | None) -> bytes | None:
    if given is None or isinstance(given, bytes):
        return given
    try:
        return given.encode()
    except UnicodeError as error:
        raise RequestError(f"{what} {given!r} is no text: give bytes") from error
    except AttributeError as error:
        raise RequestError(f"{what} is of type {type(given).__name__}: give a str or bytes") from error


def _checked_text(what: str, given: str | bytes) -> str:
    try:
        # Encode a str too: a lone surrogate is a str that is not text.
        text = given.decode() if isinstance(given, bytes) else given.encode().decode()
    except UnicodeError as error:
        raise RequestError(
            f"{what} {given!r} is not UTF-8: the wire carries it as text, so encode it as hex"
        ) from error
    except AttributeError as error:
        raise RequestError(f"{what} is of type {type(given).__name__}: give a str") from error
    if not text:
        raise RequestError(f"{what} is empty, which the wire cannot tell from none: give None")
    return text


def _header_pairs(headers: object) -> Iterable[object]:
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    if not isinstance(pairs, Iterable):
        raise RequestError(f"headers are of type {type(headers).__name__}: give pairs of str and bytes or None")
    return pairs


def _header(pair: object) -> Header:
    match pair:
        case (str(name), (bytes() | None) as content):
            pass
        case (name, content):
            raise RequestError(f"header {name!r}: {content!r} is not a pair of str and bytes or None")
        case _:
            raise RequestError(f"header {pair!r} is not a pair of str and bytes or None")
    if name in SERVICE_HEADERS:
        raise RequestError(f"header {name} is set by the timer service on every callback: use another name")
    return Header(key=name, value=content)
