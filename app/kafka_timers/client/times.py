"""
The times of a schedule: each kind is a value with the arguments that this kind has.

They need no extra. `Schedules.put` takes one of them and checks it. What is none raises `ScheduleError`, which names
the field.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from kafka_timers.core.moments import moment_at
from kafka_timers.core.text import is_text
from kafka_timers.core.wire import SECOND_LIMIT
from kafka_timers.errors import ScheduleError, WhenError
from kafka_timers.v1.schedule_pb2 import Schedule

GAPS = {"default": 0, "at-jump": 1, "skip": 2}
OVERLAPS = {"default": 0, "first": 1, "both": 2}


@dataclass(frozen=True, slots=True)
class Cron:
    """
    Runs at the times of a cron expression.

    Attributes:
        expression: minute, hour, day of month, month and day of week; or six fields, the first being the second.
        zone: IANA name of the time zone in which the expression is read.
        gap: what becomes of a local time that the clocks jump over: "at-jump" runs when they jump, "skip" does not
            run; docs/recurring.md tells the default.
        overlap: "first" or "both" for a local time that comes twice; likewise.
    """

    expression: str
    zone: str = "UTC"
    gap: Literal["default", "at-jump", "skip"] = "default"
    overlap: Literal["default", "first", "both"] = "default"

    def write_to(self, schedule: Schedule) -> None:
        """Give *schedule* these times."""
        schedule.cron.expression = text(self.expression, "cron.expression")
        schedule.cron.zone = text(self.zone, "cron.zone")
        schedule.cron.gap = chosen(self.gap, GAPS, "gap")  # type: ignore[assignment]
        schedule.cron.overlap = chosen(self.overlap, OVERLAPS, "overlap")  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class Every:
    """
    Runs with the same time between any two of them.

    Attributes:
        seconds: this time, in seconds or as a timedelta; at least one second.
        anchor: a moment with a run; None is the UNIX epoch, so that `Every(3600)` runs on the hour.
    """

    seconds: timedelta | float
    anchor: datetime | float | None = None

    def write_to(self, schedule: Schedule) -> None:
        """Give *schedule* these times."""
        schedule.interval.every_ms = milliseconds(self.seconds, "interval.every_ms")
        schedule.interval.anchor_ms = 0 if self.anchor is None else moment_of(self.anchor, "anchor")


@dataclass(frozen=True, slots=True)
class At:
    """
    Runs at the moments of a list.

    Attributes:
        moments: aware datetimes or UNIX seconds, in any order.
    """

    moments: Sequence[datetime | float]

    def write_to(self, schedule: Schedule) -> None:
        """Give *schedule* these times."""
        # An empty list too makes this the kind of the schedule, whose check then names the field.
        schedule.instants.SetInParent()
        schedule.instants.at_ms.extend(sorted({moment_of(moment, "moments") for moment in self.moments}))


Times = Cron | Every | At


def chosen(given: str, choices: Mapping[str, int], field: str) -> int:
    """Return the number of the choice *given*, one of *choices*."""
    if not isinstance(given, str) or given not in choices:
        raise ScheduleError(f"{given!r} is none of {', '.join(choices)}", field=field)
    return choices[given]


def milliseconds(given: timedelta | float, field: str) -> int:
    """Return *given*, a timedelta or seconds, in milliseconds."""
    if isinstance(given, timedelta):
        micros = given // timedelta(microseconds=1)
    elif isinstance(given, bool) or not isinstance(given, int | float):
        raise ScheduleError(f"{given!r} is of type {type(given).__name__}: give a timedelta or seconds", field=field)
    elif not abs(given) < SECOND_LIMIT:
        raise ScheduleError(f"{given!r} s are no duration that a schedule can have", field=field)
    else:
        micros = round(given * 1_000_000)
    if micros % 1000:
        raise ScheduleError(f"{given!r} is not a whole number of milliseconds", field=field)
    return micros // 1000


def moment_of(given: datetime | float, field: str) -> int:
    """Return *given* as `moment_at` does."""
    try:
        return moment_at(given)
    except WhenError as error:
        raise ScheduleError(str(error), field=field) from error


def text(given: str, field: str) -> str:
    """Return *given*, which must be a text."""
    if not isinstance(given, str) or not is_text(given.encode(errors="surrogatepass")):
        raise ScheduleError(f"{given!r} is no text", field=field)
    return given
