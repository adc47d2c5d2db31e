"""
Planning: decides which runs of a partition's schedules to request, and which to cancel.

Pure. The planner passes in the records of `timer-planned` and `timer-schedule`. Each second it asks for a step, writes
the step in one transaction, and reports that. All instants are UNIX milliseconds; "now" is the newest tick. A run is
due at its instant, or later by its jitter.

    a run is requested          a minute or more before its instant, so it fires in time while no planner works
    a run is missed             when the planner comes to it more than 5 s after it is due; `catch_up` decides about it
    a change counts             for the runs that are due in more than 5 s when the planner reads it

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
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import xxhash

from kafka_timers.core.planned_runs import asked_in, drop, dropped_in, set_asked, set_dropped
from kafka_timers.core.schedules import (
    HOLD_PREFIX,
    CatchUp,
    Hold,
    Planned,
    Schedule,
    Timetable,
    check_record,
    due_ms,
    future_of_run,
    hold_from,
    run_id,
    schedule_from,
    timetable_of,
)
from kafka_timers.core.wire import Condition, Future
from kafka_timers.errors import ScheduleError

# Prefix of the planner's own keys on `timer-planned`, and the key under which it signs.
OWN_KEYS = b"\0"
PLANNER_KEY = OWN_KEYS + b"planner"

# A run is requested at least this far ahead.
AHEAD_MS = 60_000
# The runs of this many more seconds are requested with it. The number differs by schedule, to spread the load.
_STRIDE_LEAST_S, _STRIDE_SPREAD_S = 10, 10
# A change does not touch runs that are this close or closer.
EDGE_MS = 5_000
# A run that is requested no later than this after it is due was not missed.
_MISSED_MS = 5_000
# Most runs of one schedule in one step.
_RUNS_MAX = 1_000

# Kafka's own limit.
_BYTES_MAX = 1_000_000
# The requests of a step have about so many at most.
STEP_BYTES = 8 << 20
_WAKE = struct.Struct(">qI")
_NEVER = -1


class Write(NamedTuple):
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
    requests: list[Write] = field(default_factory=list)
    planned: dict[bytes, bytes | None] = field(default_factory=dict)
    refused: list[Refused] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    entries: dict[bytes, bytes | None] = field(default_factory=dict)
    done: int = 0
    size: int = 0

    @property
    def is_full(self) -> bool:
        """Whether its requests have as many bytes as one transaction should have."""
        return self.size >= STEP_BYTES

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
        # What is held back, by schedule id.
        self._holds: dict[bytes, bytes] = {}
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

    def schedule(self, key: bytes, offset: int, appended_ms: int, value: bytes | None) -> None:
        """Take a record of `timer-schedule`. It takes effect with the next step."""
        if key.startswith(HOLD_PREFIX) and key != HOLD_PREFIX:
            self._hold(key.removeprefix(HOLD_PREFIX), offset, appended_ms, value)
        else:
            self._take(key, offset, appended_ms, value)

    def _hold(self, name: bytes, offset: int, appended_ms: int, value: bytes | None) -> None:
        if value:
            self._holds[name] = value
        else:
            self._holds.pop(name, None)
        entry, changed = self._entries.get(name), self._changed.get(name)
        schedule = changed.value if changed else entry and _schedule_in(entry)
        # Of a schedule that comes later, that record counts.
        if schedule:
            self._take(name, offset, appended_ms, schedule)

    def _take(self, name: bytes, offset: int, appended_ms: int, value: bytes | None) -> None:
        entry = self._entries.get(name)
        if entry is None and value is None:
            self._changed.pop(name, None)
            return
        if entry is not None and self._is_by(planned := _planned_in(entry), name, offset, value):
            # Drop earlier records of this schedule, which may still wait here.
            self._changed.pop(name, None)
            self._set(name, _packed(_wake_ms(planned, is_deleted=value is None), planned.SerializeToString(), value))
            return
        self._changed[name] = _Record(offset, appended_ms, value)

    def loaded(self, end: int) -> int:
        """
        Treat schedules as deleted that have a plan but no record any more, and return their number.

        Args:
            end: offset before which all records of `timer-schedule` were passed in. The record of a plan that lies
                behind it was read by another planner, so its schedule is not deleted.
        """
        gone = {
            name: _Record(offset, 0, None)
            for name, entry in self._entries.items()
            if _schedule_in(entry) is None
            and name not in self._changed
            and (offset := _planned_in(entry).schedule) < end
        }
        self._changed |= gone
        return len(gone)

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
                self._set(name, entry)
        if entries:
            return True
        self._due[: len(step.due) + step.done] = step.due[::-1]
        return False

    def _is_by(self, planned: Planned, name: bytes, offset: int, value: bytes | None) -> bool:
        """Tell whether a schedule was planned up to its record at *offset*, with this *value* and its hold."""
        return bool(planned.schedule == offset and planned.digest == self._digest(name, value))

    def _digest(self, name: bytes, value: bytes | None) -> int:
        return digest_of(value, self._holds.get(name))

    # --- the next look at a schedule ----------------------------------------------------------------------------------

    def _set(self, name: bytes, entry: bytes) -> None:
        self._entries[name] = entry
        wake_ms, _ = _WAKE.unpack_from(entry)
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
            # Since another planner took it, a library or a limit of a topic may have changed.
            hold = hold_from(self._holds.get(name))
            if found := self._times(step, name, _Record(planned.schedule, 0, value), hold, is_checked=True):
                _extend(step, name, *found, planned)
            else:
                planned.next_ms = 0
        self._put(step, name, planned, value)

    def _replan(self, step: Step, name: bytes) -> None:
        """Plan a schedule anew by its newest record."""
        record, entry, edge_ms = self._changed[name], self._entries.get(name), step.now_ms + EDGE_MS
        planned = Planned()
        if entry is not None:
            planned = _planned_in(entry)
            self._cancel(step, name, planned)
            drop(planned, edge_ms)
        # A broker whose clock is ahead appends a record later than now.
        planned.planned_ms = min(max(planned.planned_ms, record.appended_ms - 1), edge_ms)
        planned.schedule, planned.digest, planned.next_ms = record.offset, self._digest(name, record.value), 0
        hold = hold_from(self._holds.get(name))
        found = None if record.value is None else self._times(step, name, record, hold)
        if found and not hold.paused:
            # With new time zones, there is no other record.
            since_ms = record.appended_ms - 1 if record.appended_ms else step.now_ms
            _extend(step, name, *found, planned, range(since_ms, edge_ms))
        self._put(step, name, planned, record.value)

    def _times(
        self, step: Step, name: bytes, record: _Record, hold: Hold, *, is_checked: bool = False
    ) -> tuple[Schedule, Timetable] | None:
        """Return the schedule of *record* and its times; None if it cannot be planned, which refuses it."""
        value = record.value or b""
        try:
            check_record(name, value, self._bytes_max)
            schedule = schedule_from(value)
            return schedule, timetable_of(schedule, hold, is_checked=is_checked)
        except ScheduleError as error:
            step.refused.append(Refused(record.offset, name, value, str(error)))
            return None

    def _cancel(self, step: Step, name: bytes, planned: Planned) -> None:
        """Cancel the dropped runs that are due soon, and forget those that are over."""
        left, now_ms = {}, step.now_ms
        if planned.asked_ms:
            set_asked(planned, {run_ms: due for run_ms, due in asked_in(planned).items() if due > now_ms})
        if not planned.dropped_ms:
            planned.cancelled_ms = 0
            return
        for run_ms, due in dropped_in(planned).items():
            if due <= now_ms:
                # No planner was there to cancel it, so it has fired.
                planned.runs += due > planned.cancelled_ms
                continue
            left[run_ms] = due
            if planned.cancelled_ms < due <= now_ms + EDGE_MS:
                cancel = Future(timerId=run_id(name.decode(), run_ms), cancel=True, condition=Condition.IF_PENDING)
                step.requests.append(Write(cancel.timerId.encode(), b"", cancel.SerializeToString()))
                step.counts["cancelled"] += 1
        planned.cancelled_ms = max(planned.cancelled_ms, now_ms + EDGE_MS) if left else 0
        set_dropped(planned, left)
        if not planned.next_ms:
            # A schedule that comes back does not bring back what was cancelled.
            planned.planned_ms = max(planned.planned_ms, planned.cancelled_ms)

    def _put(self, step: Step, name: bytes, planned: Planned, value: bytes | None) -> None:
        if value is None and not planned.asked_ms and not planned.dropped_ms:
            step.planned[name] = step.entries[name] = None
            return
        step.planned[name] = plan = planned.SerializeToString()
        step.entries[name] = _packed(_wake_ms(planned, is_deleted=value is None), plan, value)


def _extend(
    step: Step, name: bytes, schedule: Schedule, timetable: Timetable, planned: Planned, near: range = range(0)
) -> None:
    """
    Request the runs behind the planned ones, as far as they must be known by now.

    Args:
        near: after a change, the time since it, and what is near ahead. Runs with their instants in it that nobody has
            asked for are the change's if they are due later.
    """
    schedule_id, now_ms = name.decode(), step.now_ms
    through_ms, missed_ms = now_ms + AHEAD_MS + stride_ms(name), now_ms - _MISSED_MS
    asked, dropped = asked_in(planned), dropped_in(planned)
    after_ms = planned.planned_ms

    def due_of(run_ms: int) -> int:
        return due_ms(name, schedule, run_ms)

    def ask(run_ms: int, due: int) -> None:
        planned.runs += 1
        if due <= now_ms - _MISSED_MS:
            # Make it due now, since a worker knows an id for an hour after its second.
            due = now_ms
        future = future_of_run(schedule_id, schedule, run_ms, planned.runs)
        future.condition = Condition.IF_PENDING if run_ms in dropped else Condition.IF_ABSENT
        future.millis = due % 1000
        value = future.SerializeToString()
        step.requests.append(Write(future.timerId.encode(), b"%d" % (due // 1000), value))
        step.size += len(value)
        step.counts["replaced" if run_ms in dropped else "asked"] += 1
        dropped.pop(run_ms, None)
        if due > now_ms:
            asked[run_ms] = due

    def is_over() -> bool:
        return bool(schedule.runs_max) and planned.runs >= schedule.runs_max

    # Their instants are over, or as good as over, and they are not due yet: a change reaches them.
    for run_ms, due in list(dropped.items()):
        if run_ms <= after_ms and due > planned.cancelled_ms and timetable.has(run_ms) and not is_over():
            ask(run_ms, due_of(run_ms))
    for run_ms in timetable.between(near.start, min(after_ms, near.stop)) if schedule.jitter_ms else ():
        if run_ms not in asked and run_ms not in dropped and due_of(run_ms) > near.stop and not is_over():
            ask(run_ms, due_of(run_ms))
    made_up_ms, last_ms = now_ms, None
    next_ms = planned.next_ms or timetable.next_after(after_ms)
    if next_ms is not None and next_ms <= missed_ms:
        oldest_ms = max(after_ms, now_ms - timetable.window_ms - 1)
        # What has its instant up to here was due, with any jitter.
        since_ms = missed_ms - schedule.jitter_ms
        if schedule.catch_up == CatchUp.CATCH_UP_ALL:
            made_up_ms = oldest_ms
            since_ms = min(since_ms, oldest_ms)
        elif schedule.catch_up != CatchUp.CATCH_UP_NONE:
            last_ms = _last_missed(timetable, oldest_ms, since_ms, missed_ms, due_of)
            since_ms = since_ms if last_ms is None else min(since_ms, last_ms - 1)
        after_ms = max(after_ms, since_ms)
        next_ms = timetable.next_after(after_ms)
    for _ in range(_RUNS_MAX):
        if next_ms is None or next_ms > through_ms or is_over():
            after_ms = max(after_ms, through_ms)
            break
        due = due_of(next_ms)
        if due > missed_ms or next_ms > made_up_ms or next_ms == last_ms:
            ask(next_ms, due)
        after_ms, next_ms = next_ms, timetable.next_after(next_ms)
        if step.is_full:
            break
    if is_over():
        next_ms = None
    planned.planned_ms, planned.next_ms = after_ms, next_ms or 0
    set_asked(planned, asked)
    set_dropped(planned, dropped)


def _last_missed(
    timetable: Timetable, oldest_ms: int, due_ms: int, missed_ms: int, due_of: Callable[[int], int]
) -> int | None:
    """Return the last missed run later than *oldest_ms*; all up to *due_ms* are missed, later ones if they were due."""
    later = timetable.between(max(oldest_ms, due_ms), missed_ms)
    last_ms = max((run_ms for run_ms in later if due_of(run_ms) <= missed_ms), default=None)
    return timetable.last_between(oldest_ms, due_ms) if last_ms is None else last_ms


def digest_of(value: bytes | None, held: bytes | None) -> int:
    """Return the number of a schedule's *value* and its hold's in a plan; with None for *value* it is deleted."""
    return xxhash.xxh64_intdigest(b"" if value is None else value + (held or b""))


def stride_ms(name: bytes) -> int:
    """Return how much further than `AHEAD_MS` the runs of schedule *name* are requested."""
    return (_STRIDE_LEAST_S + xxhash.xxh32_intdigest(name) % _STRIDE_SPREAD_S) * 1000


def _wake_ms(planned: Planned, *, is_deleted: bool) -> int:
    waits = [planned.next_ms - AHEAD_MS] if planned.next_ms else []
    if is_deleted and planned.asked_ms:
        waits.append(max(asked_in(planned).values()) + 1000)
    if planned.dropped_ms:
        dues = dropped_in(planned).values()
        left = [due for due in dues if due > planned.cancelled_ms]
        waits.append(min(left) - EDGE_MS if left else max(dues) + 1000)
    # In whole seconds, as time goes by: it is not looked at before something is to be done.
    return max(0, -(-min(waits) // 1000) * 1000) if waits else _NEVER


def _packed(wake_ms: int, planned: bytes, schedule: bytes | None) -> bytes:
    # A schedule always has fields, so empty bytes mean that there is none.
    return _WAKE.pack(wake_ms, len(planned)) + planned + (schedule or b"")


def _planned_in(entry: bytes) -> Planned:
    _, length = _WAKE.unpack_from(entry)
    return Planned.FromString(entry[_WAKE.size : _WAKE.size + length])


def _schedule_in(entry: bytes) -> bytes | None:
    _, length = _WAKE.unpack_from(entry)
    return entry[_WAKE.size + length :] or None
