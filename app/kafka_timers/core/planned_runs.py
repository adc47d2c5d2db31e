"""
The runs in a record of `timer-planned`: those that were asked for, and those that were dropped since.

Pure. Both are kept as the instant of each run and its jitter. All moments are UNIX milliseconds. Most plans have none
of them, so that is asked first: a planner takes over a million.
"""

from collections.abc import Iterable, Mapping, MutableSequence, Sequence
from itertools import accumulate, pairwise, repeat

from kafka_timers.v1.schedule_pb2 import Planned


def asked_in(planned: Planned) -> dict[int, int]:
    """Return when each run that was asked for is due, by its instant, ascending."""
    return _dues(planned.asked_ms, planned.asked_jitter_ms) if planned.asked_ms else {}


def dropped_in(planned: Planned) -> dict[int, int]:
    """Return the same of the runs that were dropped."""
    return _dues(planned.dropped_ms, planned.dropped_jitter_ms) if planned.dropped_ms else {}


def set_asked(planned: Planned, dues: Mapping[int, int]) -> None:
    """Have *dues*, by instants, be the runs that were asked for."""
    if dues or planned.asked_ms:
        _set_dues(planned.asked_ms, planned.asked_jitter_ms, dues)


def set_dropped(planned: Planned, dues: Mapping[int, int]) -> None:
    """Have *dues*, by instants, be the runs that were dropped."""
    if dues or planned.dropped_ms:
        _set_dues(planned.dropped_ms, planned.dropped_jitter_ms, dues)


def drop(planned: Planned, edge_ms: int) -> None:
    """Drop the runs that are due later than *edge_ms*; they count no longer."""
    asked = asked_in(planned)
    ahead = {run_ms: due_ms for run_ms, due_ms in asked.items() if due_ms > edge_ms}
    planned.runs -= len(ahead)
    set_asked(planned, {run_ms: due_ms for run_ms, due_ms in asked.items() if due_ms <= edge_ms})
    set_dropped(planned, dropped_in(planned) | ahead)


def _dues(differences: Iterable[int], jitters_ms: Sequence[int]) -> dict[int, int]:
    runs = accumulate(differences)
    return {run_ms: run_ms + jitter_ms for run_ms, jitter_ms in zip(runs, jitters_ms or repeat(0), strict=False)}


def _set_dues(differences: MutableSequence[int], jitters_ms: MutableSequence[int], dues: Mapping[int, int]) -> None:
    runs = sorted(dues)
    jitters = [dues[run_ms] - run_ms for run_ms in runs]
    differences[:] = [run_ms - before for before, run_ms in pairwise([0, *runs])]
    jitters_ms[:] = jitters if any(jitters) else []
