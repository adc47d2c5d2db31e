"""
Bodies of answers. Fields have their JSON names. Times are UNIX seconds, or RFC 3339 where a field says so.

FastAPI makes the OpenAPI document from these models.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any, Self

from pydantic import BaseModel, Field

from kafka_timers.client.request import Answer, Outcome
from kafka_timers.console.models import Model
from kafka_timers.core.callbacks import callback_document
from kafka_timers.core.outcomes import State
from kafka_timers.core.rejected import Rejected
from kafka_timers.core.text import fraction_of, json_of
from kafka_timers.core.wire import SECOND_LIMIT, Record, future_from, number_in
from kafka_timers.errors import WireError
from kafka_timers.operate.callback_topics import CallbackTopic
from kafka_timers.operate.find import Found
from kafka_timers.operate.waiting import Page, Told


class Problem(BaseModel):
    """A problem (RFC 9457)."""

    type: Annotated[str, Field(description="urn:kafka-timers:problem: and its kind, by which programs tell it")]
    title: str
    status: int
    detail: str


class HeaderOut(Model):
    """A header of a callback: its value as text, or in base64 if it is not UTF-8."""

    name: str
    value: str | None = None
    value_base64: str | None = None


class CallbackOut(Model):
    """A callback. Bytes that are not UTF-8 are in base64, under their name with `Base64` appended."""

    topic: str | None = None
    key: Annotated[str | None, Field(description="null: the callback has no key, if `keyBase64` is null too")] = None
    key_base64: str | None = None
    partition: Annotated[int | None, Field(description="null: the partition key or the key chooses it")] = None
    partition_key: str | None = None
    partition_key_base64: str | None = None
    token: str | None = None
    value: Annotated[
        str | None, Field(description="null: the callback is a tombstone, if `valueBase64` is null too")
    ] = None
    value_base64: str | None = None
    headers: list[HeaderOut] | None = None


class TimerOut(CallbackOut):
    """A pending timer. Without `values=true`, its value and its headers are left out."""

    place: Annotated[
        str, Field(description="its place in the order; given as `cursor`, it returns the timers behind it")
    ]
    request: Annotated[str, Field(description="partition:offset of its request, as its callback tells it")]
    second: int
    due_ms: Annotated[int, Field(description="the same in UNIX milliseconds, to which it fires")]
    at: Annotated[str, Field(description="the same in RFC 3339")]
    timer_id: str | None
    value_bytes: int

    @classmethod
    def of(cls, timer: dict[str, Any]) -> Self:
        """Return a worker's answer *timer* as a body."""
        return cls.model_validate(timer | {"at": at(timer["due_ms"])})


class Unknown(Model):
    """A partition that is unknown, and the reason."""

    partition: int
    why: str


class _Gathered(Model):
    """An answer of all workers, and why it may lack something."""

    unknown: list[Unknown]
    lake: Annotated[str, Field(description="why timers may be missing, if the lake is behind; else empty")]


class PageOut(_Gathered):
    """Pending timers, in the order in which they fire."""

    timers: list[TimerOut]
    cursor: Annotated[str | None, Field(description="give it to get the next page; null at the end")]
    cut: Annotated[bool, Field(description="whether there was no time to look at all of them")]


class CountOut(Model):
    """Number of pending timers in a second, a minute or an hour that begins at a UNIX second."""

    second: int
    count: int


class AheadOut(_Gathered):
    """Numbers of pending timers; empty buckets are left out."""

    unit: str
    counts: list[CountOut]
    cut: Annotated[bool, Field(description="whether there was no time to count all of them")]


class CallerOut(Model):
    """The caller and its role."""

    name: str
    role: Annotated[str, Field(description="read or operate")]


class AnswerOut(Model):
    """The service's answer to a request."""

    timer_id: str
    outcome: Annotated[str, Field(description="ACCEPTED, MOVED, CANCELLED, TOO_LATE, UNKNOWN or IGNORED")]
    state: Annotated[str, Field(description="of the timer: pending, parked, fired, refused or cancelled")]
    reason: Annotated[str, Field(description="why it was refused; else empty")] = ""
    replay: Annotated[
        bool,
        Field(description="whether an earlier request with this Idempotency-Key made it, and this one did nothing"),
    ] = False
    request: Annotated[str | None, Field(description="partition:offset of the request of the timer that is meant")]
    second: int | None
    due_ms: Annotated[int | None, Field(description="the same in UNIX milliseconds")]
    at: Annotated[str | None, Field(description="the same in RFC 3339")]


class RecordOut(Model):
    """A record of a timer id, and its outcome."""

    request: str
    appended: Annotated[
        str | None, Field(description="null if the request has left the log, and is kept until it fires")
    ]
    second: int | None
    due_ms: int | None
    cancel: bool
    topic: str
    key: str | None = None
    key_base64: str | None = None
    state: Annotated[
        str,
        Field(
            description="of a request as that of the timer, or moved; of a cancel cancelled, too late or unknown; "
            "ignored, of a record that changed nothing since its condition did not hold"
        ),
    ]
    reason: str


class HistoryOut(CallbackOut):
    """The timer that stands under an id, and all records of the id as far as the log holds them."""

    timer_id: str
    state: Annotated[str, Field(description="pending, parked, fired, refused or cancelled")]
    reason: Annotated[str, Field(description="why it was refused; else empty")] = ""
    request: str
    second: int | None
    due_ms: int | None
    at: str | None
    history: Annotated[
        list[RecordOut],
        Field(description="in the order of the log; also records that were ignored or came too late"),
    ]
    complete: Annotated[
        bool, Field(description="whether the log was read; if not, `history` is empty, and you may ask again")
    ] = True
    problem: Annotated[str, Field(description="why a parked timer is late or will be; else empty")] = ""


class RequestOut(CallbackOut):
    """A request, as it lies on `timer-request`, or as a worker has repeated it there since it waits long."""

    request: str
    appended: Annotated[str | None, Field(description="null if the request has left the log")]
    second: int | None
    due_ms: int | None
    at: str | None
    cancel: bool
    waits: Annotated[
        bool | None, Field(description="whether its timer waits; null if no worker answers, or the lake may have it")
    ]
    timer_id: str | None = None
    problem: Annotated[
        str, Field(description="why it is no request; then it has a record's key and value, and no callback")
    ] = ""
    record_key: str | None = None
    record_key_base64: str | None = None
    record_value: str | None = None
    record_value_base64: str | None = None


class TopicOut(Model):
    """A topic that timers ask for."""

    name: str
    is_allowed: Annotated[bool, Field(description="whether workers may write to it, by the console's settings")]
    partitions: Annotated[int | None, Field(description="null if it does not exist, or the console may not look")]
    coming: Annotated[int, Field(description="timers for it, among those that fire next")]
    next_second: Annotated[int | None, Field(description="when the first of them fires")]
    refused: Annotated[int, Field(description="requests for it, among the last 1,000 refused within an hour")]


class TopicsOut(_Gathered):
    """Topics of the timers that fire next, and of requests refused within an hour."""

    topics: list[TopicOut]
    looked_at: Annotated[int, Field(description="timers from which they were taken")]
    more: Annotated[bool, Field(description="whether more timers wait behind those")]


class RejectedOut(CallbackOut):
    """A refused request, or a refused schedule."""

    place: Annotated[str, Field(description="partition:offset on timer-rejected")]
    at: str
    reason: str
    words: Annotated[str, Field(description="the broker's message, or what is wrong with the schedule; else empty")]
    door: str
    source: str
    request: str
    made: Annotated[
        str | None, Field(description="request that a door made of it: partition:offset on timer-request")
    ] = None
    cut: int
    again: Annotated[int | None, Field(description="UNIX second for which the service itself asked for it again")] = (
        None
    )
    second: int | None
    due_ms: int | None
    cancel: bool = False
    timer_id: str | None = None
    schedule_id: Annotated[str | None, Field(description="null, as is `scheduleIdBase64`: it is no schedule")] = None
    schedule_id_base64: str | None = None
    times: Annotated[str | None, Field(description="of a schedule, in words; null: it is none")] = None
    record_key: str | None = None
    record_key_base64: str | None = None
    record_value: str | None = None
    record_value_base64: str | None = None

    @classmethod
    def of(cls, rejected: Rejected) -> Self:
        """Return *rejected* as a body."""
        document = rejected.document()
        return cls.model_validate(document | {"at": at(document.pop("at_ms"))})


class RejectedPage(Model):
    """Refused requests, the latest one last."""

    rejected: list[RejectedOut]
    left_out: Annotated[int, Field(description="earlier ones that match")]


def answer_out(timer_id: str, answer: Answer, now_s: float, due_ms: int | None = None) -> AnswerOut:
    """
    Return *answer* to a request about *timer_id* as a body.

    Args:
        now_s: UNIX time; a timer that was due before counts as fired.
        due_ms: UNIX millisecond of the new timer, if the request asked for one.
    """
    is_new = due_ms is not None and answer.outcome not in (Outcome.CANCELLED, Outcome.IGNORED)
    meant_ms = due_ms if is_new else answer.due_ms
    state = "pending" if is_new or (meant_ms or 0) > now_s * 1000 else "fired"
    if answer.outcome is Outcome.CANCELLED:
        state = "cancelled"
    return AnswerOut(
        timer_id=timer_id,
        outcome=answer.outcome,
        state=state,
        request=answer.asked if is_new else answer.request,
        **due_of(meant_ms),
    )


def page_out(page: Page) -> PageOut:
    """Return *page* of pending timers as a body."""
    timers = [TimerOut.of(each) for each in page.timers]
    unknown = unknown_out(page.unknown)
    return PageOut(timers=timers, cursor=page.after or None, cut=page.is_cut, unknown=unknown, lake=page.lake)


def unknown_out(unknown: Mapping[int, str]) -> list[Unknown]:
    """Return the unknown partitions with their reasons as bodies."""
    return [Unknown(partition=partition, why=why) for partition, why in unknown.items()]


def history_out(timer_id: str, found: Found) -> HistoryOut | None:
    """Return the timer that stands, of the records *found* for *timer_id*, as a body; None if none does."""
    last = found.stands
    if last is None:
        return None
    shown = {
        "timer_id": timer_id,
        "state": last.state,
        "reason": last.reason,
        "request": found.place_of(last),
        **due_of(last.due_ms),
        **callback_document(found.request_of(last)),
        "problem": found.problem,
        "history": [
            RecordOut(
                request=found.place_of(each),
                appended=None if each.appended_ms is None else at(each.appended_ms),
                second=each.second,
                due_ms=each.due_ms,
                cancel=each.cancel,
                topic=each.topic,
                state=each.state,
                reason=each.reason,
                **json_of("key", each.key),
            )
            for each in found.outcomes
        ],
    }
    return HistoryOut.model_validate(shown)


def request_out(place: str, record: Record, waits: bool | None, *, has_left: bool) -> RequestOut:
    """Return the request at *place* as a body; *has_left* as in `Placed`."""
    second = number_in(record.key)
    shown: dict[str, Any] = {"request": place, "appended": None if has_left else at(record.timestamp), "waits": waits}
    try:
        future = future_from(record.value or b"")
    except WireError as error:
        due_ms = None if second is None else second * 1000
        raw = json_of("record_key", record.key) | json_of("record_value", record.value)
        return RequestOut.model_validate(shown | due_of(due_ms) | raw | {"cancel": False, "problem": str(error)})
    due_ms = None if second is None or future.cancel else second * 1000 + future.millis
    told = {"cancel": future.cancel, "timer_id": future.timerId or None}
    return RequestOut.model_validate(shown | due_of(due_ms) | told | callback_document(future))


def topics_out(found: Iterable[CallbackTopic], page: Page) -> TopicsOut:
    """Return the callback topics *found*, in the timers of *page*, as a body."""
    topics = [TopicOut.model_validate(asdict(each)) for each in found]
    unknown, more = unknown_out(page.unknown), bool(page.after)
    return TopicsOut(topics=topics, looked_at=len(page.timers), more=more, unknown=unknown, lake=page.lake)


def waiting_out(timer_id: str, answer: Told) -> HistoryOut:
    """Return a worker's *answer* about the pending timer *timer_id* as a body."""
    same = TimerOut.of(answer).model_dump(exclude={"place", "value_bytes", "timer_id"})
    return HistoryOut(timer_id=timer_id, state=State.PENDING, history=[], complete=False, **same)


def at(moment_ms: int) -> str:
    """Return *moment_ms*, UNIX milliseconds, in RFC 3339, with a fraction only if there is one."""
    second = moment_ms // 1000
    if not 0 <= second < SECOND_LIMIT:
        # Outside the calendar's range.
        return str(second)
    return datetime.fromtimestamp(second, UTC).strftime(f"%Y-%m-%dT%H:%M:%S{fraction_of(moment_ms)}Z")


def due_of(due_ms: int | None) -> dict[str, Any]:
    """Return the fields for *due_ms*, UNIX milliseconds."""
    if due_ms is None:
        return {"second": None, "due_ms": None, "at": None}
    return {"second": due_ms // 1000, "due_ms": due_ms, "at": at(due_ms)}
