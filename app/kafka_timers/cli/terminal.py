"""Tables for people at a terminal."""

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from kafka_timers.cli.render import printable, utc, utc_text
from kafka_timers.core.outcomes import Outcome
from kafka_timers.core.text import bytes_in
from kafka_timers.operate.capacity import Need
from kafka_timers.operate.health import PartitionStatus

_WIDE = 10_000
_TEXTS = ("topic", "key", "timer_id")


def terminal(*, stderr: bool = False) -> Console:
    """Return where tables are printed. If that is no terminal, no row is folded, so that other programs can read it."""
    found = Console(stderr=stderr)
    return found if found.is_terminal else Console(stderr=stderr, width=_WIDE)


def status_table(rows: Sequence[PartitionStatus]) -> Table:
    """Return *rows* as a table that fits 80 columns."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("part", justify="right")
    table.add_column("sealed up to\nUTC", no_wrap=True)
    table.add_column("lag\ns", justify="right", no_wrap=True)
    table.add_column("pending", justify="right", no_wrap=True)
    table.add_column("late, ms\np50/p99/max", justify="right", no_wrap=True)
    table.add_column("owner", overflow="fold")
    for row in rows:
        lateness = (row.lateness_p50_ms, row.lateness_p99_ms, row.lateness_max_ms)
        table.add_row(
            str(row.partition),
            "-" if row.second is None else utc(row.second, "%Y-%m-%d %H:%M:%S"),
            "-" if row.lag_s is None else str(row.lag_s),
            "-" if row.pending is None else str(row.pending),
            "-" if None in lateness else "/".join(map(str, lateness)),
            # As Text, because rich would read markup in a worker's name.
            Text("-" if row.owner is None else printable(row.owner.encode())),
        )
    return table


def history_table(partition: int, rows: Sequence[Outcome]) -> Table:
    """Return the records of a timer id with their states as a table that fits 80 columns."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("request", no_wrap=True)
    table.add_column("appended\nUTC", no_wrap=True)
    table.add_column("due\nUTC", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("topic, key", overflow="fold")
    for each in rows:
        callback = each.reason if each.reason else printable(each.topic.encode() + b" " + (each.key or b""))
        due = "-" if each.due_ms is None else utc_text(each.due_ms)
        table.add_row(
            f"{partition}:{each.offset}",
            "-" if each.appended_ms is None else utc(each.appended_ms // 1000, "%Y-%m-%d %H:%M:%S"),
            "cancel" if each.cancel else due,
            each.state,
            # As Text, because rich would read markup in a topic's name.
            Text("" if each.cancel and not each.reason else callback),
        )
    return table


def pending_table(timers: Sequence[Mapping[str, Any]]) -> Table:
    """Return waiting *timers*, as workers return them, as a table that fits 80 columns."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("fires at\nUTC", no_wrap=True)
    table.add_column("request", no_wrap=True)
    table.add_column("topic", overflow="fold")
    table.add_column("key", overflow="fold")
    table.add_column("timer id", overflow="fold")
    table.add_column("bytes", justify="right", no_wrap=True)
    for timer in timers:
        # As Text, because rich would read markup in a topic's name.
        texts = (Text("-" if (data := bytes_in(timer, name)) is None else printable(data)) for name in _TEXTS)
        table.add_row(utc_text(timer["due_ms"]), timer["request"], *texts, str(timer["value_bytes"]))
    return table


def capacity_table(needs: Iterable[Need]) -> Table:
    """Return *needs* as a table."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for need in needs:
        table.add_row(need.name.replace("_", " "), _amount(need.amount, need.unit), need.why)
    return table


def _amount(amount: float, unit: str) -> str:
    if unit.startswith("bytes"):
        return decimal(math.ceil(amount)) + unit.removeprefix("bytes")
    if unit == "s":
        return str(timedelta(seconds=math.ceil(amount)))
    return f"{math.ceil(amount):,}"
