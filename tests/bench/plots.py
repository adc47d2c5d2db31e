"""The plots of docs/performance.md, drawn from the files of the benchmarks."""

import statistics
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

BLUE, GREY, RED = "#2563eb", "#9ca3af", "#dc2626"


def draw(measured: dict[str, Any], folder: Path) -> None:
    """Draw the figures of `bench.py`."""
    axes = _axes("Lateness at 200 timers a second", "from the second to its callback, ms", "share of callbacks")
    _steps(axes, measured["curves"]["light"], BLUE, "kafka-timers")
    _save(axes, folder / "light.svg")

    plain_s = statistics.median(measured["figures"]["plain write + read, s"])
    title = "200,000 callbacks of one second, one partition"
    axes = _axes(title, "from the second on, s", "share received")
    _steps(axes, [(0, 0), *measured["curves"]["hot second"]], BLUE, "kafka-timers, exactly once")
    axes.axvline(plain_s, color=GREY, linestyle="--", label="plain broker has written and read as many")
    _save(axes, folder / "hot-second.svg")

    axes = _axes("Memory and disk of a worker", "timers pending, millions", "MB")
    millions = [pending / 1e6 for pending in measured["pending"]]
    for what, color in (("RSS", BLUE), ("disk", GREY)):
        mb = [measured["figures"][f"{what} at {pending:,}, MB"][0] for pending in measured["pending"]]
        axes.plot(millions, mb, color=color, marker="o", label=what)
    axes.set_ylim(bottom=0)
    _save(axes, folder / "memory.svg")


def draw_soak(measured: dict[str, Any], folder: Path) -> None:
    """Draw the figures of `soak.py`."""
    minutes = [sample["s"] / 60 for sample in measured["samples"]]
    axes = _axes("Soak: memory and disk of both workers", "minutes", "MB")
    for name, label, color in (("rss_mb", "RSS", BLUE), ("disk_mb", "disk of the stores", GREY)):
        axes.plot(minutes, [sample[name] for sample in measured["samples"]], color=color, label=label)
    axes.set_ylim(bottom=0)
    _kills(axes, measured["gone_s"])
    _save(axes, folder / "soak-memory.svg")

    axes = _axes("Soak: lateness of callbacks", "minutes", "ms")
    for name, label, color in (
        ("late_p50_ms", "p50 of each second", BLUE),
        ("late_max_ms", "latest of each second", GREY),
    ):
        axes.plot(
            [s["s"] / 60 for s in measured["seconds"]], [s[name] for s in measured["seconds"]], color=color, label=label
        )
    axes.set_yscale("log")
    _kills(axes, measured["gone_s"])
    _save(axes, folder / "soak-lateness.svg")


def draw_log(sizes: list[list[int]], file: Path) -> None:
    """Draw the records that a log has had so far, and those that it has, from seconds, both numbers."""
    axes = _axes("The request log, kept for five minutes", "minutes", "records, thousands")
    for at, label, color in ((1, "written so far", GREY), (2, "on the log", BLUE)):
        axes.plot([each[0] / 60 for each in sizes], [each[at] / 1000 for each in sizes], color=color, label=label)
    axes.set_ylim(bottom=0)
    _save(axes, file)


def _axes(title: str, x: str, y: str) -> Axes:
    _, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
    axes.set_title(title)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(visible=True, alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def _steps(axes: Axes, curve: list[tuple[float, float]], color: str, label: str) -> None:
    axes.step([x for x, _ in curve], [y for _, y in curve], color=color, label=label, where="post")
    axes.set_xlim(left=0)
    axes.set_ylim(0, 1.02)


def _kills(axes: Axes, kills_s: list[float]) -> None:
    for number, at_s in enumerate(kills_s):
        axes.axvline(at_s / 60, color=RED, alpha=0.3, linewidth=1, label="a worker is killed" if number == 0 else None)


def _save(axes: Axes, file: Path) -> None:
    axes.legend(frameon=False)
    # Without a date and random ids, so that a plot of the same figures is the same file.
    with mpl.rc_context({"svg.hashsalt": file.name, "svg.fonttype": "none"}):
        axes.figure.savefig(file, metadata={"Date": None})
    plt.close("all")
