"""Runs as the page docs/faults.md."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from campaign.faults import FAULTS

__all__ = ["page"]

_HEAD = """\
# Faults

These are the results of tests that break a real Kafka and real workers under load. `make chaos`
(`PYTHONPATH=tests python -m campaign`) writes this page from [faults.json](faults.json). You can repeat the tests on
your machine with it.

**The service.** Two workers with exactly-once, two oscillators, 4 partitions, Kafka 4.3.1. Where you read "three
brokers", they have replication 3, `min.insync.replicas` 2, and Kafka's own session of 9 s. Everything ran on 2 shared
cores, the load as well. Of the faults without a limit of silence, most ran two at a time on these cores.

**New leaders.** Kafka replaces a broker that has been silent for 9 s. If it was the active controller as well, another
controller is elected first, and begins to count anew, so that it takes 11 to 13 s. After a kill of brokers, a partition
may be silent for 9 + 4 s, and the last column has how long Kafka took.

**The load** asks for timers 2 to 8 s ahead. Three of ten timers have an id. Most of these are cancelled or moved, some
too late. The client that makes the load waits 5 s for a silent broker, not 60 s as by default.

**The check.** An oracle reads `timer-request` and computes from that topic alone which timers must fire and which
answers must come. Callbacks and answers are read with librdkafka, `read_committed`.

**Alarms.** A Prometheus scrapes all processes every 15 s, with the [alarms](operate.md#alarms) of the chart. Where a
fault destroys something or sets it aside, its alarm has to ring within 30 s. One that waits for minutes before it rings
has to begin to wait by then. No alarm may ring that tells of something else, and where nobody should notice a fault,
none at all. Runs of before this was tested name no alarm.

**One limit.** The test that takes away the only replica of a topic kills its broker between two seconds. If you kill
such a broker in the middle of a transaction, Kafka 4.3.1 may double the records of this transaction on that topic
([why](operate.md#failures)).

**Words of the table**

- *Missing*, *unanswered*: not fired, and no answer, 90 s after the last timer was due.
- *Strange*: a callback that no request asked for, or with another key or value.
- *Wrong*: an answer that contradicts the log, another answer, or the callbacks.
- *Overruled*: a cancel or a move in time that was answered `TOO_LATE`. Its timer fired, because a worker could not read
  the record before.
- *Late*: from the moment a timer is due until the broker appended its callback, in the worst run.
- *Silence*: the longest time in which some partition wrote no callback, as the median and the worst of the runs. The
  least possible value is 1 s. With less than 250 timers a second in a partition, a second may be empty.
- *Destroyed*: timers that did not fire since somebody had destroyed their requests. All that is not destroyed fires.
- *Short*: the fault lasts 20 s at most and comes once, as in `make test` (`--short`).

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
    told = [text for one in group for text in (one["note"], one["broken"]) if text]
    if skewed := sum(one.get("skewed", 0) for one in group):
        told.append(
            f"{skewed:,} came up to {max(one['skewed_max_ms'] for one in group if 'skewed' in one)} ms before their "
            "moment, by the clock of a broker that is behind the one with the ticks"
        )
    if destroyed := sum(one.get("destroyed", 0) for one in group):
        told.append(f"{destroyed:,} timers were destroyed with their requests")
    notes = "; ".join(dict.fromkeys(told))
    return "| " + " | ".join([title, str(len(group)), f"{rate:,.0f}", *sums, late, silence, notes]) + " |\n"
