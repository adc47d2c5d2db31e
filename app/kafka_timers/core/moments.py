"""Convert points in time, as callers give them, to UNIX milliseconds."""

import math
import re
from datetime import UTC, datetime, timedelta

from kafka_timers.core.keys import FIRST_MS
from kafka_timers.core.wire import SECOND_LIMIT
from kafka_timers.errors import WhenError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
# 20261127 as UNIX seconds is a day of 1970, and somebody means the day of 2026. So are all dates until 2199.
_DATES = (19_700_101, 22_000_000)


def moment_at(when: datetime | float) -> int:
    """
    Return *when* in UNIX milliseconds, rounded up, so that a timer never fires too early.

    A float is taken to the microsecond; finer digits are rounding errors of floats.

    Args:
        when: an aware datetime, or UNIX seconds. A moment in the past is allowed: its timer fires at once.

    Raises:
        WhenError: *when* is neither, has no timezone, is not a finite number, or lies outside the years 1970 to 5138;
            the text says how to correct it.
    """
    if isinstance(when, datetime):
        if when.utcoffset() is None:
            raise WhenError(f"{when!r} has no timezone: give an aware datetime, such as datetime.now(UTC) + delay")
        # Count whole microseconds, which a float would lose.
        moment_ms = -((_EPOCH - when) // _MILLISECOND)
    elif isinstance(when, bool) or not isinstance(when, int | float):
        raise WhenError(f"{when!r} is of type {type(when).__name__}: give an aware datetime or UNIX seconds")
    elif isinstance(when, float) and not math.isfinite(when):
        raise WhenError(f"{when!r} is not a point in time: give an aware datetime or UNIX seconds")
    elif when >= SECOND_LIMIT:
        raise WhenError(f"{when!r} looks like milliseconds: give UNIX seconds, that is {when // 1000}")
    else:
        moment_ms = -(round(when * 1_000_000) // -1_000)
    if not FIRST_MS <= moment_ms < SECOND_LIMIT * 1000:
        raise WhenError(f"{when!r} lies outside the years 1970 to 5138: give a moment after the UNIX epoch")
    return moment_ms


def moment_after(delay: timedelta | float, now_s: float) -> int:
    """
    Return *now_s* + *delay* in UNIX milliseconds, rounded up.

    Args:
        delay: a timedelta or seconds; 0 is now.

    Raises:
        WhenError: *delay* is neither, is not a finite number, is negative, or ends after the year 5138.
    """
    if isinstance(delay, timedelta):
        delay_s = delay.total_seconds()
    elif isinstance(delay, bool) or not isinstance(delay, int | float):
        raise WhenError(f"{delay!r} is of type {type(delay).__name__}: give a timedelta or seconds from now")
    else:
        delay_s = delay
    # This comparison refuses NaN too.
    if not 0 <= delay_s < SECOND_LIMIT:
        raise WhenError(f"a delay of {delay!r} is not possible: give 0 or more seconds, or a moment to at()")
    return moment_at(now_s + delay_s)


def when_of(text: str) -> datetime | float:
    """
    Return the point in time that *text* names: an aware datetime from ISO 8601, or UNIX seconds from a number.

    Raises:
        ValueError: *text* is neither, has no zone, counts milliseconds, or is a date without marks.
    """
    if number := re.fullmatch(r"([0-9]+)(\.[0-9]+)?", text):
        whole, fraction = number.groups()
        if len(whole) > 12 or int(whole) >= SECOND_LIMIT:
            raise ValueError(f"{text[:100]} is too large for UNIX seconds: are these milliseconds?")
        return no_date(float(text) if fraction else int(text))
    try:
        when = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is neither ISO 8601, as 2030-01-31T12:00:00Z, nor UNIX seconds") from error
    if when.tzinfo is None:
        raise ValueError(f"{text!r} has no zone: add Z for UTC, or an offset as +02:00")
    return when


def no_date(seconds: float) -> float:
    """
    Return *seconds*, UNIX seconds that somebody gives.

    Raises:
        WhenError: their digits are a date, as 20261127.
    """
    if _DATES[0] <= seconds < _DATES[1]:
        raise WhenError(f"{seconds!r} looks like a date: give ISO 8601 with a zone, as 2030-01-31T12:00:00Z")
    return seconds


def second_of(when: datetime | float) -> int:
    """Return *when*, a result of `when_of`, in UNIX seconds. A fraction is cut off."""
    return int(when.timestamp() if isinstance(when, datetime) else when)


def moment_of(when: datetime | float | None, after: timedelta | float | None, now_s: float) -> int:
    """
    Return the UNIX milliseconds of *when*, or of *after* counted from *now_s*. Give one of them.

    Raises:
        WhenError: none or both are given; or as `moment_at` and `moment_after`.
    """
    if when is not None and after is None:
        return moment_at(when)
    if after is not None and when is None:
        return moment_after(after, now_s)
    raise WhenError("give either a moment or after=, the delay from now")
