"""Of tens of thousands of random changes in an honest lake and its callback topic, each a single one, all are found."""

import os
import random
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

import pytest
from honest_lake import LATE_MS, START_S, TOPIC, TOPIC_PARTITIONS, Came, HonestLake, honest_lake
from pyspark.sql import DataFrame, Row, SparkSession

from kafka_timers.lake import audit as audits
from kafka_timers.lake.comparison import Comparison
from kafka_timers.lake.schema import AUDIT_FINDINGS, POSITIONS, REJECTED, REQUESTS, SEALS
from kafka_timers.lake.service import Service, TopicFacts
from kafka_timers.lake.tables import append, constant, read, root_of
from kafka_timers.settings import LakeSettings

# Read now, before the user's variables are removed. A second has a record and a seal in each partition.
SECONDS = int(os.environ.get("KAFKA_TIMERS_TEST_CHANGED_SECONDS", "10000"))
SEED = int(os.environ.get("KAFKA_TIMERS_TEST_SEED", "1"))
# Partitions in which each request, each callback and every second seal is changed.
CHANGED_REQUESTS, CHANGED_CALLBACKS, CHANGED_SEALS = range(5), range(5, 10), range(10, 12)
PARTITIONS = 12
LATE_MAX_MS = 60_000
# Where a seal lies on timer-sealed, and when it came there, is told by nothing else.
UNTOLD = ("offset", "appended_ms")

Where = tuple[int, int]


class Planted(Comparison):
    """The callbacks, out of memory in place of Kafka."""

    frame: DataFrame

    def records(self, topics: Collection[str]) -> DataFrame:
        return self.frame.where(self.frame["topic"].isin(sorted(topics)))

    def facts(self, topics: Collection[str]) -> TopicFacts:
        return TopicFacts(dict.fromkeys(topics, TOPIC_PARTITIONS), [], set(), set())


def other_number(rng: random.Random, value: int | None, bits: int) -> int | None:
    limit = 2 ** (bits - 1)
    given = value or 0
    tries = [given + 1, given - 1, given ^ 1 << rng.randrange(bits - 2), rng.randrange(limit), 0, None]
    return rng.choice([each for each in tries if each != value and (each is None or -limit <= each < limit)])


def other_bytes(rng: random.Random, value: bytes | None) -> bytes | None:
    given = value or b""
    tries: list[bytes | None] = [None, b"", given + rng.randbytes(1), rng.randbytes(len(given)), given[:-1]]
    if given:
        at = rng.randrange(len(given))
        tries += [given[:at] + bytes([given[at] ^ 1 << rng.randrange(8)]) + given[at + 1 :]] * 3
    return rng.choice([each for each in tries if each != value])


def other_text(rng: random.Random, value: str | None) -> str | None:
    tries = [None, "", "request", "cancel", "refused", f"{value}x", (value or "")[1:], "2030-01-31", "1h"]
    return rng.choice([each for each in tries if each != value])


def other_headers(rng: random.Random, value: list[Any] | None) -> list[tuple[str, bytes | None]] | None:
    """Return other headers: one that is gone, doubled, named otherwise, has another value, or comes elsewhere."""
    given = [tuple(each) for each in value or ()]
    tries: list[list[Any]] = [[*given, ("more", b"")]]
    if given:
        at = rng.randrange(len(given))
        name, told = given[at]
        tries += [[*given[:at], *given[at + 1 :]], [*given[:at], given[at], *given[at:]]]
        tries += [[*given[:at], (f"{name}x", told), *given[at + 1 :]]]
        tries += [[*given[:at], (name, other_bytes(rng, told)), *given[at + 1 :]]] * 3
        tries += [given[::-1]]
    return rng.choice([each for each in tries if each != given])


def changed_row(rng: random.Random, row: Row, columns: Any, kept: Collection[str] = ()) -> tuple[str, Row]:
    """Return the name of a column and *row* with something else in it."""
    column = rng.choice([each for each in columns if each.name not in kept])
    kind, value = column.dataType.typeName(), row[column.name]
    if column.name in ("partition", "offset") and rng.random() < 0.5:
        # Where no other row lies.
        other: Any = (100 if column.name == "partition" else 10**9) + rng.randrange(10**8)
    elif kind in ("integer", "long"):
        other = other_number(rng, value, 32 if kind == "integer" else 64)
    elif kind == "binary":
        other = other_bytes(rng, value)
    elif kind == "array":
        other = other_headers(rng, value)
    elif kind == "struct":
        names = column.dataType.names
        told = {"reply_topic": "x"} if "reply_topic" in names else dict.fromkeys(names, 7)
        other = None if value else Row(**(dict.fromkeys(names) | told))
    else:
        other = other_text(rng, value)
        # An empty folder name is none.
        if column.name in (*REQUESTS.partitioned_by, *SEALS.partitioned_by) and not other:
            other = "another"
    if other is None and not column.nullable:
        other = 7 if kind in ("integer", "long") else b"7" if kind == "binary" else "7"
        if other == value:
            other = 8 if kind in ("integer", "long") else b"8" if kind == "binary" else "8"
    return column.name, Row(**(row.asDict(recursive=False) | {column.name: other}))


def changed_callback(rng: random.Random, came: Came) -> tuple[str, list[Came]]:
    """Return the change of a callback, and the records on the topic in its place."""
    kinds = ["key", "value", "headers", "headers", "early", "late", "topic", "dropped", "doubled"]
    # Without a key it may lie anywhere.
    kind = rng.choice(kinds if came.key is None else [*kinds, "partition"])
    other = replace(came)
    if kind == "dropped":
        return kind, []
    if kind == "doubled":
        return kind, [came, other]
    if kind == "early":
        other.at_ms -= LATE_MS + 1000 + rng.randrange(3_000_000)
    elif kind == "late":
        other.at_ms += LATE_MAX_MS + rng.randrange(60_000)
    elif kind == "topic":
        other.topic = "elsewhere"
    elif kind == "partition":
        other.partition = (other.partition + rng.randrange(1, TOPIC_PARTITIONS)) % TOPIC_PARTITIONS
    elif kind == "headers":
        other.headers = other_headers(rng, other.headers) or []
    else:
        setattr(other, kind, other_bytes(rng, getattr(other, kind)))
    return kind, [other]


class Changes:
    """A lake with a change in every second row, and the changes."""

    def __init__(self, honest: HonestLake, rng: random.Random) -> None:
        self.requests, self.seals, self.came = [], [], []
        self.rows: list[tuple[str, Row, Row]] = []
        self.sealed: list[tuple[str, Row, Row]] = []
        self.callbacks: list[tuple[str, Where]] = []
        for row in honest.requests:
            other = row
            if row["partition"] in CHANGED_REQUESTS:
                name, other = changed_row(rng, row, REQUESTS.columns)
                self.rows.append((name, row, other))
            self.requests.append(other)
        for row in honest.seals:
            other = row
            if row["partition"] in CHANGED_SEALS and row["last"] % 2:
                name, other = changed_row(rng, row, SEALS.columns, UNTOLD)
                self.sealed.append((name, row, other))
            self.seals.append(other)
        for number, callbacks in honest.came.items():
            for came in callbacks:
                if number in CHANGED_CALLBACKS:
                    kind, others = changed_callback(rng, came)
                    self.callbacks.append((kind, (number, came.of)))
                    self.came += others
                else:
                    self.came.append(came)


def rejected_of(requests: list[Row]) -> list[tuple[Any, ...]]:
    """Return the rows of `rejected` for the records among *requests* that are none."""
    return [
        (0, number, row["appended_ms"], row["reason"], "timer-request", row["partition"], row["offset"], "2030-01-01")
        for number, row in enumerate(row for row in requests if row["reason"])
    ]


def audited(
    spark: SparkSession,
    folder: str,
    requests: list[Row],
    seals: list[Row],
    rejected: list[tuple[Any, ...]],
    came: list[Came],
    last_s: int,
) -> list[Row]:
    """Return the findings of an audit."""
    settings = LakeSettings(lake=folder)
    root = root_of(settings)
    for rows, table in ((requests, REQUESTS), (seals, SEALS)):
        frame = constant(spark, [[row[name] for name in table.columns.names] for row in rows], table.columns)
        append(frame, root, table)
    append(constant(spark, rejected, REJECTED.columns), root, REJECTED)
    positions = [("timer-request", number, 10**12, 1, None, None) for number in range(PARTITIONS)]
    append(constant(spark, positions, POSITIONS.columns), root, POSITIONS)
    columns = (
        "topic string, partition int, offset bigint, timestamp timestamp, timestampType int, key binary, "
        "value binary, headers array<struct<key string, value binary>>"
    )
    Planted.frame = constant(spark, [each.row() for each in came], columns).persist()
    now_s = last_s + 100
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(audits, "Comparison", Planted)
        told = {"callbacks": True, "late_ms": LATE_MAX_MS, "rows": True}
        audits.audit(spark, settings, now_s, first=START_S, last=last_s, service=Service("cluster", {}), **told)
    Planted.frame.unpersist()
    return read(spark, root, AUDIT_FINDINGS).collect()


@pytest.mark.chaos
def test_each_of_many_random_changes_is_found(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    def folder() -> str:
        return str(tmp_path_factory.mktemp("lake"))

    honest = honest_lake(spark, PARTITIONS, SECONDS, SEED)
    came = [each for callbacks in honest.came.values() for each in callbacks]
    rejected = rejected_of(honest.requests)
    wrong = audited(spark, folder(), honest.requests, honest.seals, rejected, came, honest.last_s)
    assert not wrong, "\n".join(map(str, wrong[:20]))

    changes = Changes(honest, random.Random(SEED))
    found = audited(spark, folder(), changes.requests, changes.seals, rejected, changes.came, honest.last_s)
    missed = [*missed_requests(changes, found), *missed_seals(changes, found), *missed_callbacks(changes, found)]
    counts = {"requests": len(changes.rows), "seals": len(changes.sealed), "callbacks": len(changes.callbacks)}
    with capsys.disabled():
        print(f"\nseed {SEED}: changed {counts}, missed {len(missed)}")
    assert not missed, "\n".join(map(str, missed[:40]))


def missed_requests(changes: Changes, found: list[Row]) -> Iterator[object]:
    altered = {(row["partition"], row["offset"]) for row in found if row["kind"] == "altered"}
    unread = {(row["partition"], row["second"]) for row in found if row["kind"] == "unread"}
    for name, row, other in changes.rows:
        # The record of a second is the only one that its seal counts.
        counted = row["partition"], START_S + row["offset"]
        if (other["partition"], other["offset"]) not in altered and counted not in unread:
            yield name, row[name], other[name], row


def missed_seals(changes: Changes, found: list[Row]) -> Iterator[object]:
    told = {(row["partition"], row["second"]) for row in found if row["offset"] is None}
    for name, row, other in changes.sealed:
        if not any((row["partition"], row["last"] + after) in told for after in (0, 1)):
            yield name, row[name], other[name], row


def missed_callbacks(changes: Changes, found: list[Row]) -> Iterator[object]:
    told = {(row["partition"], row["offset"]) for row in found if row["kind"] != "late"}
    late = [row["detail"] for row in found if row["kind"] == "late"]
    for kind, where in changes.callbacks:
        if kind != "late" and where not in told:
            yield kind, where
    if count := sum(kind == "late" for kind, _ in changes.callbacks):
        # A callback that now names another request may be late by the time of that one.
        counts = [int(detail.split()[0]) for detail in late if f" callbacks in {TOPIC} " in detail]
        assert max(counts, default=0) >= count, (count, late)
