"""
Cron expressions in time zones: at which instants they have runs.

Pure. An expression gives local times; a zone says which instant each of them is. Twice a year that is no plain matter:

    local time                      default, minute or hour begins with `*`     default, any other expression
    the clocks jump over it         no run                                      a run when the clocks jump
    it comes twice                  two runs                                    a run the first time

`*/10 * * * *` runs every ten minutes of real time, and `30 2 * * *` once a day, each day. This is the rule of Debian's
cron; `Gap` and `Overlap` choose otherwise. All instants are UNIX milliseconds, and of whole seconds.
"""

from bisect import bisect_right
from datetime import UTC, date, datetime, timedelta
from enum import Enum, auto
from functools import lru_cache
from importlib import resources
from typing import NamedTuple
from zoneinfo import ZoneInfo

import tzdata
from cronsim import CronSim, CronSimError

from kafka_timers.errors import ScheduleError

# Of the data by which zones are judged, such as 2025b.
TZDATA_VERSION: str = tzdata.IANA_VERSION

_EPOCH = date(1970, 1, 1)  # local times of any zone are counted from it
_DAY = timedelta(days=1)
_EXPRESSION_MAX = 250
_YEARS = 50
# All local times that a change of the clocks leaves out or repeats are nearer to it than this.
_NEAR_S = 2 * 86_400
# No zone changes its offset twice within so long.
_STEP_S = 86_400


class Gap(Enum):
    """The treatment of a run at a local time that the clocks jump over."""

    DEFAULT = auto()
    AT_JUMP = auto()
    SKIP = auto()


class Overlap(Enum):
    """The treatment of a run at a local time that comes twice."""

    DEFAULT = auto()
    FIRST = auto()
    BOTH = auto()


class _Change(NamedTuple):
    """A change of a zone's offset: the first UNIX second of the new one, and both offsets in seconds."""

    at: int
    before: int
    after: int


class _Zone:
    """A time zone of the package tzdata."""

    def __init__(self, name: str, info: ZoneInfo) -> None:
        self.name = name
        self.info = info
        self._of_year: dict[int, list[_Change]] = {}

    def offset(self, second: int) -> int:
        """Return by how many seconds local time is ahead of UTC at a UNIX second."""
        offset = datetime.fromtimestamp(second, self.info).utcoffset() or timedelta()
        return offset.days * 86_400 + offset.seconds

    def last_change(self, second: int) -> _Change | None:
        """Return the last change at or before *second* that is less than two days old."""
        near = [change for change in self._between(second - 2 * 86_400, second) if change.at <= second]
        return near[-1] if near else None

    def next_change(self, after: int, until: int) -> _Change | None:
        """Return the first change later than *after*, and at *until* or before."""
        return next((change for change in self._between(after, until) if after < change.at <= until), None)

    def _between(self, first: int, last: int) -> "list[_Change]":
        found: list[_Change] = []
        for year in range(_year_of(first), _year_of(last) + 1):
            if year not in self._of_year:
                self._of_year[year] = self._changes(year)
            found += self._of_year[year]
            if found and found[-1].at > first:
                break
        return found

    def _changes(self, year: int) -> list[_Change]:
        first, last = (int(datetime(each, 1, 1, tzinfo=UTC).timestamp()) for each in (year, year + 1))
        found, before = [], self.offset(first - 1)
        for end in range(first + _STEP_S - 1, last, _STEP_S):
            if (after := self.offset(end)) != before:
                at = bisect_right(range(end - _STEP_S, end + 1), False, key=lambda each: self.offset(each) != before)
                found.append(_Change(end - _STEP_S + at, before, after))
                before = after
        return found


class CronTimes:
    """
    The runs of a cron expression.

    Args:
        expression: five fields, or six of which the first one is the second; as the package cronsim reads them.

    Raises:
        ScheduleError: the expression is none, or never has a run.
    """

    def __init__(
        self, expression: str, zone: _Zone, gap: Gap = Gap.DEFAULT, overlap: Overlap = Overlap.DEFAULT
    ) -> None:
        fields = expression.split()
        try:
            if len(expression) > _EXPRESSION_MAX:
                raise CronSimError(f"more than {_EXPRESSION_MAX} characters")
            self._cron = CronSim(expression, datetime(1970, 1, 1))
        except CronSimError as error:
            raise ScheduleError(
                f"{expression[:_EXPRESSION_MAX]!r} is no cron expression ({error}): give minute, hour, day of month, "
                "month and day of week, and before them a second if you want one, such as '0 9 * * MON-FRI'",
                field="cron.expression",
            ) from error
        # cronsim reads expressions and knows days. It goes through hours and minutes one by one, so that is done here.
        self._seconds, self._minutes, self._hours = (
            tuple(sorted(each)) for each in (self._cron.seconds, self._cron.minutes, self._cron.hours)
        )
        self._first_of_day = self._hours[0] * 3_600 + self._minutes[0] * 60 + self._seconds[0]
        self._zone = zone
        # Many schedules have the same times. So the last answer is kept: up to that run it is the answer to all.
        self._last = 0, 0
        keeps_to_real_time = any(each.startswith("*") for each in fields[-5:-3])
        self._jumps = gap is Gap.AT_JUMP or (gap is Gap.DEFAULT and not keeps_to_real_time)
        self._first_only = overlap is Overlap.FIRST or (overlap is Overlap.DEFAULT and not keeps_to_real_time)

    def next_after(self, ms: int) -> int | None:
        """Return the first run later than *ms*; None if there is none for some fifty years."""
        after_ms, found_ms = self._last
        if after_ms <= ms < found_ms:
            return found_ms
        found = self._next_after(ms)
        if found is not None:
            self._last = ms, found
        return found

    def _next_after(self, ms: int) -> int | None:
        zone, at = self._zone, ms // 1000
        offset = zone.offset(at)
        local = at + offset
        if self._first_only and (last := zone.last_change(at)) and last.before > last.after:
            local = max(local, last.at + last.before - 1)
        while True:
            found = self._next_local(local)
            due, near = None if found is None else found - offset, at + _NEAR_S
            change = zone.next_change(at, near if due is None else min(due, near))
            if change is None:
                if due is None:
                    return None
                if due <= near:
                    return due * 1000
                # No local time before is named, so the clocks may change as they like until it is near.
                at = max(near, due - _NEAR_S)
                offset = zone.offset(at)
                local = at + offset
                continue
            at, before, offset = change
            local = at + offset - 1
            if offset > before and self._jumps and found is not None and found < at + offset:
                return at * 1000
            if offset < before and self._first_only:
                local = at + before - 1

    def _next_local(self, local: int) -> int | None:
        """Return the first match later than *local*, seconds of local time since 1970."""
        days, second = divmod(local, 86_400)
        day = _EPOCH + days * _DAY
        if day.month in self._cron.months and self._cron.match_day(day):
            later = self._later_that_day(second)
            if later is not None:
                return days * 86_400 + later
        next_day = self._next_day(day)
        return None if next_day is None else (next_day - _EPOCH).days * 86_400 + self._first_of_day

    def _next_day(self, day: date) -> date | None:
        """Return the first day later than *day* that matches; None if there is none for as long as cronsim looks."""
        last_year = day.year + _YEARS
        while day.year <= last_year:
            day += _DAY
            if day.month not in self._cron.months:
                # The last day of the month.
                day = (day.replace(day=28) + 4 * _DAY).replace(day=1) - _DAY
            elif self._cron.match_day(day):
                return day
        return None

    def _later_that_day(self, second: int) -> int | None:
        """Return the first match later than *second* on a day that matches, both in seconds since midnight."""
        minute, second = divmod(second, 60)
        hour, minute = divmod(minute, 60)
        if hour in self._cron.hours:
            if minute in self._cron.minutes and second < self._seconds[-1]:
                second = self._seconds[bisect_right(self._seconds, second)]
                return hour * 3_600 + minute * 60 + second
            if minute < self._minutes[-1]:
                minute = self._minutes[bisect_right(self._minutes, minute)]
                return hour * 3_600 + minute * 60 + self._seconds[0]
        if hour < self._hours[-1]:
            hour = self._hours[bisect_right(self._hours, hour)]
            return hour * 3_600 + self._minutes[0] * 60 + self._seconds[0]
        return None


@lru_cache(maxsize=1_000)
def zone_of(name: str) -> _Zone:
    """
    Return the zone *name*, such as Europe/Paris.

    Raises:
        ScheduleError: the package tzdata has none of this name.
    """
    if name not in _names():
        raise ScheduleError(
            f"{name[:100]!r} is no time zone of tzdata {TZDATA_VERSION}: give an IANA name such as 'Europe/Paris'",
            field="cron.zone",
        )
    with resources.files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as file:
        return _Zone(name, ZoneInfo.from_file(file, key=name))


@lru_cache(maxsize=1)
def _names() -> frozenset[str]:
    return frozenset(resources.files("tzdata").joinpath("zones").read_text().split())


def _year_of(second: int) -> int:
    return datetime.fromtimestamp(second, UTC).year
