"""
Recurring timers, as services ask for them.

A schedule is a record on the compacted topic `timer-schedule`. Planners turn it into timers a minute before these are
due; see docs/recurring.md.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Self

from kafka_timers.client.channel import Channel
from kafka_timers.client.request import CallbackSpec, Headers, Timer, checked_id, future_of, timed
from kafka_timers.clock import Clock
from kafka_timers.core.callbacks import Shown
from kafka_timers.core.moments import moment_at
from kafka_timers.core.schedules import CatchUp, Schedule, future_of_run, next_runs, schedule_from, times_text, zone_in
from kafka_timers.core.text import pairs_of
from kafka_timers.errors import RequestError, ScheduleError

__all__ = ["CATCH_UPS", "GAPS", "OVERLAPS", "Recurring", "Schedules", "schedule_of"]

# `list` is a method of `Schedules`.
_Moments = list[datetime]

CATCH_UPS = {"last": CatchUp.CATCH_UP_LAST, "all": CatchUp.CATCH_UP_ALL, "none": CatchUp.CATCH_UP_NONE}
GAPS = {"default": 0, "at-jump": 1, "skip": 2}
OVERLAPS = {"default": 0, "first": 1, "both": 2}


@dataclass(frozen=True, slots=True)
class Recurring:
    """
    A schedule.

    Attributes:
        schedule_id: your name for it.
        times: when it runs, in words.
        topic: gets the callbacks.
        key: of the callbacks; None for none.
        value: of the callbacks; None for tombstones.
        headers: of the callbacks, after the service's own.
        paused: whether it has no runs for now.
        note: for people.
        message: all of it, as it lies on `timer-schedule`.
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
        """Return the schedule that *message* is."""
        topic, key, value = Shown.of(message.callback)
        headers = tuple(pairs_of(message.callback.headers))
        return cls(schedule_id, times_text(message), topic, key, value, headers, message.paused, message.note, message)

    def next(self, count: int = 5, after: datetime | float | None = None) -> list[datetime]:
        """
        Return the next runs, in the schedule's own time zone, whether it is paused or not.

        Args:
            count: how many at most.
            after: an aware datetime or UNIX seconds; None is now, by this host's clock.

        Raises:
            ScheduleError: the schedule is none.
        """
        since = datetime.now(UTC) if after is None else after
        zone = zone_in(self.message)
        return [
            datetime.fromtimestamp(run_ms / 1000, zone) for run_ms in next_runs(self.message, moment_at(since), count)
        ]


def schedule_of(
    callback: CallbackSpec,
    reserved: frozenset[str],
    *,
    cron: str | None = None,
    zone: str = "UTC",
    every: timedelta | float | None = None,
    anchor: datetime | float | None = None,
    at: Iterable[datetime | float] | None = None,
    start: datetime | float | None = None,
    end: datetime | float | None = None,
    runs: int | None = None,
    jitter: timedelta | float = 0,
    catch_up: str = "last",
    catch_up_window: timedelta | float | None = None,
    gap: str = "default",
    overlap: str = "default",
    paused: bool = False,
    note: str = "",
) -> Schedule:
    """
    Return the message of a schedule; `Schedules.put` explains the arguments.

    Raises:
        ScheduleError: it has no times, or asks for what no schedule can have.
        RequestError: the callback is not what a request can carry.
        WhenError: a moment is none.
    """
    if sum(given is not None for given in (cron, every, at)) != 1:
        raise ScheduleError("give one of cron, every and at", field="when")
    schedule = Schedule(callback=future_of(callback, reserved), paused=paused, note=note)
    if cron is not None:
        schedule.cron.expression, schedule.cron.zone = cron, zone
        schedule.cron.gap = _chosen(gap, GAPS, "gap")  # type: ignore[assignment]
        schedule.cron.overlap = _chosen(overlap, OVERLAPS, "overlap")  # type: ignore[assignment]
    elif every is not None:
        schedule.interval.every_ms = _milliseconds(every)
        schedule.interval.anchor_ms = 0 if anchor is None else moment_at(anchor)
    else:
        schedule.instants.at_ms.extend(sorted({moment_at(each) for each in at or ()}))
    schedule.from_ms = 0 if start is None else moment_at(start)
    schedule.until_ms = 0 if end is None else moment_at(end)
    if runs is not None:
        if runs < 1:
            raise ScheduleError(f"{runs} runs are none: give 1 or more, or None for no bound", field="runs")
        schedule.runs_max = runs
    schedule.jitter_ms = _milliseconds(jitter)
    schedule.catch_up = _chosen(catch_up, CATCH_UPS, "catch_up")  # type: ignore[assignment]
    schedule.catch_up_window_s = 0 if catch_up_window is None else -(-_milliseconds(catch_up_window) // 1000)
    # Tells what is wrong with it.
    next_runs(schedule, 0, 1)
    return schedule


class Schedules:
    """
    The schedules of a service, at `TimerClient.schedules`.

    Args:
        channel: the way to the service.
        clock: by which `run_now` is now.
        reserved: names of the service's own topics, which get no callbacks.
    """

    def __init__(self, channel: Channel, clock: Clock, reserved: frozenset[str]) -> None:
        self._channel = channel
        self._clock = clock
        self._reserved = reserved

    async def put(
        self,
        schedule_id: str,
        *,
        topic: str,
        key: str | bytes | None = None,
        value: bytes | None = b"",
        token: str | None = None,
        headers: Headers = (),
        partition: int | None = None,
        partition_key: str | bytes | None = None,
        cron: str | None = None,
        zone: str = "UTC",
        every: timedelta | float | None = None,
        anchor: datetime | float | None = None,
        at: Iterable[datetime | float] | None = None,
        start: datetime | float | None = None,
        end: datetime | float | None = None,
        runs: int | None = None,
        jitter: timedelta | float = 0,
        catch_up: str = "last",
        catch_up_window: timedelta | float | None = None,
        gap: str = "default",
        overlap: str = "default",
        paused: bool = False,
        note: str = "",
    ) -> Recurring:
        """
        Have a callback come again and again, and return once the broker has accepted that.

        A schedule with the same id is replaced. That counts for the runs that are more than five seconds ahead.

        Args:
            schedule_id: your own name for it; a run has the timer id `schedule_id@2030-01-31T12:00:00Z`.
            topic: gets the callbacks; this and the next arguments are as in `TimerClient.at`.
            key: see there.
            value: see there.
            token: see there.
            headers: see there.
            partition: see there.
            partition_key: see there.
            cron: minute, hour, day of month, month and day of week; or six fields, the first of which is the second.
            zone: IANA name of the time zone that *cron* is read in.
            every: in place of *cron*, a timedelta or seconds between two runs, one at least.
            anchor: a moment at which *every* has a run; by default the UNIX epoch, so an hour runs on the hour.
            at: in place of *cron*, the moments of all runs.
            start: no run is before it.
            end: no run is at it or later.
            runs: how many there are at most.
            jitter: each run is due up to so much later, always by the same for the same run.
            catch_up: "last", "all" or "none" of the runs that were missed while no planner worked are made up for.
            catch_up_window: how long ago a run may have been missed and still be made up for; a day by default.
            gap: "at-jump" or "skip" for a local time that the clocks jump over; docs/recurring.md tells the default.
            overlap: "first" or "both" for a local time that comes twice; likewise.
            paused: whether it has no runs for now.
            note: for people.

        Raises:
            ScheduleError: it has no times, or asks for what no schedule can have; the text says which argument.
            RequestError: the callback is not what a request can carry.
            WhenError: a moment is none.
            PublishError: the broker did not accept it; after a time limit it still may.
            TopicsError: `timer-schedule` does not exist.
        """
        schedule = schedule_of(
            CallbackSpec(topic, key, value, None, token, headers, partition, partition_key),
            self._reserved,
            cron=cron,
            zone=zone,
            every=every,
            anchor=anchor,
            at=at,
            start=start,
            end=end,
            runs=runs,
            jitter=jitter,
            catch_up=catch_up,
            catch_up_window=catch_up_window,
            gap=gap,
            overlap=overlap,
            paused=paused,
            note=note,
        )
        return await self.write(schedule_id, schedule)

    async def write(self, schedule_id: str, schedule: Schedule) -> Recurring:
        """
        Write *schedule* as it is.

        Raises:
            ScheduleError: it is none.
            PublishError: the broker did not accept it; after a time limit it still may.
            TopicsError: `timer-schedule` does not exist.
        """
        next_runs(schedule, 0, 1)
        await self._channel.write_schedule(checked_id(schedule_id).encode(), schedule.SerializeToString())
        return Recurring.of(schedule_id, schedule)

    async def get(self, schedule_id: str) -> Recurring | None:
        """
        Return a schedule; None if there is none of this id.

        Its partition of `timer-schedule` is read for it.

        Raises:
            BrokerError: `timer-schedule` cannot be read: this client may need the right to.
            TopicsError: it does not exist.
        """
        name = checked_id(schedule_id).encode()
        value = (await self._channel.schedules(name)).get(name)
        return None if value is None else Recurring.of(schedule_id, schedule_from(value))

    async def list(self, prefix: str = "") -> list[Recurring]:
        """
        Return the schedules whose id begins with *prefix*, by id. What is no schedule is left out.

        All of `timer-schedule` is read for it.

        Raises:
            BrokerError: as `get`.
            TopicsError: as `get`.
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
        Have a schedule run no more, until it is resumed. What is in the pause is never made up for.

        Args:
            schedule_id: of the schedule.
            note: for people; empty keeps the one that it has.

        Raises:
            ScheduleError: there is none of this id.
            PublishError: as `put`.
            BrokerError: as `get`.
        """
        return await self._paused(schedule_id, note, paused=True)

    async def resume(self, schedule_id: str, note: str = "") -> Recurring:
        """Have a schedule run again; otherwise as `pause`."""
        return await self._paused(schedule_id, note, paused=False)

    async def delete(self, schedule_id: str) -> None:
        """
        Delete a schedule. Runs that are more than five seconds ahead do not fire; nothing happens if there is none.

        Raises:
            PublishError: as `put`.
            TopicsError: as `put`.
        """
        await self._channel.write_schedule(checked_id(schedule_id).encode(), None)

    async def run_now(self, schedule_id: str) -> Timer:
        """
        Have a run fire at once, besides those that the schedule has, and whether it is paused or not.

        Raises:
            ScheduleError: there is none of this id.
            PublishError: as `put`.
            BrokerError: as `get`.
        """
        found = await self._known(schedule_id)
        now_ms = moment_at(self._clock.wall_s())
        future = future_of_run(schedule_id, found.message, now_ms, None)
        name = future.timerId.encode()
        partition, offset = await self._channel.publish(timed(future, now_ms), future.SerializeToString(), name)
        return Timer(now_ms, partition, offset, future.timerId, future.token or None)

    async def next(self, schedule_id: str, count: int = 5) -> _Moments:
        """
        Return the next runs of a schedule, in its own time zone, whether it is paused or not.

        Raises:
            ScheduleError: there is none of this id.
            BrokerError: as `get`.
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


def _chosen(given: str, choices: Mapping[str, int], field: str) -> int:
    if given not in choices:
        raise ScheduleError(f"{given!r} is none of {', '.join(choices)}", field=field)
    return choices[given]


def _milliseconds(given: timedelta | float) -> int:
    if isinstance(given, timedelta):
        return given // timedelta(milliseconds=1)
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise RequestError(f"{given!r} is of type {type(given).__name__}: give a timedelta or seconds")
    return round(given * 1000)
