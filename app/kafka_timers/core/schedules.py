"""
Schedules: the times of their runs, and the request for each run.

Pure. All instants are UNIX milliseconds.
"""

from bisect import bisect_right
from collections.abc import Container, Iterable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from operator import itemgetter
from typing import Protocol
from zoneinfo import ZoneInfo

import xxhash
from google.protobuf.message import DecodeError

from kafka_timers.core.calendar import CronTimes, Gap, Overlap, zone_of
from kafka_timers.core.planned_runs import asked_in
from kafka_timers.core.text import is_text
from kafka_timers.core.wire import (
    SCHEDULE_HEADER,
    SCHEDULE_HEADERS,
    SCHEDULE_INSTANT_HEADER,
    SCHEDULE_RUN_HEADER,
    SECOND_LIMIT,
    SERVICE_HEADERS,
    Future,
    Header,
)
from kafka_timers.errors import ScheduleError
from kafka_timers.v1 import schedule_pb2
from kafka_timers.v1.schedule_pb2 import CatchUp as CatchUp
from kafka_timers.v1.schedule_pb2 import Cron as Cron
from kafka_timers.v1.schedule_pb2 import Hold as Hold
from kafka_timers.v1.schedule_pb2 import Planned as Planned
from kafka_timers.v1.schedule_pb2 import Planner as Planner
from kafka_timers.v1.schedule_pb2 import Schedule as Schedule

LEAST_EVERY_MS = 1000
_LIMIT_MS = SECOND_LIMIT * 1000
_CATCH_UPS = frozenset(CatchUp.values())
_WINDOW_S = 86_400
_INSTANTS_MAX = 10_000
_EXCEPT_MAX = 1_000
_ID_BYTES_MAX = 1_000
# Of a run's request, without id and callback.
_RUN_BYTES = 300
_JITTER_MAX_MS = 86_400_000
_YEAR_MS = 366 * 86_400_000
# Most runs of a schedule that may wait for their jitter at a time: a plan names each of them.
_JITTERED_MAX = 2_000
# Fields of `Future` that a schedule's callback may have.
_CALLBACK_FIELDS = frozenset(
    Future.DESCRIPTOR.fields_by_name[name].number
    for name in (
        "callBackTopic",
        "callBackKey",
        "callBack",
        "token",
        "headers",
        "tombstoneTopic",
        "tombstoneKey",
        "tombstonePartition",
        "callBackRecord",
    )
)
_GAPS: dict[int, Gap] = {
    schedule_pb2.GAP_UNSPECIFIED: Gap.DEFAULT,
    schedule_pb2.GAP_AT_JUMP: Gap.AT_JUMP,
    schedule_pb2.GAP_SKIP: Gap.SKIP,
}
_OVERLAPS: dict[int, Overlap] = {
    schedule_pb2.OVERLAP_UNSPECIFIED: Overlap.DEFAULT,
    schedule_pb2.OVERLAP_FIRST: Overlap.FIRST,
    schedule_pb2.OVERLAP_BOTH: Overlap.BOTH,
}


# The key of a hold is this and the schedule's id, which does not begin so.
HOLD_PREFIX = b"\0"
NO_HOLD = Hold()


class _Times(Protocol):
    def next_after(self, ms: int) -> int | None: ...


class Timetable:
    """
    The runs of a schedule.

    Attributes:
        window_ms: age in milliseconds up to which a missed run is made up for.
    """

    def __init__(self, schedule: Schedule, times: _Times, skipped_ms: Container[int]) -> None:
        self._times = times
        self._from_ms = schedule.from_ms
        self._until_ms = schedule.until_ms or _LIMIT_MS
        self._skipped_ms = skipped_ms
        self._without = _Days(schedule) if schedule.except_dates else None
        self.window_ms = (schedule.catch_up_window_s or _WINDOW_S) * 1000

    def next_after(self, ms: int) -> int | None:
        """Return the first run later than *ms*; None if there is none."""
        found = self._times.next_after(max(ms, self._from_ms - 1))
        while found is not None and found < self._until_ms:
            behind_ms = self._without.end_of(found) if self._without else None
            if behind_ms is not None:
                found = self._times.next_after(max(found, behind_ms - 1))
            elif found in self._skipped_ms:
                found = self._times.next_after(found)
            else:
                return found
        return None

    def has(self, run_ms: int) -> bool:
        """Tell whether *run_ms* is a run."""
        return self.next_after(run_ms - 1) == run_ms

    def between(self, after_ms: int, to_ms: int) -> Iterator[int]:
        """Yield the runs later than *after_ms*, at *to_ms* or before."""
        run_ms = self.next_after(after_ms) if after_ms < to_ms else None
        while run_ms is not None and run_ms <= to_ms:
            yield run_ms
            run_ms = self.next_after(run_ms)

    def last_between(self, after_ms: int, to_ms: int) -> int | None:
        """Return the last run later than *after_ms*, at *to_ms* or before; None if there is none."""
        span_ms = 60_000
        while True:
            since_ms = max(after_ms, to_ms - span_ms)
            last = max(self.between(since_ms, to_ms), default=None)
            if last is not None or since_ms == after_ms:
                return last
            # Widen the span step by step, so that the search covers little more than the time between two runs.
            span_ms *= 8


class _Days:
    """The days on which *schedule* has no runs."""

    def __init__(self, schedule: Schedule) -> None:
        self._days = frozenset(map(date.fromisoformat, schedule.except_dates))
        self._zone = zone_in(schedule)

    def end_of(self, ms: int) -> int | None:
        """Return when the day of *ms* ends, if it is one of them."""
        day = datetime.fromtimestamp(ms // 1000, self._zone).date()
        if day not in self._days:
            return None
        return int(datetime.combine(day + timedelta(days=1), time(), self._zone).timestamp()) * 1000


class _Interval:
    def __init__(self, every_ms: int, anchor_ms: int) -> None:
        self._every_ms = every_ms
        self._anchor_ms = anchor_ms

    def next_after(self, ms: int) -> int | None:
        return self._anchor_ms + ((ms - self._anchor_ms) // self._every_ms + 1) * self._every_ms


class _Instants:
    def __init__(self, at_ms: list[int]) -> None:
        self._at_ms = at_ms

    def next_after(self, ms: int) -> int | None:
        place = bisect_right(self._at_ms, ms)
        return self._at_ms[place] if place < len(self._at_ms) else None


def schedule_from(value: bytes) -> Schedule:
    """
    Return the schedule in the *value* of a record on `timer-schedule`.

    Raises:
        ScheduleError: *value* is not a schedule.
    """
    try:
        return Schedule.FromString(value)
    except DecodeError as error:
        raise ScheduleError("the value is no protobuf message Schedule", field="value") from error


def check_record(name: bytes, value: bytes, bytes_max: int) -> None:
    """
    Check that runs can be asked for with the id *name*, and with a schedule as large as *value*.

    Raises:
        ScheduleError: a request of at most *bytes_max* bytes cannot have them.
    """
    if not name or not is_text(name):
        raise ScheduleError("the key is the schedule's id: give a text that is not empty", field="key")
    if len(name) > _ID_BYTES_MAX:
        raise ScheduleError(f"the id has more than {_ID_BYTES_MAX} bytes: give a shorter one", field="key")
    # A run's request has the id twice, with the instant, and headers of the service.
    if len(value) + 3 * len(name) + _RUN_BYTES > bytes_max:
        raise ScheduleError(
            f"the schedule has {len(value)} bytes, and the request of a run has to fit into {bytes_max}: give a "
            "shorter value, or raise max.message.bytes of timer-request",
            field="callback",
        )


def hold_from(value: bytes | None) -> Hold:
    """Return what the *value* of a hold's record holds back; one that is none of these holds nothing back."""
    if not value:
        return NO_HOLD
    try:
        return Hold.FromString(value)
    except DecodeError:
        return NO_HOLD


def timetable_of(schedule: Schedule, hold: Hold = NO_HOLD, *, is_checked: bool = False) -> Timetable:
    """
    Return the times of *schedule*, without those that *hold* skips.

    Args:
        is_checked: whether this has returned its times before, so that it need not be checked again.

    Raises:
        ScheduleError: it asks for something impossible; the text names the field and how to correct it.
    """
    if not is_checked:
        _check(schedule)
    skipped_ms = () if hold is NO_HOLD else frozenset(hold.skipped_ms)
    timetable = Timetable(schedule, _times(schedule), skipped_ms)
    if not is_checked and schedule.jitter_ms >= _JITTERED_MAX * LEAST_EVERY_MS:
        _check_jitter(schedule.jitter_ms, timetable)
    return timetable


def _times(schedule: Schedule) -> _Times:
    kind = schedule.WhichOneof("when")
    if kind == "cron":
        cron = schedule.cron
        if cron.gap not in _GAPS:
            raise ScheduleError(f"{cron.gap} is no choice of this version", field="cron.gap")
        if cron.overlap not in _OVERLAPS:
            raise ScheduleError(f"{cron.overlap} is no choice of this version", field="cron.overlap")
        return _cron(cron.expression, cron.zone or "UTC", cron.gap, cron.overlap)
    if kind == "interval":
        every_ms, anchor_ms = schedule.interval.every_ms, schedule.interval.anchor_ms
        if not LEAST_EVERY_MS <= every_ms < _LIMIT_MS:
            raise ScheduleError(
                f"{every_ms} is not from {LEAST_EVERY_MS} on: give milliseconds", field="interval.every_ms"
            )
        if not 0 <= anchor_ms < _LIMIT_MS:
            raise ScheduleError(f"{anchor_ms} is no time: give UNIX milliseconds", field="interval.anchor_ms")
        return _Interval(every_ms, anchor_ms)
    if kind == "instants":
        at_ms = list(schedule.instants.at_ms)
        if not 0 < len(at_ms) <= _INSTANTS_MAX:
            raise ScheduleError(f"there are {len(at_ms)}: give 1 to {_INSTANTS_MAX}", field="instants.at_ms")
        if at_ms != sorted(set(at_ms)) or not 0 < at_ms[0] <= at_ms[-1] < _LIMIT_MS:
            raise ScheduleError(
                "they are not UNIX milliseconds, each later than the one before", field="instants.at_ms"
            )
        return _Instants(at_ms)
    raise ScheduleError("is missing: give a cron expression, an interval or instants", field="when")


def _check_jitter(jitter_ms: int, timetable: Timetable) -> None:
    first_ms = run_ms = timetable.next_after(0)
    for _ in range(_JITTERED_MAX):
        if run_ms is None or first_ms is None or run_ms - first_ms > jitter_ms:
            return
        run_ms = timetable.next_after(run_ms)
    raise ScheduleError(
        f"{jitter_ms} is longer than it takes to have {_JITTERED_MAX} runs: give a shorter one", field="jitter_ms"
    )


def _check(schedule: Schedule) -> None:
    for name in ("from_ms", "until_ms", "runs_max", "jitter_ms", "catch_up_window_s"):
        if not 0 <= (given := getattr(schedule, name)) < _LIMIT_MS:
            raise ScheduleError(f"{given} is negative, or too large", field=name)
    if schedule.jitter_ms > _JITTER_MAX_MS:
        raise ScheduleError(f"{schedule.jitter_ms} is more than a day: give milliseconds", field="jitter_ms")
    if schedule.until_ms and schedule.until_ms <= schedule.from_ms:
        raise ScheduleError(f"{schedule.until_ms} is not later than from_ms", field="until_ms")
    if schedule.catch_up not in _CATCH_UPS:
        raise ScheduleError(f"{schedule.catch_up} is no choice of this version", field="catch_up")
    if len(schedule.except_dates) > _EXCEPT_MAX:
        raise ScheduleError(f"there are more than {_EXCEPT_MAX}: give fewer", field="except_dates")
    for day in schedule.except_dates:
        _check_day(day)
    callback = schedule.callback
    if not (callback.callBackTopic or callback.callBackRecord.topic):
        raise ScheduleError("is missing: name the topic that gets the callbacks", field="callback.callBackTopic")
    for field, value in callback.ListFields():
        if field.number not in _CALLBACK_FIELDS:
            raise ScheduleError("is set by the planner: leave it empty", field=f"callback.{field.name}")
        if field.number == Future.HEADERS_FIELD_NUMBER:
            _check_headers(value)


def _check_headers(headers: Iterable[Header]) -> None:
    for header in headers:
        if header.key in SERVICE_HEADERS or header.key in SCHEDULE_HEADERS:
            raise ScheduleError(f"{header.key} is set by the service: use another name", field="callback.headers")


def _check_day(day: str) -> None:
    try:
        is_day = date.fromisoformat(day).isoformat() == day
    except ValueError:
        is_day = False
    if not is_day:
        raise ScheduleError(f"{day!r} is no day: give one as 2026-12-25", field="except_dates")


# Many schedules have the same expression, and parsing one is slow.
@lru_cache(maxsize=1_000)
def _cron(expression: str, zone: str, gap: int, overlap: int) -> CronTimes:
    return CronTimes(expression, zone_of(zone), _GAPS[gap], _OVERLAPS[overlap])


@lru_cache(maxsize=10_000)
def instant_text(run_ms: int) -> str:
    """Return *run_ms* as ISO 8601 in UTC, with milliseconds if they are not 0."""
    instant = datetime.fromtimestamp(run_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{instant}.{run_ms % 1000:03}Z" if run_ms % 1000 else f"{instant}Z"


def run_id(schedule_id: str, run_ms: int) -> str:
    """Return the timer id of the run at *run_ms*."""
    return f"{schedule_id}@{instant_text(run_ms)}"


def due_ms(schedule_id: bytes, schedule: Schedule, run_ms: int) -> int:
    """Return the moment at which the run at *run_ms* is due. Its jitter is the same on every request."""
    if not schedule.jitter_ms:
        return run_ms
    return run_ms + xxhash.xxh64_intdigest(b"%s@%d" % (schedule_id, run_ms)) % (schedule.jitter_ms + 1)


def future_of_run(schedule_id: str, schedule: Schedule, run_ms: int, number: int | None) -> Future:
    """
    Return the message that requests the run at *run_ms*. Its time is not set yet.

    Args:
        number: number of the run, counted from 1; None for a run that is requested by hand.
    """
    future = Future(timerId=run_id(schedule_id, run_ms))
    headers = {SCHEDULE_HEADER: schedule_id, SCHEDULE_INSTANT_HEADER: instant_text(run_ms)}
    if number is not None:
        headers[SCHEDULE_RUN_HEADER] = str(number)
    for name, text in headers.items():
        future.headers.add(key=name, value=text.encode())
    future.MergeFrom(schedule.callback)
    return future


def next_runs(
    schedule_id: str,
    schedule: Schedule,
    after_ms: int,
    count: int,
    hold: Hold = NO_HOLD,
    planned: Planned | None = None,
) -> dict[int, int]:
    """
    Return when the first *count* runs of *schedule* that are due later than *after_ms* are due, by their instants; all
    if there are fewer.

    Args:
        hold: what is held back; a pause does not matter.
        planned: how far it is planned, which tells how many runs it has had.

    Raises:
        ScheduleError: *schedule* is not valid.
    """
    timetable, name, planned = timetable_of(schedule, hold), schedule_id.encode(), planned or Planned()
    asked = {run_ms: due for run_ms, due in asked_in(planned).items() if due > after_ms}
    if schedule.runs_max:
        count = min(count, schedule.runs_max - planned.runs + len(asked))
    # With a jitter, some of them have their instant behind them.
    found = {run_ms: due for run_ms, due in asked.items() if run_ms <= after_ms and timetable.has(run_ms)}
    run_ms = timetable.next_after(after_ms)
    while run_ms is not None and len(found) < count:
        found[run_ms] = due_ms(name, schedule, run_ms)
        run_ms = timetable.next_after(run_ms)
    return dict(sorted(list(found.items())[: max(count, 0)], key=itemgetter(1)))


def last_run(schedule_id: str, schedule: Schedule, before_ms: int, hold: Hold = NO_HOLD) -> tuple[int, int] | None:
    """
    Return the instant of the last run of *schedule* that was due at *before_ms* or earlier, and when it was due; None
    if there was none within a year. Otherwise as `next_runs`.
    """
    timetable, name, over_ms = timetable_of(schedule, hold), schedule_id.encode(), before_ms - schedule.jitter_ms
    # With a jitter, some of them are not due yet.
    later = timetable.between(over_ms, before_ms)
    run_ms = max((each for each in later if due_ms(name, schedule, each) <= before_ms), default=None)
    if run_ms is None:
        run_ms = timetable.last_between(over_ms - _YEAR_MS, over_ms)
    return None if run_ms is None else (run_ms, due_ms(name, schedule, run_ms))


def zone_in(schedule: Schedule) -> ZoneInfo:
    """
    Return the time zone of *schedule*; UTC if it has no cron expression.

    Raises:
        ScheduleError: there is no such zone.
    """
    return zone_of(schedule.cron.zone or "UTC").info


def times_text(schedule: Schedule) -> str:
    """Return the times of *schedule* in words."""
    match schedule.WhichOneof("when"):
        case "cron":
            return f"{schedule.cron.expression} in {schedule.cron.zone or 'UTC'}"
        case "interval":
            return f"every {schedule.interval.every_ms / 1000:g} s"
        case "instants":
            return f"{len(schedule.instants.at_ms)} moments"
    return ""
