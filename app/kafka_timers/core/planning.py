"""
Planning: decides which runs of a partition's schedules to request, and which to cancel.

Pure. The planner passes in the records of `timer-planned` and `timer-schedule`. Each second it asks for a step, writes
the step in one transaction, and reports that. All instants are UNIX milliseconds; "now" is the newest tick.

    a run is requested          a minute or more ahead, so it fires in time while no planner works
    a run is missed             when the planner comes to it later than 5 s; `catch_up` decides about it
    a change counts             for the runs that are more than 5 s ahead when the planner reads it

Runs that are already requested when a schedule changes, is paused or deleted:

    the new schedule has the run        requested anew, on condition that it is pending, so it replaces the earlier one
    the new schedule does not have it   dropped, and cancelled 5 s before it is due, on condition that it is pending
    it was dropped, and has returned    as in the first line

A worker knows a cancelled run for an hour, so in that time no request succeeds on condition that its id is not known.
Runs are therefore cancelled only when no change can bring them back: a change does not touch the next 5 s.
"""

import heapq
import struct
from collections import Counter
from collections.abc import Iterable, MutableSequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from typing import NamedTuple

import xxhash

from kafka_timers.core.schedules import (
    CatchUp,
    Planned,
    Schedule,
    Timetable,
    due_ms,
    future_of_run,
    run_id,
    schedule_from,
    timetable_of,
)
from kafka_timers.core.text import is_text
from kafka_timers.core.wire import Condition, Future
from kafka_timers.errors import ScheduleError

# Prefix of the planner's own keys on `timer-planned`.
OWN_KEYS = b"\0"

# A run is requested at least this far ahead.
AHEAD_MS = 60_000
# The runs of this many more seconds are requested with it. The number differs by schedule, to spread the load.
_STRIDE_LEAST_S, _STRIDE_SPREAD_S = 10, 10
# A change does not touch runs that are this close or closer.
EDGE_MS = 5_000
# A run that is requested no later than this was not missed.
_MISSED_MS = 5_000
# Most runs of one schedule in one step.
_RUNS_MAX = 1_000

# Of a request, without id and callback; and Kafka's own limit.
_RUN_BYTES, _BYTES_MAX = 300, 1_000_000
_ID_BYTES_MAX = 1_000
_STEP_BYTES = 8 << 20
_WAKE = struct.Struct(">qI")
_NEVER = -1


class _Write(NamedTuple):
    """A request: its timer id, key and value."""

    name: bytes
    key: bytes
    value: bytes


class Refused(NamedTuple):
    """A record on `timer-schedule` that is not a valid schedule, and the reason."""

    offset: int
    key: bytes
    value: bytes
    why: str


@dataclass(slots=True)
class Step:
    """
    The records to write in one transaction.

    Attributes:
        now_ms: the tick on which the step is based.
        changed: ids of changed schedules that are still to be planned anew.
        due: ids of schedules whose next runs are still to be requested.
        planned: value of `timer-planned` by schedule id; None is a tombstone.
        counts: number of runs that were asked, replaced and cancelled.
    """

    now_ms: int
    changed: list[bytes]
    due: list[bytes]
    requests: list[_Write] = field(default_factory=list)
    planned: dict[bytes, bytes | None] = field(default_factory=dict)
    refused: list[Refused] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    entries: dict[bytes, bytes | None] = field(default_factory=dict)
    done: int = 0
    size: int = 0

    @property
    def is_full(self) -> bool:
        """Whether its requests have as many bytes as one transaction should have."""
        return self.size >= _STEP_BYTES

    @property
    def records(self) -> int:
        """The number of these records."""
        return len(self.requests) + len(self.planned) + len(self.refused)


class _Record(NamedTuple):
    offset: int
    appended_ms: int
    value: bytes | None


class Plans:
    """
    The schedules of a partition, and how far each is planned.

    First pass in all records of `timer-planned`, then those of `timer-schedule`, then call `loaded`. A schedule takes
    some 200 bytes and its own size.
    """

    def __init__(self, bytes_max: int = _BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        # For each schedule: when to look at it next, its plan, and its record.
        self._entries: dict[bytes, bytes] = {}
        self._changed: dict[bytes, _Record] = {}
        # Ids by the second in which to look at them next. An id whose time has changed since is skipped.
        self._wakes: dict[int, list[bytes]] = {}
        self._order: list[int] = []
        self._due: list[bytes] = []

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def wakes_ms(self) -> int | None:
        """The next second, in UNIX milliseconds, with work that no record triggers; None if there is none."""
        return self._order[0] * 1000 if self._order else None

    def planned(self, name: bytes, value: bytes | None) -> None:
        """Take a record of `timer-planned`, the latest of its schedule."""
        if value is None:
            self._entries.pop(name, None)
        else:
            self._entries[name] = _packed(0, value, None)

    def schedule(self, name: bytes, offset: int, appended_ms: int, value: bytes | None) -> None:
        """Take a record of `timer-schedule`. It takes effect with the next step."""
        entry = self._entries.get(name)
        if entry is None and value is None:
            self._changed.pop(name, None)
            return
        if entry is not None and (planned := _planned_in(entry)).schedule == offset:
            # Drop earlier records of this schedule, which may still wait here.
            self._changed.pop(name, None)
            self._set(name, planned, value)
            return
        self._changed[name] = _Record(offset, appended_ms, value)

    def loaded(self) -> None:
        """Treat schedules as deleted that have a plan but no record any more."""
        for name, entry in self._entries.items():
            if _schedule_in(entry) is None and name not in self._changed:
                self._changed[name] = _Record(_planned_in(entry).schedule, 0, None)

    def zones_changed(self) -> int:
        """Plan all cron expressions anew, with the current time zones, and return their number."""
        count = 0
        for name, entry in self._entries.items():
            value = _schedule_in(entry)
            if value and name not in self._changed and Schedule.FromString(value).HasField("cron"):
                self._changed[name] = _Record(_planned_in(entry).schedule, 0, value)
                count += 1
        return count

    def step(self, now_ms: int, schedules_max: int = 5_000) -> Step | None:
        """Return an empty step for the next work, for `fill`; None if there is no work."""
        self._wake(now_ms)
        changed = list(islice(self._changed, schedules_max))[::-1]
        due = self._due[: schedules_max - len(changed)][::-1]
        return Step(now_ms, changed, due) if changed or due else None

    def fill(self, step: Step, records_max: int) -> bool:
        """
        Do more of *step*, and return whether there is more to do.

        Args:
            step: a step since which no record was passed in.
            records_max: stop after about this many records. All records of a schedule are in one step.
        """
        while step.changed and step.records < records_max and not step.is_full:
            self._replan(step, step.changed.pop())
        while not step.changed and step.due and step.records < records_max and not step.is_full:
            name = step.due.pop()
            step.done += 1
            if name not in self._changed and name not in step.entries and self._is_due(name, step.now_ms):
                self._plan(step, name)
        return bool(step.changed or step.due)

    def written(self, step: Step, schedules_max: int | None = None) -> bool:
        """
        Mark *step* as done, and return whether there is more to mark.

        Call this once the transaction has been committed, until it returns False, before you pass in other records.

        Args:
            schedules_max: mark at most this many of its schedules; None marks all.
        """
        entries = step.entries
        for _ in range(len(entries) if schedules_max is None else min(len(entries), schedules_max)):
            name, entry = entries.popitem()
            self._changed.pop(name, None)
            if entry is None:
                self._entries.pop(name, None)
            else:
                self._set(name, _planned_in(entry), _schedule_in(entry))
        if entries:
            return True
        self._due[: len(step.due) + step.done] = step.due[::-1]
        return False

    # --- the next look at a schedule ----------------------------------------------------------------------------------

    def _set(self, name: bytes, planned: Planned, schedule: bytes | None) -> None:
        wake_ms = _wake_ms(planned, is_deleted=schedule is None)
        self._entries[name] = _packed(wake_ms, planned.SerializeToString(), schedule)
        if wake_ms == _NEVER:
            return
        second = wake_ms // 1000
        if second not in self._wakes:
            self._wakes[second] = []
            heapq.heappush(self._order, second)
        self._wakes[second].append(name)

    def _wake(self, now_ms: int) -> None:
        while self._order and self._order[0] <= now_ms // 1000:
            self._due += self._wakes.pop(heapq.heappop(self._order))

    def _is_due(self, name: bytes, now_ms: int) -> bool:
        """Return whether the schedule's time has come; since it was put down, that time may have changed."""
        entry = self._entries.get(name)
        return entry is not None and 0 <= _WAKE.unpack_from(entry)[0] // 1000 <= now_ms // 1000

    # --- requests of runs ---------------------------------------------------------------------------------------------

    def _plan(self, step: Step, name: bytes) -> None:
        """Plan the next runs of a schedule that has not changed."""
        entry = self._entries.get(name)
        if entry is None:
            return
        planned, value = _planned_in(entry), _schedule_in(entry)
        self._cancel(step, name, planned)
        if value is not None and planned.next_ms:
            schedule = Schedule.FromString(value)
            _extend(step, name, schedule, timetable_of(schedule, is_checked=True), planned)
        self._put(step, name, planned, value)

    def _replan(self, step: Step, name: bytes) -> None:
        """Plan a schedule anew by its newest record."""
        record, entry, now_ms = self._changed[name], self._entries.get(name), step.now_ms
        planned = _planned_in(entry) if entry is not None else None
        schedule, timetable = None, None
        try:
            if record.value is not None:
                _check_id(name)
                schedule = schedule_from(record.value)
                _check_size(name, record.value, self._bytes_max)
                timetable = timetable_of(schedule)
        except ScheduleError as error:
            step.refused.append(Refused(record.offset, name, record.value or b"", str(error)))
        if planned is None:
            planned = Planned(planned_ms=record.appended_ms - 1)
        else:
            self._cancel(step, name, planned)
            _drop(planned, now_ms)
            edge_ms = now_ms + EDGE_MS
            is_behind = 0 < planned.next_ms <= edge_ms
            planned.planned_ms = max(planned.planned_ms, record.appended_ms - 1) if is_behind else edge_ms
        planned.schedule, planned.next_ms = record.offset, 0
        if schedule and timetable and not schedule.paused:
            _extend(step, name, schedule, timetable, planned)
        self._put(step, name, planned, record.value)

    def _cancel(self, step: Step, name: bytes, planned: Planned) -> None:
        """Cancel the dropped runs that are due soon, and forget those that are over."""
        left, now_ms = [], step.now_ms
        if planned.asked_ms:
            _set_runs(planned.asked_ms, [run_ms for run_ms in _runs(planned.asked_ms) if run_ms > now_ms])
        if not planned.dropped_ms:
            planned.cancelled_ms = 0
            return
        for run_ms in _runs(planned.dropped_ms):
            if run_ms <= now_ms:
                # No planner was there to cancel it, so it has fired.
                planned.runs += run_ms > planned.cancelled_ms
                continue
            left.append(run_ms)
            if planned.cancelled_ms < run_ms <= now_ms + EDGE_MS:
                cancel = Future(timerId=run_id(name.decode(), run_ms), cancel=True, condition=Condition.IF_PENDING)
                step.requests.append(_Write(cancel.timerId.encode(), b"", cancel.SerializeToString()))
                step.counts["cancelled"] += 1
        planned.cancelled_ms = max(planned.cancelled_ms, now_ms + EDGE_MS) if left else 0
        _set_runs(planned.dropped_ms, left)

    def _put(self, step: Step, name: bytes, planned: Planned, value: bytes | None) -> None:
        if value is None and not planned.asked_ms and not planned.dropped_ms:
            step.planned[name] = step.entries[name] = None
            return
        step.planned[name] = plan = planned.SerializeToString()
        step.entries[name] = _packed(0, plan, value)


def _extend(step: Step, name: bytes, schedule: Schedule, timetable: Timetable, planned: Planned) -> None:
    """Request the runs behind the planned ones, as far as they must be known by now."""
    schedule_id, now_ms = name.decode(), step.now_ms
    through_ms = now_ms + AHEAD_MS + _stride_ms(name)
    asked, dropped = list(_runs(planned.asked_ms)), set(_runs(planned.dropped_ms))
    after_ms = planned.planned_ms

    def ask(run_ms: int) -> None:
        planned.runs += 1
        due = due_ms(name, schedule, run_ms)
        if due < now_ms - _MISSED_MS:
            # Make it due now, since a worker knows an id for an hour after its second.
            due = now_ms
        future = future_of_run(schedule_id, schedule, run_ms, planned.runs)
        future.condition = Condition.IF_PENDING if run_ms in dropped else Condition.IF_ABSENT
        future.millis = due % 1000
        value = future.SerializeToString()
        step.requests.append(_Write(future.timerId.encode(), b"%d" % (due // 1000), value))
        step.size += len(value)
        step.counts["replaced" if run_ms in dropped else "asked"] += 1
        dropped.discard(run_ms)
        if run_ms > now_ms:
            asked.append(run_ms)

    def is_over() -> bool:
        return bool(schedule.runs_max) and planned.runs >= schedule.runs_max

    missed_ms = now_ms - _MISSED_MS
    next_ms = planned.next_ms or timetable.next_after(after_ms)
    if next_ms is not None and next_ms <= missed_ms:
        oldest_ms = max(after_ms, now_ms - timetable.window_ms - 1)
        if schedule.catch_up == CatchUp.CATCH_UP_ALL:
            after_ms = oldest_ms
        else:
            if schedule.catch_up != CatchUp.CATCH_UP_NONE and not is_over():
                last_ms = timetable.last_between(oldest_ms, missed_ms)
                if last_ms is not None:
                    ask(last_ms)
            after_ms = missed_ms
        next_ms = timetable.next_after(after_ms)
    for _ in range(_RUNS_MAX):
        if next_ms is None or next_ms > through_ms or is_over():
            after_ms = max(after_ms, through_ms)
            break
        ask(next_ms)
        after_ms, next_ms = next_ms, timetable.next_after(next_ms)
        if step.is_full:
            break
    if is_over():
        next_ms = None
    planned.planned_ms, planned.next_ms = after_ms, next_ms or 0
    _set_runs(planned.asked_ms, asked)
    _set_runs(planned.dropped_ms, sorted(dropped))


def _drop(planned: Planned, now_ms: int) -> None:
    edge_ms, runs = now_ms + EDGE_MS, list(_runs(planned.asked_ms))
    ahead = [run_ms for run_ms in runs if run_ms > edge_ms]
    planned.runs -= len(ahead)
    _set_runs(planned.asked_ms, runs[: len(runs) - len(ahead)])
    _set_runs(planned.dropped_ms, sorted({*_runs(planned.dropped_ms), *ahead}))


def _stride_ms(name: bytes) -> int:
    return (_STRIDE_LEAST_S + xxhash.xxh32_intdigest(name) % _STRIDE_SPREAD_S) * 1000


def _wake_ms(planned: Planned, *, is_deleted: bool) -> int:
    waits = [planned.next_ms - AHEAD_MS] if planned.next_ms else []
    if is_deleted:
        waits += [run_ms + 1000 for run_ms in _runs(planned.asked_ms)][-1:]
    if planned.dropped_ms:
        runs = list(_runs(planned.dropped_ms))
        waits += [run_ms - EDGE_MS for run_ms in runs if run_ms > planned.cancelled_ms][:1] or [runs[-1] + 1000]
    return max(0, min(waits, default=_NEVER)) if waits else _NEVER


def _check_id(name: bytes) -> None:
    if not name or not is_text(name):
        raise ScheduleError("the key is the schedule's id: give a text that is not empty", field="key")
    if len(name) > _ID_BYTES_MAX:
        raise ScheduleError(f"the id has more than {_ID_BYTES_MAX} bytes: give a shorter one", field="key")
    if name.startswith(OWN_KEYS):
        raise ScheduleError("an id does not begin with a zero byte: give another one", field="key")


def _check_size(name: bytes, value: bytes, bytes_max: int) -> None:
    # A run's request has the id twice, with the instant, and headers of the service.
    if len(value) + 3 * len(name) + _RUN_BYTES > bytes_max:
        raise ScheduleError(
            f"the schedule has {len(value)} bytes, and the request of a run has to fit into {bytes_max}: give a "
            "shorter value, or raise max.message.bytes of timer-request",
            field="callback",
        )


def _runs(differences: Iterable[int]) -> Iterable[int]:
    return accumulate(differences)


def _set_runs(field: MutableSequence[int], runs: Iterable[int]) -> None:
    before, differences = 0, []
    for run_ms in runs:
        differences.append(run_ms - before)
        before = run_ms
    field[:] = differences


def _packed(wake_ms: int, planned: bytes, schedule: bytes | None) -> bytes:
    # A schedule always has fields, so empty bytes mean that there is none.
    return _WAKE.pack(wake_ms, len(planned)) + planned + (schedule or b"")


def _planned_in(entry: bytes) -> Planned:
    _, length = _WAKE.unpack_from(entry)
    return Planned.FromString(entry[_WAKE.size : _WAKE.size + length])


def _schedule_in(entry: bytes) -> bytes | None:
    _, length = _WAKE.unpack_from(entry)
    return entry[_WAKE.size + length :] or None
