"""Runs as the page docs/faults.md."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from campaign.faults import FAULTS

__all__ = ["page"]

_HEAD = """\
# Faults

What came of breaking a real Kafka and real workers under load. This page is written by `make chaos`
(`PYTHONPATH=tests python -m campaign`), from [faults.json](faults.json).

Two workers with exactly-once, two oscillators, 4 partitions, Kafka 4.3.1; three brokers have replication 3,
`min.insync.replicas` 2, and Kafka's own session of 9 s. Everything ran on 2 shared cores, the load as well. The load
asks for timers 2 to 8 s ahead; three of ten have an id, and most of these are cancelled or moved, some too late. An
oracle reads `timer-request` and works out from it alone what must fire and what must be answered; callbacks and answers
are read with librdkafka, `read_committed`. That of the load waits 5 s for a silent broker, not 60 as by default. The
broker with the only replica of a topic is killed between two seconds: in the middle of a transaction Kafka 4.3.1 may
double what that has written there ([why](operate.md#failures)).

*Missing*: not fired 90 s after the last one was due. *Wrong*: answers that contradict the log, each other, or what
fired. *Overruled*: cancels and moves in time that were answered `TOO_LATE`, with the timer fired, because a worker
could not read them before. *Late*: from the moment a timer is due until the broker appended its callback, worst run.
*Short*: the fault lasts 20 s at most and comes once, as in `make test` (`--short`). *Silence*: the longest time in
which some partition wrote no callback, median and worst of the runs. With less than 250 timers a second and partition a
second may be empty; otherwise 1 s is the least.

"""

_COLUMNS = (
    *("fault", "runs", "timers a second", "timers", "missing", "doubled", "early", "strange", "wrong", "unanswered"),
    *("overruled", "late p50 / p99 / max, s", "silence, s", "also"),
)
_COUNTS = ("timers", "missing", "doubled", "early", "strange", "wrong", "unanswered", "overruled")


def page(runs: Iterable[Mapping[str, Any]]) -> str:
    """Return the page."""
    grouped: defaultdict[tuple[str, bool, float], list[Mapping[str, Any]]] = defaultdict(list)
    for one in runs:
        grouped[one["fault"], one["short"], one["rate"]].append(one)
    order = list(FAULTS)
    rows = sorted(grouped.items(), key=lambda item: (order.index(item[0][0]), *item[0][1:]))
    head = f"| {' | '.join(_COLUMNS)} |\n|{'---|' * len(_COLUMNS)}\n"
    return (
        _HEAD
        + head
        + "".join(
            _row(FAULTS[name].title + (", *short*" if short else ""), rate, group)
            for (name, short, rate), group in rows
        )
    )


def _row(title: str, rate: float, group: list[Mapping[str, Any]]) -> str:
    sums = [f"{sum(one[name] for one in group):,}" for name in _COUNTS]
    late = " / ".join(f"{max(one[f'late_{which}_s'] for one in group):.3g}" for which in ("p50", "p99", "max"))
    silences = sorted(one["silence_s"] for one in group)
    silence = f"{silences[len(silences) // 2]:.1f} / {silences[-1]:.1f}"
    notes = "; ".join(dict.fromkeys(text for one in group for text in (one["note"], one["broken"]) if text))
    return "| " + " | ".join([title, str(len(group)), f"{rate:,.0f}", *sums, late, silence, notes]) + " |\n"
