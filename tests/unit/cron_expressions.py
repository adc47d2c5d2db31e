"""
Random cron expressions, drawn so that many of their runs lie where the clocks of `ZONES` change.

All that the syntax has comes up: lists, ranges and steps, names, L, LW, 5#3 and 5L, both day fields, seconds, and dates
as rare as 29 February. Few run each second: see `BUSY`.
"""

import random
from collections.abc import Callable

from cron_walk import MONTHS, WEEKDAYS, Cron

ZONES = ("Europe/Paris", "America/New_York", "America/Santiago", "Australia/Lord_Howe", "Antarctica/Troll")
# Runs a day, on average. An expression for each second has 14 million runs within two days of the changes of 20 years.
BUSY = 6.0
BUSY_SHARE, BUSY_MAX = 0.003, 1_500.0
# The hours, months and days of the week in which clocks of these zones change.
_HOURS, _MONTHS, _WEEKDAYS = (0, 1, 2, 3, 23), (3, 4, 9, 10, 11), (0, 6)


def _number(rng: random.Random, low: int, high: int, liked: tuple[int, ...] = ()) -> int:
    return rng.choice(liked) if liked and rng.random() < 0.7 else rng.randint(low, high)


def _term(rng: random.Random, low: int, high: int, liked: tuple[int, ...], steps: tuple[int, ...]) -> str:
    """Return `5`, `1-20`, `7/10`, `1-20/3` or `*/5`."""
    first, last = sorted(rng.sample(range(low, high + 1), 2))
    if liked and rng.random() < 0.5:
        first = _number(rng, low, high - 1, tuple(each for each in liked if each < high))
        last = min(high, first + rng.randint(1, 3))
    kind = rng.choice(("value", "value", "value", "range", "value/step", "range/step", "*/step"))
    begin = {"value": str(_number(rng, low, high, liked)), "range": f"{first}-{last}", "*": "*"}[kind.split("/")[0]]
    return f"{begin}/{rng.choice(steps)}" if kind.endswith("step") else begin


def _field(rng: random.Random, low: int, high: int, liked: tuple[int, ...], steps: tuple[int, ...]) -> str:
    terms = rng.choice((1, 1, 1, 1, 2, 3))
    return ",".join(_term(rng, low, high, liked, steps) for _ in range(terms))


def _second(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.5:
        return str(rng.choice((0, 0, 59, rng.randint(0, 59))))
    return "*" if kind < 0.6 else _field(rng, 0, 59, (0, 59), (5, 7, 10, 15, 20, 30, 40))


def _minute(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.5:
        return str(rng.choice((0, 0, 15, 29, 30, 59, rng.randint(0, 59))))
    return "*" if kind < 0.6 else _field(rng, 0, 59, (0, 29, 30, 59), (5, 7, 10, 15, 20, 30, 45))


def _hour(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.45:
        return str(_number(rng, 0, 23, _HOURS))
    return "*" if kind < 0.6 else _field(rng, 0, 23, _HOURS, (2, 3, 4, 5, 6, 12))


def _day(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.5:
        return "*"
    special = rng.choice(("L", "LW"))
    if kind < 0.65:
        return special
    if kind < 0.7:
        return rng.choice((f"{special},{rng.randint(1, 31)}", f"{rng.randint(1, 28)},{special}", "L,LW"))
    return _field(rng, 1, 31, (1, 28, 29, 30, 31), (2, 3, 5, 7, 10))


def _month(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.55:
        return "*"
    text = _field(rng, 1, 12, _MONTHS, (2, 3, 4, 6))
    return rng.choice((text, *_named(text, MONTHS, 1)))


def _weekday(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.5:
        return "*"
    if kind < 0.65:
        day = _number(rng, 0, 7, _WEEKDAYS)
        nth = rng.randint(1, 5)
        text = rng.choice((f"{day}L", f"{day}#{nth}", f"{WEEKDAYS[day % 7]}#{nth}"))
        return rng.choice((text, text, f"{text},{rng.randint(0, 7)}", f"{WEEKDAYS[rng.randint(0, 6)]},{text}"))
    text = _field(rng, 0, 7, _WEEKDAYS, (2, 3, 4, 5))
    return rng.choice((text, *_named(text, WEEKDAYS, 0)))


def _named(text: str, names: list[str], low: int) -> list[str]:
    """Return a field of single values and ranges with names in place of its numbers, in both cases; or nothing."""
    parts = text.replace(",", " , ").replace("-", " - ").split()
    if any("/" in part or "*" in part or part == "7" for part in parts):
        return []
    named = "".join(names[int(part) - low] if part.isdigit() else part for part in parts)
    return [named, named.lower()]


def _rare(rng: random.Random) -> str:
    """Return expressions that run every few years."""
    dates = ("29 2 *", "29 FEB *", "*/28 2 *", "L 2 SUN", "*/29 2 0", "31 */2 *", "* FEB 0#5", "*/14 2,4 7L", "LW 2 *")
    return f"{_minute(rng)} {_hour(rng)} {rng.choice(dates)}"


def runs_a_day(cron: Cron) -> float:
    """Return how many runs a day has, on average."""
    return len(cron.seconds_of_day) * float(cron.day_matches.mean())


def expression(rng: random.Random) -> str:
    """Return an expression that runs at some time."""
    while True:
        fields: list[Callable[[random.Random], str]] = [_minute, _hour, _day, _month, _weekday]
        text = _rare(rng) if rng.random() < 0.04 else " ".join(field(rng) for field in fields)
        if rng.random() < 0.4:
            text = f"{_second(rng)} {text}"
        often = runs_a_day(Cron(text))
        if 0 < often < BUSY or (0 < often < BUSY_MAX and rng.random() < BUSY_SHARE):
            return text
