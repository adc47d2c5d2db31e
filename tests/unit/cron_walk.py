"""
The runs of a cron expression, found by a look at each second of UTC: the reference for `kafka_timers.core.calendar`.

Nothing here goes from run to run, and nothing is taken from the calendar or from cronsim. A `Walk` is a span of days in
one zone: it samples the zone's offset each hour, searches the second of each change, and compares the local time of
each second with an expression. `runs_second_by_second` says the same in the plainest way, some thousand times slower.

| | a local time that the clocks jump over | a local time that comes twice |
|---|---|---|
| default, minute or hour begins with `*` | no run | both |
| default, any other | a run at the jump | the first one |
| AT_JUMP or SKIP, FIRST or BOTH | as named | as named |

All instants are UNIX seconds; days are counted from 1 January 1970.
"""

import importlib.resources
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

Seconds = NDArray[np.int64]
Flags = NDArray[np.bool_]

HOUR_S, DAY_S = 3_600, 86_400
# No zone changes its offset and takes the old one again within so long.
STEP_S = 6 * HOUR_S
EPOCH = date(1970, 1, 1)
# Days whose dates are known to `Cron`.
FIRST_DAY, LAST_DAY = ((date(year, 1, 1) - EPOCH).days for year in (1990, 2112))
MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
WEEKDAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]


# --- expressions ------------------------------------------------------------------------------------------------------


def _term(text: str, low: int, high: int, names: dict[str, int]) -> range:
    """Return the values of a field's term: `*`, `5`, `MON-FRI`, each also with a step."""
    found = re.fullmatch(r"(?:\*|(\w+)(?:-(\w+))?)(?:/(\d+))?", text)
    assert found, text
    begin, end, step = found.groups()
    first = low if begin is None else names[begin] if begin in names else int(begin)
    last = high if begin is None else first if end is None else names[end] if end in names else int(end)
    if step and first == last:
        last = high
    assert low <= first <= last <= high, text
    return range(first, last + 1, int(step or 1))


def _values(text: str, low: int, high: int, names: Iterable[str] = ()) -> set[int]:
    numbers = {name: number for number, name in enumerate(names, low)}
    return {value for term in text.split(",") for value in _term(term, low, high, numbers)}


def _days(first: int, last: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield month, day, day of the week (Sunday is 0) and how many days the month still has, of each day."""
    for number in range(first, last):
        day = EPOCH + timedelta(number)
        next_month = (day.replace(day=1) + timedelta(31)).replace(day=1)
        yield day.month, day.day, day.isoweekday() % 7, (next_month - day).days - 1


@cache
def _dates() -> NDArray[np.int64]:
    return np.array(list(_days(FIRST_DAY, LAST_DAY))).T


class Cron:
    """
    An expression as sets: the days and the seconds of a day that it names.

    Attributes:
        by_the_hour: whether minute or hour begins with `*`, so that the defaults are those of the table's first row.
    """

    def __init__(self, expression: str) -> None:
        fields = expression.upper().split()
        second, minute, hour, self._day, self._month, self._weekday = fields if len(fields) == 6 else ["0", *fields]
        self.by_the_hour = minute[0] == "*" or hour[0] == "*"
        self.seconds, self.minutes = _values(second, 0, 59), _values(minute, 0, 59)
        self.hours, self.months = _values(hour, 0, 23), _values(self._month, 1, 12, MONTHS)
        of_day = [h * HOUR_S + m * 60 + s for h in self.hours for m in self.minutes for s in self.seconds]
        self.seconds_of_day = np.array(sorted(of_day))
        self.second_matches = np.zeros(DAY_S, bool)
        self.second_matches[self.seconds_of_day] = True
        # Of each day since FIRST_DAY.
        self.day_matches = self._match_days(*_dates())

    def _match_days(self, month: Seconds, day: Seconds, weekday: Seconds, left: Seconds) -> Flags:
        by_day = np.zeros(len(day), bool)
        for term in self._day.split(","):
            if term == "L":
                by_day |= left == 0
            elif term == "LW":
                # A weekday, and all days that the month still has are none.
                by_day |= (weekday == 5) & (left <= 2) | np.isin(weekday, [1, 2, 3, 4]) & (left == 0)
            else:
                by_day |= np.isin(day, _term(term, 1, 31, {}))
        by_weekday = np.zeros(len(day), bool)
        for term in self._weekday.split(","):
            if term.endswith("L"):
                by_weekday |= (weekday == int(term[:-1]) % 7) & (left < 7)
            elif "#" in term:
                name, nth = term.split("#")
                which = WEEKDAYS.index(name) if name in WEEKDAYS else int(name) % 7
                by_weekday |= (weekday == which) & ((day - 1) // 7 + 1 == int(nth))
            else:
                by_weekday |= np.isin(weekday, [value % 7 for value in _values(term, 0, 7, WEEKDAYS)])
        both = self._day.startswith("*") or self._weekday.startswith("*")
        return np.isin(month, sorted(self.months)) & (by_day & by_weekday if both else by_day | by_weekday)

    def matches(self, local: datetime) -> bool:
        """Return whether the expression names a local time."""
        of_day = local.hour in self.hours and local.minute in self.minutes and local.second in self.seconds
        return of_day and bool(self.day_matches[(local.date() - EPOCH).days - FIRST_DAY])


def rules(cron: Cron, gap: str, overlap: str) -> tuple[bool, bool]:
    """Return whether a skipped local time runs at the jump, and whether a doubled one runs twice."""
    at_jump = not cron.by_the_hour if gap == "DEFAULT" else gap == "AT_JUMP"
    both = cron.by_the_hour if overlap == "DEFAULT" else overlap == "BOTH"
    return at_jump, both


# --- zones ------------------------------------------------------------------------------------------------------------


@cache
def zone_of_tzdata(name: str) -> ZoneInfo:
    """Return a zone out of the package tzdata, not the system's."""
    with importlib.resources.files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as file:
        return ZoneInfo.from_file(file, key=name)


def local_time(zone: ZoneInfo, second: int) -> datetime:
    """Return the local time of *zone*, without a zone."""
    return datetime.fromtimestamp(second, zone).replace(tzinfo=None)


def second_of(local: datetime) -> int:
    """Return the UNIX second at which the clocks of UTC show a local time."""
    return int(local.replace(tzinfo=UTC).timestamp())


def offset_of(zone: ZoneInfo, second: int) -> int:
    """Return by how much local time is ahead of UTC, in seconds."""
    return second_of(local_time(zone, second)) - second


def runs_second_by_second(
    cron: Cron, zone: ZoneInfo, gap: str, overlap: str, clock: Iterable[tuple[int, datetime]]
) -> list[int]:
    """
    Return the runs within *clock*: successive seconds, each with its local time.

    A local time that comes twice must do so within these seconds.
    """
    at_jump, both = rules(cron, gap, overlap)
    seconds = dict(clock)
    seen: set[datetime] = set()
    shown = set(seconds.values())
    runs = set()
    before: datetime | None = None
    for second, local in seconds.items():
        if cron.matches(local) and (both or local not in seen):
            runs.add(second)
        missing = before + timedelta(seconds=1) if before else local
        while at_jump and missing < local:
            if missing not in shown and cron.matches(missing):
                runs.add(second)
            missing += timedelta(seconds=1)
        seen.add(local)
        before = local
    return sorted(runs)


# --- the walk ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Changed:
    """
    Successive days of UTC on which the clocks change, or on which some local time is another day's too.

    Attributes:
        local: the local time of each second of these days, in UNIX seconds as if the clocks showed UTC; ascending.
        seconds: the second that has this local time; of those with the same one, the earlier ones come first.
        jumps: the seconds at which the clocks jump ahead, each with the last local time before and the first one after.
        days: the local days that are shown or jumped over.
    """

    local: Seconds
    seconds: Seconds
    jumps: list[tuple[int, int, int]]
    days: Seconds


class Walk:
    """
    The seconds of the days from *first* until *last* in the zone *name*, each with its local time.

    Attributes:
        changes: the first seconds of other offsets, ascending.
    """

    def __init__(self, name: str, first: date, last: date) -> None:
        self.zone = zone_of_tzdata(name)
        self.first, self.last = (first - EPOCH).days, (last - EPOCH).days
        steps = range(self.first * DAY_S, self.last * DAY_S + 1, STEP_S)
        sampled = np.fromiter((offset_of(self.zone, second) for second in steps), np.int64, len(steps))
        other = np.flatnonzero(np.diff(sampled))
        self.changes = [self._search(steps[at], steps[at + 1]) for at in other.tolist()]
        # Of each day, at its beginning.
        self._offsets = sampled[:: DAY_S // STEP_S]
        self._offset_since = np.concatenate([sampled[:1], sampled[other + 1]])
        near: set[int] = set()
        for change, by in zip(self.changes, np.abs(np.diff(sampled)[other]).tolist(), strict=True):
            margin = by + HOUR_S
            near.update(range((change - margin) // DAY_S, (change + margin) // DAY_S + 1))
        self._is_changed = np.isin(np.arange(self.first, self.last), sorted(near))
        self._changed: list[list[int]] = []
        for day in sorted(near & set(range(self.first, self.last))):
            if self._changed and self._changed[-1][-1] == day - 1:
                self._changed[-1].append(day)
            else:
                self._changed.append([day])
        self._listed: dict[int, _Changed] = {}

    def _search(self, before: int, after: int) -> int:
        """Return the first second that has another offset than *before*."""
        offset = offset_of(self.zone, before)
        while after - before > 1:
            middle = (before + after) // 2
            before, after = (middle, after) if offset_of(self.zone, middle) == offset else (before, middle)
        return after

    def _list(self, at: int) -> _Changed:
        """Return the days *at*, each second of them."""
        if at not in self._listed:
            days = self._changed[at]
            seconds = np.arange(days[0] * DAY_S, (days[-1] + 1) * DAY_S)
            local = seconds + self._offset_since[np.searchsorted(self.changes, seconds, "right")]
            places = np.flatnonzero(np.diff(local) > 1).tolist()
            jumps = [(int(seconds[place + 1]), int(local[place]), int(local[place + 1])) for place in places]
            order = np.argsort(local, kind="stable")
            local_days = np.arange(local[order[0]] // DAY_S, local[order[-1]] // DAY_S + 1)
            self._listed[at] = _Changed(local[order], seconds[order], jumps, local_days)
        return self._listed[at]

    def _on_changed(self, cron: Cron, at: int, at_jump: bool, both: bool) -> Seconds:
        """Return the runs on the days *at*."""
        listed = self._list(at)
        days = listed.days[cron.day_matches[listed.days - FIRST_DAY]]
        named = (days[:, None] * DAY_S + cron.seconds_of_day).ravel()
        begin, end = (np.searchsorted(listed.local, named, side) for side in ("left", "right"))
        missing = named[begin == end]
        found = [listed.seconds[begin[begin < end]]]
        while both and (begin < end).any():
            begin += 1
            found.append(listed.seconds[begin[begin < end]])
        for second, before, after in listed.jumps:
            if at_jump and ((missing > before) & (missing < after)).any():
                found.append(np.array([second]))
        return np.unique(np.concatenate(found))

    def _on_others(self, cron: Cron, days: Seconds) -> Seconds:
        """Return the runs on *days* of one offset each, on which no local time is missing or comes twice."""
        offsets = self._offsets[days - self.first][:, None]
        # Where the clocks show each second of a day that the expression names.
        seconds = days[:, None] * DAY_S + (cron.seconds_of_day - offsets) % DAY_S
        runs: Seconds = seconds[cron.day_matches[(seconds + offsets) // DAY_S - FIRST_DAY]]
        return np.sort(runs)

    def runs(self, cron: Cron, gap: str, overlap: str, days: Seconds) -> Seconds:
        """Return the runs on *days* of UTC, ascending; the days lie within the walk."""
        at_jump, both = rules(cron, gap, overlap)
        is_changed = self._is_changed[days - self.first]
        found = [self._on_others(cron, days[~is_changed])]
        asked = set(days[is_changed].tolist())
        for at, changed in enumerate(self._changed) if asked else ():
            if not asked.isdisjoint(changed):
                runs = self._on_changed(cron, at, at_jump, both)
                found.append(runs if asked.issuperset(changed) else runs[np.isin(runs // DAY_S, sorted(asked))])
        return np.sort(np.concatenate(found))

    def first_runs(self, cron: Cron, gap: str, overlap: str, after: int, count: int) -> Seconds:
        """Return the first *count* runs after a second; fewer, if there are no more until the end of the walk."""
        # A local day, also one that is jumped over, lies within three days of UTC.
        named = cron.day_matches[self.first - 1 - FIRST_DAY : self.last + 1 - FIRST_DAY]
        days = np.flatnonzero(named[:-2] | named[1:-1] | named[2:]) + self.first
        days = days[days >= after // DAY_S]
        at_once = max(1, -(-count // len(cron.seconds_of_day)))
        found = np.empty(0, np.int64)
        for place in range(0, len(days), at_once):
            runs = self.runs(cron, gap, overlap, days[place : place + at_once])
            found = np.concatenate([found, runs[runs > after]])
            if len(found) >= count:
                break
        return found[:count]

    def days_around(self, seconds: Iterable[int], days: int = 2) -> Seconds:
        """Return the days of UTC that have a second at most so many *days* from one of *seconds*."""
        around = {
            day
            for second in seconds
            for day in range(second // DAY_S - days, (second + days * DAY_S) // DAY_S + 1)
            if self.first <= day < self.last
        }
        return np.array(sorted(around), np.int64)
