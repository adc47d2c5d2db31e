"""Durations as people and other programs write them."""

import math
import re
from fractions import Fraction

_UNITS_MS = {"w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_NUMBER = r"[0-9]{1,9}(?:\.[0-9]{1,9})?"
_seconds_match = re.compile(_NUMBER, re.ASCII).fullmatch
_units_match = re.compile(r"(?=.)" + "".join(rf"(?:({_NUMBER}){unit})?" for unit in _UNITS_MS), re.ASCII).fullmatch


def delay_ms_of(text: str) -> int:
    """
    Return the milliseconds of *text*, which lists weeks, days, hours, minutes, seconds and milliseconds in this order,
    as 250ms, 3s, 1h30m or 1.5h. A number alone counts seconds. A fraction of a millisecond is rounded up.

    Raises:
        ValueError: *text* is not of this form.
    """
    parts = _units_match(f"{text}s" if _seconds_match(text) else text)
    if parts is None:
        raise ValueError(
            f"{text!r} is not a duration: give weeks, days, hours, minutes, seconds, milliseconds, as 250ms, 3s, 1h30m "
            "or 2d, or seconds alone"
        )
    given = zip(parts.groups(), _UNITS_MS.values(), strict=True)
    return math.ceil(sum(Fraction(part or 0) * unit_ms for part, unit_ms in given))
