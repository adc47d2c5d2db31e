"""
The bytes on the topics: names, headers, and the only module that touches generated protobuf code.

Everything on a topic is a promise to every client in every language; docs/wire.md tells it in prose.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

from google.protobuf.message import DecodeError

from kafka_timers.errors import NewerFormatError, WireError
from kafka_timers.v1.future_pb2 import Callback, Copy, Forwarded, Future, Header, Source
from kafka_timers.v1.reply_pb2 import Reply
from kafka_timers.v1.run_pb2 import Extras, Futures, RawRun, Request, Run
from kafka_timers.v1.sealed_pb2 import Sealed

__all__ = [
    "ANSWER_HEADER",
    "ASKED_BY_HEADER",
    "CALLBACKS_FORMAT",
    "COPY_STALE_S",
    "EXPIRY_HEADER",
    "FORMAT",
    "FORWARDED_HEADER",
    "HOPS_HEADER",
    "ID_HEADER",
    "ID_MEMORY_MS",
    "ID_MEMORY_S",
    "MILLIS_HEADER",
    "OSCILLATOR_HEADER",
    "REASON_HEADER",
    "REJECT_PREFIX",
    "REQUEST_HEADER",
    "RETRY_ATTEMPT_HEADER",
    "RETRY_ERROR_HEADER",
    "RETRY_FIRST_HEADER",
    "RETRY_HEADERS",
    "RETRY_ID_HEADER",
    "SCHEDULE_HEADER",
    "SCHEDULE_HEADERS",
    "SCHEDULE_INSTANT_HEADER",
    "SCHEDULE_RUN_HEADER",
    "SECOND_LIMIT",
    "SERVICE_HEADERS",
    "SOURCE_TAG",
    "TICK",
    "TOKEN_HEADER",
    "Callback",
    "Condition",
    "Copy",
    "Extras",
    "Forwarded",
    "Future",
    "Futures",
    "Header",
    "RawRun",
    "ReadRecord",
    "Record",
    "Reply",
    "Request",
    "Run",
    "Sealed",
    "Source",
    "Topics",
    "age_of",
    "callback_headers",
    "check_format",
    "end_ms_of",
    "first_ms_of",
    "first_place",
    "future_from",
    "is_complete",
    "is_far",
    "is_framed",
    "latest",
    "number_in",
    "partitions_in",
    "refused_request",
    "reject_headers",
    "rejection_in",
    "sealed_from",
    "second_in",
    "unframed",
]


Condition = Future.Condition

_Fault = TypeVar("_Fault")

_FRAME, _INDEXES_AT = b"\0", 5

# Of the field `Future.source`: without these bytes there is none.
SOURCE_TAG = b"\x92\x01"

# Of `Sealed`: 1 counts in seconds alone, 2 knows conditions, 3 may begin or end within a second, 4 knows requests with
# a `callBackRecord`, and such as are sent on to the partition of their id; it is written once there was one.
FORMAT = CALLBACKS_FORMAT = 4


class Record(Protocol):
    """What is used of a record that was read from `timer-request`."""

    @property
    def key(self) -> bytes | None:
        """Expiry second in ASCII."""

    @property
    def value(self) -> bytes | None:
        """A serialised Future."""

    @property
    def offset(self) -> int:
        """On `timer-request`."""

    @property
    def timestamp(self) -> int:
        """UNIX milliseconds of its append."""


class ReadRecord(Record, Protocol):
    """A record as it was read from a log."""

    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]:
        """As they came; none of them changes what is asked for."""


@dataclass(frozen=True, slots=True)
class Topics:
    """Names of the service's own topics; those of one instance share a prefix, which is empty by default."""

    requests: str = "timer-request"
    oscillator: str = "oscillator"
    sealed: str = "timer-sealed"
    rejected: str = "timer-rejected"
    replies: str = "timer-reply"
    schedules: str = "timer-schedule"
    planned: str = "timer-planned"

    @classmethod
    def of(cls, prefix: str) -> Self:
        """Return the names with *prefix* before each."""
        return cls(*(prefix + name for name in dataclasses.astuple(cls())))

    @property
    def needed(self) -> tuple[str, ...]:
        """Those without which no timer fires; the others are for recurring ones."""
        return tuple(name for name in dataclasses.astuple(self) if name not in (self.schedules, self.planned))

    def __contains__(self, topic: object) -> bool:
        return topic in dataclasses.astuple(self)


TICK = b"1"
OSCILLATOR_HEADER = "oscillator"

TOKEN_HEADER = "timer-token"  # noqa: S105  # a header's name, no secret
ID_HEADER = "timer-id"
EXPIRY_HEADER = "timer-expiry"
# Of that second, 1 to 999; absent where it is 0.
MILLIS_HEADER = "timer-millis"
REQUEST_HEADER = "timer-request"
# partition:offset at which the request was written at first, where a worker has sent it on.
FORWARDED_HEADER = "timer-forwarded"
# On `timer-request`: who has asked, where somebody asks for others.
ASKED_BY_HEADER = "timer-asked-by"
# The headers that the service itself sets on every callback.
SERVICE_HEADERS = frozenset((TOKEN_HEADER, ID_HEADER, EXPIRY_HEADER, MILLIS_HEADER, REQUEST_HEADER, FORWARDED_HEADER))
# On an answer: its outcome; what else it tells is in headers whose names begin so.
ANSWER_HEADER = "timer-answer"
# How often a record has gone through a door and come back as a callback.
HOPS_HEADER = "timer-hops"
# What `TimerClient.retry` tells of a record that comes again: how often, where it lay at first, which timer id it had
# then, and why it could not be handled.
RETRY_ATTEMPT_HEADER = "timer-retry-attempt"
RETRY_FIRST_HEADER = "timer-retry-first"
RETRY_ID_HEADER = "timer-retry-id"
RETRY_ERROR_HEADER = "timer-retry-error"
RETRY_HEADERS = frozenset((RETRY_ATTEMPT_HEADER, RETRY_FIRST_HEADER, RETRY_ID_HEADER, RETRY_ERROR_HEADER))
# On the callback of a schedule's run: its id, the instant of the run, and the number of the run.
SCHEDULE_HEADER = "timer-schedule"
SCHEDULE_INSTANT_HEADER = "timer-schedule-instant"
SCHEDULE_RUN_HEADER = "timer-schedule-run"
SCHEDULE_HEADERS = frozenset((SCHEDULE_HEADER, SCHEDULE_INSTANT_HEADER, SCHEDULE_RUN_HEADER))
# What the names of the headers on `timer-rejected` begin with that tell of the refusal.
REJECT_PREFIX = "timer-rejected-"
REASON_HEADER = REJECT_PREFIX + "reason"

# The year 5138. Today's time in milliseconds is above it, so a key in milliseconds is told from one in seconds.
SECOND_LIMIT = 100_000_000_000


# How long the service knows an id whose timer has fired or was cancelled.
ID_MEMORY_S = 3600
ID_MEMORY_MS = ID_MEMORY_S * 1000
# How long after its decision a copy of a far request may be appended. Half of the memory: a worker that reads half an
# hour behind the log still knows all records that the decision could not know.
COPY_STALE_S = ID_MEMORY_S // 2


def number_in(text: bytes | None) -> int | None:
    """Return the whole number that *text* names in ASCII digits, None when it names none that could be a time."""
    # 14 digits are milliseconds up to the year 5138; a longer number is no time, and may be a megabyte of digits.
    return int(text) if text and text.isdigit() and len(text) <= 14 else None


def second_in(text: bytes | None, *, missing: _Fault, malformed: _Fault, in_milliseconds: _Fault) -> int | _Fault:
    """
    Return the UNIX second that *text* names in ASCII digits, or the fault that keeps it from naming one.

    Args:
        text: the key of a request, or a header that another system uses for it.
        missing: returned when there is no text.
        malformed: returned when the text is no whole number above 0.
        in_milliseconds: returned when the number is too large to count seconds.
    """
    if not text:
        return missing
    second = number_in(text)
    if not second:
        return malformed
    return second if second < SECOND_LIMIT else in_milliseconds


def is_far(second: int, appended_s: int, horizon_s: int) -> bool:
    """
    Tell whether a request is left to the lake, which follows from its record alone.

    Args:
        second: UNIX second in which it is due.
        appended_s: UNIX second in which the broker appended it.
        horizon_s: how far ahead workers hold requests; 0 is without bound.
    """
    return 0 < horizon_s < second - appended_s


def is_framed(value: bytes | None) -> bool:
    """Tell whether *value* has the framing of a schema registry; no Future begins with a zero."""
    return value is not None and value.startswith(_FRAME)


def unframed(value: bytes) -> bytes:
    """
    Return *value* without the framing of Confluent's Schema Registry, if it has one.

    That is a zero, the four bytes of the schema's number, and which message of the schema it is: how many indexes
    follow, and these, as zigzag varints, of one byte each here. None stands for the first message. What is framed in
    another way is returned as it is, and is no Future.
    """
    if not is_framed(value) or len(value) <= _INDEXES_AT:
        return value
    count, is_odd = divmod(value[_INDEXES_AT], 2)
    begin = _INDEXES_AT + 1 + count
    return value if is_odd or not value[_INDEXES_AT:begin].isascii() else value[begin:]


def future_from(value: bytes, *, topic: str = "", partition: int = -1, offset: int = -1) -> Future:
    """
    Return the Future that *value* carries.

    Raises:
        WireError: the bytes are not a Future; it names *topic*, *partition* and *offset*.
    """
    try:
        return Future.FromString(unframed(value))
    except DecodeError as error:
        raise WireError("bytes are not a Future", topic=topic, partition=partition, offset=offset) from error


def sealed_from(value: bytes, *, topic: str = "", partition: int = -1, offset: int = -1) -> Sealed:
    """
    Return the seal that *value* carries.

    Raises:
        WireError: the bytes are not a Sealed; it names *partition* and *offset*.
    """
    try:
        return Sealed.FromString(value)
    except DecodeError as error:
        raise WireError("bytes are not a seal", topic=topic, partition=partition, offset=offset) from error


def callback_headers(request: Request, second: int, name: bytes) -> list[tuple[str, bytes | None]]:
    """
    Return the headers of the callback that *request* asks for: the service's own, then the request's.

    Those of the request are passed on untouched, in their order, without any that bears a name of the service's own:
    a receiver may take the last one of a name, and would believe the requester in place of the service.

    Args:
        request: what was asked for.
        second: UNIX second that it was made for, also when it fires later.
        name: b"partition:offset" of the request on `timer-request`.
    """
    # Once per callback: each field is read once, since reading one is a call into the protobuf runtime.
    headers: list[tuple[str, bytes | None]] = [(EXPIRY_HEADER, b"%d" % second), (REQUEST_HEADER, name)]
    if millis := request.millis:
        headers.insert(1, (MILLIS_HEADER, b"%d" % millis))
    if timer_id := request.timerId:
        headers.insert(0, (ID_HEADER, timer_id))
    if token := request.token:
        headers.insert(0, (TOKEN_HEADER, token))
    if request.HasField("forwarded"):
        headers.append((FORWARDED_HEADER, first_place(request.forwarded).encode()))
    if own := request.headers:
        # Of most headers the value says that it is there.
        headers += [
            (key, each.value or (b"" if each.HasField("value") else None))
            for each in own
            if (key := each.key) not in SERVICE_HEADERS
        ]
    return headers


def first_place(forwarded: Forwarded) -> str:
    """Return partition:offset at which a record was written that was sent on."""
    return f"{forwarded.fromPartition}:{forwarded.fromOffset}"


def rejection_in(headers: Sequence[tuple[str, bytes | None]]) -> dict[str, bytes]:
    """
    Return what a record on `timer-rejected` tells of its refusal: its headers of that, without their prefix.

    Of one name the first: the service's come before any that the record had.
    """
    told = {name: content or b"" for name, content in reversed(headers)}
    return {name.removeprefix(REJECT_PREFIX): text for name, text in told.items() if name.startswith(REJECT_PREFIX)}


def refused_request(told: Mapping[str, bytes], requests: str) -> bytes | None:
    """
    Return which request was refused, as partition:offset on `timer-request`; None if none was, but another record.

    Args:
        told: of its refusal, as `rejection_in` has it.
        requests: name of `timer-request`.
    """
    if told.get("topic") == requests.encode():
        return b"%b:%b" % (told.get("partition", b""), told.get("offset", b""))
    return told.get("request")


def reject_headers(
    reason: str, topic: str, partition: int, offsets: Iterable[int]
) -> Iterator[list[tuple[str, bytes | None]]]:
    """Return what `timer-rejected` tells of the record at each of *offsets*: why it is refused, and where it lies."""
    alike: list[tuple[str, bytes | None]] = [
        (REASON_HEADER, reason.encode()),
        (REJECT_PREFIX + "topic", topic.encode()),
        (REJECT_PREFIX + "partition", b"%d" % partition),
    ]
    return ([*alike, (REJECT_PREFIX + "offset", b"%d" % offset)] for offset in offsets)


def is_complete(seal: Sealed) -> bool:
    """Tell whether *seal* closes its second; one that does not is a slice of a second that goes on."""
    return not seal.HasField("through")


def check_format(seal: Sealed) -> None:
    """
    Check that this version knows what *seal* says.

    Raises:
        NewerFormatError: a later version has written it.
    """
    if seal.format > FORMAT:
        raise NewerFormatError(
            f"partition {seal.partition} has seals of format {seal.format}, and this version knows those up to "
            f"{FORMAT}: upgrade this worker, or stop it and leave the partition to the others"
        )


def first_ms_of(seal: Sealed) -> int:
    """Return the first moment that *seal* covers, in UNIX milliseconds."""
    return seal.first_ms if seal.format > 1 else seal.first * 1000


def end_ms_of(seal: Sealed) -> int:
    """Return the moment before which *seal* covers everything, in UNIX milliseconds."""
    return seal.end_ms if seal.format > 1 else (seal.last + 1) * 1000


def age_of(seal: Sealed) -> tuple[int, int]:
    """Return what the seals of one partition are ordered by: (end in milliseconds, fence), the latest highest."""
    return end_ms_of(seal), seal.fence


def latest(seals: Iterable[Sealed]) -> Sealed | None:
    """Return the latest of the complete seals, None when no seal is complete."""
    return max(filter(is_complete, seals), key=age_of, default=None)


def partitions_in(seals: Iterable[Sealed]) -> int:
    """Return the number of partitions that the service runs with, as the latest of *seals* tells; 0 if none does."""
    last = max(seals, key=age_of, default=None)
    return last.partitions if last else 0
