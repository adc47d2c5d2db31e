"""
The addresses of schedules.

All of it is `TimerClient.schedules` over HTTP: that checks, writes and reads. Kafka has no write on condition, so a
`version` is compared before the write. A change that comes between the two stays too: the client makes this one on top
of it.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

from fastapi import Depends, Path, Query

from kafka_timers.client.recurring import Recurring, Schedules, draft
from kafka_timers.console.actions import Service
from kafka_timers.console.dependencies import AskedService, Operator
from kafka_timers.console.problems import PROBLEMS, ProblemError
from kafka_timers.console.schedule_bodies import (
    AskedOut,
    PauseIn,
    PlanOut,
    ScheduleChange,
    ScheduleOut,
    SchedulesOut,
    ScheduleWish,
    SkipIn,
    WholeScheduleOut,
    plan_out,
    schedule_out,
    version_of,
    whole_out,
)
from kafka_timers.console.sharing import BusyError, LateError
from kafka_timers.errors import BrokerError, ScheduleError
from kafka_timers.operate.last_run import LastRun, last_run_of

log = logging.getLogger(__name__)

_PAGE_MAX = 200
# Together less than somebody waits. A schedule is shown without its last run if that takes longer to find.
_READ_S, _LAST_RUN_S = 1.8, 1.0
_NEW = "new"

_ScheduleId = Annotated[str, Path(min_length=1, max_length=1_000, pattern=r"^[^\x00]", description="a schedule's id")]
_Version = Annotated[
    str | None,
    Query(
        pattern=rf"^({_NEW}|[0-9a-f]{{16}})$",
        description=f"only if the schedule still has this `version`; {_NEW}: only if there is none. Otherwise 409",
    ),
]


class _Acting:
    """An action on a schedule, by a caller who may act."""

    def __init__(
        self, schedule_id: _ScheduleId, service: AskedService, caller: Operator, version: _Version = None
    ) -> None:
        self.schedule_id = schedule_id
        self.service = service
        self.found: Recurring | None = None
        self._caller = caller
        self._version = version

    async def schedules(self, *, may_be_new: bool = False) -> Schedules:
        """Return what acts, if the schedule is the one that the caller has seen."""
        schedules = (await self.service.client()).schedules
        if may_be_new and self._version is None:
            return schedules
        self.found = found = await schedules.get(self.schedule_id)
        if found is None and self._version != _NEW:
            raise _missing(self.schedule_id)
        if found is not None and self._version not in (None, version_of(found)):
            seen = "none" if self._version == _NEW else "another one"
            paused = ", paused" + (f": {found.hold.note}" if found.hold.note else "") if found.paused else ""
            raise ProblemError(
                409,
                f"nothing has changed: you have seen {seen}, and {self.schedule_id!r} runs {found.times}, to "
                f"{found.topic}{paused}",
                "schedule-changed",
            )
        return schedules

    async def done(self, what: str) -> ScheduleOut:
        """Log that the action was done, and return the schedule."""
        log.info("%s of schedule %r by %r", what, self.schedule_id, self._caller.name)
        # Reads that are under way may end before this action.
        for name in (("schedule", self.schedule_id), ("last run", self.schedule_id), ("schedules", "")):
            self.service.reads.forget(name)
        found = await (await self.service.client()).schedules.get(self.schedule_id) or self.found
        if found is None:
            raise _missing(self.schedule_id)
        return schedule_out(found, self.service.clock.wall_s())


_Action = Annotated[_Acting, Depends()]


async def list_schedules(
    service: AskedService,
    prefix: Annotated[str, Query(description="only schedules whose id begins so")] = "",
    cursor: Annotated[str | None, Query(description="`cursor` of the page before")] = None,
    limit: Annotated[int, Query(ge=1, le=_PAGE_MAX)] = 50,
) -> SchedulesOut:
    """List schedules by id, each with its next run."""

    async def ask() -> list[Recurring]:
        return await (await service.client()).schedules.list(prefix)

    found = await service.reads.answer(("schedules", prefix), ask, "the schedules")
    behind = [each for each in found if cursor is None or each.schedule_id.encode() > cursor.encode()]
    page, now_s = behind[:limit], service.clock.wall_s()
    return SchedulesOut(
        schedules=[schedule_out(each, now_s) for each in page],
        cursor=page[-1].schedule_id if len(behind) > limit else None,
    )


async def show_schedule(schedule_id: _ScheduleId, service: AskedService) -> WholeScheduleOut:
    """Show a schedule with its next ten runs, and how late the last one was."""

    async def ask() -> Recurring | None:
        return await (await service.client()).schedules.get(schedule_id)

    found = await service.reads.answer(("schedule", schedule_id), ask, f"the schedule {schedule_id!r}", _READ_S)
    if found is None:
        raise _missing(schedule_id)
    return whole_out(found, await _last_run(service, found), service.clock.wall_s())


async def preview_schedule(
    wish: ScheduleWish,
    service: AskedService,
    schedule_id: Annotated[
        str, Query(alias="id", min_length=1, max_length=1_000, description="its id, which decides about jitter")
    ] = "preview",
) -> PlanOut:
    """Show the next ten runs of a schedule as you would put it. Nothing is written, and no run is skipped."""
    service.check_topic(wish.topic)
    now_s = service.clock.wall_s()
    return plan_out(draft(schedule_id, wish.times(), wish.changes(), service.reserved, now_s), now_s)


async def put_schedule(action: _Action, wish: ScheduleWish) -> ScheduleOut:
    """Put a schedule. It replaces the one with its id, for all runs that are due in more than five seconds."""
    action.service.check_topic(wish.topic)
    schedules = await action.schedules(may_be_new=True)
    await schedules.put(action.schedule_id, wish.times(), paused=wish.paused, **wish.changes())
    return await action.done("put")


async def change_schedule(action: _Action, change: ScheduleChange) -> ScheduleOut:
    """Change a schedule, for all runs that are due in more than five seconds. Omitted fields stay."""
    if change.topic is not None:
        action.service.check_topic(change.topic)
    schedules = await action.schedules()
    await schedules.change(action.schedule_id, change.times(), **change.changes())
    return await action.done("change")


async def delete_schedule(action: _Action) -> ScheduleOut:
    """Delete a schedule, and return it as it was. Its runs that are due in more than five seconds do not fire."""
    schedules = await action.schedules()
    await schedules.delete(action.schedule_id)
    return await action.done("delete")


async def pause_schedule(action: _Action, pause: PauseIn | None = None) -> ScheduleOut:
    """Pause a schedule. Runs in the pause are never made up for."""
    schedules = await action.schedules()
    await schedules.pause(action.schedule_id, pause.note if pause else "")
    return await action.done("pause")


async def resume_schedule(action: _Action) -> ScheduleOut:
    """Let a paused schedule run again."""
    schedules = await action.schedules()
    await schedules.resume(action.schedule_id)
    return await action.done("resume")


async def skip_run(action: _Action, skip: SkipIn | None = None) -> ScheduleOut:
    """Leave out the next run that is due in more than five seconds."""
    schedules = await action.schedules()
    await schedules.skip(action.schedule_id, skip.instant if skip else None)
    return await action.done("skip")


async def unskip_runs(action: _Action) -> ScheduleOut:
    """Bring back all runs that were left out and are due in more than five seconds."""
    schedules = await action.schedules()
    await schedules.unskip(action.schedule_id)
    return await action.done("unskip")


async def run_schedule(action: _Action) -> AskedOut:
    """Fire a run at once, besides those that the schedule has, even if it is paused."""
    schedules = await action.schedules()
    if action.found:
        action.service.check_topic(action.found.topic)
    timer = await schedules.run_now(action.schedule_id)
    await action.done("run")
    return AskedOut.of(timer)


# Method, path, what answers, its body, its status, and what it may answer beside `PROBLEMS`.
_OF_ONE: dict[int | str, dict[str, Any]] = {
    404: PROBLEMS[400] | {"description": "There is no such schedule."},
    409: PROBLEMS[400] | {"description": "The schedule, or its next run, is another one by now."},
}
_ONE = "/v1/schedules/{schedule_id:path}"
SCHEDULE_ROUTES: list[tuple[str, str, Callable[..., Any], Any, int, dict[int | str, dict[str, Any]]]] = [
    ("GET", "/v1/schedules", list_schedules, SchedulesOut, 200, {}),
    ("POST", "/v1/schedules/preview", preview_schedule, PlanOut, 200, {}),
    ("POST", f"{_ONE}/pause", pause_schedule, ScheduleOut, 200, _OF_ONE),
    ("POST", f"{_ONE}/resume", resume_schedule, ScheduleOut, 200, _OF_ONE),
    ("POST", f"{_ONE}/skip", skip_run, ScheduleOut, 200, _OF_ONE),
    ("POST", f"{_ONE}/unskip", unskip_runs, ScheduleOut, 200, _OF_ONE),
    ("POST", f"{_ONE}/run", run_schedule, AskedOut, 200, _OF_ONE),
    ("GET", _ONE, show_schedule, WholeScheduleOut, 200, _OF_ONE),
    ("PUT", _ONE, put_schedule, ScheduleOut, 200, _OF_ONE),
    ("PATCH", _ONE, change_schedule, ScheduleOut, 200, _OF_ONE),
    ("DELETE", _ONE, delete_schedule, ScheduleOut, 200, _OF_ONE),
]


async def _last_run(service: Service, found: Recurring) -> LastRun | None:
    ask = partial(last_run_of, service.kafka, found, service.clock.wall_s())
    try:
        return await service.reads.answer(("last run", found.schedule_id), ask, "the last run", _LAST_RUN_S)
    except (LateError, BusyError, BrokerError, ScheduleError):
        return None


def _missing(schedule_id: str) -> ProblemError:
    return ProblemError(404, f"there is no schedule {schedule_id!r}", "schedule-unknown")
