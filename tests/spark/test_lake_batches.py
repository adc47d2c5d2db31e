"""The records of callback topics against the batches that seals name, by SHA-256."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import pytest
from batches import digest_of_batches
from lake_rows import REJECTED, of, request, seal
from lake_tables import SEAL_COLUMNS
from pyspark.sql import Row, SparkSession

from kafka_timers.core.wire import REQUEST_HEADER, Sealed, Sent
from kafka_timers.lake.batch_check import batch_findings, sent_with
from kafka_timers.lake.covering import intervals_of, outcomes_of, totals
from kafka_timers.lake.schema import REQUESTS

RECORDS = (
    "topic string, partition int, offset bigint, timestamp timestamp, timestampType int, key binary, value binary, "
    "headers array<struct<key string, value binary>>"
)


class Came(NamedTuple):
    """A record of a callback topic."""

    topic: str
    partition: int
    offset: int
    request: int
    key: bytes | None = b"k"
    value: bytes | None = b"v"
    more: Sequence[tuple[str, bytes | None]] = ()

    def headers_in(self, number: int) -> list[tuple[str, bytes | None]]:
        """Return the headers of the callback for a request of partition *number*."""
        return [*self.more, (REQUEST_HEADER, b"%d:%d" % (number, self.request))]


# Second 10 has two slices, and second 11 one. The last record of topic t is a tombstone.
SENT = (
    ((Came("t", 0, 0, 1), Came("t", 0, 1, 2)), (Came("t", 0, 2, 3),), (Came("t", 1, 0, 4), Came("t", 1, 1, 5))),
    (
        (Came("t", 0, 4, 6, None, b"", [("a", None), ("b", b"x")]), Came("t", 0, 5, 6, b"old", None)),
        (Came("u", 3, 9, 7),),
    ),
    ((Came("t", 1, 3, 8),),),
)
ALL = [record for slice_ in SENT for batch in slice_ for record in batch]


def seals(number: int) -> list[Row]:
    """Return the seals of `SENT` in partition *number*, each with its batches as docs/wire.md says."""
    rows = []
    for at, slice_ in enumerate(SENT):
        told = Sealed()
        by_topic = defaultdict(list)
        for batch in slice_:
            by_topic[batch[0].topic].append(batch)
        for topic, batches in by_topic.items():
            told.sent.append(
                Sent(
                    topic=topic,
                    partitions=[batch[0].partition for batch in batches],
                    records=[len(batch) for batch in batches],
                    sha256=digest_of_batches(
                        [(r.key, r.value, r.headers_in(number)) for r in batch] for batch in batches
                    ),
                )
            )
        fired = {record.request for batch in slice_ for record in batch}
        through = b"through" if at == 0 else None
        rows.append(
            seal(
                (10, 10, 11)[at],
                100,
                fired,
                through=through,
                value=told.SerializeToString(),
                offset=at,
                first=(10, 10, 11)[at],
                partition=number,
            )
        )
    return rows


CHANGED = {
    "another value": ([r._replace(value=b"w") if r.request == 5 else r for r in ALL], (10, "t", "differ")),
    "a null value": ([r._replace(value=None) if r.request == 1 else r for r in ALL], (10, "t", "differ")),
    "another key": ([r._replace(key=b"j") if r.request == 3 else r for r in ALL], (10, "t", "differ")),
    "headers in another order": (
        [r._replace(more=[*reversed(r.more)]) if r.more else r for r in ALL],
        (10, "t", "differ"),
    ),
    "two that changed places": (
        [r._replace(request={1: 2, 2: 1}.get(r.request, r.request)) for r in ALL],
        (10, "t", "differ"),
    ),
    "one that is gone": ([r for r in ALL if r.request != 7], (10, "u", "fewer")),
    "one of a batch that is gone": ([r for r in ALL if r.request != 2], (10, "t", "fewer")),
    "one twice": ([*ALL, Came("t", 1, 4, 8)], (11, "t", "more")),
    "one in another partition": (
        [r._replace(partition=0, offset=7) if r.request == 8 else r for r in ALL],
        (11, "t", "more"),
    ),
    "one in a topic that got none": ([*ALL, Came("u", 0, 4, 8)], (11, "u", "more")),
}


OTHER = [record._replace(value=b"w") for record in ALL]
# Records that name no request of these seals belong to others.
UNNAMED = [*ALL, Came("t", 0, 3, 99), Came("t", 1, 2, 98, value=b"x")]
IMPOSSIBLE = Sealed(sent=[Sent(topic="t", partitions=[1], records=[1, -1], sha256=b"x"), Sent(topic="u", records=[2])])
Told = Callable[[Row, Row, Row], Sequence[Row]]


def with_bytes(row: Row, value: bytes) -> Row:
    return Row(**(row.asDict() | {"value": value}))


HISTORIES: Mapping[str, tuple[Sequence[Came], Told]] = {
    **{name: (came, lambda *told: told) for name, (came, _) in CHANGED.items()},
    "nothing": (UNNAMED, lambda *told: told),
    "a list that cannot be": (ALL, lambda *told: [*told[:2], with_bytes(told[2], IMPOSSIBLE.SerializeToString())]),
    "a seal without batches": (OTHER, lambda one, two, three: [one, with_bytes(two, b""), three]),
    "a seal that is none": (OTHER, lambda one, two, three: [one, with_bytes(two, b"nonsense"), three]),
    "a scan that is still open": (OTHER, lambda one, *_: [one]),
    "any change": (OTHER, lambda *told: told),
}
Found = Mapping[str, list[tuple[int, str]]]


def found_in(spark: SparkSession, topics: str) -> Found:
    """Return second and detail of each finding in *topics* by history; each history has a partition of its own."""
    records, told, requests = [], [], []
    for number, (came, told_of) in enumerate(HISTORIES.values()):
        records += [(r.topic, r.partition, r.offset, None, 0, r.key, r.value, r.headers_in(number)) for r in came]
        told += told_of(*seals(number))
        requests += [request(at, 1, 11 if at == 8 else 10, partition=number, topic="t") for at in range(1, 9)]
    sealed = of(spark, told, SEAL_COLUMNS)
    outcomes = outcomes_of(of(spark, requests, REQUESTS.columns), intervals_of(sealed), of(spark, [], REJECTED))
    frame = spark.createDataFrame(records, RECORDS)
    rows = batch_findings(sent_with(sealed), outcomes, frame, totals(sealed), topics).collect()
    assert {(row.kind, row.offset) for row in rows} <= {("batches", None)}
    return {
        name: sorted((row.second, row.detail) for row in rows if row.partition == number)
        for number, name in enumerate(HISTORIES)
    }


@pytest.fixture(scope="module")
def found(spark: SparkSession) -> Found:
    return found_in(spark, "tu")


def test_the_records_that_were_sent_are_found_to_be_there(found: Found) -> None:
    assert found["nothing"] == []


@pytest.mark.parametrize("name", CHANGED)
def test_any_change_is_found_with_its_seal_and_topic(found: Found, name: str) -> None:
    _, (second, topic, how) = CHANGED[name]
    [(at, detail)] = found[name]
    assert (at, f"the records in {topic} of this seal" in detail, how in detail) == (second, True, True), detail


@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        ("any change", [10, 10, 11]),
        ("a list that cannot be", [11, 11]),
        ("a seal without batches", [11]),
        ("a seal that is none", [11]),
        ("a scan that is still open", []),
    ],
)
def test_a_list_of_batches_that_cannot_be_is_a_finding_and_a_seal_that_cannot_be_judged_is_left_out(
    found: Found, name: str, seconds: list[int]
) -> None:
    assert [second for second, _ in found[name]] == seconds


def test_topics_that_cannot_be_judged_are_left_out(spark: SparkSession) -> None:
    assert [second for second, _ in found_in(spark, "u")["any change"]] == [10]
