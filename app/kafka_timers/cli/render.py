"""Lines for people at a terminal. `operate.documents` has the same for programs, as JSON."""

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size
from rich.filesize import decimal

from kafka_timers.broker.odd_batches import shown
from kafka_timers.cli.running import argument_bytes
from kafka_timers.core.callbacks import Shown
from kafka_timers.core.text import fraction_of
from kafka_timers.core.wire import EXPIRY_HEADER, MILLIS_HEADER, SECOND_LIMIT, last_second_of
from kafka_timers.operate.capacity import REPEATED_MAX
from kafka_timers.operate.watch import lateness_of

if TYPE_CHECKING:
    from aiokafka import ConsumerRecord

    from kafka_timers.client.request import Answer
    from kafka_timers.core.rejected import Rejected
    from kafka_timers.operate.find import Found
    from kafka_timers.operate.health import PartitionStatus, Planners, Refused, ServiceStatus

# --- text ------------------------------------------------------------------------------------------------------------


def printable(data: bytes | None) -> str:
    """
    Return *data* as text that is safe on a terminal: characters that do not print are escaped.

    Bytes that are not UTF-8 show as \\xff, and None shows as null.
    """
    if data is None:
        return "null"
    text = data.decode("utf-8", "backslashreplace")
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def moment_text(moment_ms: int) -> str:
    """Return *moment_ms*, UNIX milliseconds, as a UTC time followed by its UNIX second."""
    return f"{utc_text(moment_ms)} UTC (second {moment_ms // 1000}{fraction_of(moment_ms)})"


def utc_text(moment_ms: int) -> str:
    """Return *moment_ms* in UTC, with milliseconds unless they are 0."""
    return utc(moment_ms // 1000, "%Y-%m-%d %H:%M:%S") + fraction_of(moment_ms)


def utc(second: int, form: str) -> str:
    """Return *second*, UNIX seconds, in UTC as *form* says; as a number if it is out of the range of dates."""
    # A seal may have any number, but datetime has a range.
    return datetime.fromtimestamp(second, UTC).strftime(form) if 0 <= second < SECOND_LIMIT else str(second)


# --- lines -----------------------------------------------------------------------------------------------------------


def answer_line(timer_id: str, answer: "Answer") -> str:
    """Return *answer* about *timer_id* as a line."""
    line = f"{_name(timer_id)}: {answer.outcome.lower().replace('_', ' ')}"
    known = "" if answer.due_ms is None else f"of {moment_text(answer.due_ms)}, request {answer.request}"
    if answer.outcome == "IGNORED":
        return f"{line}; known is the timer {known}" if known else f"{line}; no timer of this id is known"
    return f"{line}, {known}" if known else line


def found_lines(timer_id: str, found: "Found") -> Iterator[str]:
    """Yield a line with the timer that stands, if one does; then the number and place of the records of *timer_id*."""
    if (last := found.stands) is not None:
        reason = f", {last.reason}" if last.reason else ""
        of = "" if last.due_ms is None else f", of {moment_text(last.due_ms)}"
        yield f"{_name(timer_id)}: {last.state}{reason}{of}, request {found.place_of(last)}"
    sealed = f"sealed up to {moment_text(last_second_of(found.seal) * 1000)}" if found.seal else "nothing is sealed"
    yield (
        f"{len(found.outcomes)} records of {_name(timer_id)} in partition {found.partition} from offset "
        f"{found.start} to {found.end}; {sealed}"
    )


def status_lines(status: "ServiceStatus") -> list[str]:
    """Return lines about the service as a whole: firing, ticks, workers, refused requests, doors."""
    rows = status.partitions
    ages_s = [row.tick_age_s for row in rows if row.tick_age_s is not None]
    names = sorted({row.ticked_by for row in rows if row.ticked_by})
    by = f", by oscillator {', '.join(names)}" if names else ""
    rate = sum(row.fired_per_s or 0 for row in rows)
    lines = [
        f"sealed        {_sealed([row.second for row in rows])}",
        f"firing        {rate:,.0f} a second; {sum(row.pending or 0 for row in rows):,} wait",
        f"last tick     {f'{min(ages_s):.1f} s ago{by}' if ages_s else 'none'}",
        *(f"{'' if number else 'request log':14}{line}" for number, line in enumerate(_kept(rows))),
        *(
            f"{'' if number else 'workers':14}{worker.url} on {worker.host}: partitions "
            f"{', '.join(map(str, worker.partitions)) or 'none'}"
            for number, worker in enumerate(status.workers or ())
        ),
        f"refused       {_refused(status.refused)}",
        *([f"recurring     {_planners(planners)}"] if (planners := status.planners) else ()),
        *(
            f"door {door.door}: {door.lag} records of {door.topic} not read yet; read by {door.readers} workers"
            for door in status.doors
        ),
    ]
    return [printable(line.encode()) for line in lines]


def _kept(rows: "Sequence[PartitionStatus]") -> Iterator[str]:
    sizes = [row.log_bytes for row in rows if row.log_bytes is not None]
    size = f", {decimal(sum(sizes))}" if len(sizes) == len(rows) else ""
    gone = sum(row.log_start or 0 for row in rows)
    given_back = f"; {gone:,} are given back" if gone else ""
    yield f"{sum(row.log_records or 0 for row in rows):,} records{size}{given_back}"
    if held := [(row.held_since_s, f"{row.partition}:{row.held_from}") for row in rows if row.held_since_s is not None]:
        since_s, place = min(held)
        yield f"needed from {utc(int(since_s), '%Y-%m-%d %H:%M:%S')} UTC on, request {place}"
    if swept := sum(row.swept for row in rows):
        repeated = f"{swept:,} timer{'s were' if swept > 1 else ' was'} repeated"
        times = swept / max(sum(row.asked_meanwhile for row in rows), 1)
        if times > REPEATED_MAX:
            longer = math.ceil(10 * times / REPEATED_MAX) / 10
            repeated += (
                f", {times:,.0f} times what was asked for meanwhile: give workers {longer:,g} times the --keep-s"
            )
        yield repeated


def _planners(planners: "Planners") -> str:
    if not planners.count:
        return "no planner"
    named = "planner" if planners.count == 1 else "planners"
    return f"{planners.count} {named}, time zones of tzdata {', '.join(planners.tzdata)}"


def _sealed(seconds: Sequence[int | None]) -> str:
    known = [second for second in seconds if second is not None]
    if not known:
        return "nothing yet"
    missing = len(seconds) - len(known)
    sealed = f"up to {utc(min(known), '%Y-%m-%d %H:%M:%S')} UTC"
    return f"{sealed}; {missing} of {len(seconds)} partitions not yet" if missing else sealed


def problem_lines(problems: Sequence[str]) -> list[str]:
    """Return a line for each of *problems*, or one line if there are none."""
    lines = [f"{len(problems)} wrong:", *(f"  - {problem}" for problem in problems)] if problems else ["all is well"]
    return [printable(line.encode()) for line in lines]


def _refused(found: "Refused | None") -> str:
    if found is None or not found.reasons:
        return "unknown" if found is None else "none in the last hour"
    reasons = ", ".join(f"{count} {reason}" for reason, count in found.reasons.items())
    return f"in the last hour {reasons}{'' if found.is_all else ' and more'}; the last one {found.last}"


def callback_lines(record: "ConsumerRecord", now_s: float, width: int) -> list[str]:
    """
    Return *record* as lines of at most *width* cells: due time, lateness, key and value; then its headers.

    The line of headers leaves out the due time. A record without other headers has no such line.
    """
    due_ms, lateness_ms = lateness_of(record, now_s)
    if due_ms is None or lateness_ms is None:
        head = f"{'no timer':23} {'-':>15} "
    else:
        word = "late" if lateness_ms >= 0 else "early"
        head = f"{utc_text(due_ms):23} {f'{_span(abs(lateness_ms))} {word}':>15} "
    due = (EXPIRY_HEADER, MILLIS_HEADER)
    others = [(shown(name).encode(), value or b"") for name, value in record.headers if name not in due]
    headers = " ".join(printable(name + b"=" + value) for name, value in others)
    value = _fitted(printable(record.value), max(10, width - 57)).rstrip()
    line = f"{head}{_fitted(printable(record.key), 16)} {value}"
    return [line, *([f"{'':40}{_fitted(headers, max(20, width - 40)).rstrip()}"] if headers else [])]


def _span(ms: int) -> str:
    """Return *ms* in a unit that suits its size, in at most 10 characters up to some thousand years."""
    if ms < 1_000:
        return f"{ms} ms"
    if ms < 60_000:
        return f"{ms / 1_000:.1f} s"
    minutes, hours, days = ms // 60_000, ms // 3_600_000, ms // 86_400_000
    if hours < 1:
        return f"{minutes} m {ms // 1_000 % 60} s"
    return f"{hours} h {minutes % 60} m" if days < 1 else f"{days:,} d"


def _fitted(text: str, cells: int) -> str:
    return set_cell_size(text, cells) if cell_len(text) <= cells else set_cell_size(text, cells - 1) + "…"


def rejected_lines(rejected: "Rejected") -> list[str]:
    """Return lines for a refused request: time, place, reason and request; then its timer, or its key and value."""
    at = utc(rejected.at_ms // 1000, "%Y-%m-%d %H:%M:%S")
    why = (rejected.reason or "no reason is told") + (f" by door {rejected.door}" if rejected.door else "")
    lines = [f"{at} {rejected.place:>8}  {why}; {rejected.topic} {rejected.request}"]
    if rejected.words:
        lines.append(f"{'':30}{rejected.words}")
    future = rejected.future
    if rejected.made:
        due = "" if rejected.due_ms is None else utc_text(rejected.due_ms)
        timer_id = f", id {rejected.timer_id}" if rejected.timer_id else ""
        lines.append(f"{'':30}{due} to {rejected.callback_topic}{timer_id}")
    if rejected.schedule:
        times, topic = rejected.times or "no times", rejected.callback_topic or "no topic"
        lines.append(f"{'':30}schedule {printable(rejected.key)}: {times}, to {topic}")
    elif rejected.door or future is None:
        lines.append(f"{'':30}key {printable(rejected.key)}, value {printable(rejected.value)}")
    elif future.cancel:
        lines.append(f"{'':30}cancel of {future.timerId}")
    else:
        due = printable(rejected.key) if rejected.due_ms is None else utc_text(rejected.due_ms)
        topic, callback_key, _ = Shown.of(future)
        key = f", key {printable(callback_key)}" if callback_key else ""
        timer_id = f", id {future.timerId}" if future.timerId else ""
        lines.append(f"{'':30}{due} to {topic or 'no topic'}{key}{timer_id}")
    # A value may have a megabyte of text.
    return [_fitted(printable(line.encode()), 500).rstrip() for line in lines]


def ahead_lines(counts: Mapping[int, int], unit_s: int, width: int) -> list[str]:
    """
    Return *counts* as lines of at most *width* cells, a bar each. *counts* has the number of timers by the UNIX second
    in which a bucket begins, ascending; empty buckets are left out.
    """
    if not counts:
        return ["no timer waits"]
    most, total = max(counts.values()), sum(counts.values())
    digits = len(f"{total:,}")
    cells = max(width - 22 - digits, 8)
    lines, before = [], None
    for second, count in counts.items():
        if before is not None and second > before + unit_s:
            lines.append(f"{'':20} {'·':>{digits}}")
        lines.append(f"{utc(second, '%Y-%m-%d %H:%M:%S'):20} {count:>{digits},} {_bar(count / most * cells)}")
        before = second
    return [*lines, f"{'in all':20} {total:>{digits},}"]


def _bar(cells: float) -> str:
    """Return a bar of *cells* cells, rounded to an eighth, and at least an eighth of a cell."""
    whole, eighths = divmod(max(round(cells * 8), 1), 8)
    return "█" * whole + (" ▏▎▍▌▋▊▉"[eighths] if eighths else "")


def unknown_lines(unknown: Mapping[int, str]) -> list[str]:
    """Return a line for each reason in *unknown*, with the numbers of the partitions that did not answer."""
    numbers: dict[str, list[str]] = {}
    for number, why in unknown.items():
        numbers.setdefault(why, []).append(str(number))
    return [f"partition{'s' if len(each) > 1 else ''} {', '.join(each)}: {why}" for why, each in numbers.items()]


def _name(timer_id: str) -> str:
    return printable(argument_bytes(timer_id))
