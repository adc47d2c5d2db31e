"""The runs of schedules that are requested, through changes and crashes. The rules of the service decide which fire."""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import pytest

from kafka_timers.core import schedules
from kafka_timers.core.calendar import zone_of
from kafka_timers.core.planning import AHEAD_MS, EDGE_MS, Plans, Step
from kafka_timers.core.schedules import HOLD_PREFIX, CatchUp, Hold, Planned, Schedule, due_ms, instant_text
from kafka_timers.core.wire import Condition, Future
from kafka_timers.testing import InMemoryTimers, ManualClock

NOW_S = 1_800_000_000
NOW_MS = NOW_S * 1000


def every(seconds: int, **more: object) -> Schedule:
    schedule = Schedule(**more)  # type: ignore[arg-type]
    schedule.interval.every_ms = seconds * 1000
    schedule.callback.callBackTopic = "t"
    return schedule


class Topics:
    """The records on the three topics, and the service that fires; a planner may begin anew with it at any time."""

    def __init__(self) -> None:
        self.clock = ManualClock(NOW_S)
        self.timers = InMemoryTimers(self.clock)
        self.offset = 0
        self.schedules: dict[bytes, tuple[int, int, bytes | None]] = {}
        self.planned: dict[bytes, bytes] = {}
        self.refused: list[str] = []
        self.requests: list[Future] = []
        self.plans = Plans()

    @property
    def now_ms(self) -> int:
        return round(self.clock.wall_s() * 1000)

    def put(self, name: bytes, schedule: Schedule | bytes | None) -> None:
        value = schedule.SerializeToString() if isinstance(schedule, Schedule) else schedule
        self.offset += 1
        self.schedules[name] = self.offset, self.now_ms, value
        self.plans.schedule(name, *self.schedules[name])

    def hold(self, name: bytes, **fields: Any) -> None:
        self.put(HOLD_PREFIX + name, Hold(**fields).SerializeToString())

    def pause(self, name: bytes) -> None:
        self.hold(name, paused=True)

    def resume(self, name: bytes) -> None:
        self.hold(name)

    def begin_anew(self, *, compacted: bool = True) -> None:
        """Have another planner take over, by the records on the topics."""
        self.plans = Plans()
        for name, value in self.planned.items():
            self.plans.planned(name, value)
        for name, (offset, appended_ms, schedule) in sorted(self.schedules.items(), key=itemgetter(1)):
            if schedule is not None or not compacted:
                self.plans.schedule(name, offset, appended_ms, schedule)
        self.plans.loaded(self.offset + 1)

    def commit(self, step: Step) -> None:
        for write in step.requests:
            future = Future.FromString(write.value)
            self.requests.append(future)
            self.timers._accept(write.key, write.value)
        for name, value in step.planned.items():
            if value is None:
                self.planned.pop(name, None)
            else:
                self.planned[name] = value
        self.refused += [each.why for each in step.refused]

    def next_step(self, records_max: int = 5_000) -> Step | None:
        """Return a step of some records, done a few at a time."""
        if step := self.plans.step(self.now_ms, records_max):
            for records in range(1, records_max + 1, max(1, records_max // 3)):
                self.plans.fill(step, records)
        return step

    def plan(self) -> None:
        while step := self.next_step():
            self.commit(step)
            self.plans.written(step)

    async def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.plan()
            await self.clock.advance(1)
        self.plan()

    def fired(self, name: str = "s") -> list[str]:
        """Return the instants of the runs that fired, in the order of firing."""
        return [told["timer-schedule-instant"] for told in self.headers() if told["timer-schedule"] == name]

    def headers(self) -> list[dict[str, str]]:
        return [{key: (value or b"").decode() for key, value in record.headers} for record in self.timers.take("t")]


@pytest.fixture
def topics() -> Topics:
    return Topics()


def instants(seconds: Iterator[int] | range) -> list[str]:
    return [instant_text((NOW_S + second) * 1000) for second in seconds]


async def test_a_schedule_runs_from_its_record_on(topics: Topics) -> None:
    topics.put(b"s", every(10))
    await topics.run(60)
    headers = topics.headers()
    assert [told["timer-schedule-instant"] for told in headers] == instants(range(0, 61, 10))
    assert [told["timer-schedule-run"] for told in headers] == [str(number) for number in range(1, 8)]
    assert headers[1]["timer-id"] == f"s@{instant_text(NOW_MS + 10_000)}"


async def test_runs_go_on_for_a_minute_while_no_planner_works(topics: Topics) -> None:
    topics.put(b"s", every(1))
    topics.plan()
    await topics.clock.advance(AHEAD_MS // 1000)
    assert topics.fired() == instants(range(AHEAD_MS // 1000 + 1))


@pytest.mark.parametrize(
    ("catch_up", "made_up"),
    [
        (CatchUp.CATCH_UP_ALL, range(0, 3_690, 10)),
        (CatchUp.CATCH_UP_LAST, range(3_680, 3_690, 10)),
        (CatchUp.CATCH_UP_UNSPECIFIED, range(3_680, 3_690, 10)),
        (CatchUp.CATCH_UP_NONE, range(0)),
    ],
)
async def test_runs_missed_within_an_hour_are_made_up_for_as_the_schedule_says(
    topics: Topics, catch_up: CatchUp, made_up: range
) -> None:
    topics.put(b"s", every(10, catch_up=catch_up))
    topics.plan()
    last_s = max(parsed.asked_ms and sum(parsed.asked_ms) for parsed in [Planned.FromString(topics.planned[b"s"])])
    planned_to = (last_s - NOW_MS) // 1000
    await topics.clock.advance(3_687)
    assert topics.fired() == instants(range(0, planned_to + 1, 10))
    topics.begin_anew()
    topics.plan()
    await topics.clock.advance(1)
    assert topics.fired() == instants(second for second in made_up if second > planned_to)


async def test_runs_missed_before_the_window_are_not_made_up_for(topics: Topics) -> None:
    topics.put(b"s", every(10, catch_up=CatchUp.CATCH_UP_ALL, catch_up_window_s=300))
    await topics.clock.advance(7_205)
    topics.plan()
    await topics.clock.advance(1)
    assert topics.fired() == instants(range(6_910, 7_206, 10))


async def test_nothing_is_asked_for_as_of_a_second_an_hour_ago(topics: Topics) -> None:
    topics.put(b"s", every(60, catch_up=CatchUp.CATCH_UP_ALL))
    await topics.clock.advance(7_230)
    while step := topics.next_step(100):
        assert all(int(write.key) >= NOW_S + 7_220 for write in step.requests)
        topics.commit(step)
        topics.plans.written(step)
    await topics.clock.advance(1)
    assert len(topics.fired()) == 121


async def test_a_schedule_that_is_paused_for_a_day_has_no_runs_in_it(topics: Topics) -> None:
    topics.put(b"s", every(10, catch_up=CatchUp.CATCH_UP_ALL))
    await topics.run(100)
    topics.pause(b"s")
    await topics.run(100)
    await topics.clock.advance(86_300)
    await topics.run(1)
    topics.resume(b"s")
    await topics.run(30)
    resumed_s = 100 + 100 + 86_300 + 1
    assert topics.fired() == instants([*range(0, 101, 10), *range(resumed_s // 10 * 10 + 10, resumed_s + 31, 10)])


async def test_a_schedule_ends_after_its_last_run(topics: Topics) -> None:
    topics.put(b"s", every(10, runs_max=3))
    topics.put(b"u", every(10, until_ms=NOW_MS + 30_000, from_ms=NOW_MS + 10_000))
    await topics.run(100)
    headers = topics.headers()
    told = defaultdict(list)
    for each in headers:
        told[each["timer-schedule"]].append(each["timer-schedule-instant"])
    assert told == {"s": instants(range(0, 30, 10)), "u": instants(range(10, 30, 10))}


async def test_a_change_counts_no_run_twice(topics: Topics) -> None:
    topics.put(b"s", every(10, runs_max=6))
    await topics.run(20)
    topics.put(b"s", every(10, runs_max=6, note="changed"))
    await topics.run(100)
    told = [(each["timer-schedule-instant"], each["timer-schedule-run"]) for each in topics.headers()]
    assert told == [(instant, str(number)) for number, instant in enumerate(instants(range(0, 60, 10)), 1)]


async def test_new_time_zones_move_the_runs_that_are_ahead(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    daily = Schedule()
    # Ten seconds from now, by the clocks of Paris in winter.
    daily.cron.expression, daily.cron.zone = "10 0 9 * * *", "Europe/Paris"
    daily.callback.callBackTopic = "t"
    topics.put(b"s", daily)
    topics.put(b"i", every(3_600))
    topics.plan()
    monkeypatch.setattr(schedules, "zone_of", lambda _: zone_of("Etc/GMT-2"))
    schedules._cron.cache_clear()
    assert topics.plans.zones_changed() == 1
    await topics.run(3_700)
    schedules._cron.cache_clear()
    assert topics.fired() == []


async def test_new_time_zones_do_not_bring_back_what_was_changed_meanwhile(topics: Topics) -> None:
    hourly = Schedule()
    hourly.cron.expression = "* * * * *"
    hourly.callback.callBackTopic = "t"
    topics.put(b"s", hourly)
    topics.plan()
    topics.pause(b"s")
    topics.plans.zones_changed()
    await topics.run(200)
    assert topics.fired() == instants([0])


async def test_runs_that_are_cancelled_in_vain_count(topics: Topics) -> None:
    """A planner drops runs, and dies before it cancels them: they fire. The schedule has no more runs than it may."""
    topics.put(b"s", every(10, runs_max=20))
    await topics.run(13)
    changed = every(10, runs_max=20)
    changed.interval.anchor_ms = NOW_MS + 3_000
    topics.put(b"s", changed)
    topics.plan()
    await topics.clock.advance(30)
    topics.begin_anew()
    await topics.run(300)
    assert len(topics.fired()) == 20


async def test_a_schedule_that_is_deleted_before_a_planner_has_looked_has_no_runs(topics: Topics) -> None:
    topics.put(b"s", every(10))
    topics.put(b"s", None)
    await topics.run(30)
    assert (topics.fired(), topics.planned) == ([], {})


async def test_a_planner_that_reads_earlier_records_too_goes_on_with_the_one_that_was_planned(topics: Topics) -> None:
    topics.put(b"s", every(10))
    before = topics.schedules[b"s"]
    topics.put(b"s", every(20))
    topics.plan()
    topics.plans = Plans()
    topics.plans.planned(b"s", topics.planned[b"s"])
    for record in (before, topics.schedules[b"s"]):
        topics.plans.schedule(b"s", *record)
    topics.plans.loaded(topics.offset + 1)
    await topics.run(100)
    assert topics.fired() == instants(range(0, 101, 20))


async def test_a_deleted_schedule_leaves_nothing_behind(topics: Topics) -> None:
    topics.put(b"s", every(10))
    await topics.run(20)
    topics.put(b"s", None)
    await topics.run(100)
    assert topics.fired() == instants(range(0, 21, 10))
    assert topics.planned == {}
    assert len(topics.plans) == 0


async def test_planned_runs_of_a_deleted_schedule_are_taken_back(topics: Topics) -> None:
    """Compaction may have removed the tombstone before a planner has read it."""
    topics.put(b"s", every(10))
    topics.plan()
    del topics.schedules[b"s"]
    topics.begin_anew()
    await topics.run(100)
    assert topics.fired() == instants([0])
    assert topics.planned == {}


async def test_a_run_that_is_in_the_new_schedule_too_has_its_callback(topics: Topics) -> None:
    topics.put(b"s", every(10))
    topics.plan()
    changed = every(20)
    changed.callback.callBack = b"new"
    topics.put(b"s", changed)
    await topics.run(60)
    assert [record.value for record in topics.timers.take("t")] == [b"", b"new", b"new", b"new"]


async def test_a_record_that_is_no_schedule_is_refused_once_and_ends_the_one_before(topics: Topics) -> None:
    topics.put(b"s", every(10))
    topics.plan()
    wrong = every(10)
    wrong.cron.expression = "0 25 * * *"
    wrong.callback.callBackTopic = "t"
    topics.put(b"s", wrong)
    topics.put(b"\xff", every(10))
    topics.put(b"u", b"\xff")
    await topics.run(10)
    topics.begin_anew()
    await topics.run(60)
    assert len(topics.refused) == 3
    assert topics.refused[0].startswith("cron.expression: '0 25 * * *' is no cron expression (Bad hour)")
    assert topics.refused[1].startswith("key: ")
    assert topics.refused[2].startswith("value: ")
    assert topics.fired() == instants([0])


async def test_no_schedule_is_taken_whose_runs_no_topic_would_take(topics: Topics) -> None:
    """One that fails again and again would hold up all others of its partition."""
    topics.plans = Plans(bytes_max=2_000)
    large = every(10)
    large.callback.callBack = b"x" * 1_900
    topics.put(b"large", large)
    topics.put(b"i" * 1_001, every(10))
    topics.put(b"s", every(10))
    await topics.run(10)
    assert topics.refused[0].startswith("callback: the schedule has 19")
    assert topics.refused[1] == "key: the id has more than 1000 bytes: give a shorter one"
    assert topics.fired() == instants(range(0, 11, 10))


async def test_a_transaction_has_no_more_bytes_than_brokers_like(topics: Topics) -> None:
    large = every(1, catch_up=CatchUp.CATCH_UP_ALL)
    large.callback.callBack = b"x" * 500_000
    topics.put(b"s", large)
    topics.put(b"u", large)
    await topics.clock.advance(60)
    sizes = []
    while step := topics.next_step():
        sizes.append(sum(len(write.value) for write in step.requests))
        topics.commit(step)
        topics.plans.written(step)
    assert max(sizes) < 9 << 20
    await topics.clock.advance(1)
    assert Counter(told["timer-schedule"] for told in topics.headers()) == {"s": 62, "u": 62}


async def test_jitter_moves_a_run_by_the_same_each_time(topics: Topics) -> None:
    topics.put(b"s", every(10, jitter_ms=5_000))
    topics.plan()
    before = [(future.timerId, future.millis) for future in topics.requests]
    topics.put(b"s", every(10, jitter_ms=5_000))
    topics.plan()
    again = [(future.timerId, future.millis) for future in topics.requests if future.condition == Condition.IF_PENDING]
    assert again
    assert set(again) <= set(before)
    assert len({millis for _, millis in before}) > 3


# --- jitter: the due moment counts ------------------------------------------------------------------------------------


HOUR_S = 3_600


def jittered(**more: object) -> Schedule:
    """Return a schedule with a run each hour, which is due within the hour after it."""
    schedule = every(HOUR_S, jitter_ms=HOUR_S * 1000 - 1, **more)
    schedule.interval.anchor_ms = NOW_MS
    return schedule


async def until_asked(topics: Topics) -> int:
    """Have the run at the beginning asked for, and return how many seconds later it is due."""
    topics.put(b"s", jittered())
    await topics.run(1)
    due_s = due_ms(b"s", jittered(), NOW_MS) // 1000 - NOW_S
    assert due_s > 100
    return due_s


@pytest.mark.parametrize("change", [lambda topics: topics.put(b"s", None), lambda topics: topics.pause(b"s")])
async def test_a_run_that_is_not_due_yet_does_not_fire_after_a_delete_or_a_pause(
    topics: Topics, change: Callable[[Topics], None]
) -> None:
    due_s = await until_asked(topics)
    await topics.run(due_s - 20)
    change(topics)
    await topics.run(HOUR_S)
    assert topics.fired() == []


async def test_a_run_that_is_not_due_yet_has_the_callback_of_a_change(topics: Topics) -> None:
    due_s = await until_asked(topics)
    await topics.run(due_s - 20)
    changed = jittered()
    changed.callback.callBack = b"new"
    topics.put(b"s", changed)
    await topics.run(60)
    assert [record.value for record in topics.timers.take("t")] == [b"new"]


async def test_a_run_that_is_not_due_yet_comes_back_with_its_schedule(topics: Topics) -> None:
    due_s = await until_asked(topics)
    topics.pause(b"s")
    await topics.run(due_s - 30)
    topics.begin_anew()
    topics.resume(b"s")
    await topics.run(60)
    assert topics.fired() == instants([0])


async def test_a_change_has_runs_with_an_instant_near_by_that_are_due_later(topics: Topics) -> None:
    """It does not touch the next 5 s, but it counts for what is due behind them, also if it is read seconds later."""
    changed = every(2, jitter_ms=60_000)
    topics.put(b"s", every(100, jitter_ms=60_000))
    await topics.run(11)
    topics.put(b"s", changed)
    await topics.clock.advance(3)
    await topics.run(100)
    came = set(topics.fired())
    late = []
    for second in (12, 14, 16, 18):
        is_late = due_ms(b"s", changed, NOW_MS + second * 1000) > NOW_MS + 14_000 + EDGE_MS
        assert (instant_text(NOW_MS + second * 1000) in came) is is_late
        late += [is_late] * (second <= 14)
    assert any(late)


@pytest.mark.parametrize("catch_up", [CatchUp.CATCH_UP_NONE, CatchUp.CATCH_UP_LAST, CatchUp.CATCH_UP_ALL])
async def test_a_run_that_is_not_due_yet_was_not_missed(topics: Topics, catch_up: CatchUp) -> None:
    schedule = every(60, jitter_ms=600_000, catch_up=catch_up, catch_up_window_s=60)
    due_of = {second: due_ms(b"s", schedule, (NOW_S + second) * 1000) for second in range(0, 3_600, 60)}
    topics.put(b"s", schedule)
    # Nobody plans for ten minutes.
    await topics.clock.advance(600)
    back_ms = topics.now_ms
    topics.plan()
    await topics.run(1_200)
    fired = topics.fired()
    assert len(fired) == len(set(fired))
    in_time = {second for second, due in due_of.items() if back_ms - 5_000 < due <= topics.now_ms}
    missed = {second for second, due in due_of.items() if due <= back_ms - 5_000}
    assert missed
    made_up = {
        CatchUp.CATCH_UP_NONE: set(),
        CatchUp.CATCH_UP_LAST: {second for second in missed if second == max(missed) and second >= 540},
        CatchUp.CATCH_UP_ALL: {second for second in missed if second >= 540},
    }[catch_up]
    assert set(fired) == set(instants(sorted(in_time | made_up)))


async def test_a_dropped_run_within_a_second_is_cancelled_when_it_is_due(topics: Topics) -> None:
    moments = Schedule()
    moments.instants.at_ms.extend([NOW_MS + 20_500, NOW_MS + 30_500])
    moments.callback.callBackTopic = "t"
    topics.put(b"s", moments)
    topics.plan()
    del moments.instants.at_ms[0]
    topics.put(b"s", moments)
    await topics.run(40)
    assert topics.fired() == [instant_text(NOW_MS + 30_500)]


# --- no planner, and wrong clocks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_paused", [True, False], ids=["paused", "ended"])
async def test_a_schedule_that_goes_on_while_no_planner_works_makes_up_for_its_runs(
    topics: Topics, is_paused: bool
) -> None:
    topics.put(b"s", every(60, catch_up=CatchUp.CATCH_UP_ALL))
    await topics.run(300)
    if is_paused:
        topics.pause(b"s")
    else:
        topics.put(b"s", every(60, runs_max=4))
    await topics.run(300)
    topics.fired()
    if is_paused:
        topics.resume(b"s")
    else:
        topics.put(b"s", every(60, catch_up=CatchUp.CATCH_UP_ALL))
    await topics.clock.advance(1_800)
    topics.begin_anew()
    await topics.run(130)
    assert topics.fired() == instants(range(600, 2_521, 60))


@pytest.mark.parametrize("is_held", [False, True], ids=["put again", "held"])
async def test_a_change_that_comes_before_a_planner_has_read_the_schedule_takes_the_runs_before_it(
    topics: Topics, is_held: bool
) -> None:
    topics.put(b"s", every(2, catch_up=CatchUp.CATCH_UP_ALL))
    await topics.clock.advance(7)
    if is_held:
        topics.hold(b"s", skipped_ms=[NOW_MS + 20_000])
    else:
        topics.put(b"s", every(5, catch_up=CatchUp.CATCH_UP_ALL))
    await topics.clock.advance(15)
    await topics.run(8)
    assert topics.fired() == instants([8, 10, 12, 14, 16, 18, 22, 24, 26, 28, 30] if is_held else range(10, 31, 5))


async def test_a_schedule_that_is_resumed_runs_at_once(topics: Topics) -> None:
    topics.pause(b"s")
    topics.put(b"s", every(10))
    await topics.run(98)
    topics.resume(b"s")
    await topics.run(12)
    assert topics.fired() == instants([100, 110])


async def test_a_record_appended_by_a_clock_that_is_ahead_counts_from_now_on(topics: Topics) -> None:
    topics.offset += 1
    topics.plans.schedule(b"s", topics.offset, NOW_MS + 3_600_000, every(10).SerializeToString())
    await topics.run(60)
    assert topics.fired() == instants(range(10, 61, 10))


async def test_a_run_that_was_cancelled_counts_no_more_for_a_schedule_that_is_put_again(topics: Topics) -> None:
    topics.put(b"s", every(10, runs_max=5))
    await topics.run(12)
    topics.put(b"s", None)
    await topics.run(3)
    # The run at 20 is cancelled by now, and workers know its id.
    topics.put(b"s", every(10, runs_max=5))
    topics.plan()
    await topics.run(80)
    assert topics.fired() == instants([0, 10, 30, 40, 50])


# --- what is held back ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_asked", [False, True], ids=["before it is asked for", "when it was asked for"])
async def test_a_run_that_is_skipped_does_not_fire_and_the_others_do(topics: Topics, is_asked: bool) -> None:
    topics.put(b"s", every(20, runs_max=4))
    if is_asked:
        topics.plan()
    topics.hold(b"s", skipped_ms=[NOW_MS + 40_000])
    await topics.run(200)
    assert topics.fired() == instants([0, 20, 60, 80])


async def test_a_run_that_was_skipped_comes_back(topics: Topics) -> None:
    topics.put(b"s", every(20))
    topics.hold(b"s", skipped_ms=[NOW_MS + 40_000])
    await topics.run(5)
    topics.begin_anew()
    topics.hold(b"s")
    await topics.run(60)
    assert topics.fired() == instants([0, 20, 40, 60])


async def test_a_schedule_that_is_put_anew_stays_paused_whoever_plans_it(topics: Topics) -> None:
    topics.put(b"s", every(10))
    topics.pause(b"s")
    topics.plan()
    topics.put(b"s", every(20))
    topics.begin_anew()
    await topics.run(30)
    topics.begin_anew()
    await topics.run(30)
    assert topics.fired() == []
    topics.resume(b"s")
    topics.begin_anew()
    await topics.run(40)
    assert topics.fired() == instants([60, 80, 100])


async def test_another_planner_resumes_a_schedule_whose_hold_has_gone_meanwhile(topics: Topics) -> None:
    """Compaction has left nothing that says so, and the schedule's own record is the one that was planned by."""
    topics.put(b"s", every(10))
    topics.pause(b"s")
    topics.put(b"s", every(20))
    topics.plan()
    topics.put(HOLD_PREFIX + b"s", None)
    topics.begin_anew()
    await topics.run(30)
    assert topics.fired()[-1:] == instants([20])


async def test_another_planner_plans_no_schedule_anew_that_is_held_back(topics: Topics) -> None:
    topics.put(b"s", every(10))
    topics.hold(b"s", skipped_ms=[NOW_MS + 20_000])
    topics.plan()
    topics.begin_anew()
    assert topics.plans.step(topics.now_ms) is None


async def test_a_hold_of_no_schedule_is_nothing_until_there_is_one(topics: Topics) -> None:
    topics.pause(b"s")
    await topics.run(5)
    topics.put(b"s", every(10))
    await topics.run(20)
    assert topics.fired() == []
    topics.hold(b"s")
    await topics.run(10)
    assert topics.fired() == instants([30])


# --- what another planner finds ---------------------------------------------------------------------------------------


async def test_a_plan_whose_record_lies_behind_the_end_that_was_proved_stays(topics: Topics) -> None:
    """A broker that was cut off ends its log before it; the true leader has it."""
    topics.put(b"s", every(10))
    topics.plan()
    topics.plans = Plans()
    topics.plans.planned(b"s", topics.planned[b"s"])
    assert topics.plans.loaded(topics.offset) == 0
    topics.plan()
    topics.plans.schedule(b"s", *topics.schedules[b"s"])
    await topics.run(100)
    assert topics.fired() == instants(range(0, 101, 10))


async def test_a_schedule_that_can_be_planned_no_more_is_set_aside_once(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = every(10)
    large.callback.callBack = b"x" * 1_900
    topics.put(b"large", large)
    elsewhere = Schedule()
    elsewhere.cron.expression, elsewhere.cron.zone = "* * * * *", "Europe/Kyiv"
    elsewhere.callback.callBackTopic = "t"
    topics.put(b"zone", elsewhere)
    topics.put(b"s", every(10))
    await topics.run(100)
    # A limit was lowered, and a zone is gone.
    monkeypatch.setattr(schedules, "zone_of", lambda _: zone_of("Europe/Kiew"))
    schedules._cron.cache_clear()
    topics.begin_anew()
    topics.plans._bytes_max = 2_000
    topics.fired()
    await topics.run(200)
    schedules._cron.cache_clear()
    assert sorted(why.split(":")[0] for why in topics.refused) == ["callback", "cron.zone"]
    assert topics.fired() == instants(range(110, 301, 10))


# --- random histories ------------------------------------------------------------------------------------------------


@dataclass
class Told:
    """A version of a schedule: when it was appended, the tick at which a planner had it, and the time between runs."""

    appended_ms: int
    every_ms: int | None
    seen_ms: int | None = None
    # Whether there was anything planned before, to which a change had to be made.
    is_first: bool = False


def random_schedule(rng: random.Random) -> tuple[Schedule, int]:
    seconds = rng.choice([1, 2, 3, 5, 7, 20])
    schedule = every(seconds, catch_up=CatchUp.CATCH_UP_ALL)
    if 60 % seconds == 0 and rng.random() < 0.3:
        schedule.cron.expression = f"*/{seconds} * * * * *"
        schedule.cron.zone = rng.choice(["", "Europe/Paris"])
    return schedule, seconds * 1000


async def lived(seed: int) -> None:
    """Live through two minutes in which schedules change and planners die."""
    rng, topics = random.Random(seed), Topics()
    versions: dict[bytes, list[Told]] = defaultdict(list)
    budget = rng.choice([1, 7, 50, 5_000])
    # A planner that is away for 5 s does not cancel runs that a change has dropped.
    away, last_away = 0, 0
    paused, present = dict[bytes, bool](), dict[bytes, int | None]()
    for number in range(120):
        for name in (b"a", b"b", b"c"):
            if rng.random() < 0.06:
                kind = rng.random()
                schedule, every_ms = random_schedule(rng)
                if kind < 0.4:
                    paused[name] = not paused.get(name, False)
                    topics.hold(name, paused=paused[name])
                else:
                    present[name] = None if kind > 0.8 else every_ms
                    topics.put(name, None if kind > 0.8 else schedule)
                runs = None if paused.get(name) else present.get(name)
                versions[name].append(Told(topics.now_ms, runs))
        if away:
            away, last_away = away - 1, number
        elif rng.random() < 0.05 and number - last_away > 5:
            away = rng.randrange(1, 4)
        else:
            work(topics, versions, rng, budget)
        await topics.clock.advance(1)
    work(topics, versions, rng, budget)
    await topics.run(100)
    check(topics, versions)


def work(topics: Topics, versions: dict[bytes, list[Told]], rng: random.Random, budget: int) -> None:
    """Plan all runs to plan; the planner may die before or after each commit, and another one begins anew."""
    while step := topics.next_step(budget):
        if rng.random() < 0.1:
            topics.begin_anew(compacted=rng.random() < 0.5)
            continue
        for name in step.entries:
            # One that was replaced before anybody has read it never was.
            if versions[name] and versions[name][-1].seen_ms is None:
                versions[name][-1].seen_ms, versions[name][-1].is_first = topics.now_ms, name not in topics.planned
        topics.commit(step)
        if rng.random() < 0.1:
            topics.begin_anew(compacted=rng.random() < 0.5)
        else:
            topics.plans.written(step)


def wanted(told: list[Told]) -> tuple[set[int], set[int]]:
    """
    Return the runs of a schedule that must fire, and those that may.

    Each by the last version that was known in time. Where one ends a pause, its runs of the first seconds fire unless
    runs of an earlier version are being cancelled.
    """
    must, may = set[int](), set[int]()
    for run_ms in range(NOW_MS, NOW_MS + 221_000, 1000):
        has = [
            each.every_ms is not None and run_ms % each.every_ms == 0 and run_ms >= each.appended_ms for each in told
        ]
        sure = [index for index in range(len(told)) if reaches(told, index, run_ms, is_sure=True)]
        rest = range(sure[-1] if sure else 0, len(told))
        if sure and has[sure[-1]]:
            must.add(run_ms)
        if any(has[index] for index in rest if reaches(told, index, run_ms, is_sure=False)):
            may.add(run_ms)
    return must, may


def reaches(told: list[Told], index: int, run_ms: int, *, is_sure: bool) -> bool:
    version = told[index]
    if version.seen_ms is None:
        return False
    before = [each for each in told[:index] if each.seen_ms is not None]
    if version.is_first or (not is_sure and before and before[-1].every_ms is None):
        return run_ms >= version.appended_ms
    return run_ms > version.seen_ms + EDGE_MS


def check(topics: Topics, versions: dict[bytes, list[Told]]) -> None:
    end_ms = topics.now_ms
    fired = Counter((told["timer-schedule"], told["timer-schedule-instant"]) for told in topics.headers())
    assert not [run for run, count in fired.items() if count > 1]
    for name, told in versions.items():
        must, may = ({instant_text(run_ms) for run_ms in runs if run_ms <= end_ms} for runs in wanted(told))
        came = {instant for schedule, instant in fired if schedule == name.decode()}
        assert must <= came <= must | may, (name, sorted(must - came), sorted(came - must - may), told)


@pytest.mark.parametrize("seed", range(10))
async def test_each_run_fires_once_through_changes_and_dead_planners(seed: int, histories: int | None) -> None:
    for number in range((histories or 900) // 30):
        await lived(seed * 100_000 + number)


# --- timer-schedule is made anew -------------------------------------------------------------------------------------


async def test_a_record_of_a_topic_made_anew_is_not_taken_for_the_one_at_its_offset_before(topics: Topics) -> None:
    topics.put(b"s", Schedule())
    await topics.run(5)
    topics.offset = 0
    topics.put(b"s", every(10))
    topics.begin_anew()
    await topics.run(20)
    assert topics.fired() == instants(range(10, 21, 10))
