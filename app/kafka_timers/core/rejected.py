"""
The description of a refused request on `timer-rejected`, and a new request in its place.

A request that a door has made lies there as the original record, so that its writer recognises it. The headers name the
request, which must be read from `timer-request` to send it again. So must one of which bytes were left out.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from kafka_timers.core.callbacks import Shown, callback_document
from kafka_timers.core.refused import Reason
from kafka_timers.core.routing import partition_of
from kafka_timers.core.schedules import Schedule, schedule_from, times_text
from kafka_timers.core.text import json_of, pairs_of
from kafka_timers.core.wire import (
    REJECT_PREFIX,
    SECOND_LIMIT,
    SOURCE_TAG,
    Condition,
    Future,
    future_from,
    number_in,
    reject_headers,
    rejection_in,
)
from kafka_timers.errors import RequestError, ScheduleError, WireError

# The reason of a record on `timer-schedule`; all others are of requests.
SCHEDULE_INVALID = "schedule-invalid"
_KEYS = (Reason.KEY_MISSING, Reason.KEY_NOT_A_SECOND, Reason.KEY_IN_MILLISECONDS)
_CONTENTS = (
    Reason.VALUE_MISSING,
    Reason.VALUE_NOT_A_FUTURE,
    Reason.MILLIS_OUT_OF_RANGE,
    Reason.ID_MISSING,
    Reason.CONDITION_INVALID,
    Reason.CALLBACK_INVALID,
    Reason.COPY_INVALID,
    Reason.TOPIC_MISSING,
)


class Refused(NamedTuple):
    """A refused record: the headers about its refusal, its key and value, and its own headers."""

    about: list[tuple[str, bytes | None]]
    key: bytes | None
    value: bytes | None
    own: list[tuple[str, bytes | None]]


def as_written(reason: str, request: str, key: bytes | None, value: bytes | None) -> Refused | None:
    """
    Return the record to reject for a refused request that a door has made; None if no door has made it.

    Value and headers are those of the callback. Every door but countdown takes these from its record unchanged.

    Args:
        request: partition:offset on `timer-request`.
    """
    if not value or SOURCE_TAG not in value:
        return None
    try:
        future = future_from(value)
    except WireError:
        return None
    if not future.HasField("source"):
        return None
    source, callback = future.source, Shown.of(future)
    [about] = reject_headers(reason, source.topic, source.partition, [source.offset])
    more = {"door": source.door, "request": request, "callback-topic": callback.topic, "id": future.timerId}
    if (second := number_in(key)) is not None:
        more["due-ms"] = str(second * 1000 + future.millis)
    about += [(REJECT_PREFIX + name, text.encode()) for name, text in more.items() if text]
    own_key = source.key if source.HasField("key") else None
    return Refused(about, own_key, callback.value, pairs_of(future.headers))


class _Record(Protocol):
    """The parts that are used of a record from `timer-rejected`."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


class Again(NamedTuple):
    """A new request in place of a refused one, with a timer id and the condition IF_ABSENT."""

    due_ms: int
    future: Future


@dataclass(frozen=True, slots=True)
class _Made:
    """
    A request that a door made of a record, and whose callback failed.

    Attributes:
        request: partition:offset on `timer-request`.
        due_ms: UNIX millisecond; None if it has none.
    """

    request: str
    due_ms: int | None
    topic: str
    timer_id: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """
    A refused request, or a refused schedule.

    Attributes:
        place: partition:offset on `timer-rejected`.
        at_ms: UNIX milliseconds at which it was put there.
        reason: why it was refused; see docs/wire.md, and docs/migrate.md for records that came through a door.
        words: the broker's own message, or what is wrong with a schedule; empty if there is none.
        door: name of the door that it came through; empty for a request on `timer-request`.
        topic: topic that it was read from.
        request: partition:offset on that topic.
        cut: number of bytes of key and value that were left out.
        future: the Future; None if the value is no Future.
        made: the request that the door made of it, if that request failed; else None.
        again_second: UNIX second for which the service itself has asked for it again; None if it has not.
        schedule: the schedule; None if it is a request, or if the value is no Schedule.
        gone: why the request cannot be read from `timer-request`; empty if nobody has tried in vain.
    """

    place: str
    at_ms: int
    reason: str
    words: str
    door: str
    topic: str
    request: str
    cut: int
    key: bytes | None
    value: bytes | None
    future: Future | None
    made: _Made | None = None
    again_second: int | None = None
    schedule: Schedule | None = None
    gone: str = ""

    @classmethod
    def of(cls, record: _Record) -> "Rejected":
        """Return the refused request that *record* describes."""
        about = rejection_in(record.headers)
        texts = {name: content.decode(errors="replace") for name, content in about.items()}
        future = made = schedule = None
        if texts.get("reason") == SCHEDULE_INVALID:
            with suppress(ScheduleError):
                schedule = schedule_from(record.value or b"")
        elif "door" not in about and record.value:
            with suppress(WireError):
                future = future_from(record.value)
        if request := texts.get("request"):
            made = _Made(request, number_in(about.get("due-ms")), texts.get("callback-topic", ""), texts.get("id", ""))
        return cls(
            f"{record.partition}:{record.offset}",
            record.timestamp,
            texts.get("reason", ""),
            texts.get("words") or texts.get("why", ""),
            texts.get("door", ""),
            texts.get("topic", ""),
            f"{texts.get('partition', '?')}:{texts.get('offset', '?')}",
            number_in(about.get("cut")) or 0,
            record.key,
            record.value,
            future,
            made,
            number_in(about.get("again")),
            schedule,
        )

    @property
    def second(self) -> int | None:
        """The UNIX second of its key; None if the key names none, a door has refused it, or it is a schedule."""
        if self.reason == SCHEDULE_INVALID:
            return None
        if self.door:
            due_ms = self.due_ms
            return None if due_ms is None else due_ms // 1000
        second = number_in(self.key)
        return second if second and second < SECOND_LIMIT else None

    @property
    def due_ms(self) -> int | None:
        """The UNIX millisecond of its timer; None if its key names no second, or its value is no Future."""
        if self.door:
            return self.made.due_ms if self.made else None
        second, future = self.second, self.future
        return None if second is None or future is None else second * 1000 + future.millis

    @property
    def callback_topic(self) -> str:
        """The topic of its callback; empty if it is not known."""
        if self.made:
            return self.made.topic
        future = self.schedule.callback if self.schedule else self.future
        return Shown.of(future).topic if future else ""

    @property
    def times(self) -> str:
        """The times of the schedule, in words; empty if it has none, or is a request."""
        return times_text(self.schedule) if self.schedule else ""

    @property
    def timer_id(self) -> str:
        """The timer id; empty if it has none, or if it is not known."""
        if self.made:
            return self.made.timer_id
        return self.future.timerId if self.future else ""

    @property
    def lies_at(self) -> str:
        """Where the request has to be read, partition:offset on `timer-request`; empty if all that is known is here."""
        if self.made:
            return self.made.request
        return self.request if self.cut and not self.door else ""

    def with_request(self, value: bytes) -> "Rejected":
        """
        Return it with the Future in *value*, which lies at `lies_at`, if that is its own.

        A timer-request that was made anew may have any other request at that place.
        """
        try:
            future = future_from(value)
        except WireError:
            return self
        if not self.made:
            begin = self.value or b""
            is_whole = len(value) == len(begin) + self.cut and value.startswith(begin)
            return replace(self, future=future, value=value, cut=0) if is_whole else self
        source = future.source
        made_of = source.door, source.topic, f"{source.partition}:{source.offset}"
        return replace(self, future=future) if made_of == (self.door, self.topic, self.request) else self

    def document(self) -> dict[str, Any]:
        """
        Return it as JSON: the fields of its Future, or of its schedule. Without one or for a door, key and value of the
        record.
        """
        document: dict[str, Any] = {
            "place": self.place,
            "at_ms": self.at_ms,
            "reason": self.reason,
            "words": self.words,
            "door": self.door,
            "source": self.topic,
            "request": self.request,
            "cut": self.cut,
            "again": self.again_second,
            "second": self.second,
            "due_ms": self.due_ms,
        }
        if self.made:
            document |= {"made": self.made.request, "topic": self.callback_topic, "timer_id": self.timer_id or None}
        if self.schedule:
            told = json_of("schedule_id", self.key) | {"times": self.times}
            return document | told | callback_document(self.schedule.callback)
        if self.door or self.future is None or self.second is None:
            document |= json_of("record_key", self.key)
        if self.door or self.future is None:
            return document | json_of("record_value", self.value)
        future = self.future
        return document | {
            "cancel": future.cancel,
            "timer_id": future.timerId or None,
            **callback_document(future),
        }

    def again(self, requests: str, partitions: int, now_ms: int, due_ms: int | None = None) -> Again:
        """
        Return a new request in its place.

        The new request stands only once. A request without a timer id gets one from its place. One that has an id
        stands unless the service knows a later one with it.

        Args:
            partitions: number of its partitions that are served.
            now_ms: UNIX millisecond at which an overdue request is to fire.
            due_ms: UNIX millisecond to use instead of its own.

        Raises:
            RequestError: it cannot be sent again; the text says why.
        """
        if why := self._why_not(requests, due_ms):
            raise RequestError(f"{self.place} cannot be sent again: {why}")
        future = Future()
        future.CopyFrom(self.future or Future())
        # Only the lake makes copies; a refused copy is asked for again as an ordinary request.
        future.ClearField("copy")
        future.ClearField("forwarded")
        future.ClearField("ifRequest")
        future.condition = Condition.IF_ABSENT
        request = self.made.request if self.made else self.request
        if not future.timerId:
            future.timerId = f"rejected-{self.place}"
        elif request.partition(":")[0] == str(partition_of(future.timerId, partitions)):
            # If it was refused in its second, the service knows the request itself by its id for an hour.
            future.ifRequest = request
        return Again(due_ms or max(self.due_ms or 0, now_ms), future)

    def _why_not(self, requests: str, due_ms: int | None) -> str:
        """Return why it cannot be sent again, as the end of a sentence; empty if it can be."""
        if self.reason == SCHEDULE_INVALID:
            return "it is a schedule: put a correct one, with kafka-timers schedule put"
        if self.again_second is not None:
            return f"the service itself has asked for it again, for second {self.again_second}"
        if self.door and not self.made:
            return f"it came through the door {self.door}: publish it on {self.topic} again"
        gone = self.gone or f"its request is gone from {requests}"
        if self.made and self.future is None:
            return f"{gone}. Publish it on {self.topic} again, for the door {self.door}"
        if not self.made and self.topic != requests:
            return f"it was read from {self.topic or 'an unknown topic'}, and requests lie on {requests}"
        if self.cut and not self.made:
            return f"{self.cut} bytes of it are missing here, and {gone}"
        if self.reason in _CONTENTS or self.future is None:
            return f"the request itself is wrong ({self.reason}): correct it, and publish it anew"
        if self.future.cancel:
            return "it is a cancel: use kafka-timers cancel"
        if self.future.condition == Condition.IF_PENDING:
            return "its condition is that it replaces a pending timer: use kafka-timers move"
        if due_ms is None and (self.second is None or self.reason in _KEYS):
            return f"its key names no second ({self.reason}): give one, with --in or --at"
        return ""
