"""What the lake's jobs have found out, for people: on a terminal, and an audit also as a page that stands alone."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import jinja2
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter
from pyspark.sql import Row
from rich.console import Group
from rich.table import Table
from rich.text import Text

from kafka_timers.lake import plots
from kafka_timers.lake.audit import Audit
from kafka_timers.lake.findings import ADVICE
from kafka_timers.lake.forecast import Forecast

__all__ = ["behind", "moment", "page_of", "printed", "printed_forecast", "printed_rows", "write"]

_BAR_CELLS = 30

# A partition that ended this long before the others is told of: nobody may be serving it.
_BEHIND_S = 60


def moment(second: int) -> str:
    """Return *second* as people read it, in UTC."""
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%d %H:%M:%S")


def behind(told: Audit) -> dict[int, int]:
    """Return the partitions that were judged only up to some time before the end, and that second."""
    newest = max(told.sealed_to.values())
    return {number: last for number, last in sorted(told.sealed_to.items()) if last < newest - _BEHIND_S}


def printed(told: Audit) -> Group:
    """Return *told* for a terminal of 80 columns."""
    figures = _table("", "")
    for name, value in _figures(told):
        figures.add_row(name, value)
    parts: list[Table | Text] = [figures]
    for number, last in behind(told).items():
        parts.append(Text(f"partition {number} is sealed only up to {moment(last)} UTC: is it served?", "yellow"))
    if told.lateness is not None:
        topics = _table("topic", "callbacks", "late, ms: p50", "p99", "p99.9", "max")
        for row in told.lateness:
            topics.add_row(Text(row["topic"]), *(f"{row[name]:,}" for name in row.asDict() if name != "topic"))
        parts += [Text(), topics]
    parts.append(Text())
    if not told.kinds:
        parts.append(Text("nothing is wrong", "green"))
        return Group(*parts)
    kinds = _table("finding", "times", "what to do")
    for kind, times in told.kinds.items():
        kinds.add_row(Text(kind, "red"), f"{times:,}", ADVICE[kind])
    kinds.columns[-1].justify = "left"
    rows = _table("finding", "where", "second", "what")
    for row in told.findings:
        rows.add_row(row["kind"], _where(row), str(row["second"]), Text(row["detail"]))
    for column in rows.columns:
        column.justify = "left"
    left = sum(told.kinds.values()) - len(told.findings)
    parts += [kinds, Text(), rows]
    if left:
        parts.append(Text(f"and {left:,} more, in the table audit_findings with audited_s = {told.audited_s}"))
    return Group(*parts)


def printed_rows(rows: Sequence[Row]) -> Table:
    """Return *rows* for a terminal, a column for each of theirs."""
    table = _table(*(name.replace("_", "\n") for name in rows[0].asDict()))
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    return table


def printed_forecast(told: Forecast) -> Group:
    """Return *told* for a terminal of 80 columns."""
    head = f"{told.timers:,} timers are due from {moment(told.since + 1)} to {moment(told.until)} UTC"
    parts: list[Table | Text] = [Text(f"{head}; the lake holds {told.far:,} of them"), Text()]
    if not told.timers:
        return Group(parts[0])
    steps = _table("from, UTC", "timers", "")
    most = max(row["timers"] for row in told.steps)
    for row in told.steps:
        # At least a cell: what is there shows.
        steps.add_row(moment(row["at"]), f"{row['timers']:,}", "█" * max(1, row["timers"] * _BAR_CELLS // most))
    steps.columns[-1].justify = "left"
    topics = _table("topic", "timers")
    for row in told.topics:
        topics.add_row(Text(row["topic"]), f"{row['timers']:,}")
    hottest = _table("hottest seconds, UTC", "timers", "take, s")
    for row in told.hottest:
        took = "-" if told.rate is None else f"{row['timers'] / told.rate:,.2f}"
        hottest.add_row(moment(row["second"]), f"{row['timers']:,}", took)
    source = (
        "no hot second was sealed within a day: give --rate"
        if told.rate is None
        else f"at {told.rate:,.0f} callbacks/s"
    )
    return Group(*parts, steps, Text(), topics, Text(), hottest, Text(source, "dim"))


def write(told: Audit, file: Path) -> None:
    """Write the page of *told* to *file*."""
    file.write_text(page_of(told), encoding="utf-8")


def page_of(told: Audit) -> str:
    """Return *told* as HTML that needs no other file."""
    env = jinja2.Environment(
        loader=jinja2.PackageLoader("kafka_timers.lake", "."), autoescape=True, undefined=jinja2.StrictUndefined
    )
    env.filters |= {"moment": moment, "where": _where}
    total = sum(told.kinds.values())
    return env.get_template("report.html.jinja").render(
        told=told,
        figures=_figures(told),
        behind=behind(told),
        total=total,
        left=total - len(told.findings),
        advice=ADVICE,
        plots=[Markup(plots.svg(figure)) for figure in _plots(told)],  # noqa: S704  # made here, its texts escaped
    )


def _figures(told: Audit) -> Sequence[tuple[str, str]]:
    latest_ms = max((row["lateness_max_ms"] for row in told.course), default=0)
    return [
        ("from", f"{moment(told.first)} UTC ({told.first})"),
        ("to", f"{moment(told.last)} UTC ({told.last})"),
        ("partitions", f"{len(told.sealed_to):,}"),
        ("seals checked", f"{told.seals:,}"),
        ("due", f"{told.due:,}"),
        ("fired", f"{told.fired:,}"),
        ("rejected", f"{told.rejected:,}"),
        ("read after their second", f"{told.late:,}"),
        ("latest, as sealed", f"{latest_ms:,} ms"),
        ("callbacks", "not read" if told.lateness is None else "compared one by one"),
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


def _plots(told: Audit) -> Sequence[Figure]:
    at = [row["at"] for row in told.course]
    limits = (plots.moment(told.first), plots.moment(told.last + 1))
    each = "minute" if told.step_s == 60 else f"{told.step_s:,} s"

    fires, axes = plots.over_time(f"Callbacks per {each}", "callbacks")
    plots.bars(axes, at, [row["fired"] for row in told.course], told.step_s)
    axes.set_xlim(limits)
    drawn = [fires]

    if told.lateness:
        figure, axes = plots.plain("Lateness by topic, as received", "ms", height=1.2 + 0.35 * len(told.lateness))
        names = [row["topic"] for row in told.lateness]
        for name, label, color in (("max", "max", plots.GREY), ("p99", "p99", plots.BLUE), ("p50", "p50", "black")):
            values = [row[name] for row in told.lateness]
            axes.plot(values, range(len(names)), "o", color=color, label=label)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(-0.5, len(names) - 0.5)
        axes.invert_yaxis()
        axes.set_xlabel("ms")
        axes.set_ylabel("")
        axes.set_xscale("symlog", linthresh=10)
        # From 0 on, or latenesses that are close to each other would lie between two numbers of the axis.
        axes.set_xlim(0, 2 * max(10, *(row["max"] for row in told.lateness)))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
        drawn.append(figure)

    figure, axes = plots.over_time("Lateness, as sealed", "ms")
    for name, label, color in (("lateness_max_ms", "max", plots.GREY), ("lateness_p99_ms", "p99", plots.BLUE)):
        values = [row[name] for row in told.course]
        axes.plot([plots.moment(second) for second in at], values, ".-", color=color, label=label, linewidth=1)
    axes.set_xlim(limits)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    drawn.append(figure)

    if told.found:
        figure, axes = plots.over_time(f"Findings per {each}, by the second they are about", "findings")
        found = [row["findings"] for row in told.found]
        plots.bars(
            axes, [row["at"] for row in told.found], found, max(told.step_s, (told.last - told.first) // 200), plots.RED
        )
        axes.set_xlim(limits)
        drawn.append(figure)
    return drawn
