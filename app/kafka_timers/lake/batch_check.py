"""
Compare the callback topics with the batches that the seals have named, by SHA-256.

A seal names for each topic the batches that left with it. The records of a seal that lie in a topic are cut into these
batches, encoded as the worker has encoded them, and hashed. So nobody can drop, add, change or move a record without a
difference, not even together with its request.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kafka_timers.broker.batches import Batch
from kafka_timers.core.sums import hash_of_batches
from kafka_timers.core.wire import Sent, sealed_from
from kafka_timers.errors import WireError
from kafka_timers.lake.arrow import record_batch
from kafka_timers.lake.callback_records import naming_requests
from kafka_timers.lake.covering import fires
from kafka_timers.lake.schema import FINDING, SEAL_KEY

_SENT = "partition int, end_ms bigint, fence bigint, at_offset bigint, topic string, sent binary"
_GROUP = (*SEAL_KEY, "topic")
# Of a batch that is only hashed.
_ANY_SIZE = 1 << 30


def sent_with(seals: DataFrame) -> DataFrame:
    """
    Return the batches that *seals*, slices included, name.

    Returns:
        partition int, end_ms bigint, fence bigint, at_offset bigint: the offset of the seal; topic string and sent
        binary: a `Sent`. One row for each topic of a seal. Both are null for a seal that has fired and names none, as
        those with at-least-once, and with too many batches.
    """
    rows = seals.where(F.col("fired") > 0)
    return rows.select("partition", "end_ms", "fence", "offset", "value").mapInArrow(_named, _SENT)


def batch_findings(
    sent: DataFrame, outcomes: DataFrame, records: DataFrame, complete: DataFrame, topics: Collection[str]
) -> DataFrame:
    """
    Return a finding for each seal and topic whose records are not those of the batches that the seal names.

    Args:
        sent: rows of `sent_with`. Seals that name none are skipped.
        outcomes: those of all requests that these seals have counted.
        records: as in `callbacks_of`.
        complete: partition int, end_ms bigint, fence bigint of the complete seals to judge.
        topics: topics to judge; they must have all of their records.

    Returns:
        findings of the kind batches, with the columns `schema.FINDING`.
    """
    judged = complete.select(*SEAL_KEY).join(sent.where(F.col("topic").isNull()), [*SEAL_KEY], "left_anti")
    is_judged = F.col("topic").isin(list(topics))
    wanted = sent.where(is_judged).join(judged, [*SEAL_KEY], "left_semi")
    fired = fires(outcomes).where(F.col("reason").isNull())
    fired = fired.select("partition", "offset", F.col("sealed_ms").alias("end_ms"), "fence")
    came = naming_requests(records).where(is_judged).join(fired, ["partition", "offset"])
    came = came.join(judged, [*SEAL_KEY], "left_semi")
    came = came.select(*_GROUP, "at_partition", "at_offset", "key", "value", "headers")
    both = wanted.unionByName(came, allowMissingColumns=True)
    # Null comes first: the names of the batches before the records.
    alike = both.repartition(*_GROUP).sortWithinPartitions(*_GROUP, "at_partition", "at_offset")
    return alike.select(*_GROUP, "sent", "at_partition", "key", "value", "headers").mapInArrow(_compared, FINDING)


def _named(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows: list[tuple[int, int, int, int, str | None, bytes | None]] = []
        for row in batch.to_pylist():
            name = row["partition"], row["end_ms"], row["fence"], row["offset"]
            rows += [(*name, each.topic, each.SerializeToString()) for each in _sent_in(row["value"])] or [
                (*name, None, None)
            ]
        yield record_batch(rows, _SENT)


def _sent_in(value: bytes | None) -> Sequence[Sent]:
    try:
        return sealed_from(value or b"").sent
    except WireError:
        # It is another finding.
        return ()


def _compared(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    found: list[tuple[str, int, None, int, str]] = []
    name, judged = None, _Judged()

    def judge() -> None:
        if name and (difference := judged.difference()):
            partition, end_ms, _, topic = name
            detail = f"the records in {topic} of this seal {difference}"
            found.append(("batches", partition, None, (end_ms - 1) // 1000, detail))

    for batch in batches:
        for row in batch.to_pylist():
            here = tuple(row[each] for each in _GROUP)
            if here != name:
                judge()
                name, judged = here, _Judged()
            judged.add(row)
    judge()
    yield record_batch(found, FINDING)


class _Judged:
    """The batches of a seal and its slices for one topic, and the records of the topic, one after the other."""

    def __init__(self) -> None:
        # Of each slice the wanted digest, and the number of its batches.
        self._wanted: list[tuple[bytes, int]] = []
        # By partition: slice, number of the batch in it, and records.
        self._batches: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)
        self._digests: dict[tuple[int, int], bytes] = {}
        self._open: Batch | None = None
        self._open_at = -1
        self._too_many = False

    def add(self, row: Mapping[str, Any]) -> None:
        """Add what a slice tells, or behind all of these the next record in the order of partition and offset."""
        if row["sent"] is not None:
            sent = Sent.FromString(row["sent"])
            at = len(self._wanted)
            self._wanted.append((sent.sha256, len(sent.records)))
            for number, (partition, records) in enumerate(zip(sent.partitions, sent.records, strict=False)):
                self._batches[partition].append((at, number, records))
            return
        batches = self._batches[row["at_partition"]]
        if not batches:
            self._too_many = True
            return
        if self._open is None or self._open_at != row["at_partition"]:
            self._open, self._open_at = Batch(_ANY_SIZE, is_transactional=False), row["at_partition"]
        headers = [(each["key"], each["value"]) for each in row["headers"] or []]
        self._open.append(timestamp=0, key=row["key"], value=row["value"], headers=headers)
        at, number, records = batches[0]
        if self._open.record_count() == records:
            self._digests[at, number] = self._open.digest()
            self._open = None
            del batches[0]

    def difference(self) -> str:
        """Return in which way the records differ from the batches; empty if they do not."""
        if self._too_many:
            return "are more than were sent with it"
        if any(self._batches.values()):
            return "are fewer than were sent with it"
        for at, (digest, batches) in enumerate(self._wanted):
            if hash_of_batches(self._digests.get((at, number), b"") for number in range(batches)) != digest:
                return "differ from those that were sent with it, by SHA-256"
        return ""
