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
from kafka_timers.core.callbacks import Shown
from kafka_timers.core.outcomes import State
from kafka_timers.core.rejected import Rejected
from kafka_timers.core.text import bytes_in, fraction_of, headers_of, json_of
from kafka_timers.core.wire import SECOND_LIMIT, Future, Record, future_from, number_in
from kafka_timers.operate.callback_topics import CallbackTopic
from kafka_timers.operate.find import Found
from kafka_timers.operate.waiting import Page, Told


class Problem(BaseModel):
    """A problem (RFC 9457)."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str


class HeaderOut(Model):
    """A header of a callback: its value as text, or in base64 if it is not UTF-8."""

    name: str
    value: str | None = None
    value_base64: str | None = None


class TimerOut(Model):
    """A pending timer."""

    place: Annotated[
        str, Field(description="its place in the order; given as `cursor`, it returns the timers behind it")
    ]
    request: Annotated[str, Field(description="partition:offset of its request, as its callback tells it")]
    second: int
    due_ms: Annotated[int, Field(description="the same in UNIX milliseconds, to which it fires")]
    at: Annotated[str, Field(description="the same in RFC 3339")]
    topic: str
    key: str | None
    timer_id: str | None
    token: str | None
    value_bytes: int
    value: str | None = None
    value_base64: str | None = None
    headers: list[HeaderOut] | None = None

    @classmethod
    def of(cls, timer: dict[str, Any]) -> Self:
        """Return a worker's answer *timer* as a body."""
        texts = {name: _text(bytes_in(timer, name)) for name in ("topic", "key", "timer_id", "token")}
        values = {name: timer.get(name) for name in ("value", "value_base64", "headers")}
        same = {name: timer[name] for name in ("place", "request", "second", "due_ms", "value_bytes")}
        return cls.model_validate(same | texts | values | {"at": at(timer["due_ms"])})


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
    state: Annotated[str, Field(description="of the timer: pending, cancelled or fired")]
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
    key: str | None
    state: str
    reason: str


class HistoryOut(Model):
    """A timer: its present state, and the history of its id as far as the log holds it."""

    timer_id: str
    state: Annotated[str, Field(description="pending, parked, fired, refused, cancelled or moved")]
    request: str
    second: int | None
    due_ms: int | None
    at: str | None
    topic: str
    key: str | None
    token: str | None
    value: str | None = None
    value_base64: str | None = None
    headers: list[HeaderOut]
    history: list[RecordOut]
    complete: Annotated[
        bool, Field(description="whether the log was read; if not, `history` is empty, and you may ask again")
    ] = True
    problem: Annotated[str, Field(description="why a parked timer is late or will be; else empty")] = ""


class RequestOut(Model):
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
    topic: str
    key: str | None
    timer_id: str | None
    token: str | None
    value: str | None = None
    value_base64: str | None = None
    headers: list[HeaderOut]


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


class RejectedOut(Model):
    """A refused request."""

    place: Annotated[str, Field(description="partition:offset on timer-rejected")]
    at: str
    reason: str
    words: str
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
    topic: str | None = None
    key: str | None = None
    timer_id: str | None = None
    token: str | None = None
    value: str | None = None
    value_base64: str | None = None
    record_key: str | None = None
    record_key_base64: str | None = None
    record_value: str | None = None
    record_value_base64: str | None = None
    headers: list[HeaderOut] | None = None

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
        **_due(meant_ms),
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
    """Return the records *found* for *timer_id* as a body; None if the id has no request."""
    last = next((outcome for outcome in reversed(found.outcomes) if not outcome.cancel), None)
    if last is None:
        return None
    future = found.request_of(last)
    shown = {
        "timer_id": timer_id,
        "state": last.state,
        "request": f"{found.partition}:{last.offset}",
        **_due(last.due_ms),
        **_callback(future),
        "problem": found.problem,
        "history": [
            RecordOut(
                request=f"{found.partition}:{each.offset}",
                appended=None if each.appended_ms is None else at(each.appended_ms),
                key=each.key or None,
                second=each.second,
                due_ms=each.due_ms,
                cancel=each.cancel,
                topic=each.topic,
                state=each.state,
                reason=each.reason,
            )
            for each in found.outcomes
        ],
    }
    return HistoryOut.model_validate(shown)


def request_out(place: str, record: Record, waits: bool | None, *, has_left: bool) -> RequestOut:
    """
    Return the request at *place* as a body; *has_left* as in `Placed`.

    Raises:
        WireError: the record is not a valid request.
    """
    future, second = future_from(record.value or b""), number_in(record.key)
    due_ms = None if second is None or future.cancel else second * 1000 + future.millis
    shown = {
        "request": place,
        "appended": None if has_left else at(record.timestamp),
        **_due(due_ms),
        "cancel": future.cancel,
        "waits": waits,
        "timer_id": future.timerId or None,
        **_callback(future),
    }
    return RequestOut.model_validate(shown)


def topics_out(found: Iterable[CallbackTopic], page: Page) -> TopicsOut:
    """Return the callback topics *found*, in the timers of *page*, as a body."""
    topics = [TopicOut.model_validate(asdict(each)) for each in found]
    unknown, more = unknown_out(page.unknown), bool(page.after)
    return TopicsOut(topics=topics, looked_at=len(page.timers), more=more, unknown=unknown, lake=page.lake)


def waiting_out(timer_id: str, answer: Told) -> HistoryOut:
    """Return a worker's *answer* about the pending timer *timer_id* as a body."""
    timer = TimerOut.of(answer)
    same = timer.model_dump(
        include={"request", "second", "due_ms", "at", "topic", "key", "token", "value", "value_base64"}
    )
    headers = timer.headers or []
    return HistoryOut(timer_id=timer_id, state=State.PENDING, headers=headers, history=[], complete=False, **same)


def at(moment_ms: int) -> str:
    """Return *moment_ms*, UNIX milliseconds, in RFC 3339, with a fraction only if there is one."""
    second = moment_ms // 1000
    if not 0 <= second < SECOND_LIMIT:
        # Outside the calendar's range.
        return str(second)
    return datetime.fromtimestamp(second, UTC).strftime(f"%Y-%m-%dT%H:%M:%S{fraction_of(moment_ms)}Z")


def _due(due_ms: int | None) -> dict[str, Any]:
    if due_ms is None:
        return {"second": None, "due_ms": None, "at": None}
    return {"second": due_ms // 1000, "due_ms": due_ms, "at": at(due_ms)}


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="replace")


def _callback(future: Future) -> dict[str, Any]:
    topic, key, value = Shown.of(future)
    return {
        "topic": topic,
        **json_of("key", key),
        "token": future.token or None,
        **json_of("value", value),
        "headers": headers_of(future.headers),
    }
