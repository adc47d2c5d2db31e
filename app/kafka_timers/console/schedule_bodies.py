"""
Bodies of requests and answers about schedules. Fields have their JSON names.

FastAPI checks bodies by these models and makes the OpenAPI document from them. The client checks what they mean.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, Self, cast

from pydantic import Field, model_validator
from pydantic.alias_generators import to_camel

from kafka_timers.client.recurring import Recurring, Run
from kafka_timers.client.request import Timer
from kafka_timers.client.schedule_options import CATCH_UPS, ChangeOptions
from kafka_timers.client.times import GAPS, OVERLAPS, At, Cron, Every, Times
from kafka_timers.console.bodies import at
from kafka_timers.console.models import CallbackIn, Model
from kafka_timers.core.moments import moment_at, when_of
from kafka_timers.core.planning import digest_of
from kafka_timers.core.schedules import zone_in
from kafka_timers.core.text import headers_of, json_of
from kafka_timers.errors import ScheduleError
from kafka_timers.operate.last_run import LastRun

_INSTANTS_MAX = 10_000
_NEXT = 10
_ONE_KIND = "give one of `cron`, `everyS` and `at`"
# The fields of each kind of times; the first one makes it this kind.
_KINDS = {"cron": ("cron", "zone", "gap", "overlap"), "every_s": ("every_s", "anchor"), "at": ("at",)}

_Moment = Annotated[
    str | float | None,
    Field(description="RFC 3339 with a zone, or UNIX seconds; null is none"),
]
_Seconds = Annotated[float | None, Field(ge=0, description="in seconds")]


class ScheduleChange(CallbackIn):
    """Changes of a schedule. A field that is left out stays as it is."""

    cron: Annotated[
        str | None, Field(description="minute, hour, day of month, month, day of week; or six, the second first")
    ] = None
    zone: Annotated[str | None, Field(description="IANA time zone in which `cron` is read; UTC, if left out")] = None
    gap: Annotated[
        Literal["default", "at-jump", "skip"] | None, Field(description="a local time that the clocks jump over")
    ] = None
    overlap: Annotated[
        Literal["default", "first", "both"] | None, Field(description="a local time that comes twice")
    ] = None
    every_s: Annotated[float | None, Field(ge=1, description="seconds between two runs")] = None
    anchor: _Moment = None
    at: Annotated[list[str | float] | None, Field(max_length=_INSTANTS_MAX, description="moments of all runs")] = None
    start: _Moment = None
    end: _Moment = None
    runs: Annotated[int | None, Field(ge=1, description="most runs in all; null is no bound")] = None
    jitter_s: _Seconds = None
    catch_up: Literal["last", "all", "none"] | None = None
    catch_up_window_s: _Seconds = None
    except_dates: Annotated[list[str] | None, Field(description="days without runs, as 2026-12-25")] = None
    note: str | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        kinds = [kind for kind in _KINDS if getattr(self, kind) is not None]
        if len(kinds) > 1:
            raise ValueError(_ONE_KIND)
        for kind, names in _KINDS.items():
            for name in names[1:]:
                if kind not in kinds and getattr(self, name) is not None:
                    raise ValueError(f"`{name}` has no effect without `{to_camel(kind)}`")
        return self

    def times(self) -> Times | None:
        """Return the given times, None without any; raises ScheduleError for what is no time."""
        if self.cron is not None:
            return Cron(self.cron, self.zone or "UTC", self.gap or "default", self.overlap or "default")
        if self.every_s is not None:
            return Every(self.every_s, _when(self.anchor, "anchor"))
        if self.at is not None:
            return At([_when(each, "at") or 0 for each in self.at])
        return None

    def changes(self) -> ChangeOptions:
        """Return the given fields but the times as the client takes them; raises as `times`, and RequestError."""
        found, given = cast("ChangeOptions", self.options()), self.model_fields_set
        if self.topic is not None:
            found["topic"] = self.topic
        if "start" in given:
            found["start"] = _when(self.start, "start")
        if "end" in given:
            found["end"] = _when(self.end, "end")
        if "runs" in given:
            found["runs"] = self.runs
        if "jitter_s" in given:
            found["jitter"] = self.jitter_s or 0
        if self.catch_up is not None:
            found["catch_up"] = self.catch_up
        if "catch_up_window_s" in given:
            found["catch_up_window"] = self.catch_up_window_s
        if "except_dates" in given:
            found["except_dates"] = self.except_dates or []
        if "note" in given:
            found["note"] = self.note or ""
        return found


class ScheduleWish(ScheduleChange):
    """A schedule, with one of `cron`, `everyS` and `at`."""

    topic: Annotated[str, Field(min_length=1, max_length=249, description="topic that gets the callbacks")]
    paused: Annotated[
        bool | None, Field(description="true pauses it, false resumes it; if left out, a pause stays")
    ] = None

    @model_validator(mode="after")
    def _has_times(self) -> Self:
        if all(getattr(self, kind) is None for kind in _KINDS):
            raise ValueError(_ONE_KIND)
        return self

    def times(self) -> Times:
        """Return the times, as `ScheduleChange.times`."""
        return super().times() or At([])


class PauseIn(Model):
    """A pause."""

    note: Annotated[str, Field(description="why, for people")] = ""


class SkipIn(Model):
    """The run to leave out."""

    instant: Annotated[
        datetime | None, Field(description="its `instant`; 409 if another one is next. Without, the next run")
    ] = None


class RunOut(Model):
    """A run."""

    timer_id: str
    instant: Annotated[str, Field(description="moment of its times in RFC 3339, by the clocks of the schedule's zone")]
    zone: Annotated[str, Field(description="short name of those clocks, such as CET")]
    due_ms: Annotated[int, Field(description="when it fires, in UNIX milliseconds: later by its jitter")]
    at: Annotated[str, Field(description="the same in RFC 3339")]

    @classmethod
    def of(cls, run: Run) -> Self:
        """Return *run* as a body."""
        due_ms = moment_at(run.due)
        return cls(
            timer_id=run.timer_id,
            instant=run.instant.isoformat(),
            zone=run.instant.tzname() or "",
            due_ms=due_ms,
            at=at(due_ms),
        )


class LastRunOut(Model):
    """A run that has fired."""

    timer_id: str
    due_ms: int
    at: Annotated[str, Field(description="the same in RFC 3339")]
    lateness_ms: Annotated[int, Field(description="from then until its callback lay on the topic")]


class PlanOut(Model):
    """The times of a schedule, and the runs that it will have."""

    times: Annotated[str, Field(description="in words")]
    next: Annotated[list[RunOut], Field(description="its next runs, also if it is paused; a list has one of each")]
    problem: Annotated[str, Field(description="why it cannot be planned; else empty")]


class ScheduleOut(PlanOut):
    """A schedule."""

    schedule_id: str
    version: Annotated[str, Field(description="give it as `version`, so that a change is made of no other one")]
    zone: Annotated[str, Field(description="IANA time zone of its times")]
    topic: str
    key: str | None = None
    key_base64: str | None = None
    note: str
    paused: bool
    pause_note: str
    skips: Annotated[list[str], Field(description="instants of runs that are left out")]


class WholeScheduleOut(ScheduleOut):
    """A schedule with all that it has."""

    last_run: Annotated[
        LastRunOut | None,
        Field(description="null if its topic has no callback of it, or that is not known in time"),
    ]
    wish: Annotated[dict[str, Any], Field(description="a body with which PUT puts the same schedule")]


class SchedulesOut(Model):
    """Schedules, by id."""

    schedules: list[ScheduleOut]
    cursor: Annotated[str | None, Field(description="give it to get the next page; null at the end")]


class AskedOut(Model):
    """A run that was asked for."""

    timer_id: str
    request: Annotated[str, Field(description="partition:offset on timer-request")]
    due_ms: int
    at: Annotated[str, Field(description="the same in RFC 3339")]

    @classmethod
    def of(cls, timer: Timer) -> Self:
        """Return *timer* as a body."""
        due_ms = timer.due_ms
        return cls(timer_id=timer.timer_id or "", request=timer.request, due_ms=due_ms, at=at(due_ms))


def version_of(found: Recurring) -> str:
    """Return what is another one as soon as the schedule, its pause or what it skips is."""
    return f"{digest_of(found.message.SerializeToString(), found.hold.SerializeToString()):016x}"


def plan_out(found: Recurring, now_s: float) -> PlanOut:
    """Return the times of *found* as a body, with ten runs after the UNIX time *now_s*."""
    return PlanOut.model_validate(_plan(found, _NEXT, now_s))


def schedule_out(found: Recurring, now_s: float) -> ScheduleOut:
    """Return *found* as a body, with the next run after *now_s*."""
    return ScheduleOut.model_validate(_facts(found, 1, now_s))


def whole_out(found: Recurring, last: LastRun | None, now_s: float) -> WholeScheduleOut:
    """Return *found* and its *last* run as a body, with ten runs after *now_s*."""
    last_run = last and LastRunOut(**last._asdict(), at=at(last.due_ms))
    more = {
        "last_run": last_run,
        "wish": _wish(found),
    }
    return WholeScheduleOut.model_validate(_facts(found, _NEXT, now_s) | more)


def _plan(found: Recurring, count: int, now_s: float) -> dict[str, Any]:
    try:
        runs, problem = [RunOut.of(run) for run in found.next(count, now_s)], ""
    except ScheduleError as error:
        runs, problem = [], str(error)
    return {"times": found.times, "next": runs, "problem": problem}


def _facts(found: Recurring, count: int, now_s: float) -> dict[str, Any]:
    plan = _plan(found, count, now_s)
    skips = [] if plan["problem"] else [each.isoformat() for each in found.skips]
    zone = "" if plan["problem"] else str(zone_in(found.message))
    return plan | {
        "schedule_id": found.schedule_id,
        "version": version_of(found),
        "zone": zone,
        "topic": found.topic,
        **json_of("key", found.key),
        "note": found.note,
        "paused": found.paused,
        "pause_note": found.hold.note,
        "skips": skips,
    }


def _wish(found: Recurring) -> dict[str, Any]:
    message, asked = found.message, found.message.callback.callBackRecord
    kind = message.WhichOneof("when")
    wish: dict[str, Any] = {"topic": found.topic, "note": found.note}
    if kind == "cron":
        cron = message.cron
        wish |= {"cron": cron.expression, "zone": cron.zone or "UTC"}
        wish |= {"gap": _name_in(GAPS, cron.gap), "overlap": _name_in(OVERLAPS, cron.overlap)}
    elif kind == "interval":
        wish |= {"every_s": message.interval.every_ms / 1000, "anchor": at(message.interval.anchor_ms)}
    else:
        wish["at"] = [at(each) for each in message.instants.at_ms]
    wish |= {"start": at(message.from_ms)} if message.from_ms else {}
    wish |= {"end": at(message.until_ms)} if message.until_ms else {}
    wish |= {"runs": message.runs_max or None, "jitter_s": message.jitter_ms / 1000}
    wish |= {"catch_up": _name_in(CATCH_UPS, message.catch_up), "except_dates": [*message.except_dates]}
    wish["catch_up_window_s"] = message.catch_up_window_s or None
    wish |= {"tombstone": True} if found.value is None else json_of("value", found.value)
    wish |= json_of("key", found.key)
    wish["partition"] = asked.partition if asked.HasField("partition") else None
    wish |= json_of("partition_key", asked.partitionKey if asked.HasField("partitionKey") else None)
    headers = [
        {to_camel(name): each for name, each in header.items()} for header in headers_of(message.callback.headers)
    ]
    wish |= {"headers": headers, "token": message.callback.token or None}
    return {to_camel(name): value for name, value in wish.items() if value is not None}


def _name_in(names: Mapping[str, int], number: int) -> str | None:
    return next((name for name, each in names.items() if each == number), None)


def _when(given: str | float | None, field: str) -> datetime | float | None:
    try:
        return when_of(given) if isinstance(given, str) else given
    except ValueError as error:
        raise ScheduleError(str(error), field=field) from error
