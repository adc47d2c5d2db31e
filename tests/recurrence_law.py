"""
Which runs of recurring timers must fire, and which may: an oracle for promises R1 and R2.

It knows one partition of `timer-schedule`, and what planners have committed to `timer-planned`. All moments are UNIX
milliseconds. Schedules of one name have the same jitter, and make up for all that they have missed.
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

from kafka_timers.core.plan_history import Version, Written
from kafka_timers.core.planning import EDGE_MS
from kafka_timers.core.schedules import Planned, Schedule, due_ms, timetable_of

# A cancel that is written later may be readable too late.
_IN_TIME_MS = 2_500


def _runs(version: Version, to_ms: int) -> Iterator[int]:
    """Yield the runs of *version* from its record to *to_ms*."""
    if version.schedule is not None and not version.hold.paused:
        yield from timetable_of(version.schedule, version.hold).between(version.appended_ms - 1, to_ms)


def _has(version: Version, run_ms: int) -> bool:
    """Tell whether *version* has a run at *run_ms*, be that before its record or not."""
    schedule, hold = version.schedule, version.hold
    return schedule is not None and not hold.paused and timetable_of(schedule, hold).has(run_ms)


def plans_in(records: Iterable[Written]) -> dict[bytes, list[tuple[int, Planned | None]]]:
    """Return the plans of each schedule in the *records* of `timer-planned`, each with the time of its record."""
    found: dict[bytes, list[tuple[int, Planned | None]]] = defaultdict(list)
    for record in records:
        plan = None if record.value is None else Planned.FromString(record.value)
        found[record.key].append((record.appended_ms, plan))
    return found


def law_of(
    name: bytes,
    versions: Sequence[Version],
    plans: Sequence[tuple[int, Planned | None]],
    end_ms: int,
    is_held_up: Callable[[int], bool],
    is_read: Callable[[int, int], bool] = lambda offset, by_ms: True,
) -> tuple[set[int], set[int]]:
    """
    Return the instants of the runs of schedule *name* that must have fired by *end_ms*, and of those that may have.

    Args:
        is_held_up: tells whether no planner may have worked in the seconds before a moment. What a change has dropped
            is cancelled only then, so it may fire as it was planned.
        is_read: tells whether a planner has worked with the record at an offset before a moment. If a schedule is
            changed before any has, the runs before the change are not made up for.
    """
    if not versions:
        return set(), set()
    seen = _seen_ms(versions, plans)
    pairs = zip(versions, versions[1:], seen, strict=False)
    is_passed = [at is None and not is_read(each.offset, after.appended_ms) for each, after, at in pairs]
    # When the first one came that a planner had to plan; nobody has replaced the last one.
    begins_ms = versions[[*is_passed, False].index(False)].appended_ms
    example = next((version.schedule for version in versions if version.schedule is not None), Schedule())
    has = list[set[int]]()
    for version in versions:
        # Those of before that wait for their jitter are this version's too, if it has them.
        waiting = {
            run_ms
            for run_ms in (has[-1] if has else ())
            if run_ms < version.appended_ms < due_ms(name, example, run_ms) and _has(version, run_ms)
        }
        has.append(set(_runs(version, end_ms)) | waiting)
    must, may = set[int](), set[int]()
    for run_ms in sorted(set().union(*has)):
        due = due_ms(name, example, run_ms)
        sure = [at for at, when in enumerate(seen) if when is not None and due > when + EDGE_MS]
        first = sure[-1] if sure else 0
        # Those that came later may be known in time, or not.
        possible = [first, *(at for at in range(first + 1, len(versions)) if due >= versions[at].appended_ms)]
        cancelled_ms = next((at for at, plan in plans if plan and plan.cancelled_ms >= due), 0)
        if any(run_ms in has[at] for at in possible) or is_held_up(due) or cancelled_ms > due - _IN_TIME_MS:
            may.add(run_ms)
        is_unread = not sure and run_ms < begins_ms and is_held_up(due)
        if due + EDGE_MS <= end_ms and not is_unread and all(run_ms in has[at] for at in possible):
            must.add(run_ms)
    return must, may


def _seen_ms(versions: Sequence[Version], plans: Sequence[tuple[int, Planned | None]]) -> list[int | None]:
    """Return by when each version was planned; None if another one came before a planner read it."""
    seen = list[int | None]()
    for version, following in zip(versions, [*(each.offset for each in versions[1:]), sys.maxsize], strict=True):
        at = [at for at, plan in plans if plan and version.offset <= plan.schedule < following]
        if not at and version.schedule is None:
            # A plan that has no runs left goes with its schedule.
            at = [at for at, plan in plans if plan is None and at >= version.appended_ms]
        seen.append(at[0] if at else None)
    return seen
