"""
Bodies of requests and answers. Names are those of JSON; times are UNIX seconds, or RFC 3339 where that is said.

FastAPI checks bodies by these models, and makes the OpenAPI document of them.
"""

import base64
import binascii
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from kafka_timers.client.request import Answer, Callback, Outcome, future_of, second_after, second_at, when_of
from kafka_timers.core.rejected import Rejected
from kafka_timers.core.text import bytes_in, headers_of, json_of
from kafka_timers.core.wire import SECOND_LIMIT, Future
from kafka_timers.errors import RequestError
from kafka_timers.operate.find import Found
from kafka_timers.operate.pending import Page

__all__ = [
    "AheadOut",
    "AnswerOut",
    "CallerOut",
    "Change",
    "HeaderIn",
    "HistoryOut",
    "PageOut",
    "Problem",
    "RejectedOut",
    "RejectedPage",
    "When",
    "Wish",
    "answer_out",
    "history_out",
    "page_out",
    "unknown_out",
]

_TOPIC_LENGTH, _ID_LENGTH = 249, 4_096


class _Model(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid")


class Problem(BaseModel):
    """What went wrong (RFC 9457)."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str


# --- in --------------------------------------------------------------------------------------------------------------


class HeaderIn(_Model):
    """A header of the callback; with neither value nor valueBase64 its value is null."""

    name: Annotated[str, Field(min_length=1)]
    value: str | None = None
    value_base64: str | None = None


class When(_Model):
    """When a timer fires: `at` or `after`."""

    at: Annotated[
        str | float | None, Field(description="RFC 3339 with a zone, as 2030-01-31T12:00:00Z, or UNIX seconds")
    ] = None
    after: Annotated[float | None, Field(ge=0, lt=SECOND_LIMIT, description="seconds from now")] = None

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if self.at is not None and self.after is not None:
            raise ValueError("give `at` or `after`, not both")
        return self

    def second(self, now_s: float) -> int | None:
        """
        Return the UNIX second; None if neither is given.

        Raises:
            WhenError: it is no second that a timer can have.
            ValueError: `at` is neither RFC 3339 nor a number.
        """
        if self.after is not None:
            return second_after(self.after, now_s)
        if self.at is None:
            return None
        return second_at(when_of(self.at) if isinstance(self.at, str) else self.at)


class Change(When):
    """What is to be different of a timer; what is left out stays as it is."""

    topic: Annotated[str | None, Field(max_length=_TOPIC_LENGTH)] = None
    key: str | None = None
    value: Annotated[str | None, Field(description="value of the callback, as text")] = None
    value_base64: Annotated[str | None, Field(description="the same, any bytes")] = None
    headers: list[HeaderIn] | None = None
    token: str | None = None

    @model_validator(mode="after")
    def _one_value(self) -> Self:
        if self.value is not None and self.value_base64 is not None:
            raise ValueError("give `value` or `valueBase64`, not both")
        return self

    def applied_to(self, future: Future, reserved: frozenset[str]) -> None:
        """
        Change *future*.

        Raises:
            RequestError: something is not what a request can carry.
        """
        asked = future_of(
            Callback(
                topic=future.callBackTopic if self.topic is None else self.topic,
                key=self.key or None,
                value=_bytes("value", self.value, self.value_base64) or b"",
                token=self.token or None,
                headers=[(each.name, _bytes("header", each.value, each.value_base64)) for each in self.headers or ()],
            ),
            reserved,
        )
        given = self.model_fields_set
        future.callBackTopic = asked.callBackTopic
        if "key" in given:
            future.callBackKey = asked.callBackKey
        if given & {"value", "value_base64"}:
            future.callBack = asked.callBack
        if "token" in given:
            future.token = asked.token
        if "headers" in given:
            del future.headers[:]
            future.headers.extend(asked.headers)


class Wish(Change):
    """A timer that is asked for."""

    topic: Annotated[str, Field(min_length=1, max_length=_TOPIC_LENGTH, description="topic that gets the callback")]
    timer_id: Annotated[
        str | None,
        Field(min_length=1, max_length=_ID_LENGTH, description="your own name for it; without, one is made"),
    ] = None

    @model_validator(mode="after")
    def _has_a_time(self) -> Self:
        if self.at is None and self.after is None:
            raise ValueError("give `at` or `after`")
        return self


def _bytes(what: str, text: str | None, encoded: str | None) -> bytes | None:
    if encoded is None:
        return None if text is None else text.encode()
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RequestError(f"{what} is not in base64: {error}") from error


# --- out -------------------------------------------------------------------------------------------------------------


class HeaderOut(_Model):
    """A header of a callback: its value as text, or in base64 if it is not UTF-8."""

    name: str
    value: str | None = None
    value_base64: str | None = None


class TimerOut(_Model):
    """A timer that waits."""

    place: Annotated[str, Field(description="where it stands in the order; `cursor` goes on behind one")]
    request: Annotated[str, Field(description="partition:offset of its request, as its callback tells it")]
    second: int
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
    def of(cls, told: dict[str, Any]) -> Self:
        """Return what a worker has *told*."""
        texts = {name: _text(bytes_in(told, name)) for name in ("topic", "key", "timer_id", "token")}
        values = {name: told.get(name) for name in ("value", "value_base64", "headers")}
        same = {name: told[name] for name in ("place", "request", "second", "value_bytes")}
        return cls.model_validate(same | texts | values | {"at": at(told["second"])})


class Unknown(_Model):
    """A partition of which nothing is known, and why."""

    partition: int
    why: str


class PageOut(_Model):
    """Timers that wait, in the order in which they fire."""

    timers: list[TimerOut]
    cursor: Annotated[str | None, Field(description="give it to go on; null at the end")]
    cut: Annotated[bool, Field(description="whether there was no time to look at all of them")]
    unknown: list[Unknown]


class CountOut(_Model):
    """How many timers wait in a second, a minute or an hour that begins in a UNIX second."""

    second: int
    count: int


class AheadOut(_Model):
    """How many timers wait; buckets without any are left out."""

    unit: str
    counts: list[CountOut]
    cut: Annotated[bool, Field(description="whether there was no time to count all of them")]
    unknown: list[Unknown]


class CallerOut(_Model):
    """Who asks."""

    name: str
    role: Annotated[str, Field(description="read or operate")]


class AnswerOut(_Model):
    """What the service says to a request."""

    timer_id: str
    outcome: Annotated[str, Field(description="ACCEPTED, MOVED, CANCELLED, TOO_LATE, UNKNOWN or IGNORED")]
    state: Annotated[str, Field(description="of the timer: pending, cancelled or fired")]
    request: Annotated[str | None, Field(description="partition:offset of the request of the timer that is meant")]
    second: int | None
    at: Annotated[str | None, Field(description="the same in RFC 3339")]


class RecordOut(_Model):
    """A record of a timer id, and what became of it."""

    request: str
    appended: str
    second: int | None
    cancel: bool
    topic: str
    key: str | None
    state: str
    reason: str


class HistoryOut(_Model):
    """A timer: what it is now, and all that its id has had as far as it is known."""

    timer_id: str
    state: Annotated[str, Field(description="pending, parked, fired, refused, cancelled or moved")]
    request: str
    second: int | None
    at: str | None
    topic: str
    key: str | None
    token: str | None
    value: str | None = None
    value_base64: str | None = None
    headers: list[HeaderOut]
    history: list[RecordOut]


class RejectedOut(_Model):
    """A refused request."""

    place: Annotated[str, Field(description="partition:offset on timer-rejected")]
    at: str
    reason: str
    words: str
    door: str
    source: str
    request: str
    cut: int
    second: int | None
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
        """Return what *rejected* tells."""
        told = rejected.document()
        return cls.model_validate(told | {"at": at(told.pop("at_ms") // 1000)})


class RejectedPage(_Model):
    """Refused requests, the last one last."""

    rejected: list[RejectedOut]
    left_out: Annotated[int, Field(description="earlier ones that match")]


def answer_out(timer_id: str, answer: Answer, now_s: float, second: int | None = None) -> AnswerOut:
    """
    Return *answer* to a request about *timer_id*.

    Args:
        timer_id: that it is about.
        answer: to the request.
        now_s: UNIX time; what was due before is taken for fired.
        second: UNIX second of the new timer that the request has asked for, if it has.
    """
    is_new = second is not None and answer.outcome not in (Outcome.CANCELLED, Outcome.IGNORED)
    meant = second if is_new else answer.second
    state = "pending" if is_new or (meant or 0) > now_s else "fired"
    if answer.outcome is Outcome.CANCELLED:
        state = "cancelled"
    return AnswerOut(
        timer_id=timer_id,
        outcome=answer.outcome,
        state=state,
        request=answer.asked if is_new else answer.request,
        second=meant,
        at=None if meant is None else at(meant),
    )


def page_out(page: Page) -> PageOut:
    """Return *page* of timers that wait."""
    timers = [TimerOut.of(each) for each in page.timers]
    return PageOut(timers=timers, cursor=page.after or None, cut=page.is_cut, unknown=unknown_out(page.unknown))


def unknown_out(unknown: Mapping[int, str]) -> list[Unknown]:
    """Return why nothing is known of partitions, by their numbers."""
    return [Unknown(partition=partition, why=why) for partition, why in unknown.items()]


def history_out(timer_id: str, found: Found) -> HistoryOut | None:
    """Return what was *found* of *timer_id*; None if it has no request."""
    last = next((outcome for outcome in reversed(found.outcomes) if not outcome.cancel), None)
    if last is None:
        return None
    future = found.request_of(last)
    shown = {
        "timer_id": timer_id,
        "state": last.state,
        "request": f"{found.partition}:{last.offset}",
        "second": last.second,
        "at": None if last.second is None else at(last.second),
        "topic": future.callBackTopic,
        "key": future.callBackKey or None,
        "token": future.token or None,
        **json_of("value", future.callBack),
        "headers": headers_of(future.headers),
        "history": [
            RecordOut(
                request=f"{found.partition}:{each.offset}",
                appended=at(each.appended_ms // 1000),
                second=each.second,
                cancel=each.cancel,
                topic=each.topic,
                key=each.key or None,
                state=each.state,
                reason=each.reason,
            )
            for each in found.outcomes
        ],
    }
    return HistoryOut.model_validate(shown)


def at(second: int) -> str:
    """Return the UNIX *second* in RFC 3339; as it is where no calendar has it."""
    if not 0 <= second < SECOND_LIMIT:
        return str(second)
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="replace")
