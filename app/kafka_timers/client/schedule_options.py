"""
What a schedule may be given, and the message `Schedule` that it makes.

Pure. Each argument that is none raises `ScheduleError`, which names the field; a callback that no request can carry
raises `RequestError`.
"""

from collections.abc import Collection, Sequence
from datetime import date, datetime, timedelta
from typing import Any, Literal

from kafka_timers.client.request import CallbackOptions, CallbackSpec, future_of
from kafka_timers.client.times import Times, chosen, milliseconds, moment_of, text
from kafka_timers.core.callbacks import Shown
from kafka_timers.core.schedules import CatchUp, Schedule
from kafka_timers.core.text import pairs_of
from kafka_timers.core.wire import Future
from kafka_timers.errors import ScheduleError

CATCH_UPS = {"last": CatchUp.CATCH_UP_LAST, "all": CatchUp.CATCH_UP_ALL, "none": CatchUp.CATCH_UP_NONE}
_NUMBER_MAX = (1 << 63) - 1


class ScheduleOptions(CallbackOptions, total=False):
    """
    All of a schedule but its times and its topic: keywords of `schedules.put` and `schedules.change`.

    Attributes:
        start: no run is before this moment.
        end: no run is at this moment or later.
        runs: largest number of runs; None for no bound.
        jitter: longest delay that is added to a run; the same run always gets the same delay.
        catch_up: make up for "last", "all" or "none" of the runs that were missed while no planner worked.
        catch_up_window: age up to which a missed run is made up for; a day by default, and with 0 none is.
        except_dates: days without runs, by the clocks of `Cron.zone`, or in UTC.
        note: a note for people.
    """

    start: datetime | float | None
    end: datetime | float | None
    runs: int | None
    jitter: timedelta | float
    catch_up: Literal["last", "all", "none"]
    catch_up_window: timedelta | float | None
    except_dates: Sequence[date | str]
    note: str


class ChangeOptions(ScheduleOptions, total=False):
    """The keywords of `schedules.change`: those of `put`, and the topic."""

    topic: str


def write_schedule(schedule: Schedule, times: Times | None, given: ChangeOptions, reserved: Collection[str]) -> None:
    """
    Write into *schedule* what is *given*; the rest of it stays. *reserved* are topics that get no callbacks.

    Raises:
        ScheduleError: an argument is none; the text names the field.
        RequestError: a request cannot carry the callback.
    """
    if times is not None:
        if not isinstance(times, Times):
            raise ScheduleError(f"{times!r} is none: give Cron, Every or At", field="times")
        schedule.ClearField(schedule.WhichOneof("when") or "cron")
        times.write_to(schedule)
    for name, write in _WRITES.items():
        if name in given:
            write(schedule, given[name])  # type: ignore[literal-required]
    if of_callback := {name: value for name, value in given.items() if name not in _WRITES}:
        _write_callback(schedule.callback, of_callback, reserved)


def _write_callback(callback: Future, given: dict[str, Any], reserved: Collection[str]) -> None:
    topic, key, value = Shown.of(callback)
    asked = callback.callBackRecord
    present: dict[str, Any] = {
        "topic": topic,
        "key": key,
        "value": value,
        "token": callback.token or None,
        "headers": list(pairs_of(callback.headers)),
        "partition": asked.partition if asked.HasField("partition") else None,
        "partition_key": asked.partitionKey if asked.HasField("partitionKey") else None,
    }
    made = future_of(CallbackSpec(**present | given), reserved)
    # A door's schedule may have these, and clients in other languages.
    for name in ("tombstoneTopic", "tombstoneKey", "tombstonePartition"):
        if callback.HasField(name) if name == "tombstonePartition" else getattr(callback, name):
            setattr(made, name, getattr(callback, name))
    callback.CopyFrom(made)


def _write_start(schedule: Schedule, given: Any) -> None:
    schedule.from_ms = 0 if given is None else moment_of(given, "start")


def _write_end(schedule: Schedule, given: Any) -> None:
    schedule.until_ms = 0 if given is None else moment_of(given, "end")


def _write_runs(schedule: Schedule, given: Any) -> None:
    if given is not None and (isinstance(given, bool) or not isinstance(given, int) or not 0 < given <= _NUMBER_MAX):
        raise ScheduleError(f"{given!r} runs are none: give 1 or more, or None for no bound", field="runs")
    schedule.runs_max = given or 0


def _write_jitter(schedule: Schedule, given: Any) -> None:
    schedule.jitter_ms = milliseconds(given, "jitter")


def _write_catch_up(schedule: Schedule, given: Any) -> None:
    schedule.catch_up = chosen(given, CATCH_UPS, "catch_up")  # type: ignore[assignment]


def _write_window(schedule: Schedule, given: Any) -> None:
    window_ms = None if given is None else milliseconds(given, "catch_up_window")
    # On the wire, 0 is the default.
    if window_ms == 0:
        schedule.catch_up = CatchUp.CATCH_UP_NONE
    schedule.catch_up_window_s = -(-(window_ms or 0) // 1000)


def _write_except(schedule: Schedule, given: Any) -> None:
    days = [day.isoformat() if type(day) is date else day for day in ([given] if isinstance(given, str) else given)]
    schedule.except_dates[:] = sorted({text(day, "except_dates") for day in days})


def _write_note(schedule: Schedule, given: Any) -> None:
    schedule.note = text(given, "note")


# The window comes behind the policy, which it may turn off.
_WRITES = {
    "start": _write_start,
    "end": _write_end,
    "runs": _write_runs,
    "jitter": _write_jitter,
    "catch_up": _write_catch_up,
    "catch_up_window": _write_window,
    "except_dates": _write_except,
    "note": _write_note,
}
