"""Shared parts of the lake's plots: time goes from left to right, in UTC, and nothing needs a screen."""

import io
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import matplotlib as mpl
from matplotlib import dates
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

BLUE, GREY, RED = "#2563eb", "#9ca3af", "#dc2626"


def moment(second: int) -> Any:
    """Return the position of the UNIX second *second* on a time axis."""
    return dates.date2num(datetime.fromtimestamp(second, UTC))  # type: ignore[no-untyped-call]


def plain(title: str, y: str, height: float = 2.8) -> tuple[Figure, Axes]:
    """Return a figure and its axes, empty."""
    figure = Figure(figsize=(9, height), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_ylabel(y)
    axes.grid(visible=True, alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    return figure, axes


def over_time(title: str, y: str) -> tuple[Figure, Axes]:
    """Return a figure and its axes, empty, with time from left to right."""
    figure, axes = plain(title, y)
    locator = dates.AutoDateLocator(tz=UTC)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator, tz=UTC))  # type: ignore[no-untyped-call]
    return figure, axes


def bars(axes: Axes, at: Sequence[int], heights: Sequence[int], step_s: int, color: str = BLUE) -> None:
    """Draw a bar for each step of *step_s* seconds that begins *at* a UNIX second."""
    axes.bar([moment(second) for second in at], heights, width=step_s / 86_400, align="edge", color=color)
    axes.set_ylim(bottom=0)


def svg(figure: Figure) -> str:
    """Return *figure* as an element for a page; it uses the page's fonts."""
    out = io.StringIO()
    # Without a date and random ids, so that a plot of the same figures is the same text.
    with mpl.rc_context({"svg.hashsalt": figure.axes[0].get_title("left"), "svg.fonttype": "none"}):
        figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    # A page needs no file header, and sets the width itself.
    return re.sub(
        r'(<svg [^>]*?) width="[^"]*"', r"\1", re.sub(r' height="[0-9.]+pt"', "", text[text.index("<svg") :]), count=1
    )
