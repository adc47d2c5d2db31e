"""The records of callback topics against the batches that seals name, by SHA-256."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
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

    @property
    def headers(self) -> list[tuple[str, bytes | None]]:
        return [*self.more, (REQUEST_HEADER, b"0:%d" % self.request)]


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


def seals() -> list[Row]:
    """Return the seals of `SENT`, each with its batches as docs/wire.md says."""
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
                    sha256=digest_of_batches([(r.key, r.value, r.headers) for r in batch] for batch in batches),
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
            )
        )
    return rows


def found(
    spark: SparkSession, came: Iterable[Came], told: Sequence[Row] | None = None, topics: Sequence[str] = "tu"
) -> list:
    """Return second and detail of each finding."""
    records = spark.createDataFrame(
        [(r.topic, r.partition, r.offset, None, 0, r.key, r.value, r.headers) for r in came], RECORDS
    )
    sealed = of(spark, seals() if told is None else told, SEAL_COLUMNS)
    requests = [request(offset, 1, 11 if offset == 8 else 10, topic="t") for offset in range(1, 9)]
    outcomes = outcomes_of(of(spark, requests, REQUESTS.columns), intervals_of(sealed), of(spark, [], REJECTED))
    findings = batch_findings(sent_with(sealed), outcomes, records, totals(sealed), topics)
    rows = findings.collect()
    assert {(row.kind, row.partition, row.offset) for row in rows} <= {("batches", 0, None)}
    return sorted((row.second, row.detail) for row in rows)


def test_the_records_that_were_sent_are_found_to_be_there(spark: SparkSession) -> None:
    # Records that name no request of these seals belong to others.
    others = [Came("t", 0, 3, 99), Came("t", 1, 2, 98, value=b"x")]
    assert found(spark, [*ALL, *others]) == []


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


@pytest.mark.parametrize("name", CHANGED)
def test_any_change_is_found_with_its_seal_and_topic(spark: SparkSession, name: str) -> None:
    came, (second, topic, how) = CHANGED[name]
    [(found_in, detail)] = found(spark, came)
    assert (found_in, f"the records in {topic} of this seal" in detail, how in detail) == (second, True, True), detail


def test_a_list_of_batches_that_cannot_be_is_a_finding(spark: SparkSession) -> None:
    first, second, third = seals()
    told = Sealed(sent=[Sent(topic="t", partitions=[1], records=[1, -1], sha256=b"x"), Sent(topic="u", records=[2])])
    wrong = Row(**(third.asDict() | {"value": told.SerializeToString()}))
    assert [second for second, _ in found(spark, ALL, [first, second, wrong])] == [11, 11]


def test_seals_and_topics_that_cannot_be_judged_are_left_out(spark: SparkSession) -> None:
    changed = [record._replace(value=b"w") for record in ALL]
    assert [second for second, _ in found(spark, changed, topics="u")] == [10]
    first, second, third = seals()
    unnamed = Row(**(second.asDict() | {"value": Sealed().SerializeToString()}))
    assert [second for second, _ in found(spark, changed, [first, unnamed, third])] == [11]
    garbled = Row(**(second.asDict() | {"value": b"nonsense"}))
    assert [second for second, _ in found(spark, changed, [first, garbled, third])] == [11]
    # The scan of that second is still open.
    assert [second for second, _ in found(spark, changed, [first])] == []
