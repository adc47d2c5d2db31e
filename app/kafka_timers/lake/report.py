"""Show the results of the lake's jobs: on a terminal, and for an audit also as a page that needs no other file."""

import dataclasses
import hashlib
import json
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter
from pyspark.sql import Row
from rich.console import Group
from rich.table import Table
from rich.text import Text

from kafka_timers.lake import plots
from kafka_timers.lake.audit import Audit
from kafka_timers.lake.findings import ADVICE
from kafka_timers.lake.forecast import Forecast

_BAR_CELLS = 30

# Above this many milliseconds the numbers of an axis are powers of ten.
_FINE_MS_MAX = 5_000
_LATE = ("callbacks", "p50", "p99", "p999", "max")
_ROWS = ("findings", "lateness", "course", "found")


def moment(second: int) -> str:
    """Return *second* as text for people, in UTC."""
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%d %H:%M:%S")


def document(audit: Audit) -> dict[str, Any]:
    """
    Return *audit* as JSON, with its digest as `sha256`.

    The digest covers the document without `sha256`, as JSON with sorted keys and without spaces, in UTF-8.
    """
    lists = {name: [row.asDict() for row in getattr(audit, name) or ()] for name in _ROWS}
    plain = {each.name: getattr(audit, each.name) for each in dataclasses.fields(audit)} | lists
    plain["sealed"] = {str(number): list(ends) for number, ends in sorted(audit.sealed.items())}
    canonical = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return plain | {"sha256": hashlib.sha256(canonical.encode()).hexdigest()}


def printed(audit: Audit) -> Group:
    """Return *audit* for a terminal of 80 columns."""
    figures = _table("", "")
    for name, value in _figures(audit):
        figures.add_row(name, value)
    parts: list[Table | Text] = [figures]
    if audit.lateness is not None:
        topics = _table("topic", "callbacks", "late, ms: p50", "p99", "p99.9", "max")
        for row in audit.lateness:
            topics.add_row(Text(row["topic"]), *(f"{row[name]:,}" for name in _LATE))
        parts += [Text(), topics]
    parts += [Text(), *(Text(f"not checked: {each}", "dim") for each in audit.unchecked)]
    parts += [Text(f"could not be told: {each}", "yellow") for each in audit.undecided]
    parts.append(Text(f"SHA-256 of this result: {document(audit)['sha256']}", "dim"))
    if not audit.kinds:
        found = "nothing wrong was found, but not all could be judged" if audit.undecided else "nothing is wrong"
        parts.append(Text(found, "yellow" if audit.undecided else "green"))
        return Group(*parts)
    parts.append(Text())
    kinds = _table("finding", "times", "what to do")
    for kind, times in audit.kinds.items():
        kinds.add_row(Text(kind, "red"), f"{times:,}", ADVICE[kind])
    kinds.columns[-1].justify = "left"
    rows = _table("finding", "where", "second", "detail")
    for row in audit.findings:
        rows.add_row(row["kind"], _where(row), str(row["second"]), Text(row["detail"]))
    for column in rows.columns:
        column.justify = "left"
    left = sum(audit.kinds.values()) - len(audit.findings)
    parts += [kinds, Text(), rows]
    if left:
        parts.append(Text(f"and {left:,} more, in the table audit_findings with audited_s = {audit.audited_s}"))
    return Group(*parts)


def printed_rows(rows: Sequence[Row]) -> Table:
    """Return *rows* as a table for a terminal, with one column for each of theirs."""
    table = _table(*(name.replace("_", "\n") for name in rows[0].asDict()))
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    return table


def printed_forecast(load: Forecast) -> Group:
    """Return *load* for a terminal of 80 columns."""
    head = f"{load.timers:,} timers are due from {moment(load.since + 1)} to {moment(load.until)} UTC"
    parts: list[Table | Text] = [Text(f"{head}; the lake holds {load.far:,} of them"), Text()]
    if not load.timers:
        return Group(parts[0])
    steps = _table("from, UTC", "timers", "")
    most = max(row["timers"] for row in load.steps)
    for row in load.steps:
        # At least one cell, so that every step with timers shows.
        steps.add_row(moment(row["at"]), f"{row['timers']:,}", "█" * max(1, row["timers"] * _BAR_CELLS // most))
    steps.columns[-1].justify = "left"
    topics = _table("topic", "timers")
    for row in load.topics:
        topics.add_row(Text(row["topic"]), f"{row['timers']:,}")
    hottest = _table("hottest seconds, UTC", "timers", "take, s")
    for row in load.hottest:
        took = "-" if load.rate is None else f"{row['timers'] / load.rate:,.2f}"
        hottest.add_row(moment(row["second"]), f"{row['timers']:,}", took)
    unknown = "no hot second was sealed within a day: give --rate"
    source = unknown if load.rate is None else f"at {load.rate:,.0f} callbacks/s"
    return Group(*parts, steps, Text(), topics, Text(), hottest, Text(source, "dim"))


def write(audit: Audit, file: Path) -> None:
    """Write the page of *audit* to *file*."""
    file.write_text(page_of(audit), encoding="utf-8")


def page_of(audit: Audit) -> str:
    """Return *audit* as HTML that needs no other file."""
    env = jinja2.Environment(
        loader=jinja2.PackageLoader("kafka_timers.lake", "."), autoescape=True, undefined=jinja2.StrictUndefined
    )
    env.filters |= {"moment": moment, "where": _where}
    total = sum(audit.kinds.values())
    return env.get_template("report.html.jinja").render(
        audit=audit,
        figures=_figures(audit),
        named=_named(audit),
        sealed=sorted(audit.sealed.items()),
        total=total,
        left=total - len(audit.findings),
        advice=ADVICE,
        plots=[Markup(plots.svg(figure)) for figure in _plots(audit)],  # noqa: S704  # made here, its texts escaped
    )


def _figures(audit: Audit) -> Sequence[tuple[str, str]]:
    latest_ms = max((row["lateness_max_ms"] for row in audit.course), default=0)
    return [
        ("from", f"{moment(audit.first)} UTC ({audit.first})"),
        ("to", f"{moment(audit.last)} UTC ({audit.last})"),
        ("partitions judged", f"{len(audit.sealed):,} of {audit.partitions:,}"),
        ("seals checked", f"{audit.seals:,}"),
        ("due", f"{audit.due:,}"),
        ("fired", f"{audit.fired:,}"),
        ("rejected", f"{audit.rejected - audit.forwarded:,}"),
        ("sent on to their partition", f"{audit.forwarded:,}"),
        ("read after their second", f"{audit.late:,}"),
        ("latest, as sealed", f"{latest_ms:,} ms"),
        ("callbacks", "not read" if audit.lateness is None else "compared one by one"),
    ]


def _named(audit: Audit) -> Sequence[tuple[str, str]]:
    """Return names and values that identify the instance and the result."""
    return [
        ("topic prefix", audit.prefix or "none"),
        ("Kafka cluster", audit.cluster or "unknown: no broker answered"),
        ("lake", audit.lake),
        ("made by", ", ".join(f"{name} {version}" for name, version in audit.versions.items())),
        ("SHA-256 of the result", document(audit)["sha256"]),
    ]


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def _where(row: Row) -> str:
    return f"partition {row['partition']}" if row["offset"] is None else f"{row['partition']}:{row['offset']}"


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=any(columns))
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", overflow="fold")
    return table


def _plots(audit: Audit) -> Sequence[Figure]:
    at = [row["at"] for row in audit.course]
    limits = (plots.moment(audit.first), plots.moment(audit.last + 1))
    each = "minute" if audit.step_s == 60 else f"{audit.step_s:,} s"

    fires, axes = plots.over_time(f"Callbacks per {each}", "callbacks")
    plots.bars(axes, at, [row["fired"] for row in audit.course], audit.step_s)
    axes.set_xlim(limits)
    drawn = [fires]

    if audit.lateness:
        figure, axes = plots.plain("Lateness by topic, as received", "ms", height=1.2 + 0.35 * len(audit.lateness))
        _draw_lateness(axes, audit.lateness)
        drawn.append(figure)

    figure, axes = plots.over_time("Lateness, as sealed", "ms")
    # Where nothing fired there is no lateness, so the line has a gap. The wider line shows below the other one.
    fired = {row["at"]: row for row in audit.course if row["fired"]}
    every = range(audit.first, audit.last + 1, audit.step_s)
    moments = [plots.moment(second) for second in every]
    for label, color, width in (("max", plots.GREY, 2.5), ("p99", plots.BLUE, 1.0)):
        values = [fired[second][f"lateness_{label}_ms"] if second in fired else math.nan for second in every]
        axes.plot(moments, values, ".-", color=color, label=label, linewidth=width, markersize=3 + width)
    axes.set_xlim(limits)
    most = max((row["lateness_max_ms"] for row in fired.values()), default=0)
    # Room for the dots of the latest. Above 0 also where nothing was late.
    axes.set_ylim(0, 1.1 * most or 1)
    axes.legend(frameon=False)
    drawn.append(figure)

    if audit.found:
        figure, axes = plots.over_time(f"Findings per {each}, by the second they are about", "findings")
        seconds, counts = ([row[name] for row in audit.found] for name in ("at", "findings"))
        plots.bars(axes, seconds, counts, max(audit.step_s, (audit.last - audit.first) // 200), plots.RED)
        axes.set_xlim(limits)
        drawn.append(figure)
    return drawn


def _draw_lateness(axes: Axes, lateness: Sequence[Row]) -> None:
    names = [row["topic"] + (" *" if row["by_worker"] else "") for row in lateness]
    # A ring around a dot around a line, so that all of them show when they coincide.
    styles: list[tuple[str, dict[str, Any]]] = [
        ("max", {"marker": "o", "markersize": 11, "markerfacecolor": "none", "color": plots.RED}),
        ("p99", {"marker": "o", "markersize": 6, "color": plots.BLUE}),
        ("p50", {"marker": "|", "markersize": 14, "color": "black"}),
    ]
    for name, style in styles:
        axes.plot([row[name] for row in lateness], range(len(names)), linestyle="none", label=name, **style)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(-0.5, len(names) - 0.5)
    axes.invert_yaxis()
    axes.set_xlabel("ms" + (" (*: by the clock of a worker)" if any(row["by_worker"] for row in lateness) else ""))
    axes.set_ylabel("")
    most = max(10, *(row["max"] for row in lateness))
    axes.set_xscale("symlog", linthresh=1)
    axes.set_xlim(-0.2, 2 * most)
    steps = (1, 2, 5) if most <= _FINE_MS_MAX else (1,)
    ticks = [step * 10**power for power in range(len(str(2 * most))) for step in steps]
    axes.xaxis.set_major_locator(FixedLocator([0, *(tick for tick in ticks if tick <= 2 * most)]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
