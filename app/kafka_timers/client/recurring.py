"""
Recurring timers, as services ask for them.

A schedule is a record on the compacted topic `timer-schedule`. Planners turn it into timers a minute before these are
due; see docs/recurring.md.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, Self, Unpack

from kafka_timers.client.channel import Channel
from kafka_timers.client.request import CallbackOptions, CallbackSpec, Timer, checked_id, future_of, timed
from kafka_timers.client.times import Times, chosen, milliseconds
from kafka_timers.clock import Clock
from kafka_timers.core.callbacks import Shown
from kafka_timers.core.moments import moment_at
from kafka_timers.core.schedules import CatchUp, Schedule, future_of_run, next_runs, schedule_from, times_text, zone_in
from kafka_timers.core.text import pairs_of
from kafka_timers.errors import ScheduleError

# `list` is a method of `Schedules`, so the type is named outside of the class.
_Moments = list[datetime]

_CATCH_UPS = {"last": CatchUp.CATCH_UP_LAST, "all": CatchUp.CATCH_UP_ALL, "none": CatchUp.CATCH_UP_NONE}


@dataclass(frozen=True, slots=True)
class Recurring:
    """
    A schedule.

    Attributes:
        schedule_id: your name for the schedule.
        times: its times, in words.
        topic, key, value, headers: those of the callbacks, as in `CallbackOptions`.
        paused: whether it has no runs for now.
        note: a note for people.
        message: the whole schedule, as it lies on `timer-schedule`.
    """

    schedule_id: str
    times: str
    topic: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    paused: bool
    note: str
    message: Schedule

    @classmethod
    def of(cls, schedule_id: str, message: Schedule) -> Self:
        """Return the schedule that *message* describes."""
        topic, key, value = Shown.of(message.callback)
        headers = tuple(pairs_of(message.callback.headers))
        return cls(schedule_id, times_text(message), topic, key, value, headers, message.paused, message.note, message)

    def next(self, count: int = 5, after: datetime | float | None = None) -> list[datetime]:
        """
        Return the next runs, in the schedule's own time zone. It does not matter whether it is paused.

        Args:
            count: largest number of runs to return.
            after: an aware datetime or UNIX seconds; None is now, by this host's clock.

        Raises:
            ScheduleError: the message is not a valid schedule.
        """
        since = datetime.now(UTC) if after is None else after
        zone = zone_in(self.message)
        return [
            datetime.fromtimestamp(run_ms / 1000, zone) for run_ms in next_runs(self.message, moment_at(since), count)
        ]


class Schedules:
    """
    The schedules of a service, at `TimerClient.schedules`.

    What writes a schedule raises `PublishError` if the broker did not accept it; after a time limit it still may. What
    reads one raises `BrokerError` if `timer-schedule` cannot be read; this client may lack the permission. Both raise
    `TopicsError` if the topic does not exist.

    Args:
        clock: clock that `run_now` and `next` use.
        reserved: names of the service's own topics, which get no callbacks.
    """

    def __init__(self, channel: Channel, clock: Clock, reserved: frozenset[str]) -> None:
        self._channel = channel
        self._clock = clock
        self._reserved = reserved

    async def put(
        self,
        schedule_id: str,
        times: Times,
        *,
        topic: str,
        start: datetime | float | None = None,
        end: datetime | float | None = None,
        runs: int | None = None,
        jitter: timedelta | float = 0,
        catch_up: Literal["last", "all", "none"] = "last",
        catch_up_window: timedelta | float | None = None,
        paused: bool = False,
        note: str = "",
        **others: Unpack[CallbackOptions],
    ) -> Recurring:
        """
        Make a callback come again and again. Returns once the broker has accepted the schedule.

        It replaces a schedule with the same id, for all runs that are more than five seconds ahead.

        Args:
            schedule_id: your own name for it; a run has the timer id `schedule_id@2030-01-31T12:00:00Z`.
            times: `Cron("0 9 * * *", zone="Europe/Paris")`, `Every(60)` or `At([...])`.
            topic: topic that gets the callbacks, as in `TimerClient.at`.
            start: no run is before this moment.
            end: no run is at this moment or later.
            runs: largest number of runs.
            jitter: longest delay that is added to a run; the same run always gets the same delay.
            catch_up: make up for "last", "all" or "none" of the runs that were missed while no planner worked.
            catch_up_window: age up to which a missed run is made up for; a day by default.
            paused: whether it has no runs for now.
            note: a note for people.
            others: key, value, token, headers, partition and partition_key of the callbacks; see `CallbackOptions`.

        Raises:
            ScheduleError: the schedule has no times, or asks for something that no schedule can have; the text names
                the argument.
            RequestError: a request cannot carry the callback.
            WhenError: a moment is not a point in time that a timer can have.
        """
        schedule = Schedule(callback=future_of(CallbackSpec(topic, **others), self._reserved), paused=paused, note=note)
        if not isinstance(times, Times):
            raise ScheduleError(f"{times!r} is none: give Cron, Every or At", field="times")
        times.write_to(schedule)
        schedule.from_ms = 0 if start is None else moment_at(start)
        schedule.until_ms = 0 if end is None else moment_at(end)
        if runs is not None:
            if runs < 1:
                raise ScheduleError(f"{runs} runs are none: give 1 or more, or None for no bound", field="runs")
            schedule.runs_max = runs
        schedule.jitter_ms = milliseconds(jitter)
        schedule.catch_up = chosen(catch_up, _CATCH_UPS, "catch_up")  # type: ignore[assignment]
        schedule.catch_up_window_s = 0 if catch_up_window is None else -(-milliseconds(catch_up_window) // 1000)
        return await self.write(schedule_id, schedule)

    async def write(self, schedule_id: str, schedule: Schedule) -> Recurring:
        """
        Write *schedule* as it is.

        Raises:
            ScheduleError: it is not a valid schedule.
        """
        next_runs(schedule, 0, 1)
        await self._channel.write_schedule(checked_id(schedule_id).encode(), schedule.SerializeToString())
        return Recurring.of(schedule_id, schedule)

    async def get(self, schedule_id: str) -> Recurring | None:
        """Return a schedule; None if there is none of this id. This reads the id's partition of `timer-schedule`."""
        name = checked_id(schedule_id).encode()
        value = (await self._channel.schedules(name)).get(name)
        return None if value is None else Recurring.of(schedule_id, schedule_from(value))

    async def list(self, prefix: str = "") -> list[Recurring]:
        """
        Return the schedules whose id begins with *prefix*, sorted by id. Invalid ones are left out.

        This reads all of `timer-schedule`.
        """
        found = []
        for name, value in sorted((await self._channel.schedules(None)).items()):
            try:
                if (schedule_id := name.decode()).startswith(prefix):
                    found.append(Recurring.of(schedule_id, schedule_from(value)))
            except (UnicodeError, ScheduleError):
                continue
        return found

    async def pause(self, schedule_id: str, note: str = "") -> Recurring:
        """
        Stop the runs of a schedule until it is resumed. Runs in the pause are never made up for.

        Args:
            note: a note for people; empty keeps the present one.

        Raises:
            ScheduleError: there is no schedule of this id.
        """
        return await self._paused(schedule_id, note, paused=True)

    async def resume(self, schedule_id: str, note: str = "") -> Recurring:
        """Let a schedule run again; otherwise as `pause`."""
        return await self._paused(schedule_id, note, paused=False)

    async def delete(self, schedule_id: str) -> None:
        """
        Delete a schedule. Runs that are more than five seconds ahead do not fire. Nothing happens if it does not exist.
        """
        await self._channel.write_schedule(checked_id(schedule_id).encode(), None)

    async def run_now(self, schedule_id: str) -> Timer:
        """
        Fire a run at once, in addition to the runs of the schedule, even if it is paused.

        Raises:
            ScheduleError: there is no schedule of this id.
        """
        found = await self._known(schedule_id)
        now_ms = moment_at(self._clock.wall_s())
        future = future_of_run(schedule_id, found.message, now_ms, None)
        name = future.timerId.encode()
        partition, offset = await self._channel.publish(timed(future, now_ms), future.SerializeToString(), name)
        return Timer(now_ms, partition, offset, future.timerId, future.token or None)

    async def next(self, schedule_id: str, count: int = 5) -> _Moments:
        """
        Return the next runs of a schedule, in its own time zone. It does not matter whether it is paused.

        Raises:
            ScheduleError: there is no schedule of this id.
        """
        return (await self._known(schedule_id)).next(count, self._clock.wall_s())

    async def _known(self, schedule_id: str) -> Recurring:
        found = await self.get(schedule_id)
        if found is None:
            raise ScheduleError(f"there is no schedule {schedule_id!r}", field="schedule_id")
        return found

    async def _paused(self, schedule_id: str, note: str, *, paused: bool) -> Recurring:
        schedule = (await self._known(schedule_id)).message
        schedule.paused, schedule.note = paused, note or schedule.note
        return await self.write(schedule_id, schedule)
