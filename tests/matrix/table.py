"""The results as the table of docs/operate.md, beside what is known of brokers that were not tried."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matrix.run import problems_of

__all__ = ["BEGIN", "END", "put", "table"]

BEGIN, END = "<!-- `make brokers` writes this table -->", "<!-- end of the table -->"

# Brokers that are not in the results, each with what is known of it and why.
_OTHERS = (
    ("Apache Kafka 4.3.1", "tested", "all tests of this project run on it"),
    ("Apache Kafka 2.8 to 4.2, other versions", "tested once", "2.8.2, 3.6.2, 4.1.2 and 4.2.2: 21 of 21 steps; 20,000 "
     "timers and one kill each: 0 lost, 0 doubled, 0 early"),
    ("Amazon MSK, Strimzi, Aiven for Apache Kafka, Google Managed Service for Apache Kafka, Confluent Platform, OCI "
     "Streaming with Apache Kafka", "by its documentation", "it is Apache Kafka, run by others"),
    ("Bufstream", "by its documentation", "has transactions and compaction"),
    ("Azure Event Hubs, Premium and Dedicated", "by its documentation", "transactions are a public preview"),
    ("Azure Event Hubs, Basic and Standard", "does not run", "no transactions"),
    ("Confluent Cloud, Freight", "does not run", "no transactions, no compaction"),
    ("Aiven for Apache Kafka, diskless topics", "does not run", "no transactions, no compaction"),
    ("OCI Streaming", "does not run", "no transactions, no compaction"),
    ("WarpStream", "does not run", "its page about the protocol does not name OffsetForLeaderEpoch, without which no "
     "worker takes partitions over (tried behind the relay)"),
    ("Apache Kafka before 2.8", "does not run", "lacks versions of requests; each process says which"),
)  # fmt: skip
_COUNTED = {"missing": "lost", "doubled": "doubled", "early": "early"}


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the table."""
    rows = ["| broker | runs | how that is known |", "|---|---|---|"]
    rows += [f"| {one['title']} | {_verdict(one)} | {one['how']}: {_figures(one)} |" for one in results]
    rows += [f"| {broker} | {runs} | {why} |" for broker, runs, why in _OTHERS]
    return "\n".join(rows) + "\n"


def _verdict(one: Mapping[str, Any]) -> str:
    # What the logs say is told beside.
    return "does not pass" if problems_of({**one, "errors_count": 0}) else "tested"


def _figures(one: Mapping[str, Any]) -> str:
    tried = one["steps"] + len(one["failed"])
    counts = ", ".join(f"{one[name]} {word}" for name, word in _COUNTED.items())
    told = f"{one['steps']} of {tried} steps; {one['timers']:,} timers and {one['kills']} kills: {counts}"
    if one["failed"]:
        told += f"; failed: {', '.join(one['failed'])}"
    if one["errors_count"]:
        told += f"; {one['errors_count']} lines of errors in logs"
    return told


def put(results: Sequence[Mapping[str, Any]], page: Path) -> None:
    """Put the table of *results* between the marks of *page*."""
    text = page.read_text()
    before, behind = text.split(BEGIN)[0], text.split(END)[1]
    page.write_text(f"{before}{BEGIN}\n\n{table(results)}\n{END}{behind}")
