"""The counts of read records in seals, and their links to each other, against the rows of the lake."""

import json
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from lake_rows import told
from lake_tables import completed
from pyspark.sql import DataFrame, SparkSession

from kafka_timers.core.sums import ReadSums, Sum
from kafka_timers.core.wire import Sealed
from kafka_timers.lake.proof import broken_links, counted_between, digest_of_record, tallied, unread
from kafka_timers.lake.schema import REQUESTS
from kafka_timers.lake.sealed import opened, seals_of

VECTORS = json.loads((Path(__file__).parents[2] / "docs/wire-vectors.json").read_text())["digests"]
RECORD = (
    "partition int, offset bigint, appended_ms bigint, key binary, value binary, "
    "headers array<struct<key string, value binary>>"
)
COLUMNS = "partition int, offset bigint, kind string, digest bigint"
SPANS = "partition int, since bigint, to bigint"


def bytes_of(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


def test_spark_counts_records_as_the_page_tells(spark: SparkSession) -> None:
    rows = [
        (
            *(each["partition"], each["offset"], each["appended_ms"], bytes_of(each["key"]), bytes_of(each["value"])),
            [(name, bytes_of(value)) for name, value in each["headers"]] or None,
        )
        for each in VECTORS
    ]
    # A name that is not UTF-8, as Spark reads it, counts as an empty one.
    rows += [(1, 1, 1, b"k", b"v", [(name, b"x")]) for name in ("\ufffd", "")]
    found = spark.createDataFrame(rows, RECORD).select("offset", digest_of_record().alias("digest")).collect()
    digests = [f"{row['digest'] % 2**64:016x}" for row in found]
    assert digests[:-2] == [each["read"] for each in VECTORS]
    assert digests[-2] == digests[-1]


# --- read records ----------------------------------------------------------------------------------------------------


def counts_by(offset: int) -> int:
    """Return a number that is as good as a hash, as Spark has it."""
    return int.from_bytes(sha256(b"%d" % offset).digest()[:8], "little", signed=True)


def record(offset: int, kind: str = "request", partition: int = 0) -> tuple[int, int, str, int]:
    return partition, offset, kind, counts_by(offset)


def sum_of(offsets: Sequence[int]) -> Sum:
    return Sum(len(offsets), sum(map(counts_by, offsets)) % 2**64)


class Chain:
    """
    The seals of a partition, each naming the one before it.

    Args:
        since: the offset from which on they count.
        partition: that they are of.
    """

    def __init__(self, since: int = 0, partition: int = 0) -> None:
        self.values: list[bytes] = []
        self._read = ReadSums(since, since)
        self._partition = partition

    def add(self, last: int, near: Sequence[int], *, far: Sequence[int] = (), cancels: Sequence[int] = (), **more: Any):
        """Add the seal of a second, before which these have been read."""
        read, fence = self._read, max([*near, *far, *cancels, self._read.to - 1]) + 1
        sums = (read.near.plus(sum_of(near)), read.far.plus(sum_of(far)), read.cancels.plus(sum_of(cancels)))
        self._read = ReadSums(read.since, fence, *sums)
        sealed = Sealed(partition=self._partition, first_ms=last * 1000, end_ms=(last + 1) * 1000, fence=fence, **more)
        sealed.first_ms, sealed.end_ms = last * 1000, (last + 1) * 1000
        self._read.tell(sealed)
        sealed.previous = sha256(self.values[-1]).digest() if self.values else b""
        self.values.append(sealed.SerializeToString())
        return self


def seals(spark: SparkSession, *chains: Sequence[bytes]) -> DataFrame:
    """Return the rows of `seals` that are landed of *chains*, one a partition."""
    rows = [(number, at, value) for number, values in enumerate(chains) for at, value in enumerate(values)]
    records = spark.createDataFrame(rows, "partition int, offset bigint, value binary")
    return opened(seals_of(records.selectExpr("*", "timestamp_millis(offset) as timestamp")))


def history(partition: int) -> Chain:
    """Return four seals, the third of which has read nothing: 0-5, 6-9, none, 10-13."""
    chain = Chain(0, partition).add(10, [0, 1, 3], far=[4], cancels=[5])
    return chain.add(11, [6, 7, 8], far=[9]).add(12, []).add(13, [10, 11], cancels=[12], far=[13])


def landed(partition: int) -> list[tuple[int, int, str, int | None]]:
    """Return the rows of the lake; offset 2 is a marker, and 14 was not read yet."""
    offsets = [offset for offset in range(15) if offset != 2]
    return [record(offset, "cancel" if offset in (5, 12) else "request", partition) for offset in offsets]


def without(partition: int, offset: int) -> list[tuple[int, int, str, int | None]]:
    return [row for row in landed(partition) if row[1] != offset]


def with_digest(partition: int, offset: int, digest: int | None) -> list[tuple[int, int, str, int | None]]:
    return [(*row[:3], digest if row[1] == offset else row[3]) for row in landed(partition)]


def begun_anew(partition: int) -> Chain:
    """Return seals of two owners, the second of which knew no sums and counts from offset 10 on: nobody has 8 and 9."""
    chain = Chain(0, partition).add(10, [0, 1, 3], far=[4], cancels=[5]).add(11, [6, 7])
    chain.values += Chain(10, partition).add(13, [10, 11], cancels=[12], far=[13]).values
    return chain


# The chain, the rows of the lake, and the second of each finding with a part of its text.
CASES: list[tuple[str, Any, Any, dict[int, str]]] = [
    ("an honest history", history, landed, {}),
    ("a request is lost", history, lambda at: without(at, 7), {11: "counts 4 records at offsets 6 to 9"}),
    ("a far request is lost", history, lambda at: without(at, 13), {13: "(2 near, 1 far, 1 cancels)"}),
    ("a cancel is lost", history, lambda at: without(at, 5), {10: "(0 cancels)"}),
    ("a record that is none of the log's", history, lambda at: [*landed(at), record(2, "request", at)], {10: "has 6"}),
    ("another record in place of one", history, lambda at: with_digest(at, 9, 7), {11: "the lake has 4"}),
    ("a digest is lost", history, lambda at: with_digest(at, 9, None), {11: "the lake has 4"}),
    ("counted anew", begun_anew, landed, {}),
    ("counted anew, and one lost", begun_anew, lambda at: without(at, 11), {13: "at offsets 10 to 13"}),
    ("counted anew, and one lost between", begun_anew, lambda at: without(at, 8), {}),
    ("all of a second", history, lambda at: [row for row in landed(at) if row[1] < 10], {13: "the lake has 0"}),
]


def test_lost_and_extra_records_of_the_lake_are_found_in_the_seal_that_counts_them(spark: SparkSession) -> None:
    chains = [chain(number).values for number, (_, chain, _, _) in enumerate(CASES)]
    rows = [row for number, (_, _, lake, _) in enumerate(CASES) for row in lake(number)]
    requests = completed(spark.createDataFrame(rows, COLUMNS), REQUESTS)
    counted, none = counted_between(seals(spark, *chains)), spark.createDataFrame([], SPANS)
    tally = tallied(counted, requests, none, DataFrame.persist)
    found = unread(counted, tally, requests, DataFrame.persist)
    by_case: dict[str, dict[int, str]] = {name: {} for name, *_ in CASES}
    for row in found.collect():
        by_case[CASES[row["partition"]][0]][row["second"]] = row["detail"]
    for name, _, _, wanted in CASES:
        assert by_case[name].keys() == wanted.keys(), (name, by_case[name])
        for second, text in wanted.items():
            assert text in by_case[name][second], name


# --- links of seals to each other ------------------------------------------------------------------------------------


def rewritten(values: Sequence[bytes], at: int, **fields: Any) -> list[bytes]:
    """Return *values*, one of them changed."""
    seal = Sealed.FromString(values[at])
    for name, value in fields.items():
        setattr(seal, name, value)
    return [*values[:at], seal.SerializeToString(), *values[at + 1 :]]


LINKS: list[tuple[str, Any, list[int]]] = [
    ("honest", lambda values: values, []),
    ("one dropped", lambda values: [*values[:1], *values[2:]], [12]),
    ("the first dropped, which nothing tells", lambda values: values[1:], []),
    ("two in another order", lambda values: [values[0], values[2], values[1], values[3]], [12, 11, 13]),
    ("one rewritten", lambda values: rewritten(values, 1, fired=7), [12]),
    ("one that names none", lambda values: rewritten(values, 2, previous=b""), [12, 13]),
    ("one put in between", lambda values: [*values[:2], values[1], *values[2:]], [11]),
]


def test_each_seal_names_the_one_before_it(spark: SparkSession) -> None:
    chains = [change(history(number).values) for number, (_, change, _) in enumerate(LINKS)]
    found = told(broken_links(seals(spark, *chains)), "partition", "second")
    wanted = [(number, second) for number, (_, _, seconds) in enumerate(LINKS) for second in seconds]
    assert found == sorted(wanted)
