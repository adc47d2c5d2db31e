"""
The bytes on the topics: names, headers and messages. Generated protobuf code is imported here and in `schedules` alone.

Everything on a topic is a promise to clients in every language; docs/wire.md describes it in prose.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

from google.protobuf.message import DecodeError

from kafka_timers.errors import NewerFormatError, WireError
from kafka_timers.v1.future_pb2 import Callback as Callback
from kafka_timers.v1.future_pb2 import Copy as Copy
from kafka_timers.v1.future_pb2 import Forwarded as Forwarded
from kafka_timers.v1.future_pb2 import Future as Future
from kafka_timers.v1.future_pb2 import Header as Header
from kafka_timers.v1.future_pb2 import Kept as Kept
from kafka_timers.v1.future_pb2 import KeptRequest as KeptRequest
from kafka_timers.v1.future_pb2 import Source as Source
from kafka_timers.v1.reply_pb2 import Reply as Reply
from kafka_timers.v1.run_pb2 import Extras as Extras
from kafka_timers.v1.run_pb2 import Futures as Futures
from kafka_timers.v1.run_pb2 import Merged as Merged
from kafka_timers.v1.run_pb2 import RawRun as RawRun
from kafka_timers.v1.run_pb2 import Request as Request
from kafka_timers.v1.run_pb2 import Run as Run
from kafka_timers.v1.sealed_pb2 import Sealed as Sealed
from kafka_timers.v1.sealed_pb2 import Sent as Sent

Condition = Future.Condition

_Fault = TypeVar("_Fault")

_FRAME, _INDEXES_AT = b"\0", 5

# Tag of the field `Future.source`. A message without these bytes has no source.
SOURCE_TAG = b"\x92\x01"

# Key of records with the field `Future.kept`, which asks for nothing. A request's key is a number.
KEPT_KEY = b"kept"

# The format of `Sealed` that this version writes, and the highest one that it reads.
FORMAT = 1


class Record(Protocol):
    """A record as it was read from a log: here, from `timer-request`."""

    @property
    def key(self) -> bytes | None:
        """Expiry second in ASCII."""

    @property
    def value(self) -> bytes | None:
        """A serialised Future."""

    @property
    def offset(self) -> int:
        """Offset on `timer-request`."""

    @property
    def timestamp(self) -> int:
        """UNIX milliseconds of its append."""

    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]:
        """Headers as they came; none of them changes the meaning of the request."""


@dataclass(frozen=True, slots=True)
class Topics:
    """Names of the service's own topics. Those of one instance share a prefix, which is empty by default."""

    requests: str = "timer-request"
    oscillator: str = "oscillator"
    sealed: str = "timer-sealed"
    rejected: str = "timer-rejected"
    replies: str = "timer-reply"
    schedules: str = "timer-schedule"
    planned: str = "timer-planned"
    doors: str = "timer-door"

    @classmethod
    def of(cls, prefix: str) -> Self:
        """Return the names with *prefix* before each."""
        return cls(*(prefix + name for name in dataclasses.astuple(cls())))

    @property
    def needed(self) -> tuple[str, ...]:
        """The topics without which no worker starts. The others are for recurring timers."""
        return tuple(name for name in dataclasses.astuple(self) if name not in (self.schedules, self.planned))

    def __contains__(self, topic: object) -> bool:
        return topic in dataclasses.astuple(self)


def instance_name(prefix: str) -> str:
    """
    Return the name of the instance whose topics have *prefix*.

    It is the default group of the workers. The transactional ids of all processes begin with it and a dot, whatever the
    group: so two groups on the same topics fence each other, and nothing fires twice.
    """
    return f"{prefix}kafka-timers"


TICK = b"1"
OSCILLATOR_HEADER = "oscillator"

TOKEN_HEADER = "timer-token"  # noqa: S105  # a header's name, no secret
ID_HEADER = "timer-id"
EXPIRY_HEADER = "timer-expiry"
# Milliseconds of that second, 1 to 999; absent if 0.
MILLIS_HEADER = "timer-millis"
REQUEST_HEADER = "timer-request"
# partition:offset at which the request was first written, if a worker has sent it on.
FORWARDED_HEADER = "timer-forwarded"
# On `timer-request`: the person or program that asks on behalf of others.
ASKED_BY_HEADER = "timer-asked-by"
# On `timer-request`: the digest of the body by which somebody asked over HTTP, so that a repeat is told from another.
BODY_HEADER = "timer-body"
# The headers that the service itself sets on every callback.
SERVICE_HEADERS = frozenset((TOKEN_HEADER, ID_HEADER, EXPIRY_HEADER, MILLIS_HEADER, REQUEST_HEADER, FORWARDED_HEADER))
# On an answer: its outcome. The names of its other headers begin with this one.
ANSWER_HEADER = "timer-answer"
# How often a record has gone through a door and come back as a callback.
HOPS_HEADER = "timer-hops"
# `TimerClient.retry` sets these on a record that comes again: the number of the repeat, the first place of the record,
# its timer id at that time, and the reason of the failure.
RETRY_ATTEMPT_HEADER = "timer-retry-attempt"
RETRY_FIRST_HEADER = "timer-retry-first"
RETRY_ID_HEADER = "timer-retry-id"
RETRY_ERROR_HEADER = "timer-retry-error"
RETRY_HEADERS = frozenset((RETRY_ATTEMPT_HEADER, RETRY_FIRST_HEADER, RETRY_ID_HEADER, RETRY_ERROR_HEADER))
# On the callback of a schedule's run: id of the schedule, instant of the run, and number of the run.
SCHEDULE_HEADER = "timer-schedule"
SCHEDULE_INSTANT_HEADER = "timer-schedule-instant"
SCHEDULE_RUN_HEADER = "timer-schedule-run"
SCHEDULE_HEADERS = frozenset((SCHEDULE_HEADER, SCHEDULE_INSTANT_HEADER, SCHEDULE_RUN_HEADER))
# Prefix of the headers on `timer-rejected` that describe the refusal.
REJECT_PREFIX = "timer-rejected-"
REASON_HEADER = REJECT_PREFIX + "reason"

# The year 5138. Today's time in milliseconds is above it, so a key in milliseconds differs from one in seconds.
SECOND_LIMIT = 100_000_000_000


# No log grows that long.
NO_OFFSET = (1 << 63) - 1

# How long compaction leaves a record of `timer-planned` alone, so that the lake lands it.
PLANNED_LAG_MS = 3_600_000

# How long the service knows the id of a timer that has fired or was cancelled.
ID_MEMORY_S = 3600
ID_MEMORY_MS = ID_MEMORY_S * 1000
# How long after its decision a copy of a far request may be appended. It is half of the memory: a worker that reads
# half an hour behind the log still knows all records that the decision could not know.
COPY_STALE_S = ID_MEMORY_S // 2


def number_in(text: bytes | None) -> int | None:
    """Return the whole number that *text* names in ASCII digits, None if it cannot be a time."""
    # 14 digits are milliseconds up to the year 5138. A longer number is no time, and may be a megabyte of digits.
    return int(text) if text and text.isdigit() and len(text) <= 14 else None


def second_in(text: bytes | None, *, missing: _Fault, malformed: _Fault, in_milliseconds: _Fault) -> int | _Fault:
    """
    Return the UNIX second that *text* names in ASCII digits, or the fault that keeps it from naming one.

    Args:
        missing: returned if there is no text.
        malformed: returned if the text is no whole number above 0.
        in_milliseconds: returned if the number is too large to count seconds.
    """
    if not text:
        return missing
    second = number_in(text)
    if not second:
        return malformed
    return second if second < SECOND_LIMIT else in_milliseconds


def is_question(future: Future) -> bool:
    """Tell whether *future* is a cancel of no request, which changes nothing and is made only to be answered."""
    return future.cancel and future.ifRequest.endswith(f":{NO_OFFSET}")


def is_far(second: int, appended_s: int, horizon_s: int) -> bool:
    """
    Tell whether a request is left to the lake, which follows from its record alone.

    Args:
        second: UNIX second in which it is due.
        appended_s: UNIX second in which the broker appended it.
        horizon_s: how far ahead workers hold requests; 0 is without bound.
    """
    return 0 < horizon_s < second - appended_s


def unframed(value: bytes) -> bytes:
    """
    Return *value* without the framing of Confluent's Schema Registry, if it has one.

    The framing is a zero, the four bytes of the schema's number, and the place of the message in the schema: the number
    of indexes, then the indexes, as zigzag varints of one byte each. No indexes stand for the first message. A value
    with another framing is returned as it is, and is no Future.
    """
    # No Future begins with a zero.
    if not value.startswith(_FRAME) or len(value) <= _INDEXES_AT:
        return value
    count, is_odd = divmod(value[_INDEXES_AT], 2)
    begin = _INDEXES_AT + 1 + count
    return value if is_odd or not value[_INDEXES_AT:begin].isascii() else value[begin:]


def future_from(value: bytes, *, topic: str = "", partition: int = -1, offset: int = -1) -> Future:
    """
    Return the Future in *value*.

    Raises:
        WireError: the bytes are not a Future; it names *topic*, *partition* and *offset*.
    """
    try:
        return Future.FromString(unframed(value))
    except DecodeError as error:
        raise WireError("bytes are not a Future", topic=topic, partition=partition, offset=offset) from error


def sealed_from(value: bytes, *, topic: str = "", partition: int = -1, offset: int = -1) -> Sealed:
    """
    Return the seal in *value*.

    Raises:
        WireError: the bytes are not a Sealed; it names *topic*, *partition* and *offset*.
    """
    try:
        return Sealed.FromString(value)
    except DecodeError as error:
        raise WireError("bytes are not a seal", topic=topic, partition=partition, offset=offset) from error


def callback_headers(request: Request, second: int, name: bytes) -> list[tuple[str, bytes | None]]:
    """
    Return the headers of the callback that *request* asks for: the service's own, then the request's.

    The request's headers are passed on untouched, in their order, without those that have a name of the service's own.
    A receiver may take the last header of a name, and would then believe the requester instead of the service.

    Args:
        second: UNIX second that it was made for, even if it fires later.
        name: b"partition:offset" of the request on `timer-request`.
    """
    # This runs once per callback. Each field is read only once, since reading one is a call into the protobuf runtime.
    headers: list[tuple[str, bytes | None]] = [(EXPIRY_HEADER, b"%d" % second), (REQUEST_HEADER, name)]
    millis = request.millis
    if request.HasField("insteadOf"):
        second, millis = divmod(request.insteadOf.dueMs, 1000)
        headers[0] = EXPIRY_HEADER, b"%d" % second
    if millis:
        headers.insert(1, (MILLIS_HEADER, b"%d" % millis))
    if timer_id := request.timerId:
        headers.insert(0, (ID_HEADER, timer_id))
    if token := request.token:
        headers.insert(0, (TOKEN_HEADER, token))
    if request.HasField("forwarded"):
        headers.append((FORWARDED_HEADER, first_place(request.forwarded).encode()))
    if own := request.headers:
        # Most headers have a value, so the truth of the value saves a call to HasField.
        headers += [
            (key, each.value or (b"" if each.HasField("value") else None))
            for each in own
            if (key := each.key) not in SERVICE_HEADERS
        ]
    return headers


def first_place(forwarded: Forwarded) -> str:
    """Return partition:offset at which a record was first written that was sent on."""
    return f"{forwarded.fromPartition}:{forwarded.fromOffset}"


def rejection_in(headers: Sequence[tuple[str, bytes | None]]) -> dict[str, bytes]:
    """
    Return the headers about the refusal of a record on `timer-rejected`, without their prefix.

    Of one name the first header counts: the service's own come before any that the record had.
    """
    given = {name: content or b"" for name, content in reversed(headers)}
    return {name.removeprefix(REJECT_PREFIX): text for name, text in given.items() if name.startswith(REJECT_PREFIX)}


def refused_request(rejection: Mapping[str, bytes], requests: str) -> bytes | None:
    """Return partition:offset on `timer-request` of the refused request; None if the refused record was no request."""
    if rejection.get("topic") == requests.encode():
        return b"%b:%b" % (rejection.get("partition", b""), rejection.get("offset", b""))
    return rejection.get("request")


def reject_headers(
    reason: str, topic: str, partition: int, offsets: Iterable[int]
) -> Iterator[list[tuple[str, bytes | None]]]:
    """Yield the headers on `timer-rejected` for the record at each of *offsets*: the reason, and its place."""
    alike: list[tuple[str, bytes | None]] = [
        (REASON_HEADER, reason.encode()),
        (REJECT_PREFIX + "topic", topic.encode()),
        (REJECT_PREFIX + "partition", b"%d" % partition),
    ]
    return ([*alike, (REJECT_PREFIX + "offset", b"%d" % offset)] for offset in offsets)


def is_complete(seal: Sealed) -> bool:
    """Tell whether *seal* closes its scan; one that does not is a slice of a scan that goes on."""
    return not seal.HasField("through")


def is_brief(seal: Sealed) -> bool:
    """Tell whether *seal* leaves out what a seal of the same second has said, see `core.brief`."""
    return not seal.format and is_complete(seal)


def key_of_seal(seal: Sealed) -> bytes:
    """Return the record key of *seal*. Compaction must never remove a seal that a slice or a brief one builds on."""
    kind = b"+" if is_brief(seal) else b"" if is_complete(seal) else b" slice"
    return b"%d%b" % (seal.partition, kind)


def check_format(seal: Sealed) -> None:
    """
    Check that this version understands *seal*.

    Raises:
        NewerFormatError: a later version has written it.
    """
    if seal.format > FORMAT:
        raise NewerFormatError(
            f"partition {seal.partition} has seals of format {seal.format}, and this version knows those up to "
            f"{FORMAT}: upgrade this worker, or stop it and leave the partition to the others"
        )


def last_second_of(seal: Sealed) -> int:
    """Return the last UNIX second that *seal* covers, at least in part."""
    return (seal.end_ms - 1) // 1000


def age_of(seal: Sealed) -> tuple[int, int]:
    """Return the sort key of the seals of one partition: (end in milliseconds, fence), highest for the latest."""
    return seal.end_ms, seal.fence


def latest(seals: Iterable[Sealed]) -> Sealed | None:
    """Return the latest of the complete seals, None if no seal is complete."""
    return max(filter(is_complete, seals), key=age_of, default=None)


def partitions_in(seals: Iterable[Sealed]) -> int:
    """Return the number of partitions that the service runs with, from the latest of *seals*; 0 if there is none."""
    last = max(seals, key=age_of, default=None)
    return last.partitions if last else 0
