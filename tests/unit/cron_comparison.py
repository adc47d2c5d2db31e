"""How runs by `kafka_timers.core.calendar` are compared with those by a walk over each second, and with cronsim's."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import date, datetime

import numpy as np
from cron_walk import DAY_S, EPOCH, Cron, Walk
from cronsim import CronSim

from kafka_timers.core.calendar import CronTimes, Gap, Overlap, zone_of

# Random instants, and the changes of clocks that are looked at, lie between these.
FIRST, LAST = date(2024, 1, 1), date(2044, 1, 1)
_LAST_S = (LAST - EPOCH).days * DAY_S
# The calendar looks ahead for some 50 years.
AHEAD_MS = 49 * 365 * DAY_S * 1000
CHOICES = [(gap, overlap) for gap in Gap for overlap in Overlap]
# The defaults, as most schedules have them.
DRAWN = [*CHOICES, *[(Gap.DEFAULT, Overlap.DEFAULT)] * 4]
# With six fields, or a `*` at the start, cronsim walks through real time, where a midnight that does not exist and a
# change by half an hour make it lose runs. So it does so rightly in these zones; all others it walks by local time.
BY_REAL_TIME = ("Europe/Paris", "America/New_York", "Antarctica/Troll")


def first_difference(times: CronTimes, after_ms: int, runs: Sequence[int], end_ms: int | None = None) -> str | None:
    """
    Return in words where the runs later than *after_ms* are not *runs*, in seconds; None if they are.

    With *end_ms* they must be all runs before it.
    """
    at = after_ms
    for run in runs:
        told = times.next_after(at)
        if told is None and run * 1000 - at > AHEAD_MS:
            return None
        if told != run * 1000:
            return f"after {at} comes {told}, where {run * 1000} should"
        at = told
    if end_ms is None or (told := times.next_after(at)) is None or told >= end_ms:
        return None
    return f"after {at} comes {told}, where none should before {end_ms}"


def blocks(days: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first second of successive days, and the first one after them."""
    begin = days[0]
    for day, following in zip(days, [*days[1:], None], strict=True):
        if following != day + 1:
            yield begin * DAY_S, (day + 1) * DAY_S
            if following is not None:
                begin = following


class Comparison:
    """
    Runs in one zone, compared.

    Attributes:
        walk: the zone's seconds.
        counts: how many expressions, runs and instants were compared.
        differences: in words, at most one of each expression and kind.
    """

    def __init__(self, zone: str, last: date, rng: random.Random) -> None:
        self.zone = zone
        self.walk = Walk(zone, date(2023, 12, 1), last)
        self.changes = [change for change in self.walk.changes if change < _LAST_S]
        self.counts: Counter[str] = Counter()
        self.differences: list[str] = []
        self._rng = rng
        self._zone = zone_of(zone)

    def _times(self, text: str) -> tuple[CronTimes, Gap, Overlap]:
        gap, overlap = self._rng.choice(DRAWN)
        return CronTimes(text, self._zone, gap, overlap), gap, overlap

    def _note(self, what: str, found: str | None) -> None:
        if found:
            self.differences.append(f"{what}: {found}")

    def first_runs(self, text: str, cron: Cron, count: int) -> None:
        """Compare the first *count* runs after a random instant."""
        times, gap, overlap = self._times(text)
        after_ms = self._rng.randrange((FIRST - EPOCH).days * DAY_S * 1000, _LAST_S * 1000)
        runs = self.walk.first_runs(cron, gap.name, overlap.name, after_ms // 1000, count)
        self.counts["first runs"] += len(runs)
        end_ms = self.walk.last * DAY_S * 1000 if len(runs) < count else None
        found = first_difference(times, after_ms, runs.tolist(), end_ms)
        self._note(f"{text!r} in {self.zone}, {gap}, {overlap}", found)

    def around(self, text: str, cron: Cron, changes: Sequence[int]) -> None:
        """Compare all runs within two days of *changes*, and the next runs after random milliseconds close to them."""
        times, gap, overlap = self._times(text)
        what = f"{text!r} in {self.zone}, {gap}, {overlap}"
        days = self.walk.days_around(changes)
        runs = self.walk.runs(cron, gap.name, overlap.name, days)
        self.counts["runs around changes"] += len(runs)
        for begin, end in blocks(days.tolist()):
            within = runs[np.searchsorted(runs, begin) : np.searchsorted(runs, end)]
            if found := first_difference(times, begin * 1000 - 1, within.tolist(), end * 1000):
                self._note(what, found)
                break
        for change in self._rng.sample(list(changes), min(2, len(changes))):
            after_ms = change * 1000 + self._rng.choice((-1, 0, 999, self._rng.randrange(-10_800_000, 10_800_000)))
            end = (change // DAY_S + 1) * DAY_S
            later = runs[np.searchsorted(runs, after_ms // 1000, "right") : np.searchsorted(runs, end)]
            self.counts["instants"] += 1
            self._note(what, first_difference(times, after_ms, later[:1].tolist(), None if len(later) else end * 1000))

    def with_cronsim(self, text: str, cron: Cron, change: int, count: int) -> None:
        """Compare the first *count* runs after some hours before *change* with cronsim's, by the choices it has."""
        five = len(text.split()) == 5
        if self.zone not in BY_REAL_TIME and (cron.by_the_hour or not five):
            return
        gap, overlap = (Gap.DEFAULT, Overlap.DEFAULT) if five else (Gap.SKIP, Overlap.BOTH)
        after = change - self._rng.randrange(2 * DAY_S)
        runs: list[int] = []
        # A run at the jump and one that is due there anyway are two of its runs.
        for run in CronSim(text, datetime.fromtimestamp(after, self.walk.zone)):
            second = int(run.timestamp())
            if runs[-1:] != [second]:
                runs.append(second)
            if len(runs) == count:
                break
        self.counts["runs by cronsim"] += len(runs)
        times = CronTimes(text, self._zone, gap, overlap)
        self._note(f"cronsim: {text!r} in {self.zone}", first_difference(times, after * 1000, runs))
