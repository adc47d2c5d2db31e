"""
Recurring timers, as services ask for them.

A schedule is a record on the compacted topic `timer-schedule`. Planners turn it into timers a minute before these are
due; see docs/recurring.md.
"""

import asyncio
import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple, Self, Unpack

from kafka_timers.broker.placed import Latest
from kafka_timers.client.channel import Channel
from kafka_timers.client.request import Timer, checked_id, timed
from kafka_timers.client.schedule_options import ChangeOptions, ScheduleOptions, write_schedule
from kafka_timers.client.times import Times
from kafka_timers.clock import Clock
from kafka_timers.core.callbacks import Shown
from kafka_timers.core.moments import moment_at
from kafka_timers.core.planning import EDGE_MS
from kafka_timers.core.schedules import (
    HOLD_PREFIX,
    NO_HOLD,
    Hold,
    Planned,
    Schedule,
    future_of_run,
    hold_from,
    last_run,
    next_runs,
    run_id,
    schedule_from,
    times_text,
    zone_in,
)
from kafka_timers.core.text import pairs_of
from kafka_timers.core.wire import SECOND_LIMIT
from kafka_timers.errors import ScheduleError

# So long a skipped instant is remembered after it.
_SKIPPED_MS = 86_400_000
# How often a change is made anew on top of another one that came first.
_TRIES = 10
_PAUSE_S = 0.1


class Run(NamedTuple):
    """
    A run that a schedule will have.

    Attributes:
        instant: the moment of its times, in the schedule's own time zone.
        due: when it fires: later than that by its jitter.
        timer_id: the id of its timer.
    """

    instant: datetime
    due: datetime
    timer_id: str


@dataclass(frozen=True, slots=True)
class Recurring:
    """
    A schedule.

    Attributes:
        schedule_id: your name for the schedule.
        times: its times, in words.
        topic, key, value, headers: those of the callbacks, as in `CallbackOptions`.
        note: the note of the schedule.
        message: the whole schedule, as it lies on `timer-schedule`.
        hold: what is held back of it: its pause with the pause's own note, and runs that are skipped.
        planned: how far it is planned; empty if no planner has read it yet, or this was not asked for.
    """

    schedule_id: str
    times: str
    topic: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    note: str
    message: Schedule
    hold: Hold
    planned: Planned

    @classmethod
    def of(cls, schedule_id: str, message: Schedule, hold: Hold = NO_HOLD, planned: Planned | None = None) -> Self:
        """Return the schedule that *message* describes."""
        topic, key, value = Shown.of(message.callback)
        headers = tuple(pairs_of(message.callback.headers))
        times = times_text(message)
        return cls(schedule_id, times, topic, key, value, headers, message.note, message, hold, planned or Planned())

    @property
    def paused(self) -> bool:
        """Whether it has no runs until it is resumed."""
        return self.hold.paused

    @property
    def skips(self) -> list[datetime]:
        """The instants of runs that are left out, in the schedule's own time zone. Raises `ScheduleError` as `next`."""
        zone = zone_in(self.message)
        # Others may have written what no run has.
        skipped = [each for each in self.hold.skipped_ms if 0 <= each < SECOND_LIMIT * 1000]
        return [datetime.fromtimestamp(instant_ms / 1000, zone) for instant_ms in skipped]

    def next(self, count: int = 5, after: datetime | float | None = None) -> list[Run]:
        """
        Return the next runs. It does not matter whether the schedule is paused.

        Args:
            count: largest number of runs to return.
            after: they are due after this aware datetime or these UNIX seconds; None is now, by this host's clock.

        Raises:
            ScheduleError: the message is not a valid schedule.
        """
        after_ms = moment_at(datetime.now(UTC) if after is None else after)
        runs = next_runs(self.schedule_id, self.message, after_ms, count, self.hold, self.planned)
        return [self._run(*run) for run in runs.items()]

    def last(self, before: datetime | float | None = None) -> Run | None:
        """
        Return the last run by its times; None if there was none within a year. It does not matter since when there is
        this schedule, and whether it was paused.

        Args:
            before: it was due at this aware datetime or these UNIX seconds, or earlier; None is now, by this host's
                clock.

        Raises:
            ScheduleError: as `next`.
        """
        before_ms = moment_at(datetime.now(UTC) if before is None else before)
        run = last_run(self.schedule_id, self.message, before_ms, self.hold)
        return run and self._run(*run)

    def _run(self, run_ms: int, due_ms: int) -> Run:
        zone = zone_in(self.message)
        return Run(
            datetime.fromtimestamp(run_ms / 1000, zone),
            datetime.fromtimestamp(due_ms / 1000, zone),
            run_id(self.schedule_id, run_ms),
        )


# `list` and `next` are methods of `Schedules`, so the types are named outside of the class.
_Runs = list[Run]
_Found = list[Recurring]


class Schedules:
    """
    The schedules of a service, at `TimerClient.schedules`.

    What writes a schedule raises `PublishError` if the broker did not accept it; after a time limit it still may. What
    reads one raises `BrokerError` if `timer-schedule` cannot be read; this client may lack the permission. Both raise
    `TopicsError` if the topic does not exist. What changes a schedule or its pause reads it first. If another client
    has changed the same in between, the change is made again, on top of the other one.

    Args:
        clock: clock that `put`, `skip`, `run_now` and `next` use.
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
        paused: bool | None = None,
        **others: Unpack[ScheduleOptions],
    ) -> None:
        """
        Make a callback come again and again. Returns once the broker has accepted the schedule.

        It replaces a schedule with the same id, for all runs that are due in more than five seconds.

        Args:
            schedule_id: your own name for it; a run has the timer id `schedule_id@2030-01-31T12:00:00Z`.
            times: `Cron("0 9 * * *", zone="Europe/Paris")`, `Every(60)` or `At([...])`.
            topic: topic that gets the callbacks, as in `TimerClient.at`.
            paused: True pauses it and False resumes it; by default a pause stays, and so do runs that are skipped.
            others: see `ScheduleOptions`, and `CallbackOptions` for those of the callbacks.

        Raises:
            ScheduleError: the schedule has no run from now on, or asks for something that no schedule can have; the
                text names the argument.
            RequestError: a request cannot carry the callback.
        """
        schedule = draft(schedule_id, times, {"topic": topic, **others}, self._reserved, self._clock.wall_s()).message
        if paused:
            # First, so that it has no run in between.
            await self._set_paused(schedule_id, "", paused=True)
        await self.write(schedule_id, schedule)
        if paused is False:
            await self._set_paused(schedule_id, "", paused=False)

    async def write(self, schedule_id: str, schedule: Schedule) -> None:
        """
        Write *schedule* as it is.

        Raises:
            ScheduleError: it is not a valid schedule, or has no run from now on.
        """
        name = _name_of(schedule_id)
        _check(schedule_id, schedule, self._clock.wall_s())
        await self._channel.write_schedule(name, name, schedule.SerializeToString())

    async def change(self, schedule_id: str, times: Times | None = None, **others: Unpack[ChangeOptions]) -> Recurring:
        """
        Change what you name of a schedule, and keep the rest, for all runs that are due in more than five seconds.

        Args:
            times: its new times; None keeps them.
            others: as in `put`.

        Raises:
            ScheduleError: there is no schedule of this id, or as in `put`.
            RequestError: a request cannot carry the callback.
        """

        def changed(value: bytes | None) -> bytes | None:
            if value is None:
                return None
            schedule = schedule_from(value)
            write_schedule(schedule, times, others, self._reserved)
            _check(schedule_id, schedule, self._clock.wall_s())
            return schedule.SerializeToString()

        name = _name_of(schedule_id)
        await self._edit(name, name, changed)
        return await self._known(schedule_id)

    async def get(self, schedule_id: str) -> Recurring | None:
        """
        Return a schedule; None if there is none of this id. This reads the id's partition of `timer-schedule`, and of
        `timer-planned`.
        """
        name = _name_of(schedule_id)
        found, planned = await self._channel.schedules(name), await self._channel.planned(name)
        return _recurring(name, found, planned)

    async def list(self, prefix: str = "") -> _Found:
        """
        Return the schedules whose id begins with *prefix*, sorted by id. Records that are none are left out.

        This reads all of `timer-schedule` and of `timer-planned`.
        """
        records, planned = await self._channel.schedules(None), await self._channel.planned(None)
        found = []
        for name in sorted(records):
            try:
                if name.decode().startswith(prefix) and not name.startswith(HOLD_PREFIX):
                    found.append(_recurring(name, records, planned))
            except (UnicodeError, ScheduleError):
                continue
        return [each for each in found if each is not None]

    async def pause(self, schedule_id: str, note: str = "") -> Recurring:
        """
        Stop the runs of a schedule until it is resumed. Runs in the pause are never made up for.

        Args:
            note: a note for people: why.

        Raises:
            ScheduleError: there is no schedule of this id.
        """
        await self._known(schedule_id)
        await self._set_paused(schedule_id, note, paused=True)
        return await self._known(schedule_id)

    async def resume(self, schedule_id: str) -> Recurring:
        """Let a schedule run again; the note of the pause goes. Otherwise as `pause`."""
        await self._known(schedule_id)
        await self._set_paused(schedule_id, "", paused=False)
        return await self._known(schedule_id)

    async def skip(self, schedule_id: str, instant: datetime | None = None) -> Run:
        """
        Leave out the next run that is due in more than five seconds, and return it. Another call leaves out another
        one; `unskip` brings them back.

        Args:
            instant: leave out the run of this instant, and none if that is not the next one.

        Raises:
            ScheduleError: there is no schedule of this id, or it has no run any more; or *instant* is not the next.
        """
        now_ms = moment_at(self._clock.wall_s())
        found = await self._known(schedule_id)
        runs = found.next(1, (now_ms + EDGE_MS) / 1000)
        if not runs:
            raise ScheduleError(f"the schedule {schedule_id!r} has no run any more", field="schedule_id")
        skipped = moment_at(runs[0].instant)
        if instant is not None and moment_at(instant) != skipped:
            next_one = runs[0].instant.isoformat()
            raise ScheduleError(f"the next run that can be left out is {next_one} by now", field="instant")

        def changed(hold: Hold) -> None:
            left = {each for each in hold.skipped_ms if each > now_ms - _SKIPPED_MS}
            hold.skipped_ms[:] = sorted(left | {skipped})

        await self._edit_hold(schedule_id, changed)
        return runs[0]

    async def unskip(self, schedule_id: str) -> Recurring:
        """Bring back all runs that were skipped and are due in more than five seconds. Raises as `pause`."""
        await self._known(schedule_id)
        await self._edit_hold(schedule_id, lambda hold: hold.ClearField("skipped_ms"))
        return await self._known(schedule_id)

    async def delete(self, schedule_id: str) -> None:
        """
        Delete a schedule, and its pause. Runs that are due in more than five seconds do not fire. Nothing happens if it
        does not exist.
        """
        name = _name_of(schedule_id)
        for key in (name, HOLD_PREFIX + name):
            await self._channel.write_schedule(name, key, None)

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

    async def next(self, schedule_id: str, count: int = 5) -> _Runs:
        """
        Return the next runs of a schedule, as `Recurring.next` does.

        Raises:
            ScheduleError: there is no schedule of this id.
        """
        return (await self._known(schedule_id)).next(count, self._clock.wall_s())

    async def _known(self, schedule_id: str) -> Recurring:
        found = await self.get(schedule_id)
        if found is None:
            raise _missing(schedule_id)
        return found

    async def _set_paused(self, schedule_id: str, note: str, *, paused: bool) -> None:
        def changed(hold: Hold) -> None:
            hold.paused, hold.note = paused, note

        await self._edit_hold(schedule_id, changed)

    async def _edit_hold(self, schedule_id: str, change: Callable[[Hold], None]) -> None:
        def changed(value: bytes | None) -> bytes:
            hold = Hold()
            hold.CopyFrom(hold_from(value))
            change(hold)
            return hold.SerializeToString()

        name = _name_of(schedule_id)
        await self._edit(name, HOLD_PREFIX + name, changed)

    async def _edit(self, name: bytes, key: bytes, change: Callable[[bytes | None], bytes | None]) -> None:
        """
        Write what *change* makes of the latest value under *key*, or None if it has none.

        If others have written the same key meanwhile, their value is changed too, so that neither is lost.
        """
        # What it is made of, and what has to lie before it.
        base = last = (await self._channel.schedules(name)).get(key)
        for _ in range(_TRIES):
            value = change(base and base.value)
            if value is None and base is last:
                raise _missing(name.decode())
            offset = await self._channel.write_schedule(name, key, value)
            before = (await self._channel.schedules(name, before=offset)).get(key)
            # A broker that has taken it twice tells no offset, and the log is compacted.
            if before is None or before == last:
                if value is None:
                    raise _missing(name.decode())
                return
            base, last = before, Latest(offset, value)
            await asyncio.sleep(random.uniform(0, _PAUSE_S))  # noqa: S311  # so that two do not meet again
        raise ScheduleError("others change it at the same time, again and again", field="schedule_id")


def draft(schedule_id: str, times: Times, options: ChangeOptions, reserved: Collection[str], now_s: float) -> Recurring:
    """
    Return the schedule that `Schedules.put` would write at the UNIX time *now_s*. It reads nothing: nothing is skipped,
    and no run counts yet.

    Args:
        options: all that `put` takes but *paused*, and the topic among it.
        reserved: as in `Schedules`.

    Raises:
        ScheduleError, RequestError: as in `put`.
    """
    schedule = Schedule()
    write_schedule(schedule, times, options, reserved)
    _check(_name_of(schedule_id).decode(), schedule, now_s)
    return Recurring.of(schedule_id, schedule)


def _check(schedule_id: str, schedule: Schedule, now_s: float) -> None:
    if not next_runs(schedule_id, schedule, int(now_s * 1000), 1):
        kind = schedule.WhichOneof("when") or "when"
        raise ScheduleError("it has no run from now on: give other times, or another end", field=kind)


def _name_of(schedule_id: str) -> bytes:
    name = checked_id(schedule_id).encode()
    if name.startswith(HOLD_PREFIX):
        raise ScheduleError("an id does not begin with a zero byte: give another one", field="schedule_id")
    return name


def _missing(schedule_id: str) -> ScheduleError:
    return ScheduleError(f"there is no schedule {schedule_id!r}", field="schedule_id")


def _recurring(name: bytes, records: Mapping[bytes, Latest], planned: Mapping[bytes, Latest]) -> Recurring | None:
    record, hold, plan = records.get(name), records.get(HOLD_PREFIX + name), planned.get(name)
    if record is None or record.value is None:
        return None
    so_far = Planned.FromString(plan.value) if plan and plan.value else None
    return Recurring.of(name.decode(), schedule_from(record.value), hold_from(hold and hold.value), so_far)
