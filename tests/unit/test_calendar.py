"""
Which instants a cron expression names: each row of the table in `cron_walk.py`, and random expressions against a walk.

`test_calendar_campaign.py` does the latter with tens of thousands.
"""

import os
import random
from datetime import date, datetime, timedelta
from functools import cache

import pytest
from cron_comparison import CHOICES, Comparison
from cron_expressions import ZONES, expression
from cron_walk import EPOCH, FIRST_DAY, Cron, Walk, local_time, runs_second_by_second, zone_of_tzdata
from cronsim import CronSim

from kafka_timers.core.calendar import CronTimes, Gap, Overlap, zone_of
from kafka_timers.errors import ScheduleError

# Read now, before the variables of the user who runs the tests are removed.
SEED = int(os.environ.get("KAFKA_TIMERS_TEST_SEED", "1"))
EXPRESSIONS = 200


def ms_of(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def runs(
    expression: str,
    zone: str,
    after: str,
    count: int,
    gap: Gap = Gap.DEFAULT,
    overlap: Overlap = Overlap.DEFAULT,
) -> list[str]:
    """Return the first *count* runs later than *after*, as the clocks of the zone show them."""
    times = CronTimes(expression, zone_of(zone), gap, overlap)
    found, at = [], ms_of(after)
    for _ in range(count):
        told = times.next_after(at)
        if told is None:
            break
        local = datetime.fromtimestamp(told / 1000, zone_of_tzdata(zone))
        found.append(local.isoformat(timespec="auto" if told % 60_000 else "minutes"))
        at = told
    return found


# --- the table --------------------------------------------------------------------------------------------------------

PARIS = "Europe/Paris"
BEFORE_THE_GAP, BEFORE_THE_OVERLAP = "2026-03-29T01:15+01:00", "2026-10-25T01:15+02:00"


def test_a_local_time_that_exists_once_is_a_run_at_any_offset() -> None:
    assert runs("0 9 * * MON-FRI", PARIS, "2026-03-26T12:00+01:00", 2) == [
        "2026-03-27T09:00+01:00",
        "2026-03-30T09:00+02:00",
    ]


def test_a_sixth_field_in_front_is_the_second() -> None:
    assert runs("15,45 58/1 23 * * *", PARIS, "2026-06-01T23:58:50+02:00", 3) == [
        "2026-06-01T23:59:15+02:00",
        "2026-06-01T23:59:45+02:00",
        "2026-06-02T23:58:15+02:00",
    ]


def test_an_expression_that_begins_with_a_star_has_no_run_in_a_gap() -> None:
    assert runs("*/30 * * * *", PARIS, BEFORE_THE_GAP, 3) == [
        "2026-03-29T01:30+01:00",
        "2026-03-29T03:00+02:00",
        "2026-03-29T03:30+02:00",
    ]
    assert runs("30 */2 * * *", PARIS, BEFORE_THE_GAP, 1) == ["2026-03-29T04:30+02:00"]
    assert runs("*/30 2 * * *", PARIS, BEFORE_THE_GAP, 1) == ["2026-03-30T02:00+02:00"]


def test_any_other_expression_runs_at_the_jump() -> None:
    assert runs("30 2 * * *", PARIS, "2026-03-28T00:00+01:00", 3) == [
        "2026-03-28T02:30+01:00",
        "2026-03-29T03:00+02:00",
        "2026-03-30T02:30+02:00",
    ]


def test_all_runs_in_a_gap_and_the_run_at_the_jump_are_one_run() -> None:
    assert runs("0,15,45 2-3 * * *", PARIS, BEFORE_THE_GAP, 3) == [
        "2026-03-29T03:00+02:00",
        "2026-03-29T03:15+02:00",
        "2026-03-29T03:45+02:00",
    ]


def test_a_star_that_no_field_of_minute_or_hour_begins_with_makes_no_difference() -> None:
    assert runs("*/20 30 2 * * *", PARIS, BEFORE_THE_GAP, 2) == ["2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00"]
    assert runs("0,*/30 2 * * *", PARIS, BEFORE_THE_GAP, 2) == ["2026-03-29T03:00+02:00", "2026-03-30T02:00+02:00"]


def test_an_expression_that_begins_with_a_star_runs_twice_in_an_overlap() -> None:
    twice = ["2026-10-25T02:30+02:00", "2026-10-25T02:30+01:00"]
    assert runs("30 */2 * * *", PARIS, BEFORE_THE_OVERLAP, 3) == [*twice, "2026-10-25T04:30+01:00"]
    assert runs("*/30 2 * * *", PARIS, BEFORE_THE_OVERLAP, 4) == [
        "2026-10-25T02:00+02:00",
        "2026-10-25T02:30+02:00",
        "2026-10-25T02:00+01:00",
        "2026-10-25T02:30+01:00",
    ]


def test_any_other_expression_runs_the_first_time() -> None:
    assert runs("30 2 * * *", PARIS, BEFORE_THE_OVERLAP, 2) == ["2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"]


def test_gap_at_jump_holds_for_stars_too() -> None:
    assert runs("30 * * * *", PARIS, BEFORE_THE_GAP, 3, gap=Gap.AT_JUMP) == [
        "2026-03-29T01:30+01:00",
        "2026-03-29T03:00+02:00",
        "2026-03-29T03:30+02:00",
    ]


def test_gap_skip_holds_for_any_other_expression_too() -> None:
    assert runs("30 2 * * *", PARIS, BEFORE_THE_GAP, 1, gap=Gap.SKIP) == ["2026-03-30T02:30+02:00"]


def test_overlap_first_holds_for_stars_too() -> None:
    assert runs("*/30 * * * *", PARIS, "2026-10-25T02:15+02:00", 2, overlap=Overlap.FIRST) == [
        "2026-10-25T02:30+02:00",
        "2026-10-25T03:00+01:00",
    ]


def test_overlap_both_holds_for_any_other_expression_too() -> None:
    assert runs("30 2 * * *", PARIS, BEFORE_THE_OVERLAP, 2, overlap=Overlap.BOTH) == [
        "2026-10-25T02:30+02:00",
        "2026-10-25T02:30+01:00",
    ]


@pytest.mark.parametrize(
    ("expression", "zone", "after", "run"),
    [
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-04T01:59+10:30", "2026-10-04T02:30+11:00"),
        ("30 1,2 * * *", "Antarctica/Troll", "2026-03-29T00:59+00:00", "2026-03-29T03:00+02:00"),
        # Nepal, North Korea and Venezuela took other offsets for good, Samoa left a day out.
        ("10 0 1 1 *", "Asia/Kathmandu", "1985-12-31T12:00+05:30", "1986-01-01T00:15+05:45"),
        ("45 23 4 5 *", "Asia/Pyongyang", "2018-05-04T12:00+08:30", "2018-05-05T00:00+09:00"),
        ("40 2 * * *", "America/Caracas", "2016-05-01T02:00-04:30", "2016-05-01T03:00-04:00"),
        ("0 9 30 12 *", "Pacific/Apia", "2011-12-29T12:00-10:00", "2011-12-31T00:00+14:00"),
    ],
)
def test_offsets_change_by_any_amount_and_for_any_reason(expression: str, zone: str, after: str, run: str) -> None:
    assert runs(expression, zone, after, 1) == [run]


def test_overlaps_are_as_long_as_the_offset_says() -> None:
    half_an_hour = ["2026-04-05T01:45+11:00", "2026-04-06T01:45+10:30"]
    assert runs("45 1 * * *", "Australia/Lord_Howe", "2026-04-05T01:00+11:00", 2) == half_an_hour
    two_hours = ["2026-10-25T01:30+02:00", "2026-10-25T02:30+02:00", "2026-10-26T01:30+00:00"]
    assert runs("30 1,2 * * *", "Antarctica/Troll", "2026-10-25T01:00+02:00", 3) == two_hours


def test_an_overlap_reaches_back_into_the_day_before() -> None:
    late = ["2026-04-04T23:30-03:00", "2026-04-05T23:30-04:00"]
    assert runs("30 23 * * *", "America/Santiago", "2026-04-04T12:00-03:00", 2) == late
    twice = ["2026-04-04T23:30-03:00", "2026-04-04T23:30-04:00", "2026-04-11T23:30-04:00"]
    assert runs("30 23 * * SAT", "America/Santiago", "2026-04-04T12:00-03:00", 3, overlap=Overlap.BOTH) == twice


@pytest.mark.parametrize(
    ("expression", "zone", "after", "run"),
    [
        ("0 0 1 4 11 *", "America/Sao_Paulo", "2018-11-03T23:00-03:00", "2018-11-04T01:00-02:00"),
        ("0 0 2 4 11 *", "America/Sao_Paulo", "2018-11-03T23:00-03:00", "2018-11-04T02:00-02:00"),
        ("0 0 1 * * 0", "America/Sao_Paulo", "2018-11-03T23:00-03:00", "2018-11-04T01:00-02:00"),
        ("0 1 6 9 *", "America/Santiago", "2026-09-05T12:00-04:00", "2026-09-06T01:00-03:00"),
        ("0 0 6 9 *", "America/Santiago", "2026-09-05T12:00-04:00", "2026-09-06T01:00-03:00"),
        ("*/5 1 6 9 *", "America/Santiago", "2026-09-05T12:00-04:00", "2026-09-06T01:00-03:00"),
        ("0 0 24 4 *", "Africa/Cairo", "2026-04-23T12:00+02:00", "2026-04-24T01:00+03:00"),
        ("30 * 24 4 *", "Africa/Cairo", "2026-04-23T12:00+02:00", "2026-04-24T01:30+03:00"),
    ],
)
def test_no_year_is_skipped_where_midnight_does_not_exist(expression: str, zone: str, after: str, run: str) -> None:
    """https://github.com/nats-io/nats-server/issues/8543 has the first three."""
    assert runs(expression, zone, after, 1) == [run]


def test_a_midnight_that_does_not_exist_is_skipped_if_asked_for() -> None:
    only = runs("0 0 6 9 *", "America/Santiago", "2026-09-05T12:00-04:00", 1, gap=Gap.SKIP)
    assert only == ["2027-09-06T00:00-03:00"]


# --- where it begins, and where it ends -------------------------------------------------------------------------------


def test_a_run_is_later_than_the_millisecond_asked_for() -> None:
    times = CronTimes("* * * * * *", zone_of(PARIS))
    assert [times.next_after(ms) for ms in (999, 1_000, 1_001, 1_999)] == [1_000, 2_000, 2_000, 2_000]


def test_the_second_time_of_an_overlap_has_no_run_whenever_it_is_asked_for() -> None:
    for minute in (0, 29, 30, 31, 59):
        asked = f"2026-10-25T02:{minute:02}+01:00"
        assert runs("30 2 * * *", PARIS, asked, 1) == ["2026-10-26T02:30+01:00"]
        assert runs("30 2,3 * * *", PARIS, asked, 1) == ["2026-10-25T03:30+01:00"]
        assert runs("0 2-3 * * *", PARIS, asked, 1) == ["2026-10-25T03:00+01:00"]


def test_after_the_jump_no_run_of_the_gap_is_left() -> None:
    assert runs("30 2 * * *", PARIS, "2026-03-29T02:59:59+02:00", 1) == ["2026-03-29T03:00+02:00"]
    assert runs("30 2 * * *", PARIS, "2026-03-29T03:00+02:00", 1) == ["2026-03-30T02:30+02:00"]


def test_the_29th_of_february_is_found_beyond_2100_which_has_none() -> None:
    assert runs("30 2 29 2 *", PARIS, "2096-03-01T00:00+01:00", 1) == ["2104-02-29T02:30+01:00"]


def test_a_schedule_that_never_runs_is_refused_or_has_no_next_run() -> None:
    with pytest.raises(ScheduleError):
        CronTimes("0 0 30 2 *", zone_of(PARIS))
    # The first of a month is no second Monday.
    assert CronTimes("0 0 */31 * MON#2", zone_of(PARIS)).next_after(ms_of("2026-01-01T00:00+01:00")) is None


def test_fifty_years_are_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker waits for the answer: it is no matter of seconds that the clocks change a hundred times until then."""
    days: list[date] = []
    match_day = CronSim.match_day
    monkeypatch.setattr(CronSim, "match_day", lambda self, day: days.append(day) or match_day(self, day))
    for text in ("0 0 */31 * MON#2", "30 2 */28 2 SUN#5"):
        days.clear()
        CronTimes(text, zone_of(PARIS)).next_after(ms_of("2040-03-01T00:00+01:00"))
        assert len(days) < 2 * 50 * 366, text


@pytest.mark.parametrize("zone", ["Mars/Olympus", "", "../../etc/passwd", "europe"])
def test_an_unknown_zone_is_refused(zone: str) -> None:
    with pytest.raises(ScheduleError):
        zone_of(zone)


@pytest.mark.parametrize(
    "expression",
    [
        *("", "* * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 8", "*/0 * * * *"),
        *("5-1 * * * *", "* * * * FRI-MON", "* * * * 1#6", "* * L-1 * *", "a * * * *", "-1 * * * *"),
        "0 0 9 * * MON 2026",
    ],
)
def test_an_invalid_expression_is_refused(expression: str) -> None:
    with pytest.raises(ScheduleError):
        CronTimes(expression, zone_of(PARIS))


# --- random expressions -----------------------------------------------------------------------------------------------


@cache
def drawn() -> list[tuple[str, Cron]]:
    rng = random.Random(SEED)
    return [(text, Cron(text)) for text in (expression(rng) for _ in range(EXPRESSIONS))]


@pytest.mark.parametrize("zone", ZONES)
def test_random_expressions_run_when_the_table_says(zone: str) -> None:
    rng = random.Random(f"{SEED} {zone}")
    comparison = Comparison(zone, date(2050, 1, 1), rng)
    for text, cron in drawn():
        comparison.first_runs(text, cron, 10)
        # A jump ahead and an overlap.
        at = rng.randrange(len(comparison.changes) - 1)
        comparison.around(text, cron, comparison.changes[at : at + 2])
        comparison.with_cronsim(text, cron, rng.choice(comparison.changes), 2)
    assert not comparison.differences, "\n".join(comparison.differences)


def test_the_walk_reads_fields_as_cronsim_does() -> None:
    rng = random.Random(SEED)
    for text, cron in drawn():
        other = CronSim(text, datetime(2024, 1, 1))
        assert (cron.seconds, cron.minutes, cron.hours) == (other.seconds, other.minutes, other.hours), text
        for number in rng.sample(range(20_000, 50_000), 100):
            day = EPOCH + timedelta(number)
            named = day.month in other.months and other.match_day(day)
            assert cron.day_matches[number - FIRST_DAY] == named, (text, day)


@pytest.mark.parametrize("zone", [*ZONES, "Africa/Casablanca"])
def test_the_walk_finds_the_same_runs_as_the_plainest_one(zone: str) -> None:
    rng = random.Random(f"{SEED} {zone}")
    walk = Walk(zone, date(2026, 1, 1), date(2027, 1, 1))
    for change in walk.changes:
        seconds = range(change - 9_000, change + 9_000)
        clock = [(second, local_time(walk.zone, second)) for second in seconds]
        days = walk.days_around([change], 1)
        that_run = [(text, cron) for text, cron in drawn() if cron.day_matches[days - FIRST_DAY].any()]
        for text, cron in rng.sample(that_run, 4):
            gap, overlap = (each.name for each in rng.choice(CHOICES))
            found = [run for run in walk.runs(cron, gap, overlap, days).tolist() if run in seconds]
            assert found == runs_second_by_second(cron, walk.zone, gap, overlap, clock), (text, gap, overlap, change)
